// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel driver's entry points, and its requests.
//!
//! Request numbers hold no sizes: the driver copies its own structures, and a shorter argument fails with
//! `EFAULT`.

use crate::machine::{Card, Cards, ExportedWindow, Guard, Machine, Mapped, OpenFile, OwnedWindow};
use crate::{Emulator, Options, host_memory, injection, sysfs, window};
use emulator_chip::Family;
use emulator_core::dmabuf::Aperture;
use emulator_core::file::Identity;
use emulator_core::threads::Running;
use emulator_core::{
    DeviceRange, EmulatedMachine, Errno, OpenMode, OwnProcess, PAGE, Process, identity, view,
};
use hal_backend::{Failure, HostRange};
use hal_kernel::printable;
use hal_kernel::registry::Registry;
use hal_tenstorrent_abi::uapi::{self, Request};
use hal_tenstorrent_abi::{Feature, Version, paths};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `TENSTORRENT_MAX_INBOUND_TLBS`.
const MOST_WINDOWS: u32 = 256;
/// The largest valid `x` and `y` (`ioctl_set_noc_cleanup`).
const MOST_COORDINATE: u8 = 64;

/// A request of a file, with the file's state.
struct RequestContext<'a> {
    machine: &'a Arc<Machine>,
    card: &'a mut Card,
    file: &'a mut OpenFile,
    identity: Identity,
    process: &'a dyn Process,
}

/// Reads the input of an argument, which has so many bytes; the rest is what the caller has.
fn take<T: FromBytes + IntoBytes>(argument: &[u8], input: usize) -> Result<T, Errno> {
    if argument.len() < input {
        return Err(Errno::FAULT);
    }
    let mut value = T::new_zeroed();
    for (place, byte) in value.as_mut_bytes().iter_mut().zip(argument) {
        *place = *byte;
    }
    Ok(value)
}

/// Writes an argument back.
fn give<T: IntoBytes + Immutable>(argument: &mut [u8], answer: &T) -> Result<(), Errno> {
    answer.write_to_prefix(argument).map_err(|_| Errno::FAULT)
}

/// Writes the output of a structure whose input holds the size of the space: all of the space is cleared, and
/// the part that fits is filled.
fn answer<T: IntoBytes + Immutable>(
    argument: &mut [u8],
    input: usize,
    room: u32,
    answer: &T,
) -> Result<(), Errno> {
    let output = answer.as_bytes().get(input..).unwrap_or_default();
    let place =
        argument.get_mut(input..).and_then(|rest| rest.get_mut(..room as usize)).ok_or(Errno::FAULT)?;
    place.fill(0);
    for (place, byte) in place.iter_mut().zip(output) {
        *place = *byte;
    }
    Ok(())
}

fn length<T>(input: usize) -> u32 {
    u32::try_from(size_of::<T>() - input).unwrap_or(u32::MAX)
}

impl EmulatedMachine for Machine {
    type Options = Options;

