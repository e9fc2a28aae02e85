// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Asynchronous transfers for programs in C, with the names, signatures and results that were proposed for
//! hl-thunk.
//!
//! The header is `hal-driver/include/hal_gaudi_dma.h`, which documents each function. This module converts numbers
//! and pointers to [`Dma`]'s arguments, and failures to negative error numbers; it keeps the message of the last
//! failure for `hal_gaudi_last_error`.
//!
//! A card is found in a table by its descriptor's number and identity: a number that was closed and reused is
//! another card. The first transfer of a card enters it.

use crate::drivers::Gaudi;
use crate::ffi::cancellation::NotCancelled;
use hal_backend::{Code, Failure, HostRange};
use hal_gaudi::dma::{CardTransfers, Dma, Request};
use hal_gaudi::memory::Memory;
use hal_kernel::{Linux, System, borrow};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{HashMap, hash_map};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

/// A card in use.
struct Open {
    /// The identity of the descriptor's file.
    identity: (u64, u64),
    transfers: CardTransfers,
    memory: HashMap<u64, Memory>,
}

/// The cards that this process uses, by descriptor.
#[derive(Default)]
struct Table {
    cards: HashMap<c_int, Open>,
    /// The systems of cards that were opened here, which close them.
    systems: HashMap<c_int, Arc<dyn System>>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The message of the last failure on this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The error number of a failure.
fn number(failure: &Failure) -> c_int {
    let text = failure.message().replace('\0', " ");
    let _ = LAST.try_with(|last| last.replace(CString::new(text).unwrap_or_default()));
    -match failure.code() {
        Code::InvalidArgument | Code::OutOfRange | Code::Incompatible => libc::EINVAL,
        Code::ResourceExhausted => libc::ENOMEM,
        Code::NotFound => libc::ENOENT,
        Code::PermissionDenied | Code::FailedPrecondition => libc::EPERM,
        Code::DeadlineExceeded => libc::ETIMEDOUT,
        Code::Unavailable => libc::ENODEV,
        Code::Unimplemented => libc::ENOTSUP,
        _ => libc::EIO,
    }
}

/// Runs the body of a C function. A panic becomes a failure, and the thread is not cancelled meanwhile.
fn guard(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let _not_cancelled = NotCancelled::new();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(result)) => result,
        Ok(Err(failure)) => number(&failure),
        Err(_) => number(&Failure::new(Code::Internal, "the library has panicked")),
    }
}

fn invalid(message: &str) -> Failure {
    Failure::new(Code::InvalidArgument, message)
}

fn identity(fd: c_int) -> Result<(u64, u64), Failure> {
    let bad = || invalid(&format!("{fd} is no open descriptor of this process"));
    hal_kernel::identity(borrow(fd).ok_or_else(bad)?).map_err(|_| bad())
}

impl Table {
    /// The card of a descriptor.
    fn card(&mut self, fd: c_int) -> Result<&mut Open, Failure> {
        let identity = identity(fd)?;
        if self.cards.get(&fd).is_some_and(|open| open.identity != identity) {
            self.cards.remove(&fd);
        }
        match self.cards.entry(fd) {
            hash_map::Entry::Occupied(open) => Ok(open.into_mut()),
            hash_map::Entry::Vacant(place) => {
                let transfers = Gaudi::transfers(fd)?;
                Ok(place.insert(Open { identity, transfers, memory: HashMap::new() }))
            }
        }
    }
}

fn dma(fd: c_int) -> Result<Arc<Dma>, Failure> {
    Ok(TABLE.lock().card(fd)?.transfers.dma.clone())
}

/// # Safety
///
/// The memory is valid for as long as the transfer runs, as the caller promises.
unsafe fn host(address: *mut c_void, size: u64) -> Result<HostRange, Failure> {
    if address.is_null() || size == 0 {
        return Err(invalid("a transfer needs host memory and at least one byte"));
    }
    let length = usize::try_from(size).map_err(|_| invalid("more bytes than there are addresses"))?;
    // SAFETY: the memory is valid as long as a reference to the range is left, as the caller promises.
    Ok(unsafe { HostRange::from_raw(address.cast(), length, None) })
}

/// # Safety
///
/// `out` is valid for a pointer, or null, which is refused before anything begins.
unsafe fn begin(out: *mut *mut Request, request: impl FnOnce() -> Result<Request, Failure>) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(invalid("there is nowhere to put the request"));
        }
        let request = Box::new(request()?);
        // SAFETY: not null, and so valid for a pointer, as the caller promises.
        unsafe { out.write(Box::into_raw(request)) };
        Ok(0)
    })
}

/// Copies from the device to the host.
///
/// # Safety
///
/// `host_addr` is valid for writing `size` bytes until the transfer has ended; `request_p` is valid for a pointer,
/// or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_dma_device_to_host_async(
    fd: c_int,
    host_addr: *mut c_void,
    device_addr: u64,
    size: u64,
    request_p: *mut *mut Request,
) -> c_int {
    // SAFETY: the memory and `out` are valid as the caller promises.
    unsafe { begin(request_p, || dma(fd)?.device_to_host(device_addr, &host(host_addr, size)?)) }
}

/// Copies from the host to the device.
///
/// # Safety
///
/// `host_addr` is valid for reading `size` bytes until the transfer has ended; `request_p` is valid for a pointer,
/// or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_dma_host_to_device_async(
    fd: c_int,
    device_addr: u64,
    host_addr: *const c_void,
    size: u64,
    request_p: *mut *mut Request,
) -> c_int {
    // SAFETY: the memory and `out` are valid as the caller promises; the device only reads.
    unsafe { begin(request_p, || dma(fd)?.host_to_device(&host(host_addr.cast_mut(), size)?, device_addr)) }
}

