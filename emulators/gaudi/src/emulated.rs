// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is injected into the driver: `gaudi://emulated`, and cards that a supervisor emulates.

use crate::programs::{card_programs, of_supervisor};
use crate::{Emulator, Options};
use emulator_core::options::check_card;
use emulator_core::{accel, remote};
use hal_backend::{DeviceInfo, Failure, Parameters};
use hal_gaudi_abi::programs::CardPrograms;
use hal_kernel::{EmulatedCard, Emulation};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Emulated Gaudi cards.
#[derive(Clone, Copy, Debug)]
pub struct Emulated;

fn card(emulator: Arc<Emulator>, number: usize) -> EmulatedCard<dyn CardPrograms> {
    EmulatedCard {
        node: accel::path(number),
        programs: Some(card_programs(emulator.clone())),
        workers: emulator.options().execution.workers,
        system: emulator,
    }
}

impl Emulation<dyn CardPrograms> for Emulated {
    fn devices() -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            path: "emulated".to_owned(),
            name: "emulated Gaudi 2: software behind the kernel driver's interface, no hardware".to_owned(),
        }]
    }

    fn find(
        _: &str,
        number: usize,
        parameters: &mut Parameters<'_>,
    ) -> Result<EmulatedCard<dyn CardPrograms>, Failure> {
        let options = Options::read(parameters)?;
        check_card("gaudi", number, options.cards)?;
        Ok(card(Emulator::get(&options)?, number))
    }

    fn of_file(file: BorrowedFd<'_>) -> Option<EmulatedCard<dyn CardPrograms>> {
        let emulator = Emulator::of(file)?;
        let number = emulator.card_of(file)?;
        Some(card(emulator, number))
    }

    fn is_supervised() -> bool {
        remote::is_supervised()
    }

    fn supervisor() -> Result<Option<Arc<dyn CardPrograms>>, Failure> {
        of_supervisor()
    }
}
