// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One card's memory in operations of another device, which can access it only through the host.

use crate::cards::{CardStep, HELD, card, constants, holding_card, steps};
use crate::common::{
    Buffer, Commands, Device, Executable, File, List, Result, Semaphore, barrier, check, own_pool,
};
use hal_semaphore::Code;
use hal_sys as sys;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LENGTH: usize = 4096;

/// A range of a buffer.
type BytesOf<'a> = (&'a Buffer, usize, usize);

fn reference((buffer, offset, length): BytesOf<'_>) -> sys::iree_hal_buffer_ref_t {
    sys::iree_hal_buffer_ref_t { buffer: buffer.0, offset, length, ..Default::default() }
}

/// The same range of a slot's buffer.
fn slot(number: u32, (_, offset, length): BytesOf<'_>) -> sys::iree_hal_buffer_ref_t {
    let mut reference = sys::iree_hal_buffer_ref_t { offset, length, ..Default::default() };
    reference.set_buffer_slot(number);
    reference
}

/// How an operation is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubmitAs {
    Queue,
    /// In a command buffer that names its buffers.
    Named,
    /// In a command buffer with a binding table.
    Table,
}

const WAYS: [SubmitAs; 3] = [SubmitAs::Queue, SubmitAs::Named, SubmitAs::Table];

/// An operation of one device.
enum BouncedWork<'a> {
    Fill(BytesOf<'a>, u8),
    Update(BytesOf<'a>, &'a [u8]),
    Copy(BytesOf<'a>, BytesOf<'a>),
    Dispatch(&'a Executable, Vec<CardStep>, Vec<BytesOf<'a>>),
}

impl<'a> BouncedWork<'a> {
    fn parts(&self) -> Vec<BytesOf<'a>> {
        match self {
            BouncedWork::Fill(target, _) | BouncedWork::Update(target, _) => vec![*target],
            BouncedWork::Copy(source, target) => vec![*source, *target],
            BouncedWork::Dispatch(_, _, bindings) => bindings.clone(),
        }
    }

    fn record(
        &self,
        commands: *mut sys::iree_hal_command_buffer_t,
        references: &[sys::iree_hal_buffer_ref_t],
    ) -> Result {
        unsafe {
            match self {
                BouncedWork::Fill(_, pattern) => check(sys::iree_hal_command_buffer_fill_buffer(
                    commands,
                    references[0],
                    (&raw const *pattern).cast(),
                    1,
                    0,
                )),
                BouncedWork::Update(_, bytes) => check(sys::iree_hal_command_buffer_update_buffer(
                    commands,
                    bytes.as_ptr().cast(),
                    0,
                    references[0],
                    0,
                )),
                BouncedWork::Copy(..) => {
                    check(sys::iree_hal_command_buffer_copy_buffer(commands, references[0], references[1], 0))
                }
                BouncedWork::Dispatch(executable, steps, _) => {
                    let words = constants(steps);
                    let (config, words, bindings) = arguments(&words, references);
                    let function = sys::iree_hal_executable_function_from_index(0);
                    check(sys::iree_hal_command_buffer_dispatch(
                        commands,
                        executable.0,
                        function,
                        config,
                        words,
                        bindings,
                        0,
                    ))
                }
            }
        }
    }

    fn queue(&self, device: &Device, affinity: u64, waits: &List, signals: &List) -> Result {
        match self {
            BouncedWork::Fill((buffer, offset, length), pattern) => {
                device.fill_on(affinity, waits, signals, buffer, (*offset, *length), &[*pattern])
            }
            BouncedWork::Update((buffer, offset, _), bytes) => {
                device.update_on(affinity, waits, signals, bytes, (buffer, *offset))
            }
            BouncedWork::Copy((source, from, length), (target, to, _)) => {
                device.copy_on(affinity, waits, signals, (source, *from), (target, *to), *length)
            }
            BouncedWork::Dispatch(executable, steps, bindings) => unsafe {
                let (words, references) =
                    (constants(steps), bindings.iter().map(|&part| reference(part)).collect::<Vec<_>>());
                let (config, words, bindings) = arguments(&words, &references);
                let function = sys::iree_hal_executable_function_from_index(0);
                let (waits, signals) = (waits.raw(), signals.raw());
                check(sys::iree_hal_device_queue_dispatch(
                    device.0,
                    affinity,
                    waits,
                    signals,
                    executable.0,
                    function,
                    config,
                    words,
                    bindings,
                    0,
                ))
            },
        }
    }
}

fn arguments(
    words: &[u32],
    references: &[sys::iree_hal_buffer_ref_t],
) -> (sys::iree_hal_dispatch_config_t, sys::iree_const_byte_span_t, sys::iree_hal_buffer_ref_list_t) {
    let config = sys::iree_hal_dispatch_config_t {
        workgroup_size: [1; 3],
        workgroup_count: [1; 3],
        ..Default::default()
    };
    let words = sys::iree_const_byte_span_t {
        data: words.as_ptr().cast(),
        data_length: std::mem::size_of_val(words),
    };
    let list = sys::iree_hal_buffer_ref_list_t { count: references.len(), values: references.as_ptr() };
    (config, words, list)
}

