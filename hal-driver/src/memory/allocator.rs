// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device allocator: synchronous buffers of the device's heaps, and their export.

use crate::ffi::constants::ACCESS_ANY;
use crate::ffi::object::{
    Header, HostAllocator, Out, Retained, free, required, resource, to_device_size, to_u64,
};
use crate::ffi::status::{OK, Result, guard, guard_or, invalid};
use crate::memory::backing::{DeviceMemory, Parent};
use crate::memory::buffer::{Buffer, BufferSpec};
use crate::memory::buffer_range::BufferRange;
use crate::memory::heap::{
    DEVICE_VISIBLE, DISPATCH, EXPORT, TRANSFER, find_heap, find_import_heap, granted, memory_type, place,
    request, usage, wants_device,
};
use crate::memory::import::foreign_kind;
use crate::memory::shared_memory::SharedMemory;
use crate::memory::statistics::{CountedBytes, Statistics};
use crate::memory::virtual_memory::Slots;
use hal_backend::{Device, Heap, MemoryRequest, Properties};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use std::marker::PhantomData;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

/// The memory of a device, shared by all of its buffers, the allocator and the pools.
pub(crate) struct Memory<D: Device> {
    pub(crate) device: Arc<D>,
    pub(crate) properties: Arc<Properties>,
    pub(crate) allocator: HostAllocator,
    pub(crate) statistics: Statistics,
    /// The C device, while it exists.
    pub(crate) parent: Arc<Parent>,
}

impl<D: Device> Memory<D> {
    pub(crate) fn new(device: Arc<D>, properties: Arc<Properties>, allocator: HostAllocator) -> Arc<Self> {
        let (statistics, parent) = (Statistics::default(), Arc::default());
        Arc::new(Self { device, properties, allocator, statistics, parent })
    }

    /// The C device, to compare with or to name.
    pub(crate) fn parent(&self) -> *mut sys::iree_hal_device_t {
        self.parent.address()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "numbers are found among the device's heaps, by `place` or by counting them"
    )]
    pub(crate) fn heap(&self, number: usize) -> &Heap {
        &self.properties.heaps[number]
    }

    /// The placement of a buffer with these parameters.
    pub(crate) fn placement(
        &self,
        params: &sys::iree_hal_buffer_params_t,
    ) -> sys::iree_hal_buffer_placement_t {
        let queue_affinity = if params.queue_affinity == 0 { u64::MAX } else { params.queue_affinity };
        sys::iree_hal_buffer_placement_t { device: self.parent(), queue_affinity, ..Default::default() }
    }

    /// Allocates from a heap.
    pub(crate) fn allocate(&self, request: MemoryRequest) -> Result<Arc<DeviceMemory<D>>> {
        let MemoryRequest { heap, length, .. } = request;
        let kind = self.heap(heap);
        let limit = kind.max_allocation;
        if length > limit {
            let message =
                format!("{length} bytes are more than one allocation can have on this device: {limit}");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let memory = self.device.allocate(&MemoryRequest { length: length.max(1), ..request })?;
        let counted = self.statistics.of(kind).add(length);
        Ok(self.backing(memory, None, Some(counted)))
    }

    /// Allocates memory that can be exported. A heap that imports host memory gets shared memory; for others the
    /// backend exports.
    fn allocate_for_export(&self, request: MemoryRequest) -> Result<Arc<DeviceMemory<D>>> {
        let MemoryRequest { heap, length, .. } = request;
        let takes_shared = |heap: &Heap| {
            heap.host_visible && heap.import_alignment.is_some() && length <= heap.max_allocation
        };
        let kind = self.heap(heap);
        if !takes_shared(kind) {
            return self.allocate(request);
        }
        let shared = SharedMemory::create(length)?;
        let memory = self.device.import(shared.range(None))?;
        Ok(self.backing(memory, Some(shared), Some(self.statistics.of(kind).add(length))))
    }

    pub(super) fn backing(
        &self,
        memory: D::Memory,
        shared: Option<Arc<SharedMemory>>,
        counted: Option<CountedBytes>,
    ) -> Arc<DeviceMemory<D>> {
        DeviceMemory::new(self.device.clone(), self.parent.clone(), memory, shared, counted)
    }

    /// A buffer over memory of the first heap that belongs to an executable.
    pub(crate) fn wrap_global(
        &self,
        memory: D::Memory,
        length: u64,
        queue_affinity: sys::iree_hal_queue_affinity_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let params = sys::iree_hal_buffer_params_t { usage: DISPATCH, queue_affinity, ..Default::default() };
        let params = granted(self.heap(0), &params);
        let params = sys::iree_hal_buffer_params_t { type_: memory_type(self.heap(0)), ..params };
        let backing = self.backing(memory, None, None);
        let spec =
            BufferSpec { placement: self.placement(&params), params, offset: 0, length, release: None };
        Buffer::create(self.allocator, backing.into(), spec)
    }

    /// Creates a buffer with its own allocation.
    pub(crate) fn create(
        &self,
        params: &sys::iree_hal_buffer_params_t,
        length: u64,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let (heap, params) = place(&self.properties, params)?;
        let request = request(heap, &params, length);
        let backing = if params.usage & EXPORT != 0 {
            self.allocate_for_export(request)?
        } else {
            self.allocate(request)?
        };
        let spec =
            BufferSpec { placement: self.placement(&params), params, offset: 0, length, release: None };
        Buffer::create(self.allocator, backing.into(), spec)
    }
}

