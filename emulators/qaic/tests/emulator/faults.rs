// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Each fault by its name, and what the user of the driver sees of it.

use crate::common::{Buffers, LONG, STUCK, card, faulty, image, open, options, passthrough, try_open};
use emulator_core::SupervisedMachine;
use emulator_core::{Errno, System, interrupt};
use emulator_qaic::{Emulator, Options};
use hal_kernel::ProgramHost;
use hal_qaic_abi::nnc::command::{
    self, ActivateResponse, LoadElfRequest, ResourceInfoRequest, ResourceInfoResponse, Status,
};
use hal_qaic_abi::nnc::user::Ask;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn boot_takes_so_many_opens() {
    let machine = Emulator::new(faulty(&["boot:2"])).unwrap();
    for _ in 0..2 {
        assert_eq!(try_open(&machine, 0).err(), Some(Errno::NODEV));
    }
    assert!(try_open(&machine, 0).is_ok());
}

#[test]
fn alloc_finds_no_memory() {
    let card = card(faulty(&["alloc:2"]));
    assert_eq!((card.create(1), card.create(1), card.create(1)), (Ok(1), Err(Errno::NOMEM), Ok(2)));
}

#[test]
fn control_full_has_no_room() {
    let card = card(faulty(&["control-full:1"]));
    let begin = Instant::now();
    assert_eq!(card.manage(&[Ask::Status]).0, Err(Errno::AGAIN));
    assert!(begin.elapsed() >= Duration::from_secs(2));
    assert_eq!(card.manage(&[Ask::Status]).0, Ok(()));
}

#[test]
fn control_lost_has_no_answer() {
    let mut options = faulty(&["control-lost:1"]);
    options.module.control_resp_timeout_s = 2;
    let card = card(options);
    let begin = Instant::now();
    assert_eq!(card.manage(&[Ask::Status]).0, Err(Errno::TIMEDOUT));
    assert!(begin.elapsed() >= Duration::from_secs(2));
    assert_eq!(card.manage(&[Ask::Status]).0, Ok(()));
}

#[test]
fn signal_ends_what_waits_for_room_or_for_an_answer_and_never_the_end_of_a_user() {
    let flag = Arc::new(AtomicBool::new(true));
    let mut options = faulty(&["control-full:1", "control-lost:2"]);
    (options.execution.slowness, options.module.control_resp_timeout_s) = (60, 3600);
    let slow = card(options);
    // Without room, the message was not sent, and the error says so.
    let begin = Instant::now();
    assert_eq!(interrupt::on_behalf(flag.clone(), || slow.manage(&[Ask::Status]).0), Err(Errno::AGAIN));
    assert!(begin.elapsed() < Duration::from_secs(120), "it goes on waiting");
    assert_eq!(slow.counts().messages, 0);
    // The answer to the next one does not come.
    assert_eq!(slow.manage(&[Ask::Status]).0, Ok(()));
    flag.store(false, Ordering::Release);
    std::thread::scope(|scope| {
        let (slow, lent) = (&slow, flag.clone());
        let sender = scope.spawn(move || interrupt::on_behalf(lent, || slow.manage(&[Ask::Status]).0));
        while slow.counts().messages < 2 {
            std::thread::yield_now();
        }
        flag.store(true, Ordering::Release);
        slow.emulator.wake_requests();
        assert_eq!(sender.join().unwrap(), Err(Errno::INTR));
    });
    assert_eq!(slow.manage(&[Ask::Status]).0, Ok(()));

    // The end of a user is waited for as long as the device may take, whatever signals come.
    let mut options = faulty(&["control-lost:1"]);
    options.module.control_resp_timeout_s = 2;
    let ending = card(options);
    let begin = Instant::now();
    assert_eq!(interrupt::on_behalf(flag, || ending.close()).users, 0);
    assert!(begin.elapsed() >= Duration::from_secs(2));
}

