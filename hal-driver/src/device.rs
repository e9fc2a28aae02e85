// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The HAL device: every slot of IREE's table, over one engine and one backend device.
//!
//! # What belongs to whom
//!
//! The C object owns a [`DeviceState`]. An object that a program made with the device keeps what it needs of it,
//! and may be released after it: semaphores keep the engine and the proactor, buffers, executables and command
//! buffers the backend's device, stream-ordered buffers the pools. The engine gives the backend's device up when the
//! device is destroyed ([`UntilEnd`]). Everything that runs for the device (host calls, pending allocations, work in
//! flight) has ended when destruction returns. Destruction that begins inside such a call, or on the thread that
//! polls the device's proactor, moves to a teardown thread and returns at once.
//!
//! # The order of destruction
//!
//! Pending allocations end. Started collectives end, or the device leaves their groups. The engine refuses new
//! work, cancels what has not begun and waits for the rest. Polling for completions stops. Host threads end. Axes
//! are retired. Pools, allocator, and last the proactor pool are released. Whatever does not end within the limit
//! is leaked rather than freed while in use.
//!
//! A call of the program that runs during teardown has the device from its context, and may retain and release it
//! like any other object. So the teardown holds a reference while it runs, and the release of the last one after it
//! frees the structure ([`Phase`]).

mod bounce;
mod collective_steps;
mod completions;
mod operation_description;
mod operation_text;
mod profile;
mod queue;
mod running_calls;
mod staged_file_transfer;
mod submit;
mod until_end;
mod work;

pub(crate) use bounce::Bounce;

use crate::command::collectives::channel::{CollectiveSettings, Ranks};
use crate::command::collectives::running::RunningCollectives;
use crate::command::executable::{DeviceIdentity, Reflection};
use crate::command::host_program::Loaders;
use crate::command::update_staging::UpdateStaging;
use crate::command::{command_buffer, executable};
use crate::device::completions::{Completions, PollingGuard};
use crate::device::profile::{Profiler, matches};
use crate::device::until_end::UntilEnd;
use crate::device::work::EngineBackend;
use crate::ffi::object::{Borrowed, Header, HostAllocator, Out, Retained, allocate, resource};
use crate::ffi::process::OpenDevice;
use crate::ffi::status::{Missing, Result, check, guard, guard_or, no_engine, text, unimplemented, view};
use crate::memory::alloca::PendingAllocas;
use crate::memory::allocator::{Allocator, Memory};
use crate::memory::pools::Pools;
use crate::stall::{InReports, Inspect, StallSettings};
use crate::sync::frontier::Frontiers;
use crate::sync::host_pool::HostPool;
use crate::sync::proactor::Proactor;
use crate::sync::running_time::RunningClock;
use crate::sync::semaphore::Semaphore;
use crate::sync::teardown;
use hal_backend::{Device, Properties};
use hal_semaphore::stall::Snapshot;
use hal_semaphore::{AdaptiveSpin, Code, Engine, Failure, MAX_VALUE};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The most queues of a device: an affinity has one bit for each.
const MAX_QUEUES: usize = 64;

/// How long work in flight may take to end by itself when a device is destroyed.
const GRACE: Duration = Duration::from_millis(400);

/// How long it may take to end after the device was stopped.
const LIMIT: Duration = Duration::from_secs(20);

#[repr(C)]
pub(crate) struct HalDevice<D: Device> {
    resource: Header,
    phase: Phase,
    state: DeviceState<D>,
}

/// The phase of a device's teardown. Its reference count reaches zero once when the program releases it, and again
/// whenever a call that was running then releases the reference that it took.
#[derive(Default)]
struct Phase {
    is_ending: AtomicBool,
    /// Nothing runs for the device any more.
    is_over: AtomicBool,
}

/// A device and everything that serves it. Fields are dropped in this order.
///
/// # Invariants
///
/// The cells are written only while no other thread uses the device, as IREE requires of `replace_…`.
pub(crate) struct DeviceState<D: Device> {
    /// Has a handle on the engine, so it comes before that.
    in_reports: InReports,
    engine: Engine<EngineBackend<D>>,
    polling: PollingGuard<D>,
    pending_allocas: Arc<PendingAllocas>,
    pool: Arc<HostPool>,
    profiler: Profiler,
    staging: UpdateStaging,
    pools: Arc<Pools>,
    /// Replaced by `replace_device_allocator` before the device is in use.
    device_allocator: UnsafeCell<Retained<sys::iree_hal_allocator_t>>,
    /// Replaced by `replace_channel_provider` before the device is in use.
    provider: UnsafeCell<Option<Retained<sys::iree_hal_channel_provider_t>>>,
    ranks: Ranks,
    collectives: Arc<RunningCollectives>,
    frontiers: Arc<Frontiers>,
    /// Decides for queries of the device's semaphores: spin briefly before the return, or not.
    spin: Arc<AdaptiveSpin>,
    memory: Arc<Memory<D>>,
    host: Arc<Loaders>,
    properties: Arc<Properties>,
    /// All queues, as an affinity.
    queues: u64,
    device: Arc<D>,
    /// The same device as an identity, for code that does not know its type.
    identity: DeviceIdentity,
    reflection: Reflection,
    allocator: HostAllocator,
    proactor: Arc<Proactor>,
    _open: OpenDevice,
}

