// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A backend that implements what it must and nothing else: what is done in place of the rest (rules S5, S8).

use crate::rig::{LIMIT, device};
use hal_semaphore::backend::{Backend, Batch, Completer, DeviceSpec, NativeWaits, Submitted};
use hal_semaphore::*;
use std::sync::{OnceLock, mpsc};

/// A device whose work ends when the test says so.
#[derive(Default)]
struct Plain(OnceLock<Completer>);

impl Backend for Plain {
    type Timeline = Semaphore;
    type Work = ();
    type Event = ();

    fn device(&self) -> DeviceSpec {
        device(1, NativeWaits::None)
    }

    fn start(&self, completer: Completer) {
        let _ = self.0.set(completer);
    }

    fn submit(&self, _queue: QueueId, _batch: &mut Batch<'_, Self>) -> Submitted {
        Submitted::all()
    }
}

/// Reports the first job.
fn report(engine: &Engine<Plain>) {
    engine.backend().0.get().unwrap().complete(engine.queue(0).unwrap(), 1).unwrap();
}

/// It runs nothing on the host, and nothing early: such an operation fails when its waits are reached, and says why.
#[test]
fn host_operation_is_unimplemented() {
    let engine = Engine::new(Plain::default()).unwrap();
    let [x, y, z] = [0; 3].map(|value| Semaphore::new(&engine, value).unwrap());
    let submit = |waits: &[(Semaphore, u64)], signal: &Semaphore, action| {
        engine.submit(Affinity::ANY, waits, &[(signal.clone(), 1)], action).unwrap();
    };
    submit(&[], &x, Action::Queue(()));
    submit(&[(x.clone(), 1)], &y, Action::Host(()));
    submit(&[(x.clone(), 1)], &z, Action::Early(()));
    report(&engine);
    for semaphore in [&y, &z] {
        assert_eq!(semaphore.query().unwrap_err().code(), Code::Unimplemented);
    }
}

/// A job signals a timeline of its engine and one of another engine. The callback on the second waits for the
/// callback on the first, which another thread runs.
#[test]
fn deferred_callbacks_run_on_another_thread() {
    let [engine, other] = [(), ()].map(|()| Engine::new(Plain::default()).unwrap());
    let (here, there) = (Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&other, 0).unwrap());
    let (called, is_called) = mpsc::channel();
    let (waited, has_waited) = mpsc::channel();
    let _there = there.subscribe(1, move |_| waited.send(is_called.recv_timeout(LIMIT)).unwrap());
    let _here = here.subscribe(1, move |_| called.send(()).unwrap());
    let signals = [(here.clone(), 1), (there.clone(), 1)];
    engine.submit(Affinity::ANY, &[], &signals, Action::Queue(())).unwrap();
    report(&engine);
    assert_eq!(has_waited.recv().unwrap(), Ok(()));
}
