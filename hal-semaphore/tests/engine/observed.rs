// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Observed transitions: each step of an operation, in order, under the engine's own names.

use crate::fake::Fake;
use crate::rig::{broken, device, gone};
use hal_semaphore::backend::{HostTask, WaitClass};
use hal_semaphore::backend::{NativeWaits, Submitted, Transition};
use hal_semaphore::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A device with two queues. Nothing ends before it is reported.
type ObservingDevice = Fake<Semaphore, (), true>;

struct Observed {
    engine: Engine<ObservingDevice>,
    host: Arc<Mutex<Vec<HostTask>>>,
    /// The device is lost while it takes the next batch, all of which it takes.
    is_lost_inside: Arc<AtomicBool>,
    /// Operations and timelines, which tests call by their numbers.
    tickets: Vec<Ticket>,
    timelines: Vec<Semaphore>,
}

impl Observed {
    fn new(timelines: usize) -> Self {
        let (host, is_lost_inside) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let (tasks, lost) = (host.clone(), is_lost_inside.clone());
        let engine = ObservingDevice::observing(device(2, NativeWaits::Epochs))
            .on_run(move |_, task, ()| tasks.lock().unwrap().push(task))
            .on_submit(move |fake, _, _| {
                if lost.swap(false, Ordering::Relaxed) {
                    fake.completer().lose(gone()).unwrap();
                }
                Submitted::all()
            })
            .start();
        let timelines = (0..timelines).map(|_| Semaphore::new(&engine, 0).unwrap()).collect();
        Self { engine, host, is_lost_inside, tickets: Vec::new(), timelines }
    }

    /// Submits to a queue; the operation's number is how many there were before.
    fn submit(&mut self, queue: usize, waits: &[(usize, u64)], signals: &[(usize, u64)], action: Action<()>) {
        let values = |list: &[(usize, u64)]| -> Vec<(Semaphore, u64)> {
            list.iter().map(|&(number, value)| (self.timelines[number].clone(), value)).collect()
        };
        let (waits, signals) = (values(waits), values(signals));
        let placement = self.engine.submit(Affinity::queue(queue), &waits, &signals, action);
        self.tickets.push(placement.unwrap().ticket);
    }

    fn report(&self, queue: usize, epoch: u64, failure: Option<Failure>) {
        let id = self.engine.queue(queue).unwrap();
        let completer = self.engine.backend().completer();
        match failure {
            None => completer.complete(id, epoch).unwrap(),
            Some(failure) => completer.fail(id, epoch, failure).unwrap(),
        }
    }

    /// The transitions since the last call, one line each. An operation that is being submitted has the next
    /// number.
    fn lines(&self) -> Vec<String> {
        let transitions = std::mem::take(&mut *self.engine.backend().transitions.lock().unwrap());
        let op = |ticket| self.tickets.iter().position(|&other| other == ticket).unwrap();
        let place = |point: Point| format!("{}@{}", point.queue.index(), point.epoch);
        let line = |transition: &Transition| match *transition {
            Transition::Wait { ticket, timeline, value, class } => {
                let class = match class {
                    WaitClass::Reached => "reached".into(),
                    WaitClass::SameQueue { producer } => format!("behind {}", place(producer)),
                    WaitClass::Dominated { producer } => format!("dominated {}", place(producer)),
                    WaitClass::Native { producer } => format!("native {}", place(producer)),
                    WaitClass::Blocked => "blocked".to_owned(),
                };
                let known = self.timelines.iter().position(|known| known.key() == timeline);
                let timeline = known.map_or("foreign".to_owned(), |known| known.to_string());
                format!("{} waits {timeline}={value} {class}", op(ticket))
            }
            Transition::Queued { ticket, point } => format!("{} queued {}", op(ticket), place(point)),
            Transition::Submitted { ticket, point } => format!("{} submitted {}", op(ticket), place(point)),
            Transition::Ended { ticket, point, ref outcome } => {
                let outcome = if outcome.is_ok() { "well" } else { "failed" };
                format!("{} ended {outcome} {}", op(ticket), point.map_or("nowhere".to_owned(), place))
            }
        };
        transitions.iter().map(line).collect()
    }
}

const JOB: Action<()> = Action::Queue(());

/// The class of each wait is observed when the operation is submitted and again when it goes to its queue; a
/// later operation of the same name has another ticket.
#[test]
fn steps_of_an_operation_are_observed_in_order() {
    let mut it = Observed::new(2);
    it.submit(0, &[], &[(0, 1)], JOB);
    assert_eq!(it.lines(), ["0 queued 0@1", "0 submitted 0@1"]);
    it.submit(0, &[(0, 1)], &[(1, 1)], JOB);
    assert_eq!(
        it.lines(),
        ["1 waits 0=1 behind 0@1", "1 queued 0@2", "1 waits 0=1 behind 0@1", "1 submitted 0@2"]
    );
    it.submit(1, &[(1, 1)], &[], JOB);
    assert_eq!(
        it.lines(),
        ["2 waits 1=1 native 0@2", "2 queued 1@1", "2 waits 1=1 native 0@2", "2 submitted 1@1"]
    );
    it.submit(1, &[(0, 1)], &[], JOB);
    assert_eq!(
        it.lines(),
        ["3 waits 0=1 dominated 0@1", "3 queued 1@2", "3 waits 0=1 dominated 0@1", "3 submitted 1@2"]
    );
    it.report(0, 1, None);
    it.report(0, 2, Some(broken("parity")));
    assert_eq!(it.lines(), ["0 ended well 0@1", "1 ended failed 0@2"]);
    it.submit(0, &[(0, 1)], &[], JOB);
    assert_eq!(it.lines(), ["4 waits 0=1 reached", "4 queued 0@3", "4 submitted 0@3"]);
}