// SAFETY: no cell is written while it is read, by the invariant; everything else is shared safely.
unsafe impl<D: Device> Send for DeviceState<D> {}
// SAFETY: as for `Send`.
unsafe impl<D: Device> Sync for DeviceState<D> {}

impl<D: Device> HalDevice<D> {
    /// Creates a device for C. The caller owns it.
    pub(crate) fn create(
        open: OpenDevice,
        device: D,
        proactors: Borrowed<'_, sys::iree_async_proactor_pool_t>,
        reflection: Reflection,
        membership: CollectiveSettings,
        stall: StallSettings,
        allocator: HostAllocator,
    ) -> Result<*mut sys::iree_hal_device_t> {
        let device = Arc::new(device);
        let properties = Arc::new(device.properties());
        check_properties(&properties)?;
        let proactor = Proactor::new(proactors.retain())?;
        let frontiers = Arc::new(Frontiers::new(properties.queues.queues));
        let memory = Memory::new(device.clone(), properties.clone(), allocator);
        let pending_allocas = PendingAllocas::new(frontiers.clone(), proactor.clone());
        let pool = Arc::new(HostPool::default());
        let completions = Completions::new(&device, &properties, &proactor);
        let collectives = Arc::<RunningCollectives>::default();
        let backend = EngineBackend {
            device: UntilEnd::new(&device),
            spec: properties.queues,
            frontiers: frontiers.clone(),
            pending_allocas: pending_allocas.clone(),
            pool: pool.clone(),
            completions: completions.clone(),
            collectives: collectives.clone(),
            running_calls: Arc::default(),
        };
        let engine = Engine::new(backend).map_err(|error| no_engine(&error))?;
        let state = DeviceState {
            in_reports: InReports::new(stall, Inspected(engine.clone()))?,
            pools: Pools::new(&memory, &proactor, &frontiers)?,
            device_allocator: UnsafeCell::new(Allocator::create(memory.clone())?),
            host: Loaders::shared()?,
            engine,
            polling: completions.begin(&properties.identifier)?,
            pending_allocas,
            pool,
            profiler: Profiler::default(),
            staging: UpdateStaging::default(),
            provider: UnsafeCell::new(None),
            ranks: Ranks::new(membership),
            collectives,
            frontiers,
            spin: Arc::default(),
            memory,
            // `check_properties` made sure that there are 1 to 64.
            queues: u64::MAX >> (MAX_QUEUES - properties.queues.queues),
            properties,
            identity: device.clone(),
            device,
            reflection,
            allocator,
            proactor,
            _open: open,
        };
        let memory = state.memory.clone();
        let (resource, phase) = (resource(const { &Table::<D>::VTABLE }), Phase::default());
        let object = Self { resource, phase, state };
        let object = allocate(allocator, object)?.as_ptr().cast();
        // SAFETY: `destroy` forgets it first.
        unsafe { memory.parent.is(object) };
        Ok(object)
    }

    /// # Safety
    ///
    /// The device is one of ours and alive for `'a`.
    unsafe fn of<'a>(device: *mut sys::iree_hal_device_t) -> &'a DeviceState<D> {
        // SAFETY: ours and alive, as the caller promises.
        unsafe { &(*device.cast::<Self>()).state }
    }
}

impl<D: Device> DeviceState<D> {
    /// Creates a semaphore. The caller owns it.
    fn semaphore(&self, initial: u64) -> Result<*mut sys::iree_hal_semaphore_t> {
        let registration = self.engine.register(initial);
        let (frontiers, spin) = (self.frontiers.clone(), self.spin.clone());
        let proactor = self.proactor.clone();
        Semaphore::create(self.allocator, proactor, initial, registration, frontiers, spin)
    }

