// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The functions: the name that `cuGetProcAddress` knows, since which version it has this form, the name that is
//! exported, and the arguments. A name in brackets is exported too.

use super::{context, copy, device, event, graph, memory, module, pool, stream};
use std::ffi::{c_char, c_void};

/// A function that is exported.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name that `cuGetProcAddress` knows.
    pub name: &'static str,
    /// Since which version it has this form.
    pub since: i32,
    /// The name that is exported.
    pub symbol: &'static str,
    /// The function.
    pub address: *const c_void,
}

macro_rules! export {
    (@function $name:literal $symbol:ident ($($arg:ident: $type:ty),* $(,)?) $body:path) => {
        #[doc = concat!("`", $name, "`.")]
        ///
        /// # Safety
        /// Pointers point to what CUDA's header says.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> i32 {
            // SAFETY: the caller's promise.
            super::guard($name, |call| unsafe { $body(call, $($arg),*) })
        }
    };
    (@entry $entry:ident $name:literal $since:literal) => { None };
    (@entry $entry:ident $name:literal $since:literal $also:ident) => {
        Some($entry($name, $since, stringify!($also), $also as *const c_void))
    };
    ($($name:literal $since:literal $symbol:ident $arguments:tt $([$also:ident])? => $body:path;)*) => {
        $(
            export!(@function $name $symbol $arguments $body);
            $(export!(@function $name $also $arguments $body);)?
        )*

        /// All functions.
        #[must_use]
        pub fn entries() -> Vec<Entry> {
            let entry = |name, since, symbol, address| Entry { name, since, symbol, address };
            let all = [
                $(
                    Some(entry($name, $since, stringify!($symbol), $symbol as *const c_void)),
                    export!(@entry entry $name $since $($also)?),
                )*
            ];
            all.into_iter().flatten().collect()
        }
    };
}

type Handle = u64;
type Out = *mut u64;

