//! Timeline semaphores and pending queue actions for queue-based accelerators.
#![forbid(unsafe_code)]

pub mod backend;
pub mod clock;
mod engine;
mod error;
mod failure;
mod ids;
mod native_event;
mod notification;
mod port;
#[cfg(all(unix, feature = "reactor", not(any(loom, shuttle))))]
pub mod reactor;
#[cfg(any(loom, shuttle))]
pub mod sabotage;
mod semaphore;
mod slab;
mod sync;
pub mod testing;
pub mod timeline;
mod wait_list;

pub use backend::Backend;
pub use clock::{Clock, SystemClock, VirtualClock};
pub use engine::{Action, Cancel, Engine, Occupancy, Placement, Refused, Stats, WaitCounts, WaitMode};
pub use error::{CompletionError, EngineError, SignalError, SubmitError, Unfinished, WaitError};
pub use failure::{Code, Failure, Origin};
pub use ids::{Affinity, MAX_VALUE, Point, QueueId, Ticket, TimelineKey};
pub use notification::Pending;
pub use semaphore::Semaphore;
pub use timeline::Timeline;
