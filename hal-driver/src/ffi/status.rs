// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Failures on our side, `iree_status_t` on IREE's, and the guard between them.
//!
//! Inside the driver an error is a [`Failure`]: a code, a message and an identity, shared by reference count. At the C
//! boundary it becomes a status with the same code and message, made by IREE's own allocator and owned by its
//! receiver. In the other direction [`check`] consumes a status, so none is lost or freed twice.

use crate::ffi::cancellation::NotCancelled;
use crate::ffi::process;
use hal_semaphore::{Code, EngineError, Failure, SubmitError};
use hal_sys as sys;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// A status that owns nothing: success.
pub(crate) const OK: sys::iree_status_t = std::ptr::null_mut();

/// A view of text for one call.
pub(crate) fn view(text: &str) -> sys::iree_string_view_t {
    sys::iree_string_view_t { data: text.as_ptr().cast(), size: text.len() }
}

/// Text of C's, borrowed for one call. Text that is not UTF-8 reads as empty, which names nothing.
///
/// # Safety
///
/// The view is valid for as long as the result is used.
pub(crate) unsafe fn text<'a>(view: sys::iree_string_view_t) -> &'a str {
    if view.size == 0 || view.data.is_null() {
        return "";
    }
    // SAFETY: the view is valid as long as the result is used, as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(view.data.cast::<u8>(), view.size) };
    std::str::from_utf8(bytes).unwrap_or("")
}

/// The status of a failure. The receiver owns it.
pub(crate) fn raw(failure: &Failure) -> sys::iree_status_t {
    // SAFETY: the text is copied. Other ways of making a status keep a pointer to it.
    unsafe {
        sys::iree_status_allocate_copy(
            failure.code() as sys::iree_status_code_t,
            view(""),
            0,
            view(failure.message()),
        )
    }
}

/// The code of a status.
pub(crate) fn code(status: sys::iree_status_t) -> Code {
    // A status has its code in the lowest bits of its address; success has none.
    let code = status.addr() & sys::IREE_STATUS_CODE_MASK as usize;
    Code::from_number(u32::try_from(code).unwrap_or(0))
}

/// The failure of a status, without consuming it: its message with all annotations.
///
/// # Safety
///
/// The status is alive, and not success.
pub(crate) unsafe fn describe(status: sys::iree_status_t) -> Failure {
    // SAFETY: the status is alive, as the function asks; the message is copied before the status can go, and the
    // visitor gets the text as its user data.
    let message = unsafe {
        let mut message = text(sys::iree_status_message(status)).to_owned();
        let payloads =
            sys::iree_status_enumerate_payloads(status, Some(annotation), (&raw mut message).cast());
        debug_assert!(payloads.is_null(), "the visitor always goes on");
        message
    };
    if !message.is_empty() {
        return Failure::new(code(status), message);
    }
    let mut buffer = [0_u8; 1024];
    let mut length = 0;
    // SAFETY: the buffer has as many bytes as it says.
    let formatted =
        unsafe { sys::iree_status_format(status, buffer.len(), buffer.as_mut_ptr().cast(), &raw mut length) };
    let text = if formatted { buffer.get(..length).unwrap_or(&[]) } else { &[] };
    Failure::new(code(status), String::from_utf8_lossy(text).trim_end_matches(['\0', '\n']).to_owned())
}

/// Appends an annotation to a text, separated as IREE prints it.
///
/// # Safety
///
/// The payload is alive, and the text is a `String` of the caller's alone.
unsafe extern "C" fn annotation(
    message: *mut std::ffi::c_void,
    payload: *const sys::iree_status_payload_t,
) -> sys::iree_status_t {
    // SAFETY: the payload is alive and the text exclusively the caller's, as it promises; the buffer has the given
    // capacity, including the terminating zero.
    unsafe {
        if sys::iree_status_payload_type(payload) != sys::IREE_STATUS_PAYLOAD_TYPE_MESSAGE {
            return OK;
        }
        let mut length = 0;
        sys::iree_status_payload_format(payload, 0, std::ptr::null_mut(), &raw mut length);
        let mut text = vec![0_u8; length + 1];
        sys::iree_status_payload_format(payload, text.len(), text.as_mut_ptr().cast(), &raw mut length);
        text.truncate(length);
        let message = &mut *message.cast::<String>();
        if !message.is_empty() {
            message.push_str("; ");
        }
        message.push_str(&String::from_utf8_lossy(&text));
    }
    OK
}

