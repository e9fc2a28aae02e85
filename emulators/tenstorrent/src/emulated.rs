// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that are injected into the driver: `tenstorrent://emulated`, and `tenstorrent://ttsim` for a simulator's
//! library.

use crate::{Emulator, Options, options};
use emulator_core::emulator::check_calls;
use emulator_core::options::check_card;
use hal_backend::{Code, DeviceInfo, Failure, Parameter, Parameters};
use hal_kernel::{EmulatedCard, Emulation};
use hal_tenstorrent_abi::paths;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Emulated Tenstorrent cards. They execute what real ones execute, and run no host programs.
#[derive(Clone, Copy, Debug)]
pub struct Emulated;

/// The kind of cards that a library simulates, and the variable that names the library.
const LIBRARY: &str = "ttsim";
const LIBRARY_VARIABLE: &str = "LIBTTSIM";

impl Emulation<()> for Emulated {
    const PARAMETERS: &'static [Parameter] = options::PARAMETERS;

    fn devices() -> Vec<DeviceInfo> {
        let mut devices = vec![DeviceInfo {
            path: "emulated".to_owned(),
            name: "emulated Tenstorrent card: a simulated Blackhole or Wormhole behind the kernel driver's \
                   interface, no hardware"
                .to_owned(),
        }];
        if let Some(library) = std::env::var_os(LIBRARY_VARIABLE) {
            let name = format!(
                "emulated Tenstorrent card: the simulator {} behind the kernel driver's interface, no hardware",
                library.display()
            );
            devices.push(DeviceInfo { path: LIBRARY.to_owned(), name });
        }
        devices
    }

    fn find(kind: &str, number: usize, parameters: &mut Parameters<'_>) -> Result<EmulatedCard<()>, Failure> {
        let options = Options::read(parameters)?;
        let options = match kind {
            LIBRARY => Options { library: Some(named_library()?), ..options },
            // The same machine, whether its board is named or not.
            _ => Options { board: Some(options.board()), ..options },
        };
        check_card("tenstorrent", number, options.cards)?;
        check_calls()?;
        let emulator = Emulator::get(&options)?;
        Ok(EmulatedCard {
            node: Path::new(paths::NODES).join(number.to_string()),
            programs: None,
            workers: options.execution.workers,
            system: emulator,
        })
    }

    /// A card is opened for one program alone, by its path: descriptors of it are not adopted.
    fn of_file(_: BorrowedFd<'_>) -> Option<EmulatedCard<()>> {
        None
    }

    /// No supervisor shows these cards.
    fn is_supervised() -> bool {
        false
    }

    fn supervisor() -> Result<Option<Arc<()>>, Failure> {
        Ok(None)
    }
}

/// The simulator's library that the environment names.
fn named_library() -> Result<PathBuf, Failure> {
    let found = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let wrong = match found {
        Some(path) if path.is_file() => return Ok(path),
        Some(path) => format!("{LIBRARY_VARIABLE} is {}, which is no file", path.display()),
        None => format!("{LIBRARY_VARIABLE} does not name one"),
    };
    let message = format!(
        "tenstorrent://{LIBRARY} needs a simulator's library: {wrong}; set it to the path of a libttsim.so, or ask for \
         tenstorrent://emulated, which needs none"
    );
    Err(Failure::new(Code::FailedPrecondition, message))
}
