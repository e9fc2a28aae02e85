//! The engine: pending queue actions over timelines, for any number of queues and devices.
//!
//! # One lock, and what runs without it
//!
//! Everything the engine knows is behind one mutex (`state::Core`), taken once to submit, once to settle a
//! submission and once or twice to retire. It is held for bookkeeping only. Whatever is foreign (the backend,
//! timelines, callbacks, the drop of anything a caller gave us) runs without it (rule S8), as one of four kinds of
//! step that `Shared::pump` takes until there is nothing left that nobody else is doing:
//!
//! 1. *route* an operation that has become runnable: order it, run it on the host, end it;
//! 2. *retire* what a queue's device has reported, one thread for each queue;
//! 3. *issue* a batch of a queue, one thread for each queue;
//! 4. *perform effects*, one thread for the engine: publish, wake, call back, start host work, reclaim.
//!
//! A thread that finds a step taken leaves its work on the list and goes; whoever is on the step looks again under
//! the lock before it goes itself, so nothing is left behind. Foreign code may call back into the engine from
//! anywhere: it adds to the lists, and the step above it on the stack takes care of them. That is why nothing
//! recurses, however long the chain that one signal sets free: the stack holds at most one issuing step for each
//! of a fixed number of issuers.
//!
//! # Why effects are performed by one thread
//!
//! Operation A signals x, operation B waits for x and signals y. Whoever sees y must also see x. The end of A precedes
//! the end of B under the lock; performing effects in that order, by one thread at a time, carries the order over to
//! what the world sees. It also gives rule S5 its order: results are visible before an operation ends
//! (`Backend::finish`), then its signals, then its resources.
//!
//! # Refused or failed
//!
//! What is wrong with a request itself (values, queues, dropped timelines) is refused, and nothing has changed. Whatever
//! goes wrong later, a lost device included, is reported through the operation's signals, and only there.

mod issue;
mod order;
mod retire;
mod room;
mod state;
mod stop;
mod timepoints;
mod wait;

pub use state::Stats;

use crate::backend::{Backend, Completer, Completion, DeviceSpec, HostTask, NativeWaits, WaitClass};
use crate::clock::{Clock, Time};
use crate::error::{CompletionError, EngineError, SubmitError, Unfinished, WaitError};
use crate::failure::{Code, Failure, Origin};
use crate::ids::{Affinity, QueueId, Ticket, TimelineKey};
use crate::native_event::EventPool;
use crate::notification::NotificationPool;
use crate::port::{Callback, Port};
use crate::ring::take_first;
use crate::slab::{Key, Slab};
use crate::sync::{Guard, Mutex};
use crate::timeline::{Points, Registration, Timeline, Watcher};
use room::Room;
use state::{
    Ahead, CallbackRecord, Core, Device, Effect, Effects, HOST, OpState, Queue, Scratch, Spare, Target,
};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How many operations are routed before effects get their turn.
const ROUTE_TURN: usize = 256;

/// How many threads hand work to the backend at once; also what bounds the stack of a backend that completes from
/// inside `submit`.
const ISSUERS: usize = 8;

/// How long a thread that waits for a polled device sleeps first before it looks again.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// What an operation does once its waits are reached or covered.
///
/// The kinds of queue action in HAL terms: launches and transfers are [`Queue`](Action::Queue) work, host calls
/// [`Host`](Action::Host) work. Stream-ordered allocations and deallocations are `Queue` work where the queue itself gives
/// and takes the memory; where the host does, an allocation is work that may be done [`Ahead`](Action::Ahead) and a
/// deallocation an [`Edge`](Action::Edge).
#[derive(Debug)]
pub enum Action<W> {
    /// Goes to the device's queue, in queue order.
    Queue(W),
    /// Runs on the host, once every wait is reached, in no order but its waits'.
    Host(W),
    /// Runs on the host, and may do so as soon as its waits are reached or covered, if the backend finds that it
    /// [can](crate::Backend::ahead). Then it takes its place in its queue, as a barrier does, and what comes after it there
    /// goes to the device without the host. Otherwise it is like `Host`.
    Ahead(W),
    /// Goes to its queue, in queue order, where the backend sees it and the device has nothing to do but to wait and
    /// signal.
    Edge(W),
    /// Nothing: signals when its waits are reached.
    Barrier,
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
    pub held: u32,
}