#[test]
fn close_without_room_does_not_notify_the_device() {
    // The messages before it load and activate a network.
    let card = card(faulty(&["control-full:3"]));
    let machine = card.emulator.clone();
    let active = card.channel(8);
    assert_eq!(card.counts().messages, 2);
    let counts = card.close();
    assert_eq!((counts.messages, counts.users, counts.channels), (2, 0, 0));
    assert_eq!((counts.activations, counts.loaded), (1, 1), "the device has not heard of it");
    // The device takes the next user with the same number for the old one, and ends it.
    let next = open(&machine, 0);
    assert_ne!(next.channel(8).channel, active.channel);
    let counts = next.close();
    assert_eq!((counts.channels, counts.activations, counts.loaded), (0, 0, 0));
}

#[test]
fn signal_ends_the_wait_for_who_had_a_channel_before_and_the_channel_is_taken() {
    let mut options = faulty(&["control-lost:3"]);
    options.module.control_resp_timeout_s = 2;
    let before = card(options);
    let release_returned_channel = before.channel(8);
    // The device has taken the channel back, and the kernel has not heard of it.
    assert_eq!(before.deactivate(release_returned_channel).0, Err(Errno::TIMEDOUT));
    assert_eq!((before.counts().activations, before.counts().channels), (0, 1));
    let after = open(&before.emulator, 0);
    let flag = Arc::new(AtomicBool::new(false));
    let active = std::thread::scope(|scope| {
        let (after, lent) = (&after, flag.clone());
        let taker = scope.spawn(move || interrupt::on_behalf(lent, || after.channel(8)));
        while after.counts().messages < 5 {
            std::thread::yield_now();
        }
        flag.store(true, Ordering::Release);
        after.emulator.wake_requests();
        taker.join().unwrap()
    });
    assert_eq!(active.channel, release_returned_channel.channel);
    let poster = after.poster(&active, 3);
    after.execute(active.channel, &[poster]).unwrap();
    assert_eq!(after.wait(active.channel, poster, LONG), Ok(()));
}

#[test]
fn control_crc_is_noticed_where_there_are_checksums() {
    for (crc, result) in [(true, Err(Errno::PIPE)), (false, Ok(()))] {
        let card = card(Options { crc, ..faulty(&["control-crc:1"]) });
        assert_eq!(card.manage(&[Ask::Status]).0, result);
        assert_eq!(card.manage(&[Ask::Status]).0, Ok(()));
    }
}

#[test]
fn control_wrong_is_no_answer_and_what_the_device_did_goes_with_its_user() {
    let card = card(faulty(&["control-wrong:1", "control-wrong:3"]));
    let machine = card.emulator.clone();
    let bytes = image(0, 0, &[64]);
    let request = LoadElfRequest { tag: 1.into(), length: (bytes.len() as u64).into(), ..Default::default() };
    let request = command::request(&request, &[]);
    let transfer = Ask::DmaTransfer { tag: 1, address: bytes.as_ptr() as u64, size: bytes.len() as u64 };
    assert_eq!(card.manage(&[Ask::Passthrough(&request), transfer]).0, Err(Errno::INVAL));
    assert_eq!((card.counts().loaded, card.counts().mapped), (1, 0), "the device has done it");
    let elf = card.load(&bytes).elf_id.get();
    // The device has given a channel, and the kernel has not heard of it.
    assert_eq!(card.try_activate(elf, 8).0, Err(Errno::INVAL));
    let counts = card.counts();
    assert_eq!((counts.activations, counts.channels, counts.mapped), (1, 0, 0));
    assert_eq!(card.activate(&bytes, 8).channel, 1, "the next one has another");
    let counts = card.close();
    assert_eq!((counts.loaded, counts.activations, counts.channels, counts.mapped), (0, 0, 0, 0));
    assert_eq!(open(&machine, 0).activate(&bytes, 8).channel, 0);
}

