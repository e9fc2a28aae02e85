// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device allocator: synchronous buffers of the device's heaps, imports and exports.

use crate::buffer::{Buffer, BufferSpec, DeviceMemory, Release, Slice};
use crate::constants::{ACCESS_ALL, ACCESS_ANY, ACCESS_UNALIGNED};
use crate::external::SharedMemory;
use crate::object::{Header, HostAllocator, Out, Retained, free, narrow, required, resource, wide};
use crate::status::{OK, Result, guard, guard_or, invalid, unavailable};
use hal_backend::{Device, Heap, HostRange, MemoryRequest, Properties, Purpose};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::Mutex;
use std::any::Any;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

type MemoryType = sys::iree_hal_memory_type_t;
type Usage = sys::iree_hal_buffer_usage_t;

const DEVICE_VISIBLE: MemoryType = sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE as MemoryType;
const DEVICE_LOCAL: MemoryType = sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL as MemoryType;
pub(crate) const HOST_VISIBLE: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE as MemoryType;
const HOST_COHERENT: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_COHERENT as MemoryType;
const HOST_CACHED: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_CACHED as MemoryType;
const OPTIMAL: MemoryType = sys::IREE_HAL_MEMORY_TYPE_OPTIMAL as MemoryType;
const HOST_LOCAL: MemoryType = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL as MemoryType;

const TRANSFER: Usage = sys::IREE_HAL_BUFFER_USAGE_TRANSFER as Usage;
const DISPATCH: Usage = sys::IREE_HAL_BUFFER_USAGE_DISPATCH as Usage;
/// What dispatches work on, rather than only get their workgroups from.
const STORAGE: Usage = (sys::IREE_HAL_BUFFER_USAGE_DISPATCH_UNIFORM_READ
    | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE
    | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_IMAGE) as Usage;
const SHARING: Usage = (sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT
    | sys::IREE_HAL_BUFFER_USAGE_SHARING_REPLICATE
    | sys::IREE_HAL_BUFFER_USAGE_SHARING_CONCURRENT
    | sys::IREE_HAL_BUFFER_USAGE_SHARING_IMMUTABLE) as Usage;
const EXPORT: Usage = sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT as Usage;
const MAPPING: Usage = (sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_PERSISTENT
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_OPTIONAL
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM
    | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_SEQUENTIAL_WRITE) as Usage;

const OPTIONAL: Usage = sys::IREE_HAL_BUFFER_USAGE_MAPPING_OPTIONAL as Usage;

/// The type of a heap's memory in IREE's terms.
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

/// What a heap's buffers can be used for.
pub(crate) fn usage(heap: &Heap) -> Usage {
    TRANSFER | DISPATCH | SHARING | if heap.host_visible { MAPPING } else { 0 }
}

/// What a buffer is to begin on; nothing, if there is no such alignment.
fn alignment(params: &sys::iree_hal_buffer_params_t) -> Option<u64> {
    Some(wide(params.min_alignment).max(1)).filter(|alignment| alignment.is_power_of_two())
}

/// The heap for a buffer. Whoever is told that something can be allocated, allocates it, or queues its allocation asks here.
fn find_heap<'a>(
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

/// The heap for a buffer, and the parameters that the buffer will really have.
pub(crate) fn place(
    properties: &Properties,
    params: &sys::iree_hal_buffer_params_t,
) -> Result<(usize, sys::iree_hal_buffer_params_t)> {
    match find_heap(properties, params) {
        Some((index, heap)) => Ok((index, granted(heap, params))),
        None => Err(misplaced(properties, params)),
    }
}

/// What a backend is asked for a buffer of a heap with.
fn request(heap: usize, params: &sys::iree_hal_buffer_params_t, length: u64) -> MemoryRequest {
    let purpose = if params.usage & STORAGE != 0 { Purpose::Dispatch } else { Purpose::Transfer };
    MemoryRequest { heap, length, alignment: wide(params.min_alignment).max(1), purpose }
}

