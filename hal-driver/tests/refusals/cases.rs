// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The calls.

use crate::bench::{Bench, BenchDispatch, LENGTH, answer, params, wait};
use crate::common::{self, Buffer, Commands, Device, File, List, check, reference};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;

mod hostile;

pub(crate) struct Case {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    /// The rule of IREE's header that decides, with its place.
    pub(crate) decides: &'static str,
    pub(crate) call: fn(&Bench) -> String,
}

const ALL: u64 = u64::MAX;
const WHOLE: usize = usize::MAX;
const READ: u32 = sys::IREE_HAL_MEMORY_ACCESS_READ;
const ANY: u32 = sys::IREE_HAL_MEMORY_ACCESS_ALL;

fn slot(offset: usize, length: usize) -> sys::iree_hal_buffer_ref_t {
    unsafe { sys::iree_hal_make_indirect_buffer_ref(0, offset, length) }
}

fn binding(buffer: &Buffer) -> sys::iree_hal_buffer_binding_t {
    sys::iree_hal_buffer_binding_t { buffer: buffer.0, offset: 0, length: LENGTH }
}

/// A recorded fill.
fn filled(
    commands: *mut sys::iree_hal_command_buffer_t,
    target: sys::iree_hal_buffer_ref_t,
) -> sys::iree_status_t {
    unsafe { sys::iree_hal_command_buffer_fill_buffer(commands, target, [1_u8; 4].as_ptr().cast(), 4, 0) }
}

fn updated(bench: &Bench, length: usize) -> String {
    let bytes = vec![1_u8; length];
    let buffer = bench.device.try_buffer_of(params(), length).unwrap();
    bench.executed(0, &[], |commands| unsafe {
        sys::iree_hal_command_buffer_update_buffer(commands, bytes.as_ptr().cast(), 0, reference(&buffer), 0)
    })
}

fn alloca(bench: &Bench, length: usize, alignment: usize, flags: u64) -> String {
    let params = sys::iree_hal_buffer_params_t { min_alignment: alignment, ..params() };
    let mut buffer = null_mut();
    let answer = bench.queued(|device, waits, signals| unsafe {
        let (pool, out) = (null_mut(), &raw mut buffer);
        sys::iree_hal_device_queue_alloca(device, 1, waits, signals, pool, params, length, flags, out)
    });
    unsafe { sys::iree_hal_buffer_release(buffer) };
    answer
}

/// Records and executes an update of stream-ordered memory, recorded before the memory exists.
fn early(
    bench: &Bench,
    name: impl FnOnce(
        &Buffer,
        &dyn Fn(&sys::iree_hal_buffer_ref_t) -> common::Result<Commands>,
    ) -> common::Result<Commands>,
) -> String {
    let (go, ready) = (bench.device.semaphore(0), bench.device.semaphore(0));
    // local-sync returns when the memory exists, and no other thread could continue it.
    let is_sync = bench.device.query("hal.device.id", "local-sync").is_ok_and(|is_it| is_it == 1);
    let waits = if is_sync { List::none() } else { go.at(1) };
    let buffer = bench.device.alloca_of(&waits, &ready.at(1), params(), LENGTH).unwrap();
    let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT;
    let commands = name(&buffer, &|target| {
        bench.record(mode, 0, |raw| unsafe {
            let bytes = [1_u8; LENGTH];
            sys::iree_hal_command_buffer_update_buffer(raw, bytes.as_ptr().cast(), 0, *target, 0)
        })
    });
    go.signal(1).unwrap();
    wait(&ready, 1).unwrap();
    match commands {
        Ok(commands) => bench.execute(&commands, &[]),
        Err(error) => format!("{} recorded", answer::<()>(Err(error))),
    }
}

fn dealloca(bench: &Bench, buffer: &Buffer) -> String {
    bench.queued(|device, waits, signals| unsafe {
        sys::iree_hal_device_queue_dealloca(device, 1, waits, signals, buffer.0, 0)
    })
}