/// Submits an operation in one of the ways.
fn perform(
    device: &Device,
    way: SubmitAs,
    affinity: u64,
    waits: &List,
    signals: &List,
    work: &[BouncedWork<'_>],
) -> Result {
    if way == SubmitAs::Queue {
        let [work] = work else { panic!("a queue does one thing at a time") };
        return work.queue(device, affinity, waits, signals);
    }
    // Each range has its own slot.
    let parts: Vec<BytesOf<'_>> = work.iter().flat_map(BouncedWork::parts).collect();
    let slots = if way == SubmitAs::Table { parts.len() } else { 0 };
    let commands: Commands = device.record(slots, |commands| {
        let mut number = 0;
        for (index, work) in work.iter().enumerate() {
            let references: Vec<_> = work
                .parts()
                .into_iter()
                .map(|part| {
                    number += 1;
                    if way == SubmitAs::Table { slot(number - 1, part) } else { reference(part) }
                })
                .collect();
            if index > 0 {
                barrier(commands)?;
            }
            work.record(commands, &references)?;
        }
        Ok(())
    })?;
    let table: Vec<&Buffer> = parts.iter().map(|part| part.0).take(slots).collect();
    device.execute(affinity, waits, signals, &commands, &table)
}

/// The content of a buffer that only its own card can access.
fn read(owner: &Device, buffer: &Buffer) -> Vec<u8> {
    let length = unsafe { sys::iree_hal_buffer_byte_length(buffer.0) };
    let (visible, done) = (owner.buffer(length), owner.semaphore(0));
    owner.copy(&List::none(), &done.at(1), buffer, &visible, length).unwrap();
    done.wait(1).unwrap();
    visible.read()
}

/// A filled buffer that only its own card can access.
fn filled(owner: &Device, length: usize, byte: u8) -> Buffer {
    let (buffer, done) = (owner.local_buffer(length), owner.semaphore(0));
    owner.fill(&List::none(), &done.at(1), &buffer, (0, length), &[byte]).unwrap();
    done.wait(1).unwrap();
    buffer
}

/// Devices of five drivers; the first three have memory that no other driver can access.
fn devices() -> [(&'static str, Device); 5] {
    let open = |name, uri: &str| (name, Device::open(uri).unwrap());
    [
        ("card", card(0)),
        open("mock", "mock://0?heaps=2&completion=poll"),
        open("gaudi", "gaudi://emulated"),
        open("template", "template://"),
        open("another mock", "mock://1?heaps=2&waits=events"),
    ]
}

#[test]
fn each_driver_works_on_memory_of_each_other_one_in_each_way() {
    let devices = devices();
    for (owner_name, owner) in &devices[..3] {
        for (worker_name, worker) in devices.iter().filter(|(name, _)| name != owner_name) {
            for way in WAYS {
                let what = format!("{worker_name} with memory of {owner_name}, {way:?}");
                let theirs = filled(owner, LENGTH, 1);
                let own = filled(worker, LENGTH, 2);
                let order = worker.semaphore(0);
                let step = |number: u64, work: BouncedWork<'_>| {
                    let (waits, signals) = (order.at(number - 1), order.at(number));
                    perform(worker, way, 1 << (number % 2), &waits, &signals, &[work])
                        .unwrap_or_else(|failed| panic!("{what}: {}", failed.text));
                };
                step(1, BouncedWork::Fill((&theirs, 16, 32), 9));
                step(2, BouncedWork::Update((&theirs, 100, 5), &[1, 2, 3, 4, 5]));
                step(3, BouncedWork::Copy((&own, 0, 8), (&theirs, 200, 8)));
                step(4, BouncedWork::Copy((&theirs, 96, 16), (&own, 300, 16)));
                // Within it, and onto itself.
                step(5, BouncedWork::Copy((&theirs, 96, 16), (&theirs, 1000, 16)));
                step(6, BouncedWork::Copy((&theirs, 96, 16), (&theirs, 100, 16)));
                order.wait(6).unwrap_or_else(|failed| panic!("{what}: {}", failed.text));
                let mut expected = vec![1; LENGTH];
                expected[16..48].fill(9);
                expected[100..105].copy_from_slice(&[1, 2, 3, 4, 5]);
                expected[200..208].fill(2);
                expected.copy_within(96..112, 1000);
                let mut expected_own = vec![2; LENGTH];
                expected_own[300..316].copy_from_slice(&expected[96..112]);
                expected.copy_within(96..112, 100);
                assert!(read(owner, &theirs) == expected, "{what}");
                assert!(read(worker, &own) == expected_own, "{what}");
            }
        }
    }
}

#[test]
fn files_are_read_into_memory_of_another_card_and_written_from_it() {
    let (owner, worker) = (card(0), card(1));
    let bytes: Vec<u8> = (0..LENGTH).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let (from, to) = (File::with(&bytes), File::with(&vec![0; LENGTH]));
    let (theirs, order) = (owner.local_buffer(LENGTH), worker.semaphore(0));
    worker.read_file(&List::none(), &order.at(1), &from, 0, &theirs, LENGTH).unwrap();
    worker.write_file(&order.at(1), &order.at(2), &theirs, &to, 0, LENGTH).unwrap();
    order.wait(2).unwrap_or_else(|failed| panic!("{}", failed.text));
    assert!(read(&owner, &theirs) == bytes);
    assert!(to.read() == bytes);
}

#[test]
fn dispatch_works_on_memory_of_each_driver_in_each_way() {
    let devices = devices();
    for (owner_name, owner) in &devices[1..3] {
        for way in WAYS {
            let worker = card(2);
            let executable = steps(&worker);
            let (theirs, own) = (filled(owner, LENGTH, 1), filled(&worker, LENGTH, 2));
            let done = worker.semaphore(0);
            let work = BouncedWork::Dispatch(
                &executable,
                vec![
                    CardStep::Add { target: (0, 7), source: (1, 5), addend: 10 },
                    CardStep::Add { target: (1, 9), source: (0, 7), addend: 1 },
                ],
                vec![(&theirs, 0, LENGTH), (&own, 0, LENGTH)],
            );
            perform(&worker, way, 1, &List::none(), &done.at(1), &[work]).unwrap();
            done.wait(1).unwrap_or_else(|failed| panic!("{owner_name}, {way:?}: {}", failed.text));
            assert_eq!((read(owner, &theirs)[6..9].to_vec(), read(&worker, &own)[9]), (vec![1, 12, 1], 13));
        }
    }
}

/// The steps of a card with a buffer while another one works on its copy.
fn beside(way: SubmitAs, work: impl Fn(&Executable, &Buffer) -> Vec<CardStep>, length: usize) -> Vec<u8> {
    let (owner, worker) = (card(0), card(1));
    let executable = steps(&worker);
    let buffer = filled(&owner, length, 1);
    let start = owner.semaphore(0);
    let (here, there) = (owner.semaphore(0), worker.semaphore(0));
    let dispatch = BouncedWork::Dispatch(&executable, work(&executable, &buffer), vec![(&buffer, 0, length)]);
    perform(&worker, way, 1, &start.at(1), &there.at(1), &[dispatch]).unwrap();
    start.signal(1).unwrap();
    // The other card pauses, so this is in the middle of its bounce.
    std::thread::sleep(Duration::from_millis(30));
    owner.fill(&start.at(1), &here.at(1), &buffer, (length / 2, 4), &[8]).unwrap();
    there.wait(1).unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
    here.wait(1).unwrap();
    read(&owner, &buffer)
}

#[test]
fn dispatch_reverts_no_writes_of_others_to_a_bounced_buffer() {
    for way in WAYS {
        let steps = vec![CardStep::Add { target: (0, 3), source: (0, 2), addend: 5 }, CardStep::Pause(120)];
        let bytes = beside(way, |_, _| steps.clone(), LENGTH);
        let mut expected = vec![1; LENGTH];
        expected[3] = 6;
        expected[LENGTH / 2..LENGTH / 2 + 4].fill(8);
        assert!(bytes == expected, "{way:?}: {:?}", &bytes[LENGTH / 2..LENGTH / 2 + 4]);
    }
}

#[test]
fn every_other_byte_of_much_comes_back_and_the_rest_stays() {
    const MUCH: usize = 40_000;
    let stripe = CardStep::Stripe { target: 0, length: u32::try_from(MUCH).unwrap(), addend: 4 };
    let bytes = beside(SubmitAs::Queue, |_, _| vec![stripe, CardStep::Pause(120)], MUCH);
    let mut expected: Vec<u8> = (0..MUCH).map(|at| if at % 2 == 0 { 5 } else { 1 }).collect();
    // Two of the owner's four bytes are also the other card's: either may write last.
    for at in [MUCH / 2, MUCH / 2 + 2] {
        assert!([8, 5].contains(&bytes[at]));
        expected[at] = bytes[at];
    }
    for at in [MUCH / 2 + 1, MUCH / 2 + 3] {
        expected[at] = 8;
    }
    assert!(bytes == expected);
}

/// Thousands of ranges go back in several command buffers. The last command buffer is not the end if an earlier one
/// is late.
#[test]
fn everything_is_back_when_the_last_of_many_pieces_is_whichever_job_of_the_owner_is_late() {
    const MUCH: usize = 40_000;
    let expected: Vec<u8> = (0..MUCH).map(|at| if at % 2 == 0 { 5 } else { 1 }).collect();
    // A fill, the fetch, and five command buffers of some thousand ranges.
    for late in 3..=7 {
        let owner = Device::open(&format!("mock://0?heaps=2&queues=8&fault=late:{late}")).unwrap();
        let worker = card(0);
        let executable = steps(&worker);
        let (buffer, done) = (filled(&owner, MUCH, 1), worker.semaphore(0));
        let stripe = CardStep::Stripe { target: 0, length: u32::try_from(MUCH).unwrap(), addend: 4 };
        let dispatch = BouncedWork::Dispatch(&executable, vec![stripe], vec![(&buffer, 0, MUCH)]);
        perform(&worker, SubmitAs::Queue, 1, &List::none(), &done.at(1), &[dispatch]).unwrap();
        done.wait(1).unwrap_or_else(|failed| panic!("{}", failed.text));
        assert!(read(&owner, &buffer) == expected, "job {late} was late");
    }
}

/// Fills of two cards in one buffer after the same point, one of them through a wide binding.
#[test]
fn fill_in_a_wide_binding_undoes_nothing_of_its_owner() {
    let (owner, worker) = (card(0), card(1));
    let executable = steps(&worker);
    let own = filled(&worker, 64, 0);
    for way in [SubmitAs::Named, SubmitAs::Table] {
        let buffer = filled(&owner, LENGTH, 1);
        let start = owner.semaphore(0);
        let (here, there) = (owner.semaphore(0), worker.semaphore(0));
        let work = [
            BouncedWork::Fill((&buffer, 0, 4), 7),
            BouncedWork::Dispatch(&executable, vec![CardStep::Pause(120)], vec![(&own, 0, 64)]),
        ];
        perform(&worker, way, 1, &start.at(1), &there.at(1), &work).unwrap();
        start.signal(1).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        owner.fill(&start.at(1), &here.at(1), &buffer, (2048, 4), &[8]).unwrap();
        there.wait(1).unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
        here.wait(1).unwrap();
        let bytes = read(&owner, &buffer);
        assert_eq!(
            (&bytes[..5], &bytes[2047..2053]),
            (&[7, 7, 7, 7, 1][..], &[1, 8, 8, 8, 8, 1][..]),
            "{way:?}"
        );
    }
}

#[test]
fn bindings_that_share_some_bytes_are_one_memory() {
    for way in WAYS {
        let (owner, worker) = (card(0), card(1));
        let executable = steps(&worker);
        let buffer = filled(&owner, LENGTH, 1);
        let done = worker.semaphore(0);
        let steps = vec![
            CardStep::Add { target: (0, 300), source: (0, 0), addend: 1 },
            // The same byte by the other binding, and then a third one that lies between.
            CardStep::Add { target: (1, 0), source: (1, 100), addend: 10 },
            CardStep::Add { target: (2, 60), source: (1, 0), addend: 100 },
        ];
        let bindings = vec![(&buffer, 0, 400), (&buffer, 200, 400), (&buffer, 250, 100)];
        let work = BouncedWork::Dispatch(&executable, steps, bindings);
        perform(&worker, way, 1, &List::none(), &done.at(1), &[work])
            .unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
        done.wait(1).unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
        let mut expected = vec![1; LENGTH];
        expected[300] = 2;
        expected[200] = 12;
        expected[310] = 112;
        assert!(read(&owner, &buffer) == expected, "{way:?}");
    }
}

/// Ranges that a dispatch may write are compared at their offset in the bounce buffer, which begins earlier.
#[test]
fn binding_inside_a_bounce_buffer_goes_back_to_its_offset() {
    for way in [SubmitAs::Named, SubmitAs::Table] {
        let (owner, worker) = (card(0), card(1));
        let executable = steps(&worker);
        let (buffer, own) = (filled(&owner, LENGTH, 1), filled(&worker, LENGTH, 2));
        let done = worker.semaphore(0);
        let work = [
            BouncedWork::Copy((&buffer, 0, 200), (&own, 0, 200)),
            BouncedWork::Dispatch(
                &executable,
                vec![CardStep::Add { target: (0, 5), source: (0, 0), addend: 10 }],
                vec![(&buffer, 100, 400)],
            ),
        ];
        perform(&worker, way, 1, &List::none(), &done.at(1), &work).unwrap();
        done.wait(1).unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
        let mut expected = vec![1; LENGTH];
        expected[105] = 11;
        assert!(read(&owner, &buffer) == expected, "{way:?}");
        assert_eq!(read(&worker, &own)[..201], [vec![1; 200], vec![2]].concat(), "{way:?}");
    }
}

/// The owner refuses a wait for a value that no semaphore can reach, after the operation was accepted.
#[test]
fn part_that_its_owner_refuses_fails_the_operation() {
    for way in WAYS {
        let (owner, worker) = (card(0), card(1));
        let (buffer, own) = (filled(&owner, LENGTH, 1), filled(&worker, LENGTH, 2));
        let (never, done) = (worker.semaphore(0), worker.semaphore(0));
        let work = [BouncedWork::Copy((&buffer, 0, LENGTH), (&own, 0, LENGTH))];
        let outcome = perform(&worker, way, 1, &never.at(1 << 40), &done.at(1), &work);
        let error = outcome.and_then(|()| done.wait(1)).unwrap_err();
        assert_eq!(error.code, Code::OutOfRange, "{way:?}: {}", error.text);
    }
}

/// One owner fails to copy back, while the other is slow to.
#[test]
fn failure_of_one_owner_is_reported_when_the_other_one_writes_no_more() {
    const LATENCY: Duration = Duration::from_millis(300);
    for way in [SubmitAs::Named, SubmitAs::Table] {
        let fails = Device::open("mock://0?heaps=2&queues=1&fault=fail:copy:1:DATA_LOSS").unwrap();
        let late = Device::open("mock://1?heaps=2&queues=1&latency=300ms").unwrap();
        let worker = card(0);
        let [first, second] = [&fails, &late].map(|owner| filled(owner, LENGTH, 1));
        let done = worker.semaphore(0);
        let work = [BouncedWork::Fill((&first, 0, LENGTH), 2), BouncedWork::Fill((&second, 0, LENGTH), 2)];
        let begin = Instant::now();
        perform(&worker, way, 1, &List::none(), &done.at(1), &work).unwrap();
        let failed = done.wait(1).unwrap_err();
        assert_eq!(failed.code, Code::DataLoss, "{way:?}: {}", failed.text);
        assert!(begin.elapsed() >= LATENCY, "{way:?}: reported after {:?}", begin.elapsed());
        assert!(read(&late, &second) == [2; LENGTH], "{way:?}");
    }
}

#[test]
fn loss_on_either_side_is_reported_and_both_can_be_destroyed() {
    // The owner is lost when it fetches, and when it copies back.
    for job in [2, 3, 4] {
        for way in [SubmitAs::Queue, SubmitAs::Named, SubmitAs::Table] {
            let owner = Device::open(&format!("mock://0?heaps=2&queues=1&fault=lose:{job}")).unwrap();
            let worker = card(0);
            let executable = steps(&worker);
            let buffer = filled(&owner, LENGTH, 1);
            let done = worker.semaphore(0);
            let steps = vec![CardStep::Add { target: (0, 3), source: (0, 2), addend: 5 }];
            let work = BouncedWork::Dispatch(&executable, steps, vec![(&buffer, 0, LENGTH)]);
            let refused = perform(&worker, way, 1, &List::none(), &done.at(1), &[work]).err();
            let failed = refused.or_else(|| done.wait(1).err()).unwrap();
            assert_eq!(failed.code, Code::Unavailable, "{way:?}, {job}");
            assert!(failed.text.contains("the mock device was lost"), "{way:?}, {job}: {}", failed.text);
        }
    }
    // The worker is destroyed while it works on a copy.
    let (owner, worker) = (card(0), card(1));
    let executable = steps(&worker);
    let (buffer, never, done) = (filled(&owner, LENGTH, 1), owner.semaphore(0), owner.semaphore(0));
    let work = BouncedWork::Dispatch(&executable, vec![], vec![(&buffer, 0, LENGTH)]);
    perform(&worker, SubmitAs::Queue, 1, &never.at(1), &done.at(1), &[work]).unwrap();
    drop((executable, worker));
    assert_eq!(done.wait(1).unwrap_err().code, Code::Cancelled);
    assert!(read(&owner, &buffer) == [1; LENGTH]);
}

#[test]
fn many_small_pieces_of_two_buffers_are_each_their_own() {
    const PIECES: usize = 300;
    let (owner, worker) = (card(0), card(1));
    let buffers = [filled(&owner, 16 * PIECES, 1), filled(&owner, 16 * PIECES, 2)];
    let work: Vec<BouncedWork<'_>> = (0..PIECES)
        .rev()
        .map(|at| BouncedWork::Fill((&buffers[at % 2], at * 16 + 3, 2), u8::try_from(at % 100 + 10).unwrap()))
        .collect();
    for way in [SubmitAs::Named, SubmitAs::Table] {
        let done = worker.semaphore(0);
        perform(&worker, way, 1, &List::none(), &done.at(1), &work).unwrap();
        done.wait(1).unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
        for (number, buffer) in buffers.iter().enumerate() {
            let mut expected = vec![u8::try_from(number + 1).unwrap(); 16 * PIECES];
            for at in (number..PIECES).step_by(2) {
                expected[at * 16 + 3..at * 16 + 5].fill(u8::try_from(at % 100 + 10).unwrap());
            }
            assert!(read(&owner, buffer) == expected, "{way:?}, {number}");
        }
    }
}

#[test]
fn buffer_that_may_only_be_read_is_brought_and_not_written_back() {
    let (owner, worker) = (card(0), card(1));
    let executable = steps(&worker);
    let kept = owner.local_buffer_for(sys::IREE_HAL_MEMORY_ACCESS_READ, LENGTH);
    let own = filled(&worker, LENGTH, 1);
    for way in WAYS {
        let done = worker.semaphore(0);
        let steps = vec![CardStep::Add { target: (1, 0), source: (0, 0), addend: 1 }];
        let work = BouncedWork::Dispatch(&executable, steps, vec![(&kept, 0, LENGTH), (&own, 0, LENGTH)]);
        perform(&worker, way, 1, &List::none(), &done.at(1), &[work]).unwrap();
        done.wait(1).unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
    }
}

#[test]
fn stream_ordered_memory_is_bounced_once_it_is_allocated() {
    let (owner, worker) = (Device::open("mock://0?heaps=2").unwrap(), card(0));
    let order = worker.semaphore(0);
    let params = sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    };
    let begin = owner.semaphore(0);
    let buffer = owner.alloca_of(&begin.at(1), &order.at(1), params, LENGTH).unwrap();
    worker.fill(&order.at(1), &order.at(2), &buffer, (0, LENGTH), &[3]).unwrap();
    let visible = owner.buffer(LENGTH);
    owner.copy(&order.at(2), &order.at(3), &buffer, &visible, LENGTH).unwrap();
    owner.dealloca(&order.at(3), &order.at(4), &buffer).unwrap();
    begin.signal(1).unwrap();
    order.wait(4).unwrap_or_else(|failed| panic!("{}", failed.text));
    assert!(visible.read() == [3; LENGTH]);
}

