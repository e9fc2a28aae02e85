// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Sentences of IREE's headers that programs rely on in edge cases: lifetimes, odd lengths, odd orders.

use crate::common::{Buffer, Device, List, Result, Semaphore, barrier, check, reference};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

const WHOLE: usize = usize::MAX;

const DEVICES: [&str; 6] = [
    "mock",
    "template",
    "gaudi://emulated?generation=gaudi1&seed=9701",
    // A submission has two minutes there, on a busy machine.
    "gaudi://emulated?generation=gaudi2&seed=9702&speed=1/4",
    "nvidia://emulated",
    "qaic://emulated",
];

fn slot(slot: u32, offset: usize, length: usize) -> sys::iree_hal_buffer_ref_t {
    let mut reference = sys::iree_hal_buffer_ref_t { offset, length, ..Default::default() };
    reference.set_buffer_slot(slot);
    reference
}

fn fill_of(
    commands: *mut sys::iree_hal_command_buffer_t,
    target: sys::iree_hal_buffer_ref_t,
    byte: u8,
) -> Result {
    unsafe {
        check(sys::iree_hal_command_buffer_fill_buffer(commands, target, (&raw const byte).cast(), 1, 0))
    }
}

/// hal/device.h, host call: the context has "the device the call was issued on". A call may retain it like any
/// other object, for a while or for longer than the call.
#[test]
fn host_call_may_keep_the_device_of_its_context_while_that_goes() {
    for (uri, keeps) in DEVICES.into_iter().flat_map(|uri| [(uri, false), (uri, true)]) {
        let device = Device::open(uri).unwrap();
        let (go, done) = (device.semaphore(0), device.semaphore(0));
        let (entered, enters) = mpsc::channel::<()>();
        let raw = device.0 as usize;
        let call = Box::new(move || {
            entered.send(()).unwrap();
            // The program releases the device in the meantime.
            std::thread::sleep(Duration::from_millis(100));
            let device = raw as *mut sys::iree_hal_device_t;
            unsafe {
                for _ in 0..3 {
                    sys::iree_hal_device_retain(device);
                    sys::iree_hal_device_release(device);
                }
                if keeps {
                    sys::iree_hal_device_retain(device);
                }
            }
            null_mut()
        });
        device.host_call(&go.at(1), &done.at(1), 0, call).unwrap();
        go.signal(1).unwrap();
        enters.recv_timeout(Duration::from_secs(60)).unwrap();
        drop(device);
        done.wait(1).unwrap();
        if keeps {
            // It does no more work and says so, unless the program was so late that its teardown has not begun.
            let device = raw as *mut sys::iree_hal_device_t;
            let late = unsafe {
                let (waits, signals) = (List::none(), done.at(2));
                check(sys::iree_hal_device_queue_barrier(device, 1, waits.raw(), signals.raw(), 0))
            };
            if let Err(error) = late {
                assert_eq!(error.code, Code::Cancelled, "{uri}: {}", error.text);
            }
            unsafe { sys::iree_hal_device_release(device) };
        }
    }
}

/// The same repeatedly, so that the teardown begins at any moment of the call: the count reaches zero more than
/// once.
#[test]
fn host_call_may_take_and_give_back_the_device_of_its_context_at_any_moment() {
    for _ in 0..200 {
        let device = Device::open("mock://?workers=1&queues=1").unwrap();
        let done = device.semaphore(0);
        let (entered, enters) = mpsc::channel::<()>();
        let raw = device.0 as usize;
        let call = Box::new(move || {
            entered.send(()).unwrap();
            let device = raw as *mut sys::iree_hal_device_t;
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {
                for _ in 0..100 {
                    unsafe {
                        sys::iree_hal_device_retain(device);
                        sys::iree_hal_device_release(device);
                    }
                }
            }
            null_mut()
        });
        device.host_call(&List::none(), &done.at(1), 0, call).unwrap();
        enters.recv_timeout(Duration::from_secs(60)).unwrap();
        drop(device);
        done.wait(1).unwrap();
    }
}