/// A blocked wait is observed as blocked, and again with its class when the operation goes to its queue. An
/// operation that is never queued ends nowhere.
#[test]
fn blocked_and_pending_operations_are_observed() {
    let mut it = Observed::new(2);
    it.submit(0, &[(0, 2)], &[], JOB);
    it.submit(0, &[(1, 1)], &[], JOB);
    it.submit(0, &[(0, 2)], &[], Action::Host(()));
    assert_eq!(it.lines(), ["0 waits 0=2 blocked", "1 waits 1=1 blocked", "2 waits 0=2 blocked"]);
    it.timelines[0].signal(2).unwrap();
    let lines = it.lines();
    assert_eq!(lines, ["0 queued 0@1", "0 waits 0=2 reached", "0 submitted 0@1"]);
    assert!(it.timelines[1].fail(broken("given up")));
    assert_eq!(it.lines(), ["1 ended failed nowhere"]);
    let task = it.host.lock().unwrap().pop().unwrap();
    task.finish(Ok(()));
    assert_eq!(it.lines(), ["2 ended well nowhere"]);
}

/// A queue waits natively for two jobs already, each of which signals the next operation's wait. The first of
/// them is named: no more is needed.
#[test]
fn wait_that_costs_nothing_names_the_first_signal_that_is_enough() {
    let mut it = Observed::new(1);
    it.submit(1, &[], &[(0, 1)], JOB);
    it.submit(1, &[], &[(0, 2)], JOB);
    it.submit(0, &[(0, 2)], &[], JOB);
    it.lines();
    it.submit(0, &[(0, 1)], &[], JOB);
    let lines = ["3 waits 0=1 dominated 1@1", "3 queued 0@2", "3 waits 0=1 dominated 1@1"];
    assert_eq!(it.lines()[..3], lines);
}

/// The same for signals of the queue itself: the wait names the operation that makes the value, not a later
/// one.
#[test]
fn wait_satisfied_by_queue_order_names_no_later_signal_than_it_needs() {
    let mut it = Observed::new(1);
    for value in 1..=3 {
        it.submit(0, &[], &[(0, value)], JOB);
    }
    it.lines();
    for value in 1..=3 {
        it.submit(0, &[(0, value)], &[], JOB);
        let line = format!("{} waits 0={value} behind 0@{value}", it.tickets.len() - 1);
        assert_eq!(it.lines()[0], line);
    }
}

/// A device accepts a job and is lost before it has answered. The job ends with the loss, and is not observed
/// as submitted, by the fast path or after it was blocked.
#[test]
fn job_whose_device_is_lost_during_submit_ends_and_is_not_submitted() {
    for waits in [&[][..], &[(0, 1)]] {
        let mut it = Observed::new(2);
        it.is_lost_inside.store(true, Ordering::Relaxed);
        it.submit(0, waits, &[(1, 1)], JOB);
        it.timelines[0].signal(1).unwrap();
        let mut lines = it.lines();
        lines.retain(|line| !line.contains("waits"));
        assert_eq!(lines, ["0 queued 0@1", "0 ended failed 0@1"], "{waits:?}");
        assert!(it.timelines[1].query().is_err());
    }
}

/// A wait for a timeline of another engine has no key, at any step.
#[test]
fn waits_for_foreign_timelines_have_no_name() {
    let mut it = Observed::new(0);
    let elsewhere = Observed::new(1);
    it.timelines.push(elsewhere.timelines[0].clone());
    it.submit(0, &[(0, 1)], &[], JOB);
    it.timelines[0].signal(1).unwrap();
    it.timelines.clear();
    assert_eq!(
        it.lines(),
        ["0 waits foreign=1 blocked", "0 queued 0@1", "0 waits foreign=1 reached", "0 submitted 0@1"]
    );
}

/// A timeline has a key of its own, also if the engine reuses the state of a dropped one, from which it
/// inherits nothing.
#[test]
fn new_timeline_inherits_nothing_from_a_dropped_one() {
    let mut it = Observed::new(0);
    let gone = Semaphore::new(&it.engine, 0).unwrap();
    gone.signal(7).unwrap();
    let key = gone.key();
    drop(gone);
    it.timelines.push(Semaphore::new(&it.engine, 3).unwrap());
    assert_eq!(it.timelines[0].query().unwrap(), 3);
    assert_ne!(it.timelines[0].key(), key);
    it.submit(0, &[(0, 5)], &[], JOB);
    assert_eq!(it.lines(), ["0 waits 0=5 blocked"]);
}
