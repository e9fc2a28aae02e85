// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine: pending queue actions over timelines, for the queues of one device.
//!
//! # Owners
//!
//! - A queue owns its operations ([`queue`]).
//! - A timeline's state owns its value, its failure and its waits ([`timeline_state`]). Nothing else decides
//!   about them.
//! - A thread owns the [`DeferredWork`] of the call that it is in ([`deferred_work`]).
//! - An engine owns what it owes the program ([`owed`]).
//!
//! # Locking protocol
//!
//! | rank | lock | protects |
//! |---|---|---|
//! | 1 | a queue's, [`QueueGuard`](queue::QueueGuard) | the operations of one queue |
//! | 2 | a timeline's, `TimelineInner` | failure, waits and promises of one timeline |
//! | 3 | pools, frontier histories, the [outbox], [owed] work, the device's loss, full queues | what their names say |
//!
//! A thread holds at most one lock of each rank, and takes them in the order of the ranks. Under a lock of rank
//! 3 it takes no other lock. Work for another queue or another timeline goes to the thread's [`DeferredWork`],
//! which the thread runs without a lock. Foreign code (the backend, timelines, callbacks, the drop of anything
//! that a caller gave us) runs without a lock (rule S8); the exceptions are the calls that
//! [`Timeline`](crate::Timeline) documents as reads and stores. Threads that use different queues and different
//! timelines write to nothing in common (rule S13).
//!
//! The guarantees of one lock for everything hold all the same:
//!
//! - *Cause before effect.* Operation A signals x; operation B waits for x and signals y. A thread that sees y
//!   also sees x: A raises x before it releases B, and B ends after its release. If queue order or the
//!   device satisfied B's wait, B's queue checks that x is raised before it retires B ([`retire`]).
//! - *No wake-up is lost.* A thread registers a wait under the timeline's lock, under which the timeline also
//!   moves. A promise is matched with waits across a pair of fences ([`timeline_state`]).
//! - *No recursion.* A step puts its consequences into [`DeferredWork`] and does not follow them.
//!
//! # Who works for a queue
//!
//! A queue has no thread. A thread that brings the queue something (an operation, a report, a released wait)
//! works for it: [`QueueGuard::run`](queue::QueueGuard::run) routes, retires, performs effects without the lock
//! and submits batches, until nothing is left or another thread takes over.
//!
//! # Refused or failed
//!
//! An invalid request (values, queues) is refused, and nothing has changed. Every later error, a lost device
//! included, is reported through the operation's signals only.

mod admit;
mod deferred_callbacks;
mod deferred_work;
mod device_loss;
mod effects;
mod ending;
mod fast_path;
mod flight;
mod flow_window;
mod frontier;
mod op;
mod order;
mod outbox;
mod owed;
mod queue;
mod queue_choice;
mod retire;
mod route;
mod shutdown;
mod snapshot;
mod submit;
mod timeline_state;
mod unsubmitted_ends;
mod wait_class;
mod wait_lists;
mod work_loop;

pub use deferred_callbacks::DeferredCallbacks;
use deferred_work::Dependency;
pub use deferred_work::WithoutCallbacks;
pub(crate) use deferred_work::{DeferredWork, EngineCall, has_left_work};
pub(crate) use timeline_state::TimelineState;

use crate::backend::{Backend, Completer, Completion, DeviceSpec, NativeWaits};
use crate::clock::{Clock, Time};
use crate::engine_events::KeepAlive;
use crate::error::{EngineError, SubmitError, Unfinished};
use crate::failure::Failure;
use crate::ids::{Affinity, MAX_VALUE, QueueId};
use crate::notification::Wakeup;
use crate::stall::TimelineName;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::timeline::{Registration, TimelineValues};
use outbox::Outbox;
use owed::OwedList;
use queue::Queue;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The interval between two polls of a shutdown.
const POLL_INTERVAL: Duration = Duration::from_micros(640);

/// How many timeline states are kept for the next timelines.
const SPARE_TIMELINES: usize = 4096;

