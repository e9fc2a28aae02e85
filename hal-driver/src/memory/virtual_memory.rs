// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Virtual memory: IREE's slots for reserved addresses and for the memory behind them.
//!
//! A device has it if it accesses memory of the host by its addresses, at the time of each access
//! ([`Device::follows_mappings`]). Addresses then are the process's own, imported once, and every queue sees the same
//! memory and protection there. Other devices answer `UNAVAILABLE`, as IREE requires.

use crate::ffi::constants::ACCESS_ALL;
use crate::ffi::object::{
    Borrowed, HostAllocator, Out, Retained, allocate, free, required, to_device_size, to_u64,
};
use crate::ffi::status::{Result, guard, guard_or, invalid};
use crate::memory::allocator::{Allocator, Memory};
use crate::memory::backing::AnyMemory;
use crate::memory::buffer::{Buffer, BufferSpec};
use crate::memory::heap::{
    DISPATCH, OPTIMAL, TRANSFER, alignment, find_import_heap, granted, memory_type, not_power_of_two,
    wants_device,
};
use crate::memory::virtual_addresses::{PhysicalMemory, Protection, VirtualAddresses};
use hal_backend::{Device, Heap};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use rustix::mm::Advice;
use std::marker::PhantomData;
use std::sync::Arc;

/// The recommended unit of allocations.
const RECOMMENDED: usize = 64 << 10;

/// Physical memory, as C sees it.
struct Physical {
    allocator: HostAllocator,
    /// The device's address, to compare with.
    device: *const (),
    memory: Arc<PhysicalMemory>,
}

impl<D: Device> Memory<D> {
    /// The heap of virtual memory.
    fn virtual_heap(&self) -> Option<&Heap> {
        let any = sys::iree_hal_buffer_params_t::default();
        find_import_heap(&self.properties, &any)
            .map(|(heap, _)| heap)
            .filter(|_| self.device.follows_mappings())
    }

    fn required_heap(&self) -> Result<&Heap> {
        self.virtual_heap().ok_or_else(|| {
            let message = "virtual memory is not supported by this device, which keeps the pages of memory that it \
                           works on; allocate buffers instead";
            Failure::new(Code::Unavailable, message)
        })
    }

    /// The heap of virtual memory, if it has memory with these parameters.
    fn heap_for(&self, params: &sys::iree_hal_buffer_params_t) -> Result<&Heap> {
        let heap = self.required_heap()?;
        let page = VirtualAddresses::page();
        let alignment = alignment(params).ok_or_else(|| not_power_of_two(params))?;
        if alignment > page as u64 {
            return Err(invalid(format!("virtual memory is aligned to {page} bytes, not to {alignment}")));
        }
        if wants_device(params) && !heap.device_local && params.type_ & OPTIMAL == 0 {
            let message = "this device has virtual memory of the host alone; ask for it without DEVICE_LOCAL, or with \
                           OPTIMAL";
            return Err(Failure::new(Code::Unavailable, message));
        }
        Ok(heap)
    }

    fn reserve(
        &self,
        queue_affinity: sys::iree_hal_queue_affinity_t,
        size: usize,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let heap = self.required_heap()?;
        whole_pages(size)?;
        let addresses = VirtualAddresses::reserve(size)?;
        let memory = self.device.import(addresses.range())?;
        let backing = AnyMemory::reserved(self.backing(memory, None, None), addresses);
        let params = sys::iree_hal_buffer_params_t {
            type_: memory_type(heap),
            access: ACCESS_ALL,
            usage: TRANSFER | DISPATCH,
            queue_affinity,
            ..Default::default()
        };
        let params = granted(heap, &params);
        let length = to_u64(size);
        let spec =
            BufferSpec { placement: self.placement(&params), params, offset: 0, length, release: None };
        Buffer::create(self.allocator, backing, spec)
    }

