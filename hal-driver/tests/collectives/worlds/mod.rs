// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random worlds of devices, groups, splits and command buffers, submitted by several threads, judged by plain
//! arithmetic and by IREE's rules.
//!
//! A seed determines a *world* ([`plan`]): 2 to 5 devices of any drivers, groups of them and parts of those, their
//! own and each other's buffers, and *events*, in which some of the devices execute a command buffer each. A model
//! computes the result on lists of bytes ([`model`]). In half of the worlds something fails once. In every world
//! ([`play`]):
//!
//! - Everything that was submitted ends within a bound.
//! - An operation that succeeded has the right bytes, on every rank.
//! - Memory of a failed operation is not written any more: the program writes there at once, and finds its bytes at
//!   the end.
//! - A failure names its cause. Groups that are not concerned go on.
//! - Everything can be released in any order, also while work is under way, and nothing leaks.

mod model;
mod plan;
mod play;

use plan::World;
use play::{Tally, play};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The first seed: that of `HAL_SEED`, to repeat a failure, or 0.
fn first_seed() -> u64 {
    std::env::var("HAL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

/// Runs worlds from the first seed on, so many at once.
fn worlds(faulty: bool, at_once: usize, is_enough: impl Fn(u64) -> bool + Sync) {
    let first = first_seed();
    let next = AtomicU64::new(first);
    let one_after_the_other = || {
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if is_enough(seed - first) {
                return eprintln!("{tally:?}");
            }
            play(&World::new(seed, faulty), &mut tally);
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(one_after_the_other))));
}

#[test]
fn random_worlds_come_to_what_they_say() {
    worlds(false, 1, |count| count >= 40);
}

#[test]
fn random_worlds_in_which_something_fails_end_and_say_why() {
    worlds(true, 2, |count| count >= 40);
}

/// The world of `HAL_SEED` with a failure, repeated for a minute.
#[test]
#[ignore = "for a seed that was found"]
fn one_world() {
    let end = Instant::now() + Duration::from_secs(60);
    let (world, mut tally) = (World::new(first_seed(), true), Tally::default());
    while Instant::now() < end {
        play(&world, &mut tally);
    }
    eprintln!("{tally:?}");
}

/// As many worlds as fit into a minute.
#[test]
#[ignore = "takes a minute"]
fn many_random_worlds() {
    let half = Duration::from_secs(30);
    for (faulty, at_once) in [(false, 2), (true, 4)] {
        let end = Instant::now() + half;
        worlds(faulty, at_once, |_| Instant::now() > end);
    }
}
