// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The states of cards and files: opening, closing, and the effects of a reset.

use crate::common::{
    BOTH, Card, LONG, Program, bytes, card, dispatch, executing, faulty, gated, host, open, options,
    try_open, until,
};
use emulator_core::{Errno, SupervisedMachine, System};
use emulator_gaudi::{Emulator, Options};
use hal_backend::HostCall;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::uapi::{self, Call, CsIn, InfoIn, cs, event, info, status, wait};
use hal_kernel::ProgramHost;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Questions about a card that the machine does not have get no answer, or that of no card.
#[test]
fn unknown_card_number_is_refused() {
    let machine = Emulator::new(options(Generation::Gaudi2)).unwrap();
    machine.report_error(99);
    machine.pull_out(99);
    assert_eq!(machine.counts(99), Default::default());
    assert_eq!(machine.complaint(99), None);
}

#[test]
fn card_is_opened_once_at_a_time() {
    let machine = Emulator::new(options(Generation::Gaudi2)).unwrap();
    let first = open(&machine, 0);
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::BUSY));
    assert!(
        machine.holder(Path::new("/dev/accel/accel0")).unwrap().contains(&std::process::id().to_string())
    );
    assert_eq!(machine.holder(Path::new("/dev/accel/accel1")), None);
    let other = open(&machine, 1);
    assert_eq!(try_open(&machine, 2).err(), Some(Errno::NOENT));
    drop(other);
    // Another descriptor for the same open file keeps it open.
    let copy = first.file().try_clone().unwrap();
    assert!(Emulator::of(copy.as_fd()).is_some_and(|found| Arc::ptr_eq(&found, &machine)));
    first.close();
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::BUSY));
    machine.close(copy);
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::AGAIN), "the engines are being reset");
    let again = open(&machine, 0);
    let stats: uapi::OpenStats = again.info(info::OPEN_STATS).unwrap();
    assert_eq!((stats.open_counter, stats.is_compute_ctx_active), (2, 1));
    assert_eq!(machine.counts(0).hard_resets, 0);
}

#[test]
fn file_that_is_dropped_is_closed_all_the_same() {
    let machine = Emulator::new(options(Generation::Gaudi1)).unwrap();
    let file = machine.open(Path::new("/dev/accel/accel0")).unwrap();
    drop(file);
    assert_eq!(machine.holder(Path::new("/dev/accel/accel0")), None);
    assert!(try_open(&machine, 0).is_ok());
    assert!(Emulator::of(std::fs::File::open("/dev/null").unwrap().as_fd()).is_none());
}

#[test]
fn control_node_answers_every_process() {
    let machine = Emulator::new(options(Generation::Gaudi2)).unwrap();
    let _owner = open(&machine, 0);
    let path = Path::new("/dev/accel/accel_controlD0");
    let (one, two) = (machine.open(path).unwrap(), machine.open(path).unwrap());
    let mut answer = [0_u32; 2];
    let ask = |file: &std::os::fd::OwnedFd, op, answer: &mut [u32; 2]| {
        let mut request =
            InfoIn { return_pointer: answer.as_mut_ptr() as u64, return_size: 8, op, ..InfoIn::default() };
        let number = Call::Info.request(uapi::Abi::Drm);
        machine.ioctl(file.as_fd(), number, zerocopy::IntoBytes::as_mut_bytes(&mut request))
    };
    for file in [&one, &two] {
        assert_eq!(ask(file, info::DEVICE_STATUS, &mut answer), Ok(()));
        assert_eq!(ask(file, info::REGISTER_EVENTFD, &mut answer), Err(Errno::OPNOTSUPP));
        let other = machine.ioctl(file.as_fd(), Call::Memory.request(uapi::Abi::Drm), &mut [0; 40]);
        assert_eq!(other, Err(Errno::NOTTY));
    }
    machine.close(one);
    machine.close(two);
}

#[test]
fn clean_close_resets_nothing_and_leaks_are_counted() {
    for generation in BOTH {
        let card = card(options(generation));
        let _memory = card.dram(1);
        let host = host(4096);
        card.map_host(&host);
        let counts = card.counts();
        let second = u64::from(generation == Generation::Gaudi2);
        assert_eq!((counts.open_handles, counts.mapped), (second, 1 + second));
        let counts = card.close();
        assert_eq!((counts.hard_resets, counts.leaked_at_close), (0, 1 + 2 * second), "{generation}");
        assert_eq!((counts.open_handles, counts.mapped, counts.allocated_bytes), (0, 0, 0));
    }
}