/// hal/buffer.h: `IREE_HAL_WHOLE_BUFFER` is the rest of the buffer from the offset on, and for a subspan the rest
/// of that.
#[test]
fn rest_of_a_part_of_a_part_is_the_rest_of_that() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let whole = device.buffer(1000);
        let inner = whole.subspan(100, 800).subspan(50, WHOLE);
        let innermost = inner.subspan(25, 500);
        assert_eq!(unsafe { sys::iree_hal_buffer_byte_length(inner.0) }, 750);
        let (clear, done) = (device.semaphore(0), device.semaphore(0));
        let mut expected = vec![0; 1000];
        device.fill(&List::none(), &clear.at(1), &whole, (0, WHOLE), &[0]).unwrap();
        device.fill(&clear.at(1), &done.at(1), &inner, (700, WHOLE), &[1]).unwrap();
        expected[850..900].fill(1);
        device.fill(&done.at(1), &done.at(2), &innermost, (490, WHOLE), &[2]).unwrap();
        expected[665..675].fill(2);
        let source = innermost.subspan(485, WHOLE);
        device.copy_on(1, &done.at(2), &done.at(3), (&source, 3), (&inner, 0), 12).unwrap();
        let moved: Vec<u8> = expected[663..675].to_vec();
        expected[150..162].copy_from_slice(&moved);
        // The same in a recording, by name and by slot.
        let commands = device
            .record(1, |commands| {
                let target =
                    sys::iree_hal_buffer_ref_t { offset: 400, length: WHOLE, ..reference(&innermost) };
                fill_of(commands, target, 3)?;
                fill_of(commands, slot(0, 10, WHOLE), 4)?;
                fill_of(commands, slot(0, 0, 0), 9)
            })
            .unwrap();
        let table = sys::iree_hal_buffer_binding_t { buffer: innermost.0, offset: 20, length: WHOLE };
        unsafe {
            let table = sys::iree_hal_buffer_binding_table_t { count: 1, bindings: &raw const table };
            let (waits, signals) = (done.at(3), done.at(4));
            check(sys::iree_hal_device_queue_execute(
                device.0,
                1,
                waits.raw(),
                signals.raw(),
                commands.0,
                table,
                0,
            ))
            .unwrap();
        }
        expected[575..675].fill(3);
        expected[205..675].fill(4);
        done.wait(4).unwrap();
        assert_eq!(whole.read(), expected, "{uri}");
    }
}

/// hal/command_buffer.h, update: the source is captured, up to 64 KiB of it. A length that no source can have is
/// refused, and nothing is read.
#[test]
fn update_of_more_than_there_can_be_is_refused_before_it_is_read() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let buffer = device.buffer(64);
        let source = [1_u8; 64];
        let update = |target: sys::iree_hal_buffer_ref_t| {
            device.record(1, |commands| unsafe {
                check(sys::iree_hal_command_buffer_update_buffer(
                    commands,
                    source.as_ptr().cast(),
                    0,
                    target,
                    0,
                ))
            })
        };
        let rest = sys::iree_hal_buffer_ref_t { length: WHOLE, ..reference(&buffer) };
        // The rest of a buffer that is named has a known length.
        let commands = update(rest).unwrap();
        let done = device.semaphore(0);
        device.execute(1, &List::none(), &done.at(1), &commands, &[]).unwrap();
        done.wait(1).unwrap();
        assert_eq!(buffer.read(), [1; 64], "{uri}");
        let error = update(slot(0, 0, WHOLE)).err().unwrap();
        assert_eq!(error.code, Code::OutOfRange, "{uri}: {}", error.text);
    }
}

/// hal/device.h: an operation retains what it uses until it has ended, and the call captures lists.
#[test]
fn everything_may_be_released_once_it_is_queued() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let result = device.buffer(256);
        let last = device.semaphore(0);
        let gate = device.semaphore(0);
        {
            let (first, second) = (device.semaphore(0), device.semaphore(0));
            let (source, between) = (device.buffer(256), device.local_buffer(256));
            {
                let (waits, zeroed, signals) = (gate.at(1), device.semaphore(0).at(1), first.at(1));
                device.fill(&waits, &zeroed, &source, (0, WHOLE), &[0]).unwrap();
                device.fill(&zeroed, &signals, &source.subspan(0, 128), (0, WHOLE), &[7]).unwrap();
            }
            let commands = device
                .record(2, |commands| unsafe {
                    check(sys::iree_hal_command_buffer_copy_buffer(
                        commands,
                        slot(0, 0, 256),
                        slot(1, 0, 256),
                        0,
                    ))
                })
                .unwrap();
            device.execute(1, &first.at(1), &second.at(1), &commands, &[&source, &between]).unwrap();
            device.copy(&second.at(1), &second.at(2), &between, &result, 256).unwrap();
            device.host_call(&second.at(2), &last.at(1), 0, Box::new(null_mut)).unwrap();
        }
        gate.signal(1).unwrap();
        last.wait(1).unwrap();
        let mut expected = [0; 256];
        expected[..128].fill(7);
        assert_eq!(result.read(), expected, "{uri}");
    }
}