#[test]
fn owner_without_host_memory_bounces_through_the_workers() {
    let (sealed, other, worker) = (card(3), card(4), card(0));
    let executable = steps(&worker);
    let (theirs, own) = (filled(&sealed, LENGTH, 1), worker.buffer(LENGTH));
    for (way, step) in WAYS.into_iter().zip((1..).step_by(2)) {
        let order = worker.semaphore(0);
        let target = u32::try_from(step).unwrap();
        let steps = vec![CardStep::Add { target: (0, target), source: (0, 0), addend: 5 }];
        let work = BouncedWork::Dispatch(&executable, steps, vec![(&theirs, 0, LENGTH)]);
        perform(&worker, way, 1, &List::none(), &order.at(1), &[work]).unwrap();
        let work = BouncedWork::Copy((&theirs, 0, LENGTH), (&own, 0, LENGTH));
        perform(&worker, way, 1, &order.at(1), &order.at(2), &[work]).unwrap();
        order.wait(2).unwrap_or_else(|failed| panic!("{way:?}: {}", failed.text));
        assert_eq!(own.read()[step..step + 2], [6, 1], "{way:?}");
    }
    // If neither device has host memory, the failure names both, and the remedy.
    let (end, target) = (other.semaphore(0), other.local_buffer(LENGTH));
    let refused = other.copy(&List::none(), &end.at(1), &theirs, &target, LENGTH).unwrap_err();
    for part in ["\"sealed-a\"", "\"sealed-b\"", "host_visible"] {
        assert!(refused.text.contains(part), "{}", refused.text);
    }
    assert_eq!(end.value().unwrap(), 0, "nothing has begun");
}