/// rule(close-clean)
#[test]
fn close_with_buffers_is_clean_and_with_work_is_a_reset() {
    let live = card(executing(Generation::Gaudi1, |execution| execution.speed = 4));
    live.create(4096).unwrap();
    let machine = live.machine().clone();
    assert_eq!(live.close().hard_resets, 0);
    assert!(try_open(&machine, 0).is_ok());
    for generation in BOTH {
        let busy = card(options(generation));
        let machine = busy.machine().clone();
        let (gate, packet) = gated(&busy);
        let commands = busy.commands(&packet);
        let sequence = busy.run(&commands, 0, packet.len()).unwrap();
        gate.reached();
        assert_eq!(busy.counts().in_flight, 1);
        let _ = sequence;
        let closer = std::thread::spawn(move || {
            drop(commands);
            busy.close()
        });
        // rule(open-release): an open meanwhile fails with `EAGAIN`, and with `EBUSY` before the close.
        until("the close", || try_open(&machine, 0).err() == Some(Errno::AGAIN));
        assert!(!closer.is_finished(), "a close waits until no worker is at the memory");
        gate.open();
        assert_eq!(closer.join().unwrap().hard_resets, 1, "{generation}");
        // rule(reset-count): a reset counts when it is over.
        let next = open(&machine, 0);
        assert_eq!(next.info::<uapi::ResetCount>(info::RESET_COUNT).unwrap().hard_reset_cnt, 1);
    }
}

#[test]
fn memory_is_taken_in_pages_and_accounted() {
    let second = card(options(Generation::Gaudi2));
    let usage = |card: &Card| card.info::<uapi::DramUsage>(info::DRAM_USAGE).unwrap();
    let handle = second.alloc(1).unwrap();
    assert_eq!((usage(&second).ctx_dram_mem, usage(&second).dram_free_mem), (768 << 20, 126 * (768 << 20)));
    assert_eq!(second.counts().allocated_bytes, 768 << 20);
    second.free(handle).unwrap();
    assert_eq!(usage(&second).ctx_dram_mem, 0);
    let handles: Vec<_> = (0..127).map(|_| second.alloc(5 << 20).unwrap()).collect();
    assert_eq!(second.alloc(1), Err(Errno::NOMEM));
    assert!(handles.iter().all(|&handle| handle != 0));
    let first = card(options(Generation::Gaudi1));
    assert_eq!(first.alloc(12345), Ok(0));
    assert_eq!(usage(&first).ctx_dram_mem, 12345);
}

#[test]
fn memory_that_is_mapped_again_is_at_another_address() {
    let card = card(options(Generation::Gaudi2));
    let memory = host(4096);
    let first = card.map_host(&memory);
    card.unmap(first).unwrap();
    assert_ne!(card.map_host(&memory), first);
}

/// Submits something that never ends, as the second submission.
fn hang(card: &Card, request: &CsIn) -> u64 {
    let commands = card.commands(&Card::nop());
    card.finish(card.run(&commands, 0, 8).unwrap());
    card.run_with(request, &commands, 0, 8).unwrap()
}

/// One second, of a driver whose seconds pass quickly.
fn one_second() -> CsIn {
    CsIn { cs_flags: cs::CUSTOM_TIMEOUT, timeout: 1, ..CsIn::default() }
}