/// A stream-ordered buffer that was deallocated.
fn gone(bench: &Bench) -> Buffer {
    let order = bench.device.semaphore(0);
    let buffer = bench.device.alloca(&List::none(), &order.at(1), LENGTH).unwrap();
    bench.device.dealloca(&order.at(1), &order.at(2), &buffer).unwrap();
    order.wait(2).unwrap();
    buffer
}

fn allocate(bench: &Bench, length: usize, alignment: usize) -> String {
    let params = sys::iree_hal_buffer_params_t { min_alignment: alignment, ..params() };
    answer(bench.device.try_buffer_of(params, length))
}

fn shared() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    }
}

fn map(buffer: &Buffer, access: u32, offset: usize, length: usize) -> String {
    unsafe {
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
        let out = &raw mut mapping;
        let mapped =
            check(sys::iree_hal_buffer_map_range(buffer.0, mode, access as u16, offset, length, out));
        let is_mapped = mapped.is_ok();
        let answer = answer(mapped);
        if is_mapped {
            check(sys::iree_hal_buffer_unmap_range(out)).unwrap();
        }
        answer
    }
}

fn subspan(buffer: &Buffer, offset: usize, length: usize) -> String {
    unsafe {
        let (mut span, system) = (null_mut(), sys::iree_allocator_system());
        let made = check(sys::iree_hal_buffer_subspan(buffer.0, offset, length, system, &raw mut span));
        sys::iree_hal_buffer_release(span);
        answer(made)
    }
}

fn barrier(bench: &Bench, affinity: u64, waits: &List, signals: &List) -> String {
    let (device, waits, signals) = (bench.device.0, waits.raw(), signals.raw());
    bench.outcome(check(unsafe { sys::iree_hal_device_queue_barrier(device, affinity, waits, signals, 0) }))
}

unsafe extern "C" fn nothing(
    _user_data: *mut std::ffi::c_void,
    _arguments: *const u64,
    _context: *mut sys::iree_hal_host_call_context_t,
) -> sys::iree_status_t {
    null_mut()
}

fn host_call(bench: &Bench, function: sys::iree_hal_host_call_fn_t, flags: u64) -> String {
    bench.queued(|device, waits, signals| unsafe {
        let call = sys::iree_hal_host_call_t { fn_: function, user_data: null_mut() };
        sys::iree_hal_device_queue_host_call(device, 1, waits, signals, call, [0; 4].as_ptr(), flags)
    })
}

const fn case(
    group: &'static str,
    name: &'static str,
    decides: &'static str,
    call: fn(&Bench) -> String,
) -> Case {
    Case { group, name, decides, call }
}

const RANGE: &str =
    "buffer.h, `iree_hal_buffer_validate_range`: what is not inside the buffer is out of range";
const PATTERN: &str = "command_buffer.h, fill: a pattern has 1, 2 or 4 bytes; docs/programs.md promises more";
const GROWS: &str = "async/semaphore.h, signal: strictly above the value that there is; hal/semaphore.h would ignore \
                     the call";
const HASHED: &str = "device.h, execute: an affinity is hashed into the queues that there are";
const SILENT: &str = "no header says";

/// All of them.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    ORDINARY.iter().chain(hostile::CASES)
}

