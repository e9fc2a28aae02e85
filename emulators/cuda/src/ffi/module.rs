// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Modules, functions and launches.

use super::{Call, get, put};
use crate::driver::launch::{Function, Kernel, MOST_SHARED, MOST_THREADS};
use crate::driver::options::Injection;
use crate::driver::report::Rule;
use crate::driver::status::{Error, Outcome};
use crate::driver::stream::Op;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

pub(super) unsafe fn load(call: Call, module: *mut u64, image: *const c_void) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { load_with_options(call, module, image, 0, std::ptr::null(), std::ptr::null_mut()) }
}

/// The error log of the options.
struct Log {
    buffer: *mut u8,
    size: usize,
    /// Where the number of bytes goes that were written, in place of the size.
    written: *mut *mut c_void,
}

/// The error log of the options, if they have one.
///
/// # Safety
/// There are as many options and values.
unsafe fn log_of(count: u32, options: *const i32, values: *mut *mut c_void) -> Outcome<Option<Log>> {
    let mut log = Log { buffer: std::ptr::null_mut(), size: 0, written: std::ptr::null_mut() };
    for at in 0..count as usize {
        // SAFETY: the caller's promise; a size is passed in place of a pointer.
        unsafe {
            match get(options.wrapping_add(at))? {
                5 => log.buffer = get(values.wrapping_add(at))?.cast::<u8>(),
                6 => {
                    log.written = values.wrapping_add(at);
                    log.size = get(log.written)?.addr();
                }
                0..=33 => {}
                _ => return Err(Error::INVALID_VALUE),
            }
        }
    }
    Ok((!log.buffer.is_null() && log.size > 0).then_some(log))
}

pub(super) unsafe fn load_with_options(
    call: Call,
    module: *mut u64,
    image: *const c_void,
    count: u32,
    options: *const i32,
    values: *mut *mut c_void,
) -> Outcome {
    let context = call.context()?;
    if image.is_null() || module.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise: a text with a zero at its end.
    let (log, bytes) = unsafe { (log_of(count, options, values)?, CStr::from_ptr(image.cast())) };
    let Ok(text) = bytes.to_str() else {
        call.driver.report.broken(Rule::BadModule, || "an image that is not a text of PTX".to_owned());
        return Err(Error::INVALID_IMAGE);
    };
    let loaded = call.driver.load(context.handle, context.device, text).map_err(|(error, message)| {
        if let Some(log) = log {
            let bytes = message.bytes().take(log.size - 1).chain([0]);
            let count = bytes.clone().count();
            for (at, byte) in bytes.enumerate() {
                // SAFETY: the caller's promise: the buffer has this size.
                unsafe { log.buffer.add(at).write(byte) };
            }
            // SAFETY: the caller's promise: the option's value can be written.
            unsafe { log.written.write(std::ptr::without_provenance_mut(count)) };
        }
        error
    })?;
    let mut objects = call.driver.objects();
    let handle = objects.handle();
    objects.modules.insert(handle, Arc::new(loaded));
    // SAFETY: the caller's promise.
    unsafe { put(module, handle) }
}

pub(super) unsafe fn unload(call: Call, module: u64) -> Outcome {
    let context = call.context()?;
    let found = {
        let mut objects = call.driver.objects();
        let is_here = objects.modules.get(&module).is_some_and(|it| it.context == context.handle);
        is_here.then(|| objects.modules.remove(&module)).flatten()
    };
    let found = found.ok_or_else(|| call.driver.bad_handle("module of the current context", module))?;
    let mut functions = Vec::new();
    call.driver.objects().functions.retain(|_, function| {
        let is_kept = function.module_handle != module;
        if !is_kept {
            functions.push(function.clone());
        }
        is_kept
    });
    // A launch that has not ended, or a graph, has its function.
    if call.driver.is_busy(&context) && functions.iter().any(|function| Arc::strong_count(function) > 1) {
        call.driver.report.broken(Rule::DestroyedInUse, || "a module, while a launch is pending".to_owned());
    }
    for global in &found.globals {
        call.driver.forget(global);
    }
    Ok(())
}