#[test]
fn timeout_of_a_submission_resets_the_card_and_wakes_all() {
    for generation in BOTH {
        let card = card(Options {
            injections: faulty(generation, &["hang:2"]).injections,
            ..executing(generation, |execution| execution.speed = 4)
        });
        let machine = card.machine().clone();
        let hung = hang(&card, &one_second());
        let behind = card.signal(0).unwrap().seq;
        let (result, answer) = card.wait_for(behind, LONG);
        assert_eq!((result, answer.status), (Err(Errno::IO), wait::ABORTED), "{generation}");
        let state: uapi::TimeoutEvent = card.info(info::CS_TIMEOUT_EVENT).unwrap();
        assert_eq!(state.seq, hung);
        assert_eq!(card.status(), status::IN_RESET);
        assert_eq!(card.wait_for(hung, Duration::ZERO).0, Err(Errno::BUSY));
        assert_eq!(card.alloc(1), Err(Errno::BUSY));
        assert_eq!(try_open(&machine, 0).err(), Some(Errno::AGAIN));
        assert_eq!(card.events(), event::CS_TIMEOUT | event::DEVICE_RESET);
        assert_eq!(card.events(), 0);
        // rule(reset-waits): it goes on when no process has the file any more, and kills those that have it.
        until("the kernel's patience", || card.counts().kills == 1);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!((card.status(), try_open(&machine, 0).err()), (status::IN_RESET, Some(Errno::AGAIN)));
        assert_eq!(card.close().hard_resets, 1);
        let again = open(&machine, 0);
        let commands = again.commands(&Card::nop());
        again.finish(again.run(&commands, 0, 8).unwrap());
        again.give_back(commands);
        assert_eq!(again.close().hard_resets, 1);
    }
}

#[test]
fn timeout_of_a_submission_is_reported_to_its_waiter() {
    let card = card(faulty(Generation::Gaudi2, &["hang:2"]));
    let hung = hang(&card, &one_second());
    let (result, answer) = card.wait_for(hung, LONG);
    assert_eq!((result, answer.status), (Err(Errno::TIMEDOUT), wait::TIMED_OUT));
}

/// What this machine takes for a host program is not the card's time.
#[test]
fn submission_has_its_timeout_beside_the_time_of_host_programs() {
    let card = card(options(Generation::Gaudi2));
    let (gate, packet) = gated(&card);
    let commands = card.commands(&packet);
    let four_seconds = CsIn { timeout: 80, ..one_second() };
    let sequence = card.run_with(&four_seconds, &commands, 0, packet.len()).unwrap();
    gate.reached();
    std::thread::sleep(Duration::from_secs(5));
    let seen = (card.status(), card.events());
    gate.open();
    assert_eq!(seen, (status::OPERATIONAL, 0));
    card.finish(sequence);
    card.give_back(commands);
    assert_eq!(card.close().hard_resets, 0);
}

#[test]
fn timeout_need_not_reset() {
    let card = card(faulty(Generation::Gaudi2, &["hang:2"]));
    let request = one_second();
    let flags = request.cs_flags | cs::SKIP_RESET_ON_TIMEOUT;
    let hung = hang(&card, &CsIn { cs_flags: flags, ..request });
    // rule(cs-timeout): the timeout is reported once, and it is still in flight.
    until("the event", || card.events() == event::CS_TIMEOUT);
    let state: uapi::TimeoutEvent = card.info(info::CS_TIMEOUT_EVENT).unwrap();
    assert_eq!(state.seq, hung);
    let (result, answer) = card.wait_for(hung, Duration::from_millis(10));
    assert_eq!((result, answer.status, card.counts().in_flight), (Ok(()), wait::BUSY, 1));
    assert_eq!(card.status(), status::OPERATIONAL);
    // Other queues go on.
    let commands = card.commands(&Card::nop());
    card.finish(card.run(&commands, 1, 8).unwrap());
    assert_eq!(card.counts().hard_resets, 0);
    assert_eq!(card.close().hard_resets, 1, "the queue is stuck at close");
}

