// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine for other processes.

use crate::machine::{Cards, Machine};
use crate::window;
use emulator_core::devices::ShownDevices;
use emulator_core::file::Identity;
use emulator_core::{
    ArgumentShape, Errno, MappedKind, OpenMode, PAGE, Process, RegisterAccess, SupervisedMachine, identity,
    view,
};
use hal_tenstorrent_abi::paths;
use hal_tenstorrent_abi::uapi::{self, Request};
use std::fmt::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The longest output that a process may ask for: the kernel clears all of it.
const LONGEST: usize = 64 << 20;

impl SupervisedMachine for Machine {
    fn open_as(&self, process: &dyn Process, path: &Path, mode: OpenMode) -> Result<OwnedFd, Errno> {
        self.open(process, paths::node(path).ok_or(Errno::NOENT)?, mode)
    }

    /// The numbers have no sizes: the driver knows what it copies, and often the input says how much it may answer.
    fn argument_shape(
        &self,
        process: &dyn Process,
        request: u32,
        address: u64,
    ) -> Result<ArgumentShape, Errno> {
        let fixed = |input, length, is_output| Ok(ArgumentShape { input, length, is_output });
        // The first word of the input is how much room there is behind it, in pieces of this many bytes.
        let answers = |input: usize, piece: usize| {
            let mut room = [0; 4];
            process.read(address, &mut room)?;
            let room = u32::from_le_bytes(room) as usize;
            let room = room.checked_mul(piece).filter(|&room| room <= LONGEST).ok_or(Errno::FAULT)?;
            fixed(input, input + room, true)
        };
        let whole = |length| fixed(length, length, false);
        match Request::numbered(request) {
            Some(Request::GetDeviceInfo | Request::GetDriverInfo) => answers(4, 1),
            Some(Request::QueryMappings) => answers(8, size_of::<uapi::Mapping>()),
            Some(Request::ResetDevice) => answers(8, 1),
            Some(Request::PinPages) => answers(24, 1),
            Some(Request::LockCtl) => answers(12, 1),
            Some(Request::AllocateDmaBuf) => fixed(24, size_of::<uapi::AllocateDmaBuf>(), true),
            Some(Request::UnpinPages) => whole(size_of::<uapi::UnpinPages>()),
            Some(Request::MapPeerBar) => fixed(24, size_of::<uapi::MapPeerBar>(), true),
            Some(Request::AllocateTlb) => fixed(16, size_of::<uapi::AllocateTlb>(), true),
            Some(Request::FreeTlb) => whole(size_of::<uapi::FreeTlb>()),
            // Its output is empty.
            Some(Request::ConfigureTlb) => whole(40),
            Some(Request::SetNocCleanup) => whole(size_of::<uapi::SetNocCleanup>()),
            Some(Request::SetPowerState) => whole(size_of::<uapi::PowerState>()),
            Some(Request::ExportTlbDmabuf) => {
                let length = size_of::<uapi::ExportTlbDmabuf>();
                fixed(length, length, true)
            }
            Some(Request::GetHarvesting | Request::FreeDmaBuf) | None => whole(0),
        }
    }

    fn access(&self, file: Identity, offset: u64, access: RegisterAccess<'_>) -> Result<(), Errno> {
        window::access(self, file, offset, access)
    }

    const MAPS_REGISTERS: bool = true;

    /// Windows may not be split (`tlb_vma_may_split`).
    fn may_split(&self, file: Identity, offset: u64) -> bool {
        let state = self.lock();
        let card = state.open.get(&file).and_then(|open| state.cards.find(open.card));
        card.is_none_or(|card| window::may_split(card.board.chip.family(), offset))
    }

    /// `tenstorrent_mmap`
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<MappedKind, Errno> {
        let identity = identity(file)?;
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::INVAL)?;
        let mut state = self.lock();
        let Cards { cards, open, .. } = &mut **state;
        let open = open.get_mut(&identity).ok_or(Errno::NODEV)?;
        let card = &cards[open.card];
        if card.detached || card.resets != open.resets {
            return Err(Errno::NODEV);
        }
        let kind = if open.memory.at(offset, length).is_some() {
            MappedKind::Memory
        } else {
            let (mapped, _) = window::mappable(card, identity, length, offset)?;
            open.mapped.insert(mapped, card.board.revoked.load(Ordering::Relaxed));
            MappedKind::Registers
        };
        drop(state);
        view::seen(process.id(), identity, offset);
        Ok(kind)
    }

    fn present_cards(&self) -> Vec<usize> {
        self.present()
    }

    fn shown_devices(&self) -> ShownDevices {
        self.shown()
    }

    fn node_of(&self, file: BorrowedFd<'_>) -> Option<PathBuf> {
        let card = self.lock().open.get(&identity(file).ok()?)?.card;
        Some(Path::new(paths::NODES).join(card.to_string()))
    }

    fn release_closed_files(&self) -> bool {
        self.release_closed();
        !self.lock().files.is_empty()
    }

    fn wake_requests(&self) {
        self.wake_all();
    }

    fn summary(&self) -> String {
        let mut text = self.report();
        for number in 0..self.options.cards {
            for line in [self.complaint(number), self.stopped_core(number)].into_iter().flatten() {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "  card {number}: {line}");
            }
        }
        text
    }
}
