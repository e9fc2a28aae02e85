// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory that has a descriptor, for sharing between devices and processes.

use crate::{Code, Failure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;

/// Zeroed memory of some length, which takes space when it is written. It never shrinks: a process that maps it would
/// not survive that. A caller may add seals.
pub fn memory_file(name: &str, length: u64) -> Result<OwnedFd, Errno> {
    // The kernel kills a process that makes a file longer than its limit.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| length > most) {
        return Err(Errno::FBIG);
    }
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, length)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// What to do about a limit that the kernel says is reached; `None` for every other answer.
pub fn limit_advice(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::FBIG => "raise the limit of a file's size (ulimit -f)",
        Errno::MFILE | Errno::NFILE => "close descriptors, or raise their limit (ulimit -n)",
        Errno::NOMEM | Errno::NOSPC => "free memory, or raise its limit (ulimit -v)",
        _ => return None,
    })
}

/// The failure of something that needs such memory, with what to do.
pub fn no_memory_file(length: u64, errno: Errno) -> Failure {
    let (code, advice) = match limit_advice(errno) {
        Some(advice) => (Code::ResourceExhausted, advice),
        None => (
            Code::FailedPrecondition,
            "let the sandbox (seccomp) allow memfd_create, ftruncate, fallocate and fcntl to this process",
        ),
    };
    Failure::new(code, format!("no {length} bytes of shared memory can be made: {errno}; {advice}"))
}