/// # Safety
/// It is null or a text with a zero at its end.
unsafe fn text<'a>(name: *const c_char) -> Outcome<&'a str> {
    if name.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Error::NOT_FOUND)
}

pub(super) unsafe fn function(call: Call, function: *mut u64, module: u64, name: *const c_char) -> Outcome {
    call.context()?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    let mut objects = call.driver.objects();
    let Some(found) = objects.modules.get(&module).cloned() else {
        drop(objects);
        return Err(call.driver.bad_handle("module", module));
    };
    let mut functions = found.functions.lock();
    let handle = match functions.get(name) {
        Some(handle) => *handle,
        None => {
            let index = found.parsed.kernels.iter().position(|kernel| kernel.name == name);
            let index = index.ok_or(Error::NOT_FOUND)?;
            let handle = objects.handle();
            let made =
                Function { module: found.clone(), module_handle: module, index, most_dynamic: 0.into() };
            *made.most_dynamic.lock() = made.default_dynamic();
            objects.functions.insert(handle, Arc::new(made));
            functions.insert(name.to_owned(), handle);
            handle
        }
    };
    // SAFETY: the caller's promise.
    unsafe { put(function, handle) }
}

pub(super) unsafe fn global(
    call: Call,
    address: *mut u64,
    size: *mut usize,
    module: u64,
    name: *const c_char,
) -> Outcome {
    call.context()?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    let found = call.driver.objects().modules.get(&module).cloned();
    let found = found.ok_or_else(|| call.driver.bad_handle("module", module))?;
    let mut all = found.parsed.globals.iter().zip(&found.globals);
    let (declared, memory) = all.find(|(declared, _)| declared.name == name).ok_or(Error::NOT_FOUND)?;
    // SAFETY: the caller's promise.
    unsafe {
        if !address.is_null() {
            put(address, memory.address)?;
        }
        if !size.is_null() {
            put(size, declared.bytes.len())?;
        }
    }
    Ok(())
}

pub(super) unsafe fn loading_mode(_: Call, mode: *mut i32) -> Outcome {
    // Eager.
    // SAFETY: the caller's promise.
    unsafe { put(mode, 1) }
}

fn find(call: Call, function: u64) -> Outcome<Arc<Function>> {
    let found = call.driver.objects().functions.get(&function).cloned();
    found.ok_or_else(|| call.driver.bad_handle("function", function))
}

pub(super) unsafe fn attribute(call: Call, value: *mut i32, attribute: i32, function: u64) -> Outcome {
    let found = find(call, function)?;
    let kernel = found.kernel();
    let size = |size: u32| i32::try_from(size).unwrap_or(i32::MAX);
    let answer = match attribute {
        0 => size(kernel.max_block.map_or(MOST_THREADS, |it| it.iter().product::<u32>())),
        1 => size(kernel.shared_bytes),
        2 | 7 | 9..=15 => 0,
        3 => size(kernel.local_bytes),
        // As many as a compiler finds room for.
        4 => size(kernel.registers.iter().sum::<u32>()).min(255),
        5 | 6 => 80,
        8 => size(*found.most_dynamic.lock()),
        _ => return Err(Error::INVALID_VALUE),
    };
    // SAFETY: the caller's promise.
    unsafe { put(value, answer) }
}

pub(super) unsafe fn set_attribute(call: Call, function: u64, attribute: i32, value: i32) -> Outcome {
    call.context()?;
    let found = find(call, function)?;
    match attribute {
        8 => {
            let most = MOST_SHARED - found.kernel().shared_bytes.min(MOST_SHARED);
            let wanted = u32::try_from(value).ok().filter(|&it| it <= most).ok_or(Error::INVALID_VALUE)?;
            *found.most_dynamic.lock() = wanted;
            Ok(())
        }
        9 if (-1..=100).contains(&value) => Ok(()),
        _ => Err(Error::INVALID_VALUE),
    }
}