#[test]
fn command_buffers_of_iree_s_local_devices_work_on_memory_of_a_card() {
    let (owner, local) = (card(0), Device::open_in_group("local-task://").unwrap());
    let (theirs, own) = (filled(&owner, LENGTH, 1), local.buffer(LENGTH));
    // Semaphores of either device.
    for order in [owner.semaphore(0), local.semaphore(0)] {
        let start = owner.semaphore(0);
        let work = [
            BouncedWork::Fill((&theirs, 16, 32), 9),
            BouncedWork::Update((&theirs, 100, 5), &[1, 2, 3, 4, 5]),
            BouncedWork::Copy((&theirs, 0, LENGTH), (&own, 0, LENGTH)),
        ];
        perform(&local, SubmitAs::Table, 1, &start.at(1), &order.at(1), &work).unwrap();
        // Work of the owner before the operation, and elsewhere at the same time.
        let (before, beside) = (owner.semaphore(0), owner.semaphore(0));
        owner.fill(&List::none(), &before.at(1), &theirs, (200, 8), &[7]).unwrap();
        before.wait(1).unwrap();
        owner.fill(&start.at(1), &beside.at(1), &theirs, (2048, 4), &[8]).unwrap();
        start.signal(1).unwrap();
        order.wait(1).unwrap_or_else(|failed| panic!("{}", failed.text));
        let mut expected = vec![1; LENGTH];
        expected[16..48].fill(9);
        expected[100..105].copy_from_slice(&[1, 2, 3, 4, 5]);
        expected[200..208].fill(7);
        beside.wait(1).unwrap();
        let copied = own.read();
        assert!(copied[..2048] == expected[..2048] && copied[2052..] == expected[2052..]);
        expected[2048..2052].fill(8);
        assert!(read(&owner, &theirs) == expected);
        // Restored for the next round.
        let again = owner.semaphore(0);
        owner.fill(&List::none(), &again.at(1), &theirs, (0, LENGTH), &[1]).unwrap();
        again.wait(1).unwrap();
    }
    // A failed fetch fails the operation.
    let lost = Device::open("mock://0?heaps=2&queues=1&fault=lose:2").unwrap();
    let (gone, done) = (filled(&lost, LENGTH, 1), local.semaphore(0));
    let work = [BouncedWork::Copy((&gone, 0, LENGTH), (&own, 0, LENGTH))];
    let refused = perform(&local, SubmitAs::Table, 1, &List::none(), &done.at(1), &work).err();
    // The other driver passes on a bare code.
    let failed = refused.or_else(|| done.wait(1).err()).unwrap();
    assert_eq!(failed.code, Code::Unavailable, "{}", failed.text);
}

