// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine: pending queue actions over timelines, for any number of queues and devices.
//!
//! # Who owns what
//!
//! Each queue has a lock, and under it the operations whose queue it is ([`queue`]). Each timeline has one, and under it
//! its value, its failure and who waits for it ([`timeline_state`]): that is the one truth about it. Threads that use different
//! queues and different timelines share nothing that either of them writes (rule S13). Foreign code (the backend,
//! timelines, callbacks, the drop of anything a caller gave us) runs without any of these locks (rule S8).
//!
//! # What one lock for everything would give for free
//!
//! - *Cause before effect.* Operation A signals x, operation B waits for x and signals y: a thread that sees y sees x.
//!   A's end
//!   raises x before it releases any operation, and B's end comes after B was let go, or, where its wait was left to queue order or
//!   to a device, after B's queue has seen that x is raised ([`retire`]).
//! - *No wake-up is lost.* A thread that registers with a timeline looks at it under the lock under which it moves. What
//!   only covers
//!   a wait is looked at across a pair of fences ([`timeline_state`]).
//! - *No recursion.* What a step sets free is put on the thread's [`DeferredWork`], never followed.
//! - *No deadlock.* A thread holds one queue's lock at most, then one timeline's, then one of the small ones.
//!
//! # Who works for whom
//!
//! A queue has no thread. A thread that brings it something (an operation, a report, a timeline that one of its
//! operations waited for) looks after it: [`QueueGuard::work`](queue::QueueGuard::work) routes, retires, performs what is to be done without the lock,
//! and issues, until nothing is left, or until another thread has come that will do the rest.
//!
//! # Refused or failed
//!
//! What is wrong with a request itself (values, queues) is refused, and nothing has changed. Whatever goes wrong later,
//! a lost device included, is reported through the operation's signals, and only there.

mod admit;
mod deferred_callbacks;
mod deferred_work;
mod fast_path;
mod flow_window;
mod host_wait;
mod outbox;
mod queue;
mod retire;
mod stop;
mod submit;
mod timeline_state;
mod wait;
mod wait_lists;
mod work_loop;

pub use deferred_callbacks::DeferredCallbacks;
use deferred_work::Dependency;
pub use deferred_work::WithoutCallbacks;
pub(crate) use deferred_work::{DeferredWork, EngineCall};
pub(crate) use host_wait::CallbackRecord;
pub(crate) use timeline_state::{Target, TimelineState};
pub(crate) use wait_lists::ListOwner;

use crate::backend::{Backend, Completer, Completion, DeviceSpec, NativeWaits, WaitClass};
use crate::clock::{Clock, Time};
use crate::engine_events::{EngineEvents, KeepAlive};
use crate::error::{EngineError, SubmitError, Unfinished, WaitError};
use crate::failure::Failure;
use crate::ids::{Affinity, MAX_VALUE, QueueId, Ticket, TimelineKey};
use crate::notification::{NotificationPool, Wakeup};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::timeline::{Registration, TimelineValues};
use outbox::Outbox;
use queue::Queue;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a thread that waits for a polled device sleeps first before it looks again.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// How many slots are kept for the next timelines.
const SPARE_TIMELINES: usize = 4096;

/// What an operation does once its waits are reached or covered.
///
/// The kinds of queue action in HAL terms: launches and transfers are [`Queue`](Action::Queue) work, host calls
/// [`Host`](Action::Host) work. Stream-ordered allocations and deallocations are `Queue` work where the queue itself gives
/// and takes the memory; where the host does, an allocation is work that may be done [`Early`](Action::Early) and a
/// deallocation a [`Marker`](Action::Marker).
#[derive(Debug)]
pub enum Action<W> {
    /// Goes to the device's queue, in queue order.
    Queue(W),
    /// Runs on the host, once every wait is reached, in no order but its waits'.
    Host(W),
    /// Runs on the host, and may do so as soon as its waits are reached or covered, if the backend finds that it
    /// [can](crate::Backend::try_early). Then it takes its place in its queue, as a barrier does, and what comes after it
    /// there goes to the device without the host. Otherwise it is like `Host`.
    Early(W),
    /// Goes to its queue, in queue order, where the backend sees it and the device has nothing to do but to wait and
    /// signal.
    Marker(W),
    /// Nothing: signals when its waits are reached.
    Barrier,
    /// The same, and where it fails before it has its place in its queue, or all of its queue ends before the device has it, the host
    /// [cleans up](crate::Backend::clean_up) first: its signals fail when that has ended. For callers that begin several things that end at one barrier, of which one fails while others go on.
    Cleanup(W),
}