pub(super) unsafe fn cache(call: Call, function: u64, config: i32) -> Outcome {
    find(call, function)?;
    if (0..4).contains(&config) { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

/// The bytes of a launch's parameters.
///
/// # Safety
/// The pointers point to what CUDA's header says.
unsafe fn parameters(
    call: Call,
    function: &Function,
    pointers: *const *const c_void,
    extra: *const *const c_void,
) -> Outcome<Vec<u8>> {
    let kernel = function.kernel();
    let mut bytes = vec![0; kernel.parameter_bytes as usize];
    let bad = |text: String| {
        call.driver.report.broken(Rule::BadLaunch, || format!("{}: {text}", kernel.name));
        Error::INVALID_VALUE
    };
    if !pointers.is_null() && !extra.is_null() {
        return Err(bad("parameters in two ways".to_owned()));
    }
    if !extra.is_null() {
        let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
        for at in (0..).step_by(2) {
            // SAFETY: the caller's promise: pairs of a number and a pointer, and a zero at their end.
            unsafe {
                let value = |at| get(extra.wrapping_add(at));
                match value(at)?.addr() {
                    0 => break,
                    1 => buffer = value(at + 1)?.cast(),
                    2 => size = get(value(at + 1)?.cast::<usize>())?,
                    _ => return Err(Error::INVALID_VALUE),
                }
            }
        }
        if size != bytes.len() || (buffer.is_null() && size > 0) {
            return Err(bad(format!("{size} bytes of parameters, of {}", bytes.len())));
        }
        // SAFETY: the caller's promise: the buffer has this size.
        unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), size) };
        return Ok(bytes);
    }
    if pointers.is_null() && !kernel.parameters.is_empty() {
        return Err(bad("no parameters".to_owned()));
    }
    for (at, parameter) in kernel.parameters.iter().enumerate() {
        // SAFETY: the caller's promise: a pointer for each parameter, to as many bytes.
        unsafe {
            let from = get(pointers.wrapping_add(at))?.cast::<u8>();
            if from.is_null() {
                return Err(bad(format!("no parameter {at}")));
            }
            let to = bytes.as_mut_ptr().wrapping_add(parameter.offset as usize);
            std::ptr::copy_nonoverlapping(from, to, parameter.size as usize);
        }
    }
    Ok(bytes)
}

/// Makes and checks a launch.
///
/// # Safety
/// The pointers point to what CUDA's header says.
pub(super) unsafe fn prepare(
    call: Call,
    context: u64,
    function: u64,
    (grid, block, shared): ([u32; 3], [u32; 3], u32),
    pointers: *const *const c_void,
    extra: *const *const c_void,
) -> Outcome<Kernel> {
    let function_handle = function;
    let function = find(call, function)?;
    if function.module.context != context {
        return Err(call.driver.bad_handle("function of the current context", function_handle));
    }
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters(call, &function, pointers, extra) }?;
    let kernel = Kernel { function, grid, block, shared, parameters };
    kernel.check(call.driver)?;
    Ok(kernel)
}

#[expect(clippy::too_many_arguments, reason = "CUDA's")]
pub(super) unsafe fn launch(
    call: Call,
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: u64,
    pointers: *const *const c_void,
    extra: *const *const c_void,
) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared);
    // SAFETY: the caller's promise.
    let kernel = unsafe { prepare(call, context.handle, function, shape, pointers, extra) }?;
    if call.driver.report.is_due(&Injection::LaunchError) {
        return Err(Error::LAUNCH_OUT_OF_RESOURCES);
    }
    call.driver.submit(&context, &stream, Op::Launch(Arc::new(kernel)));
    Ok(())
}
