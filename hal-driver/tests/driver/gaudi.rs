// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Emulated Gaudi cards as an IREE program sees them: order, every kind of memory, and resets.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a failed expectation ends the test"
)]

use crate::common::chain::{LENGTH, chain, dependent_fills, fills};
use crate::common::{Buffer, Device, List, Semaphore};
use hal_semaphore::Code;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The URI of a card in a machine that no other test uses.
fn card(generation: u32, rest: &str) -> String {
    static MACHINES: AtomicU64 = AtomicU64::new(1);
    let machine = MACHINES.fetch_add(1, Ordering::Relaxed);
    format!("gaudi://emulated?generation=gaudi{generation}&seed={machine}{rest}")
}

/// An emulated card of each generation, or the card that the environment names, to run these tests on silicon.
fn cards() -> Vec<String> {
    match std::env::var("HAL_GAUDI_CARD") {
        Ok(uri) => vec![uri],
        Err(_) => vec![card(1, ""), card(2, "")],
    }
}

/// The other card of the same machine, which keeps the machine.
fn neighbour(uri: &str) -> String {
    uri.replace("gaudi://emulated?", "gaudi://emulated/1?")
}

#[test]
fn bytes_end_where_plain_memory_has_them() {
    for uri in cards() {
        let device = Device::open(&uri).unwrap();
        for seed in 1..12 {
            chain(&device, seed, 150);
        }
    }
}

#[test]
fn order_holds_when_queues_overtake_each_other() {
    for generation in [1, 2] {
        for rest in [
            "&fault=jitter",
            "&schedule=seeded",
            "&fault=eintr:3",
            "&fault=submit:EAGAIN:40:25",
            "&in_flight=16",
            "&fault=no-signals",
        ] {
            let device = Device::open(&card(generation, rest)).unwrap();
            chain(&device, 77, 120);
        }
    }
}

#[test]
fn queues_that_wait_for_each_other_before_anything_is_signalled() {
    for uri in cards() {
        let device = Device::open(&uri).unwrap();
        let buffer = device.local_buffer(64);
        let (start, order) = (device.semaphore(0), device.semaphore(0));
        // All of it is submitted before the host releases the first one.
        for step in 0..400_u64 {
            let waits = if step == 0 { start.at(1) } else { order.at(step) };
            device
                .fill_on(1 << (step % 4), &waits, &order.at(step + 1), &buffer, (0, 64), &[step as u8])
                .unwrap();
        }
        assert_eq!(order.value().unwrap(), 0);
        start.signal(1).unwrap();
        order.wait(400).unwrap();
    }
}

#[test]
fn many_threads_share_a_card() {
    for uri in cards() {
        let device = Device::open(&uri).unwrap();
        std::thread::scope(|scope| {
            for seed in 1..5 {
                let device = &device;
                scope.spawn(move || chain(device, seed * 1000, 100));
            }
        });
    }
}

#[test]
fn file_is_read_into_memory_that_cannot_be_mapped() {
    // The conformance suite has more; here are more chunks than staging buffers, and an odd end.
    for uri in cards() {
        let device = Device::open(&uri).unwrap();
        let length = (21 << 20) + 12_345;
        let buffer = device.alloca(&List::none(), &List::none(), 4096).unwrap();
        drop(buffer);
        let (local, read) = (device.local_buffer(length), device.buffer(length));
        let done = device.semaphore(0);
        let bytes: Vec<u8> = (0..length).map(|at| ((at * 31) >> 5) as u8).collect();
        let file = crate::common::File::with(&bytes);
        device.read_file(&List::none(), &done.at(1), &file, 0, &local, length).unwrap();
        device.copy(&done.at(1), &done.at(2), &local, &read, length).unwrap();
        done.wait(2).unwrap();
        assert!(read.read() == bytes);
        let other = crate::common::File::with(&vec![0; length]);
        device.write_file(&done.at(2), &done.at(3), &local, &other, 0, length).unwrap();
        done.wait(3).unwrap();
        assert!(other.read() == bytes);
    }
}