fn eventfd() -> std::os::fd::OwnedFd {
    use rustix::event::EventfdFlags;
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn register(card: &Card, file: &impl AsRawFd) -> Result<(), Errno> {
    let number = u32::try_from(file.as_raw_fd()).unwrap();
    let request = InfoIn { op: info::REGISTER_EVENTFD, dcore_id: number, ..InfoIn::default() };
    card.call::<_, [u8; 24]>(Call::Info, &request).0
}

#[test]
fn listener_to_notices_has_time_to_close() {
    let card = card(Options {
        injections: faulty(Generation::Gaudi2, &["hang:2"]).injections,
        ..executing(Generation::Gaudi2, |execution| execution.speed = 10)
    });
    let machine = card.machine().clone();
    let notifier = eventfd();
    assert_eq!(register(&card, &notifier), Ok(()));
    assert_eq!(register(&card, &notifier), Err(Errno::INVAL));
    let hung = hang(&card, &one_second());
    let mut counter = [0; 8];
    until("the notification", || rustix::io::read(&notifier, &mut counter.clone()).is_ok());
    let _ = rustix::io::read(&notifier, &mut counter);
    assert_eq!((card.status(), card.counts().hard_resets), (status::OPERATIONAL, 0));
    assert_eq!(card.wait_for(hung, LONG).0, Err(Errno::BUSY));
    assert_eq!(card.events(), event::CS_TIMEOUT | event::DEVICE_RESET);
    // The file is not closed: the watchdog resets the card, and the process that has the file is killed.
    until("the watchdog", || card.counts().hard_resets == 1);
    until("the kernel's patience", || card.counts().kills == 1);
    drop(card);
    // A close in time resets the card.
    let card = open(&machine, 0);
    assert_eq!(register(&card, &notifier), Ok(()));
    let request = InfoIn { op: info::UNREGISTER_EVENTFD, ..InfoIn::default() };
    assert_eq!(card.call::<_, [u8; 24]>(Call::Info, &request).0, Ok(()));
    assert_eq!(register(&card, &notifier), Ok(()));
    let bad = card.commands(&[0; 8]);
    card.run(&bad, 0, 8).unwrap();
    until("the event", || card.counts().in_flight == 1 && card.events() & event::UNDEFINED_OPCODE != 0);
    assert_eq!(card.close().hard_resets, 2);
}

/// A sleeping program with an eventfd gets the error; a later request finds the card busy
/// (`hl_device_cond_reset`, `hl_abort_waiting_for_cs_completions`, `hl_wait_ioctl`).
#[test]
fn notified_error_ends_waits_with_an_error_and_refuses_new_ones() {
    for generation in BOTH {
        let card = card(faulty(generation, &["hang:2"]));
        let notifier = eventfd();
        register(&card, &notifier).unwrap();
        let hung = hang(&card, &CsIn::default());
        let waits = card.counts().waits;
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| card.wait_for(hung, LONG));
            // A wait is counted under the lock under which it begins to sleep.
            until("the sleeper sleeps", || card.counts().waits > waits);
            card.machine().report_error(0);
            let (result, answer) = sleeper.join().unwrap();
            assert_eq!((result, answer.status), (Err(Errno::IO), wait::ABORTED), "{generation}");
        });
        assert_eq!(card.wait_for(hung, Duration::ZERO).0, Err(Errno::BUSY));
        assert_eq!(card.events(), event::USER_ENGINE_ERROR | event::DEVICE_RESET);
        // Closing in time is a reset, and kills no process.
        assert_eq!((card.counts().hard_resets, card.counts().kills), (0, 0));
        let after = card.close();
        assert_eq!((after.hard_resets, after.kills), (1, 0));
    }
}

/// The card of a program without an eventfd is reset at once, and the program is killed if the file stays open
/// for a second
/// (`device_kill_open_processes`).
#[test]
fn error_without_a_listener_kills_holders_of_the_file() {
    for closes in [true, false] {
        let card = card(options(Generation::Gaudi2));
        let machine = card.machine().clone();
        machine.report_error(0);
        assert_eq!(card.counts().hard_resets, 1);
        if closes {
            drop(card);
            // Its reset is over, and with it the time at which it would be killed.
            drop(open(&machine, 0));
            assert_eq!(machine.counts(0).kills, 0);
        } else {
            until("the kernel's patience", || card.counts().kills == 1);
        }
    }
}

