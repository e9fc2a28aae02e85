// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A few operations on two queues: what their waits cost, when they go to the device, and how they end.
//!
//! Run with `cargo run -p hal-semaphore --example walkthrough`. The device is software and moves only when it is
//! told to, so that each line below has one cause.

use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::{
    Action, Affinity, Code, Counts, Engine, Failure, Semaphore, SystemClock, VirtualClock, WaitMode,
};
use std::error::Error;
use std::time::Duration;

/// An engine, and what it had counted when the story was told last.
struct Story {
    engine: Engine<SoftBackend>,
    told: Counts,
}

impl Story {
    fn semaphore(&self) -> Result<Semaphore, Box<dyn Error>> {
        Ok(Semaphore::new(&self.engine, 0)?)
    }

    fn submit(
        &mut self,
        name: &str,
        queue: usize,
        waits: &[(&Semaphore, u64)],
        signals: &[(&Semaphore, u64)],
        job: Job,
    ) -> Result<(), Box<dyn Error>> {
        let owned = |values: &[(&Semaphore, u64)]| -> Vec<(Semaphore, u64)> {
            values.iter().map(|&(semaphore, value)| (semaphore.clone(), value)).collect()
        };
        let action = Action::Queue(job);
        self.engine.submit(Affinity::queue(queue), &owned(waits), &owned(signals), action)?;
        println!("    {name} is submitted to queue {queue}");
        self.tell();
        Ok(())
    }

    /// Prints what has become of waits, and what the device has.
    fn tell(&mut self) {
        let (before, now) = (std::mem::replace(&mut self.told, self.engine.counts()), self.told);
        for (count, words) in [
            (now.blocked - before.blocked, "blocks its operation on the host: it is not promised yet"),
            (now.reached - before.reached, "is reached: there is nothing to wait for"),
            (now.same_queue - before.same_queue, "is left to the order of its queue"),
            (now.dominated - before.dominated, "is implied by an earlier wait of its queue"),
            (now.native - before.native, "is left to the device, and the host does not wake"),
        ] {
            (0..count).for_each(|_| println!("        a wait {words}"));
        }
        println!("        {} of {} operations are on the device", now.in_flight, now.operations);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(SoftBackend::new(device(2)))?;
    let mut story = Story { told: engine.counts(), engine };
    let (input, middle, output) = (story.semaphore()?, story.semaphore()?, story.semaphore()?);
    let (other, never) = (story.semaphore()?, story.semaphore()?);

    println!("1. Three operations are submitted before anything they wait for exists.");
    story.submit("load", 0, &[(&input, 1)], &[(&middle, 1)], Job::new(1))?;
    story.submit("multiply", 0, &[(&middle, 1)], &[(&middle, 2)], Job::new(2))?;
    story.submit("store", 1, &[(&middle, 2)], &[(&output, 1)], Job::new(3))?;

    println!("2. The host signals input. Everything goes to the device at once, though nothing has run.");
    input.signal(1)?;
    story.tell();

    println!("3. The device runs them and reports.");
    story.engine.backend().run_until_idle();
    let limit = Some(Duration::from_secs(1));
    story.engine.wait(WaitMode::All, &[(output.clone(), 1)], &SystemClock::new(), limit)?;
    println!("    output is at {}", output.query()?);

    println!("4. An operation fails. What depends on it fails with its cause; what does not goes on.");
    let parity = Failure::new(Code::DataLoss, "parity error in bank 3");
    story.submit("load", 0, &[], &[(&middle, 3)], Job::failing(4, parity))?;
    story.submit("store", 1, &[(&middle, 3)], &[(&output, 2)], Job::new(5))?;
    story.submit("other", 0, &[], &[(&other, 1)], Job::new(6))?;
    story.engine.backend().run_until_idle();
    let failure = output.query().err().ok_or("the failure should have arrived")?;
    println!("    output failed: {failure}; other is at {}", other.query()?);

    println!("5. Shutting down ends what will never be signalled.");
    let orphan = story.semaphore()?;
    story.submit("orphan", 0, &[(&never, 1)], &[(&orphan, 1)], Job::new(7))?;
    story.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO)?;
    let failure = orphan.query().err().ok_or("the orphan should have ended")?;
    println!("    orphan failed: {failure}");
    Ok(())
}
