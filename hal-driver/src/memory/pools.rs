// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Pools for stream-ordered allocation: IREE's own, over slabs of the device's memory.
//!
//! A slab provider of ours allocates from one heap; IREE's pools divide these slabs. Each heap has a sub-allocating
//! pool for buffers that fit into one of its slabs, and a pass-through pool for larger ones. A pool allocates its
//! first slab when it is created, so those of other heaps than the preferred one are created on first use.
//!
//! A stream-ordered buffer returns its memory when it is released without a deallocation, which may happen after
//! the device is gone. So such a buffer holds a reference to [`Pools`], and thereby to everything that a pool of
//! IREE's needs.

use crate::ffi::object::{Out, Retained, free, to_device_size, to_u64};
use crate::ffi::status::{Result, check, guard, guard_in_memory_or, guard_or, invalid};
use crate::memory::allocator::Memory;
use crate::memory::backing::{Backing, DeviceMemory, Parent};
use crate::memory::buffer::{Buffer, BufferSpec, ReleaseCallback};
use crate::memory::heap::{granted, memory_type, usage};
use crate::memory::reservation::Pool;
use crate::sync::frontier::Frontiers;
use crate::sync::proactor::Proactor;
use hal_backend::{Device, Heap, MemoryRequest, Purpose};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The size of a slab of the default pool, if the device has enough memory.
const SLAB: u64 = 64 << 20;

/// The slab provider, as C sees it.
#[repr(C)]
struct Provider<D: Device> {
    base: UnsafeCell<sys::iree_hal_slab_provider_t>,
    memory: Arc<Memory<D>>,
    heap: usize,
    acquired: AtomicU64,
    released: AtomicU64,
}

struct Table<D>(PhantomData<D>);

impl<D: Device> Table<D> {
    const VTABLE: sys::iree_hal_slab_provider_vtable_t = sys::iree_hal_slab_provider_vtable_t {
        destroy: Some(Self::destroy),
        acquire_slab: Some(Self::acquire_slab),
        release_slab: Some(Self::release_slab),
        wrap_buffer: Some(Self::wrap_buffer),
        prefault: Some(Self::prefault),
        trim: Some(Self::trim),
        query_stats: Some(Self::query_stats),
        query_properties: Some(Self::query_properties),
    };

    /// # Safety
    ///
    /// C passes a live provider of ours.
    unsafe fn of<'a>(provider: *const sys::iree_hal_slab_provider_t) -> &'a Provider<D> {
        // SAFETY: ours and alive, as the caller promises.
        unsafe { &*provider.cast::<Provider<D>>() }
    }

    unsafe extern "C" fn destroy(provider: *mut sys::iree_hal_slab_provider_t) {
        guard_or((), || {
            let object = provider.cast::<Provider<D>>();
            // SAFETY: the last reference is gone.
            unsafe {
                let allocator = Self::of(provider).memory.allocator;
                free(allocator, object);
            }
        });
    }