/// Checks the failure of everything that a reset ends.
fn is_lost(semaphore: &Semaphore, value: u64) -> String {
    let begin = Instant::now();
    let failed = semaphore.wait(value).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(60), "a waiter slept through the reset");
    assert_eq!(failed.code, Code::Aborted, "{}", failed.text);
    assert!(failed.text.contains("accel0"), "{}", failed.text);
    failed.text
}

/// Opens the card again, and uses it.
fn reopens(uri: &str) {
    let device = Device::open(uri).unwrap();
    chain(&device, 5, 20);
}

#[test]
fn reset_wakes_every_waiter_and_the_card_opens_again() {
    for generation in [1, 2] {
        // At the first submission, in the middle of a chain, and between queues.
        for at in [1, 2, 7, 30] {
            let uri = card(generation, &format!("&fault=reset:{at}"));
            let _machine = Device::open(&neighbour(&uri)).unwrap();
            {
                let device = Device::open(&uri).unwrap();
                let buffer = device.local_buffer(4096);
                let (order, held, never) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
                assert_eq!(dependent_fills(&device, &order, &buffer, 4096, 4, 40), 40);
                // Blocked on the host, for a signal that has not happened yet, and then for one that never will.
                let both = List::of(&[(&order, 40), (&never, 1)]);
                device.barrier(&both, &held.at(1)).unwrap();
                let texts = [is_lost(&order, 40), is_lost(&held, 1)];
                assert_eq!(texts[0], texts[1], "one cause for all");
                // Later work fails in the same way, at once or when it is waited for.
                let later = device.semaphore(0);
                if device.fill(&List::none(), &later.at(1), &buffer, (0, 64), &[1]).is_ok() {
                    is_lost(&later, 1);
                }
            }
            reopens(&uri);
        }
    }
}

/// A card has one user at a time, which is this process: each of its threads gets it, while others open and close
/// it.
#[test]
fn threads_open_and_close_one_card_at_once() {
    let uri = card(2, "");
    let _machine = Device::open(&neighbour(&uri)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..40 {
                    drop(Device::open(&uri).unwrap());
                }
            });
        }
    });
}

#[test]
fn submission_that_hangs_is_reported_and_the_card_opens_again() {
    for generation in [1, 2] {
        let uri = card(generation, "&fault=hang:3&speed=8");
        let _machine = Device::open(&neighbour(&uri)).unwrap();
        {
            let device = Device::open(&format!("{uri}&timeout=8")).unwrap();
            let buffer = device.local_buffer(64);
            let order = device.semaphore(0);
            assert_eq!(dependent_fills(&device, &order, &buffer, 64, 1, 10), 10);
            let text = is_lost(&order, 10);
            assert!(text.contains("8 s"), "{text}");
        }
        reopens(&uri);
    }
}

#[test]
fn card_that_is_taken_out_at_any_call_leaves_no_waiter() {
    for generation in [1, 2] {
        for at in (1..90).step_by(7) {
            let uri = card(generation, &format!("&fault=unplug:{at}"));
            let Ok(device) = Device::open(&uri) else { continue };
            let Ok(buffer) = device.try_buffer(4096) else { continue };
            let order = device.semaphore(0);
            let submitted = dependent_fills(&device, &order, &buffer, 4096, 4, 20);
            // Either it was done before, or its signal fails.
            let _ = order.wait(submitted).map_err(|failed| assert_ne!(failed.code, Code::DeadlineExceeded));
        }
    }
}

#[test]
fn half_a_transfer_is_never_taken_for_a_whole_one() {
    for generation in [1, 2] {
        let uri = card(generation, "&fault=partial:2");
        let device = Device::open(&uri).unwrap();
        let (buffer, order) = (device.buffer(4096), device.semaphore(0));
        device.fill(&List::none(), &order.at(1), &buffer, (0, 4096), &[1]).unwrap();
        device.fill(&order.at(1), &order.at(2), &buffer, (0, 4096), &[2]).unwrap();
        is_lost(&order, 2);
    }
}

