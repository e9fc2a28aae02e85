// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tenstorrent Blackhole and Wormhole cards, through the `tt-kmd` kernel driver's own interface.
//!
//! `tenstorrent://` drives a card through the kernel driver's windows, and runs executables that IREE's compiler
//! makes for 32-bit RISC-V (`embedded-elf-riscv_32`, or several of these in a [container]) on the small cores of its
//! Tensix tiles. Nothing of the vendor's user-space software is needed, neither its compiler.
//! `tenstorrent://emulated` drives an emulator of that kernel driver with a simulated chip behind it: the same path,
//! down to the kernel's requests and windows. Nothing here has been proved on silicon yet.
//!
//! # Devices
//!
//! | path | device |
//! |---|---|
//! | `tenstorrent://` | the first card that the kernel lists, of those that have a node here |
//! | `tenstorrent://N` | the card behind `/dev/tenstorrent/N` |
//! | `tenstorrent://0000:01:00.0` | the card at a place on the bus |
//! | `tenstorrent:///dev/tenstorrent/N` | the card behind a node |
//! | `tenstorrent://emulated`, `tenstorrent://emulated/N` | an emulated card; never taken unless it is named |
//!
//! The variable `HAL_TENSTORRENT_DEFAULT` of the environment sets another path for `tenstorrent://`.
//!
//! A card that is named is that card or an error. It is open for one program at a time, which may have several devices
//! of it.
//!
//! [`Tenstorrent::PARAMETERS`](hal_backend::Driver::PARAMETERS) declares the parameters, and `docs/tenstorrent.md`
//! has their table. An emulated card takes those of its [emulation](hal_kernel::Emulation::PARAMETERS) as well.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | `kmd/` | the kernel: nodes, an open card, windows, coordinates, what may go wrong |
//! | `memory.rs`, `memory/` | DRAM and tiles' memory: allocation, division over banks, transfers |
//! | `stub.rs`, `tile.rs` | what a tile's cores execute around a function, and how a tile is started and held |
//! | `open_card.rs` | the cards that a program has open, each once |
//! | `binding.rs`, `dispatch.rs` | the memory that a dispatch works on, and how it is laid out in tiles |
//! | `container.rs`, `container/` | several variants of one executable in one file |
//! | `options.rs` | the parameters of a URI |
//! | `executable.rs`, `queue.rs`, `device.rs` | what the driver sees |

mod binding;
pub mod container;
mod device;
mod dispatch;
mod executable;
mod generation;
pub mod kmd;
mod layout;
mod memory;
mod open_card;
mod options;
mod product;
mod queue;
mod stub;
mod tile;

pub use device::TenstorrentDevice;
pub use executable::{Executable, FORMAT};
pub use memory::{CardRange, Memory};

use hal_backend::{DeviceInfo, Driver, Failure, Parameter, Parameters};
use hal_kernel::{Emulation, NoEmulation};
use kmd::{CARDS, Linux, cards};
use open_card::OpenCard;
use options::{MOST_TILES, Options, PARAMETERS};
use std::fmt;
use std::marker::PhantomData;

/// The driver behind `tenstorrent://`. `E` injects emulated cards, or none.
pub struct Tenstorrent<E = NoEmulation>(PhantomData<fn() -> E>);

impl<E> fmt::Debug for Tenstorrent<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tenstorrent")
    }
}

impl<E: Emulation<()>> Driver for Tenstorrent<E> {
    type Device = TenstorrentDevice;

    const NAME: &'static str = CARDS.driver;
    const FULL_NAME: &'static str =
        "Tenstorrent Blackhole and Wormhole (tt-kmd kernel driver, or an emulator of it)";
    const PARAMETERS: &'static [Parameter] = PARAMETERS;

    fn create() -> Self {
        Self(PhantomData)
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(CARDS.devices::<E, ()>(&cards(&Linux)?))
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<TenstorrentDevice, Failure> {
        let options = Options::read(parameters)?;
        let named = CARDS.resolve::<E, ()>(path, parameters, cards)?;
        // More tiles of an emulated card than there are threads, or more cores of a tile, would make nothing faster.
        let (tiles, cores) = named.workers.map_or((MOST_TILES, stub::CORES), |workers| (workers, 1));
        let card = OpenCard::open(&named, options.patience, options.l1)?;
        TenstorrentDevice::new(card, options.settings(tiles, cores))
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        format!(
            "{}\n- queues: 2, compute and transfer, each in order\n\
             - executables: embedded-elf-riscv_32, tenstorrent-htt1",
            CARDS.heading::<E, ()>(info)
        )
    }

    fn parameters(&self, info: &DeviceInfo) -> Vec<Parameter> {
        CARDS.parameters::<E, ()>(info, PARAMETERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::Code;

    type Tenstorrent = super::Tenstorrent<emulator_tenstorrent::Emulated>;

    #[test]
    fn missing_card_is_refused_with_advice() {
        let failure = Tenstorrent::create()
            .open("/dev/tenstorrent/9999", &mut Parameters::new("tenstorrent", []))
            .unwrap_err();
        assert_eq!(failure.code(), Code::NotFound);
        assert!(failure.message().contains("/dev/tenstorrent/9999"), "{failure}");
        assert!(failure.message().contains("tenstorrent://emulated"), "{failure}");
    }

    /// A driver that has no emulators knows the names of their cards.
    #[test]
    fn build_without_emulators_says_so_for_each_kind_of_card() {
        for path in ["emulated", "emulated/1", "ttsim", "ttsim/0"] {
            let mut parameters = Parameters::new("tenstorrent", []);
            let refused =
                super::Tenstorrent::<NoEmulation>::create().open(path, &mut parameters).unwrap_err();
            assert_eq!(refused.code(), Code::Unimplemented, "{path}: {refused}");
        }
    }

    #[test]
    fn advice_differs_from_the_request() {
        let cases: &[(&str, &[&str])] = &[
            ("tenstorrent://emulated/1", &["tenstorrent://emulated/1", "has 1 card,", "cards=2"]),
            ("tenstorrent://emulated/3?cards=2", &["has 2 cards", "cards=4"]),
            ("tenstorrent://emulated/8?cards=8", &["has 8 cards", "from 0 to 7"]),
            ("tenstorrent://emulated/x", &["emulated/0, emulated/1"]),
            ("tenstorrent:///dev/tenstorrent/250", &["ask for tenstorrent://emulated"]),
        ];
        emulator_testbench::assert_refused(Tenstorrent::open_uri, cases);
    }
}