/// Maps as a driver does that accesses buffers only by mapping them.
fn map_as_a_driver(buffer: &Buffer, offset: usize, length: usize) -> Result<sys::iree_hal_buffer_mapping_t> {
    let mut mapping = sys::iree_hal_buffer_mapping_t::default();
    unsafe {
        let (mode, any) = (sys::IREE_HAL_MAPPING_MODE_SCOPED, sys::IREE_HAL_MEMORY_ACCESS_ANY);
        let any = u16::try_from(any).unwrap();
        check(sys::iree_hal_buffer_map_range(buffer.0, mode, any, offset, length, &raw mut mapping))?;
    }
    Ok(mapping)
}

#[test]
fn mapping_goes_back_before_a_semaphore_is_signalled_on_its_thread() {
    let (owner, local) = (card(0), Device::open_in_group("local-task://").unwrap());
    let buffer = filled(&owner, LENGTH, 1);
    for (byte, signal) in [(5, owner.semaphore(0)), (6, local.semaphore(0))] {
        let (visible, done) = (owner.buffer(LENGTH), owner.semaphore(0));
        owner.copy(&signal.at(1), &done.at(1), &buffer, &visible, LENGTH).unwrap();
        let mut mapping = map_as_a_driver(&buffer, 64, 128).unwrap();
        unsafe { mapping.contents.data.add(3).write(byte) };
        signal.signal(1).unwrap();
        done.wait(1).unwrap();
        assert_eq!(visible.read()[66..69], [1, byte, 1], "the mapping has not ended");
        unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap() };
    }
    // A read-only range does not go back.
    let kept = owner.local_buffer_for(sys::IREE_HAL_MEMORY_ACCESS_READ, LENGTH);
    let before = read(&owner, &kept);
    let mut mapping = map_as_a_driver(&kept, 0, LENGTH).unwrap();
    unsafe { mapping.contents.data.write(before[0].wrapping_add(1)) };
    unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap() };
    assert!(read(&owner, &kept) == before);
}