    unsafe extern "C" fn acquire_slab(
        provider: *mut sys::iree_hal_slab_provider_t,
        min_length: sys::iree_device_size_t,
        out_slab: *mut sys::iree_hal_slab_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live provider of ours, and where the slab goes.
            let (provider, out) = unsafe { (Self::of(provider), Out::new(out_slab)) };
            let alignment = provider.memory.heap(provider.heap).alignment;
            let memory = provider.memory.allocate(MemoryRequest {
                heap: provider.heap,
                length: to_u64(min_length),
                alignment,
                purpose: Purpose::Pool,
            })?;
            provider.acquired.fetch_add(1, Ordering::Relaxed);
            let view = memory.host_view();
            let handle = Box::into_raw(Box::new(memory));
            // Pools only distinguish slabs by the address.
            let base_ptr = view.map_or(handle.cast(), |view| view.address());
            out.set(sys::iree_hal_slab_t { base_ptr, length: min_length, provider_handle: handle as u64 });
            Ok(())
        })
    }

    unsafe extern "C" fn release_slab(
        provider: *mut sys::iree_hal_slab_provider_t,
        slab: *const sys::iree_hal_slab_t,
    ) {
        guard_or((), || {
            // SAFETY: C returns a slab that `acquire_slab` made, once.
            unsafe {
                Self::of(provider).released.fetch_add(1, Ordering::Relaxed);
                drop(Box::from_raw((*slab).provider_handle as *mut Arc<DeviceMemory<D>>));
            }
        });
    }

    unsafe extern "C" fn wrap_buffer(
        provider: *mut sys::iree_hal_slab_provider_t,
        slab: *const sys::iree_hal_slab_t,
        slab_offset: sys::iree_device_size_t,
        allocation_size: sys::iree_device_size_t,
        params: sys::iree_hal_buffer_params_t,
        release_callback: sys::iree_hal_buffer_release_callback_t,
        out_buffer: *mut *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live provider of ours and one of its slabs.
            let (provider, memory) =
                unsafe { (Self::of(provider), &*((*slab).provider_handle as *const Arc<DeviceMemory<D>>)) };
            let heap = provider.memory.heap(provider.heap);
            let spec = BufferSpec {
                placement: provider.memory.placement(&params),
                params: granted(heap, &params),
                offset: to_u64(slab_offset),
                length: to_u64(allocation_size),
                // SAFETY: C asks for the callback, as its interface says.
                release: unsafe { ReleaseCallback::new(release_callback) },
            };
            let buffer = Buffer::create(provider.memory.allocator, memory.clone().into(), spec)?;
            // SAFETY: C passes where the buffer goes.
            unsafe { Out::new(out_buffer).set(buffer.into_raw()) };
            Ok(())
        })
    }

    unsafe extern "C" fn prefault(_: *mut sys::iree_hal_slab_provider_t, _: *mut sys::iree_hal_slab_t) {}

    unsafe extern "C" fn trim(
        provider: *mut sys::iree_hal_slab_provider_t,
        _: sys::iree_hal_slab_provider_trim_flags_t,
    ) {
        // SAFETY: C passes a live provider of ours.
        guard_or((), || unsafe { Self::of(provider) }.memory.device.trim());
    }

    unsafe extern "C" fn query_stats(
        provider: *const sys::iree_hal_slab_provider_t,
        visited: *mut sys::iree_hal_slab_provider_visited_set_t,
        out: *mut sys::iree_hal_slab_provider_stats_t,
    ) {
        // SAFETY: C passes a live provider of ours, its set of providers, and sums to add to.
        unsafe {
            if sys::iree_hal_slab_provider_visited(visited, provider) {
                return;
            }
            (*out).total_acquired += Self::of(provider).acquired.load(Ordering::Relaxed);
            (*out).total_released += Self::of(provider).released.load(Ordering::Relaxed);
        }
    }

    unsafe extern "C" fn query_properties(
        provider: *const sys::iree_hal_slab_provider_t,
        out_memory_type: *mut sys::iree_hal_memory_type_t,
        out_usage: *mut sys::iree_hal_buffer_usage_t,
    ) {
        // SAFETY: C passes a live provider of ours, and where the answers go.
        unsafe {
            let provider = Self::of(provider);
            let heap = provider.memory.heap(provider.heap);
            Out::new(out_memory_type).set(memory_type(heap));
            Out::new(out_usage).set(usage(heap));
        }
    }
}

/// The pools of one heap.
struct HeapPools {
    provider: Retained<sys::iree_hal_slab_provider_t>,
    small: Retained<sys::iree_hal_pool_t>,
    large: Retained<sys::iree_hal_pool_t>,
    slab: u64,
}

/// The sub-allocating pools of a device, one for each heap; null until they are created.
pub(crate) struct OwnPools(Vec<AtomicPtr<sys::iree_hal_pool_t>>);

impl OwnPools {
    fn pools(&self) -> impl Iterator<Item = Pool> {
        let pools = self.0.iter().map(|pool| pool.load(Ordering::Acquire));
        // SAFETY: what is allocated from them keeps them.
        pools.filter(|pool| !pool.is_null()).map(|pool| unsafe { Pool::new(pool) })
    }