/// Consumes a status.
///
/// # Safety
///
/// The status is owned by the caller, who no longer has it afterwards.
pub(crate) unsafe fn check(status: sys::iree_status_t) -> Result {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: the status is the caller's, as it promises, and is used no more.
    unsafe {
        let failure = describe(status);
        sys::iree_status_free(status);
        Err(failure)
    }
}

/// Runs a slot of a vtable: failures become statuses, and so does a panic. A [forked](process) process is refused, and
/// the thread is [not cancelled](NotCancelled) meanwhile.
pub(crate) fn guard(slot: impl FnOnce() -> Result) -> sys::iree_status_t {
    let _not_cancelled = NotCancelled::new();
    guard_in_memory(slot)
}

/// The same for a slot of which each instruction counts. It works in memory, where libc cancels no thread. Callbacks
/// that it may run were left by calls around it, and those have the thread not cancelled.
#[inline]
pub(crate) fn guard_in_memory(slot: impl FnOnce() -> Result) -> sys::iree_status_t {
    if process::is_forked() {
        return raw(&process::forked());
    }
    match catch_unwind(AssertUnwindSafe(slot)) {
        Ok(Ok(())) => OK,
        Ok(Err(failure)) => raw(&failure),
        Err(payload) => {
            let panic = Failure::panicked("the driver", payload);
            raw(&Failure::new(Code::Internal, format!("{}; this is a bug of the driver", panic.message())))
        }
    }
}

/// Runs a slot that cannot report an error: after a panic it returns `otherwise`, and so it does in a
/// [forked](process) process, where nothing is run.
pub(crate) fn guard_or<T>(otherwise: T, slot: impl FnOnce() -> T) -> T {
    let _not_cancelled = NotCancelled::new();
    guard_in_memory_or(otherwise, slot)
}

/// The same for a slot that [works in memory](guard_in_memory).
pub(crate) fn guard_in_memory_or<T>(otherwise: T, slot: impl FnOnce() -> T) -> T {
    if process::is_forked() {
        return otherwise;
    }
    catch_unwind(AssertUnwindSafe(slot)).unwrap_or_else(|payload| {
        drop(Failure::panicked("the driver", payload));
        otherwise
    })
}

macro_rules! missing {
    ($($missing:ident => $name:literal,)*) => {
        /// A feature that is left out on purpose.
        #[derive(Clone, Copy)]
        pub(crate) enum Missing {
            $($missing,)*
        }

        /// The names of everything that answers `UNIMPLEMENTED`, as in its messages.
        pub const UNIMPLEMENTED: &[&str] = &[$($name,)*];

        impl Missing {
            fn name(self) -> &'static str {
                match self {
                    $(Missing::$missing => $name,)*
                }
            }
        }
    };
}

missing! {
    CaptureBegin => "iree_hal_device_external_capture_begin",
    CaptureEnd => "iree_hal_device_external_capture_end",
    TimepointExport => "iree_hal_semaphore_export_timepoint of this kind",
    TimepointImport => "iree_hal_semaphore_import_timepoint of this kind",
}

/// The failure of a feature that is left out on purpose. No other function uses this code.
pub(crate) fn unimplemented(what: Missing) -> Failure {
    Failure::new(Code::Unimplemented, format!("{} is not available on this device", what.name()))
}