#[test]
fn device_that_goes_with_work_pending_leaves_the_card_whole() {
    for generation in [1, 2] {
        let uri = card(generation, "&fault=jitter");
        let _machine = Device::open(&neighbour(&uri)).unwrap();
        for round in 0..5 {
            let device = Device::open(&uri).unwrap();
            let (buffer, order, never) =
                (device.local_buffer(1 << 20), device.semaphore(0), device.semaphore(0));
            assert_eq!(dependent_fills(&device, &order, &buffer, 1 << 20, 4, 50), 50);
            device.barrier(&never.at(1), &order.at(51)).unwrap();
            let begin = Instant::now();
            drop(device);
            assert!(begin.elapsed() < Duration::from_secs(60), "round {round}");
        }
        reopens(&uri);
    }
}

#[test]
fn refused_submission_fails_alone_and_the_queue_goes_on() {
    for generation in [1, 2] {
        for (errno, code) in [("EINVAL", Code::InvalidArgument), ("ENOMEM", Code::ResourceExhausted)] {
            let device = Device::open(&card(generation, &format!("&fault=submit:{errno}:3"))).unwrap();
            let buffer = device.local_buffer(64);
            assert_eq!(fills(&device, &buffer, 8), [(2, code)], "generation {generation}, {errno}");
            assert_eq!(fills(&device, &buffer, 8), []);
        }
    }
}

#[test]
fn card_that_has_no_memory_left_says_so_and_works_on() {
    for generation in [1, 2] {
        // The first generation's device memory need not be allocated in the kernel.
        if generation == 2 {
            let failed = Device::open(&card(generation, "&fault=alloc:1")).err().unwrap();
            assert_eq!(failed.code, Code::ResourceExhausted, "{}", failed.text);
            // More than the rest of the first page from the kernel.
            let device = Device::open(&card(generation, "&fault=alloc:2")).unwrap();
            let failed = device.try_local_buffer(1 << 30).err().unwrap();
            assert_eq!(failed.code, Code::ResourceExhausted);
            assert!(
                failed.text.contains("accel0") && failed.text.contains("1073741824 bytes"),
                "{}",
                failed.text
            );
            assert_eq!(fills(&device, &device.local_buffer(4096), 4), []);
        }
        // The second generation maps device memory first.
        let device = Device::open(&card(generation, &format!("&fault=map:{generation}"))).unwrap();
        let failed = device.try_buffer(4096).err().unwrap();
        assert_eq!(failed.code, Code::ResourceExhausted);
        assert!(
            failed.text.contains("there is not enough memory") && failed.text.contains("ask for less"),
            "{}",
            failed.text
        );
        assert_eq!(fills(&device, &device.buffer(4096), 4), []);
        // More than there is.
        let huge = device.try_local_buffer(1 << 40).err().unwrap();
        assert_eq!(huge.code, Code::ResourceExhausted, "{}", huge.text);
    }
}

#[test]
fn kernels_that_forget_early_or_cannot_wait_for_several_are_no_worse() {
    for (generation, rest) in [(1, "&fault=no-multi"), (1, "&fault=gone:1"), (2, "&fault=gone:1")] {
        let device = Device::open(&card(generation, rest)).unwrap();
        chain(&device, 3, 100);
    }
}

#[test]
fn card_that_is_busy_with_a_reset_when_it_is_asked_is_lost() {
    for generation in [1, 2] {
        let device = Device::open(&card(generation, "&fault=submit:EBUSY:3")).unwrap();
        let (buffer, order) = (device.local_buffer(64), device.semaphore(0));
        dependent_fills(&device, &order, &buffer, 64, 1, 8);
        is_lost(&order, 8);
    }
}

#[test]
fn card_that_is_broken_stays_so_and_says_it() {
    for generation in [1, 2] {
        let uri = card(generation, "&fault=malfunction:2");
        let _machine = Device::open(&neighbour(&uri)).unwrap();
        {
            let device = Device::open(&uri).unwrap();
            let (buffer, order) = (device.local_buffer(64), device.semaphore(0));
            assert_eq!(dependent_fills(&device, &order, &buffer, 64, 1, 4), 4);
            is_lost(&order, 4);
        }
        let failed = Device::open(&format!("{uri}&open_timeout=1")).err().unwrap();
        assert_eq!(failed.code, Code::FailedPrecondition, "{}", failed.text);
        assert!(failed.text.contains("load its driver again"), "{}", failed.text);
    }
}

