// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What an operator reads of operations: how long each waited, how long the device had it, and why one failed.
//!
//! Run with `cargo run -p hal-semaphore --features tracing --example traced`. A program sets a subscriber of its own;
//! this one prints each span as it closes, with the times that it was busy and idle.

use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::{Action, Affinity, Code, Engine, Failure, Semaphore};
use std::error::Error;
use tracing_subscriber::fmt::format::FmtSpan;

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .init();
    let engine = Engine::new(SoftBackend::new(device(2)))?;
    let (input, output) = (Semaphore::new(&engine, 0)?, Semaphore::new(&engine, 0)?);
    let request = tracing::info_span!("request", user = 7).entered();
    let (waits, signals) = ([(input.clone(), 1)], [(output.clone(), 1)]);
    engine.submit(Affinity::queue(1), &waits, &signals, Action::Queue(Job::new(1)))?;
    let parity = Failure::new(Code::DataLoss, "parity error in bank 3");
    let job = Job::failing(2, parity);
    engine.submit(Affinity::queue(0), &[(output.clone(), 1)], &[(output, 2)], Action::Queue(job))?;
    drop(request);
    input.signal(1)?;
    engine.backend().run_until_idle();
    Ok(())
}
