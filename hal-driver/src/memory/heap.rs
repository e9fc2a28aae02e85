// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device's heaps in IREE's terms, and the choice of a heap for a buffer.

use crate::ffi::constants::{ACCESS_ALL, ACCESS_UNALIGNED};
use crate::ffi::object::to_u64;
use crate::ffi::status::{Result, invalid};
use hal_backend::{Heap, MemoryRequest, Properties, Purpose};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;

pub(crate) type MemoryType = sys::iree_hal_memory_type_t;
type Usage = sys::iree_hal_buffer_usage_t;

pub(crate) const DEVICE_VISIBLE: MemoryType = sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE as MemoryType;
const DEVICE_LOCAL: MemoryType = sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL as MemoryType;
pub(crate) const HOST_VISIBLE: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE as MemoryType;
const HOST_COHERENT: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_COHERENT as MemoryType;
const HOST_CACHED: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_CACHED as MemoryType;
pub(crate) const OPTIMAL: MemoryType = sys::IREE_HAL_MEMORY_TYPE_OPTIMAL as MemoryType;
const HOST_LOCAL: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL as MemoryType;

pub(crate) const TRANSFER: Usage = sys::IREE_HAL_BUFFER_USAGE_TRANSFER as Usage;
pub(crate) const DISPATCH: Usage = sys::IREE_HAL_BUFFER_USAGE_DISPATCH as Usage;
/// The usages of buffers that dispatches access, apart from indirect workgroup counts.
const STORAGE: Usage = (sys::IREE_HAL_BUFFER_USAGE_DISPATCH_UNIFORM_READ
    | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE
    | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_IMAGE) as Usage;
const SHARING: Usage = (sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT
    | sys::IREE_HAL_BUFFER_USAGE_SHARING_REPLICATE
    | sys::IREE_HAL_BUFFER_USAGE_SHARING_CONCURRENT
    | sys::IREE_HAL_BUFFER_USAGE_SHARING_IMMUTABLE) as Usage;
pub(crate) const EXPORT: Usage = sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT as Usage;
const MAPPING: Usage = (sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_PERSISTENT
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_OPTIONAL
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_SEQUENTIAL_WRITE) as Usage;

const OPTIONAL: Usage = sys::IREE_HAL_BUFFER_USAGE_MAPPING_OPTIONAL as Usage;

/// The memory type of a heap in IREE's terms.
pub(crate) fn memory_type(heap: &Heap) -> MemoryType {
    let mut bits = DEVICE_VISIBLE;
    if heap.device_local {
        bits |= DEVICE_LOCAL;
    } else {
        bits |= HOST_LOCAL;
    }
    if heap.host_visible {
        bits |= HOST_VISIBLE;
    }
    if heap.coherent {
        bits |= HOST_COHERENT | HOST_CACHED;
    }
    bits
}

/// The usages of buffers of a heap.
pub(crate) fn usage(heap: &Heap) -> Usage {
    TRANSFER | DISPATCH | SHARING | if heap.host_visible { MAPPING } else { 0 }
}

/// The alignment of a buffer, if it is a power of two.
pub(crate) fn alignment(params: &sys::iree_hal_buffer_params_t) -> Option<u64> {
    Some(to_u64(params.min_alignment).max(1)).filter(|alignment| alignment.is_power_of_two())
}

/// The heap for a buffer. Compatibility queries, allocations and queued allocations all use it.
pub(crate) fn find_heap<'a>(
    properties: &'a Properties,
    params: &sys::iree_hal_buffer_params_t,
) -> Option<(usize, &'a Heap)> {
    let must_map =
        params.type_ & HOST_VISIBLE != 0 || (params.usage & MAPPING != 0 && params.usage & OPTIONAL == 0);
    let wants_host = params.type_ & HOST_LOCAL == HOST_LOCAL;
    let alignment = alignment(params)?;
    let fits = |heap: &Heap| (heap.host_visible || !must_map) && heap.alignment >= alignment;
    let mut candidates = properties.heaps.iter().enumerate().filter(|(_, heap)| fits(heap));
    let first = candidates.next()?;
    if wants_host && first.1.device_local {
        return Some(candidates.find(|(_, heap)| !heap.device_local).unwrap_or(first));
    }
    Some(first)
}

/// The heap for a buffer, and the buffer's actual parameters.
pub(crate) fn place(
    properties: &Properties,
    params: &sys::iree_hal_buffer_params_t,
) -> Result<(usize, sys::iree_hal_buffer_params_t)> {
    match find_heap(properties, params) {
        Some((index, heap)) => Ok((index, granted(heap, params))),
        None => Err(misplaced(properties, params)),
    }
}