#[test]
fn card_that_cannot_be_opened_says_what_to_do() {
    let says = Device::cannot_be_opened;
    // No machine that runs these tests has a card.
    if !std::path::Path::new("/sys/class/accel/accel0").exists() {
        says("gaudi://", Code::NotFound, "gaudi://emulated");
        says("gaudi", Code::NotFound, "habanalabs");
        says("gaudi://0", Code::NotFound, "gaudi://emulated");
    }
    says("gaudi:///dev/hl9", Code::NotFound, "/dev/hl9");
    says("gaudi:///dev/null", Code::InvalidArgument, "not a habanalabs device");
    says("gaudi://emulated/7", Code::NotFound, "cards=8");
    says("gaudi://emulated/x", Code::NotFound, "emulated/0");
    says("gaudi://emulated?generation=gaudi9", Code::InvalidArgument, "gaudi1, gaudi2");
    says("gaudi://emulated?colour=red", Code::InvalidArgument, "colour");
    says("gaudi://emulated?timeout=0", Code::InvalidArgument, "timeout");
    says("gaudi://emulated?fault=nonsense", Code::InvalidArgument, "fault");
    says("gaudi://fd/9999", Code::InvalidArgument, "no open descriptor");
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let uri = format!("gaudi://fd/{}", std::os::fd::AsRawFd::as_raw_fd(&null));
    says(&uri, Code::InvalidArgument, "habanalabs");
    says(&card(2, "&open_timeout=0&fault=open:EBUSY:9"), Code::Unavailable, "in use by");
    says(&card(2, "&open_timeout=0&fault=open:EAGAIN:9"), Code::Unavailable, "open_timeout");
    says(&card(2, "&fault=open:EPERM:9"), Code::FailedPrecondition, "reset it");
    // A reset that ends in time is waited for.
    assert!(Device::open(&card(2, "&fault=open:EAGAIN:3")).is_ok());
    assert!(Device::open(&card(2, "&abi=old")).is_ok(), "an older kernel's numbers");
    assert!(Device::open(&card(2, "&fault=short-info")).is_ok(), "an older kernel's answers");
}

/// One card's memory in bounced operations of another device.
mod neighbours {
    use super::{Buffer, Device, LENGTH, List, card, neighbour};

    /// A card, its neighbour, and a device that works on the host.
    fn three() -> [Device; 3] {
        let uri = card(2, "");
        [
            Device::open(&uri).unwrap(),
            Device::open(&neighbour(&uri)).unwrap(),
            Device::open("mock://0").unwrap(),
        ]
    }

    fn read(device: &Device, buffer: &Buffer) -> Vec<u8> {
        let (visible, done) = (device.buffer(LENGTH), device.semaphore(0));
        device.copy(&List::none(), &done.at(1), buffer, &visible, LENGTH).unwrap();
        done.wait(1).unwrap();
        visible.read()
    }

    #[test]
    fn each_device_fills_and_copies_what_only_another_can_reach() {
        let devices = three();
        for (owner, worker) in [(0, 1), (1, 0), (0, 2), (1, 2)] {
            let (owner, worker) = (&devices[owner], &devices[worker]);
            let (theirs, own) = (owner.local_buffer(LENGTH), worker.local_buffer(LENGTH));
            let order = worker.semaphore(0);
            worker.fill(&List::none(), &order.at(1), &own, (0, LENGTH), &[3]).unwrap();
            // To it, from it, and within it, on every queue.
            worker.copy_on(1, &order.at(1), &order.at(2), (&own, 0), (&theirs, 0), LENGTH).unwrap();
            worker.fill_on(2, &order.at(2), &order.at(3), &theirs, (16, 32), &[9, 8]).unwrap();
            worker.update_on(1, &order.at(3), &order.at(4), &[1, 2, 3, 4, 5], (&theirs, 100)).unwrap();
            worker.copy_on(2, &order.at(4), &order.at(5), (&theirs, 0), (&own, 0), LENGTH).unwrap();
            order.wait(5).unwrap();
            let mut expected = vec![3; LENGTH];
            expected[16..48].copy_from_slice(&[9, 8].repeat(16));
            expected[100..105].copy_from_slice(&[1, 2, 3, 4, 5]);
            assert!(read(owner, &theirs) == expected);
            assert!(read(worker, &own) == expected);
        }
    }

