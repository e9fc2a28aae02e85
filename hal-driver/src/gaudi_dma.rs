// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Asynchronous transfers for programs in C: the names, the signatures and the results that hl-thunk was proposed to have.
//!
//! The header is `hal-driver/include/hal_gaudi_dma.h`, which says what each function does. Everything here turns numbers and
//! pointers into what [`Dma`] takes, and failures into negative error numbers; what a failure says is kept for
//! `hal_gaudi_last_error`.
//!
//! A descriptor is looked up in a table, by its number and by what it is of: a number that was closed and given out again is
//! another card. The first transfer of a card puts it there.

use crate::drivers::Gaudi;
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

/// A card that transfers were asked of.
struct Open {
    /// What the descriptor is of.
    identity: (u64, u64),
    transfers: CardTransfers,
    memory: HashMap<u64, Memory>,
}

/// What this process uses, by descriptor.
#[derive(Default)]
struct Table {
    cards: HashMap<c_int, Open>,
    /// The systems that cards were opened on here, which close them.
    systems: HashMap<c_int, Arc<dyn System>>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

thread_local! {
    /// What the last failure on this thread says.
    static LAST: RefCell<CString> = RefCell::default();
}

/// What a failure is called in C.
fn number(failure: &Failure) -> c_int {
    let text = failure.message().replace('\0', " ");
    LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
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

/// Runs what C asked for. A panic is a failure, and goes no further.
fn guard(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
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
    /// What is behind a descriptor.
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
/// The memory is valid for as long as the transfer runs, as the caller was told.
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
/// `host_addr` is valid for writing `size` bytes until the transfer has ended; `request_p` is valid for a pointer, or null.
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
/// `host_addr` is valid for reading `size` bytes until the transfer has ended; `request_p` is valid for a pointer, or null.
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

/// Repeats a word over device memory.
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

/// Whether a transfer has ended.
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

/// Lets go of a request.
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

/// Waits for the transfers of a card, and lets go of it.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_dma_release(fd: c_int) -> c_int {
    guard(|| {
        let open = TABLE.lock().cards.remove(&fd);
        // Behind the lock: this may wait.
        drop(open);
        Ok(0)
    })
}

/// Opens a card by its URI: a descriptor.
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

/// Closes what `hal_gaudi_open` opened.
#[unsafe(no_mangle)]
pub extern "C" fn hal_gaudi_close(fd: c_int) -> c_int {
    guard(|| {
        identity(fd)?;
        let (open, system) = {
            let mut table = TABLE.lock();
            (table.cards.remove(&fd), table.systems.remove(&fd))
        };
        drop(open);
        // SAFETY: it was opened here and is closed once, as this function's callers are asked: the descriptor has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        match system {
            Some(system) => system.close(file),
            None => Linux.close(file),
        }
        Ok(0)
    })
}

/// Takes device memory of a card: its address.
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
        // SAFETY: not null, and so valid for what is written, as the caller promises.
        unsafe { out_address.write(address) };
        Ok(0)
    })
}

/// Gives device memory back.
#[unsafe(no_mangle)]
pub extern "C" fn hal_gaudi_memory_free(fd: c_int, address: u64) -> c_int {
    guard(|| {
        let memory = TABLE.lock().card(fd)?.memory.remove(&address);
        memory.map(|_| 0).ok_or_else(|| invalid(&format!("no memory was taken at {address:#x}")))
    })
}

/// What the last failure on this thread says. Valid until the next one.
#[unsafe(no_mangle)]
pub extern "C" fn hal_gaudi_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