/// How many waits of an operation were of each class when it was submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Reached.
    pub reached: u32,
    /// Free by queue order, or by an earlier native wait of the queue.
    pub ordered: u32,
    /// Left to the device.
    pub native: u32,
    /// Held on the host.
    pub blocked: u32,
}

impl WaitCounts {
    fn count(&mut self, class: WaitClass) {
        // Each by itself, so that the compiler can keep the counts in registers.
        match class {
            WaitClass::Reached => self.reached += 1,
            WaitClass::SameQueue { .. } | WaitClass::Dominated { .. } => self.ordered += 1,
            WaitClass::Native { .. } | WaitClass::Peer { .. } => self.native += 1,
            WaitClass::Blocked => self.blocked += 1,
        }
    }
}

/// Where an accepted operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Names the operation until it has ended.
    pub ticket: Ticket,
    /// The queue that was chosen for it.
    pub queue: QueueId,
    /// The classes of its waits.
    pub waits: WaitCounts,
}

/// A submission that was refused, and the action back.
pub struct Refused<W> {
    /// Why.
    pub error: SubmitError,
    /// The action, handed back.
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

/// Whether a host wait needs all of its timelines or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Every one.
    All,
    /// The first.
    Any,
}

/// The result of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The operation will not run; its signals fail with the given failure.
    Cancelled,
    /// Its device or the host has it; it ends as it ends.
    TooLate,
    /// It has ended.
    Ended,
}

/// How many objects of the engine are in use right now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Operations that have not ended.
    pub operations: usize,
    /// Of those, the ones a device has.
    pub in_flight: usize,
    /// Of those, the ones the host is at.
    pub running: usize,
    /// Timelines that were registered here and not dropped.
    pub timelines: usize,
    /// Native events that exist.
    pub events: usize,
    /// Native events that no operation holds.
    pub idle_events: usize,
    /// Host waits.
    pub host_waits: usize,
    /// Callbacks that wait for their timeline.
    pub callbacks: usize,
}

/// Counts since the engine was made. All grow only. What a wait cost is counted when its operation is handed to the
/// device, and again if the device had no room and the operation is handed to it later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations accepted.
    pub submitted: u64,
    /// Operations that ended well.
    pub succeeded: u64,
    /// Operations that ended otherwise.
    pub failed: u64,
    /// Waits that were reached when their operation was submitted.
    pub reached: u64,
    /// Waits that queue order took care of.
    pub same_queue: u64,
    /// Waits that an earlier native wait of the queue took care of.
    pub dominated: u64,
    /// Waits left to the device.
    pub native: u64,
    /// Waits left to the device for a point of another device.
    pub peer: u64,
    /// Waits that made their operation wait on the host for a while.
    pub blocked: u64,
    /// Barriers that ended without their device knowing.
    pub host_barriers: u64,
    /// Batches handed to the backend.
    pub batches: u64,
    /// Times that foreign code panicked.
    pub panics: u64,
}

impl Stats {
    fn add(&mut self, other: &Stats) {
        let Stats {
            submitted,
            succeeded,
            failed,
            reached,
            same_queue,
            dominated,
            native,
            peer,
            blocked,
            host_barriers,
            batches,
            // Counted by the engine itself.
            panics: _,
        } = other;
        self.submitted += submitted;
        self.succeeded += succeeded;
        self.failed += failed;
        self.reached += reached;
        self.same_queue += same_queue;
        self.dominated += dominated;
        self.native += native;
        self.peer += peer;
        self.blocked += blocked;
        self.host_barriers += host_barriers;
        self.batches += batches;
    }
}

/// One device.
struct Device {
    first_queue: u32,
    queues: u32,
    native_waits: NativeWaits,
    completion: Completion,
    /// The other devices for whose points its queues can wait by its own means, in order.
    peers: Box<[usize]>,
    /// Whether `lost` holds anything.
    is_lost: AtomicU64,
    lost: Mutex<Option<Failure>>,
    /// The backend could not make an event: operations that need a new one do without it from then on.
    out_of_events: AtomicU64,
    /// The device was full once: reports are counted, so that "is full" can be told from "was full".
    counts_reports: AtomicU64,
    /// How often the backend said that there may be room.
    unblocks: AtomicU64,
    /// Whether `full` holds anything.
    any_full: AtomicU64,
    /// Queues that wait for room.
    full: Mutex<Vec<u32>>,
}

