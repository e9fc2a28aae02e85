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

/// The failure of something that needs such memory, with what to do.
pub fn no_memory_file(length: u64, errno: Errno) -> Failure {
    let (code, advice) = match errno {
        Errno::FBIG => (Code::ResourceExhausted, "raise the limit of a file's size (ulimit -f)"),
        Errno::MFILE => (Code::ResourceExhausted, "close descriptors, or raise their limit (ulimit -n)"),
        Errno::NFILE | Errno::NOMEM | Errno::NOSPC => {
            (Code::ResourceExhausted, "free memory, or raise its limit (ulimit -v)")
        }
        _ => (
            Code::FailedPrecondition,
            "let the sandbox (seccomp) allow memfd_create, ftruncate, fallocate and fcntl to this process",
        ),
    };
    Failure::new(code, format!("no {length} bytes of shared memory can be made: {errno}; {advice}"))
}
