// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a process has of a device: threads and descriptors; what it sees at its limits and in a sandbox; and processes
//! that are forked beside open devices.

use crate::common::forbidden::{forbid_threads, is_alone, is_alone_for};
use crate::common::{Device, Error, List, new_pool};
use hal_semaphore::Code;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) const DEVICES: [&str; 8] = [
    "mock",
    "mock://0?completion=descriptor",
    "template",
    "gaudi://emulated?generation=gaudi1&seed=8401",
    "gaudi://emulated?generation=gaudi2&seed=8402",
    "qaic://emulated?seed=8403",
    "tenstorrent://emulated?seed=8404&board=n150",
    "nvidia://emulated",
];

/// Fills a buffer on a device.
fn fill(device: &Device) -> bool {
    let (buffer, done) = (device.buffer(4096), device.semaphore(0));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 4096), &[7]).unwrap();
    done.wait(1).unwrap();
    buffer.read() == [7; 4096]
}

/// The threads and the descriptors of this process.
fn counts() -> [usize; 2] {
    ["task", "fd"].map(|folder| std::fs::read_dir(format!("/proc/self/{folder}")).unwrap().count())
}

/// Alone, as it counts what the whole process has.
#[test]
fn semaphore_that_a_program_keeps_keeps_no_device() {
    if !is_alone("processes::semaphore_that_a_program_keeps_keeps_no_device") {
        return;
    }
    for uri in DEVICES {
        // What a driver has for the process stays.
        assert!(fill(&Device::open(uri).unwrap()), "{uri}");
        let before = counts();
        let device = Device::open(uri).unwrap();
        assert!(fill(&device), "{uri}");
        let (kept, never) = (device.semaphore(3), device.semaphore(0));
        device.barrier(&never.at(1), &device.semaphore(0).at(1)).unwrap();
        never.when_known(2, drop);
        drop(device);
        // A semaphore has its proactor, which exports timepoints: a thread, and two descriptors.
        let has_no_more = |now: [usize; 2]| now[0] <= before[0] + 1 && now[1] <= before[1] + 2;
        // An emulated card ends what its driver has closed on threads of its own.
        let until = Instant::now() + Duration::from_secs(60);
        while !has_no_more(counts()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(has_no_more(counts()), "{uri}: {before:?}, {:?}", counts());
        kept.signal(4).unwrap();
        assert_eq!(kept.value().unwrap(), 4, "{uri}");
        assert!(never.signal(1).is_ok() && never.value().unwrap() == 1, "{uri}");
    }
}

/// What the host lacks is no card that is missing.
#[test]
fn host_without_a_folder_for_locks_is_told_what_to_set() {
    const ALONE: &str = "PROCESSES_WITHOUT_A_FOLDER";
    if std::env::var_os(ALONE).is_none() {
        let name = "processes::host_without_a_folder_for_locks_is_told_what_to_set";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact"]).env(ALONE, "1").env("XDG_RUNTIME_DIR", "/absent/folder");
        let child = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let uri = "gaudi://emulated?machine=processes";
    Device::cannot_be_opened(uri, Code::FailedPrecondition, "set XDG_RUNTIME_DIR");
    Device::open("gaudi://emulated").unwrap();
}

/// A process may reach its limit of threads behind `iree_hal_create_device`.
#[test]
fn process_that_can_start_no_more_threads_has_its_work_done() {
    let test = "processes::process_that_can_start_no_more_threads_has_its_work_done";
    let Some(uri) = is_alone_for(test, &DEVICES) else { return };
    let (pool, _) = new_pool().unwrap();
    let device = Device::open_with_pool(&uri, pool).unwrap();
    forbid_threads();
    assert!(fill(&device));
    // The program submits with a lock that its calls take.
    let lock = Arc::new(Mutex::new(0));
    let held = lock.lock().unwrap();
    let (done, marked) = (device.semaphore(0), device.semaphore(0));
    let taken = lock.clone();
    let call = move || {
        *taken.lock().unwrap() += 1;
        std::ptr::null_mut()
    };
    device.host_call(&List::none(), &done.at(1), 0, Box::new(call)).unwrap();
    let called = Arc::new(AtomicUsize::new(0));
    let (counted, taken) = (called.clone(), lock.clone());
    marked.when(1, move || {
        *taken.lock().unwrap() += 1;
        counted.fetch_add(1, Ordering::SeqCst);
    });
    device.barrier(&List::none(), &marked.at(1)).unwrap();
    drop(held);
    done.wait(1).unwrap();
    crate::common::wait_until(|| called.load(Ordering::SeqCst) == 1);
    assert_eq!(*lock.lock().unwrap(), 2);
    let begin = Instant::now();
    drop((done, marked, device));
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    let error = Device::open_with_pool(&uri, pool).err().unwrap();
    assert_eq!(error.code, Code::ResourceExhausted, "{}", error.text);
    assert!(error.text.contains("thread"), "{}", error.text);
    unsafe { hal_sys::iree_async_proactor_pool_release(pool) };
}

/// The outcome of a function in a forked process: its exit, or a signal if it takes longer than a minute.
fn forked(child: impl FnOnce() -> bool) -> i32 {
    let process = unsafe { libc::fork() };
    if process == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        unsafe { libc::_exit(i32::from(!outcome.is_ok_and(|outcome| outcome))) };
    }
    let (until, mut status) = (Instant::now() + Duration::from_secs(60), -1);
    while unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > until {
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    status
}

/// Python's `multiprocessing` forks. The child has none of its parent's threads, and finds locks as they had them.
#[test]
fn process_that_was_forked_beside_open_devices_is_refused_one() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        assert!(fill(&device), "{uri}");
        let refused = forked(|| {
            let refused = Device::open(uri).err().unwrap();
            refused.code == Code::FailedPrecondition && refused.text.contains("spawn")
        });
        assert_eq!(refused, 0, "{uri}");
        // The parent goes on.
        assert!(fill(&device) && fill(&Device::open(uri).unwrap()), "{uri}");
    }
}