impl Device {
    fn new(number: usize, first_queue: u32, specs: &[DeviceSpec]) -> Self {
        let spec = specs.get(number).cloned();
        let spec = spec.unwrap_or_else(|| unreachable!("devices are made from their own list"));
        let same_means =
            |peer: usize| specs.get(peer).is_some_and(|peer| peer.native_waits == spec.native_waits);
        let mut peers: Vec<usize> =
            spec.peers.iter().copied().filter(|&peer| peer != number && same_means(peer)).collect();
        peers.sort_unstable();
        Self {
            first_queue,
            queues: queue_number(spec.queues),
            native_waits: spec.native_waits,
            completion: spec.completion,
            peers: if spec.native_waits == NativeWaits::None { Box::default() } else { peers.into() },
            is_lost: AtomicU64::new(0),
            lost: Mutex::new(None),
            out_of_events: AtomicU64::new(0),
            counts_reports: AtomicU64::new(0),
            unblocks: AtomicU64::new(0),
            any_full: AtomicU64::new(0),
            full: Mutex::new(Vec::new()),
        }
    }

    /// Whether queues of this device, whose number is `own`, can wait natively for those of another.
    fn reaches(&self, own: usize, producer: usize) -> bool {
        self.native_waits != NativeWaits::None
            && (own == producer || self.peers.binary_search(&producer).is_ok())
    }

    fn own_queues<'a, B: Backend>(&self, queues: &'a [Queue<B>]) -> &'a [Queue<B>] {
        let first = self.first_queue as usize;
        queues.get(first..first + self.queues as usize).unwrap_or(&[])
    }

    /// Why the device is lost, if it is.
    #[inline]
    fn lost(&self) -> Option<Failure> {
        if self.is_lost.load(Ordering::Acquire) == 0 { None } else { self.lost.lock().clone() }
    }

    /// The device is lost, with the first cause that was reported.
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
    fn counts_reports(&self) -> bool {
        self.counts_reports.load(Ordering::Acquire) != 0
    }

    fn count_reports(&self) {
        self.counts_reports.store(1, Ordering::Release);
    }

    /// A queue waits for room from now on.
    fn add_full(&self, queue: u32) {
        let mut full = self.full.lock();
        if !full.contains(&queue) {
            full.push(queue);
        }
        self.any_full.store(1, Ordering::Release);
    }

    /// Queues that wait for room are to look again.
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
            deferred
                .released
                .push_back((Target::FullQueue { queue, asked }, deferred_work::Release::Reached(0)));
        }
    }
}

/// Threads that wait for the engine to be idle.
#[derive(Default)]
struct IdleWaiters {
    waiting: Vec<Wakeup>,
    /// Keep a closing engine until its devices have reported everything.
    keep_alives: Vec<Arc<dyn KeepAlive>>,
}

/// Callbacks for a thread that may run them.
type LateCallback<B> = Box<dyn FnOnce(&Shared<B>) + Send>;

pub(crate) struct Shared<B: Backend> {
    id: u32,
    backend: B,
    this: Weak<Shared<B>>,
    queues: Box<[Queue<B>]>,
    devices: Box<[Device]>,
    /// Some device has to be asked what has ended.
    polled: bool,
    closing: AtomicU64,
    idle_waiters: Mutex<IdleWaiters>,
    notifications: Mutex<NotificationPool>,
    spare_timelines: Mutex<Vec<Arc<TimelineState>>>,
    /// Slots with memory to give back.
    large: Mutex<Vec<Weak<TimelineState>>>,
    /// How many timelines were ever named.
    timelines_made: AtomicU64,
    timelines: AtomicU64,
    host_waits: AtomicU64,
    callbacks: AtomicU64,
    panics: AtomicU64,
    /// What submitting threads have left for others, and what of it has not ended.
    late_callbacks: Mutex<VecDeque<LateCallback<B>>>,
    callbacks_left: AtomicU64,
    outbox: Outbox<B>,
    /// Grows with each report of a polled device.
    progress: AtomicU64,
}

/// A handle on an engine. Clones are handles on the same one; when the last is dropped, what has not begun is
/// cancelled and devices are asked to stop. [`shut_down`](Engine::shut_down) does so with a bound.
pub struct Engine<B: Backend> {
    handle: Arc<Handle<B>>,
}

