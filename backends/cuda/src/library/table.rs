// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The functions of CUDA's driver interface that are used, each in the form that one version gave it.
//!
//! `cuGetProcAddress` returns the form of the version that it is asked for, whatever the library has beside it, so
//! the versions here fix the signatures. The last of them, 11.7, is the oldest library that works.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ptr::NonNull;

/// A handle of CUDA's: a context, stream, event, module, function, pool, graph or node.
pub(super) type Handle = usize;

/// An address that a device uses.
pub(super) type Address = u64;

/// A function that a library lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) function: &'static CStr,
    pub(super) version: i32,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (self.version / 1000, self.version % 1000 / 10);
        write!(f, "{} of CUDA {major}.{minor}", self.function.to_string_lossy())
    }
}

macro_rules! functions {
    ($($version:literal $field:ident $name:literal ($($argument:ty),*);)*) => {
        /// The functions.
        #[expect(non_snake_case, reason = "the names are CUDA's")]
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> i32,)*
        }

        impl Table {
            /// Looks each function up.
            ///
            /// # Safety
            ///
            /// `find` returns the address of the function with this name, in the form that it has in this version of
            /// CUDA's driver interface, and the address stays valid.
            pub(super) unsafe fn new(
                find: impl Fn(&CStr, i32) -> Option<NonNull<c_void>>,
            ) -> Result<Self, Missing> {
                Ok(Self {
                    $($field: {
                        let address = find($name, $version);
                        let address = address.ok_or(Missing { function: $name, version: $version })?;
                        // SAFETY: a function of this signature is there, as the caller promises.
                        unsafe {
                            std::mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($argument),*) -> i32,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    2000 cuInit c"cuInit" (u32);
    2020 cuDriverGetVersion c"cuDriverGetVersion" (*mut i32);
    6000 cuGetErrorName c"cuGetErrorName" (i32, *mut *const c_char);
    2000 cuDeviceGet c"cuDeviceGet" (*mut i32, i32);
    2000 cuDeviceGetCount c"cuDeviceGetCount" (*mut i32);
    2000 cuDeviceGetName c"cuDeviceGetName" (*mut c_char, i32, i32);
    11040 cuDeviceGetUuid c"cuDeviceGetUuid" (*mut [u8; 16], i32);
    4010 cuDeviceGetPCIBusId c"cuDeviceGetPCIBusId" (*mut c_char, i32, i32);
    3020 cuDeviceTotalMem c"cuDeviceTotalMem" (*mut usize, i32);
    2000 cuDeviceGetAttribute c"cuDeviceGetAttribute" (*mut i32, i32, i32);
    7000 cuDevicePrimaryCtxRetain c"cuDevicePrimaryCtxRetain" (*mut Handle, i32);
    11000 cuDevicePrimaryCtxRelease c"cuDevicePrimaryCtxRelease" (i32);
    3020 cuCtxCreate c"cuCtxCreate" (*mut Handle, u32, i32);
    4000 cuCtxDestroy c"cuCtxDestroy" (Handle);
    4000 cuCtxPushCurrent c"cuCtxPushCurrent" (Handle);
    4000 cuCtxPopCurrent c"cuCtxPopCurrent" (*mut Handle);
    2010 cuModuleLoadDataEx c"cuModuleLoadDataEx"
        (*mut Handle, *const c_void, u32, *const i32, *mut *mut c_void);
    2000 cuModuleUnload c"cuModuleUnload" (Handle);
    2000 cuModuleGetFunction c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    3020 cuModuleGetGlobal c"cuModuleGetGlobal" (*mut Address, *mut usize, Handle, *const c_char);
    2020 cuFuncGetAttribute c"cuFuncGetAttribute" (*mut i32, i32, Handle);
    9000 cuFuncSetAttribute c"cuFuncSetAttribute" (Handle, i32, i32);
    4000 cuLaunchKernel c"cuLaunchKernel"
        (Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *const *const c_void, *const *const c_void);
    2000 cuStreamCreate c"cuStreamCreate" (*mut Handle, u32);
    4000 cuStreamDestroy c"cuStreamDestroy" (Handle);
    2000 cuStreamSynchronize c"cuStreamSynchronize" (Handle);
    2000 cuStreamQuery c"cuStreamQuery" (Handle);
    3020 cuStreamWaitEvent c"cuStreamWaitEvent" (Handle, Handle, u32);
    11070 cuStreamWriteValue64 c"cuStreamWriteValue64" (Handle, Address, u64, u32);
    11070 cuStreamWaitValue64 c"cuStreamWaitValue64" (Handle, Address, u64, u32);
    2000 cuEventCreate c"cuEventCreate" (*mut Handle, u32);
    4000 cuEventDestroy c"cuEventDestroy" (Handle);
    2000 cuEventRecord c"cuEventRecord" (Handle, Handle);
    2000 cuEventSynchronize c"cuEventSynchronize" (Handle);
    2000 cuEventElapsedTime c"cuEventElapsedTime" (*mut f32, Handle, Handle);
    2020 cuMemHostAlloc c"cuMemHostAlloc" (*mut *mut c_void, usize, u32);
    2000 cuMemFreeHost c"cuMemFreeHost" (*mut c_void);
    6050 cuMemHostRegister c"cuMemHostRegister" (*mut c_void, usize, u32);
    4000 cuMemHostUnregister c"cuMemHostUnregister" (*mut c_void);
    11020 cuMemPoolCreate c"cuMemPoolCreate" (*mut Handle, *const PoolProperties);
    11020 cuMemPoolDestroy c"cuMemPoolDestroy" (Handle);
    11020 cuMemPoolTrimTo c"cuMemPoolTrimTo" (Handle, usize);
    11020 cuMemPoolSetAttribute c"cuMemPoolSetAttribute" (Handle, i32, *const u64);
    11020 cuMemAllocFromPoolAsync c"cuMemAllocFromPoolAsync" (*mut Address, usize, Handle, Handle);
    11020 cuMemFreeAsync c"cuMemFreeAsync" (Address, Handle);
    4000 cuMemcpyAsync c"cuMemcpyAsync" (Address, Address, usize, Handle);
    3020 cuMemsetD8Async c"cuMemsetD8Async" (Address, u8, usize, Handle);
    3020 cuMemsetD16Async c"cuMemsetD16Async" (Address, u16, usize, Handle);
    3020 cuMemsetD32Async c"cuMemsetD32Async" (Address, u32, usize, Handle);
    10000 cuGraphCreate c"cuGraphCreate" (*mut Handle, u32);
    10000 cuGraphDestroy c"cuGraphDestroy" (Handle);
    10000 cuGraphAddKernelNode c"cuGraphAddKernelNode"
        (*mut Handle, Handle, *const Handle, usize, *const KernelNode);
    10000 cuGraphAddMemcpyNode c"cuGraphAddMemcpyNode"
        (*mut Handle, Handle, *const Handle, usize, *const CopyNode, Handle);
    10000 cuGraphAddMemsetNode c"cuGraphAddMemsetNode"
        (*mut Handle, Handle, *const Handle, usize, *const SetNode, Handle);
    10000 cuGraphAddEmptyNode c"cuGraphAddEmptyNode" (*mut Handle, Handle, *const Handle, usize);
    11000 cuGraphInstantiate c"cuGraphInstantiate" (*mut Handle, Handle, *mut Handle, *mut c_char, usize);
    10000 cuGraphExecDestroy c"cuGraphExecDestroy" (Handle);
    10000 cuGraphLaunch c"cuGraphLaunch" (Handle, Handle);
}

/// A launch: the first form of `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
pub(super) struct KernelNode {
    pub(super) function: Handle,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    pub(super) parameters: *const *const c_void,
    pub(super) extra: *const *const c_void,
}

const _: () = assert!(size_of::<KernelNode>() == 56);

/// One side of a copy.
#[derive(Default)]
#[repr(C)]
pub(super) struct CopySide {
    /// Bytes, rows, slices and levels to skip.
    pub(super) skip: [usize; 4],
    /// `CU_MEMORYTYPE_UNIFIED`: the address says whose memory it is.
    pub(super) kind: u32,
    pub(super) host: usize,
    pub(super) address: Address,
    pub(super) array: usize,
    pub(super) reserved: usize,
    pub(super) pitch: usize,
    pub(super) height: usize,
}

/// A copy: `CUDA_MEMCPY3D`.
#[repr(C)]
pub(super) struct CopyNode {
    pub(super) from: CopySide,
    pub(super) to: CopySide,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

const _: () = assert!(size_of::<CopyNode>() == 200);

/// A repeated value: `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
pub(super) struct SetNode {
    pub(super) to: Address,
    pub(super) pitch: usize,
    pub(super) value: u32,
    /// The bytes of the value.
    pub(super) size: u32,
    pub(super) width: usize,
    pub(super) height: usize,
}

const _: () = assert!(size_of::<SetNode>() == 40);

/// What a pool is: `CUmemPoolProps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct PoolProperties {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
    pub(super) allocation: i32,
    /// No handles for other processes.
    pub(super) handles: i32,
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub(super) location: i32,
    pub(super) device: i32,
    pub(super) security: usize,
    /// The most bytes; 0 for as many as there are.
    pub(super) most: usize,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 54],
}

const _: () = assert!(size_of::<PoolProperties>() == 88 && align_of::<PoolProperties>() == 8);
