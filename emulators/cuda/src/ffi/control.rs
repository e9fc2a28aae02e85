// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Functions that are not CUDA's: what tests ask and set.

use crate::driver::DRIVER;
use crate::driver::report::Rule;
use std::ffi::{CStr, c_char};
use std::sync::Once;

/// Changes options, as the variable `EMULATOR_CUDA` does; `release` lets a kernel that stalls go on, `reset` begins all
/// counts anew, `relaunch` makes the process one that was launched anew, which has no context and no error. Returns 0,
/// or 1 if the text is not understood.
///
/// # Safety
/// The text has a zero at its end.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulator_cuda_control(text: *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    let Ok(text) = unsafe { CStr::from_ptr(text) }.to_str() else { return 1 };
    match text {
        "release" => DRIVER.release(),
        "reset" => DRIVER.report.reset(),
        "relaunch" => DRIVER.relaunch(),
        options => return i32::from(DRIVER.report.configure(options).is_err()),
    }
    0
}

/// How often a rule was broken, or a function called, by its name; by `live`, how many objects there are, by `any`, how
/// often functions were called.
///
/// # Safety
/// The text has a zero at its end.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulator_cuda_count(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() else { return 0 };
    match Rule::ALL.iter().find(|rule| rule.name() == name) {
        Some(rule) => DRIVER.report.count(*rule).0,
        None if name == "live" => DRIVER.live(),
        None => DRIVER.report.calls(name),
    }
}

/// Writes all counts, one in a line, and a zero; returns the bytes without it, however much room there is.
///
/// # Safety
/// `to` can be written for `size` bytes, or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulator_cuda_counts(to: *mut u8, size: usize) -> usize {
    let table = DRIVER.report.table();
    if !to.is_null() && size > 0 {
        for (at, byte) in table.bytes().take(size - 1).chain([0]).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { to.add(at).write(byte) };
        }
    }
    table.len()
}

extern "C" fn print_counts() {
    if DRIVER.report.options().counts {
        eprint!("{}", DRIVER.report.table());
    }
}

/// Counts are printed at the end of the process, if that is asked for then; the library stays loaded until then,
/// because its threads run.
pub(super) fn stay() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the address is in this library, whose name then opens it once more, for ever.
        unsafe {
            let mut info = std::mem::zeroed::<libc::Dl_info>();
            if libc::dladdr(stay as *const libc::c_void, &raw mut info) != 0 {
                libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
            }
            libc::atexit(print_counts);
        }
    });
}