/// The owner's writes during such a mapping stay when another mapping begins, as do the first mapping's writes, and
/// when both end.
#[test]
fn mapping_that_begins_or_ends_undoes_nothing_of_others() {
    let owner = card(0);
    for others in [0, 1] {
        let (buffer, done) = (filled(&owner, LENGTH, 1), owner.semaphore(0));
        let mut first = map_as_a_driver(&buffer, 0, 64).unwrap();
        unsafe { first.contents.data.add(3).write(5) };
        owner.fill(&List::none(), &done.at(1), &buffer, (2048, 4), &[8]).unwrap();
        done.wait(1).unwrap();
        for _ in 0..others {
            let mut second = map_as_a_driver(&buffer, 2048, 64).unwrap();
            assert_eq!(unsafe { second.contents.data.read() }, 8, "what is mapped is what is there");
            assert_eq!(unsafe { first.contents.data.add(3).read() }, 5);
            unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut second)).unwrap() };
        }
        unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut first)).unwrap() };
        let mut expected = vec![1; LENGTH];
        expected[3] = 5;
        expected[2048..2052].fill(8);
        assert!(read(&owner, &buffer) == expected, "beside {others} other mappings");
    }
}

/// Two owners' memory is independent.
#[test]
fn mapping_waits_for_no_other_card() {
    let (slow, owner) = (holding_card(), card(0));
    let (waited, buffer) = (slow.local_buffer(LENGTH), filled(&owner, LENGTH, 1));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let held = HELD.0.lock().unwrap();
        let before = HELD.1.load(Ordering::SeqCst);
        let map = |buffer: &Buffer| {
            let mut mapping = map_as_a_driver(buffer, 0, 64).unwrap();
            unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap() };
        };
        scope.spawn(move || map(&waited));
        while HELD.1.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        scope.spawn(move || {
            map(&buffer);
            sender.send(()).unwrap();
        });
        let is_mapped = receiver.recv_timeout(Duration::from_secs(60));
        drop(held);
        is_mapped.expect("it waits for memory of another card");
    });
}

