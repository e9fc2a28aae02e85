// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The spans of operations, for the feature `tracing`; without it these types are empty and their functions do
//! nothing.
//!
//! A subscriber is foreign code: an operation's spans are opened and closed where no lock is held (rule S8). Under a
//! lock a [`Trace`] is moved and counted, and steps are kept in a [`TraceSteps`] until the lock is released. A
//! subscriber that panics loses what it was told, and nothing else.

#[cfg(all(feature = "tracing", not(any(loom, shuttle))))]
mod imp {
    use crate::error::SubmitError;
    use crate::failure::Failure;
    use crate::stall::TimelineName;
    use crate::timeline::{Timeline, TimelineValues, iter};
    use parking_lot::Mutex;
    use std::fmt::Write as _;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use tracing::{Span, debug, debug_span, field, warn};

    const TARGET: &str = "hal_semaphore";

    /// Calls the subscriber.
    fn tell<R: Default>(step: impl FnOnce() -> R) -> R {
        catch_unwind(AssertUnwindSafe(step)).unwrap_or_default()
    }

    struct Spans {
        operation: Span,
        /// What it does at present: it waits, or the device or the host has it.
        phase: Mutex<Option<Span>>,
    }

    impl Spans {
        fn set_phase(&self, next: Option<Span>) {
            let before = std::mem::replace(&mut *self.phase.lock(), next);
            drop(before);
        }
    }

    /// The spans of one operation; nothing if no subscriber asks for them.
    #[derive(Clone, Default)]
    pub(crate) struct Trace(Option<Arc<Spans>>);

    /// A span that a call is in.
    pub(crate) struct Entered {
        _span: Option<tracing::span::EnteredSpan>,
    }

    /// `timeline 3 ≥ 7, …`.
    fn text<T: Timeline, V: TimelineValues<T> + ?Sized>(values: &V, relation: &str) -> String {
        let mut text = String::new();
        for (timeline, value) in iter(values) {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = match TimelineName::of(timeline) {
                TimelineName::Numbered { number, .. } => {
                    write!(text, "{comma}semaphore {number} {relation} {value}")
                }
                TimelineName::Foreign(_) => {
                    write!(text, "{comma}semaphore of another driver {relation} {value}")
                }
            };
        }
        text
    }

    impl Trace {
        /// An operation begins: it is about to be submitted.
        pub(crate) fn begin<T, W, S>(kind: &'static str, waits: &W, signals: &S) -> Self
        where
            T: Timeline,
            W: TimelineValues<T> + ?Sized,
            S: TimelineValues<T> + ?Sized,
        {
            tell(|| {
                let empty = field::Empty;
                let operation = debug_span!(
                    target: TARGET,
                    "operation",
                    kind,
                    waits = empty,
                    signals = empty,
                    queue = empty,
                    epoch = empty
                );
                if operation.is_disabled() {
                    return Self(None);
                }
                operation.record("waits", text(waits, "≥"));
                operation.record("signals", text(signals, "="));
                let wait =
                    (!waits.is_empty()).then(|| debug_span!(target: TARGET, parent: &operation, "wait"));
                Self(Some(Arc::new(Spans { operation, phase: Mutex::new(wait) })))
            })
        }

        /// The call that submits it.
        pub(crate) fn submission(&self) -> Entered {
            let enter = |spans: &Arc<Spans>| {
                debug_span!(target: TARGET, parent: &spans.operation, "submission").entered()
            };
            Entered { _span: tell(|| self.0.as_ref().map(enter)) }
        }

        /// The engine has refused it.
        pub(crate) fn refused(&self, error: &SubmitError) {
            tell(|| {
                if let Some(spans) = &self.0 {
                    spans.set_phase(None);
                    warn!(target: TARGET, parent: &spans.operation, %error, "refused");
                }
            });
        }

        /// The backend is about to be given it.
        pub(crate) fn on_device(&self, queue: usize, epoch: u64) {
            tell(|| {
                if let Some(spans) = &self.0 {
                    spans.set_phase(None);
                    spans.operation.record("queue", queue).record("epoch", epoch);
                    spans.set_phase(Some(debug_span!(target: TARGET, parent: &spans.operation, "device")));
                }
            });
        }

        /// The backend did not take it.
        pub(crate) fn off_device(&self) {
            tell(|| {
                if let Some(spans) = &self.0 {
                    spans.set_phase(None);
                    debug!(target: TARGET, parent: &spans.operation, "not taken by the device");
                }
            });
        }

        fn on_host(&self) {
            tell(|| {
                if let Some(spans) = &self.0 {
                    spans.set_phase(None);
                    spans.set_phase(Some(debug_span!(target: TARGET, parent: &spans.operation, "host")));
                }
            });
        }

        fn ended(&self, failure: Option<&Failure>) {
            tell(|| {
                let Some(spans) = &self.0 else { return };
                spans.set_phase(None);
                match failure {
                    None => debug!(target: TARGET, parent: &spans.operation, "completed"),
                    Some(failure) => warn!(target: TARGET, parent: &spans.operation, %failure, "failed"),
                }
            });
        }
    }