    fn allocate_physical(
        &self,
        params: &sys::iree_hal_buffer_params_t,
        size: usize,
    ) -> Result<Arc<PhysicalMemory>> {
        let heap = self.heap_for(params)?;
        whole_pages(size)?;
        let limit = heap.max_allocation;
        if to_u64(size) > limit {
            let message =
                format!("{size} bytes are more than one allocation can have on this device: {limit}");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        PhysicalMemory::create(size, self.statistics.of(heap).add(to_u64(size)))
    }

    /// The addresses of a buffer that this device has reserved.
    ///
    /// # Safety
    ///
    /// The buffer is alive for `'a`, or null, which is refused.
    unsafe fn addresses<'a>(&self, buffer: *mut sys::iree_hal_buffer_t) -> Result<&'a VirtualAddresses> {
        self.required_heap()?;
        // SAFETY: the buffer is alive for `'a` or null, as the function asks.
        let buffer = unsafe { Borrowed::required(buffer, "a reservation is missing")? };
        let own = Buffer::recognise(buffer).filter(|buffer| buffer.backing.of(&self.device).is_some());
        own.and_then(|buffer| buffer.backing.addresses()).ok_or_else(|| {
            invalid(
                "the buffer is no reservation of this device; iree_hal_allocator_virtual_memory_reserve makes one",
            )
        })
    }

    /// Physical memory of this device.
    ///
    /// # Safety
    ///
    /// The memory is alive for `'a`, or null, which is refused.
    unsafe fn physical<'a>(&self, physical: *mut sys::iree_hal_physical_memory_t) -> Result<&'a Physical> {
        self.required_heap()?;
        // SAFETY: C has physical memory from this driver alone, alive for `'a`, or null.
        let physical =
            unsafe { required(physical.cast::<Physical>().cast_const(), "physical memory is missing")? };
        if std::ptr::eq(physical.device, Arc::as_ptr(&self.device).cast()) {
            return Ok(physical);
        }
        Err(invalid("the physical memory is another device's"))
    }
}

fn whole_pages(size: usize) -> Result {
    let page = VirtualAddresses::page();
    if size > 0 && size.is_multiple_of(page) {
        return Ok(());
    }
    Err(invalid(format!("{size} bytes are not whole pages of {page} bytes")))
}

fn protection(bits: sys::iree_hal_memory_protection_t) -> Result<Protection> {
    const READ: u64 = sys::IREE_HAL_MEMORY_PROTECTION_READ as u64;
    const WRITE: u64 = sys::IREE_HAL_MEMORY_PROTECTION_WRITE as u64;
    const BOTH: u64 = READ | WRITE;
    match bits {
        0 => Ok(Protection::None),
        READ => Ok(Protection::Read),
        // What a processor writes it can read.
        WRITE | BOTH => Ok(Protection::ReadWrite),
        other => Err(invalid(format!("memory has no protection {other:#x}"))),
    }
}

/// The slots of an allocator's table.
pub(super) struct Slots<D>(PhantomData<D>);

impl<D: Device> Slots<D> {
    pub(super) unsafe extern "C" fn supports(allocator: *mut sys::iree_hal_allocator_t) -> bool {
        // SAFETY: C passes a live allocator of ours.
        guard_or(false, || unsafe { Allocator::<D>::of(allocator) }.virtual_heap().is_some())
    }