#[test]
fn reset_wakes_every_waiter_whatever_it_waits_for() {
    for generation in BOTH {
        let card = card(faulty(generation, &["reset:4"]));
        let (gate, packet) = gated(&card);
        let commands = card.commands(&packet);
        let running = card.run(&commands, 0, packet.len()).unwrap();
        let queued = card.run(&commands, 0, packet.len()).unwrap();
        let signal = card.signal(0).unwrap().seq;
        gate.reached();
        let waits = card.counts().waits;
        std::thread::scope(|scope| {
            let wait = |sequence| {
                let card = &card;
                scope.spawn(move || card.wait_for(sequence, LONG).0)
            };
            let waiters = [running, queued, signal].map(wait);
            let map = (generation == Generation::Gaudi1).then(|| {
                let card = &card;
                scope.spawn(move || {
                    let list = [running, queued];
                    let request = uapi::WaitIn {
                        seq: list.as_ptr() as u64,
                        seq_arr_len: 2,
                        flags: wait::MULTI_CS,
                        timeout_us: 60_000_000,
                        ..uapi::WaitIn::default()
                    };
                    card.call::<_, uapi::WaitOut>(Call::Wait, &request)
                })
            });
            let sleepers = 3 + u64::from(map.is_some());
            until("all sleep", || card.counts().waits == waits + sleepers);
            let plain = card.commands(&Card::nop());
            card.run(&plain, 1, 8).unwrap();
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), Err(Errno::IO), "{generation}");
            }
            if let Some(map) = map {
                // rule(multi-wait): one that failed fails the wait.
                assert_eq!(map.join().unwrap().0, Err(Errno::IO));
            }
        });
        // The reset is not over before the last worker has left what was before.
        drop(commands);
        let machine = card.machine().clone();
        let closer = std::thread::spawn(move || card.close());
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(try_open(&machine, 0).err(), Some(Errno::AGAIN));
        gate.open();
        closer.join().unwrap();
        drop(open(&machine, 0));
    }
}

/// The reaction of a card to packets that hardware does not take.
fn trouble(generation: Generation, queue: u32, packets: impl Fn(&Card) -> Vec<u8>, events: u64) -> Card {
    let card = card(options(generation));
    let packets = packets(&card);
    let commands = card.commands(&packets);
    let sequence = card.run(&commands, queue, packets.len()).unwrap();
    card.stopped(sequence);
    // rule(error-events)
    let always = event::USER_ENGINE_ERROR | event::DEVICE_RESET;
    assert_eq!(card.events(), events | always, "{:?}", card.complaint());
    card
}

#[test]
fn hardware_finds_errors_that_the_driver_does_not_check() {
    let second = Generation::Gaudi2;
    let card =
        trouble(second, 0, |card| card.copy(0xFFF0_1234_0000_0000, card.dram(1), 64), event::PAGE_FAULT);
    let fault: uapi::PageFault = card.info(info::PAGE_FAULT_EVENT).unwrap();
    assert_eq!((fault.addr, fault.engine_id), (0xFFF0_1234_0000_0000, 0));
    let card = trouble(second, 21, |_| vec![0; 8], event::UNDEFINED_OPCODE);
    let answer: [u64; 36] = card.info(info::UNDEFINED_OPCODE_EVENT).unwrap();
    assert!(answer[0] > 0 && answer[35] == (5 | 1 << 32), "{answer:?}");
    trouble(second, 0, |_| vec![0; 12], event::UNDEFINED_OPCODE);
    trouble(second, 0, |card| card.copy(1, 2, 3)[..16].to_vec(), event::UNDEFINED_OPCODE);
    trouble(second, 20, |_| dispatch(77, 0, [1; 3], &[], &[]), event::UNDEFINED_OPCODE);
    // A transfer engine of the device's inside, and memory of the host.
    trouble(
        second,
        8,
        |card| {
            let memory = host(4096);
            let address = card.map_host(&memory);
            std::mem::forget(memory);
            card.copy(address, card.dram(1), 64)
        },
        event::USER_ENGINE_ERROR,
    );
    // A transfer that does not say that it is linear.
    let strided = |card: &Card| {
        let mut packet = card.copy(0x2000_0000, 0x2000_1000, 64);
        packet[4] &= !8;
        packet
    };
    trouble(Generation::Gaudi1, 0, strided, event::USER_ENGINE_ERROR);
    let failing = |card: &Card| {
        let fail = |_: &HostCall<'_>, _: std::ops::Range<u64>| {
            Err(hal_backend::Failure::new(hal_backend::Code::DataLoss, "the sum is wrong"))
        };
        dispatch(card.machine().load(Arc::new(Program(fail))), 0, [1; 3], &[], &[])
    };
    let card = trouble(second, 20, failing, event::USER_ENGINE_ERROR);
    assert!(card.complaint().unwrap().contains("the sum is wrong"));
}

