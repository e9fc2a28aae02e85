//! The HAL device: every slot of IREE's table, over one engine and one backend device.
//!
//! # What belongs to whom
//!
//! The C object owns a [`State`]. Semaphores and buffers that a program made with the device keep the engine or the
//! backend device alive for themselves, so they may be released after it. Everything that runs on behalf of the device
//! (host calls, parked allocations, work in flight) is over when destruction returns, or moved to a teardown thread
//! if destruction was asked for from inside one of those.
//!
//! # The order of destruction
//!
//! Parked allocations end; the engine takes no more work, cancels what has not begun and waits for the rest; host
//! threads end; axes are retired; pools, allocator, and last the proactor pool are let go. What cannot be waited for
//! within the limit is kept for ever rather than freed under somebody's feet.

mod loan;
mod queue;
mod staged;

use crate::alloca::ParkingLot;
use crate::allocator::{Allocator, Memory};
use crate::executable::{DeviceIdentity, Reflection};
use crate::frontier::Frontiers;
use crate::host_pool::HostPool;
use crate::host_program::Loaders;
use crate::object::{Out, Retained, allocate, resource};
use crate::pools::Pools;
use crate::profile::{Profiler, matches};
use crate::semaphore::Semaphore;
use crate::staging::Staging;
use crate::status::{
    Missing, Result, check, guard, guard_or, impossible, invalid, text, unimplemented, view,
};
use crate::work::Port;
use crate::{command_buffer, executable, teardown};
use hal_backend::{Device, Properties};
use hal_semaphore::{AdaptiveSpin, Clock, Code, Engine, Failure, MAX_VALUE, SystemClock};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// How long work in flight may take to end by itself when a device is destroyed.
const GRACE: Duration = Duration::from_millis(400);

/// How long it may take to end after it was told to stop.
const LIMIT: Duration = Duration::from_secs(20);

/// The C object.
#[repr(C)]
pub(crate) struct HalDevice<D: Device> {
    resource: sys::iree_hal_resource_t,
    state: State<D>,
}

/// A device and everything that serves it. Fields are let go in this order.
pub(crate) struct State<D: Device> {
    engine: Engine<Port<D>>,
    parking: Arc<ParkingLot>,
    pool: Arc<HostPool>,
    profiler: Profiler,
    staging: Staging,
    pools: Pools,
    /// Replaced by `replace_device_allocator` before the device is in use.
    device_allocator: UnsafeCell<Retained<sys::iree_hal_allocator_t>>,
    channels: UnsafeCell<Option<Retained<sys::iree_hal_channel_provider_t>>>,
    frontiers: Arc<Frontiers>,
    /// Whether those who ask how far a semaphore of the device is do well to look for a moment.
    spin: Arc<AdaptiveSpin>,
    memory: Arc<Memory<D>>,
    host: Arc<Loaders>,
    properties: Arc<Properties>,
    device: Arc<D>,
    /// The same, for what is only for one device and knows nothing else of it.
    identity: DeviceIdentity,
    reflection: Reflection,
    allocator: sys::iree_allocator_t,
    proactor: *mut sys::iree_async_proactor_t,
    _proactors: Retained<sys::iree_async_proactor_pool_t>,
}

// SAFETY: the cells are written while nobody else uses the device, as IREE asks; the proactor belongs to the pool that
// is retained; everything else is shared safely.
unsafe impl<D: Device> Send for State<D> {}
// SAFETY: as above.
unsafe impl<D: Device> Sync for State<D> {}

