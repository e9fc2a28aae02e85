// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What host calls that run are to signal. A call signals its semaphores itself, so the engine does not know them.

use hal_semaphore::backend::HostTask;
use hal_semaphore::stall::{Snapshot, Step};
use parking_lot::Mutex;
use std::time::Duration;

/// How long a report waits for the lock.
const PATIENCE: Duration = Duration::from_millis(50);

/// A call: the queue and the number of its operation, and what it is to signal.
struct RunningCall {
    operation: (u32, u64),
    signals: Vec<Step>,
}

/// The calls of a device that run.
#[derive(Default)]
pub(crate) struct RunningCalls(Mutex<Vec<RunningCall>>);

impl RunningCalls {
    /// Makes a call while it is in the list.
    pub(super) fn during(&self, task: &HostTask, signals: Vec<Step>, call: impl FnOnce()) {
        let operation = task.operation();
        self.0.lock().push(RunningCall { operation, signals });
        call();
        self.0.lock().retain(|running| running.operation != operation);
    }

    /// Adds to the operations of a snapshot what they are to signal.
    pub(super) fn add_to(&self, snapshot: &mut Snapshot) {
        let Some(calls) = self.0.try_lock_for(PATIENCE) else { return };
        for RunningCall { operation: (index, id), signals } in calls.iter() {
            let queue = snapshot.queues.get_mut(*index as usize);
            let operations = queue.map(|queue| &mut queue.operations);
            if let Some(operation) = operations.and_then(|all| all.iter_mut().find(|one| one.id == *id)) {
                operation.signals.extend(signals);
            }
        }
    }
}