    fn machines() -> &'static Registry<(u32, Options), Emulator> {
        static MACHINES: Registry<(u32, Options), Emulator> = Registry::new();
        &MACHINES
    }

    fn start(options: Options) -> Result<Running<Self>, Failure> {
        let workers = options.execution.workers;
        Running::start("tenstorrent", Self::new(options)?, workers, Self::work, Self::tick, Self::end)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    /// Fails with `EAGAIN` where the kernel would wait for another file of this process.
    fn open_node(&self, process: &dyn Process, path: &Path) -> Result<OwnedFd, Errno> {
        let mode = OpenMode { is_nonblocking: true, ..OpenMode::default() };
        self.open(process, paths::node(path).ok_or(Errno::NOENT)?, mode)
    }

    fn open_node_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mode = OpenMode { is_nonblocking: true, is_exclusive: true };
        self.open(&OwnProcess, paths::node(path).ok_or(Errno::NOENT)?, mode)
    }

    fn close_file(&self, file: OwnedFd) {
        drop(file);
        self.release_closed();
    }

    /// `tt_cdev_ioctl`.
    fn answer(
        self: &Arc<Self>,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let identity = identity(file)?;
        let kind = Request::numbered(request);
        if kind.is_some_and(needs_releases) {
            // Another process's close is over when its call has returned.
            self.release_closed();
        }
        let mut state = self.lock();
        let number = state.open.get(&identity).ok_or(Errno::NOTTY)?.card;
        if state.cards[number].injections.strikes(injection::UNPLUG) {
            Self::unplug(&mut state.cards[number]);
            self.wake(number);
        }
        check(&state, identity, request)?;
        let result = match kind.ok_or(Errno::INVAL)? {
            Request::AllocateDmaBuf => self.allocate_dma_buf(&mut state, identity, argument),
            Request::LockCtl => self.lock_ctl(&mut state, identity, argument),
            Request::MapPeerBar => self.map_peer_bar(&mut state, (process, identity), argument),
            other => {
                let Cards { cards, open, .. } = &mut **state;
                let open = open.get_mut(&identity).ok_or(Errno::NOTTY)?;
                let card = &mut cards[open.card];
                RequestContext { machine: self, card, file: open, identity, process }.answer(other, argument)
            }
        };
        self.launch(&mut state, number);
        if request == Request::ResetDevice.number() {
            self.wake(number);
        }
        result
    }

    /// Only buffers of the driver are plain memory.
    fn map_memory(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<HostRange, Errno> {
        self.buffer_at(identity(file)?, length as u64, offset)
    }

    fn map_window(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        window::map(self, file, length, offset)
    }

    fn attribute_text(&self, path: &Path) -> Result<String, Errno> {
        self.attribute(path)
    }

    fn folder_names(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let prefix = match path.to_str() {
            Some(paths::CLASS) => paths::PREFIX,
            Some(paths::NODES) => "",
            _ => return Err(Errno::NOENT),
        };
        Ok(self.present().iter().map(|number| format!("{prefix}{number}")).collect())
    }

    /// A card is opened for one program alone, by its path: descriptors of it are not adopted.
    fn card_of(&self, _: BorrowedFd<'_>) -> Option<usize> {
        None
    }

    fn holder_of(&self, path: &Path) -> Option<String> {
        let card = paths::node(path)?;
        let state = self.lock();
        let process = state.open.values().find(|file| file.card == card)?.process;
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
        Some(format!("process {process} ({})", printable(name.trim())))
    }

    fn failure_cause(&self) -> Option<String> {
        self.ended()
    }

    fn stop_cause(&self, node: &Path) -> Option<String> {
        self.stopped_core(paths::node(node)?)
    }
}