#[test]
fn bad_channel_is_no_channel() {
    let card = card(faulty(&["bad-channel:1"]));
    let elf = card.load(&image(0, 0, &[64])).elf_id.get();
    assert_eq!(card.try_activate(elf, 8).0, Err(Errno::NODEV));
    assert_eq!((card.counts().channels, card.counts().mapped), (0, 0));
    assert_eq!(card.try_activate(elf, 8).0, Ok(()));
}

#[test]
fn deactivate_is_refused_and_the_channel_goes_on() {
    let card = card(faulty(&["deactivate:1"]));
    let active = card.channel(8);
    let (result, response) = card.deactivate(active);
    assert_eq!((result, response.status.get()), (Err(Errno::CANCELED), Status::ERROR.0));
    let poster = card.poster(&active, 3);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
    assert_eq!(card.deactivate(active).0, Ok(()));
}

#[test]
fn lost_msi_is_made_up_for_by_nothing_but_another_one() {
    let card = card(faulty(&["lost-msi:1"]));
    let active = card.channel(8);
    let (one, two) = (card.poster(&active, 3), card.poster(&active, 3));
    card.execute(active.channel, &[one]).unwrap();
    assert_eq!(card.wait(active.channel, one, 50), Err(Errno::TIMEDOUT));
    // The ring is not empty, so that the device does not interrupt again.
    card.execute(active.channel, &[two]).unwrap();
    assert_eq!(card.wait(active.channel, two, 50), Err(Errno::TIMEDOUT));
    assert_eq!(card.counts().interrupts, 1);
    assert_eq!(card.deactivate(active).0, Ok(()));
}

#[test]
fn status_is_logged_and_the_wait_succeeds() {
    let card = card(faulty(&["status:1"]));
    let active = card.channel(8);
    let poster = card.poster(&active, 3);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
    assert_eq!(card.emulator.complaint(0).unwrap(), "channel 0: req_id 0 failed with status 1");
}

#[test]
fn eintr_interrupts_what_would_sleep() {
    let card = card(faulty(&["eintr:5"]));
    // An activation is three messages, and a message sleeps.
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    let results: Vec<_> = (0..4).map(|_| card.wait(active.channel, stuck, 5)).collect();
    assert_eq!(results.iter().filter(|&&result| result == Err(Errno::INTR)).count(), 1, "{results:?}");
    let poster = card.poster(&active, STUCK);
    card.execute(active.channel, &[poster]).unwrap();
}

