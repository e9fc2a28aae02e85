// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Calls of programs that do what no header permits: null where an object is required, and objects of the wrong
//! kind.

use super::{
    ANY, Case, LENGTH, RANGE, READ, SILENT, WHOLE, binding, case, filled, host_call, map, nothing, shared,
    slot,
};
use crate::bench::{Bench, BenchDispatch, answer, params, wait};
use crate::common::{self, Buffer, Commands, Device, File, List, Result, check, reference, view};
use hal_sys as sys;
use std::ptr::{null, null_mut};

const WRITE: u32 = sys::IREE_HAL_MEMORY_ACCESS_WRITE;
const ALLOWED: &str = "buffer.h: access says what may be done";
const THERE: &str = "device.h: what is counted is there";

/// A barrier between lists that may be wrong.
fn listed(bench: &Bench, waits: sys::iree_hal_semaphore_list_t) -> String {
    bench.queued(|device, _, signals| unsafe {
        sys::iree_hal_device_queue_barrier(device, 1, waits, signals, 0)
    })
}

fn fill_from(bench: &Bench, pattern: *const u8) -> String {
    bench.queued(|device, waits, signals| unsafe {
        let target = bench.buffer.0;
        sys::iree_hal_device_queue_fill(device, 1, waits, signals, target, 0, 64, pattern.cast(), 4, 0)
    })
}

fn update_from(bench: &Bench, source: *const u8, offset: usize, target: &Buffer) -> String {
    bench.queued(|device, waits, signals| unsafe {
        let (source, target) = (source.cast(), target.0);
        sys::iree_hal_device_queue_update(device, 1, waits, signals, source, offset, target, 0, 32, 0)
    })
}

fn span(data: *const u8, length: usize) -> sys::iree_const_byte_span_t {
    sys::iree_const_byte_span_t { data, data_length: length }
}

/// A dispatch with a null part.
fn dispatch_of(
    bench: &Bench,
    executable: *mut sys::iree_hal_executable_t,
    constants: sys::iree_const_byte_span_t,
    bindings: sys::iree_hal_buffer_ref_list_t,
) -> String {
    let dispatch = BenchDispatch::of(bench);
    bench.queued(|device, waits, signals| unsafe {
        let function = sys::iree_hal_executable_function_from_index(0);
        let config = dispatch.config;
        sys::iree_hal_device_queue_dispatch(
            device, 1, waits, signals, executable, function, config, constants, bindings, 0,
        )
    })
}

fn bindings(values: &[sys::iree_hal_buffer_ref_t]) -> sys::iree_hal_buffer_ref_list_t {
    sys::iree_hal_buffer_ref_list_t { count: values.len(), values: values.as_ptr() }
}

/// A recorded dispatch.
fn dispatched(bench: &Bench, commands: *mut sys::iree_hal_command_buffer_t) -> sys::iree_status_t {
    let (executable, dispatch, words) = (bench.executable(), BenchDispatch::of(bench), [1_u32; 2]);
    unsafe {
        let function = sys::iree_hal_executable_function_from_index(0);
        let (config, list) = (dispatch.config, bindings(&dispatch.bindings));
        let constants = span(words.as_ptr().cast(), 8);
        sys::iree_hal_command_buffer_dispatch(commands, executable.0, function, config, constants, list, 0)
    }
}

/// A command buffer for these categories and queues.
fn commands_for(
    bench: &Bench,
    mode: u32,
    categories: u32,
    affinity: u64,
    record: impl FnOnce(*mut sys::iree_hal_command_buffer_t) -> sys::iree_status_t,
) -> Result<Commands> {
    let mut commands = null_mut();
    unsafe {
        let out = &raw mut commands;
        check(sys::iree_hal_command_buffer_create(bench.device.0, mode, categories, affinity, 0, out))?;
        let commands = Commands(commands);
        check(sys::iree_hal_command_buffer_begin(commands.0))?;
        check(record(commands.0))?;
        check(sys::iree_hal_command_buffer_end(commands.0))?;
        Ok(commands)
    }
}

