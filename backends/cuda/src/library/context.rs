// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Contexts, and the proof that one is current.

use super::table::Handle;
use super::{CudaError, Gpu, Library, call};
use std::marker::PhantomData;
use std::sync::Arc;

/// Whose context a device works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextKind {
    /// Its own: what is in it goes with the device, and nobody else uses it.
    Own,
    /// The card's primary one, in which other libraries of the process work.
    Primary,
}

/// A context. It goes with its last reference, which every object in it has.
pub(crate) struct Context {
    pub(super) library: Arc<Library>,
    device: i32,
    handle: Handle,
    kind: ContextKind,
}

impl Context {
    /// Makes a context on a card, or takes the primary one.
    pub(crate) fn new(gpu: &Gpu, kind: ContextKind) -> Result<Arc<Self>, CudaError> {
        let (library, device) = (gpu.library.clone(), gpu.device);
        let mut handle = 0;
        match kind {
            ContextKind::Primary => {
                // SAFETY: the result is ours.
                unsafe { call!(library, cuDevicePrimaryCtxRetain(&raw mut handle, device)) }?;
            }
            ContextKind::Own => {
                // SAFETY: the result is ours.
                unsafe { call!(library, cuCtxCreate(&raw mut handle, 0, device)) }?;
            }
        }
        let context = Arc::new(Self { library, device, handle, kind });
        if kind == ContextKind::Own {
            // A new context is current, which its thread did not ask for. Where that fails the context goes.
            let mut popped = 0;
            // SAFETY: the result is ours.
            unsafe { call!(context.library, cuCtxPopCurrent(&raw mut popped)) }?;
        }
        Ok(context)
    }

    /// Makes the context current on this thread, until the proof is dropped.
    #[inline]
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Current<'_>, CudaError> {
        // SAFETY: the context exists as long as `self`.
        unsafe { call!(self.library, cuCtxPushCurrent(self.handle)) }?;
        Ok(Current { context: self, thread: PhantomData })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// The number of its card, among those of its library.
    pub(super) fn device(&self) -> i32 {
        self.device
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the last reference is gone, and with it every object in the context.
        let _ = unsafe {
            match self.kind {
                ContextKind::Own => call!(self.library, cuCtxDestroy(self.handle)),
                ContextKind::Primary => call!(self.library, cuDevicePrimaryCtxRelease(self.device)),
            }
        };
    }
}

/// The proof that a context is current on this thread.
pub(crate) struct Current<'c> {
    context: &'c Arc<Context>,
    /// Not for other threads.
    thread: PhantomData<*mut ()>,
}

impl Current<'_> {
    #[inline]
    pub(super) fn library(&self) -> &Library {
        &self.context.library
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.context
    }
}

impl Drop for Current<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut popped = 0;
        // SAFETY: the result is ours; the context was pushed on this thread, which the proof has not left.
        let _ = unsafe { call!(self.context.library, cuCtxPopCurrent(&raw mut popped)) };
    }
}