/// A network of a program with one binding, and its buffers.
fn network(options: Options) -> (crate::common::Card, Buffers) {
    let card = card(options);
    let program = crate::common::Program(|_: &hal_backend::HostCall<'_>, _| ());
    let number = card.emulator.load(std::sync::Arc::new(program));
    let image = image(number, 0, &[4096]);
    let active = card.activate(&image, 16);
    let buffers = Buffers::new(&card, active, &image);
    (card, buffers)
}

#[test]
fn hang_never_ends_and_a_deactivation_does() {
    let (card, buffers) = network(faulty(&["hang:1"]));
    let (channel, outcome) = (buffers.active.channel, *buffers.handles.last().unwrap());
    card.execute(channel, &buffers.handles).unwrap();
    assert_eq!(card.wait(channel, outcome, 50), Err(Errno::TIMEDOUT));
    assert_eq!(card.detach(outcome), Err(Errno::BUSY));
    assert_eq!(card.deactivate(buffers.active).0, Ok(()));
    assert_eq!(card.counts().channels, 0);
}

#[test]
fn deadlock_leaves_outputs_waiting_although_the_call_has_run() {
    let (card, buffers) = network(faulty(&["deadlock:1"]));
    let (channel, outcome) = (buffers.active.channel, *buffers.handles.last().unwrap());
    card.execute(channel, &buffers.handles).unwrap();
    assert_eq!(card.wait(channel, buffers.handles[0], LONG), Ok(()), "what went in has arrived");
    assert_eq!(card.wait(channel, outcome, 50), Err(Errno::TIMEDOUT));
    assert_eq!((card.counts().calls, card.detach(outcome)), (1, Err(Errno::BUSY)));
    // A write to the semaphore in its place shows that the call has run.
    let done = emulator_qaic::programs::DONE;
    let poster = card.poster(&buffers.active, done);
    for _ in 0..2 {
        card.execute(channel, &[poster]).unwrap();
        assert_eq!(card.wait(channel, poster, LONG), Ok(()));
    }
    assert_eq!(card.wait(channel, outcome, LONG), Ok(()));
    assert_eq!(card.deactivate(buffers.active).0, Ok(()));
}

/// The state of a channel as the file system shows it.
fn channel_state(card: &crate::common::Card, channel: u32) -> String {
    let path = format!("/sys/class/accel/accel0/dbc{channel}_state");
    card.emulator.read(Path::new(&path)).unwrap()
}

#[test]
fn crash_takes_one_workload_and_no_other() {
    // Slow enough to see the restart.
    let mut options = faulty(&["crash:1"]);
    options.execution.slowness = 4;
    let (card, buffers) = network(options);
    let (lost, elf) = (buffers.active.channel, buffers.active.elf);
    let other = open(&card.emulator, 0);
    let active = other.channel(8);
    let poster = other.poster(&active, 3);
    assert_eq!((channel_state(&card, lost), channel_state(&card, 9)), ("1\n".to_owned(), "0\n".to_owned()));
    let outcome = *buffers.handles.last().unwrap();
    let stuck = card.stuck(&buffers.active);
    card.execute(lost, &[stuck]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| card.wait(lost, stuck, LONG));
        card.until_waits(1);
        card.execute(lost, &buffers.handles).unwrap();
        assert_eq!(waiter.join().unwrap(), Err(Errno::PIPE), "a wait under way");
    });
    assert!(["2\n", "3\n", "4\n"].contains(&channel_state(&card, lost).as_str()));
    // The channel has no user any more.
    assert_eq!(card.wait(lost, outcome, 1), Err(Errno::PERM));
    assert_eq!(card.execute(lost, &buffers.handles), Err(Errno::PERM));
    assert_eq!(card.attach(outcome, lost, 1, &[<_>::default()]), Err(Errno::INVAL));
    assert_eq!(card.deactivate(buffers.active).0, Err(Errno::PERM));
    // Others do not notice.
    other.execute(active.channel, &[poster]).unwrap();
    assert_eq!(other.wait(active.channel, poster, LONG), Ok(()));
    let request = ResourceInfoRequest { group: (-1).into(), ..Default::default() };
    let info: ResourceInfoResponse = other.command(&command::request(&request, &[]));
    assert_eq!(info.resources.cores_free, 14, "one is the other one's, and one restarts");
    assert_ne!(other.channel(8).channel, lost, "it is not given again before it is back");
    let (result, bytes) = card.try_activate(elf, 8);
    assert_eq!(result, Err(Errno::CANCELED));
    let response: ActivateResponse = passthrough(&bytes);
    assert_eq!(response.status.get(), Status::RESTARTING.0);
    // Loaded images stay, and run when the cores are back.
    let limit = Instant::now() + Duration::from_secs(60);
    let mut seen = vec![channel_state(&card, lost)];
    while seen.last().unwrap() != "0\n" {
        assert!(Instant::now() < limit, "it does not come back");
        std::thread::sleep(Duration::from_millis(1));
        seen.push(channel_state(&card, lost));
    }
    seen.pop();
    assert!(
        seen.is_sorted() && seen.iter().all(|state| ["2\n", "3\n", "4\n"].contains(&state.as_str())),
        "{seen:?}"
    );
    assert_eq!(card.try_activate(elf, 8).0, Ok(()));
    assert_eq!((channel_state(&card, lost), card.counts().resets), ("1\n".to_owned(), 0));
    // Listeners were notified of every state of this channel, and only of the other one's first state.
    let notified = |channel: u32| {
        let of = format!("change DBC_ID={channel} DBC_STATE=");
        let events = card.emulator.uevents(0);
        events.iter().filter_map(|event| event.strip_prefix(&of).map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(notified(lost), ["1", "2", "3", "4", "5", "0", "1"]);
    assert_eq!(notified(active.channel), ["1"]);
}

#[test]
fn crash_takes_the_whole_card_where_no_sub_system_restarts() {
    let (card, buffers) = network(Options { restarts: false, ..faulty(&["crash:1"]) });
    let state = Path::new("/sys/class/accel/accel0/dbc0_state");
    assert_eq!(card.emulator.read(state), Err(Errno::NOENT), "no channel has a state");
    let other = open(&card.emulator, 0);
    let active = other.channel(8);
    let stuck = other.stuck(&active);
    other.execute(active.channel, &[stuck]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.wait(active.channel, stuck, LONG));
        other.until_waits(1);
        card.execute(buffers.active.channel, &buffers.handles).unwrap();
        assert_eq!(waiter.join().unwrap(), Err(Errno::PERM), "the workload of another user");
    });
    let limit = Instant::now() + Duration::from_secs(60);
    while other.create(1) == Err(Errno::NODEV) {
        assert!(Instant::now() < limit, "it does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    let counts = card.counts();
    assert_eq!((counts.resets, counts.channels, counts.activations, counts.loaded), (1, 0, 0, 0));
    assert_eq!(card.emulator.uevents(0), ["offline", "online"]);
    assert_eq!(card.execute(buffers.active.channel, &buffers.handles), Err(Errno::PERM));
}

#[test]
fn reset_ends_everything_and_the_card_comes_back() {
    let (card, buffers) = network(faulty(&["reset:1"]));
    let (channel, outcome) = (buffers.active.channel, *buffers.handles.last().unwrap());
    card.execute(channel, &buffers.handles).unwrap();
    let result = card.wait(channel, outcome, LONG);
    assert!(matches!(result, Err(Errno::PERM | Errno::NODEV)), "{result:?}");
    assert_eq!(card.create(1), Err(Errno::NODEV));
    assert_eq!(try_open(&card.emulator, 0).err(), Some(Errno::NODEV));
    let limit = Instant::now() + Duration::from_secs(60);
    while card.create(1) == Err(Errno::NODEV) {
        assert!(Instant::now() < limit, "it does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The file is as good as before; what was on the device is gone.
    assert_eq!(card.execute(channel, &buffers.handles), Err(Errno::PERM));
    let events = card.emulator.uevents(0);
    assert_eq!(events, ["change DBC_ID=0 DBC_STATE=1", "offline", "online"]);
    let counts = card.counts();
    assert_eq!((counts.resets, counts.activations, counts.loaded, counts.channels), (1, 0, 0, 0));
    let active = card.channel(8);
    let poster = card.poster(&active, 3);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
}

#[test]
fn unplug_ends_every_request_and_wakes_who_waits() {
    let card = card(Options { cards: 2, ..faulty(&["unplug:9"]) });
    let machine = card.emulator.clone();
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| card.wait(active.channel, stuck, LONG));
        card.until_waits(1);
        // Whichever request is the ninth.
        while card.create(1).is_ok() {}
        let result = waiter.join().unwrap();
        assert!(matches!(result, Err(Errno::PERM | Errno::NODEV)), "{result:?}");
    });
    assert_eq!(card.create(1), Err(Errno::NODEV));
    assert_eq!(card.manage(&[Ask::Status]).0, Err(Errno::NODEV));
    assert_eq!(card.map(0x1_0000_0000, 4096).unwrap_err(), Errno::NODEV);
    assert_eq!(machine.list(Path::new("/sys/class/accel")).unwrap(), ["accel1"]);
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::NOENT));
    assert_eq!(machine.uevents(0).last().unwrap(), "offline");
    assert_eq!(open(&machine, 1).create(1), Ok(1));
    assert_eq!(card.close().users, 0);
    assert_eq!(options().cards, 1);
}