struct Handle<B: Backend> {
    shared: Arc<Shared<B>>,
    /// One for each queue.
    keep_alives: Vec<Arc<dyn KeepAlive>>,
    /// The last to go, behind what may have callbacks.
    _threads: deferred_callbacks::EngineCount,
}

/// Keeps an engine alive for one queue; its count shares no cache line with another's.
#[repr(align(128))]
struct QueueKeepAlive<B: Backend>(Arc<Shared<B>>);

impl<B: Backend> KeepAlive for QueueKeepAlive<B> {
    fn engine(&self) -> &dyn EngineEvents {
        &*self.0
    }
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
        f.debug_struct("Engine").field("occupancy", &self.occupancy()).finish_non_exhaustive()
    }
}

static ENGINES: AtomicU32 = AtomicU32::new(1);

impl<B: Backend> Engine<B> {
    /// An engine for the devices of `backend`.
    pub fn new(backend: B) -> Result<Self, EngineError> {
        let specs = backend.devices();
        validate(&specs)?;
        let shared = Arc::new_cyclic(|this: &Weak<Shared<B>>| Shared {
            id: ENGINES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            backend,
            this: this.clone(),
            queues: make_queues(&specs),
            devices: make_devices(&specs),
            polled: specs.iter().any(|spec| spec.completion == Completion::Poll),
            closing: AtomicU64::new(0),
            idle_waiters: Mutex::new(IdleWaiters::default()),
            notifications: Mutex::new(NotificationPool::default()),
            spare_timelines: Mutex::new(Vec::new()),
            large: Mutex::new(Vec::new()),
            timelines_made: AtomicU64::new(0),
            timelines: AtomicU64::new(0),
            host_waits: AtomicU64::new(0),
            callbacks: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            late_callbacks: Mutex::new(VecDeque::new()),
            callbacks_left: AtomicU64::new(0),
            outbox: Outbox::default(),
            progress: AtomicU64::new(0),
        });
        let keep_alives: Vec<Arc<dyn KeepAlive>> = shared
            .queues
            .iter()
            .map(|_| Arc::new(QueueKeepAlive(shared.clone())) as Arc<dyn KeepAlive>)
            .collect();
        let weak: Arc<[Weak<dyn KeepAlive>]> = keep_alives.iter().map(Arc::downgrade).collect();
        for (queue, keep_alive) in shared.queues.iter().zip(weak.iter()) {
            *queue.keep_alive.lock() = Some(keep_alive.clone());
        }
        shared.backend.start(Completer::new(weak));
        Ok(Self {
            handle: Arc::new(Handle {
                shared,
                keep_alives,
                _threads: deferred_callbacks::EngineCount::new(),
            }),
        })
    }

    fn shared(&self) -> &Shared<B> {
        &self.handle.shared
    }

    #[cfg(feature = "reactor")]
    pub(crate) fn share(&self) -> Arc<Shared<B>> {
        self.handle.shared.clone()
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.shared().backend
    }

    /// Registers a timeline that stands at `value` now, or at [`MAX_VALUE`] if that is past it. See
    /// [`Timeline`](crate::Timeline).
    pub fn register(&self, value: u64) -> Registration {
        Registration::new(self.handle.shared.clone(), self.shared().new_timeline_state(value.min(MAX_VALUE)))
    }

