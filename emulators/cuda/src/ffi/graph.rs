// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Graphs.

use super::copy::{side, sides};
use super::module::prepare;
use super::{Call, get, put};
use crate::driver::Objects;
use crate::driver::graph::{Graph, Work};
use crate::driver::options::Injection;
use crate::driver::status::{Error, Outcome};
use crate::driver::stream::{HostFunction, Op, Rows};
use crate::random::mix;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// A launch: `CUDA_KERNEL_NODE_PARAMS`, as far as both of its forms go.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct KernelNode {
    /// The function.
    pub(super) function: u64,
    /// Blocks.
    pub(super) grid: [u32; 3],
    /// Threads of each.
    pub(super) block: [u32; 3],
    /// Dynamic shared memory.
    pub(super) shared: u32,
    /// A pointer for each parameter.
    pub(super) parameters: *const *const c_void,
    /// Or all of them in a buffer.
    pub(super) extra: *const *const c_void,
}

/// A copy: `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Copy3D {
    /// The source.
    pub(super) from: Side3D,
    /// The destination.
    pub(super) to: Side3D,
    /// Bytes of a row.
    pub(super) width: usize,
    /// Rows of a slice.
    pub(super) height: usize,
    /// Slices.
    pub(super) depth: usize,
}

/// One side of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Side3D {
    /// Bytes, rows, slices and levels to skip.
    pub(super) skip: [usize; 4],
    /// The host's 1, the device's 2, either 4.
    pub(super) kind: u32,
    /// The address on the host.
    pub(super) host: u64,
    /// The address on the device.
    pub(super) device: u64,
    /// Not supported.
    pub(super) array: u64,
    /// Null.
    pub(super) reserved: u64,
    /// From one row to the next.
    pub(super) pitch: usize,
    /// Rows of a slice.
    pub(super) height: usize,
}

/// A set: `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SetNode {
    /// Where.
    pub(super) to: u64,
    /// From one row to the next.
    pub(super) pitch: usize,
    /// The value.
    pub(super) value: u32,
    /// Its bytes.
    pub(super) bytes: u32,
    /// Values of a row.
    pub(super) width: usize,
    /// Rows.
    pub(super) height: usize,
}

/// A function of the program's: `CUDA_HOST_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct HostNode {
    /// The function.
    pub(super) function: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Its argument.
    pub(super) data: *mut c_void,
}

const _: () =
    assert!(size_of::<KernelNode>() == 56 && size_of::<Copy3D>() == 200 && size_of::<SetNode>() == 40);

pub(super) unsafe fn create(call: Call, graph: *mut u64, flags: u32) -> Outcome {
    let context = call.context()?;
    if flags != 0 || graph.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut objects = call.driver.objects();
    let handle = objects.handle();
    objects.graphs.insert(handle, Graph { context: context.handle, nodes: Vec::new() });
    // SAFETY: the caller's promise.
    unsafe { put(graph, handle) }
}

pub(super) unsafe fn destroy(call: Call, graph: u64) -> Outcome {
    let found = call.driver.objects().graphs.remove(&graph);
    found.map(|_| ()).ok_or_else(|| call.driver.bad_handle("graph", graph))
}

/// Adds a node behind others.
///
/// # Safety
/// There are as many handles.
unsafe fn add(
    call: Call,
    node: *mut u64,
    graph: u64,
    (after, count): (*const u64, usize),
    work: Work,
) -> Outcome {
    call.context()?;
    let mut before = Vec::new();
    for at in 0..count {
        // SAFETY: the caller's promise.
        before.push(unsafe { get(after.wrapping_add(at)) }?);
    }
    let mut objects = call.driver.objects();
    let handle = objects.handle();
    let Some(found) = objects.graphs.get_mut(&graph) else {
        drop(objects);
        return Err(call.driver.bad_handle("graph", graph));
    };
    found.add(handle, work, before)?;
    // SAFETY: the caller's promise.
    unsafe { put(node, handle) }
}