#[repr(C)]
pub(crate) struct Allocator<D: Device> {
    resource: Header,
    memory: Arc<Memory<D>>,
}

impl<D: Device> Allocator<D> {
    /// Creates an allocator. The caller owns it.
    pub(crate) fn create(memory: Arc<Memory<D>>) -> Result<Retained<sys::iree_hal_allocator_t>> {
        let allocator = memory.allocator;
        let object = Self { resource: resource(const { &Table::<D>::VTABLE }), memory };
        let object = crate::ffi::object::allocate(allocator, object)?;
        // SAFETY: fresh, with one reference.
        unsafe { Retained::adopt(object.as_ptr().cast()) }
            .ok_or_else(|| invalid("an allocator is never null"))
    }

    /// # Safety
    ///
    /// The allocator is one of ours and alive for `'a`.
    pub(super) unsafe fn of<'a>(allocator: *mut sys::iree_hal_allocator_t) -> &'a Memory<D> {
        // SAFETY: ours and alive, as the caller promises.
        unsafe { &(*allocator.cast::<Self>()).memory }
    }
}

struct Table<D>(PhantomData<D>);

impl<D: Device> Table<D> {
    const VTABLE: sys::iree_hal_allocator_vtable_t = sys::iree_hal_allocator_vtable_t {
        destroy: Some(Self::destroy),
        host_allocator: Some(Self::host_allocator),
        trim: Some(Self::trim),
        query_statistics: Some(Self::query_statistics),
        query_memory_heaps: Some(Self::query_memory_heaps),
        query_buffer_compatibility: Some(Self::query_buffer_compatibility),
        allocate_buffer: Some(Self::allocate_buffer),
        deallocate_buffer: Some(Self::deallocate_buffer),
        import_buffer: Some(Self::import_buffer),
        export_buffer: Some(Self::export_buffer),
        supports_virtual_memory: Some(Slots::<D>::supports),
        virtual_memory_query_granularity: Some(Slots::<D>::query_granularity),
        virtual_memory_reserve: Some(Slots::<D>::reserve),
        virtual_memory_release: Some(Slots::<D>::release),
        physical_memory_allocate: Some(Slots::<D>::physical_allocate),
        physical_memory_free: Some(Slots::<D>::physical_free),
        virtual_memory_map: Some(Slots::<D>::map),
        virtual_memory_unmap: Some(Slots::<D>::unmap),
        virtual_memory_protect: Some(Slots::<D>::protect),
        virtual_memory_advise: Some(Slots::<D>::advise),
    };