/// The action of an operation, done once its waits are reached, or satisfied by order.
///
/// In HAL terms, launches and transfers are [`Queue`](Action::Queue) actions and host calls are
/// [`Host`](Action::Host) actions. Stream-ordered allocations and deallocations are `Queue` actions if the
/// device's queue manages the memory. If the host does, an allocation is an [`Early`](Action::Early) action and
/// a deallocation is a [`Marker`](Action::Marker).
#[derive(Debug)]
pub enum Action<W> {
    /// Goes to the device's queue, in queue order.
    Queue(W),
    /// Runs on the host once every wait is reached. Only its waits order it.
    Host(W),
    /// Runs on the host, possibly before its waits are reached: as soon as each is reached or satisfied by
    /// order, the engine asks [`Backend::try_early`]. If the work is done then, the
    /// operation is queued like a barrier, and later operations of the queue go to the device without the host.
    /// If not, it becomes a `Host` action.
    Early(W),
    /// Goes to its queue, in queue order. The backend sees it, and the device only waits and signals.
    Marker(W),
    /// Does nothing, and signals when its waits are reached.
    Barrier,
    /// A barrier with a host cleanup: if it fails before it is submitted, the engine calls
    /// [`Backend::clean_up`], and its signals fail when that has ended. A queued one
    /// is cleaned up only if its whole queue ends. It serves callers that start several things that end at one
    /// barrier: if one of them fails, the others may still be running.
    Cleanup(W),
}

/// A refused submission, with its action.
pub struct Refused<W> {
    /// Why it was refused.
    pub error: SubmitError,
    /// The action, returned to the caller.
    pub action: Action<W>,
}

impl<W> fmt::Debug for Refused<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<W> fmt::Display for Refused<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<W> std::error::Error for Refused<W> {}

/// How many objects of an engine are in use, and what its waits have cost since it was made: for tests and people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that have not ended.
    pub operations: usize,
    /// Those that are on the device.
    pub in_flight: usize,
    /// Those that run on the host.
    pub running: usize,
    /// Timelines that were registered here and not dropped.
    pub timelines: usize,
    /// Native events that exist.
    pub events: usize,
    /// Native events that no operation uses.
    pub idle_events: usize,
    /// Waits that were reached when their operation was submitted.
    pub reached: u64,
    /// Waits that queue order satisfied. This and the next two are counted when their operation is handed to the
    /// device, and again if the device was full and gets it a second time.
    pub same_queue: u64,
    /// Waits that an earlier native wait of the queue satisfied.
    pub dominated: u64,
    /// Waits of one queue for another by the device.
    pub native: u64,
    /// Waits that blocked their operation on the host for a while.
    pub blocked: u64,
    /// Panics of foreign code that were caught.
    pub panics: u64,
}

/// The engine's device.
struct Device {
    native_waits: NativeWaits,
    completion: Completion,
    /// One queue can wait natively for another: the listeners of a queue's timelines are notified, and events are
    /// recorded.
    awaitable: bool,
    /// True if `lost` holds anything.
    is_lost: AtomicU64,
    lost: Mutex<Option<Failure>>,
    /// The backend failed to make an event: operations that need a new one run without it from then on.
    out_of_events: AtomicU64,
    /// The device was full once. Reports are counted from then on, to distinguish "is full" from "was full".
    counts_reports: AtomicU64,
    /// How often the backend called [`Completer::unblock`].
    unblocks: AtomicU64,
    /// True if `full` holds anything.
    any_full: AtomicU64,
    /// Queues that wait for the device to have capacity.
    full: Mutex<Vec<u32>>,
}

impl Device {
    fn new(spec: DeviceSpec) -> Self {
        let DeviceSpec { queues, native_waits, completion } = spec;
        Self {
            native_waits,
            completion,
            awaitable: queues > 1 && native_waits != NativeWaits::None,
            is_lost: AtomicU64::new(0),
            lost: Mutex::new(None),
            out_of_events: AtomicU64::new(0),
            counts_reports: AtomicU64::new(0),
            unblocks: AtomicU64::new(0),
            any_full: AtomicU64::new(0),
            full: Mutex::new(Vec::new()),
        }
    }

    /// True if its operations record events, by which other queues wait for them.
    #[inline]
    fn records_events(&self) -> bool {
        self.awaitable && self.native_waits == NativeWaits::Events
    }

