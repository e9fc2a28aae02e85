// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Streams and events.

use super::error::NOT_READY;
use super::graph::Graph;
use super::memory::{Part, Word};
use super::module::Function;
use super::table::Handle;
use super::{Context, CudaError, Current, call};
use std::ffi::c_void;
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`: no order with the default stream, which other code in the process may use.
const NON_BLOCKING: u32 = 1;

/// `CU_STREAM_WAIT_VALUE_GEQ`.
const AT_LEAST: u32 = 0;

/// `CU_STREAM_WRITE_VALUE_DEFAULT`: what was before is visible to the whole system first.
const FENCED: u32 = 0;

/// What an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// Streams wait for it.
    Order,
    /// A thread sleeps until it.
    Sleep,
    /// Its time counts.
    Time,
}

impl EventKind {
    fn flags(self) -> u32 {
        const BLOCKING_SYNC: u32 = 1;
        const DISABLE_TIMING: u32 = 2;
        match self {
            EventKind::Order => DISABLE_TIMING,
            EventKind::Sleep => BLOCKING_SYNC | DISABLE_TIMING,
            EventKind::Time => 0,
        }
    }
}

/// An event.
pub(crate) struct Event {
    context: Arc<Context>,
    handle: Handle,
}

impl Event {
    pub(crate) fn new(current: &Current<'_>, kind: EventKind) -> Result<Self, CudaError> {
        let mut handle = 0;
        // SAFETY: the result is ours.
        unsafe { call!(current.library(), cuEventCreate(&raw mut handle, kind.flags())) }?;
        Ok(Self { context: current.context().clone(), handle })
    }

    /// Sleeps until what was before the last record has ended.
    pub(crate) fn synchronize(&self, current: &Current<'_>) -> Result<(), CudaError> {
        // SAFETY: the event exists as long as `self`.
        unsafe { call!(current.library(), cuEventSynchronize(self.handle)) }
    }

    /// Nanoseconds from another event to this one, both of which have happened; negative if that one was later.
    pub(crate) fn since(&self, current: &Current<'_>, other: &Event) -> Result<i64, CudaError> {
        let mut milliseconds = 0_f32;
        // SAFETY: the result is ours, and both events exist.
        unsafe {
            call!(current.library(), cuEventElapsedTime(&raw mut milliseconds, other.handle, self.handle))
        }?;
        #[expect(clippy::cast_possible_truncation, reason = "a time between two events of one session")]
        Ok((f64::from(milliseconds) * 1e6) as i64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: destroyed once; a record that is under way goes on.
            let _ = unsafe { call!(current.library(), cuEventDestroy(self.handle)) };
        }
    }
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
}

/// Parameters in one buffer, as a launch takes them.
pub(super) fn packed(parameters: &[u8], length: &usize) -> [*const c_void; 5] {
    /// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
    const POINTER: *const c_void = std::ptr::without_provenance(1);
    const SIZE: *const c_void = std::ptr::without_provenance(2);
    [POINTER, parameters.as_ptr().cast(), SIZE, std::ptr::from_ref(length).cast(), std::ptr::null()]
}

/// A value that is repeated over memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Element {
    One(u8),
    Two(u16),
    Four(u32),
}

/// A stream.
pub(crate) struct Stream {
    context: Arc<Context>,
    pub(super) handle: Handle,
}

impl Stream {
    pub(crate) fn new(current: &Current<'_>) -> Result<Self, CudaError> {
        let mut handle = 0;
        // SAFETY: the result is ours.
        unsafe { call!(current.library(), cuStreamCreate(&raw mut handle, NON_BLOCKING)) }?;
        Ok(Self { context: current.context().clone(), handle })
    }

    /// True if everything has ended.
    pub(crate) fn is_idle(&self, current: &Current<'_>) -> Result<bool, CudaError> {
        // SAFETY: the stream exists as long as `self`.
        match unsafe { call!(current.library(), cuStreamQuery(self.handle)) } {
            Ok(()) => Ok(true),
            Err(error) if error.number == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until everything has ended.
    pub(crate) fn synchronize(&self, current: &Current<'_>) -> Result<(), CudaError> {
        // SAFETY: the stream exists as long as `self`.
        unsafe { call!(current.library(), cuStreamSynchronize(self.handle)) }
    }

    pub(crate) fn record(&self, current: &Current<'_>, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both exist.
        unsafe { call!(current.library(), cuEventRecord(event.handle, self.handle)) }
    }

    /// Waits for the last record of an event.
    pub(crate) fn wait(&self, current: &Current<'_>, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both exist.
        unsafe { call!(current.library(), cuStreamWaitEvent(self.handle, event.handle, 0)) }
    }

    /// Waits until a word has a value, or a higher one.
    pub(crate) fn wait_for(&self, current: &Current<'_>, word: &Word, value: u64) -> Result<(), CudaError> {
        // SAFETY: the word is aligned, inside memory that its owner keeps.
        unsafe { call!(current.library(), cuStreamWaitValue64(self.handle, word.address(), value, AT_LEAST)) }
    }

    /// Writes a word, when everything before it has ended and is visible to the host.
    pub(crate) fn write(&self, current: &Current<'_>, word: &Word, value: u64) -> Result<(), CudaError> {
        // SAFETY: the word is aligned, inside memory that its owner keeps.
        unsafe { call!(current.library(), cuStreamWriteValue64(self.handle, word.address(), value, FENCED)) }
    }

    /// Launches a graph. It begins when everything before it has ended, and ends before everything behind it begins.
    pub(crate) fn launch_graph(&self, current: &Current<'_>, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both exist.
        unsafe { call!(current.library(), cuGraphLaunch(graph.handle(), self.handle)) }
    }

    /// Copies as many bytes as the shorter of both has; they must not overlap.
    pub(crate) fn copy(&self, current: &Current<'_>, to: Part, from: Part) -> Result<(), CudaError> {
        let length = to.length().min(from.length());
        // SAFETY: both have so many bytes, as parts do.
        unsafe { call!(current.library(), cuMemcpyAsync(to.address(), from.address(), length, self.handle)) }
    }

    /// Repeats a value, over whole ones; the part begins at a multiple of the value's size.
    pub(crate) fn set(&self, current: &Current<'_>, to: Part, element: Element) -> Result<(), CudaError> {
        let (library, address, length) = (current.library(), to.address(), to.length());
        // SAFETY: so many values are inside the part.
        unsafe {
            match element {
                Element::One(value) => call!(library, cuMemsetD8Async(address, value, length, self.handle)),
                Element::Two(value) => {
                    call!(library, cuMemsetD16Async(address, value, length / 2, self.handle))
                }
                Element::Four(value) => {
                    call!(library, cuMemsetD32Async(address, value, length / 4, self.handle))
                }
            }
        }
    }

    /// Launches a function with its parameters in one buffer, as the function lays them out. CUDA refuses a buffer of
    /// another size than the function's.
    pub(crate) fn launch(
        &self,
        current: &Current<'_>,
        function: &Function,
        shape: &Shape,
        parameters: &[u8],
    ) -> Result<(), CudaError> {
        let length = parameters.len();
        let extra = packed(parameters, &length);
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (shape.grid, shape.block);
        // SAFETY: the function and the stream exist; the parameters are copied before the call returns. What the
        // function does with them is the program's, as with any code that it has a device run.
        unsafe {
            call!(
                current.library(),
                cuLaunchKernel(
                    function.handle(),
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    shape.shared,
                    self.handle,
                    std::ptr::null(),
                    extra.as_ptr(),
                )
            )
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: destroyed once; what it has still to do goes on.
            let _ = unsafe { call!(current.library(), cuStreamDestroy(self.handle)) };
        }
    }
}
