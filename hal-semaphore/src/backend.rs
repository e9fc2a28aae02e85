// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The contract between the engine and a backend: in-order queues below, and reports of what has ended.
//!
//! # The contract
//!
//! **Queues are in order.** Work that [`submit`](Backend::submit) accepts on one queue starts after the work accepted
//! before it has ended, or at least cannot tell the difference. Between queues nothing is promised. The engine
//! leans on this: a wait for something earlier in the same queue costs nothing (rule S6).
//!
//! **Native waits.** A device may be able to make one queue wait for a point of another without the host. It says
//! so by [`NativeWaits`], and with what: bare epochs (a monotonic counter per queue) or pooled event objects that
//! the engine creates, hands out, counts and recycles. A device that cannot says `None`; the engine then holds the
//! work on the host until the wait is reached.
//!
//! **Completion is reported, in queue order**, through the [`Completer`]: from any thread, from a poll that the
//! engine asked for ([`Backend::poll`]), or when a file descriptor becomes readable; even from inside `submit`. When
//! an epoch is reported its results are visible to the host and the hardware no longer touches its resources.
//! Everything accepted is reported once, failed or not; a device that cannot keep that promise is
//! [lost](Completer::lose).
//!
//! **Failed work still counts as done for native waits**: its event fires, its epoch passes, and work behind it or
//! waiting for it starts. The engine knows whose inputs were never made and fails it; a queue that hung would
//! take innocent work with it. The same holds for a lost device: peers that wait for its points must go on.
//!
//! **Ownership.** The engine owns an operation's work until it has ended; `submit` sees it by reference. It comes
//! back by value in [`Backend::reclaim`], after the signals, on each path. Several threads may be at it at once.
//!
//! **Locks.** No lock of the engine is held while backend code runs (rule S8), so a backend may call anything of
//! the engine from anywhere. `submit` is called by one thread at a time for each queue, never for the same queue
//! from inside itself, and from several threads for several queues.
//!
//! **Panics.** A backend that panics while it is called loses the device that it was working on: what it had done is unknown. On
//! a thread of its own it catches a panic itself and [loses](Completer::lose) the device; `hal-backend` has a `Reporter` for that.

pub use crate::engine::DeferredCallbacks;
use crate::engine_events::KeepAlive;
use crate::error::CompletionError;
use crate::failure::{Code, Failure};
use crate::ids::{Point, QueueId, Ticket, TimelineKey};
use crate::slab::Key;
use crate::timeline::Timeline;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// How the queues of a device can wait for each other without the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeWaits {
    /// They cannot.
    None,
    /// A queue can wait until another one has completed an epoch; nothing needs to be recorded for that.
    Epochs,
    /// A queue can wait for an event that another queue recorded; see [`Backend::create_event`].
    Events,
}

/// How a device's completions reach the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The backend calls the [`Completer`] when it learns of them.
    Callback,
    /// The engine asks with [`Backend::poll`]: threads that wait on the host do, and [`Engine::poll`](crate::Engine::poll).
    Poll,
    /// As `Poll`, when the device's [descriptor](Backend::descriptor) becomes readable: the thread that watches it calls
    /// [`Engine::poll`](crate::Engine::poll).
    Descriptor,
}

/// One device of a backend.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// How many queues it has: 1 to 64.
    pub queues: usize,
    /// How its queues wait for each other.
    pub native_waits: NativeWaits,
    /// The other devices for whose points its queues can wait natively, by the means of `native_waits`.
    pub peers: Vec<usize>,
    /// How completions are reported.
    pub completion: Completion,
}