impl<D: Device> HalDevice<D> {
    /// A device for C, owned by the caller.
    pub(crate) fn create(
        device: D,
        params: &sys::iree_hal_device_create_params_t,
        reflection: Reflection,
        allocator: sys::iree_allocator_t,
    ) -> Result<*mut sys::iree_hal_device_t> {
        let device = Arc::new(device);
        let properties = Arc::new(device.properties());
        // SAFETY: IREE promises a proactor pool with every creation.
        let proactors = unsafe { Retained::retain(params.proactor_pool) }
            .ok_or_else(|| invalid("device creation needs a proactor pool"))?;
        let mut proactor = std::ptr::null_mut();
        // SAFETY: the pool is retained, and the proactor lives as long as it.
        unsafe { check(sys::iree_async_proactor_pool_get(proactors.get(), 0, &raw mut proactor))? };
        let frontiers = Arc::new(Frontiers::new(properties.queues.queues));
        let memory = Memory::new(device.clone(), properties.clone(), allocator);
        let parking = ParkingLot::new(frontiers.clone(), proactor);
        let pool = Arc::new(HostPool::default());
        let port = Port {
            device: device.clone(),
            spec: properties.queues.clone(),
            frontiers: frontiers.clone(),
            parking: parking.clone(),
            pool: pool.clone(),
        };
        let state = State {
            pools: Pools::new(&memory, proactor, &frontiers)?,
            device_allocator: UnsafeCell::new(Allocator::create(memory.clone())?),
            host: Loaders::new(allocator)?,
            engine: Engine::new(port).map_err(|error| impossible(&error))?,
            parking,
            pool,
            profiler: Profiler::default(),
            staging: Staging::default(),
            channels: UnsafeCell::new(None),
            frontiers,
            spin: Arc::default(),
            memory,
            properties,
            identity: device.clone(),
            device,
            reflection,
            allocator,
            proactor,
            _proactors: proactors,
        };
        let memory = state.memory.clone();
        let object = Self { resource: resource(const { &Table::<D>::VTABLE }), state };
        let object = allocate(allocator, object)?.as_ptr().cast();
        memory.belongs_to(object);
        Ok(object)
    }

    /// # Safety
    ///
    /// C passes a live device of ours.
    unsafe fn of<'a>(device: *mut sys::iree_hal_device_t) -> &'a State<D> {
        // SAFETY: the caller's promise.
        unsafe { &(*device.cast::<Self>()).state }
    }
}

impl<D: Device> State<D> {
    /// A new semaphore, owned by the caller.
    fn semaphore(&self, initial: u64) -> Result<*mut sys::iree_hal_semaphore_t> {
        let registration = self.engine.register(initial);
        let (frontiers, spin) = (self.frontiers.clone(), self.spin.clone());
        Semaphore::create(self.allocator, self.proactor, initial, registration, frontiers, spin)
    }

    /// Ends everything. Whether it is safe to let go afterwards.
    fn quiesce(&self) -> bool {
        let clock = SystemClock::new();
        let begin = clock.now();
        let _ = self.profiler.end(&|| self.device.clock());
        let parked = self.parking.close(LIMIT);
        let idle = self.engine.shut_down(&clock, begin + GRACE, begin + LIMIT);
        let quiet = self.pool.stop(LIMIT);
        self.frontiers.retire();
        parked && idle.is_ok() && quiet
    }

    /// Whether the text of a query names this device.
    fn answers_to(&self, pattern: &str) -> bool {
        matches(&self.properties.identifier, pattern)
            || self.properties.aliases.iter().any(|alias| matches(alias, pattern))
    }

    fn query(&self, category: &str, key: &str) -> Result<i64> {
        let number = |count: usize| Ok(i64::try_from(count).unwrap_or(i64::MAX));
        match (category, key) {
            ("hal.device.id", pattern) => Ok(i64::from(self.answers_to(pattern))),
            ("hal.executable.format", format) => Ok(i64::from(self.device.supports(format, &*self.host))),
            ("hal.device", "concurrency") => number(self.properties.queues.queues),
            ("hal.dispatch", "concurrency") => number(self.properties.concurrency),
            ("hal.cpu", key) if self.properties.host_processor => {
                let mut value = 0;
                // SAFETY: the key is lent for the call; the value is ours.
                unsafe { check(sys::iree_cpu_lookup_data_by_key(view(key), &raw mut value))? };
                Ok(value)
            }
            _ => {
                let message = format!("this device has no value for {category} :: {key}");
                Err(Failure::new(Code::NotFound, message))
            }
        }
    }

    fn identifier(&self) -> &str {
        &self.properties.identifier
    }

    fn device_allocator(&self) -> *mut sys::iree_hal_allocator_t {
        // SAFETY: written only while nobody uses the device.
        unsafe { (*self.device_allocator.get()).get() }
    }