/// Copies within the device.
///
/// # Safety
///
/// `request_p` is valid for a pointer, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_dma_device_to_device_async(
    fd: c_int,
    target_addr: u64,
    source_addr: u64,
    size: u64,
    request_p: *mut *mut Request,
) -> c_int {
    // SAFETY: `out` is valid or null, as the caller promises.
    unsafe { begin(request_p, || dma(fd)?.device_to_device(source_addr, target_addr, size)) }
}

/// Fills device memory with a word.
///
/// # Safety
///
/// `request_p` is valid for a pointer, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_dma_memset_async(
    fd: c_int,
    device_addr: u64,
    pattern: u32,
    size: u64,
    request_p: *mut *mut Request,
) -> c_int {
    // SAFETY: `out` is valid or null, as the caller promises.
    unsafe { begin(request_p, || dma(fd)?.fill(pattern.to_le_bytes(), device_addr, size)) }
}

/// Polls a transfer.
///
/// # Safety
///
/// `request` came from one of the functions above and was not freed; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_dma_poll(_fd: c_int, request: *const Request) -> c_int {
    guard(|| {
        // SAFETY: one of ours, not freed, or null, as the caller promises.
        let request = unsafe { request.as_ref() }.ok_or_else(|| invalid("there is no request"))?;
        match request.poll() {
            None => Ok(-libc::EINPROGRESS),
            Some(outcome) => outcome.map(|()| 0),
        }
    })
}

/// Frees a request.
///
/// # Safety
///
/// `request` came from one of the functions above and is not used again; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_dma_request_free(request: *mut Request) {
    guard(|| {
        if !request.is_null() {
            // SAFETY: one of ours, made by `Box`, and not used again, as the caller promises.
            drop(unsafe { Box::from_raw(request) });
        }
        Ok(0)
    });
}

/// Waits for the transfers of a card, and releases it.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_dma_release(fd: c_int) -> c_int {
    guard(|| {
        let open = TABLE.lock().cards.remove(&fd);
        // Outside the lock: this may wait.
        drop(open);
        Ok(0)
    })
}

/// Opens a card by its URI, and returns a descriptor.
///
/// # Safety
///
/// `uri` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hal_gaudi_open(uri: *const c_char) -> c_int {
    guard(|| {
        if uri.is_null() {
            return Err(invalid("there is no URI"));
        }
        // SAFETY: a string, as the caller promises.
        let uri = unsafe { CStr::from_ptr(uri) }.to_str().map_err(|_| invalid("the URI is no text"))?;
        let (file, system) = Gaudi::open_file(uri)?;
        let file = file.into_raw_fd();
        TABLE.lock().systems.insert(file, system);
        Ok(file)
    })
}

/// Closes a descriptor of `hal_gaudi_open`.
#[unsafe(no_mangle)]
pub extern "C" fn hal_gaudi_close(fd: c_int) -> c_int {
    guard(|| {
        identity(fd)?;
        let (open, system) = {
            let mut table = TABLE.lock();
            (table.cards.remove(&fd), table.systems.remove(&fd))
        };
        drop(open);
        // SAFETY: it was opened here and is closed once, as the callers promise: the descriptor has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        match system {
            Some(system) => system.close(file),
            None => Linux.close(file),
        }
        Ok(0)
    })
}

/// Allocates device memory of a card.
///
/// # Safety
///
/// `out_address` is valid for a number, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hal_gaudi_memory_alloc(fd: c_int, size: u64, out_address: *mut u64) -> c_int {
    guard(|| {
        if out_address.is_null() || size == 0 {
            return Err(invalid("memory needs at least one byte, and somewhere to put its address"));
        }
        let mut table = TABLE.lock();
        let open = table.card(fd)?;
        let memory = open.transfers.allocate(size)?;
        let address = memory.address();
        open.memory.insert(address, memory);
        // SAFETY: not null, and so valid for a write, as the caller promises.
        unsafe { out_address.write(address) };
        Ok(0)
    })
}

/// Frees device memory.
#[unsafe(no_mangle)]
pub extern "C" fn hal_gaudi_memory_free(fd: c_int, address: u64) -> c_int {
    guard(|| {
        let memory = TABLE.lock().card(fd)?.memory.remove(&address);
        memory.map(|_| 0).ok_or_else(|| invalid(&format!("no memory was taken at {address:#x}")))
    })
}

/// The message of the last failure on this thread, valid until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn hal_gaudi_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"the thread is ending, and has no messages".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::sync::mpsc;

    #[test]
    fn thread_that_ends_has_failures_without_a_message() {
        struct AtEnd(mpsc::Sender<(c_int, String)>);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                let failed = guard(|| Err(invalid("again")));
                // SAFETY: a text, which is valid until the next failure.
                let message = unsafe { CStr::from_ptr(hal_gaudi_last_error()) };
                let _ = self.0.send((failed, message.to_string_lossy().into_owned()));
            }
        }
        thread_local! {
            static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
        }
        let (sender, outcome) = mpsc::channel();
        let run = || {
            AT_END.set(Some(AtEnd(sender)));
            assert_eq!(guard(|| Err(invalid("once"))), -libc::EINVAL);
        };
        std::thread::spawn(run).join().unwrap();
        let (failed, message) = outcome.recv().unwrap();
        assert_eq!(failed, -libc::EINVAL);
        assert!(message.contains("is ending"), "{message}");
    }
}
