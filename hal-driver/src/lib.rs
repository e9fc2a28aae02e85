// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE HAL drivers from safe backends.
//!
//! IREE's hardware abstraction layer is a C interface of tables of functions: a driver, a device with 36 slots, an
//! allocator with 20, buffers, command buffers, executables, semaphores. This crate fills every slot, once, over
//! the traits of [`hal_backend`] and the engine of [`hal_semaphore`]; a backend describes its hardware and knows
//! nothing of IREE. Each backend is a feature of this crate's static library, with its own registration function.
//!
//! # A driver of your own
//!
//! A crate outside this repository implements [`hal_backend::Driver`], exports one function, and builds itself as a
//! static library:
//!
//! ```no_run
//! # use hal_mock::Mock as MyDriver;
//! hal_driver::export_driver!(iree_hal_mine_driver_module_register, MyDriver);
//! ```
//!
//! # Conventions of the C boundary
//!
//! - Every slot runs inside a guard: a panic becomes an `INTERNAL` status and never crosses into C.
//! - Ownership is a type: a retained reference releases itself, an out-parameter is written once and only on
//!   success, a status is consumed exactly once.
//! - A returned error has changed nothing, and the operation's signals are as they were. A failure of an accepted
//!   operation is reported through its signals, with the code and message of the first cause. Device loss is such a
//!   failure: a submission to a lost device is accepted, and its signals fail.
//! - Our objects are recognised by the address of a `static` table. Everything else is foreign: never cast, always
//!   used through IREE's own interface.
//! - No slot of a queue blocks, and none starts a thread for one operation.
//!
//! # Where things are
//!
//! - `driver.rs`: driver factory, driver; `drivers.rs`: the drivers of this library, and where emulated cards come in;
//!   `emulated_cuda.rs`: the library that `nvidia://emulated` uses; `gaudi_dma.rs`: asynchronous transfers on Gaudi for
//!   programs in C.
//! - `device/`: the device (`device.rs`), its queue operations (`queue.rs`), the engine's backend (`work.rs`),
//!   polling for completions (`completions.rs`), profiling (`profile.rs`, `operation_description.rs`), operations in
//!   words (`operation_text.rs`, host calls that run in `running_calls.rs`); file transfers
//!   of memory that the host cannot map (`staged_file_transfer.rs`), memory of other devices (`bounce.rs`), the steps
//!   of command buffers with collectives (`collective_steps.rs`).
//! - `stall.rs`, `stall/`: reports of what the process waits for, the watching thread and the signal.
//! - `command/`: command buffer and event (`command_buffer.rs`, `record.rs`, captured bytes in `update_staging.rs`);
//!   executable and executable cache (`executable.rs`, host executables in `host_program.rs`).
//! - `command/collectives/`: channel (`channel.rs`), recorded collectives (`record.rs`), one execution of them
//!   (`execution.rs`, `running.rs`).
//! - `memory/`: allocator (`allocator.rs`; heaps in `heap.rs`, memory of the program in `import.rs`,
//!   file descriptors in `shared_memory.rs`); buffer
//!   (`buffer.rs` over `backing.rs`; a range of any driver's buffer in `buffer_range.rs`, its memory in
//!   `resolve.rs`); pools and stream-ordered allocation (`pools.rs`, `alloca.rs`, `reservation.rs`,
//!   `transient.rs`); memory of other devices by way of the host (`bounce/`: `buffer.rs`,
//!   `ranges.rs`, and `mapping.rs` for drivers that map it).
//! - `sync/`: semaphore (`semaphore.rs`, `semaphore/`, those that live in `live_semaphores.rs`), frontiers and axes
//!   (`frontier.rs`), proactor (`proactor.rs`), write-backs before a signal (`write_back.rs`), polling for collectives
//!   during a wait (`poll_collectives.rs`), threads for calls that block (`host_pool.rs`) and for teardown
//!   (`teardown.rs`).
//! - `launcher_rank.rs`: the ranks of this process in its job, from its launcher's environment.
//! - `ffi/`: C objects as types (`object.rs`), statuses (`status.rs`), constants (`constants.rs`).
//!
//! A module uses those below it in this list, never one above.

mod command;
mod device;
mod driver;
#[cfg_attr(test, allow(dead_code, reason = "tests of this crate export no driver"))]
mod drivers;
#[cfg(all(feature = "nvidia", feature = "emulated"))]
#[cfg_attr(test, allow(dead_code, reason = "as of the others"))]
mod emulated_cuda;
mod ffi;
#[cfg(feature = "gaudi")]
pub mod gaudi_dma;
mod launcher_rank;
mod memory;
mod stall;
mod sync;
#[cfg(test)]
#[cfg(feature = "mock")]
mod testing;

pub use driver::{PARAMETERS, register};
#[allow(unused_imports, unreachable_pub, reason = "a library without drivers of its own exports none")]
pub use drivers::*;
pub use ffi::status::UNIMPLEMENTED;
pub use hal_semaphore::stall::Report as StallReport;
pub use hal_sys as sys;
pub use stall::stall_report;

/// Exports the function that adds a driver to IREE's registry, under the name that IREE's build expects.
#[macro_export]
macro_rules! export_driver {
    ($name:ident, $driver:ty) => {
        /// Adds the driver to a registry. Cheap, and touches no hardware.
        ///
        /// # Safety
        ///
        /// The registry is alive.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            registry: *mut $crate::sys::iree_hal_driver_registry_t,
        ) -> $crate::sys::iree_status_t {
            // SAFETY: the registry is alive, as the caller promises.
            unsafe { $crate::register::<$driver>(registry) }
        }
    };
}