    pub(super) unsafe extern "C" fn query_granularity(
        allocator: *mut sys::iree_hal_allocator_t,
        params: sys::iree_hal_buffer_params_t,
        minimum: *mut sys::iree_device_size_t,
        recommended: *mut sys::iree_device_size_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours, and where the answers go.
            unsafe {
                Allocator::<D>::of(allocator).heap_for(&params)?;
                let page = VirtualAddresses::page();
                Out::new(minimum).set(to_device_size(page as u64));
                Out::new(recommended).set(to_device_size(RECOMMENDED.max(page) as u64));
            }
            Ok(())
        })
    }

    pub(super) unsafe extern "C" fn reserve(
        allocator: *mut sys::iree_hal_allocator_t,
        queue_affinity: sys::iree_hal_queue_affinity_t,
        size: sys::iree_device_size_t,
        out: *mut *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours, and where the buffer goes.
            unsafe {
                let buffer = Allocator::<D>::of(allocator).reserve(queue_affinity, size)?;
                Out::new(out).set(buffer.into_raw());
            }
            Ok(())
        })
    }

    pub(super) unsafe extern "C" fn release(
        allocator: *mut sys::iree_hal_allocator_t,
        buffer: *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours, and a live buffer, whose reference it gives up on success.
            unsafe {
                if Allocator::<D>::of(allocator).addresses(buffer)?.is_mapped() {
                    let message = "the reservation still has memory; unmap all of it before the release";
                    return Err(Failure::new(Code::FailedPrecondition, message));
                }
                sys::iree_hal_buffer_release(buffer);
            }
            Ok(())
        })
    }

    pub(super) unsafe extern "C" fn physical_allocate(
        allocator: *mut sys::iree_hal_allocator_t,
        params: sys::iree_hal_buffer_params_t,
        size: sys::iree_device_size_t,
        host_allocator: sys::iree_allocator_t,
        out: *mut *mut sys::iree_hal_physical_memory_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours, a host allocator that outlives the memory, and where that
            // goes.
            unsafe {
                let device = Allocator::<D>::of(allocator);
                let memory = device.allocate_physical(&params, size)?;
                let allocator = HostAllocator::new(host_allocator);
                let physical = Physical { allocator, device: Arc::as_ptr(&device.device).cast(), memory };
                Out::new(out).set(allocate(allocator, physical)?.as_ptr().cast());
            }
            Ok(())
        })
    }

    pub(super) unsafe extern "C" fn physical_free(
        allocator: *mut sys::iree_hal_allocator_t,
        physical: *mut sys::iree_hal_physical_memory_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours and live memory, which it gives up on success.
            unsafe {
                let known = Allocator::<D>::of(allocator).physical(physical)?;
                if Arc::strong_count(&known.memory) > 1 {
                    let message = "the physical memory is still mapped; unmap it before freeing it";
                    return Err(Failure::new(Code::FailedPrecondition, message));
                }
                free(known.allocator, physical.cast::<Physical>());
            }
            Ok(())
        })
    }

    pub(super) unsafe extern "C" fn map(
        allocator: *mut sys::iree_hal_allocator_t,
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        physical: *mut sys::iree_hal_physical_memory_t,
        from: sys::iree_device_size_t,
        size: sys::iree_device_size_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours, a live buffer and live memory.
            unsafe {
                let device = Allocator::<D>::of(allocator);
                let physical = device.physical(physical)?;
                device.addresses(buffer)?.map(offset, &physical.memory, from, size)
            }
        })
    }

    pub(super) unsafe extern "C" fn unmap(
        allocator: *mut sys::iree_hal_allocator_t,
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        size: sys::iree_device_size_t,
    ) -> sys::iree_status_t {
        // SAFETY: C passes a live allocator of ours and a live buffer.
        guard(|| unsafe { Allocator::<D>::of(allocator).addresses(buffer)?.unmap(offset, size) })
    }

    pub(super) unsafe extern "C" fn protect(
        allocator: *mut sys::iree_hal_allocator_t,
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        size: sys::iree_device_size_t,
        _queue_affinity: sys::iree_hal_queue_affinity_t,
        bits: sys::iree_hal_memory_protection_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours and a live buffer.
            let addresses = unsafe { Allocator::<D>::of(allocator).addresses(buffer)? };
            addresses.protect(offset, size, protection(bits)?)
        })
    }

    pub(super) unsafe extern "C" fn advise(
        allocator: *mut sys::iree_hal_allocator_t,
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        size: sys::iree_device_size_t,
        _queue_affinity: sys::iree_hal_queue_affinity_t,
        bits: sys::iree_hal_memory_advice_t,
    ) -> sys::iree_status_t {
        const WILL_NEED: u64 = sys::IREE_HAL_MEMORY_ADVICE_WILL_NEED as u64;
        const DONT_NEED: u64 = sys::IREE_HAL_MEMORY_ADVICE_DONT_NEED as u64;
        guard(|| {
            // SAFETY: C passes a live allocator of ours and a live buffer.
            let addresses = unsafe { Allocator::<D>::of(allocator).addresses(buffer)? };
            let advice = match bits {
                WILL_NEED => Advice::WillNeed,
                DONT_NEED => Advice::LinuxDontNeed,
                // Hints that are not known are ignored.
                _ => Advice::Normal,
            };
            addresses.advise(offset, size, advice)
        })
    }
}
