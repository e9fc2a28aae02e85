// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A few operations on two queues, with each of their steps and the class of each wait.
//!
//! Run with `cargo run -p hal-semaphore --example walkthrough`. The device is software and moves one step at a
//! time, so that each line below has one cause.

use hal_semaphore::backend::{Transition, WaitClass};
use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::{
    Action, Affinity, Code, Engine, Failure, Semaphore, SystemClock, Ticket, Timeline, TimelineKey,
    VirtualClock, WaitMode,
};
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

/// Names for the engine's tickets and keys.
#[derive(Default)]
struct Story {
    operations: HashMap<Ticket, &'static str>,
    timelines: HashMap<TimelineKey, &'static str>,
    classes: HashMap<(Ticket, Option<TimelineKey>), WaitClass>,
}

impl Story {
    fn print(&mut self, engine: &Engine<SoftBackend>) {
        for transition in engine.backend().take_transitions() {
            match transition {
                Transition::Wait { ticket, timeline, value, class } => {
                    // The engine classifies at submission and again when the operation goes to its device; the
                    // second class is news only if it differs.
                    if self.classes.insert((ticket, timeline), class) != Some(class) {
                        let timeline = timeline.and_then(|key| self.timelines.get(&key)).unwrap_or(&"?");
                        println!("    {} waits for {timeline} >= {value}: {}", self.name(ticket), why(class));
                    }
                }
                Transition::Queued { ticket, point } => {
                    println!("    {} is number {} of {}", self.name(ticket), point.epoch, point.queue);
                }
                Transition::Submitted { ticket, point } => {
                    println!("    {} went to {}", self.name(ticket), point.queue)
                }
                Transition::Ended { ticket, outcome: Ok(()), .. } => {
                    println!("    {} ended well", self.name(ticket))
                }
                Transition::Ended { ticket, outcome: Err(failure), .. } => {
                    println!("    {} failed: {failure}", self.name(ticket));
                }
            }
        }
    }

    fn name(&self, ticket: Ticket) -> &'static str {
        self.operations.get(&ticket).unwrap_or(&"?")
    }
}

fn why(class: WaitClass) -> String {
    match class {
        WaitClass::Reached => "reached, nothing to wait for".into(),
        WaitClass::SameQueue { producer } => format!("queue order does it, after number {}", producer.epoch),
        WaitClass::Dominated { producer } => format!("the queue waits for {} already", producer.queue),
        WaitClass::Native { producer } => {
            format!("the device waits for {}, the host does not wake", producer.queue)
        }
        WaitClass::Blocked => "not promised yet, blocked on the host".into(),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(SoftBackend::new(device(2)))?;
    let mut story = Story::default();
    let mut semaphore = |name| -> Result<Semaphore, Box<dyn Error>> {
        let semaphore = Semaphore::new(&engine, 0)?;
        if let Some(key) = semaphore.key() {
            story.timelines.insert(key, name);
        }
        Ok(semaphore)
    };
    let (input, middle, output) = (semaphore("input")?, semaphore("middle")?, semaphore("output")?);
    let (other, never) = (semaphore("other")?, semaphore("never")?);
    let submit = |story: &mut Story,
                  name: &'static str,
                  queue: usize,
                  waits: &[(Semaphore, u64)],
                  signals: &[(Semaphore, u64)],
                  job: Job|
     -> Result<(), Box<dyn Error>> {
        let placed = engine.submit(Affinity::queue(queue), waits, signals, Action::Queue(job))?;
        story.operations.insert(placed.ticket, name);
        story.print(&engine);
        Ok(())
    };

    println!("1. Three operations are submitted before anything they wait for exists.");
    submit(&mut story, "load", 0, &[(input.clone(), 1)], &[(middle.clone(), 1)], Job::new(1))?;
    submit(&mut story, "multiply", 0, &[(middle.clone(), 1)], &[(middle.clone(), 2)], Job::new(2))?;
    submit(&mut story, "store", 1, &[(middle.clone(), 2)], &[(output.clone(), 1)], Job::new(3))?;

    println!("2. The host signals input. Everything goes to the device at once, though nothing has run.");
    input.signal(1)?;
    story.print(&engine);

    println!("3. The device runs them and reports.");
    engine.backend().run_until_idle();
    story.print(&engine);
    engine.wait(WaitMode::All, &[(output.clone(), 1)], &SystemClock::new(), Some(Duration::from_secs(1)))?;
    println!("    output is at {}", output.query()?);

    println!("4. An operation fails. What depends on it fails with its cause; what does not goes on.");
    let parity = Failure::new(Code::DataLoss, "parity error in bank 3");
    submit(&mut story, "load", 0, &[], &[(middle.clone(), 3)], Job::failing(4, parity))?;
    submit(&mut story, "store", 1, &[(middle.clone(), 3)], &[(output.clone(), 2)], Job::new(5))?;
    submit(&mut story, "other", 0, &[], &[(other.clone(), 1)], Job::new(6))?;
    engine.backend().run_until_idle();
    story.print(&engine);
    let failure = output.query().err().ok_or("the failure should have arrived")?;
    println!("    output failed: {failure}; other is at {}", other.query()?);

    println!("5. Shutting down ends what will never be signalled.");
    submit(&mut story, "orphan", 0, &[(never.clone(), 1)], &[], Job::new(7))?;
    engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO)?;
    story.print(&engine);
    println!("    counts: {:?}", engine.stats());
    Ok(())
}
