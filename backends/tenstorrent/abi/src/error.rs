// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Why a call failed, and what to do.

use crate::uapi::Request;
use crate::version::{Feature, Version};
use rustix::io::Errno;
use thiserror::Error;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The kernel refused.
    #[error("tt-kmd refused {request:?} ({about}): {errno}{}", advice(*request, *errno))]
    Refused {
        /// The request.
        request: Request,
        /// Its argument.
        about: String,
        /// Its answer.
        errno: Errno,
    },
    /// A module with another interface.
    #[error(
        "tt-kmd {version} has version {api} of its interface, where 2 is needed: install a module of 2.0 to 2.10"
    )]
    Api {
        /// Of the interface.
        api: u32,
        /// Of the module.
        version: Version,
    },
    /// A module that is too old for this.
    #[error(
        "tt-kmd {version} does not have {}, which came with {}: install a newer module",
        feature.name(), feature.since()
    )]
    TooOld {
        /// The feature of the request.
        feature: Feature,
        /// The module that is there.
        version: Version,
    },
    /// A card that was not reset, though the module did what it could.
    #[error(
        "the card did not come back from {what}: see the kernel's log, and reset the machine if it stays away"
    )]
    ResetFailed {
        /// Which reset.
        what: &'static str,
    },
    /// An argument that no module takes.
    #[error("{what} is {found}, and must be {needed}")]
    Argument {
        /// Which.
        what: &'static str,
        /// The value.
        found: String,
        /// The value that is needed.
        needed: &'static str,
    },
}

/// Advice, if there is any.
fn advice(request: Request, errno: Errno) -> &'static str {
    match (request, errno) {
        (_, Errno::NODEV) => {
            "; the card was reset or removed since it was opened: close it and open it again"
        }
        (Request::AllocateTlb, Errno::NOMEM) => {
            "; every window of this size is in use: close programs that use the card, or its dma-bufs, or ask for \
             another size"
        }
        (Request::AllocateTlb, Errno::INVAL) => "; this card has no windows of this size",
        (Request::FreeTlb, Errno::BUSY) => "; the window is still mapped: unmap it first",
        (Request::FreeTlb | Request::ConfigureTlb | Request::ExportTlbDmabuf, Errno::PERM) => {
            "; the window is not one of this file's"
        }
        (Request::PinPages, Errno::EXIST) => "; the same memory is pinned already",
        (Request::PinPages, Errno::INVAL) => {
            "; memory must be whole pages, and without an IOMMU they must follow each other: use huge pages"
        }
        (Request::PinPages, Errno::OPNOTSUPP) => "; pages that the card only reads need an IOMMU",
        (Request::ResetDevice, Errno::BUSY) => "; a window is exported as a dma-buf: close that first",
        (Request::AllocateDmaBuf, Errno::NOMEM) => {
            "; the kernel has no contiguous memory of this size: ask for less, or pin pages of the program instead"
        }
        (Request::AllocateDmaBuf, Errno::INVAL) => {
            "; the size must be whole pages, the index one that is not in use, and the card able to reach the host"
        }
        _ => "",
    }
}