    /// The device's number in its group, for profiles.
    fn ordinal(&self) -> u32 {
        self.frontiers.ordinal()
    }
}

/// What a device says of its group when it is in none.
struct NoGroup(sys::iree_hal_device_topology_info_t);

// SAFETY: plain data without pointers, never written.
unsafe impl Sync for NoGroup {}

// SAFETY: numbers and null pointers.
static NO_GROUP: NoGroup = NoGroup(unsafe { std::mem::zeroed() });

struct Table<D>(PhantomData<D>);

type Raw = *mut sys::iree_hal_device_t;

impl<D: Device> Table<D> {
    const VTABLE: sys::iree_hal_device_vtable_t = sys::iree_hal_device_vtable_t {
        destroy: Some(Self::destroy),
        id: Some(Self::id),
        host_allocator: Some(Self::host_allocator),
        device_allocator: Some(Self::device_allocator),
        replace_device_allocator: Some(Self::replace_device_allocator),
        replace_channel_provider: Some(Self::replace_channel_provider),
        trim: Some(Self::trim),
        query_i64: Some(Self::query_i64),
        query_capabilities: Some(Self::query_capabilities),
        topology_info: Some(Self::topology_info),
        refine_topology_edge: Some(refine_topology_edge),
        assign_topology_info: Some(Self::assign_topology_info),
        create_channel: Some(create_channel),
        create_command_buffer: Some(Self::create_command_buffer),
        create_event: Some(Self::create_event),
        create_executable_cache: Some(Self::create_executable_cache),
        import_file: Some(Self::import_file),
        create_semaphore: Some(Self::create_semaphore),
        query_semaphore_compatibility: Some(query_semaphore_compatibility),
        query_queue_pool_backend: Some(Self::query_queue_pool_backend),
        queue_alloca: Some(Self::queue_alloca),
        queue_dealloca: Some(Self::queue_dealloca),
        queue_fill: Some(Self::queue_fill),
        queue_update: Some(Self::queue_update),
        queue_copy: Some(Self::queue_copy),
        queue_read: Some(Self::queue_read),
        queue_write: Some(Self::queue_write),
        queue_host_call: Some(Self::queue_host_call),
        queue_dispatch: Some(Self::queue_dispatch),
        queue_execute: Some(Self::queue_execute),
        queue_flush: Some(Self::queue_flush),
        profiling_begin: Some(Self::profiling_begin),
        profiling_flush: Some(Self::profiling_flush),
        profiling_end: Some(Self::profiling_end),
        external_capture_begin: Some(external_capture_begin),
        external_capture_end: Some(external_capture_end),
    };

    unsafe extern "C" fn destroy(device: Raw) {
        guard_or((), || {
            struct Doomed<D: Device>(*mut HalDevice<D>);
            // SAFETY: the last reference is gone, so the teardown is the only one that has the object.
            unsafe impl<D: Device> Send for Doomed<D> {}
            impl<D: Device> Doomed<D> {
                fn end(self) {
                    // SAFETY: as above.
                    unsafe {
                        if (*self.0).state.quiesce() {
                            let allocator = (*self.0).state.allocator;
                            crate::object::free(allocator, self.0);
                        } else {
                            eprintln!(
                                "hal-driver: device {:?} still had work after {LIMIT:?}; its memory is kept",
                                (*self.0).state.identifier()
                            );
                        }
                    }
                }
            }
            let doomed = Doomed(device.cast::<HalDevice<D>>());
            teardown::run(move || doomed.end());
        });
    }

    unsafe extern "C" fn id(device: Raw) -> sys::iree_string_view_t {
        // SAFETY: C passes a live device of ours; the name lives as long as it does.
        view(unsafe { &HalDevice::<D>::of(device).properties.identifier })
    }

    unsafe extern "C" fn host_allocator(device: Raw) -> sys::iree_allocator_t {
        // SAFETY: C passes a live device of ours.
        unsafe { HalDevice::<D>::of(device).allocator }
    }

    unsafe extern "C" fn device_allocator(device: Raw) -> *mut sys::iree_hal_allocator_t {
        // SAFETY: C passes a live device of ours.
        unsafe { HalDevice::<D>::of(device).device_allocator() }
    }