const ORDINARY: &[Case] = &[
    case("Fills, updates and copies", "fill past the end", RANGE, |bench| bench.fill(60, 8, 1)),
    case("Fills, updates and copies", "fill of a range that overflows", RANGE, |bench| {
        bench.fill(WHOLE - 3, 8, 1)
    }),
    case("Fills, updates and copies", "fill of nothing", SILENT, |bench| bench.fill(8, 0, 1)),
    case("Fills, updates and copies", "fill of nothing at the end", SILENT, |bench| bench.fill(LENGTH, 0, 1)),
    case(
        "Fills, updates and copies",
        "fill to the end, as `WHOLE_BUFFER`",
        "buffer.h: the rest of the buffer",
        |bench| bench.fill(32, WHOLE, 1),
    ),
    case("Fills, updates and copies", "fill with a pattern of 0 bytes", PATTERN, |bench| {
        bench.fill(0, 64, 0)
    }),
    case("Fills, updates and copies", "fill with a pattern of 3 bytes", PATTERN, |bench| {
        bench.fill(0, 63, 3)
    }),
    case("Fills, updates and copies", "fill with a pattern of 8 bytes", PATTERN, |bench| {
        bench.fill(0, 64, 8)
    }),
    case("Fills, updates and copies", "fill with a pattern of 17 bytes", PATTERN, |bench| {
        bench.fill(0, 64, 17)
    }),
    case(
        "Fills, updates and copies",
        "fill of 4-byte patterns at 2",
        "command_buffer.h, fill: multiples of the pattern; docs/programs.md promises more",
        |bench| bench.fill(2, 8, 4),
    ),
    case(
        "Fills, updates and copies",
        "fill with unknown flags",
        "device.h: none is defined, and what is then is open",
        |bench| bench.fill_of(&bench.buffer, 0, 64, 4, 1 << 40),
    ),
    case(
        "Fills, updates and copies",
        "fill without a buffer",
        "device.h, fill: there is a target",
        |bench| {
            let none = Buffer(null_mut());
            bench.fill_of(&none, 0, 64, 4, 0)
        },
    ),
    case(
        "Fills, updates and copies",
        "fill of a buffer made without TRANSFER_TARGET",
        "allocator.h, allocate: a buffer may turn out to be usable for more",
        |bench| {
            let usage = sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE;
            bench.fill_of(&bench.buffer_of(usage, ANY), 0, 64, 4, 0)
        },
    ),
    case(
        "Fills, updates and copies",
        "fill of a buffer that is only read",
        "buffer.h: access says what may be done",
        |bench| {
            let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT;
            bench.fill_of(&bench.buffer_of(usage, READ), 0, 64, 4, 0)
        },
    ),
    case("Fills, updates and copies", "update past the end", RANGE, |bench| bench.update(60, 8)),
    case("Fills, updates and copies", "update of nothing", SILENT, |bench| bench.update(8, 0)),
    case("Fills, updates and copies", "copy past the end of the source", RANGE, |bench| {
        bench.copy((&bench.small, 0), (&bench.buffer, 0), LENGTH)
    }),
    case("Fills, updates and copies", "copy past the end of the target", RANGE, |bench| {
        bench.copy((&bench.buffer, 0), (&bench.small, 0), LENGTH)
    }),
    case("Fills, updates and copies", "copy of nothing", SILENT, |bench| {
        bench.copy((&bench.buffer, 0), (&bench.small, 0), 0)
    }),
    case(
        "Fills, updates and copies",
        "copy onto itself, overlapping",
        "command_buffer.h, copy: ranges do not overlap; docs/programs.md lets them",
        |bench| bench.copy((&bench.buffer, 0), (&bench.buffer, 8), 16),
    ),
    case("Semaphores", "signal of the value that there is", GROWS, |bench| answer(bench.done.signal(5))),
    case("Semaphores", "signal of a lower value", GROWS, |bench| answer(bench.done.signal(4))),
    case(
        "Semaphores",
        "signal past the largest value",
        "semaphore.h: from `IREE_HAL_SEMAPHORE_MAX_VALUE` on a value is a failure",
        |bench| answer(bench.done.signal(1 << 40)),
    ),
    case("Semaphores", "an operation that would signal the value that there is", GROWS, |bench| {
        barrier(bench, 1, &List::none(), &bench.done.at(5))
    }),
    case(
        "Semaphores",
        "signal after a failure",
        "semaphore.h, fail: every later query and signal returns it",
        |bench| {
            bench.done.fail(Code::DataLoss, "on purpose");
            answer(bench.done.signal(6))
        },
    ),
    case("Semaphores", "a second failure", "async/semaphore.h, fail: the first one stays", |bench| {
        bench.done.fail(Code::DataLoss, "on purpose");
        bench.done.fail(Code::Aborted, "again");
        answer(bench.done.value())
    }),
    case("Semaphores", "a wait for a failure", "semaphore.h, wait: the code of the failure", |bench| {
        bench.done.fail(Code::DataLoss, "on purpose");
        answer(check(unsafe {
            let timeout = sys::iree_make_timeout_ms(100);
            sys::iree_hal_semaphore_wait(bench.done.0, 6, timeout, 0)
        }))
    }),
    case("Semaphores", "an operation that waits for a failure", SILENT, |bench| {
        let broken = bench.device.semaphore(0);
        broken.fail(Code::DataLoss, "on purpose");
        barrier(bench, 1, &broken.at(1), &bench.done.at(6))
    }),
    case("Semaphores", "a wait that is never signalled", "semaphore.h, wait: DEADLINE_EXCEEDED", |bench| {
        answer(check(unsafe {
            let timeout = sys::iree_make_timeout_ms(20);
            sys::iree_hal_semaphore_wait(bench.done.0, 6, timeout, 0)
        }))
    }),
    case(
        "Semaphores",
        "a semaphore that begins past the largest value",
        "semaphore.h: from `IREE_HAL_SEMAPHORE_MAX_VALUE` on a value is a failure",
        |bench| {
            let mut semaphore = null_mut();
            let made = unsafe {
                check(sys::iree_hal_semaphore_create(bench.device.0, ALL, 1 << 40, 0, &raw mut semaphore))
            };
            answer(made)
        },
    ),
    case("Queues", "affinity 0", HASHED, |bench| barrier(bench, 0, &List::none(), &bench.done.at(6))),
    case("Queues", "affinity of queue 40", HASHED, |bench| {
        barrier(bench, 1 << 40, &List::none(), &bench.done.at(6))
    }),
    case("Queues", "a host call without a function", "device.h, host call: it has a function", |bench| {
        host_call(bench, None, 0)
    }),
    case(
        "Queues",
        "a host call with unknown flags",
        "device.h: three are defined, and what is then is open",
        |bench| host_call(bench, Some(nothing), 1 << 40),
    ),
    case("Stream-ordered memory", "0 bytes", SILENT, |bench| alloca(bench, 0, 0, 0)),
    case(
        "Stream-ordered memory",
        "more than there is",
        "as of a buffer that is allocated at once",
        |bench| alloca(bench, 1 << 50, 0, 0),
    ),
    case("Stream-ordered memory", "at a multiple of 3", "buffer.h: an alignment is kept", |bench| {
        alloca(bench, 64, 3, 0)
    }),
    case(
        "Stream-ordered memory",
        "with unknown flags",
        "device.h: two are defined, and what is then is open",
        |bench| alloca(bench, 64, 0, 1 << 40),
    ),
    case(
        "Stream-ordered memory",
        "deallocation of another buffer",
        "device.h, dealloca flags: not allocated like that, it is a barrier",
        |bench| dealloca(bench, &bench.buffer),
    ),
    case("Stream-ordered memory", "a second deallocation", SILENT, |bench| dealloca(bench, &gone(bench))),
    case("Stream-ordered memory", "a fill behind the deallocation", SILENT, |bench| {
        bench.fill_of(&gone(bench), 0, 64, 4, 0)
    }),
    case(
        "Command buffers",
        "one that was never ended",
        "command_buffer.h, end: before it is submitted",
        |bench| {
            let commands = bench.commands(0, 0).unwrap();
            check(unsafe { sys::iree_hal_command_buffer_begin(commands.0) }).unwrap();
            bench.execute(&commands, &[])
        },
    ),
    case("Command buffers", "recorded twice", "command_buffer.h, begin: once", |bench| {
        let commands = bench.record(0, 0, |_| null_mut()).unwrap();
        answer(check(unsafe { sys::iree_hal_command_buffer_begin(commands.0) }))
    }),
    case(
        "Command buffers",
        "a command after the end",
        "command_buffer.h: recorded between begin and end",
        |bench| {
            let commands = bench.record(0, 0, |_| null_mut()).unwrap();
            answer(check(filled(commands.0, reference(&bench.buffer))))
        },
    ),
    case("Command buffers", "ended before it began", "command_buffer.h, begin: paired with end", |bench| {
        let commands = bench.commands(0, 0).unwrap();
        answer(check(unsafe { sys::iree_hal_command_buffer_end(commands.0) }))
    }),
    case(
        "Command buffers",
        "a second execution of a one-shot",
        "command_buffer.h: submitted once and never used again; what else happens is open",
        |bench| {
            let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT;
            let commands = bench.record(mode, 0, |raw| filled(raw, reference(&bench.buffer))).unwrap();
            let (none, first) = (List::none(), bench.device.semaphore(0));
            bench.device.execute(1, &none, &first.at(1), &commands, &[]).unwrap();
            wait(&first, 1).unwrap();
            bench.execute(&commands, &[])
        },
    ),
    case(
        "Command buffers",
        "no binding table",
        "device.h, execute: it has one if the command buffer has slots",
        |bench| bench.executed(1, &[], |commands| filled(commands, slot(0, 16))),
    ),
    case("Command buffers", "a slot without a buffer", SILENT, |bench| {
        let empty = sys::iree_hal_buffer_binding_t::default();
        bench.executed(1, &[empty], |commands| filled(commands, slot(0, 16)))
    }),
    case("Command buffers", "bytes past the end of a binding", RANGE, |bench| {
        bench.executed(1, &[binding(&bench.buffer)], |commands| filled(commands, slot(60, 8)))
    }),
    case("Command buffers", "a binding past the end of its buffer", RANGE, |bench| {
        bench.executed(1, &[binding(&bench.small)], |commands| filled(commands, slot(0, 16)))
    }),
    case("Command buffers", "a fill past the end", RANGE, |bench| {
        let target = sys::iree_hal_buffer_ref_t { offset: 60, length: 8, ..reference(&bench.buffer) };
        bench.executed(0, &[], |commands| filled(commands, target))
    }),
    case(
        "Command buffers",
        "an update of 2 KiB",
        "command_buffer.h: up to `MAX_UPDATE_SIZE`, 64 KiB",
        |bench| updated(bench, 2 << 10),
    ),
    case(
        "Command buffers",
        "an update of 64 KiB",
        "command_buffer.h: up to `MAX_UPDATE_SIZE`, 64 KiB",
        |bench| updated(bench, 64 << 10),
    ),
    case(
        "Command buffers",
        "an update of more",
        "command_buffer.h: up to `MAX_UPDATE_SIZE`, 64 KiB",
        |bench| updated(bench, (64 << 10) + 4),
    ),
    case("Command buffers", "names stream-ordered memory that is not there yet", SILENT, |bench| {
        early(bench, |buffer, record| record(&reference(buffer)))
    }),
    case("Command buffers", "names a subspan of it", SILENT, |bench| {
        early(bench, |buffer, record| unsafe {
            let (mut span, system) = (null_mut(), sys::iree_allocator_system());
            check(sys::iree_hal_buffer_subspan(buffer.0, 0, LENGTH / 2, system, &raw mut span))?;
            record(&reference(&Buffer(span)))
        })
    }),
    case(
        "Command buffers",
        "one of another driver",
        "device.h: objects are used with their device",
        |bench| {
            let is_iree = |name| bench.device.query("hal.device.id", name).is_ok_and(|is_it| is_it == 1);
            let other = if is_iree("local-task") || is_iree("local-sync") { "mock" } else { "local-task" };
            // Recorded for a device that still exists when the recording is released.
            let other = Bench::on(Device::open_in_group(other).unwrap());
            let commands = other.record(0, 0, |_| null_mut()).unwrap();
            bench.execute(&commands, &[])
        },
    ),
    case("Dispatches", "right as it is", "executable.h: two bindings, two constants", |bench| {
        BenchDispatch::of(bench).run(bench)
    }),
    case(
        "Dispatches",
        "a function that is not there",
        "executable.h: ordinals are below the count",
        |bench| BenchDispatch { function: 7, ..BenchDispatch::of(bench) }.run(bench),
    ),
    case("Dispatches", "one constant of two", "executable.h: `constant_count` is expected", |bench| {
        BenchDispatch { constants: 4, ..BenchDispatch::of(bench) }.run(bench)
    }),
    case("Dispatches", "three constants for two", "executable.h: `constant_count` is expected", |bench| {
        BenchDispatch { constants: 12, ..BenchDispatch::of(bench) }.run(bench)
    }),
    case("Dispatches", "one binding of two", "executable.h: `binding_count` is expected", |bench| {
        let mut dispatch = BenchDispatch::of(bench);
        dispatch.bindings.pop();
        dispatch.run(bench)
    }),
    case("Dispatches", "a binding past the end", RANGE, |bench| {
        let mut dispatch = BenchDispatch::of(bench);
        dispatch.bindings[1].offset = 60;
        dispatch.run(bench)
    }),
    case(
        "Dispatches",
        "a slot in place of a buffer",
        "device.h, dispatch: all bindings are direct",
        |bench| {
            let mut dispatch = BenchDispatch::of(bench);
            dispatch.bindings[1] = slot(0, 16);
            dispatch.run(bench)
        },
    ),
    case("Dispatches", "a workgroup of 2, 0, 1", "command_buffer.h: all zero, or at least 1 each", |bench| {
        let mut dispatch = BenchDispatch::of(bench);
        dispatch.config.workgroup_size = [2, 0, 1];
        dispatch.run(bench)
    }),
    case("Dispatches", "no workgroups", SILENT, |bench| {
        let mut dispatch = BenchDispatch::of(bench);
        dispatch.config.workgroup_count = [0, 1, 1];
        dispatch.run(bench)
    }),
    case("Dispatches", "a count of 8 bytes in a buffer", "command_buffer.h: at least 12 bytes", |bench| {
        BenchDispatch::counted(bench, &bench.small, 0, 8).run(bench)
    }),
    case("Dispatches", "a count at offset 2 of a buffer", "command_buffer.h: aligned to 4 bytes", |bench| {
        BenchDispatch::counted(bench, &bench.small, 2, 12).run(bench)
    }),
    case("Dispatches", "a count past the end of a buffer", RANGE, |bench| {
        BenchDispatch::counted(bench, &bench.small, 28, 12).run(bench)
    }),
    case(
        "Dispatches",
        "a count in a buffer that is not for counts",
        "command_buffer.h: made with DISPATCH_INDIRECT_PARAMETERS",
        |bench| {
            let buffer = bench.buffer_of(sys::IREE_HAL_BUFFER_USAGE_DEFAULT, ANY);
            BenchDispatch::counted(bench, &buffer, 0, 12).run(bench)
        },
    ),
    case(
        "Dispatches",
        "unknown flags",
        "command_buffer.h: seven are defined, and what is then is open",
        |bench| BenchDispatch { flags: 1 << 40, ..BenchDispatch::of(bench) }.run(bench),
    ),
    case(
        "Executables",
        "an unknown format",
        "executable_cache.h, prepare: a format that can be prepared",
        |bench| answer(bench.device.load("no-such-format", &[1; 64])),
    ),
    case("Executables", "bytes that are no executable", SILENT, |bench| {
        answer(bench.device.load(bench.format(), &[1; 64]))
    }),
    case("Files", "read past the end of the file", SILENT, |bench| bench.read_file(32, 64)),
    case("Files", "read of a range that overflows", SILENT, |bench| bench.read_file(u64::MAX - 3, 8)),
    case("Files", "read past the end of the buffer", RANGE, |bench| bench.read_file(0, 65)),
    case("Files", "read of nothing", SILENT, |bench| bench.read_file(0, 0)),
    case("Files", "write that makes the file longer", SILENT, |bench| {
        let file = File::with(&[1; 32]);
        let (none, signals) = (List::none(), bench.done.at(6));
        bench.outcome(bench.device.write_file(&none, &signals, &bench.buffer, &file, 0, LENGTH))
    }),
    case("Buffers", "0 bytes", SILENT, |bench| allocate(bench, 0, 0)),
    case("Buffers", "more than there is", "allocator.h, allocate: fails if it cannot be serviced", |bench| {
        allocate(bench, 1 << 50, 0)
    }),
    case("Buffers", "at a multiple of 3", "buffer.h: an alignment is kept", |bench| allocate(bench, 64, 3)),
    case("Buffers", "at a multiple of 1 MiB", "buffer.h: an alignment is kept", |bench| {
        allocate(bench, 64, 1 << 20)
    }),
    case("Buffers", "import of nothing at all", "allocator.h: the allocation is there", |bench| {
        answer(bench.device.import(shared(), null_mut(), LENGTH))
    }),
    case(
        "Buffers",
        "import of memory at a multiple of 4",
        "buffer.h: at least `HEAP_BUFFER_ALIGNMENT`",
        |bench| {
            let mut memory = vec![0_u8; 4 * 4096];
            let first = memory.as_ptr().align_offset(4096);
            answer(bench.device.import(shared(), unsafe { memory.as_mut_ptr().add(first + 4) }, LENGTH))
        },
    ),
    case("Buffers", "subspan past the end", "buffer.h, subspan: fails if the range is invalid", |bench| {
        subspan(&bench.buffer, 60, 8)
    }),
    case("Buffers", "mapping past the end", "buffer.h, map: fails for an invalid range", |bench| {
        map(&bench.buffer, READ, 60, 8)
    }),
    case(
        "Buffers",
        "mapping to write what is only read",
        "buffer.h, map: fails for an invalid access",
        |bench| {
            let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_MAPPING;
            map(&bench.buffer_of(usage, READ), sys::IREE_HAL_MEMORY_ACCESS_WRITE, 0, 8)
        },
    ),
    case("Buffers", "mapping of nothing", SILENT, |bench| map(&bench.buffer, READ, 0, 0)),
    case("Devices", "an unknown key", SILENT, |bench| answer(bench.device.query("hal.device", "colour"))),
    case(
        "Devices",
        "timepoint of a kind that is not there",
        "semaphore.h: kinds depend on the driver",
        |bench| {
            let mut point = sys::iree_hal_external_timepoint_t::default();
            let kind = sys::IREE_HAL_EXTERNAL_TIMEPOINT_TYPE_CUDA_EVENT;
            let exported = unsafe {
                check(sys::iree_hal_semaphore_export_timepoint(bench.done.0, 6, ALL, kind, 0, &raw mut point))
            };
            answer(exported)
        },
    ),
    case("Devices", "creation with an unknown parameter", SILENT, |bench| {
        let uri = ["mock", "template", "local-task", "local-sync", "gaudi"]
            .into_iter()
            .find(|name| bench.device.query("hal.device.id", name).is_ok_and(|is_it| is_it == 1));
        let rest = if uri == Some("gaudi") { "emulated" } else { "" };
        answer(Device::open(&format!("{}://{rest}?colour=red", uri.unwrap_or("mock"))))
    }),
];