    /// Hands in an operation: once each of `waits` is reached, or covered by something its queue can wait for, do
    /// `action`; then signal `signals`. Never blocks, and captures everything it is given.
    ///
    /// On return the operation is on its way, and may have ended. If a wait can no longer be reached or the device is
    /// lost, the signals fail. An error means that nothing has changed.
    #[inline(always)]
    pub fn submit<W, S>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        action: Action<B::Work>,
    ) -> Result<Placement, Refused<B::Work>>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        self.shared().submit(device, affinity, waits, signals, action)
    }

    /// Sleeps until all or any of `points` are reached, one that is needed fails, or the time is `until`. Says which
    /// one decided the wait.
    pub fn wait<P>(
        &self,
        mode: WaitMode,
        points: &P,
        clock: &dyn Clock,
        until: Option<Time>,
    ) -> Result<usize, WaitError>
    where
        P: TimelineValues<B::Timeline> + ?Sized,
    {
        self.shared().wait(mode, points, clock, until)
    }

    /// Ends an operation that has not begun.
    pub fn cancel(&self, ticket: Ticket) -> Cancel {
        self.shared().cancel(ticket)
    }

    /// Asks the devices that do not report by themselves what has ended.
    pub fn poll(&self) {
        let shared = self.shared();
        shared.poll_devices();
        let mut call = EngineCall::submitting(shared);
        if call.is_nested() {
            // What the devices answered was left to calls around this one, which may wait for it.
            call.flush();
        }
    }

    /// Takes no more work, cancels what has not begun, and waits for the rest: until `grace` by itself, then, asked to
    /// stop by [`Backend::abort`], until `limit`. What has not ended by then loses its signals, which fail, and keeps
    /// its resources until it ends. Both are moments of `clock`, not lengths.
    ///
    /// Callbacks that become due run on other threads, and are waited for like the rest. Those that no thread has begun by
    /// `limit` run here. A callback that shuts its own engine down waits for itself until `limit`.
    pub fn shut_down(&self, clock: &dyn Clock, grace: Time, limit: Time) -> Result<(), Unfinished> {
        self.shared().shut_down(clock, grace, limit)
    }

    /// The queue of a device with that number.
    pub fn queue(&self, device: usize, ordinal: usize) -> Option<QueueId> {
        let shared = self.shared();
        let queues = shared.devices.get(device)?.own_queues(&shared.queues);
        queues.get(ordinal).map(|queue| queue.id)
    }

    /// Counts of what the engine has done since it was made.
    pub fn stats(&self) -> Stats {
        let shared = self.shared();
        let mut stats = Stats { panics: shared.panics.load(Ordering::Relaxed), ..Stats::default() };
        for queue in &shared.queues {
            stats.add(&queue.lock().stats);
        }
        stats
    }

    /// How many objects of the engine are in use now.
    pub fn occupancy(&self) -> Occupancy {
        let shared = self.shared();
        let count =
            |counter: &AtomicU64| usize::try_from(counter.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let mut occupancy = Occupancy {
            timelines: count(&shared.timelines),
            host_waits: count(&shared.host_waits),
            callbacks: count(&shared.callbacks),
            ..Occupancy::default()
        };
        for queue in &shared.queues {
            let state = queue.lock();
            occupancy.operations += state.ops.len();
            occupancy.in_flight += state.in_flight.len();
            occupancy.running += state.running;
            drop(state);
            let (events, idle) = queue.events.lock().count();
            occupancy.events += events;
            occupancy.idle_events += idle;
        }
        occupancy
    }

    /// Why a device is lost, if it is.
    pub fn lost(&self, device: usize) -> Option<Failure> {
        self.shared().devices.get(device)?.lost()
    }

    /// Gives back memory that a burst has left behind.
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
        let spare = std::mem::take(&mut *shared.spare_timelines.lock());
        drop(spare);
    }
}

fn validate(specs: &[DeviceSpec]) -> Result<(), EngineError> {
    let devices = specs.len();
    if devices == 0 {
        return Err(EngineError::NoDevices);
    }
    if u16::try_from(devices - 1).is_err() {
        return Err(EngineError::TooManyDevices { devices });
    }
    for (device, spec) in specs.iter().enumerate() {
        match spec.queues {
            0 => return Err(EngineError::NoQueues { device }),
            1..=64 => {}
            queues => return Err(EngineError::TooManyQueues { device, queues }),
        }
        if let Some(&peer) = spec.peers.iter().find(|&&peer| peer >= devices) {
            return Err(EngineError::UnknownPeer { device, peer, devices });
        }
    }
    Ok(())
}

/// A number of queues, or that of one.
fn queue_number(number: usize) -> u32 {
    u32::try_from(number)
        .unwrap_or_else(|_| unreachable!("`validate` refuses more than 2¹⁶ devices of 64 queues"))
}

fn make_devices(specs: &[DeviceSpec]) -> Box<[Device]> {
    let mut first_queue = 0;
    (0..specs.len())
        .map(|number| {
            let device = Device::new(number, first_queue, specs);
            first_queue += device.queues;
            device
        })
        .collect()
}