    pub(crate) fn contains(&self, pool: Pool) -> bool {
        self.pools().any(|own| own == pool)
    }

    /// True for a pool of the same kind, which the preferred heap always has.
    pub(crate) fn is_kind_of(&self, pool: Pool) -> bool {
        self.pools().next().is_some_and(|own| own.kind() == pool.kind())
    }
}

/// The pools of a device, and the backend for pools of programs.
pub(crate) struct Pools {
    heaps: Vec<OnceLock<HeapPools>>,
    /// Creates the pools of a heap.
    make: Box<dyn Fn(usize) -> Result<HeapPools> + Send + Sync>,
    own: Arc<OwnPools>,
    notification: Retained<sys::iree_async_notification_t>,
    frontiers: Arc<Frontiers>,
    /// The C device.
    parent: Arc<Parent>,
    /// Kept for the notification.
    _proactor: Arc<Proactor>,
}

impl HeapPools {
    fn new<D: Device>(
        memory: &Arc<Memory<D>>,
        number: usize,
        heap: &Heap,
        notification: &Retained<sys::iree_async_notification_t>,
        frontiers: &Arc<Frontiers>,
    ) -> Result<Self> {
        let allocator = memory.allocator;
        let provider = crate::ffi::object::allocate(
            allocator,
            Provider {
                base: UnsafeCell::default(),
                memory: memory.clone(),
                heap: number,
                acquired: AtomicU64::new(0),
                released: AtomicU64::new(0),
            },
        )?;
        let slab = SLAB.min((heap.max_allocation / 8).next_power_of_two().max(4096));
        let alignment = heap.alignment.max(16);
        // SAFETY: the provider is fresh; every object is created by IREE's own functions and adopted once. The epoch
        // query reads the frontiers, which `Pools` keeps longer than its pools.
        unsafe {
            let provider: *mut sys::iree_hal_slab_provider_t = provider.as_ptr().cast();
            sys::iree_hal_slab_provider_initialize(const { &Table::<D>::VTABLE }, provider);
            let provider = adopt(provider)?;
            let mut options = sys::iree_hal_tlsf_pool_options_t::default();
            options.tlsf_options.range_length = to_device_size(slab);
            options.tlsf_options.alignment = to_device_size(alignment);
            options.tlsf_options.frontier_capacity = 4;
            let mut small = std::ptr::null_mut();
            check(sys::iree_hal_tlsf_pool_create(
                options,
                provider.get(),
                notification.get(),
                epoch_query(frontiers),
                allocator.raw(),
                &raw mut small,
            ))?;
            let small = adopt(small)?;
            let mut large = std::ptr::null_mut();
            check(sys::iree_hal_passthrough_pool_create(
                sys::iree_hal_passthrough_pool_options_t::default(),
                provider.get(),
                notification.get(),
                allocator.raw(),
                &raw mut large,
            ))?;
            Ok(Self { provider, small, large: adopt(large)?, slab })
        }
    }
}

impl Pools {
    pub(crate) fn new<D: Device>(
        memory: &Arc<Memory<D>>,
        proactor: &Arc<Proactor>,
        frontiers: &Arc<Frontiers>,
    ) -> Result<Arc<Self>> {
        let mut notification = std::ptr::null_mut();
        let flags = sys::IREE_ASYNC_NOTIFICATION_FLAG_NONE as sys::iree_async_notification_flags_t;
        // SAFETY: `proactor` keeps the proactor alive, by its invariant; what is created is adopted once.
        let notification = unsafe {
            check(sys::iree_async_notification_create(proactor.get(), flags, &raw mut notification))?;
            adopt(notification)?
        };
        let count = memory.properties.heaps.len();
        let make = {
            let (memory, notification, frontiers) = (memory.clone(), notification.clone(), frontiers.clone());
            move |number: usize| {
                HeapPools::new(&memory, number, memory.heap(number), &notification, &frontiers)
            }
        };
        let own = OwnPools((0..count).map(|_| AtomicPtr::default()).collect());
        let pools = Self {
            heaps: (0..count).map(|_| OnceLock::new()).collect(),
            make: Box::new(make),
            own: Arc::new(own),
            notification,
            frontiers: frontiers.clone(),
            parent: memory.parent.clone(),
            _proactor: proactor.clone(),
        };
        pools.heap(0)?;
        Ok(Arc::new(pools))
    }