/// hal/device.h, dispatch: "the executable, binding buffers, and indirect parameter buffer will be retained by the
/// queue".
#[test]
fn objects_of_a_dispatch_may_be_released_once_it_is_queued() {
    let bytes = crate::common::testdata("vmvx/command_buffer_dispatch_constants_bindings_test.bin");
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        if device.query("hal.executable.format", "vmvx-bytecode-fb").unwrap() == 0 {
            continue;
        }
        let (result, gate, last) = (device.buffer(16), device.semaphore(0), device.semaphore(0));
        {
            let executable = device.load("vmvx-bytecode-fb", &bytes).unwrap();
            let (input, output) = (device.local_buffer(16), device.local_buffer(16));
            let (filled, run) = (device.semaphore(0), device.semaphore(0));
            device.fill(&gate.at(1), &filled.at(1), &input, (0, 16), &[5, 0, 0, 0]).unwrap();
            device.dispatch(1, &filled.at(1), &run.at(1), &executable, &[3, 10], &[&input, &output]).unwrap();
            device.copy(&run.at(1), &last.at(1), &output, &result, 16).unwrap();
        }
        gate.signal(1).unwrap();
        last.wait(1).unwrap();
        assert_eq!(result.read(), [25, 0, 0, 0].repeat(4), "{uri}");
    }
}

/// hal/command_buffer.h: a reusable command buffer may be in several queues at once, each time with its own table.
#[test]
fn one_recording_runs_many_times_at_once_with_a_table_each() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let commands = device
            .record(2, |commands| {
                let zeros = [0_u8; 16];
                unsafe {
                    let source = zeros.as_ptr().cast();
                    check(sys::iree_hal_command_buffer_update_buffer(
                        commands,
                        source,
                        0,
                        slot(0, 0, 16),
                        0,
                    ))?;
                }
                barrier(commands)?;
                fill_of(commands, slot(0, 1, 14), 5)?;
                barrier(commands)?;
                unsafe {
                    check(sys::iree_hal_command_buffer_copy_buffer(
                        commands,
                        slot(0, 0, 16),
                        slot(1, 16, 16),
                        0,
                    ))
                }
            })
            .unwrap();
        let gate = device.semaphore(0);
        let runs: Vec<_> = (0..20)
            .map(|_| (device.buffer(16), device.local_buffer(32), device.buffer(32), device.semaphore(0)))
            .collect();
        for (at, (one, two, out, done)) in runs.iter().enumerate() {
            // A longer table than it needs is fine.
            device.execute(1 << (at % 3), &gate.at(1), &done.at(1), &commands, &[one, two, one]).unwrap();
            device.copy(&done.at(1), &done.at(2), two, out, 32).unwrap();
        }
        drop(commands);
        gate.signal(1).unwrap();
        for (_, _, out, done) in &runs {
            done.wait(2).unwrap();
            let mut expected = [5; 16];
            (expected[0], expected[15]) = (0, 0);
            assert_eq!(out.read()[16..], expected, "{uri}");
        }
    }
}

/// hal/device.h, alloca: with an indeterminate lifetime "explicit deallocation requests are ignored".
#[test]
fn deallocation_of_what_has_no_determinate_lifetime_is_a_barrier() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let (done, mut buffer) = (device.semaphore(0), null_mut());
        unsafe {
            let (waits, signals) = (List::none(), done.at(1));
            let flags = u64::from(sys::IREE_HAL_ALLOCA_FLAG_INDETERMINATE_LIFETIME);
            check(sys::iree_hal_device_queue_alloca(
                device.0,
                1,
                waits.raw(),
                signals.raw(),
                null_mut(),
                crate::common::params(),
                256,
                flags,
                &raw mut buffer,
            ))
            .unwrap();
        }
        let buffer = Buffer(buffer);
        device.dealloca(&done.at(1), &done.at(2), &buffer).unwrap();
        device.fill(&done.at(2), &done.at(3), &buffer, (0, 256), &[3]).unwrap();
        done.wait(3).unwrap();
        assert_eq!(buffer.read(), [3; 256], "{uri}");
    }
}