    unsafe extern "C" fn replace_device_allocator(device: Raw, allocator: *mut sys::iree_hal_allocator_t) {
        guard_or((), || {
            // SAFETY: C passes a live device of ours that nobody uses, and lends us the allocator.
            unsafe {
                if let Some(allocator) = Retained::retain(allocator) {
                    *HalDevice::<D>::of(device).device_allocator.get() = allocator;
                }
            }
        });
    }

    unsafe extern "C" fn replace_channel_provider(
        device: Raw,
        provider: *mut sys::iree_hal_channel_provider_t,
    ) {
        guard_or((), || {
            // SAFETY: C passes a live device of ours that nobody uses, and lends us the provider.
            unsafe { *HalDevice::<D>::of(device).channels.get() = Retained::retain(provider) };
        });
    }

    unsafe extern "C" fn trim(device: Raw) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours.
            let state = unsafe { HalDevice::<D>::of(device) };
            state.engine.trim();
            state.frontiers.prune();
            state.staging.trim();
            state.pools.trim()?;
            // SAFETY: the allocator is ours.
            unsafe { check(sys::iree_hal_allocator_trim(state.device_allocator())) }
        })
    }

    unsafe extern "C" fn query_i64(
        device: Raw,
        category: sys::iree_string_view_t,
        key: sys::iree_string_view_t,
        out: *mut i64,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours, text for the call, and where the answer goes.
            unsafe {
                let value = HalDevice::<D>::of(device).query(text(category), text(key))?;
                Out::new(out).set(value);
            }
            Ok(())
        })
    }

    unsafe extern "C" fn query_capabilities(
        _device: Raw,
        out: *mut sys::iree_hal_device_capabilities_t,
    ) -> sys::iree_status_t {
        // Nothing here can be shared without the host: semaphores and buffers cross devices through it.
        guard(|| {
            // SAFETY: C passes where the answer goes.
            unsafe { Out::new(out).set(sys::iree_hal_device_capabilities_t::default()) };
            Ok(())
        })
    }

    unsafe extern "C" fn topology_info(device: Raw) -> *const sys::iree_hal_device_topology_info_t {
        // SAFETY: C passes a live device of ours.
        let frontiers = unsafe { &HalDevice::<D>::of(device).frontiers };
        let info = frontiers.info();
        if info.is_null() { &raw const NO_GROUP.0 } else { info }
    }

    unsafe extern "C" fn assign_topology_info(
        device: Raw,
        info: *const sys::iree_hal_device_topology_info_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours, and information for the call or none.
            let (state, info) = unsafe { (HalDevice::<D>::of(device), info.as_ref()) };
            match info {
                Some(info) => state.frontiers.join(info),
                None => {
                    state.frontiers.leave();
                    Ok(())
                }
            }
        })
    }

    unsafe extern "C" fn create_command_buffer(
        device: Raw,
        mode: sys::iree_hal_command_buffer_mode_t,
        categories: sys::iree_hal_command_category_t,
        affinity: sys::iree_hal_queue_affinity_t,
        binding_capacity: usize,
        out: *mut *mut sys::iree_hal_command_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and where the result goes.
            let (state, out) = unsafe { (HalDevice::<D>::of(device), Out::new(out)) };
            let allocator = state.device_allocator();
            let affinity = state.affinity(affinity).0;
            out.set(command_buffer::create(
                state.allocator,
                state.identity.clone(),
                allocator,
                mode,
                categories,
                affinity,
                binding_capacity,
            )?);
            Ok(())
        })
    }

    unsafe extern "C" fn create_event(
        device: Raw,
        _affinity: sys::iree_hal_queue_affinity_t,
        _flags: sys::iree_hal_event_flags_t,
        out: *mut *mut sys::iree_hal_event_t,
    ) -> sys::iree_status_t {
        // SAFETY: C passes a live device of ours and where the result goes.
        guard(|| unsafe {
            command_buffer::event::create(HalDevice::<D>::of(device).allocator, Out::new(out))
        })
    }

    unsafe extern "C" fn create_executable_cache(
        device: Raw,
        _identifier: sys::iree_string_view_t,
        out: *mut *mut sys::iree_hal_executable_cache_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and where the result goes.
            let (state, out) = unsafe { (HalDevice::<D>::of(device), Out::new(out)) };
            let (device, host) = (state.device.clone(), state.host.clone());
            executable::create_cache(state.allocator, device, host, state.reflection, out)
        })
    }

    unsafe extern "C" fn import_file(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        access: sys::iree_hal_memory_access_t,
        handle: *mut sys::iree_io_file_handle_t,
        _flags: sys::iree_hal_external_file_flags_t,
        out: *mut *mut sys::iree_hal_file_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lends us the rest for the call.
            unsafe {
                let state = HalDevice::<D>::of(device);
                check(sys::iree_hal_file_from_handle(
                    state.device_allocator(),
                    affinity,
                    access,
                    handle,
                    state.proactor,
                    state.allocator,
                    out,
                ))
            }
        })
    }

    unsafe extern "C" fn create_semaphore(
        device: Raw,
        _affinity: sys::iree_hal_queue_affinity_t,
        initial: u64,
        _flags: sys::iree_hal_semaphore_flags_t,
        out: *mut *mut sys::iree_hal_semaphore_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and where the result goes.
            let (state, out) = unsafe { (HalDevice::<D>::of(device), Out::new(out)) };
            if initial > MAX_VALUE {
                let message =
                    format!("a semaphore cannot begin at {initial}: the largest value is {MAX_VALUE}");
                return Err(Failure::new(Code::OutOfRange, message));
            }
            out.set(state.semaphore(initial)?);
            Ok(())
        })
    }

    unsafe extern "C" fn query_queue_pool_backend(
        device: Raw,
        _affinity: sys::iree_hal_queue_affinity_t,
        out: *mut sys::iree_hal_queue_pool_backend_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and where the result goes.
            let (state, out) = unsafe { (HalDevice::<D>::of(device), Out::new(out)) };
            out.set(state.pools.backend());
            Ok(())
        })
    }

    unsafe extern "C" fn profiling_begin(
        device: Raw,
        options: *const sys::iree_hal_device_profiling_options_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and options for the call.
            let (state, options) = unsafe { (HalDevice::<D>::of(device), &*options) };
            let clock = || state.device.clock();
            state.profiler.begin(options, &state.properties, state.ordinal(), state.allocator, &clock)
        })
    }

    unsafe extern "C" fn profiling_flush(device: Raw) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours.
            let state = unsafe { HalDevice::<D>::of(device) };
            state.profiler.flush(&|| state.device.clock())
        })
    }

    unsafe extern "C" fn profiling_end(device: Raw) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours.
            let state = unsafe { HalDevice::<D>::of(device) };
            state.profiler.end(&|| state.device.clock())
        })
    }
}

