// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Requests to the kernel, and the handling of its answers.

use super::super::fake_systems::Scripted;
use super::*;
use hal_backend::Code;
use hal_qaic_abi::uapi::{FROM_DEVICE, TO_DEVICE};
use parking_lot::Mutex;
use std::os::fd::AsFd;

const NODE: &str = "/dev/accel/accel3";

fn open(system: Scripted) -> (Arc<Card>, Arc<Scripted>) {
    let system = Arc::new(system);
    let card = Card::open(system.clone(), Path::new(NODE), Duration::ZERO).unwrap();
    (card, system)
}

fn read<T: FromBytes + KnownLayout + Immutable>(argument: &[u8]) -> T {
    T::read_from_bytes(argument).unwrap()
}

/// A kernel that gives out handles and does everything else.
fn willing() -> Scripted {
    let mut handle = 0;
    Scripted::new(move |call, argument| {
        if call == Call::CreateBo {
            handle += 1;
            let create: CreateBo = read(argument);
            argument.copy_from_slice(CreateBo { handle, ..create }.as_bytes());
        }
        Ok(())
    })
}

fn batch(objects: &[(&Object, Option<u64>)]) -> Batch {
    let mut batch = Batch::default();
    objects.iter().for_each(|(object, bytes)| batch.push(object, *bytes));
    batch
}

#[test]
fn other_driver_gets_no_request_but_for_its_name() {
    let system = Arc::new(Scripted { driver: "habanalabs", ..willing() });
    let refused = Card::open(system.clone(), Path::new(NODE), Duration::ZERO).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("\"habanalabs\", not to qaic"), "{refused}");
    assert_eq!(*system.calls.lock(), []);
    let system = Arc::new(Scripted { driver: "", ..willing() });
    let refused = Card::open(system, Path::new("/dev/null"), Duration::ZERO).unwrap_err();
    assert!(refused.message().contains("/dev/null is not a qaic device"), "{refused}");
}

#[test]
fn offline_device_is_waited_for_up_to_the_given_time() {
    let offline = |times| {
        let system = willing();
        *system.opening.lock() = vec![Errno::NODEV; times];
        Arc::new(system)
    };
    assert!(Card::open(offline(3), Path::new(NODE), Duration::from_secs(60)).is_ok());
    let refused = Card::open(offline(1), Path::new(NODE), Duration::ZERO).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused.message().contains("offline") && refused.message().contains("open_timeout="),
        "{refused}"
    );
    for (errno, code) in [(Errno::NOENT, Code::NotFound), (Errno::ACCESS, Code::PermissionDenied)] {
        let system = willing();
        *system.opening.lock() = vec![errno];
        let refused = Card::open(Arc::new(system), Path::new(NODE), Duration::from_secs(60)).unwrap_err();
        assert_eq!(refused.code(), code, "only what passes is waited for");
    }
}

#[test]
fn object_has_whole_pages_and_is_freed() {
    let (card, system) = open(willing());
    let object = card.create(5000).unwrap();
    assert_eq!((object.length(), object.view().length()), (8192, 8192));
    assert_eq!(card.create(0).unwrap().length(), 4096);
    drop(object);
    let calls = system.calls.lock();
    let expected =
        [Call::CreateBo, Call::MmapBo, Call::CreateBo, Call::MmapBo, Call::GemClose, Call::GemClose];
    assert_eq!(*calls, expected);
}

#[test]
fn object_that_cannot_be_mapped_is_freed() {
    let (card, system) = open(Scripted::new(|call, _| match call {
        Call::MmapBo => Err(Errno::INVAL),
        _ => Ok(()),
    }));
    assert!(card.create(1).is_err());
    assert_eq!(*system.calls.lock(), [Call::CreateBo, Call::MmapBo, Call::GemClose]);
}

#[test]
fn only_the_opener_of_a_file_closes_it() {
    let (card, system) = open(willing());
    let file = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let adopted = Card::adopt(system.clone(), file.as_fd(), "descriptor".to_owned()).unwrap();
    drop(adopted);
    assert_eq!(*system.closed.lock(), 0, "it is the program's");
    drop(card);
    assert_eq!(*system.closed.lock(), 1);
}

