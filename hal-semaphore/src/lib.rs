// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timeline semaphores and pending queue actions for queue-based accelerators.
//!
//! An accelerator's queue runs work in order and can tell when it has, by an event that is either signalled or not.
//! Programs want more: a *timeline*, a value that only grows, on which anyone (host thread, queue, another device)
//! may signal and wait, in either order. This crate is what stands between the two. It holds operations until each
//! of their waits is reached, or covered by something their queue can wait for without the host; hands them to a
//! [`Backend`] in batches; and turns the backend's reports into signals, wake-ups and reclaimed resources.
//!
//! It decides nothing by an operating system clock, knows no device and no C ABI, and contains no unsafe code.
//!
//! # Where to look
//!
//! - [`Engine`] and its `submit`, `wait`, `cancel`, `shut_down`: the user's side. `cargo run --example walkthrough`
//!   shows what waits where, and why.
//! - [`backend`]: the contract of the device's side.
//! - [`timeline`]: where the truth about a semaphore is, and how one with its own layout, or a foreign one, takes part.
//!   [`Semaphore`] is the one here.
//! - `docs/engine.md` in the repository: owners, locks, the states of an operation and of a timepoint, and why each wait
//!   is correct.
//!
//! # A device of your own
//!
//! All that a device has to bring is here: a thread for each queue, which runs closures and reports them. It needs no
//! native waits and never is full; [`backend`] says what a device that can do more may tell the engine.
//!
//! ```
//! use hal_semaphore::backend::{Batch, Completer, Completion, DeviceSpec, NativeWaits, Submitted};
//! use hal_semaphore::{Action, Affinity, Backend, Clock, Engine, QueueId, Semaphore, SystemClock, WaitMode};
//! use std::sync::{Arc, OnceLock, mpsc};
//! use std::time::Duration;
//!
//! /// The engine keeps the work until it has ended, so the device takes out what it runs.
//! type Work = Box<dyn FnOnce() + Send>;
//!
//! struct Threads {
//!     queues: Vec<mpsc::Sender<(QueueId, u64, Option<Work>)>>,
//!     /// Where they report, as soon as there is an engine. It does not keep the engine alive.
//!     completer: Arc<OnceLock<Completer>>,
//! }
//!
//! impl Threads {
//!     fn new(count: usize) -> Self {
//!         let completer = Arc::new(OnceLock::<Completer>::new());
//!         let start = |_| {
//!             let (queue, pieces) = mpsc::channel::<(QueueId, u64, Option<Work>)>();
//!             let completer = completer.clone();
//!             // Ends when the backend is dropped, which is when the engine is gone.
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
//!     fn devices(&self) -> Vec<DeviceSpec> {
//!         let (queues, native_waits) = (self.queues.len(), NativeWaits::None);
//!         vec![DeviceSpec { queues, native_waits, peers: vec![], completion: Completion::Callback }]
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
//! let work: Work = Box::new(|| println!("the input is there"));
//! let (waits, signals) = ([(input.clone(), 1)], [(output.clone(), 1)]);
//! engine.submit(0, Affinity::queue(1), &waits, &signals, Action::Queue(work))?;
//! input.signal(1)?;
//!
//! // A deadline is a moment of the clock that is given with it.
//! let clock = SystemClock::new();
//! engine.wait(WaitMode::All, &signals, &clock, Some(clock.now() + Duration::from_secs(5)))?;
//! let (grace, limit) = (clock.now() + Duration::from_secs(1), clock.now() + Duration::from_secs(2));
//! engine.shut_down(&clock, grace, limit)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A device that has to be asked ([`Completion::Poll`](backend::Completion)) is asked by threads that wait, and by
//! [`Engine::poll`]. One that reports by descriptor is asked by the thread that watches it; the feature `reactor` has a
//! thread for it.
//!
//! # From the design to the code
//!
//! The design is that of IREE's CUDA driver rewrite. Each structure it names, and where it is:
//!
//! | in the design | here | file |
//! |---|---|---|
//! | CPU notification, `iree_event_t` | [`Wakeup`], a turn of a notification over `event-listener` | `notification.rs` |
//! | its pool, `iree_event_pool_t` | `NotificationPool` | `notification.rs` |
//! | native event, `cuda2_event_t` | [`Backend::Event`] in a counted slot | `native_event.rs` |
//! | its pool, `cuda2_event_pool_t` | `EventPool`, one for each queue that records | `native_event.rs` |
//! | timepoint, `cuda2_timepoint_t`: host wait, device wait | `Target` in an ordered `WaitList` | `engine/timeline_state.rs`, `wait_list.rs` |
//! | timepoint: device signal | `Promise`, a signal that work with a place in a queue will make | `engine/timeline_state.rs` |
//! | its pool, `cuda2_timepoint_pool_t` | none: timepoints are entries of lists whose memory stays | `wait_list.rs` |
//! | timeline semaphore, `cuda_timeline_semaphore_t` | [`Semaphore`], a counted [`Registration`](timeline::Registration); value, failure and waits are in its `TimelineState`; [`Timeline`] is what another layout implements | `engine/timeline_state.rs`, `timeline.rs`, `semaphore.rs` |
//! | queue action, `cuda2_queue_action_t` | [`Action`]; the record of one is an `Op` | `engine/mod.rs`, `engine/queue.rs` |
//! | pending queue actions, `cuda2_pending_queue_actions_t` | [`Engine`]; each queue's are in its `QueueState` | `engine/queue.rs`, `engine/work.rs` |
//! | the worker thread that drains them | none: an `DeferredWork` on each thread that brings something, and [`DeferredCallbacks`] for callbacks | `engine/deferred.rs`, `engine/deferred.rs` |
//! | advancing the timeline on a stream of its own | a [`Completer`](backend::Completer) report, off the device's queues | `engine/retire.rs` |
//!
//! # Example
//!
//! ```
//! use hal_semaphore::testing::{Job, SoftBackend, device};
//! use hal_semaphore::{Action, Affinity, Engine, Semaphore};
//!
//! let engine = Engine::new(SoftBackend::new(vec![device(2)]).eager())?;
//! let (input, output) = (Semaphore::new(&engine, 0)?, Semaphore::new(&engine, 0)?);
//! // Waits for a signal that does not exist yet.
//! let (waits, signals) = ([(input.clone(), 1)], [(output.clone(), 1)]);
//! engine.submit(0, Affinity::ANY, &waits, &signals, Action::Queue(Job::new(7)))?;
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
#[cfg(all(unix, feature = "reactor", not(any(loom, shuttle))))]
pub mod reactor;
mod ring;
mod semaphore;
mod slab;
mod sync;
pub mod testing;
pub mod timeline;
mod wait_list;

pub use adaptive_spin::AdaptiveSpin;
pub use backend::Backend;
pub use clock::{Clock, SystemClock, VirtualClock};
pub use engine::{
    Action, Cancel, DeferredCallbacks, Engine, Occupancy, Placement, Refused, Stats, WaitCounts, WaitMode,
    WithoutCallbacks,
};
pub use error::{CompletionError, EngineError, SignalError, SubmitError, Unfinished, WaitError};
pub use failure::{Code, Failure, Origin};
pub use ids::{Affinity, MAX_VALUE, Point, QueueId, Ticket, TimelineKey};
pub use notification::Wakeup;
pub use semaphore::Semaphore;
pub use timeline::Timeline;
