// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The contract between the engine and a backend: in-order queues, and reports of completed work.
//!
//! # The contract
//!
//! **Queues are in order.** Work that [`submit`](Backend::submit) accepts on one queue starts after the work
//! accepted before it has ended, or does not notice the difference. Nothing is promised between queues. The engine
//! relies on this: a wait for an earlier operation of the same queue costs nothing (rule S6).
//!
//! **Native waits.** A device may be able to make one queue wait for a point of another queue without the host.
//! [`NativeWaits`] declares that, and the means: bare epochs (a monotonic counter for each queue), or pooled
//! event objects that the engine creates, hands out, counts and recycles. For a device that declares `None`,
//! the operation is blocked on the host until the wait is reached.
//!
//! **Completion is reported, in queue order**, through the [`Completer`]: from any thread, from a poll that the
//! engine requested ([`Backend::poll`]), when a file descriptor becomes readable, or from inside `submit`. When
//! an epoch is reported, its results are visible to the host and the hardware no longer uses its resources. All
//! accepted work is reported once, failed or not; a device that cannot keep that promise is
//! [lost](Completer::lose).
//!
//! **Failed work counts as done for native waits**: its event fires, its epoch passes, and work behind it or
//! waiting for it starts. The engine knows which operations have lost their inputs and fails them; a queue that
//! hung would take unrelated work with it.
//!
//! **Ownership.** The engine owns an operation's work until it has ended; `submit` borrows it. The work returns
//! by value in [`Backend::reclaim`], after the signals, on each path, as far as [`submit`](Backend::submit) and
//! [`calls_back`](Backend::calls_back) have not taken it. Several threads may reclaim at once.
//!
//! **Locks.** The engine holds no lock while backend code runs (rule S8), so a backend may call the engine from
//! anywhere. For one queue `submit` is called by one thread at a time, never from inside itself; for several
//! queues, by several threads.
//!
//! **Panics.** A backend that panics while it is called loses its device, whose state is unknown then. On its own
//! threads a backend catches panics itself and [loses](Completer::lose) the device; `hal-backend` has a `Reporter` for
//! that.

pub use crate::engine::DeferredCallbacks;
use crate::engine_events::KeepAlive;
use crate::error::CompletionError;
use crate::failure::{Code, Failure};
use crate::ids::{Point, QueueId};
use crate::slab::Key;
use crate::stall::Step;
use crate::timeline::Timeline;
use crate::trace::{self, Trace};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// How the queues of a device can wait for each other without the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeWaits {
    /// They cannot.
    None,
    /// A queue can wait until another one has completed an epoch. Nothing is recorded for that.
    Epochs,
    /// A queue can wait for an event that another queue recorded; see [`Backend::create_event`].
    Events,
}

/// How a device's completions reach the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The backend calls the [`Completer`] when it learns of them.
    Callback,
    /// The engine calls [`Backend::poll`], from [`Engine::poll`](crate::Engine::poll) and while it is shut down.
    Poll,
    /// As `Poll`, when a file descriptor of the device becomes readable: the program's thread that waits for that
    /// calls [`Engine::poll`](crate::Engine::poll).
    Descriptor,
}

/// The device of a backend, as the engine uses it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSpec {
    /// How many queues it has: 1 to 64.
    pub queues: usize,
    /// How its queues wait for each other.
    pub native_waits: NativeWaits,
    /// How completions are reported.
    pub completion: Completion,
}