/// The device side of the engine. See the [module documentation](self) for the contract.
pub trait Backend: Send + Sync + Sized + 'static {
    /// The timelines that operations wait for and signal.
    type Timeline: Timeline;
    /// The work of an operation: opaque to the engine.
    type Work: Send + 'static;
    /// A native event, or `()` where there are none. A handle: cheap to clone.
    type Event: Clone + Send + Sync + 'static;

    /// Whether [`observe`](Backend::observe) does anything.
    const OBSERVES: bool = false;

    /// The devices and their queues. Asked once.
    fn devices(&self) -> Vec<DeviceSpec>;

    /// The engine exists now; completions go to `completer`.
    fn start(&self, completer: Completer) {
        drop(completer);
    }

    /// Puts work on a queue, in the order of the batch, each piece after its native waits and recording its event.
    /// Must not block on the device. See [`Submitted`] for what may go wrong.
    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted;

    /// Makes one more native event for a device, unrecorded. Only called for [`NativeWaits::Events`], on the thread that
    /// issues and before the batch that records it. If it fails the device is asked for no more events: a queue that has
    /// none left records none from then on, and waits of other queues for its work are held on the host.
    fn create_event(&self, device: usize) -> Result<Self::Event, Failure> {
        Err(Failure::new(Code::Unimplemented, format!("device {device} has no native events")))
    }

    /// Runs a host operation whose waits are reached, here or elsewhere, now or later; `task` says when it has
    /// ended. Must not block for long: the thread has other operations to look after.
    fn run(&self, task: HostTask, work: Self::Work) {
        drop(work);
        task.finish(Err(Failure::new(Code::Unimplemented, "this backend runs no host operations")));
    }

    /// A [`Cleanup`](crate::Action::Cleanup) has failed for this reason, and its signals fail when `task` ends, however it does. Otherwise as
    /// [`run`](Self::run), but for the thread, which may be inside of a call of the program's.
    fn clean_up(&self, task: HostTask, work: Self::Work, why: &Failure) {
        drop(work);
        task.finish(Err(why.clone()));
    }

    /// Does an [`Early`](crate::Action::Early) operation before its waits are reached, if that can be done here and now.
    /// They are covered: what will reach them is with its device or has its place in the same queue, so the operation can
    /// count on it. Returns whether it is done; if not, it comes again to [`run`](Backend::run) when they are reached. Done
    /// or not, the work comes back in the end, as any.
    fn try_early(&self, work: &mut Self::Work) -> Result<bool, Failure> {
        let _ = work;
        Ok(false)
    }

    /// Callbacks of the program have become due on a thread that is submitting, which must not run them: it may hold a lock
    /// that they want. Implementations run them soon, on another thread, which holds none of the program's locks; this thread
    /// must not run them, nor wait for them. By default this crate keeps threads for it.
    fn defer(&self, callbacks: DeferredCallbacks) {
        callbacks.run_elsewhere();
    }

    /// Whether [reclaiming](Backend::reclaim) this work may call the program back. Then it is not done on a thread that is
    /// submitting something, and on others after everything else that they have to do.
    fn calls_back(&self, work: &Self::Work) -> bool {
        let _ = work;
        false
    }

    /// An operation is over and its signals are out; what it held can go.
    fn reclaim(&self, ended: Ended<Self::Work>) {
        drop(ended);
    }

    /// Looks for completions of a device and reports them, without blocking. Several threads may ask at once.
    fn poll(&self, device: usize) {
        let _ = device;
    }

    /// The descriptor that becomes readable when a device with [`Completion::Descriptor`] has something to report.
    /// [`poll`](Backend::poll) takes what there is and makes it unreadable again.
    #[cfg(unix)]
    fn descriptor(&self, device: usize) -> Option<std::os::fd::BorrowedFd<'_>> {
        let _ = device;
        None
    }

    /// Asks the device to stop: report everything outstanding soon, as completed or failed.
    fn abort(&self, device: usize, why: &Failure) {
        let _ = (device, why);
    }

    /// Something happened that a profiler or a person may want to see.
    fn observe(&self, transition: Transition) {
        let _ = transition;
    }
}

/// One native wait: a queue's next work starts after `point`.
#[derive(Clone, Debug)]
pub struct NativeWait<E> {
    /// The point that is waited for, which was submitted before.
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
}

