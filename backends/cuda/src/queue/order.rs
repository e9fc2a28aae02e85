// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How a stream waits for a job of another one.
//!
//! | the job | the stream waits |
//! |---|---|
//! | has ended | not at all |
//! | is the end of its stream, and the device waits for events | for an event that is recorded there |
//! | has operations behind it, or has paused in the middle | for its epoch in the completion word |
//!
//! So the queue that waits records the event, and a job that no other queue waits for costs none. An event behind
//! operations of later jobs would be wrong: one of these may wait for a job that waits for the event. The event is
//! behind the job's completion word, so it has happened once the word of the next job is written; then it is recorded
//! again for another job.

use super::Queue;
use super::encode::Encoder;
use crate::library::stream::{Event, EventKind, Stream};
use crate::library::{CudaError, Current};
use hal_backend::Point;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// What a stream waits for where a job of another one is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// An event.
    Events,
    /// The completion word.
    Words,
}

/// The end of a stream, as other queues see it.
#[derive(Default)]
pub(super) struct Marks {
    /// The job whose end is the stream's last operation.
    last: Option<u64>,
    /// The events that are recorded behind jobs, in the order of their epochs.
    recorded: VecDeque<(u64, Event)>,
}

impl Marks {
    /// An event that has happened, or a new one.
    fn event(&mut self, current: &Current<'_>, completed: u64) -> Result<Event, CudaError> {
        let has_happened = self.recorded.front().is_some_and(|(epoch, _)| *epoch < completed);
        let happened = if has_happened { self.recorded.pop_front() } else { None };
        happened.map_or_else(|| Event::new(current, EventKind::Order), |(_, event)| Ok(event))
    }
}

impl Queue {
    /// A job begins.
    pub(super) fn begin(&self) {
        self.marks.lock().last = None;
    }

    /// Puts the end of a job on the stream.
    pub(super) fn complete(&self, current: &Current<'_>, epoch: u64) -> Result<(), CudaError> {
        let mut marks = self.marks.lock();
        self.stream.write(current, &self.completed, epoch)?;
        self.sealed.store(epoch, Ordering::Release);
        marks.last = Some(epoch);
        Ok(())
    }

    /// Has another stream wait for an event behind a job; false if the job is not the end of the stream.
    fn wait_at_end(&self, current: &Current<'_>, waiter: &Stream, epoch: u64) -> Result<bool, CudaError> {
        let mut marks = self.marks.lock();
        if marks.last != Some(epoch) {
            return Ok(false);
        }
        if marks.recorded.back().is_none_or(|(last, _)| *last != epoch) {
            let event = marks.event(current, self.completed.get())?;
            self.stream.record(current, &event)?;
            marks.recorded.push_back((epoch, event));
        }
        if let Some((_, event)) = marks.recorded.back() {
            waiter.wait(current, event)?;
        }
        Ok(true)
    }
}

impl Encoder<'_> {
    /// Has the stream wait for a point of another queue. Returns whether that took an operation.
    pub(super) fn wait(&self, point: Point) -> Result<bool, CudaError> {
        let (other, stream) = (self.queues.queue(point.queue.index()), &self.queue.stream);
        if other.completed.get() >= point.epoch {
            return Ok(false);
        }
        let is_waiting =
            self.queues.waits == WaitKind::Events && other.wait_at_end(self.current, stream, point.epoch)?;
        if !is_waiting {
            stream.wait_for(self.current, &other.completed, point.epoch)?;
        }
        Ok(true)
    }
}
