// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! CUDA's driver interface in C.
//!
//! Every function is exported under the names that clients look up, counted, and guarded: a panic is the result 999.
//! What is behind a pointer is as CUDA's header says; a null pointer where a result belongs is 1.

mod context;
mod control;
mod copy;
mod device;
mod event;
mod graph;
mod memory;
mod module;
mod pool;
mod stream;
mod table;

pub use table::{Entry, entries};

use crate::driver::status::{Error, Outcome};
use crate::driver::stream::Stream;
use crate::driver::{Context, DRIVER, Driver};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A call of a function.
#[derive(Clone, Copy)]
struct Call {
    driver: &'static Driver,
    name: &'static str,
}

impl Call {
    /// The current context, of a process that has no error that stays.
    fn context(self) -> Outcome<Arc<Context>> {
        self.driver.healthy(self.name)
    }

    /// The current context and one of its streams.
    fn stream(self, handle: u64) -> Outcome<(Arc<Context>, Arc<Stream>)> {
        let context = self.context()?;
        let stream = self.driver.stream(&context, handle)?;
        Ok((context, stream))
    }
}

/// Runs the body of a function.
fn guard(name: &'static str, body: impl FnOnce(Call) -> Outcome) -> i32 {
    let call = || {
        let free = matches!(
            name,
            "cuInit" | "cuDriverGetVersion" | "cuGetErrorName" | "cuGetErrorString" | "cuGetProcAddress"
        );
        DRIVER.admit(name, !free)?;
        body(Call { driver: &DRIVER, name })
    };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(Error(result))) => result,
        Err(_) => Error::UNKNOWN.0,
    }
}

/// Writes a result.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads what a pointer points to.
///
/// # Safety
/// `from` is null or can be read.
unsafe fn get<T: Copy>(from: *const T) -> Outcome<T> {
    if from.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { from.read() })
}
