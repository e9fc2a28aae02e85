// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Kernels that say what a test wants.

use super::{Errno, System};
use hal_backend::HostRange;
use hal_kernel::drm;
use hal_qaic_abi::uapi::Call;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

/// A system that has files, and nothing else.
pub(crate) struct Files(BTreeMap<String, String>);

impl Files {
    pub(crate) fn new<const N: usize>(files: [(&str, String); N]) -> Self {
        Self(files.into_iter().map(|(path, text)| (path.to_owned(), text)).collect())
    }
}

impl System for Files {
    fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
        Err(Errno::NOENT)
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        path.to_str().and_then(|path| self.0.get(path)).cloned().ok_or(Errno::NOENT)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let names = self.0.keys().filter_map(|file| Path::new(file).strip_prefix(path).ok());
        let mut names: Vec<String> =
            names.filter_map(|rest| Some(rest.iter().next()?.to_str()?.to_owned())).collect();
        names.dedup();
        if names.is_empty() { Err(Errno::NOENT) } else { Ok(names) }
    }
}

pub(crate) type Script = dyn FnMut(Call, &mut [u8]) -> Result<(), Errno> + Send;

/// A kernel with one device, whose answers are a function of the test's.
pub(crate) struct Scripted {
    /// The driver's name; empty for a file that is no driver's.
    pub(crate) driver: &'static str,
    /// The errors of opens, before one succeeds.
    pub(crate) opening: Mutex<Vec<Errno>>,
    /// The settings of the module.
    pub(crate) files: Files,
    /// Every call but the question for the name.
    pub(crate) calls: Mutex<Vec<Call>>,
    /// How many files were closed.
    pub(crate) closed: Mutex<usize>,
    pub(crate) script: Mutex<Box<Script>>,
}

impl Scripted {
    pub(crate) fn new(script: impl FnMut(Call, &mut [u8]) -> Result<(), Errno> + Send + 'static) -> Self {
        Self {
            driver: "qaic",
            opening: Mutex::default(),
            files: Files::new([]),
            calls: Mutex::default(),
            closed: Mutex::default(),
            script: Mutex::new(Box::new(script)),
        }
    }
}

impl System for Scripted {
    fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
        match self.opening.lock().pop() {
            Some(errno) => Err(errno),
            None => memfd_create("node", MemfdFlags::CLOEXEC),
        }
    }

    fn close(&self, file: OwnedFd) {
        drop(file);
        *self.closed.lock() += 1;
    }

    fn ioctl(&self, _: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let call = Call::of_request(request).ok_or(Errno::INVAL)?;
        if call != Call::Version {
            self.calls.lock().push(call);
            return (self.script.lock())(call, argument);
        }
        if self.driver.is_empty() {
            return Err(Errno::NOTTY);
        }
        let mut version = drm::Version::read_from_bytes(argument).map_err(|_| Errno::INVAL)?;
        version.name_length = self.driver.len() as u64;
        // SAFETY: the request says that there is room for 32 bytes.
        unsafe { (version.name as *mut u8).copy_from(self.driver.as_ptr(), self.driver.len()) };
        argument.copy_from_slice(version.as_bytes());
        Ok(())
    }

    fn map(&self, _: BorrowedFd<'_>, length: usize, _: u64) -> Result<HostRange, Errno> {
        HostRange::allocate(length as u64, 4096).map_err(|_| Errno::NOMEM)
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        self.files.read(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        self.files.list(path)
    }
}