/// The device side of the engine. See the [module documentation](self) for the contract.
pub trait Backend: Send + Sync + Sized + 'static {
    /// The timelines that operations wait for and signal.
    type Timeline: Timeline;
    /// The work of an operation, opaque to the engine.
    type Work: Send + 'static;
    /// A native event, cheap to clone; `()` for backends without events.
    type Event: Clone + Send + Sync + 'static;

    /// The device and its queues. Called once.
    fn device(&self) -> DeviceSpec;

    /// The engine exists now. Completions go to `completer`.
    fn start(&self, completer: Completer) {
        drop(completer);
    }

    /// Puts work on a queue in the order of the batch. Each item starts after its native waits, and records its
    /// event. Must not block on the device. See [`Submitted`] for the possible answers.
    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted;

    /// Makes one more native event, unrecorded. The engine calls it for [`NativeWaits::Events`] only, on the
    /// submitting thread and before the batch that records the event. After an error the engine asks for no more
    /// events: a queue that has none left records none from then on, and waits of
    /// other queues for its work are blocked on the host.
    fn create_event(&self) -> Result<Self::Event, Failure> {
        Err(Failure::new(Code::Unimplemented, "this device has no native events"))
    }

    /// Runs a host operation whose waits are reached, on any thread, now or later; `task` reports its end. Must
    /// not block for long: the thread has other work. By default the operation fails.
    fn run(&self, task: HostTask, work: Self::Work) {
        drop(work);
        task.finish(Err(Failure::new(Code::Unimplemented, "this backend runs no host operations")));
    }

    /// Cleans up for a [`Cleanup`](crate::Action::Cleanup) that failed with `why`. Its signals fail when `task`
    /// ends, with whatever result. It follows the rules of [`run`](Self::run), except that the thread may be
    /// inside a call of the program.
    fn clean_up(&self, task: HostTask, work: Self::Work, why: &Failure) {
        drop(work);
        task.finish(Err(why.clone()));
    }

    /// Does an [`Early`](crate::Action::Early) operation before its waits are reached, if it can be done now.
    /// Each of them is reached or satisfied by order: the work that will reach it is on its device, or ahead in
    /// the same queue, so the operation can rely on it. Returns whether it is done; if not, the operation comes
    /// to [`run`](Backend::run) when its waits are reached. In both cases the work is reclaimed in the end.
    fn try_early(&self, work: &mut Self::Work) -> Result<bool, Failure> {
        let _ = work;
        Ok(false)
    }

    /// Callbacks of the program have become due on a thread that must not run them, because it submits: it may
    /// hold a lock that they want. Implementations run them soon, on another thread that holds none of the
    /// program's locks; this thread must neither run them nor wait for them. By default this crate keeps
    /// threads for that.
    fn defer(&self, callbacks: DeferredCallbacks) {
        callbacks.run_elsewhere();
    }

    /// True if [reclaiming](Backend::reclaim) this work may call the program. Then the engine does not reclaim
    /// it on a thread that submits, and on other threads last. Of the work, which has ended, this may release what
    /// calls nobody, or take all.
    fn calls_back(&self, work: &mut Option<Self::Work>) -> bool {
        let _ = work;
        false
    }

    /// The kind of this work, a number of the backend's own. The engine keeps it while the host has the work, for
    /// [`describe`](Backend::describe). Called under a lock of the engine: this must be a read.
    fn kind(&self, work: &Self::Work) -> u8 {
        let _ = work;
        0
    }

    /// Describes an operation for a [snapshot](crate::Engine::snapshot): its work, or `None` while that is away, and
    /// its [kind](Backend::kind), which is known while the host has the work and 0 otherwise. Called under a lock of
    /// the engine: this must only read, and take no lock.
    fn describe(&self, work: Option<&Self::Work>, kind: u8) -> Description {
        let _ = (work, kind);
        Description::default()
    }

    /// An operation has ended, and its signals are out. Its resources can be released.
    fn reclaim(&self, ended: Ended<Self::Work>) {
        drop(ended);
    }

    /// Finds completions and reports them, without blocking. Several threads may call it at once.
    fn poll(&self) {}

    /// Asks the device to stop, and to report everything outstanding soon, as completed or failed. May be
    /// called again.
    fn abort(&self, why: &Failure) {
        let _ = why;
    }
}

/// What an operation is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// A few words, such as `fill` or `execute main_dispatch_0`. If empty, the engine names the kind of action.
    pub text: String,
    /// Signals that the work makes itself, of which the engine does not know.
    pub signals: Vec<Step>,
}