#[test]
fn thread_that_brings_completions_is_not_made_to_wait_for_one() {
    let owner = card(0);
    let (buffer, done) = (filled(&owner, LENGTH, 1), owner.semaphore(0));
    let address = buffer.0.addr();
    let call = Box::new(move || unsafe {
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let buffer = std::ptr::with_exposed_provenance_mut::<sys::iree_hal_buffer_t>(address);
        let any = u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_ANY).unwrap();
        let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
        sys::iree_hal_buffer_map_range(buffer, mode, any, 0, 64, &raw mut mapping)
    });
    let _ = buffer.0.expose_provenance();
    owner.host_call(&List::none(), &done.at(1), 0, call).unwrap();
    let failed = done.wait(1).unwrap_err();
    assert_eq!(failed.code, Code::FailedPrecondition);
    assert!(failed.text.contains("must not wait"), "{}", failed.text);
}

/// For queue operations IREE's local devices map as a program does, which is refused.
#[test]
fn queue_operation_of_iree_s_local_devices_is_refused_with_the_owner_and_a_remedy() {
    let (owner, local) = (card(0), Device::open_in_group("local-task://").unwrap());
    let (theirs, own, done) = (filled(&owner, LENGTH, 1), local.buffer(LENGTH), local.semaphore(0));
    let refused = local.copy(&List::none(), &done.at(1), &theirs, &own, LENGTH).err();
    let failed = refused.or_else(|| done.wait(1).err()).unwrap();
    assert_eq!(failed.code, Code::PermissionDenied);
    for part in ["\"card-a\"", "copy it with a queue of that device", "HOST_VISIBLE"] {
        assert!(failed.text.contains(part), "{}", failed.text);
    }
    // The remedy: the owner copies it to memory that both can access.
    let (visible, order) = (owner.buffer(LENGTH), owner.semaphore(0));
    owner.copy(&List::none(), &order.at(1), &theirs, &visible, LENGTH).unwrap();
    let done = local.semaphore(0);
    local.copy(&order.at(1), &done.at(1), &visible, &own, LENGTH).unwrap();
    done.wait(1).unwrap();
    assert!(own.read() == [1; LENGTH]);
}

#[test]
fn memory_of_a_program_s_own_pool_is_bounced_too() {
    let (owner, worker) = (Device::open_in_group("mock://0?heaps=2").unwrap(), card(0));
    let params = sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        access: u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_ALL).unwrap(),
        ..Default::default()
    };
    let (pool, mut buffer) = (own_pool(&owner).unwrap(), std::ptr::null_mut());
    unsafe {
        let (no_waits, forever) = (std::ptr::null(), sys::iree_infinite_timeout());
        check(sys::iree_hal_pool_allocate_buffer(pool, params, LENGTH, no_waits, forever, &raw mut buffer))
            .unwrap();
    }
    let (buffer, done) = (Buffer(buffer), worker.semaphore(0));
    worker.fill(&List::none(), &done.at(1), &buffer, (16, 32), &[5]).unwrap();
    done.wait(1).unwrap_or_else(|failed| panic!("{}", failed.text));
    assert!(read(&owner, &buffer)[16..48] == [5; 32]);
    // A pool outlives its buffers, and an operation releases its buffers after its signals.
    buffer.wait_until_it_is_ours_alone();
    drop(buffer);
    unsafe { sys::iree_hal_pool_release(pool) };
}

/// Random programs on two and three cards, compared with the same program run step by step.
mod stress {
    use super::{
        BouncedWork, Buffer, BytesOf, CardStep, Device, Executable, List, Semaphore, SubmitAs, WAYS, perform,
        read,
    };
    use super::{card, filled, steps};
    use crate::common::random::Random;

    const LENGTH: usize = 512;
    const BUFFERS: usize = 3;
    const ROUNDS: u64 = 8;
    /// The bytes that one operation may write, and no other uses in its round.
    const SHARE: usize = 8;

    /// A share of a buffer.
    #[derive(Clone, Copy, Debug)]
    struct ShareOf {
        buffer: usize,
        offset: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum OperationKind {
        Fill(u8),
        Copy,
        /// Wide bindings of both buffers, of which only the two shares are used.
        Dispatch(u8),
        /// A fill and a dispatch in one command buffer.
        Both(u8),
    }

    /// An operation on its own shares of two buffers: it writes the first and reads the second.
    #[derive(Debug)]
    struct Operation {
        worker: usize,
        way: SubmitAs,
        affinity: u64,
        kind: OperationKind,
        target: ShareOf,
        source: ShareOf,
    }

