// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The calls, with types.

use crate::error::CallError;
use crate::uapi::{self, Request};
use crate::version::{DriverInfo, Feature, Version};
use hal_kernel::CardFile;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The boundary to the kernel: one open file of a card.
pub trait Ioctl {
    /// Makes a request whose argument is these bytes, input and output.
    ///
    /// Some arguments have addresses in them: of memory that is to be pinned. Whatever implements this passes them on.
    fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno>;
}

impl Ioctl for CardFile {
    fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        CardFile::ioctl(self, request, argument)
    }
}

/// The identity of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// On a PCI bus, [`uapi::VENDOR`].
    pub vendor: u16,
    /// On a PCI bus, of [`uapi::device`].
    pub device: u16,
    /// The board's maker.
    pub subsystem_vendor: u16,
    /// The board.
    pub subsystem: u16,
    /// Its address on the bus: domain, bus, device, function.
    pub location: (u16, u8, u8, u8),
    /// The largest buffer that the kernel allocates, as a power of two.
    pub max_dma_buffer_log2: u16,
}

/// Something that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Of [`uapi::mapping`].
    pub id: u32,
    /// The offset to map.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// Memory of the host that the kernel allocated; freed when the file is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaBuffer {
    /// Its address for the card.
    pub address: u64,
    /// Its address on the card's network, if that was asked for.
    pub noc_address: Option<u64>,
    /// The offset to map.
    pub offset: u64,
    /// How long it is.
    pub length: u32,
}

/// How to reset a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Only mark it: a program does the rest.
    User,
    /// The chip.
    Chip,
    /// The chip and the controller of its board.
    ChipAndController,
    /// Bring it up again afterwards.
    Post,
}

/// How a program's memory is made reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinning {
    /// For the card's network too.
    pub noc: bool,
    /// The program knows that the pages follow each other physically.
    pub contiguous: bool,
    /// The card shall only read.
    pub read_only: bool,
}

/// A program's memory that the card can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Its address for the card.
    pub address: u64,
    /// Its address on the card's network, if that was asked for.
    pub noc_address: Option<u64>,
}

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// No file.
    Free,
    /// This file.
    Ours,
    /// Another.
    Others,
}

/// A window into the card's network, pointing nowhere yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlb {
    /// Its number.
    pub id: u32,
    /// How many bytes it shows.
    pub length: u64,
    /// The offset to map for registers.
    pub uncached_offset: u64,
    /// The offset to map for memory.
    pub combining_offset: u64,
}

/// How accesses through a window are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ordering {
    /// They may overtake each other.
    #[default]
    Relaxed = uapi::ordering::RELAXED,
    /// Each is acknowledged before the next.
    Strict = uapi::ordering::STRICT,
    /// Writes are not acknowledged.
    Posted = uapi::ordering::POSTED,
    /// Writes are not acknowledged, and stay in order.
    PostedStrict = uapi::ordering::POSTED_STRICT,
}

/// Which tiles a window shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One.
    Tile {
        /// Its column.
        x: u16,
        /// Its row.
        y: u16,
    },
    /// All of a rectangle, for writes.
    Rectangle {
        /// Column and row of its first corner.
        start: (u16, u16),
        /// Column and row of its last.
        end: (u16, u16),
    },
}

/// The target of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Which tiles.
    pub target: Target,
    /// The address in them: a multiple of the window's length.
    pub address: u64,
    /// Through which network, 0 or 1.
    pub noc: u8,
    /// In which order.
    pub ordering: Ordering,
}

/// A write that the module does when the file is closed, however that comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NocCleanup {
    /// Column of the tile.
    pub x: u8,
    /// Row of the tile.
    pub y: u8,
    /// Through which network, 0 or 1.
    pub noc: u8,
    /// The address in the tile: a multiple of four.
    pub address: u64,
    /// The value to write.
    pub value: u32,
}

/// The parts that a program needs powered; a card powers what any of its programs needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// Of [`uapi::power`].
    pub flags: u16,
}

/// The calls of an open card whose module is known.
#[derive(Debug)]
pub struct Calls<F> {
    file: F,
    driver: DriverInfo,
}

