// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device below an engine, for tests that see it as a driver does.

use hal_backend::{Command, Commands, Completer, Device, DeviceSpec, Failure, Job, QueueId, Rejected};
use hal_qaic::QaicDevice;
use hal_semaphore::Semaphore;
use hal_semaphore::backend::{Backend, Batch, Submitted};
use std::sync::Arc;

/// The device as the engine's backend: an operation is a command.
pub(crate) struct Bridge(pub(crate) Arc<QaicDevice>);

impl Backend for Bridge {
    type Timeline = Semaphore;
    type Work = Option<Command<QaicDevice>>;
    type Event = ();

    fn devices(&self) -> Vec<DeviceSpec> {
        vec![self.0.properties().queues]
    }

    fn start(&self, completer: Completer) {
        self.0.start(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let mut accepted = 0;
        for submission in batch.iter() {
            let command = submission.work.and_then(Option::take);
            let job = Job {
                queue,
                epoch: submission.epoch,
                waits: Default::default(),
                event: None,
                commands: Commands::Own(command.into_iter().collect()),
                observer: None,
            };
            match self.0.submit(job) {
                Ok(()) => accepted += 1,
                Err(Rejected::Full(_)) => panic!("the tests submit less than the queue takes"),
                Err(Rejected::Failed(failure)) => return Submitted::failed(accepted, failure),
                Err(Rejected::Lost(failure)) => return Submitted::lost(failure),
            }
        }
        Submitted::all()
    }

    fn abort(&self, _: usize, why: &Failure) {
        self.0.abort(why);
    }
}