/// Why no heap fits.
#[cold]
fn misplaced(properties: &Properties, params: &sys::iree_hal_buffer_params_t) -> Failure {
    let Some(alignment) = alignment(params) else { return crooked(params) };
    let most = properties.heaps.iter().map(|heap| heap.alignment).max().unwrap_or(1);
    invalid(if alignment > most {
        format!("no memory of this device is aligned to {alignment}, but to {most} at most")
    } else {
        "no memory of this device is what the buffer asks for: the host cannot map it, or it is aligned to less"
            .to_owned()
    })
}

#[cold]
fn crooked(params: &sys::iree_hal_buffer_params_t) -> Failure {
    invalid(format!("an alignment is a power of two, not {}", params.min_alignment))
}

/// What a buffer of a heap really has, of what was asked for and beyond.
pub(crate) fn granted(heap: &Heap, params: &sys::iree_hal_buffer_params_t) -> sys::iree_hal_buffer_params_t {
    let mut params = *params;
    params.type_ = (params.type_ & !OPTIMAL) | DEVICE_VISIBLE;
    params.usage |= TRANSFER;
    if !heap.device_local {
        // Asked for as the device's own, and visible to the host: here these are two kinds of memory, and only one can be
        // mapped. The device uses it where it is.
        params.type_ = (params.type_ & !(DEVICE_LOCAL & !DEVICE_VISIBLE)) | HOST_LOCAL;
    }
    if heap.host_visible {
        params.type_ |= HOST_VISIBLE;
        params.usage |= (sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED
            | sys::IREE_HAL_BUFFER_USAGE_MAPPING_PERSISTENT
            | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM) as Usage;
    } else {
        // Mapping was optional, and is not to be had.
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

/// The heap that host memory joins when it is imported, and what it has to begin on: the heap of the host's memory, or of
/// memory that both share. Host memory does not become a card's own.
fn find_import_heap<'a>(
    properties: &'a Properties,
    params: &sys::iree_hal_buffer_params_t,
) -> Option<(&'a Heap, u64)> {
    alignment(params)?;
    let taking = || properties.heaps.iter().filter_map(|heap| Some((heap, heap.import_alignment?)));
    let taken = taking().find(|(heap, _)| !heap.device_local).or_else(|| taking().next())?;
    let wants_device = params.type_ & DEVICE_LOCAL == DEVICE_LOCAL;
    (taken.0.device_local || !wants_device).then_some(taken)
}

/// Whether an import begins where its heap asks it to. Programs are compiled for that: a vector load from elsewhere is a
/// fault.
fn check_alignment(least: u64, params: &sys::iree_hal_buffer_params_t, address: u64) -> Result {
    let least = if params.access & ACCESS_UNALIGNED != 0 { 1 } else { least };
    let alignment = least.max(wide(params.min_alignment));
    if address.is_multiple_of(alignment) {
        return Ok(());
    }
    let message = format!(
        "host memory at {address:#x} does not begin at a multiple of {alignment}; align it, copy it into a buffer that is \
         allocated, or allow IREE_HAL_MEMORY_ACCESS_UNALIGNED if no program is to work on it"
    );
    Err(Failure::new(Code::OutOfRange, message))
}

/// What a buffer is asked for with that bytes pass through: the host can map it, and the device copy from and to it.
pub(crate) fn staging() -> sys::iree_hal_buffer_params_t {
    let mapping =
        sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED | sys::IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM;
    sys::iree_hal_buffer_params_t {
        type_: HOST_LOCAL | DEVICE_VISIBLE,
        usage: TRANSFER | mapping as Usage,
        ..Default::default()
    }
}

/// How much is allocated of the device's memory and of the host's, for `--print_device_statistics`.
#[derive(Default)]
pub(crate) struct Statistics {
    device: Arc<Counter>,
    host: Arc<Counter>,
}

#[derive(Default)]
struct Counter {
    allocated: AtomicU64,
    freed: AtomicU64,
    peak: AtomicU64,
}

impl Counter {
    fn add(self: &Arc<Self>, bytes: u64) -> Counted {
        let allocated = self.allocated.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let live = allocated.saturating_sub(self.freed.load(Ordering::Relaxed));
        self.peak.fetch_max(live, Ordering::Relaxed);
        Counted { counter: self.clone(), bytes }
    }

    /// The peak, what was allocated and what was freed.
    fn read(&self) -> [sys::iree_device_size_t; 3] {
        [&self.peak, &self.allocated, &self.freed].map(|number| narrow(number.load(Ordering::Relaxed)))
    }
}

impl Statistics {
    fn of(&self, heap: &Heap) -> &Arc<Counter> {
        if heap.device_local { &self.device } else { &self.host }
    }
}

/// Some bytes that are counted until they are gone.
pub(crate) struct Counted {
    counter: Arc<Counter>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counter.freed.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// What buffers of a device are made with: shared by the allocator and the pools.
pub(crate) struct Memory<D: Device> {
    pub(crate) device: Arc<D>,
    pub(crate) properties: Arc<Properties>,
    pub(crate) allocator: HostAllocator,
    pub(crate) statistics: Statistics,
    /// The device for C, as long as there is one.
    pub(crate) parent: Arc<Parent>,
}

/// A device for C, for what does not keep it: buffers may outlive it.
///
/// # Invariants
///
/// What is in here is null or a device whose structure is not freed, as long as the lock is held. The device may be on its
/// way out, with no reference left.
#[derive(Default)]
pub(crate) struct Parent {
    device: AtomicPtr<sys::iree_hal_device_t>,
    lock: Mutex<()>,
}

impl Parent {
    /// The device, to compare with or to name where nobody looks at it; null if it is gone.
    pub(crate) fn address(&self) -> *mut sys::iree_hal_device_t {
        self.device.load(Ordering::Acquire)
    }

    /// A reference to the device, unless it is gone or on its way out.
    pub(crate) fn retain(&self) -> Option<Retained<sys::iree_hal_device_t>> {
        let _stays = self.lock.lock();
        let device = NonNull::new(self.address())?.as_ptr();
        // SAFETY: the structure is there, by the invariant; it begins with its count, which IREE changes by atomics. A reference
        // that was counted is ours.
        unsafe {
            let resource = device.cast::<sys::iree_hal_resource_t>();
            let count = AtomicI32::from_ptr(&raw mut (*resource).ref_count);
            let more = |count: i32| (count > 0).then_some(count + 1);
            count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
            Retained::adopt(device)
        }
    }

    /// The device exists now.
    ///
    /// # Safety
    ///
    /// It is [forgotten](Self::forget) before it is freed.
    pub(crate) unsafe fn is(&self, device: *mut sys::iree_hal_device_t) {
        self.device.store(device, Ordering::Release);
    }

    /// Keeps the device from being forgotten.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// The device has no reference any more.
    pub(crate) fn forget(&self) {
        let _nobody_looks = self.lock.lock();
        self.device.store(std::ptr::null_mut(), Ordering::Release);
    }
}

impl<D: Device> Memory<D> {
    pub(crate) fn new(device: Arc<D>, properties: Arc<Properties>, allocator: HostAllocator) -> Arc<Self> {
        let (statistics, parent) = (Statistics::default(), Arc::default());
        Arc::new(Self { device, properties, allocator, statistics, parent })
    }

    /// The device for C, to compare with or to name.
    pub(crate) fn parent(&self) -> *mut sys::iree_hal_device_t {
        self.parent.address()
    }

    /// Where a buffer is that was asked for like that.
    pub(crate) fn placement(
        &self,
        params: &sys::iree_hal_buffer_params_t,
    ) -> sys::iree_hal_buffer_placement_t {
        let queue_affinity = if params.queue_affinity == 0 { u64::MAX } else { params.queue_affinity };
        sys::iree_hal_buffer_placement_t { device: self.parent(), queue_affinity, ..Default::default() }
    }

    /// Memory of a heap.
    pub(crate) fn allocate(&self, request: MemoryRequest) -> Result<Arc<DeviceMemory<D>>> {
        let MemoryRequest { heap, length, .. } = request;
        let kind = self.properties.heaps.get(heap);
        let kind = kind.ok_or_else(|| invalid(format!("this device has no heap number {heap}")))?;
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

    /// Memory of a heap that other processes can be given a descriptor of, where the heap takes shared memory of the host's;
    /// else the backend gives descriptors out, or nobody does.
    fn allocate_for_export(&self, request: MemoryRequest) -> Result<Arc<DeviceMemory<D>>> {
        let MemoryRequest { heap, length, .. } = request;
        let takes_shared = |heap: &Heap| {
            heap.host_visible && heap.import_alignment.is_some() && length <= heap.max_allocation
        };
        let Some(kind) = self.properties.heaps.get(heap).filter(|heap| takes_shared(heap)) else {
            return self.allocate(request);
        };
        let shared = SharedMemory::create(length)?;
        let memory = self.device.import(shared.range(None))?;
        Ok(self.backing(memory, Some(shared), Some(self.statistics.of(kind).add(length))))
    }

    fn backing(
        &self,
        memory: D::Memory,
        shared: Option<Arc<SharedMemory>>,
        counted: Option<Counted>,
    ) -> Arc<DeviceMemory<D>> {
        DeviceMemory::new(self.device.clone(), self.parent.clone(), memory, shared, counted)
    }

    /// A buffer of its own memory.
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
        Buffer::create(self.allocator, backing, spec)
    }

    /// A buffer of memory that the program brings.
    ///
    /// # Safety
    ///
    /// The memory is the program's to lend until the release callback, or as long as the buffer and the work that uses it
    /// if there is none. The callback may be made once, on any thread.
    unsafe fn import(
        &self,
        params: &sys::iree_hal_buffer_params_t,
        external: &sys::iree_hal_external_buffer_t,
        release: sys::iree_hal_buffer_release_callback_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let bytes = match external.type_ {
            sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION => {
                // SAFETY: the type says which member of the union it is.
                let start: *mut u8 = unsafe { external.handle.host_allocation.ptr.cast() };
                let size = external.size;
                if start.is_null() && size > 0 {
                    return Err(invalid(format!("there are no {size} bytes of host memory at no address")));
                }
                if isize::try_from(size).is_err() || start.addr().checked_add(size).is_none() {
                    let message = format!("no memory of the host has {size} bytes from {start:p} on");
                    return Err(Failure::new(Code::OutOfRange, message));
                }
                Brought::Bytes(start)
            }
            sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD => {
                // SAFETY: the type says which member of the union it is.
                let number = unsafe { external.handle.opaque_fd.fd };
                if number < 0 {
                    return Err(invalid(format!("{number} is no file descriptor")));
                }
                // SAFETY: the program lends an open descriptor for the call.
                let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
                Brought::Shared(SharedMemory::open(descriptor, wide(external.size))?)
            }
            other => {
                let kind = foreign_kind(other);
                let message = format!(
                    "host allocations and file descriptors of memory are imported, and this is {kind}; allocate a buffer and \
                     copy into it"
                );
                return Err(Failure::new(Code::Unavailable, message));
            }
        };
        let (heap, alignment) = find_import_heap(&self.properties, params).ok_or_else(|| {
            if alignment(params).is_none() {
                return crooked(params);
            }
            let takes_any = self.properties.heaps.iter().any(|heap| heap.import_alignment.is_some());
            let message = if takes_any {
                "host memory is not this device's own and does not become it; import it without DEVICE_LOCAL, or allocate a \
                 buffer and copy into it"
            } else {
                "this device uses no host memory in place; allocate a buffer and copy into it"
            };
            Failure::new(Code::Unavailable, message)
        })?;
        // SAFETY: the callback may be made once, as the caller promises.
        let release = unsafe { Release::new(release) };
        let owner = release.clone().map(|release| release as Arc<dyn Any + Send + Sync>);
        let (range, shared) = match bytes {
            Brought::Bytes(start) => {
                check_alignment(alignment, params, start as u64)?;
                // SAFETY: the memory is lent until the callback comes, as the caller promises. As long as anybody has the range
                // the callback does not come.
                (unsafe { HostRange::from_raw(start, external.size, owner) }, None)
            }
            Brought::Shared(shared) => {
                let range = shared.range(owner);
                check_alignment(alignment, params, range.address() as u64)?;
                (range, Some(shared))
            }
        };
        let params = granted(heap, params);
        let backing = self.backing(self.device.import(range)?, shared, None);
        let spec = BufferSpec {
            placement: self.placement(&params),
            params,
            offset: 0,
            length: wide(external.size),
            release,
        };
        Buffer::create(self.allocator, backing, spec)
    }
}

/// What a program brings.
enum Brought {
    Bytes(*mut u8),
    Shared(Arc<SharedMemory>),
}

/// What a kind of external memory is that no device here takes or gives.
#[cold]
fn foreign_kind(kind: sys::iree_hal_external_buffer_type_t) -> String {
    match kind {
        sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION => "a device's pointer".to_owned(),
        sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_WIN32 => "a Win32 handle".to_owned(),
        other => format!("memory of a kind {other} that is not known"),
    }
}

/// The C object.
#[repr(C)]
pub(crate) struct Allocator<D: Device> {
    resource: Header,
    memory: Arc<Memory<D>>,
}

impl<D: Device> Allocator<D> {
    /// An allocator, owned by the caller.
    pub(crate) fn create(memory: Arc<Memory<D>>) -> Result<Retained<sys::iree_hal_allocator_t>> {
        let allocator = memory.allocator;
        let object = Self { resource: resource(const { &Table::<D>::VTABLE }), memory };
        let object = crate::object::allocate(allocator, object)?;
        // SAFETY: fresh, with one reference.
        unsafe { Retained::adopt(object.as_ptr().cast()) }
            .ok_or_else(|| invalid("an allocator is never null"))
    }

    /// # Safety
    ///
    /// The allocator is one of ours and alive for `'a`.
    unsafe fn of<'a>(allocator: *mut sys::iree_hal_allocator_t) -> &'a Memory<D> {
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
        supports_virtual_memory: Some(virtual_memory::supports),
        virtual_memory_query_granularity: Some(virtual_memory::query_granularity),
        virtual_memory_reserve: Some(virtual_memory::reserve),
        virtual_memory_release: Some(virtual_memory::release),
        physical_memory_allocate: Some(virtual_memory::physical_allocate),
        physical_memory_free: Some(virtual_memory::physical_free),
        virtual_memory_map: Some(virtual_memory::map),
        virtual_memory_unmap: Some(virtual_memory::unmap),
        virtual_memory_protect: Some(virtual_memory::protect),
        virtual_memory_advise: Some(virtual_memory::advise),
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
                // Whoever asks for the count drops what this answers: a code alone, which owns nothing.
                return std::ptr::without_provenance_mut(sys::IREE_STATUS_OUT_OF_RANGE as usize);
            }
            for (at, heap) in known.iter().enumerate() {
                heaps.add(at).write(sys::iree_hal_allocator_memory_heap_t {
                    type_: memory_type(heap),
                    allowed_usage: usage(heap),
                    max_allocation_size: narrow(heap.max_allocation),
                    min_alignment: narrow(heap.alignment),
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
            // IREE asks for each buffer of each command that it validates.
            let (own_number, own) = find_heap(&memory.properties, params).unzip();
            let imported = find_import_heap(&memory.properties, params);
            let Some(heap) = own.or(imported.map(|(heap, _)| heap)) else { return 0 };
            let mut granted = granted(heap, params);
            let mut bits = 0;
            if own.is_some_and(|heap| wide(size) <= heap.max_allocation) {
                bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_ALLOCATABLE;
            }
            if imported.is_some() {
                bits |= sys::IREE_HAL_BUFFER_COMPATIBILITY_IMPORTABLE;
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
                // A program that brings memory finds out how it has to begin. What the device allocates begins well by itself, and a program
                // that kept what it was told of that could not ask another device for the same.
                granted.min_alignment = granted.min_alignment.max(narrow(alignment));
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
                let buffer = Allocator::<D>::of(allocator).create(&*params, wide(allocation_size))?;
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
            let slice = unsafe { Slice::lent(buffer, 0, sys::iree_device_size_t::MAX)? };
            let mut external = sys::iree_hal_external_buffer_t {
                type_: requested,
                flags,
                size: narrow(slice.length),
                ..Default::default()
            };
            match requested {
                sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION => {
                    if !slice.is_host_visible() {
                        let message = "the buffer's memory is the device's alone, so there is no address to export; copy it \
                                       into a buffer that is HOST_VISIBLE";
                        return Err(Failure::new(Code::Unavailable, message));
                    }
                    external.handle.host_allocation.ptr = slice.map(ACCESS_ANY)?.address().cast();
                }
                sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD => {
                    external.handle.opaque_fd.fd = slice.descriptor()?.into_raw_fd();
                }
                other => {
                    let kind = foreign_kind(other);
                    let message = format!(
                        "buffers are exported as host allocations or file descriptors, and not as {kind}"
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

/// No device here pages its memory for IREE yet: each of these says so by name, with the code that IREE asks for.
mod virtual_memory {
    use super::*;

    fn none(what: &str) -> sys::iree_status_t {
        guard(|| Err(unavailable(what)))
    }

    pub(super) unsafe extern "C" fn supports(_: *mut sys::iree_hal_allocator_t) -> bool {
        false
    }

    pub(super) unsafe extern "C" fn query_granularity(
        _: *mut sys::iree_hal_allocator_t,
        _: sys::iree_hal_buffer_params_t,
        _: *mut sys::iree_device_size_t,
        _: *mut sys::iree_device_size_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_virtual_memory_query_granularity")
    }

    pub(super) unsafe extern "C" fn reserve(
        _: *mut sys::iree_hal_allocator_t,
        _: sys::iree_hal_queue_affinity_t,
        _: sys::iree_device_size_t,
        _: *mut *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_virtual_memory_reserve")
    }

    pub(super) unsafe extern "C" fn release(
        _: *mut sys::iree_hal_allocator_t,
        _: *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_virtual_memory_release")
    }

    pub(super) unsafe extern "C" fn physical_allocate(
        _: *mut sys::iree_hal_allocator_t,
        _: sys::iree_hal_buffer_params_t,
        _: sys::iree_device_size_t,
        _: sys::iree_allocator_t,
        _: *mut *mut sys::iree_hal_physical_memory_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_physical_memory_allocate")
    }

    pub(super) unsafe extern "C" fn physical_free(
        _: *mut sys::iree_hal_allocator_t,
        _: *mut sys::iree_hal_physical_memory_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_physical_memory_free")
    }

    pub(super) unsafe extern "C" fn map(
        _: *mut sys::iree_hal_allocator_t,
        _: *mut sys::iree_hal_buffer_t,
        _: sys::iree_device_size_t,
        _: *mut sys::iree_hal_physical_memory_t,
        _: sys::iree_device_size_t,
        _: sys::iree_device_size_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_virtual_memory_map")
    }

    pub(super) unsafe extern "C" fn unmap(
        _: *mut sys::iree_hal_allocator_t,
        _: *mut sys::iree_hal_buffer_t,
        _: sys::iree_device_size_t,
        _: sys::iree_device_size_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_virtual_memory_unmap")
    }

    pub(super) unsafe extern "C" fn protect(
        _: *mut sys::iree_hal_allocator_t,
        _: *mut sys::iree_hal_buffer_t,
        _: sys::iree_device_size_t,
        _: sys::iree_device_size_t,
        _: sys::iree_hal_queue_affinity_t,
        _: sys::iree_hal_memory_protection_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_virtual_memory_protect")
    }

    pub(super) unsafe extern "C" fn advise(
        _: *mut sys::iree_hal_allocator_t,
        _: *mut sys::iree_hal_buffer_t,
        _: sys::iree_device_size_t,
        _: sys::iree_device_size_t,
        _: sys::iree_hal_queue_affinity_t,
        _: sys::iree_hal_memory_advice_t,
    ) -> sys::iree_status_t {
        none("iree_hal_allocator_virtual_memory_advise")
    }
}
