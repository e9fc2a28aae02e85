// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Why nothing moves: what the operations of engines wait for, and who is to end that.
//!
//! [`Engine::snapshot`](crate::Engine::snapshot) walks over the operations of an engine that have not ended and
//! returns plain data, a [`Snapshot`]. A [`Report`] has the snapshots of all devices of a process, finds the
//! [causes](Cause), and is printed as text or as JSON. An engine keeps nothing for that: while no snapshot is taken,
//! it costs nothing.
//!
//! A program collects the snapshots, and, if it wants them in the report, its own [waits](Process::host_waits):
//!
//! ```
//! use hal_semaphore::stall::{Device, Process, Report};
//! use hal_semaphore::testing::{SoftBackend, device};
//! use hal_semaphore::{Action, Affinity, Engine, Semaphore};
//!
//! let engine = Engine::new(SoftBackend::new(device(1)))?;
//! let (input, output) = (Semaphore::new(&engine, 0)?, Semaphore::new(&engine, 0)?);
//! engine.submit(Affinity::ANY, &[(input.clone(), 3)], &[(output.clone(), 1)], Action::Barrier)?;
//!
//! let look = || {
//!     let device = Device { name: "acme://0".to_owned(), snapshot: engine.snapshot(true) };
//!     Process { devices: vec![device], ..Process::default() }
//! };
//! // A pause between the looks, here none, says what stands still for as long.
//! let report = Report::of(&look(), look(), &look()).to_string();
//! assert!(report.contains("waits for semaphore 0 to reach 3; it is at 0; nobody has promised 3"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What can be relied on
//!
//! A snapshot takes one lock at a time, each for a few operations, and tries for each lock a bounded number of times:
//! a thread that is stuck with a lock does not make the snapshot stuck ([`Queue::is_locked`]). So it is not the state
//! of one moment. A report is made of three snapshots in a row ([`Report::of`]) and makes claims only about what stood
//! still: an operation is named as blocked if all three have it in the same state, and nobody has promised a value if
//! the middle one has no such promise, and the last one finds the value not reached.
//!
//! # Deadlocks
//!
//! A wait can be ended by each operation that signals its value or a larger one, an operation ends if all of its waits
//! have ended and its queue has come to it. What does not end even if devices, the host and other drivers do all that
//! they may is in a [cycle](Reason::Cycle), or waits for one.

mod analysis;
mod json;
mod text;

pub use analysis::Report;

use crate::failure::Failure;
use crate::timeline::Timeline;
use std::collections::HashMap;
use std::time::Duration;

/// The name of a timeline in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimelineName {
    /// A timeline of an engine of this crate: the engine's number in the process, and the timeline's in the engine.
    Numbered {
        /// The engine, as in [`Snapshot::engine`].
        engine: u32,
        /// The timeline, counted from 0.
        number: u64,
    },
    /// A timeline of another driver, by its [identity](Timeline::identity).
    Foreign(usize),
}

impl TimelineName {
    /// The name of a timeline.
    pub fn of<T: Timeline>(timeline: &T) -> Self {
        match timeline.registration() {
            Some(registration) => registration.name(),
            None => Self::Foreign(timeline.identity()),
        }
    }

    /// The engine of the timeline, if it is one of this crate.
    #[inline]
    pub fn engine(self) -> Option<u32> {
        match self {
            Self::Numbered { engine, .. } => Some(engine),
            Self::Foreign(_) => None,
        }
    }
}

/// A timeline and a value of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The timeline.
    pub timeline: TimelineName,
    /// The value.
    pub value: u64,
}

/// The operations of an engine that have not ended.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The engine's number in this process.
    pub engine: u32,
    /// Why the device is lost, if it is.
    pub lost: Option<Failure>,
    /// The engine takes no more work.
    pub is_closing: bool,
    /// The queues, in their order.
    pub queues: Vec<Queue>,
    /// Steps of foreign timelines that operations have made and that their drivers do not have yet.
    pub undelivered: Vec<UndeliveredSteps>,
    /// Callbacks, notifications and deliveries that are due or run.
    pub callbacks: u64,
}

/// A queue and its operations.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// The queue's number.
    pub index: u32,
    /// Its lock was not free, however often the snapshot tried: the rest of this is not known.
    pub is_locked: bool,
    /// The device had no room for its next operation.
    pub is_full: bool,
    /// A thread is inside of [`Backend::submit`](crate::Backend::submit) for it, or about to be.
    pub is_submitting: bool,
    /// A thread has ended operations of it, and may have yet to show what they signal.
    pub is_ending: bool,
    /// The last epoch that its device has accepted.
    pub submitted: u64,
    /// The last epoch that its device has reported.
    pub reported: u64,
    /// The operations: those with an epoch first, in queue order.
    pub operations: Vec<Operation>,
    /// How many more there are. A snapshot has the first 65,536.
    pub omitted: usize,
}