fn group(commands: *mut sys::iree_hal_command_buffer_t) -> sys::iree_status_t {
    unsafe {
        let color = sys::iree_hal_label_color_t::default();
        sys::iree_hal_command_buffer_begin_debug_group(commands, view("group"), color, null())
    }
}

fn ungroup(commands: *mut sys::iree_hal_command_buffer_t) -> sys::iree_status_t {
    unsafe { sys::iree_hal_command_buffer_end_debug_group(commands) }
}

fn cache<T>(bench: &Bench, ask: impl FnOnce(*mut sys::iree_hal_executable_cache_t) -> Result<T>) -> String {
    let mut cache = null_mut();
    unsafe {
        let out = &raw mut cache;
        check(sys::iree_hal_executable_cache_create(bench.device.0, view("test"), out)).unwrap();
        let asked = ask(cache);
        sys::iree_hal_executable_cache_release(cache);
        answer(asked)
    }
}

fn inferred(bench: &Bench, bytes: &[u8], room: usize) -> String {
    cache(bench, |cache| unsafe {
        let (mut name, mut size) = ([0_u8; 64], 0);
        let (data, name) = (span(bytes.as_ptr(), bytes.len()), name.as_mut_ptr().cast());
        check(sys::iree_hal_executable_cache_infer_format(cache, 0, data, room, name, &raw mut size))
    })
}

fn prepared(bench: &Bench, constants: &[u32], count: usize) -> String {
    let bytes = bench.function();
    cache(bench, |cache| unsafe {
        let params = sys::iree_hal_executable_params_t {
            queue_affinity: u64::MAX,
            caching_mode: 0,
            executable_format: view(bench.format()),
            executable_data: span(bytes.as_ptr(), bytes.len()),
            constant_count: count,
            constants: if constants.is_empty() { null() } else { constants.as_ptr() },
        };
        let mut executable = null_mut();
        let (params, out) = (&raw const params, &raw mut executable);
        check(sys::iree_hal_executable_cache_prepare_executable(cache, params, out))?;
        sys::iree_hal_executable_release(executable);
        Ok(())
    })
}

fn external(kind: sys::iree_hal_external_buffer_type_t, size: usize) -> sys::iree_hal_external_buffer_t {
    sys::iree_hal_external_buffer_t { type_: kind, size, ..Default::default() }
}

fn imported(bench: &Bench, mut external: sys::iree_hal_external_buffer_t) -> String {
    let mut buffer = null_mut();
    unsafe {
        let (allocator, release) = (bench.device.allocator(), Default::default());
        let (external, out) = (&raw mut external, &raw mut buffer);
        let imported =
            check(sys::iree_hal_allocator_import_buffer(allocator, shared(), external, release, out));
        sys::iree_hal_buffer_release(buffer);
        answer(imported)
    }
}

fn exported(bench: &Bench, kind: sys::iree_hal_external_buffer_type_t) -> String {
    let mut external = external(0, 0);
    unsafe {
        let (allocator, buffer, out) = (bench.device.allocator(), bench.buffer.0, &raw mut external);
        answer(check(sys::iree_hal_allocator_export_buffer(allocator, buffer, kind, 0, out)))
    }
}

fn heaps(bench: &Bench, room: usize, heaps: *mut sys::iree_hal_allocator_memory_heap_t) -> String {
    let mut count = 0;
    unsafe {
        let (allocator, out) = (bench.device.allocator(), &raw mut count);
        answer(check(sys::iree_hal_allocator_query_memory_heaps(allocator, room, heaps, out)))
    }
}

fn profiled(bench: &Bench, families: u64) -> String {
    let options = sys::iree_hal_device_profiling_options_t { data_families: families, ..Default::default() };
    unsafe { answer(check(sys::iree_hal_device_profiling_begin(bench.device.0, &raw const options))) }
}

fn alloca_for(bench: &Bench, access: u32) -> Buffer {
    let params = sys::iree_hal_buffer_params_t { access: u16::try_from(access).unwrap(), ..params() };
    let there = bench.device.semaphore(0);
    let buffer = bench.device.alloca_of(&List::none(), &there.at(1), params, LENGTH).unwrap();
    wait(&there, 1).unwrap();
    buffer
}