/// The request to a backend for a buffer of a heap.
pub(crate) fn request(heap: usize, params: &sys::iree_hal_buffer_params_t, length: u64) -> MemoryRequest {
    let purpose = if params.usage & EXPORT != 0 {
        Purpose::Export
    } else if params.usage & STORAGE != 0 {
        Purpose::Dispatch
    } else {
        Purpose::Transfer
    };
    MemoryRequest { heap, length, alignment: to_u64(params.min_alignment).max(1), purpose }
}

/// The failure if no heap fits.
#[cold]
fn misplaced(properties: &Properties, params: &sys::iree_hal_buffer_params_t) -> Failure {
    let Some(alignment) = alignment(params) else { return not_power_of_two(params) };
    let most = properties.heaps.iter().map(|heap| heap.alignment).max().unwrap_or(1);
    invalid(if alignment > most {
        format!("no memory of this device is aligned to {alignment}; the most is {most}")
    } else {
        "no memory of this device fits the buffer's parameters: the host cannot map it, or its alignment is \
         smaller"
            .to_owned()
    })
}

#[cold]
pub(crate) fn not_power_of_two(params: &sys::iree_hal_buffer_params_t) -> Failure {
    invalid(format!("an alignment is a power of two, not {}", params.min_alignment))
}

/// The actual parameters of a buffer in a heap.
pub(crate) fn granted(heap: &Heap, params: &sys::iree_hal_buffer_params_t) -> sys::iree_hal_buffer_params_t {
    let mut params = *params;
    params.type_ = (params.type_ & !OPTIMAL) | DEVICE_VISIBLE;
    params.usage |= TRANSFER;
    if !heap.device_local {
        // The program asks for device-local memory that the host can map: here these are two heaps, and only one
        // can be mapped. The device uses it in place.
        params.type_ = (params.type_ & !(DEVICE_LOCAL & !DEVICE_VISIBLE)) | HOST_LOCAL;
    }
    if heap.host_visible {
        params.type_ |= HOST_VISIBLE;
        params.usage |= (sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED
            | sys::IREE_HAL_BUFFER_USAGE_MAPPING_PERSISTENT
            | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM) as Usage;
    } else {
        // Mapping was optional, and this heap has none.
        params.usage &= !MAPPING;
    }
    if heap.coherent {
        params.type_ |= HOST_COHERENT;
    }
    if params.access == 0 {
        params.access = ACCESS_ALL;
    }
    params
}

/// The heap for imported host memory, and the alignment that it needs: a heap of host memory, or of memory that
/// host and device share. Host memory never becomes a card's own.
pub(crate) fn find_import_heap<'a>(
    properties: &'a Properties,
    params: &sys::iree_hal_buffer_params_t,
) -> Option<(&'a Heap, u64)> {
    alignment(params)?;
    let taking = || properties.heaps.iter().filter_map(|heap| Some((heap, heap.import_alignment?)));
    let taken = taking().find(|(heap, _)| !heap.device_local).or_else(|| taking().next())?;
    (taken.0.device_local || !wants_device(params)).then_some(taken)
}

/// The heap for another device's memory, which the host cannot map either: that of the device's own memory, if a
/// program asks for it.
pub(crate) fn find_device_heap<'a>(
    properties: &'a Properties,
    params: &sys::iree_hal_buffer_params_t,
) -> Option<&'a Heap> {
    let (_, heap) = find_heap(properties, params)?;
    (wants_device(params) && heap.device_local && !heap.host_visible).then_some(heap)
}

/// True if a program asks for the device's own memory.
pub(crate) fn wants_device(params: &sys::iree_hal_buffer_params_t) -> bool {
    params.type_ & DEVICE_LOCAL == DEVICE_LOCAL
}

/// Checks the alignment of an import. Compiled programs rely on it: an unaligned vector load is a fault.
pub(crate) fn check_alignment(least: u64, params: &sys::iree_hal_buffer_params_t, address: u64) -> Result {
    let least = if params.access & ACCESS_UNALIGNED != 0 { 1 } else { least };
    let alignment = least.max(to_u64(params.min_alignment));
    if address.is_multiple_of(alignment) {
        return Ok(());
    }
    let message = format!(
        "host memory at {address:#x} does not begin at a multiple of {alignment}; align it, copy it into an \
         allocated buffer, or allow IREE_HAL_MEMORY_ACCESS_UNALIGNED if no dispatch uses it"
    );
    Err(Failure::new(Code::OutOfRange, message))
}

/// The parameters of staging buffers: the host can map them, and the device copy from and to them.
pub(crate) fn staging() -> sys::iree_hal_buffer_params_t {
    let mapping =
        sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM;
    sys::iree_hal_buffer_params_t {
        type_: HOST_LOCAL | DEVICE_VISIBLE,
        usage: TRANSFER | mapping as Usage,
        ..Default::default()
    }
}