/// # Safety
/// It points to what CUDA's header says.
unsafe fn kernel(call: Call, parameters: *const KernelNode) -> Outcome<Work> {
    let context = call.context()?;
    // SAFETY: the caller's promise.
    unsafe {
        let it = get(parameters)?;
        let shape = (it.grid, it.block, it.shared);
        let kernel = prepare(call, context.handle, it.function, shape, it.parameters, it.extra)?;
        Ok(Work::Op(Op::Launch(Arc::new(kernel))))
    }
}

pub(super) unsafe fn add_kernel(
    call: Call,
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
    parameters: *const KernelNode,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let work = kernel(call, parameters)?;
        add(call, node, graph, (after, count), work)
    }
}

pub(super) unsafe fn add_copy(
    call: Call,
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
    copy: *const Copy3D,
    context: u64,
) -> Outcome {
    // SAFETY: the caller's promise.
    let copy = unsafe { get(copy) }?;
    if !call.driver.objects().contexts.contains_key(&context) || copy.depth != 1 {
        return Err(Error::INVALID_VALUE);
    }
    let of = |it: &Side3D| {
        let [x, y, z, _] = it.skip;
        let y = z.checked_mul(it.height).and_then(|rows| rows.checked_add(y)).ok_or(Error::INVALID_VALUE)?;
        side((it.kind, it.host, it.device), (x, y), it.pitch, copy.width)
    };
    let ((to, to_pitch), (from, from_pitch)) = (of(&copy.to)?, of(&copy.from)?);
    let rows = Rows { width: copy.width, height: copy.height, to_pitch, from_pitch };
    let (to, from) = sides(call, to, from, rows)?;
    // SAFETY: the caller's promise.
    unsafe { add(call, node, graph, (after, count), Work::Op(Op::Copy(to, from, rows))) }
}

pub(super) unsafe fn add_set(
    call: Call,
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
    set: *const SetNode,
    context: u64,
) -> Outcome {
    // SAFETY: the caller's promise.
    let set = unsafe { get(set) }?;
    let bytes =
        u8::try_from(set.bytes).ok().filter(|it| matches!(it, 1 | 2 | 4)).ok_or(Error::INVALID_VALUE)?;
    let is_known = call.driver.objects().contexts.contains_key(&context);
    if !is_known || set.to % u64::from(bytes) != 0 || set.width == 0 || set.height == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let width = set.width.saturating_mul(usize::from(bytes));
    let pitch = if set.height == 1 { width } else { set.pitch };
    let rows = Rows { width, height: set.height, to_pitch: pitch, from_pitch: pitch };
    let (to, _) = sides(call, set.to, set.to, rows)?;
    if to.is_pageable() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { add(call, node, graph, (after, count), Work::Op(Op::Set(to, set.value, bytes, rows))) }
}

pub(super) unsafe fn add_empty(
    call: Call,
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { add(call, node, graph, (after, count), Work::Op(Op::Marker)) }
}

pub(super) unsafe fn add_host(
    call: Call,
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
    parameters: *const HostNode,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let HostNode { function, data } = get(parameters)?;
        let function = function.ok_or(Error::INVALID_VALUE)?;
        let work = Work::Op(Op::Host(HostFunction { function, data }));
        add(call, node, graph, (after, count), work)
    }
}

pub(super) unsafe fn add_record(
    call: Call,
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
    event: u64,
) -> Outcome {
    if !call.driver.objects().events.contains_key(&event) {
        return Err(call.driver.bad_handle("event", event));
    }
    // SAFETY: the caller's promise.
    unsafe { add(call, node, graph, (after, count), Work::Record(event)) }
}

pub(super) unsafe fn nodes(call: Call, graph: u64, nodes: *mut u64, count: *mut usize) -> Outcome {
    let objects = call.driver.objects();
    let found = objects.graphs.get(&graph).ok_or(Error::INVALID_VALUE)?;
    // SAFETY: the caller's promise: there is room for as many as `count` says.
    unsafe {
        if nodes.is_null() {
            return put(count, found.nodes.len());
        }
        let room = get(count)?;
        for at in 0..room {
            put(nodes.wrapping_add(at), found.nodes.get(at).map_or(0, |node| node.handle))?;
        }
        put(count, room.min(found.nodes.len()))
    }
}

