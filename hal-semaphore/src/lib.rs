// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timeline semaphores and pending queue actions for queue-based accelerators.
//!
//! An accelerator's queue runs work in order and reports its end, at best by an event that is signalled or not.
//! Programs want a *timeline*: a value that only grows, on which anyone (host thread, queue, another device) may signal
//! and wait, in either order. This crate connects the two. It blocks operations until each of their waits is reached,
//! or satisfied by order without the host; hands them to a [`Backend`] in batches; and turns the backend's reports into
//! signals, wake-ups and reclaimed resources.
//!
//! It decides nothing by an operating system clock, knows no device and no C ABI, and contains no unsafe code.
//!
//! # Overview
//!
//! - [`Engine`] with its `submit` and `shut_down`, and [`Semaphore`] with its `signal` and `wait`: the user's side.
//!   `cargo run --example walkthrough` prints what some operations did and the class of each wait.
//! - [`backend`]: the device's side and its contract.
//! - [`timeline`]: the state of a semaphore, and how one with its own layout, or a foreign one, takes part.
//!   [`Semaphore`] is this crate's own.
//! - `docs/engine.md` in the repository: owners, locks, the states of operations and waits, and why each wait is
//!   correct.
//!
//! # A device of your own
//!
//! This is a complete device: a thread for each queue, which runs closures and reports them. It has no native waits and
//! is never full; [`backend`] describes what else a device may offer.
//!
//! ```
//! use hal_semaphore::backend::{Batch, Completer, Completion, DeviceSpec, NativeWaits, Submitted};
//! use hal_semaphore::{Action, Affinity, Backend, Clock, Engine, QueueId, Semaphore, SystemClock};
//! use std::sync::{Arc, OnceLock, mpsc};
//! use std::time::Duration;
//!
//! /// The engine keeps the work until it has ended; the device takes the closure out.
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
//!     type Event = ();
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
//! input.signal(1)?;
//!
//! // Deadlines are moments of the clock that is passed along.
//! let clock = SystemClock::new();
//! output.wait(1, &clock, Some(clock.now() + Duration::from_secs(5)))?;
//! let (grace, limit) = (clock.now() + Duration::from_secs(1), clock.now() + Duration::from_secs(2));
//! engine.shut_down(&clock, grace, limit)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program calls [`Engine::poll`] for a device that does not report by itself: again and again, or when its file
//! descriptor is readable ([`Completion`](backend::Completion)).
//!
//! # From the design to the code
//!
//! The design is that of IREE's CUDA driver rewrite. Its structures are these:
//!
//! - CPU notification, `iree_event_t`: [`Wakeup`], over `event-listener` (`notification.rs`). It needs no pool.
//! - Native event, `cuda2_event_t`: [`Backend::Event`], reference-counted (`native_event.rs`).
//! - Its pool, `cuda2_event_pool_t`: `EventPool`, one for each queue that records events (`native_event.rs`).
//! - Timepoint, `cuda2_timepoint_t`: of a device wait, a `Target` in an ordered `WaitList` of the timeline's state
//!   (`engine/timeline_state.rs`, `wait_list.rs`); of a host wait, an entry in the semaphore's own list
//!   (`semaphore.rs`).
//! - Timepoint of a device signal: `Promise`, a signal that queued work will make (`engine/timeline_state.rs`).
//! - Its pool, `cuda2_timepoint_pool_t`: none; timepoints are entries of lists whose memory stays
//!   (`wait_list.rs`).
//! - Timeline semaphore, `cuda_timeline_semaphore_t`: [`Semaphore`], a counted
//!   [`Registration`](timeline::Registration) of a `TimelineState`; other layouts implement [`Timeline`]
//!   (`engine/timeline_state.rs`, `timeline.rs`, `semaphore.rs`).
//! - Queue action, `cuda2_queue_action_t`: [`Action`], recorded as an `Op` (`engine/mod.rs`,
//!   `engine/op.rs`).
//! - Pending queue actions, `cuda2_pending_queue_actions_t`: [`Engine`], with a `QueueState` for each queue
//!   (`engine/queue.rs`, `engine/work_loop.rs`).
//! - The worker thread that drains them: none; each call into the engine has a `DeferredWork`, and callbacks are
//!   `Owed` (`engine/deferred_work.rs`, `engine/owed.rs`).
//! - Advancing the timeline on a stream of its own: a report through the [`Completer`](backend::Completer), not
//!   on the device's queues (`engine/retire.rs`).
//!
//! # Example
//!
//! ```
//! use hal_semaphore::testing::{Job, SoftBackend, device};
//! use hal_semaphore::{Action, Affinity, Engine, Semaphore};
//!
//! let engine = Engine::new(SoftBackend::new(device(2)).eager())?;
//! let (input, output) = (Semaphore::new(&engine, 0)?, Semaphore::new(&engine, 0)?);
//! // The operation waits for a signal that comes later.
//! let (waits, signals) = ([(input.clone(), 1)], [(output.clone(), 1)]);
//! engine.submit(Affinity::ANY, &waits, &signals, Action::Queue(Job::new(7)))?;
//! assert_eq!(output.query()?, 0);
//! input.signal(1)?;
//! assert_eq!(output.query()?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod adaptive_spin;
pub mod backend;
pub mod clock;
mod engine;
mod engine_events;
mod error;
mod failure;
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
mod wait_list;

pub use adaptive_spin::AdaptiveSpin;
pub use backend::Backend;
pub use clock::{Clock, SystemClock, VirtualClock};
pub use engine::{Action, Counts, DeferredCallbacks, Engine, Refused, WithoutCallbacks};
pub use error::{CompletionError, EngineError, SignalError, SubmitError, Unfinished, WaitError};
pub use failure::{Code, Failure, Origin};
pub use ids::{Affinity, MAX_VALUE, Point, QueueId};
pub use notification::Wakeup;
pub use semaphore::{Semaphore, Subscription};
pub use timeline::Timeline;