    /// Why the device is lost, if it is.
    #[inline]
    fn lost(&self) -> Option<Failure> {
        if self.is_lost.load(Ordering::Acquire) == 0 { None } else { self.lost.lock().clone() }
    }

    /// Records the loss. Returns the first cause that was reported.
    fn record_loss(&self, failure: Failure) -> Failure {
        let cause = self.lost.lock().get_or_insert(failure).clone();
        self.is_lost.store(1, Ordering::Release);
        cause
    }

    #[inline]
    fn is_out_of_events(&self) -> bool {
        self.out_of_events.load(Ordering::Relaxed) != 0
    }

    fn run_out_of_events(&self) {
        self.out_of_events.store(1, Ordering::Relaxed);
    }

    #[inline]
    // Reports may be counted from the beginning: it takes time and no more.
    #[cfg_attr(mutants, mutants::skip)]
    fn counts_reports(&self) -> bool {
        self.counts_reports.load(Ordering::Acquire) != 0
    }

    fn count_reports(&self) {
        self.counts_reports.store(1, Ordering::Release);
    }

    /// Records that a queue waits for capacity.
    fn add_full(&self, queue: u32) {
        let mut full = self.full.lock();
        if !full.contains(&queue) {
            full.push(queue);
        }
        self.any_full.store(1, Ordering::Release);
    }

    /// Makes the full queues try again.
    #[inline]
    fn wake_full(&self, asked: bool, deferred: &mut DeferredWork) {
        if self.any_full.load(Ordering::Acquire) != 0 {
            self.wake_all(asked, deferred);
        }
    }

    #[cold]
    fn wake_all(&self, asked: bool, deferred: &mut DeferredWork) {
        let mut full = self.full.lock();
        self.any_full.store(0, Ordering::Release);
        for queue in full.drain(..) {
            deferred.released.push_back((
                timeline_state::Target::FullQueue { queue, asked },
                deferred_work::Release::Reached,
            ));
        }
    }
}

/// Threads that wait for the engine to be idle.
#[derive(Default)]
struct IdleWaiters {
    waiting: Vec<Wakeup>,
    /// They keep a closing engine alive until its device has reported everything.
    keep_alives: Vec<Arc<KeepAlive>>,
}

pub(crate) struct Shared<B: Backend> {
    id: u32,
    backend: B,
    this: Weak<Shared<B>>,
    queues: Box<[Queue<B>]>,
    device: Device,
    closing: AtomicU64,
    idle_waiters: Mutex<IdleWaiters>,
    spare_timelines: Mutex<Vec<Arc<TimelineState>>>,
    /// Timelines with memory to release.
    large: Mutex<Vec<Weak<TimelineState>>>,
    /// How many timelines were named.
    timelines_made: AtomicU64,
    timelines: AtomicU64,
    panics: AtomicU64,
    owed: OwedList<B>,
    outbox: Outbox<B>,
}

/// A handle on an engine. Clones are handles on the same engine. Dropping the last one ends the operations
/// that have not started and asks the device to stop; [`shut_down`](Engine::shut_down) does that within a time
/// limit.
pub struct Engine<B: Backend> {
    handle: Arc<Handle<B>>,
}

struct Handle<B: Backend> {
    shared: Arc<Shared<B>>,
    /// One for each queue.
    keep_alives: Vec<Arc<KeepAlive>>,
    /// Dropped last, after everything that may have callbacks.
    _threads: deferred_callbacks::EngineCount,
}

impl<B: Backend> Drop for Handle<B> {
    fn drop(&mut self) {
        self.shared.close(std::mem::take(&mut self.keep_alives));
    }
}

impl<B: Backend> Clone for Engine<B> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}

impl<B: Backend> fmt::Debug for Engine<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

static ENGINES: AtomicU32 = AtomicU32::new(1);