    #[test]
    fn bounced_memory_is_waited_for_and_fails_like_anything_else() {
        let [one, two, _] = three();
        let (theirs, own) = (one.local_buffer(LENGTH), two.local_buffer(LENGTH));
        let (start, end) = (one.semaphore(0), two.semaphore(0));
        two.copy(&start.at(1), &end.at(1), &own, &theirs, LENGTH).unwrap();
        assert_eq!(end.value().unwrap(), 0);
        start.signal(1).unwrap();
        end.wait(1).unwrap();
        // The owner's card is reset while it fetches: the waiters for the other card's work are notified.
        let uri = card(1, "&fault=reset:1");
        let other = Device::open(&neighbour(&uri)).unwrap();
        let broken = Device::open(&uri).unwrap();
        let (theirs, own) = (broken.local_buffer(LENGTH), other.local_buffer(LENGTH));
        let end = other.semaphore(0);
        other.copy(&List::none(), &end.at(1), &theirs, &own, LENGTH).unwrap();
        super::is_lost(&end, 1);
    }
}

/// A container of the card's own, as a compiler for it would write it, run by its transfer engines.
mod containers {
    use super::{Code, Device, LENGTH, List, card, neighbour};
    use hal_gaudi::executable::{Container, DataSegment, Entry, FORMAT, Patch, PatchKind, Step};
    use hal_gaudi::generation::{Generation, Lane};
    use hal_gaudi::packet;

    fn patch(offset: u32, kind: PatchKind) -> Patch {
        Patch { offset, kind }
    }

    /// A function of three steps on three lanes: it repeats a constant over the first binding, copies the first
    /// binding to the second, and copies the executable's data in device memory over the beginning of the second.
    fn container(generation: Generation) -> Container {
        container_that_fills_on(Lane::DeviceToDevice, generation)
    }

    /// The same for a first binding in memory that this lane writes.
    fn container_that_fills_on(lane: Lane, generation: Generation) -> Container {
        let fill = Step {
            lane,
            template: packet::fill(generation, [0; 4], 0, 0).to_vec(),
            patches: vec![
                patch(0, PatchKind::BindingLengthWord { binding: 0 }),
                patch(8, PatchKind::Constant { constant: 0 }),
                patch(12, PatchKind::Constant { constant: 0 }),
                patch(16, PatchKind::BindingAddress { binding: 0, addend: 0 }),
            ],
        };
        let copy = Step {
            lane: Lane::DeviceToHost,
            template: packet::copy(generation, 0, 0, 0).to_vec(),
            patches: vec![
                patch(0, PatchKind::BindingLengthWord { binding: 0 }),
                patch(8, PatchKind::BindingAddress { binding: 0, addend: 0 }),
                patch(16, PatchKind::BindingAddress { binding: 1, addend: 0 }),
            ],
        };
        let kept = Step {
            lane: Lane::DeviceToHost,
            template: packet::copy(generation, 0, 0, 8).to_vec(),
            patches: vec![
                patch(8, PatchKind::DataAddress { segment: 0, addend: 4 }),
                patch(16, PatchKind::BindingAddress { binding: 1, addend: 4 }),
            ],
        };
        Container {
            generation: Some(generation),
            data: vec![DataSegment { alignment: 1 << 16, bytes: (0..32).collect() }],
            entries: vec![Entry {
                name: "fill_and_copy".into(),
                bindings: 2,
                constants: 1,
                workgroup_size: [1; 3],
                steps: vec![fill, copy, kept],
            }],
        }
    }