#[test]
fn commands_where_nothing_is_mapped_are_a_page_fault() {
    let card = card(options(Generation::Gaudi2));
    let commands = card.commands(&Card::nop());
    card.unmap(commands.handle).unwrap();
    let sequence = card.run(&commands, 0, 8).unwrap();
    card.lost(sequence);
    assert_eq!(card.events(), event::PAGE_FAULT | event::USER_ENGINE_ERROR | event::DEVICE_RESET);
}

#[test]
fn commands_are_copied_on_the_first_generation_and_read_late_on_the_second() {
    for generation in BOTH {
        let card = card(options(generation));
        let (gate, packet) = gated(&card);
        let memory = host(4096);
        let address = card.map_host(&memory);
        let held = card.commands(&packet);
        let first = card.run(&held, 0, packet.len()).unwrap();
        let fill = card.commands(&card.fill([1; 4], address, 8));
        let second = card.run(&fill, 0, 24).unwrap();
        assert!(fill.range.write(0, &card.fill([2; 4], address, 8)));
        gate.open();
        card.finish(first);
        card.finish(second);
        let found = if generation == Generation::Gaudi1 { 1 } else { 2 };
        assert_eq!(bytes(&memory, 0, 8), [found; 8], "{generation}");
    }
}

#[test]
fn same_options_are_the_same_machine() {
    let shared = executing(Generation::Gaudi2, |execution| execution.seed = 4711);
    let one = Emulator::get(&shared).unwrap();
    let two = Emulator::get(&shared).unwrap();
    assert!(Arc::ptr_eq(&one, &two));
    let other = Emulator::get(&executing(Generation::Gaudi2, |execution| execution.seed = 4712)).unwrap();
    assert!(!Arc::ptr_eq(&one, &other));
    let weak = Arc::downgrade(&one);
    drop((one, two));
    assert!(weak.upgrade().is_none());
    assert_eq!(Emulator::get(&shared).unwrap().counts(0).opens, 0, "a new one");
}

#[test]
fn file_system_shows_the_cards() {
    for generation in BOTH {
        let machine = Emulator::new(options(generation)).unwrap();
        // The driver puts its control devices into the same class. rule(sysfs-control)
        let listed = machine.list(Path::new("/sys/class/accel")).unwrap();
        assert_eq!(listed, ["accel0", "accel_controlD0", "accel1", "accel_controlD1"]);
        assert_eq!(machine.read(Path::new("/sys/class/accel/accel_controlD0/pci_addr")), Err(Errno::NOENT));
        let read = |name: &str| machine.read(&Path::new("/sys/class/accel/accel1/device").join(name));
        let second = generation == Generation::Gaudi2;
        assert_eq!(read("vendor").unwrap(), "0x1da3\n");
        assert_eq!(read("device").unwrap(), if second { "0x1020\n" } else { "0x1000\n" });
        // The driver raises the first letter (`status_show`).
        assert_eq!(read("status").unwrap(), "Operational\n");
        assert_eq!(read("device_type").unwrap(), if second { "GAUDI2\n" } else { "GAUDI\n" });
        assert_ne!(read("pci_addr").unwrap(), "");
        assert_eq!(read("colour"), Err(Errno::NOENT));
        assert_eq!(machine.list(Path::new("/sys/class/drm")), Err(Errno::NOENT));
    }
}

/// rule(sysfs-old)
#[test]
fn older_drivers_have_their_attributes_elsewhere() {
    let machine = Emulator::new(Options { abi: uapi::Abi::Old, ..options(Generation::Gaudi2) }).unwrap();
    let read = |name: &str| machine.read(&Path::new("/sys/class/accel/accel1").join(name));
    assert_eq!(read("device_type").unwrap(), "GAUDI2\n");
    assert_eq!(read("pci_addr").unwrap(), "0000:11:00.0\n");
    assert_eq!((read("device/pci_addr"), read("device/vendor")), (Err(Errno::NOENT), Err(Errno::NOENT)));
}

