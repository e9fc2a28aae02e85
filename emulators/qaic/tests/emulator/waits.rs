// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waits: `qaic_wait_bo_ioctl`, `wakeup_dbc`, `disable_dbc`.

use crate::common::{LONG, STUCK, card, open, options};
use emulator_core::SupervisedMachine;
use emulator_core::{Errno, System, interrupt};
use emulator_qaic::{Module, Options};
use hal_qaic_abi::uapi::{Call, Wait};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn each_wrong_wait_is_refused() {
    let card = card(options());
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    assert_eq!(
        card.call(Call::Wait, &Wait { handle: stuck, pad: 1, ..Wait::default() }).0,
        Err(Errno::INVAL)
    );
    assert_eq!(card.wait(16, stuck, 1), Err(Errno::INVAL));
    assert_eq!(card.wait(1, stuck, 1), Err(Errno::PERM));
    assert_eq!(card.wait(active.channel, 99, 1), Err(Errno::NOENT));
    assert_eq!(card.wait(active.channel, stuck, 1), Ok(()), "never queued");
}

#[test]
fn wait_ends_in_time_and_without_a_time_by_the_modules() {
    let module = Module { wait_exec_default_timeout_ms: 60_000, ..Module::default() };
    let mut options = Options { module, ..options() };
    options.execution.speed = 1000;
    let card = card(options);
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    let begin = Instant::now();
    assert_eq!(card.wait(active.channel, stuck, 30), Err(Errno::TIMEDOUT));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let begin = Instant::now();
    assert_eq!(card.wait(active.channel, stuck, 0), Err(Errno::TIMEDOUT));
    // A minute of a driver that is a thousand times as fast.
    assert!((60..60_000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    let poster = card.poster(&active, STUCK);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, stuck, 60_000), Ok(()));
    assert_eq!(card.wait(active.channel, stuck, LONG), Ok(()), "as often as one likes");
}

#[test]
fn deactivation_waits_for_waits_and_then_ends_what_is_on_its_way() {
    let card = card(options());
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    let (sender, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (card, active) = (&card, &active);
        let waiter = scope.spawn(move || {
            sender.send(Instant::now()).unwrap();
            card.wait(active.channel, stuck, 500)
        });
        let begun = begun.recv().unwrap();
        card.until_waits(1);
        assert_eq!(card.deactivate(*active).0, Ok(()));
        // The channel is held by the wait, which nothing ends before its time.
        assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
        assert_eq!(waiter.join().unwrap(), Err(Errno::TIMEDOUT));
    });
}

#[test]
fn interrupted_wait_reports_a_channel_that_was_taken() {
    let card = card(options());
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    let interrupted = |taken: &dyn Fn()| {
        let flag = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (card, lent) = (&card, flag.clone());
            let wait = move || card.wait(active.channel, stuck, LONG);
            let waiter = scope.spawn(move || interrupt::on_behalf(lent, wait));
            card.until_waits(1);
            taken();
            flag.store(true, Ordering::Release);
            card.emulator.wake_requests();
            waiter.join().unwrap()
        })
    };
    assert_eq!(interrupted(&|| ()), Err(Errno::INTR));
    let shared = &card;
    std::thread::scope(|scope| {
        let result = interrupted(&|| {
            // The deactivation takes the channel, and then waits for the wait.
            scope.spawn(move || shared.deactivate(active));
            while card.execute(active.channel, &[stuck]) != Err(Errno::PERM) {
                std::thread::yield_now();
            }
        });
        assert_eq!(result, Err(Errno::PERM));
    });
    assert_eq!(card.counts().channels, 0);
}

#[test]
fn state_is_left_by_a_close_and_cleared_by_a_deactivation() {
    let one = card(options());
    let emulator = one.emulator.clone();
    let state = |channel: u32| {
        emulator.read(Path::new(&format!("/sys/class/accel/accel0/dbc{channel}_state"))).unwrap()
    };
    let (first, second) = (one.channel(8), one.channel(8));
    assert_eq!((state(0), state(1), state(2)), ("1\n".to_owned(), "1\n".to_owned(), "0\n".to_owned()));
    assert_eq!(one.deactivate(second).0, Ok(()));
    assert_eq!(state(second.channel), "0\n");
    one.close();
    assert_eq!(state(first.channel), "1\n");
}

#[test]
fn close_elsewhere_does_not_disturb() {
    let one = card(options());
    let active = one.channel(8);
    let stuck = one.stuck(&active);
    one.execute(active.channel, &[stuck]).unwrap();
    let poster = one.poster(&active, STUCK);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| one.wait(active.channel, stuck, LONG));
        open(&one.emulator, 0).close();
        one.execute(active.channel, &[poster]).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}
