// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel driver's entry points, and its requests.
//!
//! Request numbers hold no sizes: the driver copies its own structures, and a shorter argument fails with
//! `EFAULT`.

use crate::machine::{Card, Machine, OpenFile, OwnedWindow};
use crate::{Emulator, Options, injection, window};
use emulator_chip::Family;
use emulator_core::file::Identity;
use emulator_core::threads::Running;
use emulator_core::{DeviceRange, EmulatedMachine, Errno, Process, identity};
use hal_backend::{Failure, HostRange};
use hal_kernel::registry::Registry;
use hal_tenstorrent_abi::uapi::{self, Request};
use hal_tenstorrent_abi::{Version, paths};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `TENSTORRENT_MAX_INBOUND_TLBS`.
const MOST_WINDOWS: u32 = 256;
/// The largest valid `x` and `y` (`ioctl_set_noc_cleanup`).
const MOST_COORDINATE: u8 = 64;

/// A request of a file, with the file's state.
struct RequestContext<'a> {
    machine: &'a Machine,
    card: &'a mut Card,
    file: &'a mut OpenFile,
    identity: Identity,
}

/// Reads an argument.
fn take<T: FromBytes>(argument: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(argument).map(|(value, _)| value).map_err(|_| Errno::FAULT)
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

    /// Fails with `EAGAIN` where the kernel would wait for a program that has the card for itself.
    fn open_node(&self, _: &dyn Process, path: &Path) -> Result<OwnedFd, Errno> {
        self.open(paths::node(path).ok_or(Errno::NOENT)?, false)
    }

    fn open_node_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open(paths::node(path).ok_or(Errno::NOENT)?, true)
    }

    fn close_file(&self, file: OwnedFd) {
        drop(file);
        self.release_closed();
    }

    /// `tt_cdev_ioctl`.
    fn answer(
        self: &Arc<Self>,
        _: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let identity = identity(file)?;
        let mut state = self.lock();
        state.files.get(identity)?;
        let mut open = *state.open.get(&identity).ok_or(Errno::NOTTY)?;
        let card = &mut state.cards[open.card];
        if card.injections.strikes(injection::UNPLUG) {
            Self::unplug(card);
        }
        if card.detached || card.resets != open.resets {
            return Err(Errno::NODEV);
        }
        let mut call = RequestContext { machine: self, card, file: &mut open, identity };
        let result = call.answer(request, argument);
        let number = open.card;
        state.open.insert(identity, open);
        self.launch(&mut state, number);
        result
    }

    /// Nothing of this driver is plain memory.
    fn map_memory(self: &Arc<Self>, _: BorrowedFd<'_>, _: usize, _: u64) -> Result<HostRange, Errno> {
        Err(Errno::INVAL)
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
        let (card, file) = paths::file(path).ok_or(Errno::NOENT)?;
        self.attribute(card, file)
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
        self.is_open(paths::node(path)?).then(|| format!("process {}", std::process::id()))
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

    fn answer(&mut self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        match Request::numbered(request).ok_or(Errno::INVAL)? {
            Request::GetDeviceInfo => self.device_info(argument),
            Request::QueryMappings => query_mappings(self.family(), argument),
            Request::GetDriverInfo => self.driver_info(argument),
            Request::ResetDevice => self.reset_device(argument),
            Request::LockCtl => self.lock_ctl(argument),
            Request::AllocateTlb => self.allocate_tlb(argument),
            Request::FreeTlb => self.free_tlb(argument),
            Request::ConfigureTlb => self.configure_tlb(argument),
            Request::SetNocCleanup => self.set_noc_cleanup(argument),
            Request::SetPowerState => self.set_power_state(argument),
            // No module answers the first and the third; the others are not modelled.
            Request::GetHarvesting
            | Request::AllocateDmaBuf
            | Request::FreeDmaBuf
            | Request::PinPages
            | Request::UnpinPages
            | Request::MapPeerBar
            | Request::ExportTlbDmabuf => Err(Errno::INVAL),
        }
    }

    /// `ioctl_get_device_info`
    fn device_info(&self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::GetDeviceInfo = take(argument)?;
        let bus = u16::try_from(self.file.card + 1).unwrap_or(u16::MAX);
        let info = uapi::GetDeviceInfo {
            output_size_bytes: length::<uapi::GetDeviceInfo>(4),
            vendor_id: uapi::VENDOR,
            device_id: self.family().device,
            subsystem_vendor_id: uapi::VENDOR,
            subsystem_id: 0x40,
            bus_dev_fn: bus << 8,
            max_dma_buf_size_log2: 28,
            ..Default::default()
        };
        answer(argument, 4, input.in_output_size_bytes, &info)
    }

    /// `ioctl_get_driver_info`
    fn driver_info(&self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::GetDriverInfo = take(argument)?;
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

    /// `ioctl_reset_device`: the file that resets stays valid, every other one is dead.
    fn reset_device(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::ResetDevice = take(argument)?;
        match input.flags {
            uapi::reset::USER | uapi::reset::ASIC | uapi::reset::ASIC_AND_CONTROLLER => {
                self.has(Version::new(2, 4, 0))?;
                self.machine.reset(self.card);
                self.file.resets = self.card.resets;
            }
            uapi::reset::POST => self.has(Version::new(2, 4, 0))?,
            _ => return Err(Errno::INVAL),
        }
        let done = uapi::ResetDevice { output_size_bytes: length::<uapi::ResetDevice>(8), ..input };
        answer(argument, 8, input.in_output_size_bytes, &uapi::ResetDevice { result: 0, ..done })
    }

    /// `ioctl_lock_ctl`
    fn lock_ctl(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::LockCtl = take(argument)?;
        if input.index >= uapi::lock::COUNT {
            return Err(Errno::INVAL);
        }
        let holder = self.card.locks.get(&input.index).copied();
        let ours = holder == Some(self.identity);
        let value = match input.flags {
            uapi::lock::ACQUIRE_BLOCKING => {
                self.has(Version::new(2, 7, 0))?;
                if holder.is_some() {
                    return Err(Errno::AGAIN);
                }
                self.card.locks.insert(input.index, self.identity);
                1
            }
            uapi::lock::ACQUIRE => {
                if holder.is_none() {
                    self.card.locks.insert(input.index, self.identity);
                }
                u8::from(holder.is_none())
            }
            uapi::lock::RELEASE => {
                if ours {
                    self.card.locks.remove(&input.index);
                }
                u8::from(ours)
            }
            uapi::lock::TEST => u8::from(holder.is_some()) << 1 | u8::from(ours),
            _ => return Err(Errno::INVAL),
        };
        answer(argument, 12, input.output_size_bytes, &uapi::LockCtl { value, ..input })
    }

    /// `ioctl_allocate_tlb`: the first window of this size that is free.
    fn allocate_tlb(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::AllocateTlb = take(argument)?;
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
        self.card.windows.insert(id, OwnedWindow { file: self.identity, mappings: 0 });
        Ok(())
    }

    /// A window that this file has allocated; else `EPERM`.
    fn window(&self, id: u32) -> Result<OwnedWindow, Errno> {
        if id >= MOST_WINDOWS {
            return Err(Errno::INVAL);
        }
        self.card.windows.get(&id).copied().filter(|owned| owned.file == self.identity).ok_or(Errno::PERM)
    }

    /// `ioctl_free_tlb`
    fn free_tlb(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let uapi::FreeTlb { id } = take(argument)?;
        if self.window(id)?.mappings > 0 {
            return Err(Errno::BUSY);
        }
        self.card.windows.remove(&id);
        Ok(())
    }

    /// `ioctl_configure_tlb`, `blackhole_configure_tlb`, `wormhole_configure_tlb`: into the registers of the bridge.
    fn configure_tlb(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let input: uapi::ConfigureTlb = take(argument)?;
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
        let input: uapi::SetNocCleanup = take(argument)?;
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
        let input: uapi::PowerState = take(argument)?;
        let fits = input.argsz == length::<uapi::PowerState>(0)
            && input.flags == 0
            && input.reserved0 == 0
            && input.validity <= 15 | 14 << 4;
        if fits { Ok(()) } else { Err(Errno::INVAL) }
    }
}

/// `ioctl_query_mappings`: the three regions, each uncached and combining.
fn query_mappings(family: &Family, argument: &mut [u8]) -> Result<(), Errno> {
    let input: uapi::QueryMappings = take(argument)?;
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
