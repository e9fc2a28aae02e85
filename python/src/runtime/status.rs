// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Errors with IREE's code and text.

use hal_sys as sys;
use std::ffi::CStr;

#[derive(Clone, Debug)]
pub(crate) struct Error {
    /// IREE's name of the code, such as `NOT_FOUND`.
    pub(crate) code: String,
    /// The whole text, with its causes.
    pub(crate) message: String,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    /// An error of this package.
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }

    /// The error of a wait that was too short.
    pub(crate) fn not_ended() -> Self {
        Self::new(
            "DEADLINE_EXCEEDED",
            "the call has not ended in this time; it continues, and can be waited for again",
        )
    }

    /// True if the deadline of a wait passed.
    pub(crate) fn is_deadline(&self) -> bool {
        self.code == "DEADLINE_EXCEEDED"
    }
}

/// Consumes a status.
pub(crate) fn check(status: sys::iree_status_t) -> Result {
    if status.is_null() {
        return Ok(());
    }
    // IREE keeps the code in the low bits of the pointer.
    #[expect(clippy::cast_possible_truncation, reason = "five bits")]
    let number = (status.addr() & 0x1F) as u32;
    // SAFETY: the status is ours: it is formatted, first for its length, and freed once; a code's name is a static
    // string.
    unsafe {
        let mut length = 0;
        sys::iree_status_format(status, 0, std::ptr::null_mut(), &raw mut length);
        let mut buffer = vec![0_u8; length + 1];
        sys::iree_status_format(status, buffer.len(), buffer.as_mut_ptr().cast(), &raw mut length);
        buffer.truncate(length);
        sys::iree_status_free(status);
        let code = CStr::from_ptr(sys::iree_status_code_string(number)).to_string_lossy().into_owned();
        Err(Error { code, message: String::from_utf8_lossy(&buffer).into_owned() })
    }
}