pub(crate) const CASES: &[Case] = &[
    case("Nothing where something has to be", "a pattern", "command_buffer.h, fill: the value", |bench| {
        fill_from(bench, null())
    }),
    case(
        "Nothing where something has to be",
        "the source of an update",
        "device.h, update: it is captured",
        |bench| update_from(bench, null(), 0, &bench.buffer),
    ),
    case(
        "Nothing where something has to be",
        "the source of an update, and an offset into it",
        "device.h, update: it is captured",
        |bench| update_from(bench, null(), 16, &bench.buffer),
    ),
    case(
        "Nothing where something has to be",
        "the source of a recorded update",
        "command_buffer.h, update: it is copied",
        |bench| {
            bench.executed(0, &[], |commands| unsafe {
                sys::iree_hal_command_buffer_update_buffer(commands, null(), 16, reference(&bench.buffer), 0)
            })
        },
    ),
    case("Nothing where something has to be", "the semaphores of a list", THERE, |bench| {
        let mut values = [9_u64];
        listed(
            bench,
            sys::iree_hal_semaphore_list_t {
                count: 1,
                semaphores: null_mut(),
                payload_values: values.as_mut_ptr(),
            },
        )
    }),
    case("Nothing where something has to be", "the values of a list", THERE, |bench| {
        let mut semaphores = [bench.done.0];
        listed(
            bench,
            sys::iree_hal_semaphore_list_t {
                count: 1,
                semaphores: semaphores.as_mut_ptr(),
                payload_values: null_mut(),
            },
        )
    }),
    case("Nothing where something has to be", "one semaphore of a list", THERE, |bench| {
        let (mut semaphores, mut values) = ([null_mut()], [1_u64]);
        listed(
            bench,
            sys::iree_hal_semaphore_list_t {
                count: 1,
                semaphores: semaphores.as_mut_ptr(),
                payload_values: values.as_mut_ptr(),
            },
        )
    }),
    case(
        "Nothing where something has to be",
        "the arguments of a host call",
        "device.h, host call: there are four",
        |bench| {
            bench.queued(|device, waits, signals| unsafe {
                let call = sys::iree_hal_host_call_t { fn_: Some(nothing), user_data: null_mut() };
                sys::iree_hal_device_queue_host_call(device, 1, waits, signals, call, null(), 0)
            })
        },
    ),
    case("Nothing where something has to be", "a file", "device.h, read: there is a source", |bench| {
        bench.queued(|device, waits, signals| unsafe {
            let target = bench.buffer.0;
            sys::iree_hal_device_queue_read(device, 1, waits, signals, null_mut(), 0, target, 0, 8, 0)
        })
    }),
    case(
        "Nothing where something has to be",
        "the executable of a dispatch",
        "device.h, dispatch: there is one",
        |bench| {
            let (dispatch, words) = (BenchDispatch::of(bench), [1_u32; 2]);
            let constants = span(words.as_ptr().cast(), 8);
            dispatch_of(bench, null_mut(), constants, bindings(&dispatch.bindings))
        },
    ),
    case("Nothing where something has to be", "what an executable is prepared from", THERE, |bench| {
        cache(bench, |cache| unsafe {
            let mut executable = null_mut();
            check(sys::iree_hal_executable_cache_prepare_executable(cache, null(), &raw mut executable))
        })
    }),
    case("Nothing where something has to be", "room for the parameters of a function", THERE, |bench| {
        let executable = bench.executable();
        answer(check(unsafe {
            let function = sys::iree_hal_executable_function_from_index(0);
            sys::iree_hal_executable_function_parameters(executable.0, function, 4, null_mut())
        }))
    }),
    case("Nothing where something has to be", "the memory of an import", THERE, |bench| {
        let mut buffer = null_mut();
        answer(check(unsafe {
            let (allocator, params) = (sys::iree_hal_device_allocator(bench.device.0), params());
            let release = sys::iree_hal_buffer_release_callback_t::default();
            sys::iree_hal_allocator_import_buffer(allocator, params, null_mut(), release, &raw mut buffer)
        }))
    }),
    case("Nothing where something has to be", "the constants of a dispatch", THERE, |bench| {
        let (executable, dispatch) = (bench.executable(), BenchDispatch::of(bench));
        dispatch_of(bench, executable.0, span(null(), 8), bindings(&dispatch.bindings))
    }),
    case("Nothing where something has to be", "the bindings of a dispatch", THERE, |bench| {
        let (executable, words) = (bench.executable(), [1_u32; 2]);
        let none = sys::iree_hal_buffer_ref_list_t { count: 2, values: null() };
        dispatch_of(bench, executable.0, span(words.as_ptr().cast(), 8), none)
    }),
    case("Nothing where something has to be", "the handle of a file", THERE, |bench| unsafe {
        let (access, mut file) = (u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap(), null_mut());
        let device = bench.device.0;
        answer(check(sys::iree_hal_file_import(device, u64::MAX, access, null_mut(), 0, &raw mut file)))
    }),
    case("Nothing where something has to be", "a binding table", THERE, |bench| {
        let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED;
        let commands = bench.record(mode, 1, |commands| filled(commands, slot(0, 16))).unwrap();
        bench.queued(|device, waits, signals| unsafe {
            let table = sys::iree_hal_buffer_binding_table_t { count: 1, bindings: null() };
            sys::iree_hal_device_queue_execute(device, 1, waits, signals, commands.0, table, 0)
        })
    }),
    case(
        "Nothing where something has to be",
        "the command buffer of an execution",
        "device.h, execute: without one it is a barrier",
        |bench| bench.execute(&Commands(null_mut()), &[]),
    ),
    case("Nothing where something has to be", "the constants of an executable", THERE, |bench| {
        prepared(bench, &[], 1)
    }),
    case(
        "Nothing where something has to be",
        "room for the heaps",
        "allocator.h: no room asks for the count",
        |bench| heaps(bench, 8, null_mut()),
    ),
    case(
        "Nothing where something has to be",
        "a pool of proactors",
        "device.h: a valid one is always given",
        |bench| {
            let name = ["mock", "template", "local-task", "local-sync", "gaudi"]
                .into_iter()
                .find(|name| bench.device.query("hal.device.id", name).is_ok_and(|is_it| is_it == 1));
            let rest = if name == Some("gaudi") { "emulated" } else { "" };
            answer(Device::open_with_pool(&format!("{}://{rest}", name.unwrap_or("mock")), null_mut()))
        },
    ),
    case("Access", "update of a buffer that is only read", ALLOWED, |bench| {
        let kept = bench.buffer_of(sys::IREE_HAL_BUFFER_USAGE_DEFAULT, READ);
        update_from(bench, [1_u8; 32].as_ptr(), 0, &kept)
    }),
    case("Access", "copy from a buffer that is only written", ALLOWED, |bench| {
        let kept = bench.buffer_of(sys::IREE_HAL_BUFFER_USAGE_DEFAULT, WRITE);
        bench.copy((&kept, 0), (&bench.buffer, 0), 8)
    }),
    case("Access", "copy to a buffer that is only read", ALLOWED, |bench| {
        let kept = bench.buffer_of(sys::IREE_HAL_BUFFER_USAGE_DEFAULT, READ);
        bench.copy((&bench.buffer, 0), (&kept, 0), 8)
    }),
    case("Access", "fill of stream-ordered memory that is only read", ALLOWED, |bench| {
        bench.fill_of(&alloca_for(bench, READ), 0, 64, 4, 0)
    }),
    case("Access", "a slot that holds what is only read, filled", ALLOWED, |bench| {
        let kept = bench.buffer_of(sys::IREE_HAL_BUFFER_USAGE_DEFAULT, READ);
        bench.executed(1, &[binding(&kept)], |commands| filled(commands, slot(0, 16)))
    }),
    case(
        "Access",
        "a binding that is for transfers alone",
        "command_buffer.h: made with DISPATCH_STORAGE",
        |bench| {
            let kept = bench.buffer_of(sys::IREE_HAL_BUFFER_USAGE_TRANSFER, ANY);
            let mut dispatch = BenchDispatch::of(bench);
            dispatch.bindings[1].buffer = kept.0;
            dispatch.run(bench)
        },
    ),
    case(
        "Access",
        "write to a file that is only read",
        "device.h, write: the file has write permission",
        |bench| {
            let file = File::read_only(&[1; 32]);
            let (none, signals) = (List::none(), bench.done.at(6));
            bench.outcome(bench.device.write_file(&none, &signals, &bench.buffer, &file, 0, 32))
        },
    ),
    case("Access", "read from a file into what is only read", ALLOWED, |bench| {
        let kept = bench.buffer_of(sys::IREE_HAL_BUFFER_USAGE_DEFAULT, READ);
        let file = File::with(&[1; LENGTH]);
        let (none, signals) = (List::none(), bench.done.at(6));
        bench.outcome(bench.device.read_file(&none, &signals, &file, 0, &kept, 32))
    }),
    case(
        "Access",
        "mapping to read what is only written",
        "buffer.h, map: fails for an invalid access",
        |bench| {
            let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_MAPPING;
            map(&bench.buffer_of(usage, WRITE), READ, 0, 8)
        },
    ),
    case("Access", "mapping for no access", SILENT, |bench| map(&bench.buffer, 0, 0, 8)),
    case(
        "Recordings",
        "inline execution of what is not one-shot",
        "command_buffer.h: requires ONE_SHOT",
        |bench| {
            let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_ALLOW_INLINE_EXECUTION;
            answer(bench.commands(mode, 0))
        },
    ),
    case(
        "Recordings",
        "a dispatch where only transfers are recorded",
        "command_buffer.h: categories",
        |bench| {
            let transfer = sys::IREE_HAL_COMMAND_CATEGORY_TRANSFER;
            answer(commands_for(bench, 0, transfer, u64::MAX, |commands| dispatched(bench, commands)))
        },
    ),
    case(
        "Recordings",
        "executed on a queue that it is not for",
        "command_buffer.h, create: a subset of its queues",
        |bench| {
            let target = reference(&bench.buffer);
            let made = commands_for(bench, 0, 3, 2, |commands| filled(commands, target));
            made.map_or_else(|error| answer::<()>(Err(error)), |commands| bench.execute(&commands, &[]))
        },
    ),
    case(
        "Recordings",
        "a slot past its capacity",
        "command_buffer.h, create: the maximum number of slots",
        |bench| {
            let far = unsafe { sys::iree_hal_make_indirect_buffer_ref(5, 0, 16) };
            bench.executed(1, &[binding(&bench.buffer)], |commands| filled(commands, far))
        },
    ),
    case("Recordings", "more bindings than it has slots", SILENT, |bench| {
        let table = [(); 3].map(|()| binding(&bench.buffer));
        bench.executed(1, &table, |commands| filled(commands, slot(0, 16)))
    }),
    case("Recordings", "copy of 16 bytes onto 8", SILENT, |bench| {
        let part = |length| sys::iree_hal_buffer_ref_t { length, ..reference(&bench.buffer) };
        bench.executed(0, &[], |commands| unsafe {
            let target = sys::iree_hal_buffer_ref_t { offset: 32, ..part(8) };
            sys::iree_hal_command_buffer_copy_buffer(commands, part(16), target, 0)
        })
    }),
    case(
        "Recordings",
        "a debug group that is not closed",
        "command_buffer.h: a mandatory matching call",
        |bench| bench.executed(0, &[], group),
    ),
    case(
        "Recordings",
        "a debug group that was not opened",
        "command_buffer.h: a mandatory matching call",
        |bench| bench.executed(0, &[], ungroup),
    ),
    case(
        "Recordings",
        "a debug group after the end",
        "command_buffer.h: recorded between begin and end",
        |bench| {
            let commands = bench.record(0, 0, |_| null_mut()).unwrap();
            answer(check(group(commands.0)))
        },
    ),
    case("Recordings", "begun while it is recorded", "command_buffer.h, begin: once", |bench| {
        bench.executed(0, &[], |commands| unsafe { sys::iree_hal_command_buffer_begin(commands) })
    }),
    case("Recordings", "a signal of no event", "command_buffer.h, signal event: there is one", |bench| {
        bench.executed(0, &[], |commands| unsafe {
            sys::iree_hal_command_buffer_signal_event(commands, null_mut(), 8)
        })
    }),
    case("Recordings", "advice about bytes past the end", RANGE, |bench| {
        let far = sys::iree_hal_buffer_ref_t { offset: 60, length: 8, ..reference(&bench.buffer) };
        bench.executed(0, &[], |commands| unsafe {
            sys::iree_hal_command_buffer_advise_buffer(commands, far, 0, 0, 0)
        })
    }),
    case("Recordings", "flush of bytes past the end", RANGE, |bench| {
        let far = sys::iree_hal_buffer_ref_t { offset: 60, length: 8, ..reference(&bench.buffer) };
        bench.executed(0, &[], |commands| unsafe { sys::iree_hal_command_buffer_flush_buffer(commands, far) })
    }),
    case("Odd dispatches", "constants of 7 bytes", "executable.h: constants have 32 bits", |bench| {
        BenchDispatch { constants: 7, ..BenchDispatch::of(bench) }.run(bench)
    }),
    case("Odd dispatches", "three bindings for two", "executable.h: `binding_count` is expected", |bench| {
        let mut dispatch = BenchDispatch::of(bench);
        dispatch.bindings.push(dispatch.bindings[0]);
        dispatch.run(bench)
    }),
    case("Odd dispatches", "a count in a slot", "device.h, dispatch: all bindings are direct", |bench| {
        let mut dispatch = BenchDispatch::counted(bench, &bench.small, 0, 12);
        dispatch.config.workgroup_count_ref = slot(0, 12);
        dispatch.run(bench)
    }),
    case(
        "Odd dispatches",
        "a count that is for both times",
        "command_buffer.h: one of the two flags",
        |bench| {
            // New memory has any bytes.
            let filled = bench.device.semaphore(0);
            bench.device.fill(&List::none(), &filled.at(1), &bench.small, (0, 12), &[0]).unwrap();
            filled.wait(1).unwrap();
            let mut dispatch = BenchDispatch::counted(bench, &bench.small, 0, 12);
            dispatch.flags |= u64::from(sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_PARAMETERS);
            dispatch.run(bench)
        },
    ),
    case("Odd dispatches", "arguments of its own making", "command_buffer.h: support is optional", |bench| {
        let flags = u64::from(sys::IREE_HAL_DISPATCH_FLAG_CUSTOM_DIRECT_ARGUMENTS);
        BenchDispatch { flags, ..BenchDispatch::of(bench) }.run(bench)
    }),
    case("What executables are asked", "no bytes at all", SILENT, |bench| {
        answer(bench.device.load(bench.format(), &[]))
    }),
    case("What executables are asked", "a constant where none is taken", SILENT, |bench| {
        prepared(bench, &[7], 1)
    }),
    case(
        "What executables are asked",
        "information on a function that is not there",
        "executable.h: ordinals are below the count",
        |bench| {
            let (executable, mut info) =
                (bench.executable(), sys::iree_hal_executable_function_info_t::default());
            unsafe {
                let function = sys::iree_hal_executable_function_from_index(7);
                answer(check(sys::iree_hal_executable_function_info(executable.0, function, &raw mut info)))
            }
        },
    ),
    case("What executables are asked", "a function by a name that is not there", SILENT, |bench| {
        let (executable, mut function) = (bench.executable(), sys::iree_hal_executable_function_t::default());
        unsafe {
            let (raw, out) = (executable.0, &raw mut function);
            answer(check(sys::iree_hal_executable_lookup_function_by_name(raw, view("unknown"), out)))
        }
    }),
    case(
        "What executables are asked",
        "a global",
        "executable.h: NOT_FOUND, or UNIMPLEMENTED where executables have none",
        |bench| {
            let (executable, mut buffer) = (bench.executable(), null_mut());
            unsafe {
                let (raw, out) = (executable.0, &raw mut buffer);
                answer(check(sys::iree_hal_executable_lookup_global_by_name(raw, view("nothing"), 1, out)))
            }
        },
    ),
    case(
        "What executables are asked",
        "the format of unknown bytes",
        "executable_cache.h, infer: INCOMPATIBLE",
        |bench| inferred(bench, b"nothing that anybody knows", 64),
    ),
    case("What executables are asked", "the format's name, where is no room for it", SILENT, |bench| {
        let bytes = bench.function();
        inferred(bench, &bytes, 3)
    }),
    case("Memory of others", "import of no kind", "allocator.h: UNAVAILABLE", |bench| {
        imported(bench, external(sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_NONE, 64))
    }),
    case("Memory of others", "import of a descriptor that is none", "allocator.h: UNAVAILABLE", |bench| {
        let mut none = external(sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD, 64);
        none.handle.opaque_fd.fd = -1;
        imported(bench, none)
    }),
    case(
        "Memory of others",
        "import of more than there are addresses",
        "allocator.h, import: OUT_OF_RANGE",
        |bench| {
            let mut bytes = external(sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION, WHOLE - 4095);
            bytes.handle.host_allocation.ptr = 4096 as *mut _;
            imported(bench, bytes)
        },
    ),
    case("Memory of others", "export as nothing", "allocator.h: UNAVAILABLE", |bench| {
        exported(bench, sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_NONE)
    }),
    case("Memory of others", "export as an unknown kind", "allocator.h: UNAVAILABLE", |bench| {
        exported(bench, 77)
    }),
    case(
        "Memory of others",
        "room for fewer heaps than there are",
        "allocator.h, heaps: OUT_OF_RANGE",
        |bench| {
            let mut room = sys::iree_hal_allocator_memory_heap_t::default();
            heaps(bench, 0, &raw mut room)
        },
    ),
    case("Memory of others", "virtual memory", "allocator.h: UNAVAILABLE", |bench| unsafe {
        let (allocator, mut buffer) = (bench.device.allocator(), null_mut());
        let out = &raw mut buffer;
        let reserved = check(sys::iree_hal_allocator_virtual_memory_reserve(allocator, 1, 1 << 20, out));
        answer(
            reserved.and_then(|()| check(sys::iree_hal_allocator_virtual_memory_release(allocator, buffer))),
        )
    }),
    case(
        "Times",
        "a wait for more than the largest value",
        "semaphore.h, wait: DEADLINE_EXCEEDED",
        |bench| {
            answer(check(unsafe {
                let timeout = sys::iree_make_timeout_ms(20);
                sys::iree_hal_semaphore_wait(bench.done.0, 1 << 40, timeout, 0)
            }))
        },
    ),
    case(
        "Times",
        "an operation that signals more than the largest value",
        "semaphore.h: from `IREE_HAL_SEMAPHORE_MAX_VALUE` on a value is a failure",
        |bench| {
            let (none, signals) = (List::none(), bench.done.at(1 << 40));
            bench.outcome(bench.device.barrier(&none, &signals))
        },
    ),
    case(
        "Times",
        "a call that would not block, and fails",
        "device.h, host call: its error is ignored",
        |bench| {
            unsafe extern "C" fn fails(
                _: *mut std::ffi::c_void,
                _: *const u64,
                _: *mut sys::iree_hal_host_call_context_t,
            ) -> sys::iree_status_t {
                common::failure(hal_semaphore::Code::DataLoss, "on purpose")
            }
            host_call(bench, Some(fails), u64::from(sys::IREE_HAL_HOST_CALL_FLAG_NON_BLOCKING))
        },
    ),
    case(
        "Profiles and captures",
        "data of an unknown kind",
        "device.h: unsupported data must fail loudly",
        |bench| profiled(bench, 1 << 60),
    ),
    case("Profiles and captures", "nothing at all", "device.h: a valid no-op", |bench| profiled(bench, 0)),
    case("Profiles and captures", "the end of what never began", SILENT, |bench| unsafe {
        answer(check(sys::iree_hal_device_profiling_end(bench.device.0)))
    }),
    case("Profiles and captures", "a capture by a tool that is not there", SILENT, |bench| unsafe {
        let options = sys::iree_hal_device_external_capture_options_t::default();
        answer(check(sys::iree_hal_device_external_capture_begin(bench.device.0, &raw const options)))
    }),
];