impl<F: Ioctl> Calls<F> {
    /// Asks the module what it is, and refuses one with another interface.
    pub fn new(file: F) -> Result<Self, CallError> {
        let mut argument = uapi::GetDriverInfo {
            in_output_size_bytes: output_size::<uapi::GetDriverInfo>(4),
            ..Default::default()
        };
        call(&file, Request::GetDriverInfo, &mut argument, String::new)?;
        let version = Version::new(
            argument.driver_version_major,
            argument.driver_version_minor,
            argument.driver_version_patch,
        );
        let driver = DriverInfo { api: argument.driver_version, version };
        if driver.api != 2 {
            return Err(CallError::Api { api: driver.api, version });
        }
        Ok(Self { file, driver })
    }

    /// Which module it is.
    pub fn driver(&self) -> DriverInfo {
        self.driver
    }

    /// The file.
    pub fn file(&self) -> &F {
        &self.file
    }

    fn need(&self, feature: Feature) -> Result<(), CallError> {
        let version = self.driver.version;
        if self.driver.has(feature) { Ok(()) } else { Err(CallError::TooOld { feature, version }) }
    }

    fn call<A: IntoBytes + FromBytes + Immutable>(
        &self,
        request: Request,
        argument: &mut A,
        about: impl FnOnce() -> String,
    ) -> Result<(), CallError> {
        call(&self.file, request, argument, about)
    }

    /// The identity of the card.
    pub fn device(&self) -> Result<DeviceInfo, CallError> {
        let mut argument = uapi::GetDeviceInfo {
            in_output_size_bytes: output_size::<uapi::GetDeviceInfo>(4),
            ..Default::default()
        };
        self.call(Request::GetDeviceInfo, &mut argument, String::new)?;
        let [device_and_function, bus] = argument.bus_dev_fn.to_le_bytes();
        Ok(DeviceInfo {
            vendor: argument.vendor_id,
            device: argument.device_id,
            subsystem_vendor: argument.subsystem_vendor_id,
            subsystem: argument.subsystem_id,
            location: (argument.pci_domain, bus, device_and_function >> 3, device_and_function & 7),
            max_dma_buffer_log2: argument.max_dma_buf_size_log2,
        })
    }

    /// The regions that can be mapped.
    pub fn mappings(&self) -> Result<Vec<Mapping>, CallError> {
        /// Three regions, twice each, and room for what may come.
        const ROOM: usize = 8;
        let mut argument = [0_u8; size_of::<uapi::QueryMappings>() + ROOM * size_of::<uapi::Mapping>()];
        let query = uapi::QueryMappings { output_mapping_count: 8, reserved: 0 };
        let (head, tail) = argument.split_at_mut(size_of::<uapi::QueryMappings>());
        head.copy_from_slice(query.as_bytes());
        tail.fill(0);
        self.call(Request::QueryMappings, &mut argument, String::new)?;
        let (_, found) = argument.split_at(size_of::<uapi::QueryMappings>());
        let mapping = |bytes: &[u8]| uapi::Mapping::read_from_bytes(bytes).ok();
        Ok(found
            .chunks_exact(size_of::<uapi::Mapping>())
            .filter_map(mapping)
            .filter(|mapping| mapping.mapping_id != uapi::mapping::UNUSED)
            .map(|mapping| Mapping {
                id: mapping.mapping_id,
                offset: mapping.mapping_base,
                length: mapping.mapping_size,
            })
            .collect())
    }

    /// Memory of the host, contiguous, for the card; `index` is one that is not in use by this file.
    pub fn allocate_dma_buffer(&self, index: u8, length: u32, noc: bool) -> Result<DmaBuffer, CallError> {
        let flags = if noc { uapi::dma::NOC } else { 0 };
        let mut argument =
            uapi::AllocateDmaBuf { requested_size: length, buf_index: index, flags, ..Default::default() };
        let about = || format!("{length} bytes with index {index}");
        self.call(Request::AllocateDmaBuf, &mut argument, about)?;
        Ok(DmaBuffer {
            address: argument.physical_address,
            noc_address: noc.then_some(argument.noc_address),
            offset: argument.mapping_offset,
            length: argument.size,
        })
    }