    #[test]
    fn container_runs_on_the_lanes_that_it_names() {
        for (number, generation) in [(1, Generation::Gaudi1), (2, Generation::Gaudi2)] {
            let device = Device::open(&card(number, "")).unwrap();
            let executable = device.load(FORMAT, &container(generation).write()).unwrap();
            let length = LENGTH / 4 * 4;
            let (local, read) = (device.local_buffer(length), device.buffer(length));
            let done = device.semaphore(0);
            for round in 1..20_u64 {
                let constants = [0x0403_0200 + round as u32];
                let (waits, signals) = (done.at(round - 1), done.at(round));
                let queue = 1 << (round % 4);
                device.dispatch(queue, &waits, &signals, &executable, &constants, &[&local, &read]).unwrap();
            }
            done.wait(19).unwrap();
            let mut expected = [0x13, 0x02, 0x03, 0x04].repeat(length / 4);
            expected[4..12].copy_from_slice(&[4, 5, 6, 7, 8, 9, 10, 11]);
            assert!(read.read() == expected, "generation {number}");
        }
    }

    /// The expected bytes of a binding of this length.
    fn expected(length: usize, constant: u32) -> Vec<u8> {
        let mut expected = constant.to_le_bytes().repeat(length / 4);
        expected[4..12].copy_from_slice(&[4, 5, 6, 7, 8, 9, 10, 11]);
        expected
    }

    #[test]
    fn dispatch_bounces_memory_that_only_another_card_can_access() {
        for (number, generation) in [(1, Generation::Gaudi1), (2, Generation::Gaudi2)] {
            let uri = card(number, "");
            let (owner, worker) = (Device::open(&uri).unwrap(), Device::open(&neighbour(&uri)).unwrap());
            // A bounce buffer is in host memory, which another lane writes.
            let [own_first, lent_first] = [Lane::DeviceToDevice, Lane::DeviceToHost]
                .map(|lane| worker.load(FORMAT, &container_that_fills_on(lane, generation).write()).unwrap());
            let length = LENGTH / 4 * 4;
            let (theirs, too, own) =
                (owner.local_buffer(length), owner.local_buffer(length), worker.local_buffer(length));
            let (order, read) = (worker.semaphore(0), owner.buffer(length));
            let constants = [0x0504_0302];
            // Either binding belongs to another card, or both are one buffer of it.
            let cases = [
                (&own_first, [&own, &theirs]),
                (&lent_first, [&theirs, &too]),
                (&lent_first, [&theirs, &theirs]),
            ];
            for (step, (executable, bindings)) in (0..).step_by(2).zip(cases) {
                let (waits, signals) = (order.at(step), order.at(step + 1));
                worker.dispatch(1, &waits, &signals, executable, &constants, &bindings).unwrap();
                owner.copy(&order.at(step + 1), &order.at(step + 2), bindings[1], &read, length).unwrap();
                order.wait(step + 2).unwrap();
                assert!(read.read() == expected(length, constants[0]), "generation {number}, step {step}");
            }
            // A read-only range is fetched and does not go back.
            let kept = owner.local_buffer_for(hal_sys::IREE_HAL_MEMORY_ACCESS_READ, length);
            let (waits, signals) = (order.at(6), order.at(7));
            worker.dispatch(1, &waits, &signals, &own_first, &constants, &[&own, &kept]).unwrap();
            order.wait(7).unwrap();
        }
    }

    #[test]
    fn file_that_is_no_container_for_the_card_is_refused() {
        let device = Device::open(&card(2, "")).unwrap();
        let refused = |format: &str, bytes: &[u8]| match device.load(format, bytes) {
            Ok(_) => panic!("{format} was loaded"),
            Err(failed) => failed,
        };
        assert_eq!(refused(FORMAT, &container(Generation::Gaudi1).write()).code, Code::Incompatible);
        assert_eq!(refused(FORMAT, &[]).code, Code::Incompatible);
        let mut cut = container(Generation::Gaudi2).write();
        cut.truncate(cut.len() / 2);
        refused(FORMAT, &cut);
        refused("gaudi-hgx9", &container(Generation::Gaudi2).write());
        // Too few bindings are refused before anything is submitted.
        let executable = device.load(FORMAT, &container(Generation::Gaudi2).write()).unwrap();
        let (buffer, done) = (device.local_buffer(64), device.semaphore(0));
        let asked = device.dispatch(1, &List::none(), &done.at(1), &executable, &[1], &[&buffer]);
        let failed = asked.err().or_else(|| done.wait(1).err()).unwrap();
        assert_eq!(failed.code, Code::InvalidArgument, "{}", failed.text);
    }
}