#[test]
fn slices_and_executions_have_their_bytes() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = seen.clone();
    let mut handle = 40;
    let (card, _) = open(Scripted::new(move |call, argument| {
        match call {
            Call::CreateBo => {
                handle += 1;
                argument.copy_from_slice(CreateBo { handle, ..CreateBo::default() }.as_bytes());
            }
            Call::AttachSlice => {
                let attach: AttachSlice = read(argument);
                // SAFETY: `hdr.count` slices are at `data` until this returns, and the test attaches one.
                let slice = unsafe { *(attach.data as *const SliceEntry) };
                let header = attach.hdr;
                record.lock().push(format!(
                    "attach {} to {} dir {} x{} size {}",
                    header.handle, header.dbc_id, header.dir, header.count, slice.size
                ));
            }
            Call::Execute => {
                let execute: Execute = read(argument);
                // SAFETY: `hdr.count` entries are at `data` until this returns, and the test executes two.
                let second = unsafe { *(execute.data as *const ExecuteEntry).add(1) };
                record.lock().push(format!("execute {} on {}", second.handle, execute.hdr.dbc_id));
            }
            Call::PartialExecute => {
                let execute: Execute = read(argument);
                // SAFETY: the same two entries, with their lengths.
                let entries = unsafe { *(execute.data as *const [PartialExecuteEntry; 2]) };
                record.lock().push(format!("partial {:?}", entries.map(|entry| entry.resize)));
            }
            Call::PerfStats => {
                let stats: PerfStats = read(argument);
                // SAFETY: one entry is at `data` until this returns, for the answer to be written to.
                let entry = unsafe { &mut *(stats.data as *mut PerfStatsEntry) };
                assert_eq!(entry.handle, 41);
                entry.num_queue_element = 9;
                entry.device_latency_us = 1500;
            }
            _ => {}
        }
        Ok(())
    }));
    let (first, second) = (card.create(4096).unwrap(), card.create(4096).unwrap());
    let slice = SliceEntry { size: 77, ..SliceEntry::default() };
    card.attach(&first, 3, TO_DEVICE, &[slice, slice]).unwrap();
    card.attach(&second, 3, FROM_DEVICE, &[slice]).unwrap();
    card.execute(3, &batch(&[(&first, None), (&second, None)])).unwrap();
    card.execute(3, &batch(&[(&first, Some(10)), (&second, None)])).unwrap();
    let performance = card.performance(3, &[&first]).unwrap();
    assert_eq!((performance[0].elements, performance[0].device), (9, Duration::from_micros(1500)));
    let expected = [
        "attach 41 to 3 dir 1 x2 size 77",
        "attach 42 to 3 dir 2 x1 size 77",
        "execute 42 on 3",
        "partial [10, 4096]",
    ];
    assert_eq!(*seen.lock(), expected);
}

#[test]
fn interrupted_requests_are_done_again() {
    let mut interruptions = 3;
    let (card, system) = open(Scripted::new(move |call, _| {
        if matches!(call, Call::Execute | Call::Wait) && interruptions > 0 {
            interruptions -= 1;
            return Err(Errno::INTR);
        }
        Ok(())
    }));
    let object = card.create(1).unwrap();
    card.execute(0, &batch(&[(&object, None)])).unwrap();
    card.wait(&object, 0, Duration::from_secs(10)).unwrap();
    assert_eq!(system.calls.lock().iter().filter(|call| **call == Call::Execute).count(), 4);
}

#[test]
fn wait_asks_for_the_time_that_is_left_and_never_for_the_modules() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let record = times.clone();
    let (card, _) = open(Scripted::new(move |call, argument| {
        if call == Call::Wait {
            let wait: Wait = read(argument);
            record.lock().push(wait.timeout);
            std::thread::sleep(Duration::from_millis(5));
            return if record.lock().len() < 3 { Err(Errno::INTR) } else { Err(Errno::TIMEDOUT) };
        }
        Ok(())
    }));
    let object = card.create(1).unwrap();
    assert_eq!(card.wait(&object, 0, Duration::from_millis(1000)), Err(Error::TimedOut));
    let asked = times.lock().clone();
    assert!(asked[0] <= 1000 && asked[1] < asked[0] && asked[2] < asked[1], "{asked:?}");
    times.lock().clear();
    assert_eq!(card.wait(&object, 0, Duration::ZERO), Err(Error::TimedOut));
    assert_eq!(*times.lock(), [1], "zero stands for the module's own timeout");
}

#[test]
fn refusals_of_the_kernel_have_their_meaning() {
    for (call, errno, expected) in [
        (Call::Execute, Errno::AGAIN, Error::Full),
        (Call::Execute, Errno::PIPE, Error::WorkloadLost),
        (Call::Wait, Errno::PERM, Error::WorkloadLost),
        (Call::DetachSlice, Errno::BUSY, Error::Queued),
        (Call::AttachSlice, Errno::NODEV, Error::Gone),
    ] {
        let (card, _) = open(Scripted::new(move |made, _| if made == call { Err(errno) } else { Ok(()) }));
        let object = card.create(1).unwrap();
        let result = match call {
            Call::Execute => card.execute(0, &batch(&[(&object, None)])),
            Call::Wait => card.wait(&object, 0, Duration::from_millis(1)),
            Call::DetachSlice => card.detach(&object),
            _ => card.attach(&object, 0, TO_DEVICE, &[SliceEntry::default()]),
        };
        assert_eq!(result, Err(expected));
    }
}

#[test]
fn interrupted_request_is_made_again_as_it_was() {
    let mut interrupted = false;
    let (card, _) = open(Scripted::new(move |call, argument| {
        if call != Call::CreateBo {
            return Ok(());
        }
        let create: CreateBo = read(argument);
        assert_eq!((create.size, create.handle), (5000, 0));
        // A kernel that ends early may leave anything behind.
        let result = if std::mem::replace(&mut interrupted, true) { Ok(()) } else { Err(Errno::INTR) };
        argument.copy_from_slice(CreateBo { size: 77, handle: 9, pad: 7 }.as_bytes());
        result
    }));
    assert_eq!(card.create(5000).unwrap().number(), 9);
}

#[test]
fn batch_that_is_emptied_is_not_partial_any_more() {
    let (card, system) = open(willing());
    let object = card.create(1).unwrap();
    let mut batch = batch(&[(&object, Some(1))]);
    card.execute(0, &batch).unwrap();
    batch.clear();
    batch.push(&object, None);
    card.execute(0, &batch).unwrap();
    assert_eq!(system.calls.lock()[2..], [Call::PartialExecute, Call::Execute]);
}
