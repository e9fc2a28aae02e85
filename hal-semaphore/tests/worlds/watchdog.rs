// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ends the process when a world does not: a hang is a failure with a seed.

use crate::world::World;
use std::io::Write as _;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

struct RunningWorld {
    driver: &'static str,
    seed: u64,
    since: Instant,
    world: Weak<World>,
}

static RUNNING: Mutex<Vec<RunningWorld>> = Mutex::new(Vec::new());
static START: Once = Once::new();

/// How long a world may take, on a machine that others use too.
fn limit() -> Duration {
    Duration::from_secs(crate::flags::number("--hang").unwrap_or(300))
}

/// How long the judge waits for something that another thread may still do.
pub(crate) fn patience_ms() -> u64 {
    crate::flags::number("--patience").unwrap_or(60_000)
}

/// Supervises a world until the result is dropped.
pub(crate) fn watch(driver: &'static str, seed: u64, world: &Arc<World>) -> Supervised {
    START.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_millis(250));
                let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(hung) = running.iter().find(|running| running.since.elapsed() > limit()) {
                    give_up(hung);
                }
            }
        });
    });
    let running = RunningWorld { driver, seed, since: Instant::now(), world: Arc::downgrade(world) };
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(running);
    Supervised { driver, seed }
}

/// Drop it when the world has ended.
pub(crate) struct Supervised {
    driver: &'static str,
    seed: u64,
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|running| (running.driver, running.seed) != (self.driver, self.seed));
    }
}

fn give_up(hung: &RunningWorld) -> ! {
    // Not through the macros, whose output the test harness keeps to itself.
    let mut out = std::io::stderr().lock();
    let _ = writeln!(
        out,
        "\nworld {} ({}) HANGS: not ended after {:?}\n{}",
        hung.seed,
        hung.driver,
        limit(),
        crate::repeat(hung.driver, hung.seed)
    );
    if let Some(world) = hung.world.upgrade() {
        for alarm in world.ledger.alarms() {
            let _ = writeln!(out, "alarm {}: {}", alarm.rule, alarm.text);
        }
        match world.ledger.try_book() {
            Some(book) => {
                for (op, operation) in book.operations.iter().enumerate() {
                    if !operation.refused && book.outcome(op).is_none() {
                        let _ = writeln!(out, "operation {op}: {operation:?}");
                    }
                }
            }
            None => drop(writeln!(out, "the ledger is locked")),
        }
        for engine in &world.engines {
            let _ = match engine.backend().try_hardware() {
                Some(state) => writeln!(out, "{state:#?}"),
                None => writeln!(out, "the hardware is locked"),
            };
        }
    }
    std::process::exit(101);
}