impl WaitCounts {
    fn count(&mut self, class: WaitClass) {
        let count = match class {
            WaitClass::Reached => &mut self.reached,
            WaitClass::SameQueue { .. } | WaitClass::Dominated { .. } => &mut self.ordered,
            WaitClass::Native { .. } | WaitClass::Peer { .. } => &mut self.native,
            WaitClass::Held => &mut self.held,
        };
        *count += 1;
    }
}

/// Where an accepted operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Names the operation until it has ended.
    pub ticket: Ticket,
    /// The queue that was chosen for it.
    pub queue: QueueId,
    /// What its waits looked like.
    pub waits: WaitCounts,
}

/// A submission that was refused, and the action back.
pub struct Refused<W> {
    /// Why.
    pub error: SubmitError,
    /// What was to be done.
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

/// What became of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The operation will not run; its signals fail with the given failure.
    Cancelled,
    /// Its device or the host has it; it ends as it ends.
    TooLate,
    /// It has ended.
    Ended,
}

/// How busy the engine is right now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Operations that have not ended.
    pub operations: usize,
    /// Of those, the ones a device has.
    pub in_flight: usize,
    /// Of those, the ones the host is at.
    pub running: usize,
    /// Timelines, stand-ins for foreign ones included.
    pub timelines: usize,
    /// Native events that exist.
    pub events: usize,
    /// Native events at rest.
    pub idle_events: usize,
    /// Host waits.
    pub host_waits: usize,
    /// Callbacks that wait for their timeline.
    pub callbacks: usize,
}

pub(crate) struct Shared<B: Backend> {
    core: Mutex<Core<B>>,
    backend: B,
    this: Weak<Shared<B>>,
}

/// A handle on an engine. Clones are handles on the same one; when the last is dropped, what has not begun is
/// cancelled and devices are asked to stop. [`shut_down`](Engine::shut_down) does so with a bound.
pub struct Engine<B: Backend> {
    handle: Arc<Handle<B>>,
}

struct Handle<B: Backend> {
    shared: Arc<Shared<B>>,
}

