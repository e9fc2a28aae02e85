// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine as a supervisor of other processes has it.

use crate::common::{card, faulty, open, options};
use emulator_core::{Errno, OwnProcess};
use emulator_core::{MappedKind, SupervisedMachine};
use emulator_qaic::Options;
use std::os::fd::AsFd;
use std::path::Path;

#[test]
fn card_of_a_dead_process_is_released_at_the_next_reap() {
    let (one, two) = {
        let one = card(options());
        let two = open(&one.emulator, 0);
        (one, two)
    };
    let machine = one.emulator.clone();
    let active = one.channel(8);
    let stuck = one.stuck(&active);
    one.execute(active.channel, &[stuck]).unwrap();
    assert!(machine.release_closed_files(), "two files are open");
    one.abandon();
    assert_eq!(
        (machine.counts(0).users, machine.counts(0).channels),
        (2, 1),
        "closed files are not noticed yet"
    );
    assert!(machine.release_closed_files(), "one is");
    let counts = machine.counts(0);
    assert_eq!((counts.users, counts.channels, counts.objects, counts.activations), (1, 0, 0, 0));
    two.abandon();
    assert!(!machine.release_closed_files());
    assert_eq!(machine.counts(0).users, 0);
}

#[test]
fn process_may_map_only_objects_of_its_files_handles() {
    let one = card(options());
    let two = open(&one.emulator, 0);
    let machine = &one.emulator;
    let offset = one.offset(one.create(5000).unwrap()).unwrap();
    let may = |card: &crate::common::Card, length, offset| {
        machine.may_map(&OwnProcess, card.file().as_fd(), length, offset)
    };
    assert_eq!(may(&one, 8192, offset), Ok(MappedKind::Memory));
    assert_eq!(may(&one, 4097, offset), Ok(MappedKind::Memory), "in whole pages");
    assert_eq!(may(&one, 8193, offset), Err(Errno::INVAL));
    assert_eq!(may(&one, 4096, offset + 4096), Err(Errno::INVAL), "from its beginning alone");
    assert_eq!(may(&one, u64::MAX, offset), Err(Errno::NOMEM));
    assert_eq!(may(&two, 4096, offset), Err(Errno::ACCESS));
}

#[test]
fn files_have_their_nodes_and_a_report_has_every_card() {
    let machine = emulator_qaic::Emulator::new(Options { cards: 2, ..options() }).unwrap();
    let card = open(&machine, 1);
    let node = machine.node_of(card.file().as_fd());
    assert_eq!(node.as_deref(), Some(Path::new("/dev/accel/accel1")));
    assert_eq!(machine.node_of(std::io::stdin().as_fd()), None);
    card.channel(8);
    let report = machine.summary();
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(lines[0], "card 0: 0 opens, 0 messages, 0 calls, 0 bytes moved, 0 resets, 0 users left");
    assert_eq!(lines[1], "card 1: 1 opens, 2 messages, 0 calls, 0 bytes moved, 0 resets, 1 users left");
    assert_eq!(lines.len(), 2);
}

#[test]
fn user_that_is_on_its_way_out_is_not_gone() {
    // The device does not answer the notification of the end, so that this takes a while.
    let mut options = faulty(&["control-lost:1"]);
    options.module.control_resp_timeout_s = 4;
    let machine = emulator_qaic::Emulator::new(options).unwrap();
    open(&machine, 0).abandon();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| machine.release_closed_files());
        while machine.counts(0).messages == 0 {
            std::thread::yield_now();
        }
        assert!(machine.release_closed_files(), "a request is under way");
        assert_eq!(machine.counts(0).users, 1);
        assert!(!ending.join().unwrap());
    });
    assert_eq!(machine.counts(0).users, 0);
}
