// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The DMA bridge: semaphores, fences, doorbells, responses, interrupts.

use crate::common::{BINDING, LONG, STUCK, bytes, card, options, wait_for};
use emulator_core::Errno;
use emulator_qaic::{Module, Options};
use hal_qaic_abi::uapi::{FROM_DEVICE, Semaphore, TO_DEVICE, sem};
use std::time::Duration;

#[test]
fn elements_that_do_not_wait_pass_those_that_do() {
    let card = card(options());
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    let plain = card.object(&active, 4096, TO_DEVICE, |_| ());
    card.execute(active.channel, &[stuck, plain]).unwrap();
    assert_eq!(card.wait(active.channel, plain, LONG), Ok(()));
    assert_eq!(card.wait(active.channel, stuck, 20), Err(Errno::TIMEDOUT));
}

#[test]
fn those_that_wait_for_one_semaphore_go_in_order() {
    let card = card(options());
    let active = card.channel(8);
    let objects: Vec<u32> = (0..3).map(|_| card.stuck(&active)).collect();
    card.execute(active.channel, &objects).unwrap();
    let poster = card.poster(&active, STUCK);
    for number in 0..3 {
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
        assert_eq!(card.wait(active.channel, objects[number], LONG), Ok(()), "{number}");
        if let Some(&next) = objects.get(number + 1) {
            assert_eq!(card.wait(active.channel, next, 20), Err(Errno::TIMEDOUT), "{number}");
        }
    }
}

#[test]
fn one_that_could_go_waits_behind_one_that_cannot_if_they_wait_for_one_semaphore() {
    let card = card(options());
    let active = card.channel(8);
    let at_least =
        |val, index| Semaphore { cmd: sem::WAIT_GT_EQ, val, index, presync: 1, ..Semaphore::default() };
    let object =
        |val, index| card.object(&active, 4096, TO_DEVICE, |entry| entry.sem0 = at_least(val, index));
    let (two, one, other) = (object(2, STUCK), object(1, STUCK), object(0, STUCK + 1));
    card.execute(active.channel, &[two, one, other]).unwrap();
    let poster = card.poster(&active, STUCK);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
    assert_eq!(card.wait(active.channel, other, LONG), Ok(()), "another semaphore");
    assert_eq!(card.wait(active.channel, one, 50), Err(Errno::TIMEDOUT));
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, one, LONG), Ok(()));
}

#[test]
fn full_ring_of_responses_holds_requests_back() {
    // The kernel gets no interrupt, and takes no response.
    let card = card(crate::common::faulty(&["lost-msi:1"]));
    let active = card.channel(4);
    let posters: Vec<u32> = (0..7).map(|_| card.poster(&active, 3)).collect();
    let taken = |requests| {
        while card.counts().requests < requests {
            std::thread::yield_now();
        }
    };
    card.execute(active.channel, &posters[..3]).unwrap();
    taken(3);
    // Three responses fill a ring of four; the requests are done, and their places free.
    while card.execute(active.channel, &posters[3..6]) == Err(Errno::AGAIN) {
        std::thread::yield_now();
    }
    taken(6);
    std::thread::sleep(Duration::from_millis(30));
    // These have no place for their responses, and keep those of their requests.
    assert_eq!(card.execute(active.channel, &posters[6..]), Err(Errno::AGAIN));
    assert_eq!(card.counts().interrupts, 1);
}

#[test]
fn requests_go_on_when_the_kernel_has_made_room_for_responses() {
    // Seldom enough that the ring is full before it is polled.
    let module = Module { datapath_polling: true, datapath_poll_interval_us: 100_000, ..Module::default() };
    let card = card(Options { module, ..options() });
    let active = card.channel(4);
    let posters: Vec<u32> = (0..6).map(|_| card.poster(&active, 3)).collect();
    card.execute(active.channel, &posters[..3]).unwrap();
    while card.execute(active.channel, &posters[3..]) == Err(Errno::AGAIN) {
        std::thread::yield_now();
    }
    for &poster in &posters {
        assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
    }
}

#[test]
fn fence_waits_for_transfers_of_its_direction() {
    for (direction, flag, waits) in [
        (TO_DEVICE, sem::IN_SYNC_FENCE, true),
        (TO_DEVICE, sem::OUT_SYNC_FENCE, false),
        (FROM_DEVICE, sem::OUT_SYNC_FENCE, true),
    ] {
        let card = card(options());
        let active = card.channel(8);
        let stuck = card.object(&active, 4096, direction, |entry| entry.sem0 = wait_for(STUCK));
        let fenced = card.object(&active, 4096, direction, |entry| entry.sem0.flags = flag);
        card.execute(active.channel, &[stuck, fenced]).unwrap();
        let result = if waits { Err(Errno::TIMEDOUT) } else { Ok(()) };
        assert_eq!(card.wait(active.channel, fenced, 50), result);
        let poster = card.poster(&active, STUCK);
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, fenced, LONG), Ok(()));
    }
}