impl<B: Backend> Drop for Handle<B> {
    fn drop(&mut self) {
        self.shared.close();
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
        let core = Core {
            engine: ENGINES.fetch_add(1, Ordering::Relaxed),
            ops: Slab::new(),
            slots: Slab::new(),
            queues: make_queues(&specs),
            devices: make_devices(&specs),
            host_waits: Slab::new(),
            callbacks: Slab::new(),
            notifications: NotificationPool::default(),
            runnable: VecDeque::new(),
            dirty: VecDeque::new(),
            issuable: VecDeque::new(),
            issuers: 0,
            publishing: false,
            effects: Box::default(),
            spare_effects: None,
            spare: Spare::default(),
            stats: Stats::default(),
            running: 0,
            closing: false,
            resting: Vec::new(),
            keepalive: None,
        };
        let shared = Arc::new_cyclic(|this: &Weak<Shared<B>>| Shared {
            core: Mutex::new(core),
            backend,
            this: this.clone(),
        });
        let port: Weak<dyn Port> = shared.this.clone();
        shared.backend.start(Completer::new(port));
        Ok(Self { handle: Arc::new(Handle { shared }) })
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

    /// Registers a timeline that stands at `value` now. See [`Timeline`].
    pub fn register(&self, value: u64) -> Registration {
        let mut core = self.shared().core.lock();
        let key = core.new_slot(true, value);
        let key = TimelineKey { engine: core.engine, key };
        drop(core);
        Registration::new(self.handle.shared.clone(), key)
    }

    /// Hands in an operation: once each of `waits` is reached, or covered by something its queue can wait for, do
    /// `action`; then signal `signals`. Never blocks, and captures everything it is given.
    ///
    /// On return the operation is on its way, and may have ended. If a wait can no longer be reached or the device is
    /// lost, the signals fail. An error means that nothing has changed.
    pub fn submit<W, S>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        action: Action<B::Work>,
    ) -> Result<Placement, Refused<B::Work>>
    where
        W: Points<B::Timeline> + ?Sized,
        S: Points<B::Timeline> + ?Sized,
    {
        let shared = self.shared();
        let mut core = shared.core.lock();
        if let Err(error) = core.check(device, affinity, waits, signals) {
            drop(core);
            return Err(Refused { error, action });
        }
        let placement = core.admit(device, affinity, waits, signals, action);
        shared.pump(core);
        Ok(placement)
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
        P: Points<B::Timeline> + ?Sized,
    {
        self.shared().wait(mode, points, clock, until)
    }

    /// Ends an operation that has not begun.
    pub fn cancel(&self, ticket: Ticket) -> Cancel {
        let failure = Failure::with_origin(Code::Cancelled, Origin::Cancelled, "the operation was cancelled");
        let shared = self.shared();
        let mut core = shared.core.lock();
        let outcome = core.cancel(ticket, &failure);
        shared.pump(core);
        outcome
    }

    /// Asks the devices that do not report by themselves what has ended.
    pub fn poll(&self) {
        self.shared().poll_devices();
    }

    /// Takes no more work, cancels what has not begun, and waits for the rest: until `grace` by itself, then, asked to
    /// stop by [`Backend::abort`], until `limit`. What has not ended by then loses its signals, which fail, and keeps
    /// its resources until it ends. Both are moments of `clock`.
    pub fn shut_down(&self, clock: &dyn Clock, grace: Time, limit: Time) -> Result<(), Unfinished> {
        self.shared().shut_down(clock, grace, limit)
    }

    /// The queue of a device with that number.
    pub fn queue(&self, device: usize, ordinal: usize) -> Option<QueueId> {
        let core = self.shared().core.lock();
        core.queues.iter().map(|queue| queue.id).find(|id| id.device() == device && id.ordinal() == ordinal)
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        self.shared().core.lock().stats
    }

    /// What is going on now.
    pub fn occupancy(&self) -> Occupancy {
        let core = self.shared().core.lock();
        let (events, idle_events) = core
            .devices
            .iter()
            .map(|device| device.events.count())
            .fold((0, 0), |(all, idle), (more, resting)| (all + more, idle + resting));
        Occupancy {
            operations: core.ops.len(),
            in_flight: core.queues.iter().map(|queue| queue.in_flight.len()).sum(),
            running: core.running,
            timelines: core.slots.len(),
            events,
            idle_events,
            host_waits: core.host_waits.len(),
            callbacks: core.callbacks.len(),
        }
    }

    /// Why a device is lost, if it is.
    pub fn lost(&self, device: usize) -> Option<Failure> {
        self.shared().core.lock().devices.get(device)?.lost.clone()
    }

    /// Gives back memory that a burst has left behind.
    pub fn trim(&self) {
        let mut core = self.shared().core.lock();
        core.ops.trim();
        core.slots.trim();
        core.host_waits.trim();
        core.callbacks.trim();
        core.runnable.shrink_to_fit();
        let spare = std::mem::take(&mut core.spare);
        let effects = core.spare_effects.take();
        for queue in &mut core.queues {
            queue.ready.shrink_to_fit();
            queue.in_flight.shrink_to_fit();
        }
        let slots: Vec<Key> = core.slots.keys().collect();
        for key in slots {
            if let Some(slot) = core.slots.get_mut(key) {
                for (_, list) in &mut slot.lists {
                    list.trim();
                }
                for (_, signals) in &mut slot.signals {
                    signals.shrink_to_fit();
                }
            }
        }
        drop(core);
        drop((spare, effects));
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

fn make_queues<B: Backend>(specs: &[DeviceSpec]) -> Vec<Queue<B>> {
    let mut ids = Vec::new();
    for (device, spec) in (0u16..).zip(specs) {
        for ordinal in (0u16..).take(spec.queues) {
            ids.push(QueueId { index: u32::try_from(ids.len()).unwrap_or(u32::MAX), device, ordinal });
        }
    }
    let reaches = |waiting: QueueId, producer: QueueId| {
        waiting != producer
            && specs.get(waiting.device()).is_some_and(|spec| {
                spec.native_waits != NativeWaits::None
                    && (waiting.device == producer.device || spec.peers.contains(&producer.device()))
            })
    };
    ids.iter()
        .map(|&id| Queue {
            id,
            ready: VecDeque::new(),
            in_flight: VecDeque::new(),
            ordered: 0,
            shown: 0,
            issued: 0,
            completed: 0,
            retired: 0,
            known: vec![0; ids.len()].into(),
            reach: ids.iter().map(|&producer| reaches(id, producer)).collect(),
            watched: ids.iter().any(|&waiting| reaches(waiting, id)),
            load: 0,
            issuing: false,
            retiring: false,
            gated: false,
            room: Room::default(),
            in_dirty: false,
            in_issuable: false,
            scratch: Scratch::default(),
            collected: Vec::new(),
        })
        .collect()
}

fn make_devices<B: Backend>(specs: &[DeviceSpec]) -> Vec<Device<B>> {
    let mut first_queue = 0;
    specs
        .iter()
        .map(|spec| {
            let queues = u32::try_from(spec.queues).unwrap_or(64);
            let device = Device {
                first_queue,
                queues,
                native_waits: spec.native_waits,
                completion: spec.completion,
                lost: None,
                events: EventPool::new(),
                events_exhausted: false,
                reports: 0,
                outstanding: 0,
                any_full: false,
            };
            first_queue += queues;
            device
        })
        .collect()
}

impl<B: Backend> Core<B> {
    /// Whether some device with work in flight has to be asked.
    fn is_polled(&self) -> bool {
        self.devices.iter().any(|device| device.completion == Completion::Poll)
    }
}

impl<B: Backend> Shared<B> {
    /// Takes steps until there is none left that nobody else is taking. See the module documentation.
    fn pump<'a>(&'a self, mut core: Guard<'a, Core<B>>) {
        loop {
            for _ in 0..ROUTE_TURN {
                let Some(key) = take_first(&mut core.runnable) else { break };
                core.route(key);
            }
            if !core.dirty.is_empty() {
                core = self.retire_step(core);
            } else if !core.issuable.is_empty() && core.issuers < ISSUERS {
                core = self.issue_step(core);
            } else if !core.publishing && !core.effects.is_empty() {
                core = self.effect_step(core);
            } else if core.runnable.is_empty() {
                break;
            }
        }
        if core.closing && core.is_at_rest() {
            let resting = std::mem::take(&mut core.resting);
            let keepalive = core.keepalive.take();
            drop(core);
            for pending in resting {
                pending.raise();
            }
            drop(keepalive);
        }
    }

    /// Performs the effects that have gathered, in their order.
    fn effect_step<'a>(&'a self, mut core: Guard<'a, Core<B>>) -> Guard<'a, Core<B>> {
        let fresh = core.spare_effects.take().unwrap_or_default();
        let mut effects = std::mem::replace(&mut core.effects, fresh);
        core.publishing = true;
        drop(core);
        let panics = self.perform(&mut effects);
        core = self.core.lock();
        core.stats.panics += panics;
        if !effects.ahead.is_empty() {
            for ahead in effects.ahead.drain(..) {
                core.end_ahead(ahead);
            }
        }
        core.spare_effects = Some(effects);
        core.publishing = false;
        core
    }

    /// Says how often foreign code panicked.
    fn perform(&self, effects: &mut Effects<B>) -> u64 {
        let mut panics = 0;
        let mut count = |result: Result<(), Failure>| panics += u64::from(result.is_err());
        let mut publications = effects.publications.iter().peekable();
        while let Some(mut publication) = publications.next() {
            // Of several values in a row for one timeline the largest says it all.
            while let Some(next) = publications.next_if(|next| publication.merges(next)) {
                if next.state.as_ref().ok() >= publication.state.as_ref().ok() {
                    publication = next;
                }
            }
            let timeline = &publication.timeline;
            count(self.foreign(|| match &publication.state {
                state if publication.foreign => timeline.deliver(state.as_ref().copied()),
                Ok(value) => timeline.publish(*value, publication.by),
                Err(failure) => timeline.fail(failure),
            }));
        }
        effects.publications.clear();
        // To empty what is empty costs more than to look.
        if !effects.others.is_empty() {
            for effect in effects.others.drain(..) {
                count(self.foreign(|| self.perform_one(effect)));
            }
        }
        for Ahead { work, done, .. } in &mut effects.ahead {
            let asked = self.foreign(|| *done = self.backend.ahead(work));
            if let Err(failure) = &asked {
                *done = Err(failure.clone());
            }
            count(asked);
        }
        if !effects.reclaims.is_empty() {
            for ended in effects.reclaims.drain(..) {
                count(self.foreign(|| self.backend.reclaim(ended)));
            }
        }
        panics
    }

    fn perform_one(&self, effect: Effect<B>) {
        match effect {
            Effect::Observe(transition) => self.backend.observe(transition),
            Effect::Wake(pending) => pending.raise(),
            Effect::Call(callback, state) => callback(state),
            Effect::Run(key, work) => {
                if let Some(this) = self.this.upgrade() {
                    self.backend.run(HostTask::new(this, Ticket(key)), work);
                }
            }
            Effect::Watch(timeline, value, key) => {
                let port: Weak<dyn Port> = self.this.clone();
                let watch = timeline.watch(value, Watcher::new(port, key));
                // If what was watched for has happened by now, the watch goes with `unneeded`, without the lock.
                let mut core = self.core.lock();
                let unneeded = match core.slots.get_mut(key) {
                    Some(slot) => slot.watch.replace(watch),
                    None => Some(watch),
                };
                drop(core);
                drop(unneeded);
            }
            Effect::Unwatch(_) => {}
        }
    }

    /// Runs foreign code; a panic becomes a failure. The checkers see panics as they are.
    fn foreign<R>(&self, call: impl FnOnce() -> R) -> Result<R, Failure> {
        #[cfg(any(loom, shuttle))]
        return Ok(call());
        #[cfg(not(any(loom, shuttle)))]
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).map_err(|payload| {
            let words = payload
                .downcast_ref::<&str>()
                .map(|words| (*words).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            Failure::with_origin(Code::Internal, Origin::Device, format!("the backend panicked: {words}"))
        })
    }

    fn poll_devices(&self) {
        let core = self.core.lock();
        let due: smallvec::SmallVec<[usize; 8]> = core
            .devices
            .iter()
            .enumerate()
            .filter(|(_, device)| device.completion != Completion::Callback && device.outstanding > 0)
            .map(|(device, _)| device)
            .collect();
        drop(core);
        for device in due {
            self.poll_device(device);
        }
    }

    pub(crate) fn poll_device(&self, device: usize) {
        if let Err(failure) = self.foreign(|| self.backend.poll(device)) {
            self.lose_panicked(device, failure);
        }
    }

    /// The backend panicked while it was at this device: what it had done is unknown.
    fn lose_panicked(&self, device: usize, failure: Failure) {
        let mut core = self.core.lock();
        core.stats.panics += 1;
        core.lose(device, failure);
        self.pump(core);
    }

    #[cfg(feature = "reactor")]
    pub(crate) fn lose_device(&self, device: usize, failure: Failure) {
        let mut core = self.core.lock();
        core.lose(device, failure);
        self.pump(core);
    }

    #[cfg(feature = "reactor")]
    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    #[cfg(feature = "reactor")]
    pub(crate) fn devices(&self) -> usize {
        self.core.lock().devices.len()
    }
}

impl<B: Backend> Port for Shared<B> {
    fn advanced(&self, timeline: Key, value: u64) {
        let mut core = self.core.lock();
        core.reach(timeline, value);
        self.pump(core);
    }

    fn failed(&self, timeline: Key, failure: &Failure) {
        let mut core = self.core.lock();
        core.fail_slot(timeline, failure);
        self.pump(core);
    }

    fn dropped(&self, timeline: Key) {
        let mut core = self.core.lock();
        let Some(slot) = core.slots.get_mut(timeline) else { return };
        slot.owned = false;
        if slot.users > 0 && slot.failure.is_none() {
            let failure = Failure::with_origin(
                Code::Aborted,
                Origin::Abandoned,
                format!("the timeline was dropped at {}; nobody can signal what was waited for", slot.value),
            );
            core.fail_slot(timeline, &failure);
        } else {
            core.collect_slot(timeline);
        }
        self.pump(core);
    }

    fn promised(&self, timeline: Key) -> Option<u64> {
        let core = self.core.lock();
        let signals = &core.slots.get(timeline)?.signals;
        signals.iter().filter_map(|(_, under_way)| under_way.back()).map(|&(value, _)| value).max()
    }

    fn subscribe(&self, timeline: Key, value: u64, callback: Callback) -> Option<Key> {
        let mut core = self.core.lock();
        let state = match core.slots.get(timeline) {
            Some(slot) if slot.value >= value => Some(Ok(slot.value)),
            Some(slot) => slot.failure.clone().map(Err),
            None => Some(Err(Failure::with_origin(Code::Aborted, Origin::Abandoned, "the timeline is gone"))),
        };
        let key = match state {
            Some(state) => {
                core.effects.then(Effect::Call(callback, state));
                None
            }
            None => {
                let key = core.callbacks.insert(CallbackRecord { callback, slot: timeline });
                core.use_slot(timeline);
                core.park(timeline, HOST, value, Target::Callback(key));
                Some(key)
            }
        };
        self.pump(core);
        key
    }

    fn unsubscribe(&self, callback: Key) {
        let mut core = self.core.lock();
        let record = core.callbacks.remove(callback);
        if let Some(record) = &record {
            core.leave_stale(record.slot);
            core.drop_user(record.slot);
        }
        self.pump(core);
        drop(record);
    }

    fn complete(&self, queue: QueueId, epoch: u64, failure: Option<Failure>) -> Result<(), CompletionError> {
        let mut core = self.core.lock();
        core.report(queue, epoch, failure)?;
        self.pump(core);
        Ok(())
    }

    fn unblock(&self, device: usize) -> Result<(), CompletionError> {
        let mut core = self.core.lock();
        let devices = core.devices.len();
        let Some(spec) = core.devices.get_mut(device) else {
            return Err(CompletionError::UnknownDevice { device, devices });
        };
        spec.reports += 1;
        core.make_room(device, true);
        self.pump(core);
        Ok(())
    }

    fn lose(&self, device: usize, failure: Failure) -> Result<(), CompletionError> {
        let mut core = self.core.lock();
        let devices = core.devices.len();
        if device >= devices {
            return Err(CompletionError::UnknownDevice { device, devices });
        }
        core.lose(device, failure);
        self.pump(core);
        Ok(())
    }

    fn host_done(&self, ticket: Ticket, result: Result<(), Failure>) {
        let mut core = self.core.lock();
        if let Some(op) = core.op(ticket.0)
            && op.state == OpState::Running
        {
            let queue = op.queue;
            // A host call that ends well on a device that is lost meanwhile has still lost its device.
            let lost = core.device_of(queue).lost.clone();
            core.end(ticket.0, result.err().or(lost), None, None);
        }
        self.pump(core);
    }
}