    /// Resets the card. Every file of it but those that are opened afterwards is dead then, this one included, except
    /// after [`Reset::Post`].
    pub fn reset(&self, reset: Reset) -> Result<(), CallError> {
        self.need(Feature::ChipReset)?;
        let (flags, what) = match reset {
            Reset::User => (uapi::reset::USER, "the mark of a reset"),
            Reset::Chip => (uapi::reset::ASIC, "a reset of its chip"),
            Reset::ChipAndController => {
                (uapi::reset::ASIC_AND_CONTROLLER, "a reset of its chip and controller")
            }
            Reset::Post => (uapi::reset::POST, "a reset"),
        };
        let mut argument = uapi::ResetDevice {
            in_output_size_bytes: output_size::<uapi::ResetDevice>(8),
            flags,
            ..Default::default()
        };
        self.call(Request::ResetDevice, &mut argument, || what.to_owned())?;
        if argument.result == 0 { Ok(()) } else { Err(CallError::ResetFailed { what }) }
    }

    /// Makes whole pages of this program's memory reachable for the card, until they are unpinned or the file is
    /// closed.
    ///
    /// The memory has to stay mapped as it is for so long; nothing checks that it does.
    pub fn pin(&self, address: u64, length: u64, pinning: Pinning) -> Result<Pinned, CallError> {
        if pinning.read_only {
            self.need(Feature::ReadOnlyPages)?;
        }
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let flags = flag(pinning.noc, uapi::pin::NOC)
            | flag(pinning.contiguous, uapi::pin::CONTIGUOUS)
            | flag(pinning.read_only, uapi::pin::READ_ONLY);
        let mut argument = uapi::PinPages {
            output_size_bytes: output_size::<uapi::PinPages>(24),
            flags,
            virtual_address: address,
            size: length,
            ..Default::default()
        };
        self.call(Request::PinPages, &mut argument, || format!("{length} bytes at {address:#x}"))?;
        let noc_address = pinning.noc.then_some(argument.noc_address);
        Ok(Pinned { address: argument.physical_address, noc_address })
    }

    /// Ends what [`Calls::pin`] began with the same address and length.
    pub fn unpin(&self, address: u64, length: u64) -> Result<(), CallError> {
        let mut argument = uapi::UnpinPages { virtual_address: address, size: length, reserved: 0 };
        self.call(Request::UnpinPages, &mut argument, || format!("{length} bytes at {address:#x}"))
    }

    fn lock(&self, index: u8, flags: u32, about: &str) -> Result<u8, CallError> {
        if index >= uapi::lock::COUNT {
            let needed = "less than 64";
            return Err(CallError::Argument { what: "a lock's number", found: index.to_string(), needed });
        }
        let mut argument = uapi::LockCtl {
            output_size_bytes: output_size::<uapi::LockCtl>(12),
            flags,
            index,
            ..Default::default()
        };
        self.call(Request::LockCtl, &mut argument, || format!("{about} lock {index}"))?;
        Ok(argument.value)
    }

    /// Takes a lock between processes if it is free; whether it was. Closing the file gives it back.
    pub fn try_lock(&self, index: u8) -> Result<bool, CallError> {
        Ok(self.lock(index, uapi::lock::ACQUIRE, "take")? == 1)
    }

    /// Takes a lock when it is free. A signal can interrupt that, with `EINTR`.
    pub fn wait_lock(&self, index: u8) -> Result<(), CallError> {
        self.need(Feature::BlockingLock)?;
        self.lock(index, uapi::lock::ACQUIRE_BLOCKING, "wait for").map(drop)
    }

    /// Gives a lock back; whether it was this file's.
    pub fn unlock(&self, index: u8) -> Result<bool, CallError> {
        Ok(self.lock(index, uapi::lock::RELEASE, "give back")? == 1)
    }

    /// The holder of a lock.
    pub fn holder(&self, index: u8) -> Result<Lock, CallError> {
        let value = self.lock(index, uapi::lock::TEST, "look at")?;
        Ok(match value & 3 {
            0 => Lock::Free,
            2 => Lock::Others,
            _ => Lock::Ours,
        })
    }

