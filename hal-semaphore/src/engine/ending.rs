// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Why a queue ends: its engine closes, or its device is lost.

use crate::failure::Failure;

/// See the [module documentation](self).
#[derive(Default)]
pub(super) struct Ending {
    closing: bool,
    lost: Option<Failure>,
    /// While a walk over all operations fails those that have not started: the next chunk of the slab, and the failure.
    sweep: Option<(u32, Failure)>,
}

impl Ending {
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Why the device is lost, if it is.
    pub(super) fn lost(&self) -> Option<&Failure> {
        self.lost.as_ref()
    }

    /// True if all operations of the queue end.
    pub(super) fn ends_all(&self) -> bool {
        self.closing || self.is_lost()
    }

    /// True if the queue may start work: its device is not lost, and its operations are not being failed.
    #[inline]
    pub(super) fn may_start(&self) -> bool {
        self.lost.is_none() && self.sweep.is_none()
    }

    /// Takes no more work. Returns whether that is news.
    pub(super) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.closing, true)
    }

    /// The device is lost; the first cause counts. Returns whether this was it.
    pub(super) fn lose(&mut self, failure: &Failure) -> bool {
        let is_news = self.lost.is_none();
        self.lost.get_or_insert_with(|| failure.clone());
        is_news
    }

    /// True while operations that have not started are being failed.
    #[inline]
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// Begins to fail all operations that have not started.
    pub(super) fn begin_sweep(&mut self, failure: &Failure) {
        self.sweep = Some((0, failure.clone()));
    }

    /// The next chunk of operations to fail, and the failure.
    pub(super) fn next_chunk(&mut self) -> Option<(u32, Failure)> {
        let (next, failure) = self.sweep.as_mut()?;
        let chunk = *next;
        *next += 1;
        Some((chunk, failure.clone()))
    }

    pub(super) fn end_sweep(&mut self) {
        self.sweep = None;
    }
}
