// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Cancellation of a program's threads (`pthread_cancel`), which waits until a call of ours returns.
//!
//! libc ends a cancelled thread inside of a function that waits or uses files, and unwinds it from there. Rust code
//! cannot be unwound by libc: the process would end. A thread of our own is known to no program, and is not cancelled.

/// A thread is not cancelled until this is dropped, on the same thread. Inside of another one it changes nothing.
pub(crate) struct NotCancelled {
    #[cfg(target_os = "linux")]
    before: std::ffi::c_int,
}

/// `PTHREAD_CANCEL_DISABLE` of every libc of Linux.
#[cfg(target_os = "linux")]
const DISABLE: std::ffi::c_int = 1;

#[cfg(target_os = "linux")]
unsafe extern "C" {
    fn pthread_setcancelstate(state: std::ffi::c_int, before: *mut std::ffi::c_int) -> std::ffi::c_int;
}

impl NotCancelled {
    #[inline]
    pub(crate) fn new() -> Self {
        #[cfg(target_os = "linux")]
        {
            let mut before = DISABLE;
            // SAFETY: changes a word of this thread's own. It fails for unknown states alone.
            unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
            Self { before }
        }
        #[cfg(not(target_os = "linux"))]
        Self {}
    }
}

#[cfg(target_os = "linux")]
impl Drop for NotCancelled {
    #[inline]
    fn drop(&mut self) {
        if self.before == DISABLE {
            return;
        }
        // SAFETY: as in `new`, without the state before, as Linux permits. A thread that is to be cancelled at
        // any moment may end in this call, as in any of the program's own: then nothing of ours is left on its
        // stack that an unwinding has to release.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
