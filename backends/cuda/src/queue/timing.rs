// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device's clock, and the times of jobs that are observed.
//!
//! CUDA tells the time between two events, in floats of milliseconds. So a time is measured from a base event that is
//! at most [`FRESH`] old, and whose time by the host's clock is known as well as a thread that waits for it is woken. A
//! time that would be before its job was submitted, or after the job was seen to have ended, is that moment.

use crate::library::stream::{Event, EventKind, Stream};
use crate::library::{CudaError, Current};
use hal_backend::{Failure, Observer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a base serves: a float of so many milliseconds still has steps of less than 100 ns.
const FRESH: Duration = Duration::from_secs(1);

/// How well a base's time by the host's clock should be known, and how often it is tried.
const NARROW: u64 = 50_000;
const TRIES: usize = 4;

/// The clock of a device.
pub(crate) struct Clock {
    opened: Instant,
    stream: Stream,
    base: Mutex<Option<Arc<Base>>>,
}

/// An event, and when it was by the host's clock.
struct Base {
    event: Event,
    at: u64,
}

impl Clock {
    pub(crate) fn new(current: &Current<'_>) -> Result<Self, CudaError> {
        Ok(Self { opened: Instant::now(), stream: Stream::new(current)?, base: Mutex::new(None) })
    }

    /// The time since the device was opened, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// A base that is fresh. To make one waits for a stream that nothing else uses.
    fn base(&self, current: &Current<'_>) -> Result<Arc<Base>, CudaError> {
        let mut base = self.base.lock();
        let now = self.now();
        let fresh = u64::try_from(FRESH.as_nanos()).unwrap_or(u64::MAX);
        if let Some(base) = base.as_ref().filter(|base| now - base.at.min(now) < fresh) {
            return Ok(base.clone());
        }
        let mut new = self.measure(current)?;
        for _ in 1..TRIES {
            if new.0 <= NARROW {
                break;
            }
            // A busy machine woke this thread late.
            let again = self.measure(current)?;
            if again.0 < new.0 {
                new = again;
            }
        }
        let new = Arc::new(new.1);
        *base = Some(new.clone());
        Ok(new)
    }

    /// Another base, and the most by which its time is wrong.
    fn measure(&self, current: &Current<'_>) -> Result<(u64, Base), CudaError> {
        let (event, before) = (Event::new(current, EventKind::Time)?, self.now());
        self.stream.record(current, &event)?;
        self.stream.synchronize(current)?;
        let at = self.now();
        Ok((at.saturating_sub(before), Base { event, at }))
    }
}

/// The events of a job that is observed.
pub(crate) struct Timing {
    observer: Arc<dyn Observer>,
    base: Arc<Base>,
    submitted: u64,
    /// One at the begin, one behind each command that has begun, with the command's number, and one at the end.
    begin: Event,
    commands: Vec<(usize, Event)>,
    end: Option<Event>,
}

impl Timing {
    /// Begins to time, behind the job's waits.
    pub(crate) fn begin(
        current: &Current<'_>,
        stream: &Stream,
        clock: &Clock,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self, CudaError> {
        let (base, begin) = (clock.base(current)?, Event::new(current, EventKind::Time)?);
        let submitted = clock.now();
        stream.record(current, &begin)?;
        Ok(Self { observer: observer.clone(), base, submitted, begin, commands: Vec::new(), end: None })
    }

    /// A command is on the stream.
    pub(crate) fn command(
        &mut self,
        current: &Current<'_>,
        stream: &Stream,
        number: usize,
    ) -> Result<(), CudaError> {
        let event = Event::new(current, EventKind::Time)?;
        stream.record(current, &event)?;
        self.commands.push((number, event));
        Ok(())
    }

    /// All of the job is on the stream.
    pub(crate) fn end(&mut self, current: &Current<'_>, stream: &Stream) -> Result<(), CudaError> {
        let event = Event::new(current, EventKind::Time)?;
        stream.record(current, &event)?;
        self.end = Some(event);
        Ok(())
    }

    /// Tells the observer, once the job has ended. What cannot be read is not told.
    pub(crate) fn report(self, current: &Current<'_>, clock: &Clock, outcome: Result<(), &Failure>) {
        let now = clock.now().max(self.submitted);
        let at = |event: &Event| {
            let since = event.since(current, &self.base.event).ok()?;
            Some(self.base.at.saturating_add_signed(since).clamp(self.submitted, now))
        };
        let Some(begin) = at(&self.begin) else { return };
        let mut before = begin;
        for (number, event) in &self.commands {
            let Some(end) = at(event) else { return };
            self.observer.command(*number, before, end);
            before = end;
        }
        if let Some(end) = self.end.as_ref().and_then(at) {
            self.observer.job(begin, end, outcome);
        }
    }
}