impl<B: Backend> BatchItem<B> {
    /// Work of an operation that has no place yet.
    #[inline]
    pub(crate) fn of(work: Option<B::Work>) -> Self {
        let op = Key { index: 0, generation: 0 };
        Self { op, epoch: 0, work, event: None, waits: 0..0, coalesced: false }
    }
}

/// One piece of work for a queue.
#[derive(Debug)]
pub struct Submission<'a, B: Backend> {
    /// Its place in the queue: how its completion is reported.
    pub epoch: u64,
    /// The work; `None` means to wait, record and complete. What is left here the engine keeps until it has ended, and
    /// gives back by [`Backend::reclaim`]; what a device takes is its own, unless it has no room: then it puts the work back.
    pub work: &'a mut Option<B::Work>,
    /// The points that the queue waits for first, at most one of each other queue.
    pub waits: &'a [NativeWait<B::Event>],
    /// The event to record when the work is done.
    pub event: Option<&'a B::Event>,
    /// Whether the device has nothing to do with it: a [`Marker`](crate::Action::Marker) that waits for what is before it in
    /// its queue, and ends with that. It is not put on the queue, and not reported.
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
    /// How many pieces of work there are: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The work, in queue order.
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
    /// Why the rest was not accepted; if there is a rest and nothing here, there was no room.
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

    /// Nothing, if so many pieces and no fewer are on the queue.
    #[inline]
    pub(crate) fn unless_all_of(self, count: usize) -> Option<Self> {
        if self.stop.is_none() && self.accepted >= count { None } else { Some(self) }
    }

    /// The first `accepted` pieces are on the queue and there is no room for more until something of this device
    /// completes or the backend [says so](Completer::unblock). The engine keeps the rest, and offers it again then. If nothing of
    /// this device is in flight, nothing can complete: then the first piece of the rest is what the device cannot take, and
    /// fails.
    pub fn full(accepted: usize) -> Self {
        Self { accepted, stop: None }
    }

    /// The first `accepted` pieces are on the queue; the next cannot be submitted at all, and left no trace. It
    /// fails; the engine goes on with the rest.
    pub fn failed(accepted: usize, failure: Failure) -> Self {
        Self { accepted, stop: Some(StopReason::Failed(failure)) }
    }

    /// The device is gone, as by [`Completer::lose`].
    pub fn lost(failure: Failure) -> Self {
        Self { accepted: 0, stop: Some(StopReason::Lost(failure)) }
    }
}

/// An operation that is over. Of operations of a queue that have ended well, one after the other, and left no work, only the
/// last may be told of.
#[derive(Debug)]
pub struct Ended<W> {
    /// Where it ran; nothing if it never got that far.
    pub point: Option<Point>,
    /// The work of the operation.
    pub work: Option<W>,
    /// How it ended.
    pub outcome: Result<(), Failure>,
}

/// Where a backend reports what has ended. Reports after the engine is gone answer [`CompletionError::Gone`], which means nothing;
/// any other error is a defect of the backend, whose job may never end: it loses the device.
#[derive(Clone)]
pub struct Completer {
    /// One for each queue.
    keep_alives: Arc<[Weak<dyn KeepAlive>]>,
}

impl Completer {
    pub(crate) fn new(keep_alives: Arc<[Weak<dyn KeepAlive>]>) -> Self {
        Self { keep_alives }
    }

    /// The engine, by way of a queue of it.
    #[inline]
    fn keep_alive(&self, queue: usize) -> Result<Arc<dyn KeepAlive>, CompletionError> {
        let keep_alive = self.keep_alives.get(queue).or(self.keep_alives.first());
        keep_alive.and_then(Weak::upgrade).ok_or(CompletionError::Gone)
    }

