// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The three ways in which a device reports completions. A program sees no difference.

use crate::common::forbidden::{descriptors, is_alone, is_alone_for, take_over};
use crate::common::{Buffer, Device, Error, List, Semaphore};
use hal_semaphore::Code;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const WAYS: [&str; 3] = ["callback", "poll", "descriptor"];

/// Long enough for anything here on a busy machine, and shorter than the limit of a teardown.
const SOON: Duration = Duration::from_secs(15);

/// A mock device that reports in this way, with more parameters.
fn device(way: &str, rest: &str) -> Device {
    Device::open(&format!("mock://0?completion={way}{rest}")).unwrap()
}

/// Dependent fills, each on the next queue. Returns the buffer and the timeline.
fn chain(device: &Device, queues: u64, steps: u64) -> (Buffer, Semaphore) {
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    for step in 1..=steps {
        let (waits, signals) = (done.at(step - 1), done.at(step));
        let pattern = [u8::try_from(step % 251).unwrap()];
        device.fill_on(1 << (step % queues), &waits, &signals, &buffer, (0, 64), &pattern).unwrap();
    }
    (buffer, done)
}

#[test]
fn chain_over_queues_ends_whichever_way_is_reported() {
    for way in WAYS {
        for rest in
            ["", "&waits=none", "&waits=events&heaps=2&depth=4&queues=3", "&latency=100us&fault=jitter"]
        {
            let device = device(way, rest);
            let (buffer, done) = chain(&device, 2, 500);
            done.wait(500).unwrap_or_else(|failed| panic!("{way}{rest}: {}", failed.text));
            assert_eq!(buffer.read(), [u8::try_from(500 % 251).unwrap(); 64], "{way}{rest}");
        }
    }
}

#[test]
fn full_queue_goes_on_whichever_way_is_reported() {
    for way in WAYS {
        let device = device(way, "&queues=1&depth=4&latency=50us");
        let (buffer, done) = (device.buffer(64), device.semaphore(0));
        let ends: Vec<_> = (0..64).map(|_| device.semaphore(0)).collect();
        for end in &ends {
            device.fill(&List::none(), &end.at(1), &buffer, (0, 64), &[4]).unwrap();
        }
        for end in &ends {
            end.wait(1).unwrap_or_else(|failed| panic!("{way}: {}", failed.text));
        }
        drop(done);
    }
}

#[test]
fn threads_share_a_device_whichever_way_it_reports() {
    for way in WAYS {
        let device = device(way, "&queues=3&depth=4");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (_, done) = chain(&device, 3, 300);
                    done.wait(300).unwrap();
                });
            }
        });
    }
}

#[test]
fn failed_operation_is_reported_by_every_way_of_completion() {
    for way in WAYS {
        let device = device(way, "&queues=1&fault=fail:fill:2:ABORTED");
        let buffer = device.buffer(64);
        let ends: Vec<_> = (0..3).map(|_| device.semaphore(0)).collect();
        for end in &ends {
            device.fill(&List::none(), &end.at(1), &buffer, (0, 64), &[7]).unwrap();
        }
        ends[0].wait(1).unwrap();
        assert_eq!(ends[1].wait(1).unwrap_err().code, Code::Aborted, "{way}");
        ends[2].wait(1).unwrap();
    }
}

#[test]
fn lost_device_fails_everything_whichever_way_it_is_reported() {
    for way in WAYS {
        let device = device(way, "&fault=lose:3");
        let (_buffer, done) = chain(&device, 2, 10);
        let failed = done.wait(10).unwrap_err();
        assert_eq!(failed.code, Code::Unavailable, "{way}");
        assert!(failed.text.contains("lost at job 3"), "{way}: {}", failed.text);
        let (_buffer, later) = chain(&device, 1, 1);
        assert!(later.wait(1).is_err());
    }
}

#[test]
fn worker_that_panics_loses_the_device_whichever_way_it_is_reported() {
    for way in WAYS {
        let device = device(way, "&workers=2&fault=panic:3");
        let (_buffer, done) = chain(&device, 2, 10);
        let failed = done.wait(10).unwrap_err();
        assert_eq!(failed.code, Code::Internal, "{way}");
        for part in ["thread \"mock-", "panicked: at job 3"] {
            assert!(failed.text.contains(part), "{way}: {}", failed.text);
        }
        let (_buffer, later) = chain(&device, 1, 1);
        assert_eq!(later.wait(1).unwrap_err().text, failed.text, "{way}");
        let begin = Instant::now();
        drop(device);
        assert!(begin.elapsed() < SOON, "{way}");
    }
}

#[test]
fn descriptor_that_hangs_up_is_a_lost_device() {
    let device = device("descriptor", "&fault=hangup:3&latency=2ms");
    let (_buffer, done) = chain(&device, 2, 10);
    let failed = done.wait(10).unwrap_err();
    assert_eq!(failed.code, Code::Unavailable);
    assert!(
        failed.text.contains("descriptor") && failed.text.contains("open the device again"),
        "{}",
        failed.text
    );
    let begin = Instant::now();
    drop(device);
    assert!(begin.elapsed() < SOON);
}