/// One native wait: a queue's next work starts after `point`.
#[derive(Clone, Debug)]
pub struct NativeWait<E> {
    /// The point to wait for, which was submitted before.
    pub point: Point,
    /// The event recorded there, for [`NativeWaits::Events`].
    pub event: Option<E>,
}

pub(crate) struct BatchItem<B: Backend> {
    pub(crate) op: Key,
    pub(crate) epoch: u64,
    pub(crate) work: Option<B::Work>,
    pub(crate) event: Option<B::Event>,
    pub(crate) waits: Range<usize>,
    pub(crate) coalesced: bool,
    /// Empty without the feature `tracing`.
    pub(crate) trace: Trace,
}

impl<B: Backend> BatchItem<B> {
    /// Work of an operation without an epoch yet.
    #[inline]
    pub(crate) fn of(work: Option<B::Work>) -> Self {
        let op = Key { index: 0, generation: 0 };
        Self { op, epoch: 0, work, event: None, waits: 0..0, coalesced: false, trace: Trace::default() }
    }
}

/// One item of a batch.
#[derive(Debug)]
pub struct Submission<'a, B: Backend> {
    /// The epoch under which its completion is reported. Epochs of a queue grow from 1, with gaps.
    pub epoch: u64,
    /// The work; `None` means to wait, record and complete only. If the backend leaves it here, the engine
    /// keeps it until it has ended and returns it in [`Backend::reclaim`]. If the backend takes it, it owns it,
    /// and puts it back if the device is full.
    pub work: &'a mut Option<B::Work>,
    /// The points to wait for first, at most one of each other queue.
    pub waits: &'a [NativeWait<B::Event>],
    /// The event to record when the work is done.
    pub event: Option<&'a B::Event>,
    /// The device has nothing to do: this is a [`Marker`](crate::Action::Marker) that waits only for earlier
    /// work of its queue, and ends with it. It is not put on the queue and not reported.
    pub coalesced: bool,
}

/// Work for one queue, in order.
pub struct Batch<'a, B: Backend> {
    pub(crate) items: &'a mut [BatchItem<B>],
    pub(crate) waits: &'a [NativeWait<B::Event>],
}

impl<B: Backend> fmt::Debug for Batch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.items.len()).finish_non_exhaustive()
    }
}

impl<B: Backend> Batch<'_, B> {
    /// The number of items: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The items, in queue order.
    pub fn iter(&mut self) -> impl Iterator<Item = Submission<'_, B>> {
        let waits = self.waits;
        self.items.iter_mut().map(move |item| Submission {
            epoch: item.epoch,
            work: &mut item.work,
            waits: waits.get(item.waits.clone()).unwrap_or(&[]),
            event: item.event.as_ref(),
            coalesced: item.coalesced,
        })
    }
}

/// The answer to a submission: how much of the batch is on the queue, and why the rest is not.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub(crate) accepted: usize,
    /// Why the rest was not accepted; `None` if the device is full.
    pub(crate) stop: Option<StopReason>,
}

#[derive(Clone, Debug)]
pub(crate) enum StopReason {
    Failed(Failure),
    Lost(Failure),
}

impl Submitted {
    /// The whole batch is on the queue.
    pub fn all() -> Self {
        Self { accepted: usize::MAX, stop: None }
    }

    /// `None` if exactly `count` items are on the queue.
    #[inline]
    pub(crate) fn unless_all_of(self, count: usize) -> Option<Self> {
        if self.stop.is_none() && self.accepted >= count { None } else { Some(self) }
    }

    /// The first `accepted` items are on the queue, and the device is full until something of it completes or
    /// the backend calls [`Completer::unblock`]. The engine keeps the rest and offers it again then. If nothing
    /// of the device is in flight, nothing can complete: the next item is more than the device can take, and
    /// fails.
    pub fn full(accepted: usize) -> Self {
        Self { accepted, stop: None }
    }

    /// The first `accepted` items are on the queue. The next one cannot be submitted at all and left no trace:
    /// it fails, and the engine goes on with the rest.
    pub fn failed(accepted: usize, failure: Failure) -> Self {
        Self { accepted, stop: Some(StopReason::Failed(failure)) }
    }