    /// Ends everything that runs for the device; false if something did not end within its limit.
    fn quiesce(&self) -> bool {
        let _ = self.profiler.end(&|| self.device.clock());
        let allocas_ended = self.pending_allocas.close(LIMIT);
        // Only their groups can end started collectives, and the engine waits for these.
        self.collectives.finish(GRACE);
        let idle = self.engine.shut_down(&RunningClock::new(), GRACE, LIMIT);
        let unpolled = self.polling.end(LIMIT);
        let stopped = self.pool.stop(LIMIT);
        self.frontiers.retire();
        hal_collectives_mpi::wait_until_idle();
        let is_over = allocas_ended && idle.is_ok() && unpolled && stopped;
        if is_over {
            self.in_reports.end();
            // SAFETY: the engine is closed and has nothing under way, so it asks its backend for nothing more; no
            // thread polls.
            unsafe {
                self.engine.backend().device.release();
                self.polling.release_device();
            }
        }
        is_over
    }

    /// True if the pattern of a query names this device.
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
                // SAFETY: the key is borrowed for the call; the value is ours.
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

    fn device_allocator(&self) -> Borrowed<'_, sys::iree_hal_allocator_t> {
        // SAFETY: written only while the device is not in use, as IREE asks.
        unsafe { (*self.device_allocator.get()).borrow() }
    }

    /// The device's number in its group, for profiles.
    fn ordinal(&self) -> u32 {
        self.frontiers.ordinal()
    }
}

/// The engine of a device, for reports.
struct Inspected<D: Device>(Engine<EngineBackend<D>>);

impl<D: Device> Inspect for Inspected<D> {
    fn snapshot(&self, names: bool) -> Snapshot {
        let mut snapshot = self.0.snapshot(names);
        self.0.backend().running_calls.add_to(&mut snapshot);
        snapshot
    }
}

/// Refuses properties that no device can have, before they are used.
fn check_properties(properties: &Properties) -> Result {
    let bug = |what: String| {
        let name = &properties.identifier;
        Err(Failure::new(Code::Internal, format!("device {name:?} {what}; this is a bug of its backend")))
    };
    if properties.identifier.is_empty() {
        return bug("has no name".to_owned());
    }
    if !(1..=MAX_QUEUES).contains(&properties.queues.queues) {
        return bug(format!("has {} queues; it may have 1 to {MAX_QUEUES}", properties.queues.queues));
    }
    if properties.heaps.is_empty() {
        return bug("has no memory".to_owned());
    }
    for (number, heap) in properties.heaps.iter().enumerate() {
        let alignments = [Some(heap.alignment), heap.import_alignment];
        if let Some(wrong) = alignments.into_iter().flatten().find(|number| !number.is_power_of_two()) {
            return bug(format!("aligns memory of heap {number} to {wrong}, which is no power of two"));
        }
    }
    Ok(())
}

/// The topology information of a device in no group.
struct NoGroup(sys::iree_hal_device_topology_info_t);

// SAFETY: plain data without pointers, never written.
unsafe impl Sync for NoGroup {}

// SAFETY: numbers and null pointers.
static NO_GROUP: NoGroup = NoGroup(unsafe { std::mem::zeroed() });

/// A device that is torn down, and one reference to it.
///
/// # Invariants
///
/// It owns one reference of the device, so the structure is alive.
struct Doomed<D: Device>(*mut HalDevice<D>);

// SAFETY: a device may be used on any thread.
unsafe impl<D: Device> Send for Doomed<D> {}