pub(super) unsafe fn instantiate(call: Call, executable: *mut u64, graph: u64, flags: u64) -> Outcome {
    call.context()?;
    // `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD` is for `cuGraphInstantiateWithParams` alone.
    if flags & !0xd != 0 || executable.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut objects = call.driver.objects();
    let Some(found) = objects.graphs.get(&graph).cloned() else {
        drop(objects);
        return Err(call.driver.bad_handle("graph", graph));
    };
    if has_lost_function(&objects, &found) {
        drop(objects);
        return Err(call.driver.bad_handle("graph whose modules are loaded", graph));
    }
    if call.driver.report.is_due(&Injection::OutOfMemory) {
        return Err(Error::OUT_OF_MEMORY);
    }
    let handle = objects.handle();
    objects.executables.insert(handle, found);
    // SAFETY: the caller's promise.
    unsafe { put(executable, handle) }
}

pub(super) unsafe fn instantiate_with_log(
    call: Call,
    executable: *mut u64,
    graph: u64,
    node: *mut u64,
    log: *mut c_char,
    size: usize,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        if !node.is_null() {
            node.write(0);
        }
        if !log.is_null() && size > 0 {
            log.write(0);
        }
        instantiate(call, executable, graph, 0)
    }
}

pub(super) unsafe fn destroy_executable(call: Call, executable: u64) -> Outcome {
    let found = call.driver.objects().executables.remove(&executable);
    found.map(|_| ()).ok_or_else(|| call.driver.bad_handle("graph to launch", executable))
}

/// Whether a kernel's module was unloaded.
fn has_lost_function(objects: &Objects, graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| match &node.work {
        Work::Op(Op::Launch(kernel)) => !objects.modules.contains_key(&kernel.function.module_handle),
        _ => false,
    })
}

fn find(call: Call, executable: u64) -> Outcome<Graph> {
    let found = call.driver.objects().executables.get(&executable).cloned();
    found.ok_or_else(|| call.driver.bad_handle("graph to launch", executable))
}

pub(super) unsafe fn upload(call: Call, executable: u64, stream: u64) -> Outcome {
    call.stream(stream)?;
    find(call, executable).map(|_| ())
}

pub(super) unsafe fn launch(call: Call, executable: u64, stream: u64) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    let graph = find(call, executable)?;
    if graph.context != context.handle {
        return Err(call.driver.bad_handle("graph of the current context", executable));
    }
    if has_lost_function(&call.driver.objects(), &graph) {
        return Err(call.driver.bad_handle("graph whose modules are loaded", executable));
    }
    if call.driver.report.is_due(&Injection::LaunchError) {
        return Err(Error::LAUNCH_OUT_OF_RESOURCES);
    }
    let seed = call.driver.report.options().seed;
    let order = graph.order(if seed == 0 { 0 } else { mix(seed ^ executable) });
    let (mut ops, mut records) = (Vec::new(), Vec::new());
    for node in order {
        match &node.work {
            Work::Op(op) => ops.push(op.clone()),
            // Records happen at the graph's end: later than they may.
            Work::Record(event) => records.push(*event),
        }
    }
    call.driver.submit(&context, &stream, Op::Graph(Arc::new(ops)));
    for event in records {
        let found = call.driver.objects().events.get(&event).cloned();
        if let Some(found) = found {
            let done = call.driver.submit(&context, &stream, Op::Marker);
            found.record.lock().replace(done);
        }
    }
    Ok(())
}

pub(super) unsafe fn set_kernel(
    call: Call,
    executable: u64,
    node: u64,
    parameters: *const KernelNode,
) -> Outcome {
    // SAFETY: the caller's promise.
    let work = unsafe { kernel(call, parameters) }?;
    let mut objects = call.driver.objects();
    let found = objects.executables.get_mut(&executable).ok_or(Error::INVALID_HANDLE)?;
    let found = found.nodes.iter_mut().find(|it| it.handle == node).ok_or(Error::INVALID_VALUE)?;
    if !matches!(found.work, Work::Op(Op::Launch(_))) {
        return Err(Error::INVALID_VALUE);
    }
    found.work = work;
    Ok(())
}