    /// A window of this length, if one is free.
    pub fn allocate_window(&self, length: u64) -> Result<Tlb, CallError> {
        let mut argument = uapi::AllocateTlb { size: length, ..Default::default() };
        self.call(Request::AllocateTlb, &mut argument, || format!("a window of {length} bytes"))?;
        Ok(Tlb {
            id: argument.id,
            length,
            uncached_offset: argument.mmap_offset_uc,
            combining_offset: argument.mmap_offset_wc,
        })
    }

    /// Gives a window back, which must not be mapped.
    pub fn free_window(&self, tlb: Tlb) -> Result<(), CallError> {
        let Tlb { id, .. } = tlb;
        self.call(Request::FreeTlb, &mut uapi::FreeTlb { id }, || format!("window {id}"))
    }

    /// Points a window somewhere. What is mapped of it shows that from now on.
    pub fn point(&self, tlb: &Tlb, window: &Window) -> Result<(), CallError> {
        let &Tlb { id, length, .. } = tlb;
        let &Window { address, noc, .. } = window;
        if !address.is_multiple_of(length) {
            return Err(CallError::Argument {
                what: "an address to point a window at",
                found: format!("{address:#x}"),
                needed: "a multiple of the window's length",
            });
        }
        let mut config =
            uapi::NocTlbConfig { addr: address, noc, ordering: window.ordering as u8, ..Default::default() };
        match window.target {
            Target::Tile { x, y } => (config.x_end, config.y_end) = (x, y),
            Target::Rectangle { start, end } => {
                config.mcast = 1;
                (config.x_start, config.y_start) = start;
                (config.x_end, config.y_end) = end;
            }
        }
        let mut argument = uapi::ConfigureTlb { id, config, ..Default::default() };
        let about = || format!("window {id} at {address:#x} of {:?}", window.target);
        self.call(Request::ConfigureTlb, &mut argument, about)
    }

    /// Has a write done when the file is closed, instead of one that was asked for before; or none.
    pub fn set_cleanup(&self, cleanup: Option<NocCleanup>) -> Result<(), CallError> {
        self.need(Feature::NocCleanup)?;
        let argsz = output_size::<uapi::SetNocCleanup>(0);
        let mut argument = uapi::SetNocCleanup { argsz, ..Default::default() };
        if let Some(NocCleanup { x, y, noc, address, value }) = cleanup {
            argument =
                uapi::SetNocCleanup { enabled: 1, x, y, noc, addr: address, data: value.into(), ..argument };
        }
        self.call(Request::SetNocCleanup, &mut argument, || format!("{cleanup:?}"))
    }

    /// Says what this program needs powered. A file that was opened for appending needs nothing before it says so; any
    /// other needs everything.
    pub fn set_power(&self, power: Power) -> Result<(), CallError> {
        self.need(Feature::PowerState)?;
        let mut argument = uapi::PowerState {
            argsz: output_size::<uapi::PowerState>(0),
            validity: uapi::power::COUNT,
            power_flags: power.flags,
            ..Default::default()
        };
        self.call(Request::SetPowerState, &mut argument, || format!("flags {:#x}", power.flags))
    }

    /// A part of a window as a dma-buf: the number of a file that the caller then owns.
    pub fn export_window(&self, tlb: &Tlb, offset: u64, length: u64) -> Result<i32, CallError> {
        self.need(Feature::ExportWindow)?;
        let mut argument = uapi::ExportTlbDmabuf {
            argsz: output_size::<uapi::ExportTlbDmabuf>(0),
            tlb_id: tlb.id,
            offset,
            size: length,
            ..Default::default()
        };
        let about = || format!("{length} bytes at {offset:#x} of window {}", tlb.id);
        self.call(Request::ExportTlbDmabuf, &mut argument, about)?;
        Ok(argument.fd)
    }
}

/// How many bytes of a structure are behind its input.
const fn output_size<T>(input: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "structures have less than a hundred bytes")]
    let size = (size_of::<T>() - input) as u32;
    size
}

fn call<A: IntoBytes + FromBytes + Immutable>(
    file: &impl Ioctl,
    request: Request,
    argument: &mut A,
    about: impl FnOnce() -> String,
) -> Result<(), CallError> {
    let refused = |errno| CallError::Refused { request, about: about(), errno };
    file.ioctl(request.number(), argument.as_mut_bytes()).map_err(refused)
}