/// The same for memory that another device allocated, as with IREE's drivers: it is not this device's to return.
#[test]
fn deallocation_by_another_device_is_a_barrier() {
    for uri in DEVICES {
        let (device, other) = (Device::open(uri).unwrap(), Device::open(uri).unwrap());
        let done = device.semaphore(0);
        let buffer = device.alloca(&List::none(), &done.at(1), 256).unwrap();
        other.dealloca(&done.at(1), &done.at(2), &buffer).unwrap();
        device.fill(&done.at(2), &done.at(3), &buffer, (0, 256), &[3]).unwrap();
        done.wait(3).unwrap();
        assert_eq!(buffer.read(), [3; 256], "{uri}");
    }
}

fn wait_for(semaphore: &Semaphore, value: u64, timeout: sys::iree_timeout_t) -> Result {
    unsafe { check(sys::iree_hal_semaphore_wait(semaphore.0, value, timeout, 0)) }
}

/// hal/semaphore.h, wait: `DEADLINE_EXCEEDED` "if the timeout elapses without the semaphore reaching the required
/// value".
#[test]
fn waits_without_time_answer_with_the_present_value() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let semaphore = device.semaphore(3);
        for timeout in unsafe {
            [
                sys::iree_immediate_timeout(),
                sys::iree_make_timeout_ms(0),
                sys::iree_make_deadline(sys::iree_time_now() - 1000),
                sys::iree_make_deadline(0),
            ]
        } {
            wait_for(&semaphore, 3, timeout).unwrap();
            wait_for(&semaphore, 0, timeout).unwrap();
            assert_eq!(wait_for(&semaphore, 4, timeout).unwrap_err().code, Code::DeadlineExceeded, "{uri}");
        }
        let failed = device.semaphore(3);
        failed.fail(Code::DataLoss, "gone");
        for timeout in unsafe { [sys::iree_immediate_timeout(), sys::iree_infinite_timeout()] } {
            assert_eq!(wait_for(&failed, 4, timeout).unwrap_err().code, Code::DataLoss, "{uri}");
        }
    }
}

/// docs/programs.md: the order of a queue is that in which operations become ready. An operation that waits is
/// overtaken by one that does not wait, but not by one that waits for it.
#[test]
fn ready_operations_overtake_waiting_ones() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let (go, late, early, after) =
            (device.semaphore(0), device.semaphore(0), device.semaphore(0), device.semaphore(0));
        let buffer = device.buffer(64);
        device.fill_on(1, &go.at(1), &late.at(1), &buffer, (0, 64), &[1]).unwrap();
        device.fill_on(1, &late.at(1), &after.at(1), &buffer, (0, 4), &[2]).unwrap();
        device.fill_on(1, &List::none(), &early.at(1), &buffer, (8, 4), &[3]).unwrap();
        early.wait(1).unwrap();
        assert_eq!((late.value().unwrap(), after.value().unwrap()), (0, 0), "{uri}");
        go.signal(1).unwrap();
        after.wait(1).unwrap();
        let bytes = buffer.read();
        assert_eq!((&bytes[..4], &bytes[4..12]), (&[2; 4][..], &[1; 8][..]), "{uri}");
    }
}

/// A list that names a semaphore twice: the operation ends, and each of its signals happens or is refused.
#[test]
fn lists_that_name_a_semaphore_twice_signal_or_refuse_each() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        for values in [[1, 1], [1, 2], [2, 1]] {
            let (semaphore, other) = (device.semaphore(0), device.semaphore(0));
            let signals = List::of(&[(&semaphore, values[0]), (&other, 1), (&semaphore, values[1])]);
            match device.barrier(&List::none(), &signals) {
                Ok(()) => match other.wait(1) {
                    Ok(()) => semaphore.wait(2.min(values[0].max(values[1]))).unwrap(),
                    Err(error) => assert_ne!(error.code, Code::DeadlineExceeded, "{uri} {values:?}"),
                },
                Err(_) => assert_eq!((semaphore.value().unwrap(), other.value().unwrap()), (0, 0), "{uri}"),
            }
            let waits = List::of(&[(&device.semaphore(5), 5), (&device.semaphore(5), 5)]);
            let again = device.semaphore(0);
            device.barrier(&waits, &again.at(1)).unwrap();
            again.wait(1).unwrap();
        }
    }
}