    /// A report of the backend: what it releases happens in this span.
    pub(crate) fn completion(queue: usize, epoch: u64) -> Entered {
        Entered { _span: tell(|| Some(debug_span!(target: TARGET, "completion", queue, epoch).entered())) }
    }

    enum Step {
        OnHost(Trace),
        Ended(Trace, Option<Failure>),
    }

    /// Steps that were made under a lock.
    #[derive(Default)]
    pub(crate) struct TraceSteps(Vec<Step>);

    impl TraceSteps {
        /// The host is about to be given it.
        pub(crate) fn on_host(&mut self, trace: &Trace) {
            if trace.0.is_some() {
                self.0.push(Step::OnHost(trace.clone()));
            }
        }

        pub(crate) fn ended(&mut self, trace: Trace, failure: Option<&Failure>) {
            if trace.0.is_some() {
                self.0.push(Step::Ended(trace, failure.cloned()));
            }
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        /// Tells the subscriber, without the lock.
        pub(crate) fn tell(&mut self) {
            for step in self.0.drain(..) {
                match step {
                    Step::OnHost(trace) => trace.on_host(),
                    Step::Ended(trace, failure) => {
                        trace.ended(failure.as_ref());
                        tell(|| drop(trace));
                    }
                }
            }
        }
    }
}

#[cfg(not(all(feature = "tracing", not(any(loom, shuttle)))))]
mod imp {
    use crate::error::SubmitError;
    use crate::failure::Failure;
    use crate::timeline::{Timeline, TimelineValues};

    #[derive(Clone, Default)]
    pub(crate) struct Trace {}

    pub(crate) struct Entered {}

    impl Trace {
        #[inline(always)]
        pub(crate) fn begin<T, W, S>(_kind: &'static str, _waits: &W, _signals: &S) -> Self
        where
            T: Timeline,
            W: TimelineValues<T> + ?Sized,
            S: TimelineValues<T> + ?Sized,
        {
            Self {}
        }

        #[inline(always)]
        pub(crate) fn submission(&self) -> Entered {
            Entered {}
        }

        #[inline(always)]
        pub(crate) fn refused(&self, _error: &SubmitError) {}

        #[inline(always)]
        pub(crate) fn on_device(&self, _queue: usize, _epoch: u64) {}

        #[inline(always)]
        pub(crate) fn off_device(&self) {}
    }

    #[inline(always)]
    pub(crate) fn completion(_queue: usize, _epoch: u64) -> Entered {
        Entered {}
    }

    #[derive(Default)]
    pub(crate) struct TraceSteps {}

    impl TraceSteps {
        #[inline(always)]
        pub(crate) fn on_host(&mut self, _trace: &Trace) {}

        #[inline(always)]
        pub(crate) fn ended(&mut self, _trace: Trace, _failure: Option<&Failure>) {}

        #[inline(always)]
        pub(crate) fn len(&self) -> usize {
            0
        }

        #[inline(always)]
        pub(crate) fn tell(&mut self) {}
    }
}

pub(crate) use imp::{Trace, TraceSteps, completion};

#[cfg(all(test, not(any(feature = "tracing", loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_nothing_is_left() {
        assert_eq!((size_of::<Trace>(), size_of::<TraceSteps>()), (0, 0));
        assert!(!std::mem::needs_drop::<Trace>() && !std::mem::needs_drop::<TraceSteps>());
    }
}