/// rule(debugfs)
#[test]
fn words_of_a_programs_memory_are_debugged_by_their_device_addresses() {
    for (abi, folder) in [(uapi::Abi::Drm, "accel/0000:11:00.0"), (uapi::Abi::Old, "habanalabs/hl1")] {
        for generation in BOTH {
            let machine = Emulator::new(Options { abi, ..options(generation) }).unwrap();
            let path = |name: &str| Path::new("/sys/kernel/debug").join(folder).join(name);
            let read = |name| machine.read(&path(name));
            let write = |name, text: &str| machine.write_attribute(&path(name), text.as_bytes());
            assert_eq!(read("addr").unwrap(), "0x0000000000000000\n");
            assert_eq!(read("data32"), Err(Errno::INVAL), "no program has the card open");
            let card = open(&machine, 1);
            let memory = host(4096);
            let address = card.map_host(&memory);
            let text = format!("{:#x}\0", address + 8);
            assert_eq!(write("addr", &text), Ok(text.len()));
            assert_eq!(write("data64", "0x1122334455667788\n"), Ok(19));
            assert_eq!(read("data64").unwrap(), "0x1122334455667788\n");
            assert_eq!(read("data32").unwrap(), "0x55667788\n");
            assert_eq!((write("data32", "9"), write("data32", "0x100000000")), (Ok(1), Err(Errno::RANGE)));
            assert_eq!(bytes(&memory, 8, 8), [9, 0, 0, 0, 0x44, 0x33, 0x22, 0x11]);
            // Memory of the card.
            write("addr", &card.dram(1).to_string()).unwrap();
            assert_eq!(
                (write("data64", "abc"), read("data64")),
                (Ok(3), Ok("0x0000000000000abc\n".to_owned()))
            );
            write("addr", &format!("{:#x}", address + 4094)).unwrap();
            assert_eq!((read("data32"), write("data64", "1")), (Err(Errno::INVAL), Err(Errno::INVAL)));
            assert_eq!(
                (write("addr", "a page"), write("colour", "1")),
                (Err(Errno::INVAL), Err(Errno::NOENT))
            );
            assert_eq!((read("clk_gate"), write("clk_gate", "0")), (Ok(String::new()), Ok(1)));
            card.machine().report_error(1);
            assert_eq!((read("data32"), write("data32", "1")), (Ok(String::new()), Ok(0)));
            card.machine().pull_out(1);
            assert_eq!((read("addr"), write("addr", "1")), (Err(Errno::IO), Err(Errno::IO)));
        }
    }
}

/// rule(error-events): on the first generation an engine's error is a notice. The work stands still, the rest of the
/// card goes on, and the reset comes with the timeout or the close.
#[test]
fn error_of_an_engine_of_the_first_generation_only_notifies() {
    let fault = |card: &Card| card.copy(0x1_0000_1234_0000, card.dram(1), 64);
    let card = trouble(Generation::Gaudi1, 0, fault, event::PAGE_FAULT);
    let found: uapi::PageFault = card.info(info::PAGE_FAULT_EVENT).unwrap();
    assert_eq!(found.addr, 0x1_0000_1234_0000);
    assert!(card.complaint().unwrap().contains("stands still"), "{:?}", card.complaint());
    assert_eq!(
        (card.status(), card.counts().hard_resets, card.counts().in_flight),
        (status::OPERATIONAL, 0, 1)
    );
    let commands = card.commands(&Card::nop());
    card.finish(card.run(&commands, 1, 8).unwrap());
    assert_eq!(card.wait_for(card.run(&commands, 0, 8).unwrap(), Duration::ZERO).1.status, wait::BUSY);
    card.give_back(commands);
    let after = card.close();
    assert_eq!((after.hard_resets, after.kills), (1, 0));
    // And a program with an eventfd that does not close.
    let card = self::card(executing(Generation::Gaudi1, |execution| execution.speed = 20));
    let notifier = eventfd();
    register(&card, &notifier).unwrap();
    let bad = fault(&card);
    let commands = card.commands(&bad);
    let chunk = one_second();
    let sequence = card.run_with(&chunk, &commands, 0, bad.len()).unwrap();
    until("the notification", || rustix::io::read(&notifier, &mut [0; 8]).is_ok());
    assert_eq!(card.wait_for(sequence, Duration::ZERO).1.status, wait::BUSY);
    until("its timeout", || card.events() & event::CS_TIMEOUT != 0);
}