#[test]
fn command_after_the_transfer_may_wait_too() {
    let card = card(options());
    let active = card.channel(8);
    let waits = Semaphore { cmd: sem::WAIT_EQUAL, val: 2, index: STUCK, ..Semaphore::default() };
    let object = card.object(&active, 4096, TO_DEVICE, |entry| entry.sem1 = waits);
    let from = card.object(&active, 4096, FROM_DEVICE, |_| ());
    assert!(card.memory(object, 4096).write(0, &[7; 4096]));
    let poster = card.poster(&active, STUCK);
    card.execute(active.channel, &[object, poster]).unwrap();
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
    // It was transferred, and is not complete.
    card.execute(active.channel, &[from]).unwrap();
    assert_eq!(card.wait(active.channel, from, LONG), Ok(()));
    assert_eq!(bytes(&card.memory(from, 4096), 4096), [7; 4096]);
    assert_eq!(card.wait(active.channel, object, 20), Err(Errno::TIMEDOUT));
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, object, LONG), Ok(()));
}

#[test]
fn doorbell_writes_as_many_bits_as_it_has() {
    let card = card(options());
    let active = card.channel(8);
    let at = active.bases.ddr + BINDING;
    for (bits, expected) in [(8, [4, 0, 0, 0]), (16, [4, 3, 0, 0]), (32, [4, 3, 2, 1])] {
        let clear = card.object(&active, 4096, TO_DEVICE, |_| ());
        let bell = card.object(&active, 4096, TO_DEVICE, |entry| {
            entry.size = 0;
            (entry.db_len, entry.db_addr, entry.db_data) = (bits, at, 0x0102_0304);
        });
        let from = card.object(&active, 4096, FROM_DEVICE, |_| ());
        card.execute(active.channel, &[clear, bell, from]).unwrap();
        assert_eq!(card.wait(active.channel, from, LONG), Ok(()));
        assert_eq!(bytes(&card.memory(from, 4096), 4), expected, "{bits}");
        for handle in [clear, bell, from] {
            card.detach(handle).unwrap();
        }
    }
}

#[test]
fn network_reaches_its_own_memory_alone() {
    let card = card(options());
    let (one, two) = (card.channel(8), card.channel(8));
    let foreign = card.object(&one, 4096, TO_DEVICE, |entry| entry.dev_addr = two.bases.ddr + BINDING);
    assert!(card.memory(foreign, 4096).write(0, &[9; 4096]));
    card.execute(one.channel, &[foreign]).unwrap();
    // The error is in the kernel's log; the wait succeeds.
    assert_eq!(card.wait(one.channel, foreign, LONG), Ok(()));
    assert!(card.emulator.complaint(0).unwrap().contains("failed with status 1"));
    let from = card.object(&two, 4096, FROM_DEVICE, |_| ());
    card.execute(two.channel, &[from]).unwrap();
    assert_eq!(card.wait(two.channel, from, LONG), Ok(()));
    assert_eq!(bytes(&card.memory(from, 4096), 4096), [0; 4096]);
}

#[test]
fn busy_channel_is_polled_and_an_idle_one_interrupts() {
    let card = card(options());
    let active = card.channel(8);
    let poster = card.poster(&active, 3);
    for _ in 0..200 {
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
    }
    // The device interrupts whenever its ring was empty; the kernel has disabled the line most of the time, so that
    // completions were found by looking.
    assert!(card.counts().interrupts >= 1);
    std::thread::sleep(Duration::from_millis(50));
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()), "the line is enabled again");
}

#[test]
fn mitigation_takes_interrupts_away_and_no_completion() {
    // As fast as this machine is; what it comes to at a given rate is counted beside the code.
    let mut taken = Vec::new();
    for mitigation in [false, true] {
        let card = card(Options { mitigation, ..options() });
        let active = card.channel(256);
        let posters: Vec<u32> = (0..100).map(|_| card.poster(&active, 3)).collect();
        let (begin, rounds) = (std::time::Instant::now(), 30);
        for _ in 0..rounds {
            card.execute(active.channel, &posters).unwrap();
            for &poster in &posters {
                assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
            }
        }
        let counts = card.counts();
        let rate = counts.responses as f64 / begin.elapsed().as_secs_f64();
        println!(
            "mitigation {mitigation}: {} interrupts for {rate:.0} responses a second",
            counts.interrupts_taken
        );
        assert_eq!(counts.responses, rounds * 100);
        taken.push(counts.interrupts_taken);
    }
    assert_eq!(taken[0], 3000, "the kernel is as quick as the device: each response finds the ring empty");
    assert!(taken[1] < 300, "few for each round: {}", taken[1]);
}

#[test]
fn module_that_polls_needs_no_interrupt() {
    let module = Module { datapath_polling: true, ..Module::default() };
    let lost = crate::common::faulty(&["lost-msi:1", "lost-msi:2", "lost-msi:3"]);
    let card = card(Options { module, ..lost });
    let active = card.channel(8);
    let poster = card.poster(&active, 3);
    for _ in 0..3 {
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
        std::thread::sleep(Duration::from_millis(5));
    }
}