unsafe extern "C" fn refine_topology_edge(
    _source: Raw,
    _target: Raw,
    _edge: *mut sys::iree_hal_topology_edge_t,
) -> sys::iree_status_t {
    // What IREE works out from the capabilities is right as it is.
    crate::status::OK
}

unsafe extern "C" fn query_semaphore_compatibility(
    _device: Raw,
    _semaphore: *mut sys::iree_hal_semaphore_t,
) -> sys::iree_hal_semaphore_compatibility_t {
    // The engine takes semaphores of every driver; those that are not its own go through the host.
    sys::IREE_HAL_SEMAPHORE_COMPATIBILITY_ALL as sys::iree_hal_semaphore_compatibility_t
}

unsafe extern "C" fn create_channel(
    _device: Raw,
    _affinity: sys::iree_hal_queue_affinity_t,
    _params: sys::iree_hal_channel_params_t,
    _out: *mut *mut sys::iree_hal_channel_t,
) -> sys::iree_status_t {
    guard(|| Err(unimplemented(Missing::Channel)))
}

unsafe extern "C" fn external_capture_begin(
    _device: Raw,
    _options: *const sys::iree_hal_device_external_capture_options_t,
) -> sys::iree_status_t {
    guard(|| Err(unimplemented(Missing::CaptureBegin)))
}

unsafe extern "C" fn external_capture_end(_device: Raw) -> sys::iree_status_t {
    guard(|| Err(unimplemented(Missing::CaptureEnd)))
}
