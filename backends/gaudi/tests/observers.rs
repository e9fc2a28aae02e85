// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An observer of a card's jobs is notified in their order, before they are complete, and may use the card meanwhile.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use emulator_testbench::{PanicAt, Testbench, assert_panic_loses, until_known};
use hal_backend::{Command, Device, Failure, MemoryRequest, Observer, Pattern, Place, Span};
use hal_gaudi::GaudiDevice;
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;
use support::{both, open};

fn fill(memory: &Arc<hal_gaudi::memory::Memory>) -> Command<GaudiDevice> {
    let target = Span { place: Place::Device(memory.clone(), 0), length: 4096 };
    Command::Fill { target, pattern: Pattern::new(&[7]).unwrap() }
}

/// Puts another job on the card from within each of its first notifications.
struct Busy {
    bench: OnceLock<Weak<Testbench<GaudiDevice>>>,
    memory: Arc<hal_gaudi::memory::Memory>,
    calls: Mutex<Vec<&'static str>>,
}

impl Busy {
    fn record(&self, what: &'static str) {
        self.calls.lock().unwrap().push(what);
        if self.calls.lock().unwrap().len() <= 2
            && let Some(bench) = self.bench.get().and_then(Weak::upgrade)
        {
            let _ = bench.submit(0, fill(&self.memory));
        }
    }
}

impl Observer for Busy {
    fn command(&self, _: usize, begin: u64, end: u64) {
        assert!(begin <= end);
        self.record("command");
    }

    fn job(&self, begin: u64, end: u64, outcome: Result<(), &Failure>) {
        assert!(begin <= end && outcome.is_ok());
        self.record("job");
    }
}

#[test]
fn observer_of_a_job_may_submit_another_one() {
    for uri in both() {
        let (sender, receiver) = mpsc::channel();
        let name = uri.clone();
        std::thread::spawn(move || {
            let device = Arc::new(open(&uri));
            let memory = Arc::new(device.allocate(&MemoryRequest::new(0, 4096)).unwrap());
            let busy =
                Arc::new(Busy { bench: OnceLock::new(), memory: memory.clone(), calls: Mutex::default() });
            let bench = Arc::new(Testbench::observed(device, busy.clone()));
            busy.bench.set(Arc::downgrade(&bench)).unwrap();
            until_known(&bench.submit(0, fill(&memory))).unwrap();
            let known = busy.calls.lock().unwrap()[..2].to_vec();
            sender.send(known).unwrap();
            // Behind what the observer has submitted.
            until_known(&bench.submit(0, fill(&memory))).unwrap();
            sender.send(busy.calls.lock().unwrap().clone()).unwrap();
        });
        let soon = Duration::from_secs(60);
        let known = receiver.recv_timeout(soon).unwrap_or_else(|_| panic!("gaudi://{name}: nothing ends"));
        assert_eq!(known, ["command", "job"], "gaudi://{name}: before it is known to be complete");
        let all = receiver.recv_timeout(soon).unwrap_or_else(|_| panic!("gaudi://{name}: nothing ends"));
        assert_eq!(all, ["command", "job"].repeat(4), "gaudi://{name}");
    }
}

#[test]
fn thread_that_panics_loses_the_card() {
    for uri in both() {
        for told in [PanicAt::Command, PanicAt::Job] {
            assert_panic_loses(open(&uri), told, "gaudi-", emulator_testbench::fill);
        }
    }
}