export! {
    "cuInit" 2000 cuInit(flags: u32) => device::init;
    "cuDriverGetVersion" 2020 cuDriverGetVersion(version: *mut i32) => device::version;
    "cuGetErrorName" 6000 cuGetErrorName(result: i32, text: *mut *const c_char) => device::error_name;
    "cuGetErrorString" 6000 cuGetErrorString(result: i32, text: *mut *const c_char) => device::error_name;
    "cuGetProcAddress" 11030 cuGetProcAddress(name: *const c_char, to: *mut *const c_void, version: i32, flags: u64)
        => device::address;
    "cuGetProcAddress" 12000 cuGetProcAddress_v2(
        name: *const c_char, to: *mut *const c_void, version: i32, flags: u64, status: *mut i32
    ) => device::address_with_status;
    "cuDeviceGet" 2000 cuDeviceGet(device: *mut i32, ordinal: i32) => device::get;
    "cuDeviceGetCount" 2000 cuDeviceGetCount(count: *mut i32) => device::count;
    "cuDeviceGetName" 2000 cuDeviceGetName(name: *mut c_char, length: i32, device: i32) => device::name;
    "cuDeviceGetUuid" 9020 cuDeviceGetUuid(uuid: *mut [u8; 16], device: i32) => device::uuid;
    "cuDeviceGetUuid" 11040 cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) => device::uuid;
    "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) => device::total_memory;
    "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32)
        => device::attribute;
    "cuDeviceGetPCIBusId" 4010 cuDeviceGetPCIBusId(text: *mut c_char, length: i32, device: i32) => device::bus;
    "cuDeviceGetDefaultMemPool" 11020 cuDeviceGetDefaultMemPool(pool: Out, device: i32) => pool::default;
    "cuDeviceGetMemPool" 11020 cuDeviceGetMemPool(pool: Out, device: i32) => pool::current;
    "cuDeviceSetMemPool" 11020 cuDeviceSetMemPool(device: i32, pool: Handle) => pool::set_current;

    "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain(context: Out, device: i32) => context::retain;
    "cuDevicePrimaryCtxRelease" 7000 cuDevicePrimaryCtxRelease(device: i32) => context::release;
    "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2(device: i32) => context::release;
    "cuDevicePrimaryCtxSetFlags" 11000 cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32)
        => context::set_primary_flags;
    "cuDevicePrimaryCtxGetState" 7000 cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32)
        => context::primary_state;
    "cuCtxCreate" 3020 cuCtxCreate_v2(context: Out, flags: u32, device: i32) => context::create;
    "cuCtxCreate" 11040 cuCtxCreate_v3(
        context: Out, affinity: *const c_void, count: i32, flags: u32, device: i32
    ) => context::create_with_affinity;
    "cuCtxCreate" 12050 cuCtxCreate_v4(context: Out, parameters: *const c_void, flags: u32, device: i32)
        => context::create_with_parameters;
    "cuCtxDestroy" 4000 cuCtxDestroy_v2(context: Handle) => context::destroy;
    "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2(context: Handle) => context::push;
    "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2(context: Out) => context::pop;
    "cuCtxSetCurrent" 4000 cuCtxSetCurrent(context: Handle) => context::set;
    "cuCtxGetCurrent" 4000 cuCtxGetCurrent(context: Out) => context::get_current;
    "cuCtxGetDevice" 2000 cuCtxGetDevice(device: *mut i32) => context::device;
    "cuCtxGetFlags" 7000 cuCtxGetFlags(flags: *mut u32) => context::flags;
    "cuCtxGetId" 12000 cuCtxGetId(context: Handle, id: Out) => context::id;
    "cuCtxGetApiVersion" 3020 cuCtxGetApiVersion(context: Handle, version: *mut u32) => context::version;
    "cuCtxSynchronize" 2000 cuCtxSynchronize() => context::synchronize;
    "cuCtxGetLimit" 3010 cuCtxGetLimit(value: *mut usize, limit: i32) => context::limit;
    "cuCtxSetLimit" 3010 cuCtxSetLimit(limit: i32, value: usize) => context::set_limit;
    "cuCtxGetStreamPriorityRange" 5050 cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32)
        => context::priorities;

    "cuModuleLoadData" 2000 cuModuleLoadData(module: Out, image: *const c_void) => module::load;
    "cuModuleLoadDataEx" 2010 cuModuleLoadDataEx(
        module: Out, image: *const c_void, count: u32, options: *const i32, values: *mut *mut c_void
    ) => module::load_with_options;
    "cuModuleUnload" 2000 cuModuleUnload(module: Handle) => module::unload;
    "cuModuleGetFunction" 2000 cuModuleGetFunction(function: Out, module: Handle, name: *const c_char)
        => module::function;
    "cuModuleGetGlobal" 3020 cuModuleGetGlobal_v2(
        address: Out, size: *mut usize, module: Handle, name: *const c_char
    ) => module::global;
    "cuModuleGetLoadingMode" 11070 cuModuleGetLoadingMode(mode: *mut i32) => module::loading_mode;
    "cuFuncGetAttribute" 2020 cuFuncGetAttribute(value: *mut i32, attribute: i32, function: Handle)
        => module::attribute;
    "cuFuncSetAttribute" 9000 cuFuncSetAttribute(function: Handle, attribute: i32, value: i32)
        => module::set_attribute;
    "cuFuncSetCacheConfig" 3000 cuFuncSetCacheConfig(function: Handle, config: i32) => module::cache;
    "cuLaunchKernel" 4000 cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: Handle, parameters: *const *const c_void, extra: *const *const c_void
    ) [cuLaunchKernel_ptsz] => module::launch;
    "cuLaunchHostFunc" 10000 cuLaunchHostFunc(
        stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void
    ) [cuLaunchHostFunc_ptsz] => stream::host;

    "cuStreamCreate" 2000 cuStreamCreate(stream: Out, flags: u32) => stream::create;
    "cuStreamCreateWithPriority" 5050 cuStreamCreateWithPriority(stream: Out, flags: u32, priority: i32)
        => stream::create_with_priority;
    "cuStreamDestroy" 4000 cuStreamDestroy_v2(stream: Handle) => stream::destroy;
    "cuStreamSynchronize" 2000 cuStreamSynchronize(stream: Handle) [cuStreamSynchronize_ptsz]
        => stream::synchronize;
    "cuStreamQuery" 2000 cuStreamQuery(stream: Handle) [cuStreamQuery_ptsz] => stream::query;
    "cuStreamGetPriority" 5050 cuStreamGetPriority(stream: Handle, priority: *mut i32) [cuStreamGetPriority_ptsz]
        => stream::priority;
    "cuStreamGetFlags" 5050 cuStreamGetFlags(stream: Handle, flags: *mut u32) [cuStreamGetFlags_ptsz]
        => stream::flags;
    "cuStreamGetCtx" 9020 cuStreamGetCtx(stream: Handle, context: Out) [cuStreamGetCtx_ptsz] => stream::context;
    "cuStreamWaitEvent" 3020 cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) [cuStreamWaitEvent_ptsz]
        => stream::wait_event;
    "cuStreamWriteValue32" 8000 cuStreamWriteValue32(stream: Handle, address: u64, value: u32, flags: u32)
        => stream::write32;
    "cuStreamWriteValue32" 11070 cuStreamWriteValue32_v2(
        stream: Handle, address: u64, value: u32, flags: u32
    ) [cuStreamWriteValue32_v2_ptsz] => stream::write32;
    "cuStreamWriteValue64" 9000 cuStreamWriteValue64(stream: Handle, address: u64, value: u64, flags: u32)
        => stream::write64;
    "cuStreamWriteValue64" 11070 cuStreamWriteValue64_v2(
        stream: Handle, address: u64, value: u64, flags: u32
    ) [cuStreamWriteValue64_v2_ptsz] => stream::write64;
    "cuStreamWaitValue32" 8000 cuStreamWaitValue32(stream: Handle, address: u64, value: u32, flags: u32)
        => stream::await32;
    "cuStreamWaitValue32" 11070 cuStreamWaitValue32_v2(
        stream: Handle, address: u64, value: u32, flags: u32
    ) [cuStreamWaitValue32_v2_ptsz] => stream::await32;
    "cuStreamWaitValue64" 9000 cuStreamWaitValue64(stream: Handle, address: u64, value: u64, flags: u32)
        => stream::await64;
    "cuStreamWaitValue64" 11070 cuStreamWaitValue64_v2(
        stream: Handle, address: u64, value: u64, flags: u32
    ) [cuStreamWaitValue64_v2_ptsz] => stream::await64;

    "cuEventCreate" 2000 cuEventCreate(event: Out, flags: u32) => event::create;
    "cuEventDestroy" 4000 cuEventDestroy_v2(event: Handle) => event::destroy;
    "cuEventRecord" 2000 cuEventRecord(event: Handle, stream: Handle) [cuEventRecord_ptsz] => event::record;
    "cuEventRecordWithFlags" 11010 cuEventRecordWithFlags(
        event: Handle, stream: Handle, flags: u32
    ) [cuEventRecordWithFlags_ptsz] => event::record_with_flags;
    "cuEventQuery" 2000 cuEventQuery(event: Handle) => event::query;
    "cuEventSynchronize" 2000 cuEventSynchronize(event: Handle) => event::synchronize;
    "cuEventElapsedTime" 2000 cuEventElapsedTime(time: *mut f32, begin: Handle, end: Handle) => event::elapsed;
    "cuEventElapsedTime" 12080 cuEventElapsedTime_v2(time: *mut f32, begin: Handle, end: Handle)
        => event::elapsed;

    "cuMemGetInfo" 3020 cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => memory::info;
    "cuMemAlloc" 3020 cuMemAlloc_v2(address: Out, size: usize) => memory::allocate;
    "cuMemFree" 3020 cuMemFree_v2(address: u64) => memory::free;
    "cuMemAllocHost" 3020 cuMemAllocHost_v2(address: Out, size: usize) => memory::allocate_host;
    "cuMemHostAlloc" 2020 cuMemHostAlloc(address: Out, size: usize, flags: u32) => memory::allocate_host_with_flags;
    "cuMemFreeHost" 2000 cuMemFreeHost(address: u64) => memory::free_host;
    "cuMemHostRegister" 6050 cuMemHostRegister_v2(address: u64, size: usize, flags: u32) => memory::register;
    "cuMemHostUnregister" 4000 cuMemHostUnregister(address: u64) => memory::unregister;
    "cuMemHostGetDevicePointer" 3020 cuMemHostGetDevicePointer_v2(to: Out, address: u64, flags: u32)
        => memory::device_pointer;
    "cuMemHostGetFlags" 2030 cuMemHostGetFlags(flags: *mut u32, address: u64) => memory::host_flags;
    "cuMemAllocManaged" 6000 cuMemAllocManaged(address: Out, size: usize, flags: u32) => memory::allocate_managed;
    "cuMemPrefetchAsync" 8000 cuMemPrefetchAsync(
        address: u64, size: usize, device: i32, stream: Handle
    ) [cuMemPrefetchAsync_ptsz] => memory::prefetch;
    "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2(base: Out, size: *mut usize, address: u64)
        => memory::range;
    "cuMemGetHandleForAddressRange" 11070 cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: u64, size: usize, kind: i32, flags: u64
    ) => memory::exported;
    "cuPointerGetAttribute" 4000 cuPointerGetAttribute(data: *mut c_void, attribute: i32, address: u64)
        => memory::pointer_attribute;
    "cuPointerGetAttributes" 7000 cuPointerGetAttributes(
        count: u32, attributes: *const i32, data: *const *mut c_void, address: u64
    ) => memory::pointer_attributes;

    "cuMemAllocAsync" 11020 cuMemAllocAsync(address: Out, size: usize, stream: Handle) [cuMemAllocAsync_ptsz]
        => pool::allocate;
    "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync(
        address: Out, size: usize, pool: Handle, stream: Handle
    ) [cuMemAllocFromPoolAsync_ptsz] => pool::allocate_from;
    "cuMemFreeAsync" 11020 cuMemFreeAsync(address: u64, stream: Handle) [cuMemFreeAsync_ptsz] => pool::free;
    "cuMemPoolCreate" 11020 cuMemPoolCreate(pool: Out, properties: *const pool::Properties) => pool::create;
    "cuMemPoolDestroy" 11020 cuMemPoolDestroy(pool: Handle) => pool::destroy;
    "cuMemPoolTrimTo" 11020 cuMemPoolTrimTo(pool: Handle, keep: usize) => pool::trim;
    "cuMemPoolSetAttribute" 11020 cuMemPoolSetAttribute(pool: Handle, attribute: i32, value: *const c_void)
        => pool::set_attribute;
    "cuMemPoolGetAttribute" 11020 cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: *mut c_void)
        => pool::attribute;
    "cuMemPoolSetAccess" 11020 cuMemPoolSetAccess(pool: Handle, map: *const pool::Access, count: usize)
        => pool::set_access;
    "cuMemPoolGetAccess" 11020 cuMemPoolGetAccess(flags: *mut i32, pool: Handle, location: *const pool::Location)
        => pool::access;

    "cuMemcpy" 4000 cuMemcpy(to: u64, from: u64, size: usize) => copy::any;
    "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2(to: u64, from: u64, size: usize) => copy::to_device;
    "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2(to: u64, from: u64, size: usize) => copy::from_device;
    "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) => copy::within_device;
    "cuMemcpyAsync" 4000 cuMemcpyAsync(to: u64, from: u64, size: usize, stream: Handle) [cuMemcpyAsync_ptsz]
        => copy::any_async;
    "cuMemcpyHtoDAsync" 3020 cuMemcpyHtoDAsync_v2(
        to: u64, from: u64, size: usize, stream: Handle
    ) [cuMemcpyHtoDAsync_v2_ptsz] => copy::to_device_async;
    "cuMemcpyDtoHAsync" 3020 cuMemcpyDtoHAsync_v2(
        to: u64, from: u64, size: usize, stream: Handle
    ) [cuMemcpyDtoHAsync_v2_ptsz] => copy::from_device_async;
    "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2(
        to: u64, from: u64, size: usize, stream: Handle
    ) [cuMemcpyDtoDAsync_v2_ptsz] => copy::within_device_async;
    "cuMemcpy2D" 3020 cuMemcpy2D_v2(copy: *const copy::Copy2D) => copy::plane;
    "cuMemcpy2DAsync" 3020 cuMemcpy2DAsync_v2(
        copy: *const copy::Copy2D, stream: Handle
    ) [cuMemcpy2DAsync_v2_ptsz] => copy::plane_async;
    "cuMemsetD8" 3020 cuMemsetD8_v2(to: u64, value: u8, count: usize) => copy::set8;
    "cuMemsetD16" 3020 cuMemsetD16_v2(to: u64, value: u16, count: usize) => copy::set16;
    "cuMemsetD32" 3020 cuMemsetD32_v2(to: u64, value: u32, count: usize) => copy::set32;
    "cuMemsetD8Async" 3020 cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) [cuMemsetD8Async_ptsz]
        => copy::set8_async;
    "cuMemsetD16Async" 3020 cuMemsetD16Async(
        to: u64, value: u16, count: usize, stream: Handle
    ) [cuMemsetD16Async_ptsz] => copy::set16_async;
    "cuMemsetD32Async" 3020 cuMemsetD32Async(
        to: u64, value: u32, count: usize, stream: Handle
    ) [cuMemsetD32Async_ptsz] => copy::set32_async;
    "cuMemsetD2D8Async" 3020 cuMemsetD2D8Async(
        to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle
    ) [cuMemsetD2D8Async_ptsz] => copy::set_plane8;
    "cuMemsetD2D32Async" 3020 cuMemsetD2D32Async(
        to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle
    ) [cuMemsetD2D32Async_ptsz] => copy::set_plane32;

    "cuGraphCreate" 10000 cuGraphCreate(graph: Out, flags: u32) => graph::create;
    "cuGraphDestroy" 10000 cuGraphDestroy(graph: Handle) => graph::destroy;
    "cuGraphAddKernelNode" 10000 cuGraphAddKernelNode(
        node: Out, graph: Handle, after: *const Handle, count: usize, parameters: *const graph::KernelNode
    ) => graph::add_kernel;
    "cuGraphAddKernelNode" 12000 cuGraphAddKernelNode_v2(
        node: Out, graph: Handle, after: *const Handle, count: usize, parameters: *const graph::KernelNode
    ) => graph::add_kernel;
    "cuGraphAddMemcpyNode" 10000 cuGraphAddMemcpyNode(
        node: Out, graph: Handle, after: *const Handle, count: usize, copy: *const graph::Copy3D, context: Handle
    ) => graph::add_copy;
    "cuGraphAddMemsetNode" 10000 cuGraphAddMemsetNode(
        node: Out, graph: Handle, after: *const Handle, count: usize, set: *const graph::SetNode, context: Handle
    ) => graph::add_set;
    "cuGraphAddEmptyNode" 10000 cuGraphAddEmptyNode(node: Out, graph: Handle, after: *const Handle, count: usize)
        => graph::add_empty;
    "cuGraphAddHostNode" 10000 cuGraphAddHostNode(
        node: Out, graph: Handle, after: *const Handle, count: usize, parameters: *const graph::HostNode
    ) => graph::add_host;
    "cuGraphAddEventRecordNode" 11010 cuGraphAddEventRecordNode(
        node: Out, graph: Handle, after: *const Handle, count: usize, event: Handle
    ) => graph::add_record;
    "cuGraphGetNodes" 10000 cuGraphGetNodes(graph: Handle, nodes: Out, count: *mut usize) => graph::nodes;
    "cuGraphInstantiate" 10000 cuGraphInstantiate(
        executable: Out, graph: Handle, node: Out, log: *mut c_char, size: usize
    ) => graph::instantiate_with_log;
    "cuGraphInstantiate" 11000 cuGraphInstantiate_v2(
        executable: Out, graph: Handle, node: Out, log: *mut c_char, size: usize
    ) => graph::instantiate_with_log;
    "cuGraphInstantiate" 12000 cuGraphInstantiateWithFlags(executable: Out, graph: Handle, flags: u64)
        => graph::instantiate;
    "cuGraphLaunch" 10000 cuGraphLaunch(executable: Handle, stream: Handle) [cuGraphLaunch_ptsz] => graph::launch;
    "cuGraphUpload" 11010 cuGraphUpload(executable: Handle, stream: Handle) [cuGraphUpload_ptsz] => graph::upload;
    "cuGraphExecDestroy" 10000 cuGraphExecDestroy(executable: Handle) => graph::destroy_executable;
    "cuGraphExecKernelNodeSetParams" 10010 cuGraphExecKernelNodeSetParams(
        executable: Handle, node: Handle, parameters: *const graph::KernelNode
    ) => graph::set_kernel;
    "cuGraphExecKernelNodeSetParams" 12000 cuGraphExecKernelNodeSetParams_v2(
        executable: Handle, node: Handle, parameters: *const graph::KernelNode
    ) => graph::set_kernel;
}
