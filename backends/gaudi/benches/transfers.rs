// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Asynchronous transfers: how many are in flight, how many end in a second, and what a poll costs.
//!
//! `cargo xtask bench --gaudi [URI]`. On an emulated card this measures the software of both sides and nothing of any
//! hardware; on a card, the card.

use hal_backend::{Driver, Failure, HostRange};

type Gaudi = hal_gaudi::Gaudi<emulator_gaudi::Emulated>;
use hal_gaudi::dma::{Dma, Request};
use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long each case runs, how often, and what it moves at a time.
const TIME: Duration = Duration::from_millis(150);
const ROUNDS: usize = 5;
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
const IN_FLIGHT: [usize; 6] = [1, 2, 8, 32, 128, 512];

/// The result of one round of a case.
#[derive(Clone, Copy, Default)]
struct Round {
    transfers: f64,
    bytes: f64,
    polls: f64,
    busy_poll: f64,
}

/// Keeps so many transfers in flight for a while.
fn round(dma: &Dma, host: &HostRange, address: u64, size: u64, in_flight: usize) -> Result<Round, Failure> {
    let part = host.slice(0, size).ok_or_else(|| Failure::new(hal_backend::Code::Internal, "no memory"))?;
    let mut requests: VecDeque<Request> = VecDeque::new();
    let (mut done, mut polls, mut busy, mut spent) = (0_u64, 0_u64, 0_u64, Duration::ZERO);
    let begin = Instant::now();
    while begin.elapsed() < TIME || !requests.is_empty() {
        while requests.len() < in_flight && begin.elapsed() < TIME {
            requests.push_back(dma.host_to_device(&part, address)?);
        }
        let Some(first) = requests.front() else { break };
        let before = Instant::now();
        let outcome = first.poll();
        polls += 1;
        match outcome {
            None => {
                busy += 1;
                spent += before.elapsed();
            }
            Some(outcome) => {
                outcome?;
                done += 1;
                requests.pop_front();
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "counts of a fraction of a second")]
    let number = |count: u64| count as f64;
    Ok(Round {
        transfers: number(done) / seconds,
        bytes: number(done * size) / seconds,
        polls: number(polls) / number(done.max(1)),
        busy_poll: if busy > 0 { spent.as_secs_f64() / number(busy) } else { 0.0 },
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn run(uri: &str) -> Result<(), Failure> {
    let device = Gaudi::open_uri(uri)?;
    print!("{}", device.info());
    if device.is_emulated() {
        println!("emulated: these are the costs of software, and say nothing about the speed of any card");
    }
    println!(
        "\n{:>8}  {:>9}  {:>12}  {:>10}  {:>9}  {:>12}",
        "size", "in flight", "transfers/s", "MiB/s", "polls each", "busy poll"
    );
    for size in SIZES {
        let memory = device.ipc().allocate(size)?;
        let host = HostRange::allocate(size, 4096)?;
        for in_flight in IN_FLIGHT {
            let rounds = (0..ROUNDS)
                .map(|_| round(device.dma(), &host, memory.address(), size, in_flight))
                .collect::<Result<Vec<_>, _>>()?;
            let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field).collect());
            println!(
                "{:>5} KiB  {in_flight:>9}  {:>12.0}  {:>10.0}  {:>9.1}  {:>9.0} ns",
                size >> 10,
                of(|round| round.transfers),
                of(|round| round.bytes) / 1_048_576.0,
                of(|round| round.polls),
                of(|round| round.busy_poll) * 1e9,
            );
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    // Cargo adds an argument of its own.
    let uri = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let uri = uri.unwrap_or_else(|| "gaudi://emulated".to_owned());
    match run(&uri) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{uri}: {}", failure.message());
            ExitCode::FAILURE
        }
    }
}
