//! Waits: `qaic_wait_bo_ioctl`, `wakeup_dbc`, `disable_dbc`.

use crate::common::{STUCK, card, open, options};
use hal_emulation::Errno;
use hal_qaic_abi::uapi::{Call, Wait};
use hal_qaic_emulator::{Module, Options};
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
fn a_wait_ends_in_time_and_without_a_time_by_the_modules() {
    let module = Module { wait_exec_default_timeout_ms: 1000, ..Module::default() };
    let card = card(Options { module, ..options() });
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    let begin = Instant::now();
    assert_eq!(card.wait(active.channel, stuck, 30), Err(Errno::TIMEDOUT));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let begin = Instant::now();
    assert_eq!(card.wait(active.channel, stuck, 0), Err(Errno::TIMEDOUT));
    // A second of a driver that is twenty times as fast.
    assert!((50..1000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    let poster = card.poster(&active, STUCK);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, stuck, 5000), Ok(()));
    assert_eq!(card.wait(active.channel, stuck, 5000), Ok(()), "as often as one likes");
}

#[test]
fn a_deactivation_waits_for_waits_and_then_ends_what_is_on_its_way() {
    let card = card(options());
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| card.wait(active.channel, stuck, 200));
        std::thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        assert_eq!(card.deactivate(active).0, Ok(()));
        // The channel is held by the wait, which nothing ends before its time.
        assert!(begin.elapsed() >= Duration::from_millis(100), "{:?}", begin.elapsed());
        assert_eq!(waiter.join().unwrap(), Err(Errno::TIMEDOUT));
    });
}

#[test]
fn a_close_elsewhere_does_not_disturb() {
    let one = card(options());
    let active = one.channel(8);
    let stuck = one.stuck(&active);
    one.execute(active.channel, &[stuck]).unwrap();
    let poster = one.poster(&active, STUCK);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| one.wait(active.channel, stuck, 10_000));
        open(&one.emulator, 0).close();
        one.execute(active.channel, &[poster]).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}