impl<B: Backend> Engine<B> {
    /// Makes an engine for the device of `backend`.
    pub fn new(backend: B) -> Result<Self, EngineError> {
        let spec = backend.device();
        validate(spec)?;
        let threads =
            deferred_callbacks::EngineCount::new().map_err(|failure| EngineError::NoThread { failure })?;
        let shared = Arc::new_cyclic(|this: &Weak<Shared<B>>| Shared {
            id: ENGINES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            backend,
            this: this.clone(),
            queues: (0..).take(spec.queues).map(|index| Queue::new(QueueId { index })).collect(),
            device: Device::new(spec),
            closing: AtomicU64::new(0),
            idle_waiters: Mutex::new(IdleWaiters::default()),
            spare_timelines: Mutex::new(Vec::new()),
            large: Mutex::new(Vec::new()),
            timelines_made: AtomicU64::new(0),
            timelines: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            owed: OwedList::default(),
            outbox: Outbox::default(),
        });
        let keep_alives: Vec<Arc<KeepAlive>> =
            shared.queues.iter().map(|_| Arc::new(KeepAlive(shared.clone()))).collect();
        let weak: Arc<[Weak<KeepAlive>]> = keep_alives.iter().map(Arc::downgrade).collect();
        for (queue, keep_alive) in shared.queues.iter().zip(weak.iter()) {
            *queue.keep_alive.lock() = Some(keep_alive.clone());
        }
        shared.backend.start(Completer::new(weak));
        Ok(Self { handle: Arc::new(Handle { shared, keep_alives, _threads: threads }) })
    }

    fn shared(&self) -> &Shared<B> {
        &self.handle.shared
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.shared().backend
    }

    /// Registers a timeline whose value is `value`, or [`MAX_VALUE`] if that is smaller. See
    /// [`Timeline`](crate::Timeline).
    pub fn register(&self, value: u64) -> Registration {
        Registration::new(self.handle.shared.clone(), self.shared().new_timeline_state(value.min(MAX_VALUE)))
    }

    /// Submits an operation: once each of `waits` is reached or satisfied by order, the engine does `action`
    /// and then signals `signals`. It never blocks, and captures its arguments.
    ///
    /// The operation may have ended when this returns. If a wait fails or the device is lost, the signals fail.
    /// An error means that nothing has changed.
    #[inline(always)]
    pub fn submit<W, S>(
        &self,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        action: Action<B::Work>,
    ) -> Result<(), Refused<B::Work>>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        self.shared().submit(affinity, waits, signals, action)
    }

    /// Polls the device, if it does not report by itself.
    pub fn poll(&self) {
        let shared = self.shared();
        shared.poll_device();
        let mut call = EngineCall::submitting(shared);
        if call.is_nested() {
            // A nested call leaves its work to the calls around it, which may wait for this one.
            call.flush();
        }
    }

    /// Takes no more work, ends operations that have not started, and waits for the others: until `grace`
    /// without interference, then, after [`Backend::abort`], until `limit`. The signals of operations that have
    /// not ended by then fail; their resources stay until they end. Both are moments of `clock`, not durations.
    ///
    /// Callbacks that become due run on other threads, and the shutdown waits for them. Those that no thread
    /// has started by `limit` run on this thread, unless it [must not](WithoutCallbacks) call back. A callback that
    /// shuts its own engine down waits for itself until `limit`.
    pub fn shut_down(&self, clock: &dyn Clock, grace: Time, limit: Time) -> Result<(), Unfinished> {
        self.shared().shut_down(clock, grace, limit)
    }

    /// The queue with this number.
    pub fn queue(&self, index: usize) -> Option<QueueId> {
        self.shared().queues.get(index).map(|queue| queue.id)
    }

    /// How many objects are in use, and what waits have cost.
    pub fn counts(&self) -> Counts {
        let shared = self.shared();
        let count =
            |counter: &AtomicU64| usize::try_from(counter.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let mut counts = Counts {
            timelines: count(&shared.timelines),
            panics: shared.panics.load(Ordering::Relaxed),
            ..Counts::default()
        };
        for queue in &shared.queues {
            let state = queue.lock();
            counts.operations += state.ops.len();
            counts.in_flight += state.flight.len();
            counts.running += state.host.running();
            counts.reached += state.waits.reached;
            counts.same_queue += state.waits.same_queue;
            counts.dominated += state.waits.dominated;
            counts.native += state.waits.native;
            counts.blocked += state.waits.blocked;
            drop(state);
            let (events, idle) = queue.events.lock().count();
            counts.events += events;
            counts.idle_events += idle;
        }
        counts
    }

    /// Why the device is lost, if it is.
    pub fn lost(&self) -> Option<Failure> {
        self.shared().device.lost()
    }

    /// Releases memory that a burst has left behind.
    pub fn trim(&self) {
        let shared = self.shared();
        for queue in &shared.queues {
            queue.lock().trim();
        }
        let mut large = std::mem::take(&mut *shared.large.lock());
        large.retain(|timeline_state| {
            timeline_state.upgrade().is_some_and(|timeline_state| timeline_state.trim())
        });
        shared.large.lock().append(&mut large);
        shared.owed.trim();
        let spare = std::mem::take(&mut *shared.spare_timelines.lock());
        drop(spare);
    }
}