fn make_queues<B: Backend>(specs: &[DeviceSpec]) -> Box<[Queue<B>]> {
    let devices = make_devices(specs);
    // Devices for whose queues another device can wait.
    let mut waited_for = vec![false; specs.len()];
    for device in &devices {
        for &peer in &device.peers {
            if let Some(waited_for) = waited_for.get_mut(peer) {
                *waited_for = true;
            }
        }
    }
    let mut queues = Vec::new();
    for ((number, device), waited_for) in (0u16..).zip(&devices).zip(waited_for) {
        let watched = waited_for || (device.queues > 1 && device.native_waits != NativeWaits::None);
        for ordinal in (0u16..).take(device.queues as usize) {
            let index = queue_number(queues.len());
            queues.push(Queue::new(QueueId { index, device: number, ordinal }, watched));
        }
    }
    queues.into()
}

impl<B: Backend> Shared<B> {
    fn queue(&self, index: u32) -> &Queue<B> {
        #[expect(
            clippy::indexing_slicing,
            reason = "queue numbers come from the engine itself and queues never go away"
        )]
        &self.queues[index as usize]
    }

    fn queues(&self) -> &[Queue<B>] {
        &self.queues
    }

    fn indices(&self) -> Range<u32> {
        0..queue_number(self.queues.len())
    }

    fn device_of(&self, queue: u32) -> &Device {
        self.device(self.queue(queue))
    }

    fn device(&self, queue: &Queue<B>) -> &Device {
        let device = queue.id.device();
        #[expect(clippy::indexing_slicing, reason = "a queue's device exists")]
        &self.devices[device]
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire) != 0
    }

    fn next_timeline_key(&self) -> TimelineKey {
        self.timelines.fetch_add(1, Ordering::Relaxed);
        TimelineKey { engine: self.id, number: self.timelines_made.fetch_add(1, Ordering::Relaxed) }
    }

    fn new_timeline_state(&self, value: u64) -> Arc<TimelineState> {
        let key = self.next_timeline_key();
        let spare = self.spare_timelines.lock().pop();
        if let Some(mut timeline_state) = spare
            && let Some(only) = Arc::get_mut(&mut timeline_state)
        {
            only.reset(key, value);
            return timeline_state;
        }
        Arc::new(TimelineState::new(key, false, value))
    }

    /// A slot that stands in for a foreign timeline.
    fn stand_in(&self) -> Arc<TimelineState> {
        Arc::new(TimelineState::new(TimelineKey { engine: 0, number: 0 }, true, 0))
    }

    fn remember_large(&self, timeline_state: &Arc<TimelineState>) {
        let mut large = self.large.lock();
        if large.len() == large.capacity() {
            // Those that are gone need not be remembered.
            large.retain(|timeline_state| timeline_state.strong_count() > 0);
        }
        large.push(Arc::downgrade(timeline_state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SoftBackend, device};

    /// The handle of a timeline goes on one thread, which has kept its slot for the next one and not let go of it yet, when another
    /// thread makes a timeline. And a slot that may have memory to give back is still known to those who would do that.
    #[test]
    fn spare_slot_with_another_owner_is_not_used_again() {
        let engine = Engine::new(SoftBackend::new(vec![device(1)])).unwrap();
        let shared = engine.shared();
        let timeline_state = shared.new_timeline_state(3);
        for is_owned in [true, false] {
            let (owner, known) = (is_owned.then(|| timeline_state.clone()), Arc::downgrade(&timeline_state));
            shared.spare_timelines.lock().push(timeline_state.clone());
            let next = shared.new_timeline_state(7);
            assert!(!Arc::ptr_eq(&timeline_state, &next), "owned: {is_owned}");
            assert_eq!((timeline_state.value(), next.value()), (3, 7));
            assert_ne!(timeline_state.key(), next.key());
            drop((owner, known));
        }
        shared.spare_timelines.lock().push(timeline_state);
        let last = shared.new_timeline_state(9);
        assert_eq!(last.value(), 9);
        assert!(shared.spare_timelines.lock().is_empty());
    }

    #[test]
    fn devices_are_limited_in_number_and_their_peers_have_to_exist() {
        let spec = |peers| DeviceSpec {
            queues: 1,
            native_waits: NativeWaits::None,
            peers,
            completion: Completion::Callback,
        };
        let many = |devices| validate(&vec![spec(Vec::new()); devices]);
        assert_eq!(many(65_536), Ok(()));
        assert_eq!(many(65_537), Err(EngineError::TooManyDevices { devices: 65_537 }));
        let with_peer = |peer| validate(&[spec(vec![peer]), spec(Vec::new())]);
        assert_eq!(with_peer(1), Ok(()));
        assert_eq!(with_peer(2), Err(EngineError::UnknownPeer { device: 0, peer: 2, devices: 2 }));
    }
}
