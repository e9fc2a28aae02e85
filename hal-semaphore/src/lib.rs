// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timeline semaphores over queues that run work in order: waits before signals, across queues, devices and the host.
//!
//! A device's queue runs work in order and reports what has ended, by a fence, an interrupt or a poll. Programs want a
//! *timeline*: a value that only grows, on which anyone (host thread, queue, another device) may signal and wait, in
//! either order. This crate connects the two. It blocks operations until each of their waits is reached, or satisfied
//! by order without the host; hands them to a [`Backend`] in batches; and turns the backend's reports into signals,
//! wake-ups and released resources.
//!
//! It has no unsafe code, no thread for each queue, no executor, and reads no clock but the one that it is passed.
//!
//! # The whole of it
//!
//! A device is what implements [`Backend`]: here a thread for each queue, which runs closures and reports them. The
//! program below it makes an [`Engine`] of the device, submits an operation that waits for a value to come, and waits
//! for what the operation signals.
//!
//! ```
//! use hal_semaphore::backend::{Batch, Completer, Completion, DeviceSpec, NativeWaits, Submitted};
//! use hal_semaphore::{Action, Affinity, Backend, Clock, Engine, QueueId, Semaphore, SystemClock};
//! use std::sync::{Arc, OnceLock, mpsc};
//! use std::time::Duration;
//!
//! /// What an operation does. The engine keeps it until it has ended; this device takes the closure out.
//! type Work = Box<dyn FnOnce() + Send>;
//!
//! struct Threads {
//!     queues: Vec<mpsc::Sender<(QueueId, u64, Option<Work>)>>,
//!     /// Set when the engine starts. It does not keep the engine alive.
//!     completer: Arc<OnceLock<Completer>>,
//! }
//!
//! impl Threads {
//!     fn new(count: usize) -> Self {
//!         let completer = Arc::new(OnceLock::<Completer>::new());
//!         let start = |_| {
//!             let (queue, pieces) = mpsc::channel::<(QueueId, u64, Option<Work>)>();
//!             let completer = completer.clone();
//!             // Ends when the engine drops the backend.
//!             std::thread::spawn(move || {
//!                 for (queue, epoch, work) in pieces {
//!                     work.into_iter().for_each(|work| work());
//!                     // Everything of this queue up to `epoch` has ended. `fail` reports a failure. An error
//!                     // here means that the engine is gone.
//!                     completer.get().map(|completer| completer.complete(queue, epoch));
//!                 }
//!             });
//!             queue
//!         };
//!         Self { queues: (0..count).map(start).collect(), completer: completer.clone() }
//!     }
//! }
//!
//! impl Backend for Threads {
//!     type Timeline = Semaphore;
//!     type Work = Work;
//!     type Event = (); // No native events: one queue waits for another through the host.
//!
//!     fn device(&self) -> DeviceSpec {
//!         let (queues, native_waits) = (self.queues.len(), NativeWaits::None);
//!         DeviceSpec { queues, native_waits, completion: Completion::Callback }
//!     }
//!
//!     fn start(&self, completer: Completer) {
//!         let _ = self.completer.set(completer);
//!     }
//!
//!     /// The waits of these pieces are over. An epoch is a piece's number in its queue, by which it is reported.
//!     fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
//!         for piece in batch.iter().filter(|piece| !piece.coalesced) {
//!             let work = piece.work.take();
//!             let _ = self.queues[queue.index()].send((queue, piece.epoch, work));
//!         }
//!         Submitted::all()
//!     }
//! }
//!
//! let engine = Engine::new(Threads::new(2))?;
//! let (input, output) = (Semaphore::new(&engine, 0)?, Semaphore::new(&engine, 0)?);
//! let work: Work = Box::new(|| println!("the input has arrived"));
//! let (waits, signals) = ([(input.clone(), 1)], [(output.clone(), 1)]);
//! engine.submit(Affinity::queue(1), &waits, &signals, Action::Queue(work))?;
//! input.signal(1)?; // After the wait for it: the operation goes to the device here.
//!
//! // Deadlines are moments of the clock that is passed along, counted from its start.
//! let clock = SystemClock::new();
//! output.wait(1, &clock, Some(clock.now() + Duration::from_secs(5)))?;
//! let (grace, limit) = (clock.now() + Duration::from_secs(1), clock.now() + Duration::from_secs(2));
//! engine.shut_down(&clock, grace, limit)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What to reach for
//!
//! | you want | use |
//! |---|---|
//! | queues that wait for each other without the host | [`NativeWaits`], and a piece's [`waits`] |
//! | a device that is polled, or has a file descriptor | [`Completion`](backend::Completion); see below |
//! | an operation on any queue | [`Affinity::ANY`]: the queue of its waits, or the least busy one |
//! | a device that is full, refuses an operation or is lost | [`Submitted`], [`Completer`] |
//! | to signal several timelines, or wait for several | longer lists of waits and signals; [`Action::Barrier`] |
//! | a callback, or a future | [`Semaphore::subscribe`]; `Semaphore::reached`, with the feature `futures` |
//! | what failed, and why | the [`Failure`] that a query or a wait returns: everything with one cause shares it |
//! | an error to end what waits for it | [`Semaphore::fail`] |
//! | to know why nothing moves | [`Engine::snapshot`] and [`stall::Report`] |
//! | an end in bounded time | [`Engine::shut_down`]; dropping the engine also ends what has not begun |
//! | a semaphore of your own, or of another driver | [`Timeline`] |
//! | tests without threads, sleeps or a device | [`VirtualClock`], [`testing::SoftBackend`] |
//!
//! [`NativeWaits`]: backend::NativeWaits
//! [`waits`]: backend::Submission::waits
//! [`Submitted`]: backend::Submitted
//! [`Completer`]: backend::Completer
//!
//! A program polls a device that does not report by itself: it calls [`Engine::poll`] while something is under way. A
//! wait does not.
//!
//! [`backend`] is the contract of a device. An operation's resources belong in its [`Work`](Backend::Work): it comes
//! back in [`Backend::reclaim`], or is dropped, after the operation has ended, also when a failure, a shutdown or a
//! lost device ends it.
//!
//! `cargo run --example walkthrough` prints what some operations did and what their waits cost. In the repository,
//! `hal-semaphore/vulkan` is a backend over Vulkan's queues and fences, and `docs/engine.md` explains why each wait is
//! correct.
//!
//! # Features
//!
//! Both are off by default, and cost nothing then.
//!
//! - `futures`: `Semaphore::reached` is a wait that is a `Future`, for any executor.
//! - `tracing`: spans of the crate `tracing` for each operation, at the level `DEBUG` and under the target
//!   `hal_semaphore`. `operation` (kind, waits, signals, queue, epoch) has in it `submission` (the call), `wait` (until
//!   the device gets it), `device` or `host`, and an event: `completed`, or the warning `failed` with the cause.
//!   `completion` is a backend's report, with everything that it releases.
//!   `cargo run --features tracing --example traced` prints some. A subscriber is called without a lock.
#![forbid(unsafe_code)]

mod adaptive_spin;
pub mod backend;
pub mod clock;
mod engine;
mod engine_events;
mod error;
mod failure;
#[cfg(feature = "futures")]
mod future;
mod ids;
#[cfg(any(loom, shuttle))]
pub mod mutation;
#[cfg(not(any(loom, shuttle)))]
mod mutation;
mod native_event;
mod notification;
mod ring;
mod semaphore;
mod slab;
pub mod stall;
mod sync;
pub mod testing;
pub mod timeline;
mod trace;
mod wait_list;

pub use adaptive_spin::AdaptiveSpin;
pub use backend::Backend;
pub use clock::{Clock, SystemClock, VirtualClock};
pub use engine::{Action, Counts, DeferredCallbacks, Engine, Refused, WithoutCallbacks};
pub use error::{CompletionError, EngineError, SignalError, SubmitError, Unfinished, WaitError};
pub use failure::{Code, Failure, Origin};
#[cfg(feature = "futures")]
pub use future::Reached;
pub use ids::{Affinity, MAX_VALUE, Point, QueueId};
pub use notification::Wakeup;
pub use semaphore::{Semaphore, Subscription};
pub use timeline::Timeline;