/// hal/device.h, profiling: nested begins fail with `FAILED_PRECONDITION`, options that request nothing start
/// nothing, and data that the device does not have is refused.
#[test]
fn profiling_is_begun_once_and_ended_at_any_time() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let flush = || unsafe { check(sys::iree_hal_device_profiling_flush(device.0)) };
        let end = || unsafe { check(sys::iree_hal_device_profiling_end(device.0)) };
        flush().unwrap();
        end().unwrap();
        let nothing = sys::iree_hal_device_profiling_options_t::default();
        let begin = |options: &sys::iree_hal_device_profiling_options_t| unsafe {
            check(sys::iree_hal_device_profiling_begin(device.0, options))
        };
        begin(&nothing).unwrap();
        begin(&nothing).unwrap();
        flush().unwrap();
        end().unwrap();
        end().unwrap();
        for families in [
            u64::from(sys::IREE_HAL_DEVICE_PROFILING_DATA_COUNTER_SAMPLES),
            u64::from(sys::IREE_HAL_DEVICE_PROFILING_DATA_EXECUTABLE_TRACES),
            1 << 62,
        ] {
            let options = sys::iree_hal_device_profiling_options_t { data_families: families, ..nothing };
            let refused = begin(&options).expect_err("no recorder writes that");
            assert_ne!(refused.code, Code::Internal, "{uri}: {}", refused.text);
        }
    }
}

/// hal/command_buffer.h: a command buffer has room for its binding capacity, or its creation fails.
#[test]
fn command_buffer_for_more_bindings_than_memory_has_room_for_is_refused() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        for capacity in [1 << 44, usize::MAX / 2, usize::MAX] {
            let mut commands = null_mut();
            let created = unsafe {
                let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_DEFAULT;
                check(sys::iree_hal_command_buffer_create(device.0, mode, 3, 1, capacity, &raw mut commands))
            };
            let error = created.expect_err("there is not so much memory");
            let codes = [Code::ResourceExhausted, Code::OutOfRange, Code::InvalidArgument];
            assert!(codes.contains(&error.code), "{uri}: {}", error.text);
            assert!(commands.is_null());
        }
    }
}

/// A release callback that submits more work, imports its memory again, and releases the device.
struct Again {
    device: Mutex<Option<Device>>,
    memory: usize,
    done: Semaphore,
    sender: mpsc::Sender<()>,
}

/// hal/allocator.h: a release callback runs "when the underlying resource is no longer in use by the HAL", so the
/// program can use the resource again.
#[test]
fn release_callback_may_use_the_memory_and_the_device_again() {
    unsafe extern "C" fn release(again: *mut std::ffi::c_void, _: *mut sys::iree_hal_buffer_t) {
        let again = unsafe { &*again.cast::<Again>() };
        let device = again.device.lock().unwrap().take().unwrap();
        let buffer = device.import(host(), again.memory as *mut u8, 4096).unwrap();
        device.fill(&again.done.at(1), &again.done.at(2), &buffer, (0, 64), &[2]).unwrap();
        drop((buffer, device));
        again.sender.send(()).unwrap();
    }
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    for uri in DEVICES {
        let mut page = Box::new(Page([0; 4096]));
        let device = Device::open(uri).unwrap();
        let (sender, receiver) = mpsc::channel();
        let memory = page.0.as_mut_ptr();
        let again = Again {
            device: Mutex::new(Some(device.again())),
            memory: memory as usize,
            done: device.semaphore(0),
            sender,
        };
        let gate = device.semaphore(0);
        let callback = sys::iree_hal_buffer_release_callback_t {
            fn_: Some(release),
            user_data: std::ptr::from_ref(&again).cast_mut().cast(),
        };
        let buffer = device.import_until(host(), memory, 4096, callback).unwrap();
        device.fill(&gate.at(1), &again.done.at(1), &buffer, (0, 4096), &[1]).unwrap();
        drop(buffer);
        gate.signal(1).unwrap();
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        again.done.wait(2).unwrap();
        drop(device);
        let expected: Vec<u8> = (0..4096).map(|at| if at < 64 { 2 } else { 1 }).collect();
        assert_eq!(page.0.to_vec(), expected, "{uri}");
    }
}