    fn operation(random: &mut Random, cards: usize, target: ShareOf, source: ShareOf) -> Operation {
        let byte = u8::try_from(random.below(200)).unwrap();
        let kind = match random.below(4) {
            0 => OperationKind::Fill(byte),
            1 => OperationKind::Copy,
            2 => OperationKind::Dispatch(byte),
            _ => OperationKind::Both(byte),
        };
        let way = match kind {
            OperationKind::Both(_) => WAYS[1 + random.below(2)],
            _ => WAYS[random.below(3)],
        };
        Operation { worker: random.below(cards), way, affinity: 1 << random.below(2), kind, target, source }
    }

    /// A round: a share for each operation, in random order.
    fn round(random: &mut Random, cards: usize) -> Vec<Operation> {
        let mut places: Vec<ShareOf> = (0..BUFFERS * LENGTH / SHARE)
            .map(|share| ShareOf { buffer: share % BUFFERS, offset: share / BUFFERS * SHARE })
            .collect();
        for at in (1..places.len()).rev() {
            places.swap(at, random.below(at + 1));
        }
        places.chunks_exact(2).take(6).map(|pair| operation(random, cards, pair[0], pair[1])).collect()
    }

    impl Operation {
        /// The operation on bytes that no other uses.
        fn apply(&self, buffers: &mut [Vec<u8>]) {
            let (target, source) = (self.target, self.source);
            let from = buffers[source.buffer][source.offset..source.offset + SHARE].to_vec();
            let to = &mut buffers[target.buffer][target.offset..target.offset + SHARE];
            match self.kind {
                OperationKind::Fill(byte) => to.fill(byte),
                OperationKind::Copy => to.copy_from_slice(&from),
                OperationKind::Dispatch(byte) => to[1] = from[2].wrapping_add(byte),
                OperationKind::Both(byte) => {
                    to[..4].fill(byte);
                    to[1] = from[2].wrapping_add(byte);
                    to[5] = to[0].wrapping_add(1);
                }
            }
        }

        fn works<'a>(
            &self,
            buffers: &'a [(usize, Buffer)],
            executable: &'a Executable,
        ) -> Vec<BouncedWork<'a>> {
            let (target, source) = (self.target, self.source);
            let share = |place: ShareOf| -> BytesOf<'a> { (&buffers[place.buffer].1, place.offset, SHARE) };
            let whole = |place: ShareOf| -> BytesOf<'a> { (&buffers[place.buffer].1, 0, LENGTH) };
            let byte = |binding: u32, place: ShareOf, at: usize| {
                (binding, u32::try_from(place.offset + at).unwrap())
            };
            let add =
                |addend| CardStep::Add { target: byte(0, target, 1), source: byte(1, source, 2), addend };
            let bindings = vec![whole(target), whole(source)];
            match self.kind {
                OperationKind::Fill(byte) => vec![BouncedWork::Fill(share(target), byte)],
                OperationKind::Copy => vec![BouncedWork::Copy(share(source), share(target))],
                OperationKind::Dispatch(addend) => {
                    vec![BouncedWork::Dispatch(executable, vec![add(addend)], bindings)]
                }
                OperationKind::Both(addend) => {
                    let next =
                        CardStep::Add { target: byte(0, target, 5), source: byte(0, target, 0), addend: 1 };
                    let (buffer, offset, _) = share(target);
                    vec![
                        BouncedWork::Fill((buffer, offset, 4), addend),
                        BouncedWork::Dispatch(executable, vec![add(addend), next], bindings),
                    ]
                }
            }
        }
    }

    fn program(seed: u64, count: usize) {
        let random = &mut Random::new(seed);
        let cards: Vec<Device> = (0..count).map(card).collect();
        let executables: Vec<Executable> = cards.iter().map(steps).collect();
        let mut expected: Vec<Vec<u8>> =
            (0..BUFFERS).map(|at| vec![u8::try_from(at).unwrap(); LENGTH]).collect();
        let buffers: Vec<(usize, Buffer)> = (0..BUFFERS)
            .map(|at| (at % count, filled(&cards[at % count], LENGTH, u8::try_from(at).unwrap())))
            .collect();
        let mut before: Vec<Semaphore> = Vec::new();
        let mut done = Vec::new();
        for _ in 0..ROUNDS {
            let operations = round(random, count);
            let ends: Vec<Semaphore> = operations.iter().map(|op| cards[op.worker].semaphore(0)).collect();
            let waits = List::of(&before.iter().map(|end| (end, 1)).collect::<Vec<_>>());
            for (op, end) in operations.iter().zip(&ends) {
                let work = op.works(&buffers, &executables[op.worker]);
                perform(&cards[op.worker], op.way, op.affinity, &waits, &end.at(1), &work).unwrap();
                op.apply(&mut expected);
            }
            before = ends;
            done.push(operations);
        }
        for end in &before {
            end.wait(1).unwrap_or_else(|failed| panic!("seed {seed}: {}", failed.text));
        }
        for ((owner, buffer), expected) in buffers.iter().zip(&expected) {
            let bytes = read(&cards[*owner], buffer);
            if let Some(at) = (0..LENGTH).find(|&at| bytes[at] != expected[at]) {
                panic!("seed {seed}: byte {at} is {} and not {}: {done:#?}", bytes[at], expected[at]);
            }
        }
    }

    #[test]
    fn random_programs_over_two_and_three_cards_end_as_in_sequence() {
        for seed in 1..=40 {
            program(seed, 2);
            program(seed, 3);
        }
    }
}