pub(crate) fn invalid(message: impl Into<Box<str>>) -> Failure {
    Failure::new(Code::InvalidArgument, message)
}

/// A refused submission in IREE's terms.
pub(crate) fn refused(error: &SubmitError) -> Failure {
    let code = match error {
        SubmitError::UnknownQueue { .. }
        | SubmitError::NoQueue { .. }
        | SubmitError::SignalNotAbove { .. } => Code::InvalidArgument,
        SubmitError::ValueTooLarge { .. } => Code::OutOfRange,
        SubmitError::ShutDown => Code::Cancelled,
    };
    Failure::new(code, error.to_string())
}

/// The failure of an impossible case, which is a bug of this library.
#[cold]
pub(crate) fn bug(what: &str) -> Failure {
    Failure::new(Code::Internal, format!("{what}; this is a bug of the driver"))
}

/// The failure of a backend that breaks its contract.
#[cold]
pub(crate) fn misuse(what: &str) -> Failure {
    Failure::new(Code::Internal, format!("the backend {what}; this is a bug of the backend"))
}

/// The failure of an engine that cannot be made: the backend declares an impossible device, or the process has no
/// thread left.
pub(crate) fn no_engine(error: &EngineError) -> Failure {
    match error {
        EngineError::NoThread { failure } => failure.clone(),
        EngineError::NoQueues | EngineError::TooManyQueues { .. } => {
            Failure::new(Code::Internal, error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_survives_the_boundary_both_ways() {
        for number in 1..=18 {
            let failure = Failure::new(Code::from_number(number), format!("cause {number}"));
            let status = raw(&failure);
            assert_eq!(code(status), failure.code());
            // SAFETY: the status was just made.
            let back = unsafe { check(status) }.unwrap_err();
            assert_eq!((back.code(), back.message()), (failure.code(), failure.message()));
        }
        // SAFETY: success owns nothing.
        assert!(unsafe { check(OK) }.is_ok());
    }

    #[test]
    fn code_of_a_status_is_the_one_that_iree_reads() {
        for number in 1..=18 {
            let bare = std::ptr::without_provenance_mut(number);
            let failure = Failure::new(Code::from_number(u32::try_from(number).unwrap()), "why");
            for status in [bare, raw(&failure)] {
                let ours = code(status);
                // SAFETY: just made; a bare one is nothing but its code.
                let theirs = unsafe { sys::iree_status_consume_code(status) };
                assert_eq!((ours as u32, theirs as usize), (theirs, number));
            }
        }
    }

    #[test]
    fn annotations_survive_every_hop() {
        let first = raw(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
        // SAFETY: the status was just made, and each call takes it over; annotations of this kind are not copied.
        let hop =
            unsafe { check(sys::iree_status_annotate(first, view("reading the weights"))) }.unwrap_err();
        assert_eq!(hop.message(), "bank 3 is on fire; reading the weights");
        // SAFETY: the status was just made, of the one before, and each call takes it over.
        let again =
            unsafe { check(sys::iree_status_annotate(raw(&hop), view("invoking main"))) }.unwrap_err();
        assert_eq!(again.message(), "bank 3 is on fire; reading the weights; invoking main");
        assert_eq!(again.code(), Code::DataLoss);
    }

    #[test]
    fn panic_becomes_an_internal_status() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    panic!("again");
                }
            }
        }
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let status = guard(|| panic!("bank {} is on fire", 3));
        let worse = guard(|| std::panic::panic_any(Bomb));
        let value = guard_or(7, || panic!("nothing to say"));
        std::panic::set_hook(quiet);
        // SAFETY: both statuses were just made.
        let (first, second) = unsafe { (check(status).unwrap_err(), check(worse).unwrap_err()) };
        assert_eq!(first.code(), Code::Internal);
        assert!(first.message().contains("bank 3 is on fire"));
        assert_eq!(second.code(), Code::Internal);
        assert_eq!(value, 7);
    }
}
