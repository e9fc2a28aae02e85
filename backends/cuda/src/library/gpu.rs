// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Cards: what they are called, and what they can do.

use super::{CudaError, Library, call};
use hal_backend::{Code, Failure};
use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::Arc;

/// A property of a card, by CUDA's number.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Attribute {
    MaxThreads = 1,
    MaxBlockX = 2,
    MaxBlockY = 3,
    MaxBlockZ = 4,
    MaxGridX = 5,
    MaxGridY = 6,
    MaxGridZ = 7,
    Multiprocessors = 16,
    UnifiedAddressing = 41,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
    RegisteredAtHostAddress = 91,
    MaxShared = 97,
    HostRegister = 99,
    Pools = 115,
    StreamWords = 122,
}

/// A card.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(super) library: Arc<Library>,
    pub(super) device: i32,
    pub(crate) number: i32,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Gpu {
    pub(super) fn new(library: Arc<Library>, number: i32) -> Result<Self, CudaError> {
        let mut device = 0;
        // SAFETY: the result is ours.
        unsafe { call!(library, cuDeviceGet(&raw mut device, number)) }?;
        Ok(Self { library, device, number })
    }

    /// The version of CUDA that its library implements.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        self.library.version()
    }

    pub(crate) fn name(&self) -> Result<String, CudaError> {
        self.text(|text, length| {
            // SAFETY: the buffer has this length.
            unsafe { call!(self.library, cuDeviceGetName(text, length, self.device)) }
        })
    }

    /// Its place on the bus, such as `0000:01:00.0`.
    pub(crate) fn address(&self) -> Result<String, CudaError> {
        self.text(|text, length| {
            // SAFETY: the buffer has this length.
            unsafe { call!(self.library, cuDeviceGetPCIBusId(text, length, self.device)) }
        })
    }

    /// A text that a function writes.
    fn text(
        &self,
        write: impl FnOnce(*mut c_char, i32) -> Result<(), CudaError>,
    ) -> Result<String, CudaError> {
        const LENGTH: u16 = 256;
        let mut text = [0_u8; LENGTH as usize];
        write(text.as_mut_ptr().cast(), LENGTH.into())?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Its identity, as `nvidia-smi -L` writes it.
    pub(crate) fn uuid(&self) -> Result<String, CudaError> {
        let mut bytes = [0; 16];
        // SAFETY: the result is ours.
        unsafe { call!(self.library, cuDeviceGetUuid(&raw mut bytes, self.device)) }?;
        let number = u128::from_be_bytes(bytes);
        let part = |shift: u32, digits: u32| (number >> shift) & ((1 << (4 * digits)) - 1);
        Ok(format!(
            "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            part(96, 8),
            part(80, 4),
            part(64, 4),
            part(48, 4),
            part(0, 12)
        ))
    }

    /// The bytes of its memory.
    pub(crate) fn memory(&self) -> Result<u64, CudaError> {
        let mut bytes = 0;
        // SAFETY: the result is ours.
        unsafe { call!(self.library, cuDeviceTotalMem(&raw mut bytes, self.device)) }?;
        Ok(bytes as u64)
    }

    /// A property; zero for one that is negative, which none is.
    pub(crate) fn attribute(&self, attribute: Attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: the result is ours.
        unsafe { call!(self.library, cuDeviceGetAttribute(&raw mut value, attribute as i32, self.device)) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Refuses a card that lacks what the driver needs.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let needs = [
            (Attribute::UnifiedAddressing, "one address space with the host"),
            (Attribute::Pools, "pools of memory"),
            (Attribute::StreamWords, "64-bit words that streams write and wait for"),
        ];
        for (attribute, what) in needs {
            let has =
                self.attribute(attribute).map_err(|error| error.failure("asking for a card's properties"))?;
            if has == 0 {
                let name = self.name().unwrap_or_default();
                let message = format!(
                    "card {} ({name}) lacks {what}, which this driver needs; update NVIDIA's driver, or use another \
                     card",
                    self.number
                );
                return Err(Failure::new(Code::Incompatible, message));
            }
        }
        Ok(())
    }
}