fn validate(spec: DeviceSpec) -> Result<(), EngineError> {
    match spec.queues {
        0 => Err(EngineError::NoQueues),
        1..=64 => Ok(()),
        queues => Err(EngineError::TooManyQueues { queues }),
    }
}

impl<B: Backend> Shared<B> {
    fn queue(&self, index: u32) -> &Queue<B> {
        #[expect(
            clippy::indexing_slicing,
            reason = "queue numbers come from the engine itself and queues never go away"
        )]
        &self.queues[index as usize]
    }

    fn indices(&self) -> Range<u32> {
        0..self.queues.last().map_or(0, |last| last.id.index + 1)
    }

    /// The count of the device's reports, once they are counted.
    fn reports(&self) -> Option<u64> {
        self.device.counts_reports().then(|| {
            self.queues.iter().map(|queue| queue.reports.load(Ordering::Acquire)).sum::<u64>()
                + self.device.unblocks.load(Ordering::Acquire)
        })
    }

    /// Operations that the backend has and has not reported.
    fn outstanding(&self) -> u64 {
        self.queues.iter().map(|queue| queue.taken.load(Ordering::Acquire)).sum()
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire) != 0
    }

    fn next_timeline_name(&self) -> TimelineName {
        self.timelines.fetch_add(1, Ordering::Relaxed);
        TimelineName::Numbered {
            engine: self.id,
            number: self.timelines_made.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn new_timeline_state(&self, value: u64) -> Arc<TimelineState> {
        let name = self.next_timeline_name();
        let spare = self.spare_timelines.lock().pop();
        if let Some(mut timeline_state) = spare
            && let Some(only) = Arc::get_mut(&mut timeline_state)
        {
            only.reset(name, value);
            return timeline_state;
        }
        Arc::new(TimelineState::new(name, false, value))
    }

    /// A state for a foreign timeline, which a subscription moves.
    fn new_foreign_state(&self, name: TimelineName) -> Arc<TimelineState> {
        Arc::new(TimelineState::new(name, true, 0))
    }

    fn remember_large(&self, timeline_state: &Arc<TimelineState>) {
        let mut large = self.large.lock();
        if large.len() == large.capacity() {
            // Dropped timelines need no trim.
            large.retain(|timeline_state| timeline_state.strong_count() > 0);
        }
        large.push(Arc::downgrade(timeline_state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SoftBackend, device};

    /// A thread that drops a timeline keeps its state for the next one, and may still hold a reference when
    /// another thread makes a timeline. A weak reference of the list of large timelines counts as well.
    #[test]
    fn spare_state_with_another_owner_is_not_reused() {
        let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
        let shared = engine.shared();
        let timeline_state = shared.new_timeline_state(3);
        for is_owned in [true, false] {
            let (owner, known) = (is_owned.then(|| timeline_state.clone()), Arc::downgrade(&timeline_state));
            shared.spare_timelines.lock().push(timeline_state.clone());
            let next = shared.new_timeline_state(7);
            assert!(!Arc::ptr_eq(&timeline_state, &next), "owned: {is_owned}");
            assert_eq!((timeline_state.value(), next.value()), (3, 7));
            assert_ne!(timeline_state.name(), next.name());
            drop((owner, known));
        }
        shared.spare_timelines.lock().push(timeline_state);
        let last = shared.new_timeline_state(9);
        assert_eq!(last.value(), 9);
        assert!(shared.spare_timelines.lock().is_empty());
    }
}