/// An operation that has not ended.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its number, which no other operation of the queue has.
    pub id: u64,
    /// Its number in the queue's order, if it has its place there.
    pub epoch: Option<u64>,
    /// How far it is.
    pub stage: Stage,
    /// What it does, in a few words of the backend or the engine.
    pub text: String,
    /// Its waits that are not over.
    pub waits: Vec<Wait>,
    /// What it signals when it ends.
    pub signals: Vec<Step>,
    /// How long it has been in this stage at least, if somebody has watched it.
    pub age: Option<Duration>,
    /// Whether it is in this stage in all snapshots of a report.
    pub stands: bool,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It is kept on the host until its waits are reached, or promised by work that its queue can wait for.
    Blocked,
    /// A thread is about to go on with it: to give it its place, or to register its waits with other drivers.
    Ready,
    /// It has its place in its queue, and the device has not seen it.
    Queued,
    /// A thread hands it to the device.
    Submitting,
    /// The device has it.
    OnDevice,
    /// It ends with the work before it in its queue.
    BehindDevice,
    /// The device has reported it, and something that it waited for has not ended.
    Reported,
    /// The host runs it.
    OnHost,
}

impl Stage {
    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Ready => "ready",
            Self::Queued => "queued",
            Self::Submitting => "submitting",
            Self::OnDevice => "on_device",
            Self::BehindDevice => "behind_device",
            Self::Reported => "reported",
            Self::OnHost => "on_host",
        }
    }
}

/// A wait that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The timeline and the value that is waited for.
    pub step: Step,
    /// The value that the timeline has, if it is known.
    pub reached: Option<u64>,
    /// The queue of the same engine, and the epoch there, whose end is enough, if the wait was left to queue order or
    /// to the device.
    pub behind: Option<(u32, u64)>,
}

impl Wait {
    /// True if the value is reached, and only the notification is missing: the timeline is foreign.
    pub fn is_reached(&self) -> bool {
        self.reached.is_some_and(|reached| reached >= self.step.value)
    }
}

/// Steps of a foreign timeline that its driver does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndeliveredSteps {
    /// The timeline, always as [`TimelineName::Foreign`].
    pub timeline: TimelineName,
    /// A thread is inside of the other driver, or of a callback that this calls.
    pub is_delivering: bool,
    /// The steps behind that.
    pub waiting: usize,
    /// Whether all snapshots of a report have steps of this timeline.
    pub stands: bool,
}

/// A wait of the host: a thread that sleeps, a callback, a descriptor, or an operation of another driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWait {
    /// The timeline and the value that is waited for.
    pub step: Step,
    /// The value that the timeline has.
    pub reached: u64,
    /// How many wait for that.
    pub count: usize,
    /// How long they have waited at least, if somebody has watched them.
    pub age: Option<Duration>,
}

/// A device of a process.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// Its name, such as `gaudi://0`.
    pub name: String,
    /// Its operations.
    pub snapshot: Snapshot,
}

/// What a process looks like at about one moment.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its devices.
    pub devices: Vec<Device>,
    /// The waits of the host for timelines of its devices.
    pub host_waits: Vec<HostWait>,
    /// The addresses of timelines, for programs that know them by that.
    pub addresses: HashMap<TimelineName, usize>,
}

/// Where an operation is in a [`Process`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The number of the device in [`Process::devices`].
    pub device: usize,
    /// The number of the queue in [`Snapshot::queues`].
    pub queue: usize,
    /// The number in [`Queue::operations`].
    pub operation: usize,
}

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// An operation.
    Operation(Place),
    /// The host: the number in [`Process::host_waits`].
    Host(usize),
}

/// Why something stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nobody has promised the value: no operation of this process's devices signals it.
    Unpromised {
        /// The first of those that wait.
        waiter: Waiter,
        /// What is waited for.
        step: Step,
        /// The value that the timeline has, if it is known.
        reached: Option<u64>,
    },
    /// Operations wait for each other, each for the next, and the last for the first.
    Cycle(Vec<Place>),
    /// The device has the operation. Everything before it in its queue has ended.
    Device(Place),
    /// The host runs the operation.
    Host(Place),
    /// A thread is inside of the backend's submission for the queue.
    Submission {
        /// The number of the device.
        device: usize,
        /// The number of the queue.
        queue: usize,
    },
    /// A queue's lock was never free.
    Lock {
        /// The number of the device.
        device: usize,
        /// The number of the queue.
        queue: usize,
    },
    /// An operation could go on, and the thread that works for its queue does not come to it.
    Thread(Place),
    /// The value is reached, and who waits for it was not notified: the thread that is to do that may be inside of a
    /// callback.
    Notification {
        /// The first of those that wait.
        waiter: Waiter,
        /// What was waited for.
        step: Step,
    },
    /// A driver does not return from a signal of its own timeline, or a callback that this calls does not.
    Delivery {
        /// The number of the device whose operation signals.
        device: usize,
        /// The timeline.
        timeline: TimelineName,
    },
}

/// A reason, and how much it holds up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Why something stands still.
    pub reason: Reason,
    /// How many operations, and waits of the host, stand still for this reason.
    pub holds_up: usize,
}