impl RequestContext<'_> {
    fn family(&self) -> &'static Family {
        self.card.board.chip.family()
    }

    fn has(&self, since: Version) -> Result<(), Errno> {
        if self.machine.options.module >= since { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn answer(&mut self, request: Request, argument: &mut [u8]) -> Result<(), Errno> {
        match request {
            Request::GetDeviceInfo => self.device_info(argument),
            Request::QueryMappings => query_mappings(self.family(), argument),
            Request::GetDriverInfo => self.driver_info(argument),
            Request::ResetDevice => self.reset_device(argument),
            Request::PinPages => self.pin_pages(argument),
            Request::UnpinPages => host_memory::unpin(self.card, self.file, &take(argument, 24)?),
            Request::AllocateTlb => self.allocate_tlb(argument),
            Request::FreeTlb => self.free_tlb(argument),
            Request::ConfigureTlb => self.configure_tlb(argument),
            Request::SetNocCleanup => self.set_noc_cleanup(argument),
            Request::SetPowerState => self.set_power_state(argument),
            Request::ExportTlbDmabuf => self.export_tlb_dmabuf(argument),
            // No module answers the first two; the others are answered before.
            Request::GetHarvesting
            | Request::FreeDmaBuf
            | Request::AllocateDmaBuf
            | Request::LockCtl
            | Request::MapPeerBar => Err(Errno::INVAL),
        }
    }

    /// `ioctl_get_device_info`
    fn device_info(&self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::GetDeviceInfo = take(argument, 4)?;
        let function = sysfs::function(self.family(), self.file.card);
        let [vendor_id, device_id, subsystem_vendor_id, subsystem_id] = function.ids;
        let info = uapi::GetDeviceInfo {
            output_size_bytes: length::<uapi::GetDeviceInfo>(4),
            vendor_id,
            device_id,
            subsystem_vendor_id,
            subsystem_id,
            bus_dev_fn: u16::from(function.bus) << 8,
            max_dma_buf_size_log2: host_memory::MOST_LOG2,
            ..Default::default()
        };
        answer(argument, 4, input.in_output_size_bytes, &info)
    }

    /// `ioctl_get_driver_info`
    fn driver_info(&self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::GetDriverInfo = take(argument, 4)?;
        let Version { major, minor, patch } = self.machine.options.module;
        let info = uapi::GetDriverInfo {
            output_size_bytes: length::<uapi::GetDriverInfo>(4),
            driver_version: 2,
            driver_version_major: major,
            driver_version_minor: minor,
            driver_version_patch: patch,
            ..Default::default()
        };
        answer(argument, 4, input.in_output_size_bytes, &info)
    }

    /// `ioctl_reset_device`: the file that resets stays valid, every other one is dead. A chip that is exported is not
    /// reset.
    fn reset_device(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::ResetDevice = take(argument, 8)?;
        let is_destructive = input.flags != uapi::reset::RESTORE && input.flags != uapi::reset::POST;
        if is_destructive && input.flags <= uapi::reset::POST && self.card.is_exported() {
            return Err(Errno::BUSY);
        }
        match input.flags {
            uapi::reset::RESTORE => {}
            uapi::reset::LINK => {
                self.card.board.revoked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            uapi::reset::CONFIG => self.machine.end_files(self.card, Some(self.identity)),
            uapi::reset::USER | uapi::reset::ASIC | uapi::reset::ASIC_AND_CONTROLLER => {
                self.has(Version::new(2, 4, 0))?;
                self.machine.reset(self.card, Some(self.identity));
                self.card.needs_init = true;
            }
            uapi::reset::POST => {
                self.has(Version::new(2, 4, 0))?;
                self.card.needs_init = false;
            }
            _ => return Err(Errno::INVAL),
        }
        self.file.resets = self.card.resets;
        let done = uapi::ResetDevice { output_size_bytes: length::<uapi::ResetDevice>(8), ..input };
        answer(argument, 8, input.in_output_size_bytes, &uapi::ResetDevice { result: 0, ..done })
    }

    /// `ioctl_pin_pages`
    fn pin_pages(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::PinPages = take(argument, 24)?;
        let read_only = self.has(Feature::ReadOnlyPages.since()).is_ok();
        let parts = (&mut *self.card, &mut *self.file, self.identity);
        let pinned = host_memory::pin(parts, self.process, &input, read_only)?;
        answer(argument, 24, input.output_size_bytes, &pinned)
    }

    /// `ioctl_export_tlb_dmabuf`
    fn export_tlb_dmabuf(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        self.has(Feature::ExportWindow.since())?;
        let input: uapi::ExportTlbDmabuf = take(argument, size_of::<uapi::ExportTlbDmabuf>())?;
        let fits = input.argsz == length::<uapi::ExportTlbDmabuf>(0)
            && input.flags == 0
            && input.offset.is_multiple_of(PAGE)
            && input.size.is_multiple_of(PAGE);
        if !fits {
            return Err(Errno::INVAL);
        }
        self.window(input.tlb_id)?;
        let size = self.family().window(input.tlb_id).ok_or(Errno::INVAL)?.0.size;
        if input.offset >= size || input.size > size - input.offset {
            return Err(Errno::INVAL);
        }
        let end = if input.size == 0 { size } else { input.offset + input.size };
        let range = window::exported(self.machine, self.card, input.tlb_id, input.offset..end)?;
        let (dmabuf, buffer) = Aperture::new(range)?;
        let fd = self.process.install(buffer)?;
        self.card.exports.push(ExportedWindow { window: input.tlb_id, dmabuf });
        give(argument, &uapi::ExportTlbDmabuf { fd, ..input })
    }

    /// `ioctl_allocate_tlb`: the first window of this size that is free.
    fn allocate_tlb(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::AllocateTlb = take(argument, size_of::<uapi::AllocateTlb>())?;
        self.card.free_windows();
        let family = self.family();
        let mut first = 0;
        let mut kinds = family.windows.iter().map(|kind| {
            let ids = first..first + kind.count;
            first = ids.end;
            (kind, ids)
        });
        let (kind, ids) = kinds.find(|(kind, _)| kind.size == input.size).ok_or(Errno::INVAL)?;
        // The smallest windows come first.
        let is_small = ids.start == 0;
        if kind.bar == 4 && self.card.injections.has(injection::NO_LARGE_WINDOWS) {
            return Err(Errno::INVAL);
        }
        let left = self.card.injections.value(injection::WINDOWS).filter(|_| is_small).unwrap_or(u64::MAX);
        let left = if !is_small && self.card.injections.has(injection::NO_LARGE_WINDOWS) { 0 } else { left };
        let taken = self.card.windows.keys().filter(|id| ids.contains(id)).count() as u64;
        let kernel = window::kernel(family);
        let free = |id: &u32| *id != kernel && !self.card.windows.contains_key(id);
        let base = ids.start;
        let id = ids.into_iter().find(free).filter(|_| taken < left).ok_or(Errno::NOMEM)?;
        let offset = kind.offset + u64::from(id - base) * kind.size;
        // The third region's windows follow the first region's.
        let offset = offset + if kind.bar == 0 { 0 } else { family.regions[0] };
        let window = uapi::AllocateTlb {
            id,
            mmap_offset_uc: paths::WINDOWS_UNCACHED + offset,
            mmap_offset_wc: paths::WINDOWS_COMBINING + offset,
            ..input
        };
        give(argument, &window)?;
        self.card.windows.insert(id, OwnedWindow { file: Some(self.identity), mappings: 0 });
        Ok(())
    }

    /// A window that this file has allocated; else `EPERM`.
    fn window(&self, id: u32) -> Result<OwnedWindow, Errno> {
        if id >= MOST_WINDOWS {
            return Err(Errno::INVAL);
        }
        self.card
            .windows
            .get(&id)
            .copied()
            .filter(|owned| owned.file == Some(self.identity))
            .ok_or(Errno::PERM)
    }

    /// `ioctl_free_tlb`
    fn free_tlb(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let uapi::FreeTlb { id } = take(argument, size_of::<uapi::FreeTlb>())?;
        if self.window(id)?.mappings > 0 || self.is_mapped_elsewhere(id) {
            return Err(Errno::BUSY);
        }
        if let Some(owned) = self.card.windows.get_mut(&id) {
            owned.file = None;
        }
        self.file.mapped.remove(&Mapped::Window(id));
        self.card.free_windows();
        Ok(())
    }

    /// True if another process has mapped a window of this file.
    fn is_mapped_elsewhere(&self, id: u32) -> bool {
        let Some((kind, index)) = self.family().window(id) else { return false };
        let start = kind.offset + u64::from(index) * kind.size;
        let start = start + if kind.bar == 0 { 0 } else { self.family().regions[0] };
        let starts = [paths::WINDOWS_UNCACHED, paths::WINDOWS_COMBINING].map(|base| base + start);
        self.file.mapped.contains_key(&Mapped::Window(id))
            && starts.into_iter().any(|start| view::is_seen(self.identity, start, kind.size))
    }

    /// `ioctl_configure_tlb`, `blackhole_configure_tlb`, `wormhole_configure_tlb`: into the registers of the bridge.
    fn configure_tlb(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::ConfigureTlb = take(argument, 40)?;
        self.window(input.id)?;
        let (mut config, family) = (input.config, self.family());
        let size = family.window(input.id).ok_or(Errno::INVAL)?.0.size;
        if !config.addr.is_multiple_of(size) || config.addr.checked_shr(family.address_bits).unwrap_or(0) != 0
        {
            return Err(Errno::INVAL);
        }
        if self.card.injections.strikes(injection::HARVESTED) {
            (config.x_end, config.y_end) = family.fused_off;
        }
        // A card that was lost takes no settings any more, and the driver does not check.
        let _ = window::point(&self.card.board.chip, input.id, &config);
        Ok(())
    }

    /// `ioctl_set_noc_cleanup`
    fn set_noc_cleanup(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        self.has(Version::new(2, 2, 0))?;
        let input: uapi::SetNocCleanup = take(argument, size_of::<uapi::SetNocCleanup>())?;
        let fits = input.argsz == length::<uapi::SetNocCleanup>(0)
            && input.flags == 0
            && input.enabled <= 1
            && input.addr.is_multiple_of(4)
            && input.noc <= 1
            && input.x <= MOST_COORDINATE
            && input.y <= MOST_COORDINATE;
        if !fits {
            return Err(Errno::INVAL);
        }
        self.file.cleanup = input;
        Ok(())
    }

    /// `ioctl_set_power_state`
    fn set_power_state(&self, argument: &[u8]) -> Result<(), Errno> {
        self.has(Version::new(2, 6, 0))?;
        let input: uapi::PowerState = take(argument, size_of::<uapi::PowerState>())?;
        let fits = input.argsz == length::<uapi::PowerState>(0)
            && input.flags == 0
            && input.reserved0 == 0
            && input.validity <= 15 | 14 << 4;
        if fits { Ok(()) } else { Err(Errno::INVAL) }
    }
}

/// True if the answer to a request depends on what other files have.
fn needs_releases(request: Request) -> bool {
    let shared = [
        Request::LockCtl,
        Request::AllocateTlb,
        Request::ResetDevice,
        Request::AllocateDmaBuf,
        Request::PinPages,
    ];
    shared.contains(&request)
}

/// Checks that a file may make a request (`tt_cdev_ioctl`): it is not from before a reset, and a reset is over.
fn check(state: &Cards, identity: Identity, request: u32) -> Result<(), Errno> {
    let open = state.open.get(&identity).ok_or(Errno::NOTTY)?;
    let card = &state.cards[open.card];
    let during_reset = [Request::GetDeviceInfo, Request::GetDriverInfo, Request::ResetDevice];
    let is_allowed = !card.needs_init || during_reset.iter().any(|allowed| allowed.number() == request);
    if card.detached || card.resets != open.resets || !is_allowed { Err(Errno::NODEV) } else { Ok(()) }
}

impl Machine {
    /// `ioctl_allocate_dma_buf`
    fn allocate_dma_buf(
        &self,
        state: &mut Guard<'_>,
        identity: Identity,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let input = take(argument, size_of::<uapi::AllocateDmaBuf>())?;
        let Cards { cards, files, open, .. } = &mut ***state;
        let open = open.get_mut(&identity).ok_or(Errno::NOTTY)?;
        let card = &mut cards[open.card];
        let memory = |offset, size| files.memory(identity, offset, size);
        give(argument, &host_memory::allocate((card, open, identity), memory, &input)?)
    }

    /// `ioctl_map_peer_bar`
    fn map_peer_bar(
        &self,
        state: &mut Guard<'_>,
        (process, file): (&dyn Process, Identity),
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let input: uapi::MapPeerBar = take(argument, size_of::<uapi::MapPeerBar>())?;
        if input.flags != 0 || input.peer_bar_length == 0 {
            return Err(Errno::INVAL);
        }
        let peer = process.descriptor(input.peer_fd.cast_signed()).map_err(|_| Errno::BADF)?;
        let peer = identity(peer.as_fd())?;
        let Cards { cards, open, .. } = &mut ***state;
        let card_of = |file| open.get(&file).map(|open: &OpenFile| open.card);
        let numbers = (card_of(file).ok_or(Errno::NOTTY)?, card_of(peer).ok_or(Errno::INVAL)?);
        give(argument, &host_memory::map_peer(&mut cards[numbers.0], numbers, &input)?)
    }

    /// `ioctl_lock_ctl`
    fn lock_ctl(&self, state: &mut Guard<'_>, identity: Identity, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::LockCtl = take(argument, 12)?;
        if input.index >= uapi::lock::COUNT {
            return Err(Errno::INVAL);
        }
        let number = state.open.get(&identity).ok_or(Errno::NOTTY)?.card;
        let locks = &mut state.cards[number].locks;
        let holder = locks.get(&input.index).copied();
        let ours = holder == Some(identity);
        let value = match input.flags {
            uapi::lock::ACQUIRE_BLOCKING => {
                if self.options.module < Feature::BlockingLock.since() {
                    return Err(Errno::INVAL);
                }
                while state.cards[number].locks.contains_key(&input.index) {
                    self.wait(state, number)?;
                    check(state, identity, Request::LockCtl.number())?;
                }
                state.cards[number].locks.insert(input.index, identity);
                1
            }
            uapi::lock::ACQUIRE => {
                locks.entry(input.index).or_insert(identity);
                u8::from(holder.is_none())
            }
            uapi::lock::RELEASE => {
                if ours {
                    locks.remove(&input.index);
                    self.wake(number);
                }
                u8::from(ours)
            }
            uapi::lock::TEST => u8::from(holder.is_some()) << 1 | u8::from(ours),
            _ => return Err(Errno::INVAL),
        };
        answer(argument, 12, input.output_size_bytes, &uapi::LockCtl { value, ..input })
    }
}

/// `ioctl_query_mappings`: the three regions, each uncached and combining.
fn query_mappings(family: &Family, argument: &mut [u8]) -> Result<(), Errno> {
    let input: uapi::QueryMappings = take(argument, 8)?;
    let regions = family.regions.into_iter().flat_map(|length| [length; 2]);
    let mut known = (1..).zip(regions).map(|(mapping_id, mapping_size)| uapi::Mapping {
        mapping_id,
        mapping_base: u64::from(mapping_id - 1) << 36,
        mapping_size,
        ..Default::default()
    });
    let places = argument.get_mut(size_of::<uapi::QueryMappings>()..).unwrap_or_default();
    let mut places = places.chunks_exact_mut(size_of::<uapi::Mapping>());
    for _ in 0..input.output_mapping_count {
        give(places.next().ok_or(Errno::FAULT)?, &known.next().unwrap_or_default())?;
    }
    Ok(())
}