/// Daemons do this, and programs that fork with no thought of their devices, whose copies the child releases.
#[test]
fn forked_process_is_refused_what_it_does_with_its_parents_devices() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        assert!(fill(&device), "{uri}");
        let (buffer, go, done) = (device.buffer(4096), device.semaphore(0), device.semaphore(0));
        device.fill(&go.at(1), &done.at(1), &buffer, (0, 4096), &[7]).unwrap();
        let ended = forked(|| {
            let outcomes = [
                device.try_buffer(4096).map(drop),
                device.fill(&List::none(), &go.at(1), &buffer, (0, 4096), &[7]),
                go.signal(1),
                done.wait_for(1, 600_000),
            ];
            // Also the last references, as a program that ends releases them.
            unsafe {
                hal_sys::iree_hal_buffer_release(buffer.0);
                hal_sys::iree_hal_semaphore_release(done.0);
                hal_sys::iree_hal_device_release(device.0);
            }
            let is_refused =
                |error: Error| error.code == Code::FailedPrecondition && error.text.contains("forked");
            outcomes.into_iter().all(|outcome| outcome.is_err_and(is_refused))
        });
        assert_eq!(ended, 0, "{uri}");
        go.signal(1).unwrap();
        done.wait(1).unwrap();
        assert_eq!(buffer.read(), [7; 4096], "{uri}");
    }
}

/// What the drivers have for a process, such as threads that wait for work, is not there in one that is forked. CUDA's
/// library can be used in one process alone.
#[test]
fn process_that_was_forked_behind_its_parents_devices_opens_its_own() {
    let test = "processes::process_that_was_forked_behind_its_parents_devices_opens_its_own";
    let Some(uri) = is_alone_for(test, &DEVICES) else { return };
    let work = || {
        let device = Device::open(&uri).unwrap();
        let called = device.semaphore(0);
        device.host_call(&List::none(), &called.at(1), 0, Box::new(std::ptr::null_mut)).unwrap();
        called.wait(1).unwrap();
        fill(&device)
    };
    assert!(work());
    let ended = forked(|| match &uri[..] {
        "nvidia://emulated" => Device::open(&uri).is_err_and(|error| error.text.contains("was forked")),
        _ => work(),
    });
    assert_eq!(ended, 0, "{uri}");
}