impl<D: Device> Doomed<D> {
    /// Ends everything that runs for the device, and releases the reference.
    fn end(self) {
        // SAFETY: the structure is there, by the invariant.
        let device = unsafe { &*self.0 };
        if device.state.quiesce() {
            device.phase.is_over.store(true, Ordering::Release);
            // SAFETY: the reference of the invariant, given up once.
            unsafe { sys::iree_hal_device_release(self.0.cast()) };
        } else {
            let name = device.state.identifier();
            eprintln!("hal-driver: device {name:?} still had work after {LIMIT:?}; its memory is kept");
        }
    }
}

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
        create_channel: Some(Self::create_channel),
        create_command_buffer: Some(Self::create_command_buffer),
        create_event: Some(Self::create_event),
        create_executable_cache: Some(Self::create_executable_cache),
        import_file: Some(Self::import_file),
        create_semaphore: Some(Self::create_semaphore),
        query_semaphore_compatibility: Some(Self::query_semaphore_compatibility),
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
            let object = device.cast::<HalDevice<D>>();
            // SAFETY: no reference is left. The structure is there, as the teardown has one until the device is over.
            let (phase, state) = unsafe { (&(*object).phase, &(*object).state) };
            if phase.is_over.load(Ordering::Acquire) {
                // SAFETY: nothing runs for the device any more, and no reference is left.
                return unsafe { crate::ffi::object::free(state.allocator, object) };
            }
            if phase.is_ending.swap(true, Ordering::AcqRel) {
                return;
            }
            state.memory.parent.forget();
            // SAFETY: the structure is there.
            unsafe { sys::iree_hal_device_retain(device) };
            let doomed = Doomed::<D>(object);
            let away = state.proactor.may_be_polled_here();
            teardown::run(away, move || doomed.end());
        });
    }

    unsafe extern "C" fn id(device: Raw) -> sys::iree_string_view_t {
        // SAFETY: C passes a live device of ours; the name lives as long as it does.
        view(unsafe { &HalDevice::<D>::of(device).properties.identifier })
    }

    unsafe extern "C" fn host_allocator(device: Raw) -> sys::iree_allocator_t {
        // SAFETY: C passes a live device of ours.
        unsafe { HalDevice::<D>::of(device).allocator.raw() }
    }

    unsafe extern "C" fn device_allocator(device: Raw) -> *mut sys::iree_hal_allocator_t {
        // SAFETY: C passes a live device of ours.
        unsafe { HalDevice::<D>::of(device).device_allocator().get() }
    }

    unsafe extern "C" fn replace_device_allocator(device: Raw, allocator: *mut sys::iree_hal_allocator_t) {
        guard_or((), || {
            // SAFETY: C passes a live device of ours that is not in use, and a live allocator.
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
            // SAFETY: C passes a live device of ours that is not in use, and a live provider.
            unsafe {
                let state = HalDevice::<D>::of(device);
                *state.provider.get() = Retained::retain(provider);
                state.ranks.forget_provider();
            }
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
            unsafe { check(sys::iree_hal_allocator_trim(state.device_allocator().get())) }
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
        // Nothing is shared without the host: semaphores and buffers cross devices through it.
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
                // SAFETY: C's group keeps its topology and its tracker alive for the call, or has none.
                Some(info) => unsafe {
                    // If this fails, the device has joined nothing.
                    state.frontiers.join(info)?;
                    state.ranks.join(info);
                },
                None => {
                    state.ranks.leave();
                    state.frontiers.leave();
                }
            }
            Ok(())
        })
    }

    unsafe extern "C" fn create_channel(
        device: Raw,
        _affinity: sys::iree_hal_queue_affinity_t,
        params: sys::iree_hal_channel_params_t,
        out: *mut *mut sys::iree_hal_channel_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours, text for the call and where the result goes. The provider is
            // replaced only while the device is not in use.
            unsafe {
                let (state, out) = (HalDevice::<D>::of(device), Out::new(out));
                let provider = (*state.provider.get()).as_ref().map(Retained::borrow);
                out.set(state.ranks.create(provider, &state.identity, &params, state.allocator)?);
            }
            Ok(())
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
            let affinity = state.affinity(affinity).0;
            out.set(command_buffer::create(
                state.allocator,
                state.identity.clone(),
                state.device_allocator(),
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
            let (memory, host) = (state.memory.clone(), state.host.clone());
            executable::create_cache(memory, host, state.reflection, out)
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
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let state = HalDevice::<D>::of(device);
                let handle = Borrowed::required(handle, "a file is imported by its handle")?;
                check(sys::iree_hal_file_from_handle(
                    state.device_allocator().get(),
                    affinity,
                    access,
                    handle.get(),
                    state.proactor.get(),
                    state.allocator.raw(),
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

    /// The engine takes semaphores of every driver. Those of others go through the host.
    unsafe extern "C" fn query_semaphore_compatibility(
        device: Raw,
        semaphore: *mut sys::iree_hal_semaphore_t,
    ) -> sys::iree_hal_semaphore_compatibility_t {
        // SAFETY: C passes a live device of ours and a live semaphore.
        let is_own = unsafe { Semaphore::is_of(semaphore, &HalDevice::<D>::of(device).frontiers) };
        if is_own {
            sys::IREE_HAL_SEMAPHORE_COMPATIBILITY_ALL as sys::iree_hal_semaphore_compatibility_t
        } else {
            sys::IREE_HAL_SEMAPHORE_COMPATIBILITY_HOST_ONLY as sys::iree_hal_semaphore_compatibility_t
        }
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
            let (properties, ordinal) = (&state.properties, state.ordinal());
            // SAFETY: what the options name lives through the call, and a sink is counted.
            unsafe { state.profiler.begin(options, properties, ordinal, state.allocator, &clock) }
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
    // IREE's own answer from the capabilities is right.
    crate::ffi::status::OK
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

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests;