    /// The device is lost, as by [`Completer::lose`].
    pub fn lost(failure: Failure) -> Self {
        Self { accepted: 0, stop: Some(StopReason::Lost(failure)) }
    }
}

/// An operation that has ended. Of consecutive operations of a queue that succeeded and left no work, only the
/// last one may be reclaimed.
#[derive(Debug)]
pub struct Ended<W> {
    /// Its point; `None` if it was not submitted.
    pub point: Option<Point>,
    /// The work of the operation.
    pub work: Option<W>,
    /// How it ended.
    pub outcome: Result<(), Failure>,
}

/// A backend's means to report completed work. Reports after the engine is gone return
/// [`CompletionError::Gone`], which means nothing. Any other error is a defect of the backend, after which work
/// might never end: the backend loses the device.
#[derive(Clone)]
pub struct Completer {
    /// One for each queue.
    keep_alives: Arc<[Weak<KeepAlive>]>,
}

impl Completer {
    pub(crate) fn new(keep_alives: Arc<[Weak<KeepAlive>]>) -> Self {
        Self { keep_alives }
    }

    /// A reference to the engine, counted with a queue.
    #[inline]
    fn keep_alive(&self, queue: usize) -> Result<Arc<KeepAlive>, CompletionError> {
        let keep_alive = self.keep_alives.get(queue).or(self.keep_alives.first());
        keep_alive.and_then(Weak::upgrade).ok_or(CompletionError::Gone)
    }

    /// Everything submitted to `queue` up to `epoch` has ended, and succeeded unless it was reported as failed.
    #[inline]
    pub fn complete(&self, queue: QueueId, epoch: u64) -> Result<(), CompletionError> {
        let _completion = trace::completion(queue.index(), epoch);
        self.keep_alive(queue.index())?.0.complete(queue, epoch, None)
    }

    /// The work at `epoch` has failed, and everything before it on the queue has ended. The queue goes on.
    pub fn fail(&self, queue: QueueId, epoch: u64, failure: Failure) -> Result<(), CompletionError> {
        let _completion = trace::completion(queue.index(), epoch);
        self.keep_alive(queue.index())?.0.complete(queue, epoch, Some(failure))
    }

    /// The queues may have capacity again.
    pub fn unblock(&self) -> Result<(), CompletionError> {
        self.keep_alive(0)?.0.unblock();
        Ok(())
    }

    /// The device is lost for good and uses nothing any more: everything on it fails with this one cause, now
    /// and later.
    pub fn lose(&self, failure: Failure) -> Result<(), CompletionError> {
        self.keep_alive(0)?.0.lose(failure);
        Ok(())
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer").finish_non_exhaustive()
    }
}

/// The right to end one host operation. Dropping it without an answer fails the operation.
pub struct HostTask {
    keep_alive: Option<Arc<KeepAlive>>,
    queue: u32,
    key: Key,
}

impl HostTask {
    pub(crate) fn new(keep_alive: Arc<KeepAlive>, queue: u32, key: Key) -> Self {
        Self { keep_alive: Some(keep_alive), queue, key }
    }

    /// The operation's queue, and its [number](crate::stall::Operation::id) there.
    pub fn operation(&self) -> (u32, u64) {
        (self.queue, self.key.id())
    }

    /// Ends the operation.
    pub fn finish(mut self, result: Result<(), Failure>) {
        if let Some(keep_alive) = self.keep_alive.take() {
            keep_alive.0.host_done(self.queue, self.key, result);
        }
    }
}

impl Drop for HostTask {
    fn drop(&mut self) {
        if let Some(keep_alive) = self.keep_alive.take() {
            let failure = Failure::new(Code::Internal, "the host operation was dropped before it ended");
            keep_alive.0.host_done(self.queue, self.key, Err(failure));
        }
    }
}

impl fmt::Debug for HostTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostTask").field("operation", &self.operation()).finish_non_exhaustive()
    }
}