    /// Everything submitted to `queue` up to `epoch` has ended, well unless reported as failed before.
    #[inline]
    pub fn complete(&self, queue: QueueId, epoch: u64) -> Result<(), CompletionError> {
        self.keep_alive(queue.index())?.engine().complete(queue, epoch, None)
    }

    /// The work at `epoch` has failed, and everything before it on the queue has ended. The queue goes on.
    pub fn fail(&self, queue: QueueId, epoch: u64, failure: Failure) -> Result<(), CompletionError> {
        self.keep_alive(queue.index())?.engine().complete(queue, epoch, Some(failure))
    }

    /// There may be room again on the queues of this device.
    pub fn unblock(&self, device: usize) -> Result<(), CompletionError> {
        self.keep_alive(0)?.engine().unblock(device)
    }

    /// The device is gone for good and no longer touches anything: everything on it fails with this one cause, now
    /// and later.
    pub fn lose(&self, device: usize, failure: Failure) -> Result<(), CompletionError> {
        self.keep_alive(0)?.engine().lose(device, failure)
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer").finish_non_exhaustive()
    }
}

/// The right to end one host operation. Dropped without an answer, the operation fails: it is never lost.
pub struct HostTask {
    keep_alive: Option<Arc<dyn KeepAlive>>,
    ticket: Ticket,
}

impl HostTask {
    pub(crate) fn new(keep_alive: Arc<dyn KeepAlive>, ticket: Ticket) -> Self {
        Self { keep_alive: Some(keep_alive), ticket }
    }

    /// The operation it stands for.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The operation has ended.
    pub fn finish(mut self, result: Result<(), Failure>) {
        if let Some(keep_alive) = self.keep_alive.take() {
            keep_alive.engine().host_done(self.ticket, result);
        }
    }
}

impl Drop for HostTask {
    fn drop(&mut self) {
        if let Some(keep_alive) = self.keep_alive.take() {
            let failure = Failure::new(Code::Internal, "the host operation was dropped before it ended");
            keep_alive.engine().host_done(self.ticket, Err(failure));
        }
    }
}

impl fmt::Debug for HostTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostTask").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// How a wait of an operation is waited for, cheapest first (rule S6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitClass {
    /// The value is reached: nothing.
    Reached,
    /// An earlier operation of the same queue reaches it: queue order, nothing.
    SameQueue {
        /// Where. If several of the queue signal the same value, this is one of them.
        producer: Point,
    },
    /// The queue already waits natively for that point or a later one of the same queue, or for work of another queue of
    /// its device that had waited for it: nothing.
    Dominated {
        /// The point that the queue waits for already.
        producer: Point,
    },
    /// Another queue of the device reaches it: the device waits, the host does not wake.
    Native {
        /// The point that the device waits for.
        producer: Point,
    },
    /// A queue of another device reaches it, and this device can wait for it.
    Peer {
        /// The point that the device waits for.
        producer: Point,
    },
    /// It is not promised yet, or not by work that can be waited for natively: the operation is held on the host.
    Blocked,
}

/// A step in the life of an operation, for profilers and people.
#[derive(Clone, Debug)]
pub enum Transition {
    /// A wait was looked at: when the operation was submitted, and again when it went to its queue.
    Wait {
        /// Whose wait.
        ticket: Ticket,
        /// For which timeline; nothing for a foreign one.
        timeline: Option<TimelineKey>,
        /// For which value.
        value: u64,
        /// How it is waited for.
        class: WaitClass,
    },
    /// The operation took its place in its queue.
    Queued {
        /// Which operation.
        ticket: Ticket,
        /// Where.
        point: Point,
    },
    /// The backend has it. One whose device was lost while it was handed over may end without that.
    Submitted {
        /// Which operation.
        ticket: Ticket,
        /// Where.
        point: Point,
    },
    /// It has ended.
    Ended {
        /// Which operation.
        ticket: Ticket,
        /// Where it ran, if it got that far.
        point: Option<Point>,
        /// How.
        outcome: Result<(), Failure>,
    },
}