/// The descriptors of this process that are sockets.
fn sockets() -> Vec<i32> {
    let is_socket = |number: &i32| {
        let target = std::fs::read_link(format!("/proc/self/fd/{number}"));
        target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    descriptors().into_iter().filter(is_socket).collect()
}

/// A C program ends at a signal for a broken pipe, which Rust programs ignore.
#[test]
fn descriptor_that_the_program_closes_is_a_lost_device() {
    let test = "completions::descriptor_that_the_program_closes_is_a_lost_device";
    let Some(closed) = is_alone_for(test, &["first", "second", "both"]) else { return };
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let before = sockets();
    let device = device("descriptor", "&latency=2ms");
    chain(&device, 2, 3).1.wait(3).unwrap();
    let own: Vec<i32> = sockets().into_iter().filter(|socket| !before.contains(socket)).collect();
    assert_eq!(own.len(), 2, "the device reports by a pair of sockets");
    let (_buffer, done) = chain(&device, 2, 40);
    take_over(match &closed[..] {
        "first" => &own[..1],
        "second" => &own[1..],
        _ => &own,
    });
    let failed = done.wait(40).unwrap_err();
    assert_eq!(failed.code, Code::Unavailable, "{}", failed.text);
    assert!(failed.text.contains("open the device again"), "{}", failed.text);
    drop(device);
}

/// The error of the first of many calls that fails.
fn first_failure(mut call: impl FnMut() -> Result<(), Error>) -> Error {
    let until = Instant::now() + SOON;
    loop {
        match call() {
            Err(error) => return error,
            Ok(()) => assert!(Instant::now() < until, "the device is lost"),
        }
    }
}

/// The same for a thread that does its own work, and so finds out inside of a submission. Work that ended before the
/// loss was seen has succeeded.
#[test]
fn descriptor_that_is_closed_between_calls_is_a_lost_device() {
    if !is_alone("completions::descriptor_that_is_closed_between_calls_is_a_lost_device") {
        return;
    }
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let before = sockets();
    let device = device("descriptor", "");
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    let mut calls = 0;
    let mut call = || {
        calls += 1;
        device.fill(&List::none(), &done.at(calls), &buffer, (0, 64), &[1])?;
        done.wait(calls)
    };
    (1..=32).try_for_each(|_| call()).unwrap();
    let own: Vec<i32> = sockets().into_iter().filter(|socket| !before.contains(socket)).collect();
    take_over(&own);
    let failed = first_failure(call);
    assert_eq!(failed.code, Code::Unavailable, "{}", failed.text);
    assert!(failed.text.contains("open the device again"), "{}", failed.text);
}

/// The device has ended work and hangs up before the host polls: the ended work counts.
#[test]
fn report_before_a_descriptor_hung_up_is_taken() {
    let uri = "mock://0?completion=descriptor&queues=1&fault=hangup:3";
    let (device, proactor) = Device::open_polled(uri).unwrap();
    let buffer = device.buffer(64);
    let (held, holds) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    proactor.run(move || {
        held.send(()).unwrap();
        goes.recv().unwrap();
    });
    holds.recv_timeout(SOON).unwrap();
    let ends: Vec<_> = (0..3).map(|_| device.semaphore(0)).collect();
    for end in &ends {
        device.fill(&List::none(), &end.at(1), &buffer, (0, 64), &[7]).unwrap();
    }
    // Time enough for all three.
    std::thread::sleep(Duration::from_millis(200));
    go.send(()).unwrap();
    for end in &ends[..2] {
        end.wait(1).unwrap();
    }
    // From then on it is lost.
    let lost = first_failure(|| {
        let end = device.semaphore(0);
        device.fill(&List::none(), &end.at(1), &buffer, (0, 64), &[7]).and_then(|()| end.wait(1))
    });
    assert_eq!(lost.code, Code::Unavailable, "{}", lost.text);
}

#[test]
fn device_goes_with_work_in_flight_whichever_way_it_reports() {
    for way in WAYS {
        let device = device(way, "&latency=60s");
        let (_buffer, done) = chain(&device, 2, 10);
        let begin = Instant::now();
        drop(device);
        assert!(begin.elapsed() < SOON, "{way}: {:?}", begin.elapsed());
        assert!(done.wait(10).is_err());
    }
}

#[test]
fn devices_come_and_go_whichever_way_they_report() {
    for way in WAYS {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..10 {
                        let device = device(way, "&workers=2");
                        let (_, done) = chain(&device, 2, round);
                        drop((device, done));
                    }
                });
            }
        });
    }
}

#[test]
fn device_may_be_dropped_by_what_its_completion_calls() {
    for way in WAYS {
        let (sender, receiver) = mpsc::channel();
        let device = device(way, "&latency=1ms");
        let (_buffer, done) = chain(&device, 2, 3);
        let over = device.semaphore(0);
        let last = device.again();
        let call = Box::new(move || {
            drop(last);
            sender.send(()).unwrap();
            std::ptr::null_mut()
        });
        device.host_call(&done.at(3), &over.at(1), 0, call).unwrap();
        drop(device);
        receiver.recv_timeout(SOON).unwrap();
        over.wait(1).unwrap();
    }
}

#[test]
fn device_may_be_dropped_on_the_thread_that_polls_it() {
    for way in WAYS {
        let (sender, receiver) = mpsc::channel();
        // The job ends late enough for the timepoint to be registered first.
        let device = device(way, "&latency=20ms&workers=1");
        let (_buffer, done) = chain(&device, 2, 1);
        let last = device.again();
        done.when(1, move || {
            drop(last);
            sender.send(std::thread::current().name().map(str::to_owned)).unwrap();
        });
        // Only the callback holds the device from here on.
        drop(device);
        let thread = receiver.recv_timeout(SOON).unwrap_or_else(|_| panic!("{way}: no callback"));
        if way == "poll" {
            assert_eq!(thread.as_deref(), Some("hal-poll"));
        }
    }
}