    pub(crate) fn parent(&self) -> &Parent {
        &self.parent
    }

    /// The pools of a heap, created on first use.
    fn heap(&self, number: usize) -> Result<&HeapPools> {
        #[expect(clippy::indexing_slicing, reason = "each heap of the device has one of each")]
        let (place, own) = (&self.heaps[number], &self.own.0[number]);
        if let Some(heap) = place.get() {
            return Ok(heap);
        }
        let made = (self.make)(number)?;
        // Two threads may create them at once; the second ones are dropped.
        let heap = place.get_or_init(|| made);
        own.store(heap.small.get(), Ordering::Release);
        Ok(heap)
    }

    /// The default pool for an allocation of that size from a heap, and how many bytes of it may be allocated
    /// early: a slab.
    pub(crate) fn select(&self, heap: usize, length: u64) -> Result<(Pool, u64)> {
        let heap = self.heap(heap)?;
        // A block has a header, so a buffer of a whole slab's size gets its own allocation.
        let (pool, early_limit) =
            if length <= heap.slab / 2 { (&heap.small, heap.slab) } else { (&heap.large, 0) };
        // SAFETY: allocations from the pool keep it, with all others.
        Ok((unsafe { Pool::new(pool.get()) }, early_limit))
    }

    /// The sub-allocating pools: IREE's TLSF pools.
    pub(crate) fn own(&self) -> Arc<OwnPools> {
        self.own.clone()
    }

    /// The backend for pools of programs, on the preferred heap. Borrowed: the device outlives its pools.
    pub(crate) fn backend(&self) -> sys::iree_hal_queue_pool_backend_t {
        #[expect(
            clippy::expect_used,
            reason = "`new` creates those of the first heap, and every device has one"
        )]
        let first = self.heaps.first().and_then(OnceLock::get).expect("the preferred heap has its pools");
        sys::iree_hal_queue_pool_backend_t {
            slab_provider: first.provider.get(),
            notification: self.notification.get(),
            epoch_query: epoch_query(&self.frontiers),
        }
    }

    pub(crate) fn trim(&self) -> Result {
        for heap in self.heaps.iter().filter_map(OnceLock::get) {
            // SAFETY: both pools are ours.
            unsafe {
                check(sys::iree_hal_pool_trim(heap.small.get()))?;
                check(sys::iree_hal_pool_trim(heap.large.get()))?;
            }
        }
        Ok(())
    }
}

/// # Safety
///
/// As [`Retained::adopt`], for something that was just created.
unsafe fn adopt<T: crate::ffi::object::Counted>(object: *mut T) -> Result<Retained<T>> {
    // SAFETY: the reference is the caller's, as it promises.
    unsafe { Retained::adopt(object) }.ok_or_else(|| invalid("IREE reported success but returned no object"))
}

fn epoch_query(frontiers: &Arc<Frontiers>) -> sys::iree_hal_pool_epoch_query_t {
    sys::iree_hal_pool_epoch_query_t {
        fn_: Some(epoch_reached),
        user_data: Arc::as_ptr(frontiers).cast_mut().cast(),
    }
}

unsafe extern "C" fn epoch_reached(user_data: *mut c_void, axis: sys::iree_async_axis_t, epoch: u64) -> bool {
    // SAFETY: `Pools` keeps the frontiers longer than its pools. Pools of programs are gone before the device, as
    // IREE requires of users of the device's backend.
    let frontiers = unsafe { &*user_data.cast_const().cast::<Frontiers>() };
    guard_in_memory_or(false, || frontiers.reached(axis, epoch))
}