fn host() -> sys::iree_hal_buffer_params_t {
    let type_ = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
    sys::iree_hal_buffer_params_t { type_, usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT, ..Default::default() }
}

/// The steps of the chain.
const STEPS: u64 = 100;

/// Everything that needs no order, from several threads, beside a chain of work.
#[test]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
fn threads_call_everything_at_once() {
    for uri in DEVICES {
        let device = Device::open_in_group(uri).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let beside = |call: Box<dyn Fn(&Device) + Send>| {
                let (device, is_over) = (&device, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        call(device);
                    }
                });
            };
            beside(Box::new(|device| unsafe {
                check(sys::iree_hal_device_trim(device.0)).unwrap();
                check(sys::iree_hal_allocator_trim(device.allocator())).unwrap();
                let mut statistics = sys::iree_hal_allocator_statistics_t::default();
                sys::iree_hal_allocator_query_statistics(device.allocator(), &raw mut statistics);
                assert!(statistics.host_bytes_freed <= statistics.host_bytes_allocated);
                assert!(statistics.device_bytes_freed <= statistics.device_bytes_allocated);
            }));
            beside(Box::new(|device| {
                let gate = device.semaphore(0);
                let (there, used) = (device.semaphore(0), device.semaphore(0));
                let buffer = device.alloca(&gate.at(1), &there.at(1), 4096).unwrap();
                device.fill(&there.at(1), &used.at(1), &buffer, (0, 4096), &[1]).unwrap();
                device.dealloca(&used.at(1), &used.at(2), &buffer).unwrap();
                drop(buffer);
                gate.signal(1).unwrap();
                used.wait(2).unwrap();
            }));
            beside(Box::new(|device| {
                let semaphore = device.semaphore(0);
                device.barrier(&semaphore.at(1), &device.semaphore(0).at(1)).unwrap();
                semaphore.fail(Code::Aborted, "no more");
                assert_eq!(semaphore.value().unwrap_err().code, Code::Aborted);
            }));
            beside(Box::new(|device| {
                let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT;
                let shared =
                    device.try_buffer_of(sys::iree_hal_buffer_params_t { usage, ..host() }, 100).unwrap();
                let commands = device.record(0, |commands| fill_of(commands, reference(&shared), 1)).unwrap();
                drop(shared);
                let done = device.semaphore(0);
                device.execute(1, &List::none(), &done.at(1), &commands, &[]).unwrap();
                device.host_call(&done.at(1), &done.at(2), 0, Box::new(null_mut)).unwrap();
                drop(commands);
                done.wait(2).unwrap();
            }));
            let (chain, buffer) = (device.semaphore(0), device.buffer(4096));
            for step in 0..STEPS {
                let byte = [u8::try_from(step % 256).unwrap()];
                device.fill(&chain.at(step), &chain.at(step + 1), &buffer, (0, 4096), &byte).unwrap();
                if step % 8 == 0 {
                    chain.wait(step + 1).unwrap();
                    assert_eq!(buffer.read(), [byte[0]; 4096], "{uri}");
                }
            }
            chain.wait(STEPS).unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// hal/semaphore.h: `DEVICE_WAIT` is "without host involvement"; waits through the host are `HOST_ONLY`.
#[test]
fn semaphore_that_goes_through_the_host_says_so() {
    let asked = |device: &Device, semaphore: &Semaphore| unsafe {
        sys::iree_hal_device_query_semaphore_compatibility(device.0, semaphore.0)
    };
    for uri in DEVICES {
        let (device, same) = (Device::open(uri).unwrap(), Device::open(uri).unwrap());
        let other = Device::open_in_group("local-task").unwrap();
        assert_eq!(asked(&device, &device.semaphore(0)), sys::IREE_HAL_SEMAPHORE_COMPATIBILITY_ALL, "{uri}");
        for foreign in [same.semaphore(0), other.semaphore(0)] {
            assert_eq!(asked(&device, &foreign), sys::IREE_HAL_SEMAPHORE_COMPATIBILITY_HOST_ONLY, "{uri}");
        }
    }
}