    unsafe extern "C" fn destroy(allocator: *mut sys::iree_hal_allocator_t) {
        guard_or((), || {
            let object = allocator.cast::<Allocator<D>>();
            // SAFETY: the last reference is gone.
            unsafe {
                let allocator = Allocator::<D>::of(allocator).allocator;
                free(allocator, object);
            }
        });
    }

    unsafe extern "C" fn host_allocator(
        allocator: *const sys::iree_hal_allocator_t,
    ) -> sys::iree_allocator_t {
        // SAFETY: C passes a live allocator of ours.
        unsafe { Allocator::<D>::of(allocator.cast_mut()).allocator.raw() }
    }

    unsafe extern "C" fn trim(allocator: *mut sys::iree_hal_allocator_t) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours.
            unsafe { Allocator::<D>::of(allocator).device.trim() };
            Ok(())
        })
    }

    unsafe extern "C" fn query_statistics(
        allocator: *mut sys::iree_hal_allocator_t,
        out: *mut sys::iree_hal_allocator_statistics_t,
    ) {
        // SAFETY: C passes a live allocator of ours and a structure to fill.
        unsafe {
            let statistics = &Allocator::<D>::of(allocator).statistics;
            let [device_bytes_peak, device_bytes_allocated, device_bytes_freed] = statistics.device.read();
            let [host_bytes_peak, host_bytes_allocated, host_bytes_freed] = statistics.host.read();
            Out::new(out).set(sys::iree_hal_allocator_statistics_t {
                host_bytes_peak,
                host_bytes_allocated,
                host_bytes_freed,
                device_bytes_peak,
                device_bytes_allocated,
                device_bytes_freed,
            });
        }
    }

    unsafe extern "C" fn query_memory_heaps(
        allocator: *mut sys::iree_hal_allocator_t,
        capacity: usize,
        heaps: *mut sys::iree_hal_allocator_memory_heap_t,
        out_count: *mut usize,
    ) -> sys::iree_status_t {
        // SAFETY: C passes a live allocator of ours, and room for as many heaps as it says.
        unsafe {
            let known = &Allocator::<D>::of(allocator).properties.heaps;
            Out::new(out_count).set(known.len());
            let room = if heaps.is_null() { 0 } else { capacity };
            if room < known.len() {
                // Callers that only ask for the count drop the status: it is a bare code, which owns nothing.
                return std::ptr::without_provenance_mut(sys::IREE_STATUS_OUT_OF_RANGE as usize);
            }
            for (at, heap) in known.iter().enumerate() {
                heaps.add(at).write(sys::iree_hal_allocator_memory_heap_t {
                    type_: memory_type(heap),
                    allowed_usage: usage(heap),
                    max_allocation_size: to_device_size(heap.max_allocation),
                    min_alignment: to_device_size(heap.alignment),
                });
            }
        }
        OK
    }

    unsafe extern "C" fn query_buffer_compatibility(
        allocator: *mut sys::iree_hal_allocator_t,
        params: *mut sys::iree_hal_buffer_params_t,
        allocation_size: *mut sys::iree_device_size_t,
    ) -> sys::iree_hal_buffer_compatibility_t {
        guard_or(0, || {
            // SAFETY: C passes a live allocator of ours and parameters to adjust.
            let (memory, params, size) =
                unsafe { (Allocator::<D>::of(allocator), &mut *params, *allocation_size) };
            // IREE calls this for each buffer of each command that it validates.
            let (own_number, own) = find_heap(&memory.properties, params).unzip();
            let imported = find_import_heap(&memory.properties, params);
            let Some(heap) = own.or(imported.map(|(heap, _)| heap)) else { return 0 };
            let mut granted = granted(heap, params);
            let mut bits = 0;
            if own.is_some_and(|heap| to_u64(size) <= heap.max_allocation) {
                bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_ALLOCATABLE;
            }
            if imported.is_some() {
                bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_IMPORTABLE;
            }
            // The device reads the host's memory far slower than its own: IREE then copies instead of mapping.
            if !heap.device_local && wants_device(params) {
                bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_LOW_PERFORMANCE;
            }
            let gives_out = own_number.is_some_and(|number| memory.device.exports(number));
            if heap.host_visible || (gives_out && params.usage & EXPORT != 0) {
                bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_EXPORTABLE;
            }
            if params.type_ & DEVICE_VISIBLE != 0 {
                if params.usage & TRANSFER != 0 {
                    bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_QUEUE_TRANSFER;
                }
                if params.usage & DISPATCH != 0 {
                    bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_QUEUE_DISPATCH;
                }
            }
            if let Some((_, alignment)) = imported {
                // A program that imports memory learns the alignment that it needs. Allocations of the device are
                // aligned anyway, and a program that reused this value could not ask another device for the same.
                granted.min_alignment = granted.min_alignment.max(to_device_size(alignment));
            }
            *params = granted;
            bits as sys::iree_hal_buffer_compatibility_t
        })
    }

    unsafe extern "C" fn allocate_buffer(
        allocator: *mut sys::iree_hal_allocator_t,
        params: *const sys::iree_hal_buffer_params_t,
        allocation_size: sys::iree_device_size_t,
        out_buffer: *mut *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours, parameters, and where the buffer goes.
            unsafe {
                let buffer = Allocator::<D>::of(allocator).create(&*params, to_u64(allocation_size))?;
                Out::new(out_buffer).set(buffer.into_raw());
            }
            Ok(())
        })
    }

    unsafe extern "C" fn deallocate_buffer(
        _allocator: *mut sys::iree_hal_allocator_t,
        buffer: *mut sys::iree_hal_buffer_t,
    ) {
        // SAFETY: C gives the last reference up.
        unsafe { sys::iree_hal_buffer_destroy(buffer) };
    }

    unsafe extern "C" fn import_buffer(
        allocator: *mut sys::iree_hal_allocator_t,
        params: *const sys::iree_hal_buffer_params_t,
        external: *mut sys::iree_hal_external_buffer_t,
        release: sys::iree_hal_buffer_release_callback_t,
        out_buffer: *mut *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live allocator of ours, parameters, and where the buffer goes.
            unsafe {
                let external = required(external, "an import needs memory of the program's")?;
                let buffer = Allocator::<D>::of(allocator).import(&*params, external, release)?;
                Out::new(out_buffer).set(buffer.into_raw());
            }
            Ok(())
        })
    }

    unsafe extern "C" fn export_buffer(
        _allocator: *mut sys::iree_hal_allocator_t,
        buffer: *mut sys::iree_hal_buffer_t,
        requested: sys::iree_hal_external_buffer_type_t,
        flags: sys::iree_hal_external_buffer_flags_t,
        out: *mut sys::iree_hal_external_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live buffer.
            let range = unsafe { BufferRange::retain(buffer, 0, sys::iree_device_size_t::MAX)? };
            let mut external = sys::iree_hal_external_buffer_t {
                type_: requested,
                flags,
                size: to_device_size(range.length),
                ..Default::default()
            };
            match requested {
                sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION => {
                    if !range.is_host_visible() {
                        let message = "the host cannot map the buffer's memory, so there is no address to \
                                       export; copy it into a buffer that is HOST_VISIBLE";
                        return Err(Failure::new(Code::Unavailable, message));
                    }
                    external.handle.host_allocation.ptr = range.map(ACCESS_ANY)?.address().cast();
                }
                sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD => {
                    external.handle.opaque_fd.fd = range.descriptor()?.into_raw_fd();
                }
                sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION => {
                    external.handle.device_allocation.ptr = range.address()?;
                }
                other => {
                    let kind = foreign_kind(other);
                    let message = format!(
                        "buffers are exported as host allocations, device pointers or file descriptors, not as {kind}"
                    );
                    return Err(Failure::new(Code::Unavailable, message));
                }
            }
            // SAFETY: C passes where the result goes.
            unsafe { Out::new(out).set(external) };
            Ok(())
        })
    }
}
