// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Command buffers: lists of records, kept whole until they are executed.
//!
//! Recording validates what can be known, retains what is used, and translates nothing. Each submission resolves
//! the list against its binding table, so one recording serves any number of executions at once. If nothing needs
//! resolving, the device's list is made once. A queue of a backend is in order, so a wait for an event that was
//! signalled earlier in the same queue is a barrier.
//!
//! # Steps
//!
//! Most command buffers are one list for the device, which is one [`CommandStep`]. A device does not run
//! collectives, so they divide the list: each step has device commands and collectives without an order between
//! them, and ends when both have ended. A barrier between a collective and another record begins a new step.

use crate::command::collectives::record::CollectiveRecord;
use crate::command::executable::{DeviceIdentity, is_same_device};
use crate::command::record::{Record, Reference, Substitutes, Use, Uses};
use crate::command::update_staging;
use crate::ffi::object::{Borrowed, HostAllocator, HostMemory, Out, Retained, allocate, bytes, free, to_u64};
use crate::ffi::status::{Result, guard, guard_in_memory, guard_or, invalid};
use crate::memory::buffer_range::BufferRange;
use hal_backend::{Command, Commands, Device, Recording as Identity};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use smallvec::SmallVec;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

/// The number of binding slots that a reference can name with its 24 bits.
const SLOTS: usize = 1 << 24;

/// A command buffer of ours.
///
/// # Invariants
///
/// `base` comes first; only `create` gives it [`VTABLE`]. The recording is written by one thread at a time, as IREE
/// asks, and no more once its state is [`RecordingState::Closed`].
#[repr(C)]
pub(crate) struct CommandBuffer {
    base: UnsafeCell<sys::iree_hal_command_buffer_t>,
    allocator: HostAllocator,
    /// The device that made it. Its executables are for this device.
    device: DeviceIdentity,
    /// The state of IREE's own validation.
    validation: Option<HostMemory>,
    /// IREE validates an execution with this allocator, whichever device it runs on.
    device_allocator: Retained<sys::iree_hal_allocator_t>,
    recording: UnsafeCell<Recording>,
}

struct Recording {
    /// At least one; exactly one without collectives.
    steps: Vec<CommandStep>,
    /// True if a barrier follows the collectives of the last step.
    fenced: bool,
    /// True if any record is a dispatch.
    dispatches: bool,
    /// The uses of each slot of the binding table, up to the last one used.
    slots: SmallVec<[Uses; 8]>,
    /// The devices that own the memory which the commands name directly. Only they can use it.
    owners: SmallVec<[*mut sys::iree_hal_device_t; 1]>,
    state: RecordingState,
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            steps: vec![CommandStep::default()],
            fenced: false,
            dispatches: false,
            slots: SmallVec::new(),
            owners: SmallVec::new(),
            state: RecordingState::default(),
        }
    }
}

/// A part of a recording that the device runs in one submission, and the collectives beside it.
#[derive(Default)]
pub(crate) struct CommandStep {
    pub(crate) records: Vec<Record>,
    pub(crate) collectives: Vec<CollectiveRecord>,
    /// The [`CachedCommands`] for the first device that executed it, if their memory was certain.
    cached: OnceLock<Option<Box<dyn Any + Send + Sync>>>,
    /// Made at the first execution.
    identity: OnceLock<Arc<Identity>>,
}

impl Recording {
    /// Adds the use of a binding slot, or the owner of memory that is named directly.
    fn note(&mut self, reference: &Reference, usage: Use) {
        match reference {
            Reference::Slot { slot, .. } => {
                if self.slots.len() <= *slot {
                    self.slots.resize(slot + 1, Uses::default());
                }
                #[expect(clippy::indexing_slicing, reason = "the list was just grown to this length")]
                self.slots[*slot].add(usage);
            }
            Reference::Direct(range) => {
                if let Some(owner) = range.sole_user().filter(|owner| !self.owners.contains(owner)) {
                    self.owners.push(owner);
                }
            }
        }
    }

    /// The step that is being recorded.
    fn last(&mut self) -> &mut CommandStep {
        #[expect(clippy::expect_used, reason = "a recording has a step from the beginning")]
        self.steps.last_mut().expect("there is at least one")
    }

    fn next(&mut self) {
        self.fenced = false;
        self.steps.push(CommandStep::default());
    }

    fn add(&mut self, record: Record) {
        if matches!(record, Record::Barrier) && !self.last().collectives.is_empty() {
            self.fenced = true;
            return;
        }
        if record.is_without_workgroups() {
            return;
        }
        if self.fenced {
            self.next();
        }
        record.visit(|reference, usage| self.note(reference, usage));
        self.dispatches |= matches!(record, Record::Dispatch(_));
        self.last().records.push(record);
    }

    fn add_collective(&mut self, record: CollectiveRecord) {
        let is_behind = self.last().records.iter().any(|record| matches!(record, Record::Barrier));
        if self.fenced || is_behind {
            self.next();
        }
        record.visit(|reference, usage| self.note(reference, usage));
        self.last().collectives.push(record);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum RecordingState {
    #[default]
    Initial,
    Open,
    Closed,
}

struct CachedCommands<D: Device> {
    device: Arc<D>,
    commands: Arc<[Command<D>]>,
}

/// A finished command buffer, retained for an execution.
///
/// # Invariants
///
/// The buffer is a [`CommandBuffer`], and its recording is closed.
#[derive(Clone)]
pub(crate) struct Recorded {
    buffer: Retained<sys::iree_hal_command_buffer_t>,
}

impl Recorded {
    /// Retains a command buffer of C's, for a device to execute.
    pub(crate) fn new(
        buffer: Borrowed<'_, sys::iree_hal_command_buffer_t>,
        device: &DeviceIdentity,
    ) -> Result<Self> {
        let buffer = buffer.retain();
        // SAFETY: retained, and every HAL object begins with the resource header.
        let vtable = unsafe { (*buffer.get()).resource.vtable };
        if !std::ptr::eq(vtable.cast(), &raw const VTABLE) {
            return Err(invalid("the command buffer belongs to another driver"));
        }
        let recorded = Self { buffer };
        // SAFETY: ours, as its table says, and retained by `recorded`.
        let made_by = unsafe { &(*recorded.buffer.get().cast::<CommandBuffer>()).device };
        let is_bound = recorded.recording().dispatches || recorded.has_collectives();
        if is_bound && !is_same_device(made_by, device) {
            let message = "the command buffer has dispatches or collectives and was recorded for another device; \
                           record it for this one";
            return Err(invalid(message));
        }
        if recorded.recording().state != RecordingState::Closed {
            return Err(Failure::new(Code::FailedPrecondition, "the command buffer has not been ended"));
        }
        Ok(recorded)
    }

    /// Releases the command buffer unless this is the last reference to it, which is returned: it keeps buffers, whose
    /// release may call the program.
    pub(crate) fn release_unless_last(self) -> Option<Self> {
        self.buffer.release_unless_last().map(|buffer| Self { buffer })
    }

    /// The uses of each slot of the binding table, up to the last one used.
    pub(crate) fn slots(&self) -> &[Uses] {
        &self.recording().slots
    }

    /// True if `device` can use all memory that the commands name directly.
    pub(crate) fn names_only_memory_of(&self, device: *mut sys::iree_hal_device_t) -> bool {
        self.recording().owners.iter().all(|&owner| owner == device)
    }

    fn recording(&self) -> &Recording {
        // SAFETY: a command buffer of ours, kept by this reference, and closed, so not written any more, by the
        // invariants. `new` reads the state before it knows that it is closed: IREE rules out that one thread
        // records while another submits.
        unsafe { &*(*self.buffer.get().cast::<CommandBuffer>()).recording.get() }
    }

    pub(crate) fn steps(&self) -> &[CommandStep] {
        &self.recording().steps
    }

    #[expect(clippy::indexing_slicing, reason = "the number comes from `steps`, and the recording is closed")]
    pub(crate) fn step(&self, number: usize) -> &CommandStep {
        &self.steps()[number]
    }

    pub(crate) fn has_collectives(&self) -> bool {
        self.steps().iter().any(|step| !step.collectives.is_empty())
    }

    /// The commands of a step for a device, with the memory that the buffers have now.
    ///
    /// A reusable command buffer whose memory is certain resolves to the same list every time, so the list is
    /// cached.
    pub(crate) fn resolve<D: Device>(
        &self,
        step: usize,
        device: &Arc<D>,
        bindings: &[Option<BufferRange>],
        substitutes: &Substitutes,
    ) -> Result<Commands<D>> {
        let step = self.step(step);
        match step.cached.get() {
            Some(cached) => {
                let cached = cached.as_ref().and_then(|cached| cached.downcast_ref::<CachedCommands<D>>());
                if let Some(cached) = cached.filter(|cached| Arc::ptr_eq(&cached.device, device)) {
                    return Ok(Commands::Shared(cached.commands.clone()));
                }
            }
            None if self.may_run_again() => {
                let commands = step.records.iter().map(|record| record.resolve_static(device).transpose());
                let commands: Option<Result<Arc<[Command<D>]>>> = commands.collect();
                let commands = commands.transpose()?;
                // The first execution is cached, on any device, even if there is nothing to cache.
                let cached =
                    commands.clone().map(|commands| CachedCommands { device: device.clone(), commands });
                let _ = step.cached.set(cached.map(|cached| Box::new(cached) as _));
                if let Some(commands) = commands {
                    return Ok(Commands::Shared(commands));
                }
            }
            None => {}
        }
        let resolve = |record: &Record| record.resolve(device, bindings, substitutes);
        Ok(Commands::Own(step.records.iter().map(resolve).collect::<Result<_>>()?))
    }

    /// What devices know a step as; `None` if the recording runs only once.
    pub(crate) fn identity(&self, step: usize) -> Option<Arc<Identity>> {
        self.may_run_again().then(|| self.step(step).identity.get_or_init(Arc::default).clone())
    }

    fn may_run_again(&self) -> bool {
        // SAFETY: alive by this reference of `Recorded`, and the mode never changes.
        let mode = unsafe { (*self.buffer.get()).mode };
        mode & sys::iree_hal_command_buffer_mode_t::from(sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT) == 0
    }

    /// Its id in a profile.
    pub(crate) fn profile_id(&self) -> u64 {
        // SAFETY: alive by this reference of `Recorded`, and its name never changes.
        unsafe { (*self.buffer.get()).profile_id }
    }

    /// Its mode, categories and queue affinity, for the profile.
    pub(crate) fn properties(&self) -> (u64, u64, u64) {
        let base = self.buffer.get();
        // SAFETY: alive by this reference of `Recorded`, and these never change.
        unsafe { ((*base).mode.into(), (*base).allowed_categories.into(), (*base).queue_affinity) }
    }

    /// The slots that its binding table needs.
    pub(crate) fn binding_count(&self) -> usize {
        // SAFETY: alive by this reference of `Recorded`, whose recording is closed: the count does not change any more.
        unsafe { (*self.buffer.get()).binding_count as usize }
    }
}

/// A new command buffer, owned by the caller.
pub(crate) fn create(
    allocator: HostAllocator,
    device: DeviceIdentity,
    device_allocator: Borrowed<'_, sys::iree_hal_allocator_t>,
    mode: sys::iree_hal_command_buffer_mode_t,
    categories: sys::iree_hal_command_category_t,
    affinity: sys::iree_hal_queue_affinity_t,
    binding_capacity: usize,
) -> Result<*mut sys::iree_hal_command_buffer_t> {
    if binding_capacity > SLOTS {
        let message =
            format!("a binding table has at most {SLOTS} slots, and {binding_capacity} were asked for");
        return Err(Failure::new(Code::OutOfRange, message));
    }
    // SAFETY: a question about numbers.
    let state = unsafe { sys::iree_hal_command_buffer_validation_state_size(mode, binding_capacity) };
    let validation = (state > 0).then(|| HostMemory::zeroed(allocator, state)).transpose()?;
    let storage = validation.as_ref().map_or(std::ptr::null_mut(), HostMemory::start);
    let buffer = CommandBuffer {
        base: UnsafeCell::default(),
        allocator,
        device,
        validation,
        device_allocator: device_allocator.retain(),
        recording: UnsafeCell::new(Recording::default()),
    };
    let buffer = allocate(allocator, buffer)?.as_ptr().cast::<sys::iree_hal_command_buffer_t>();
    // SAFETY: the object is fresh and its base comes first; the validation state stays where it is with the object.
    unsafe {
        sys::iree_hal_command_buffer_initialize(
            device_allocator.get(),
            mode,
            categories,
            affinity,
            binding_capacity,
            storage,
            &raw const VTABLE,
            buffer,
        );
    }
    Ok(buffer)
}

type Base = *mut sys::iree_hal_command_buffer_t;

/// # Safety
///
/// The command buffer is one of ours and alive for `'a`, during which no other thread records or reads.
unsafe fn recording<'a>(base: Base) -> &'a mut Recording {
    // SAFETY: ours, alive and exclusively the caller's, as it promises.
    unsafe { &mut *(*base.cast::<CommandBuffer>()).recording.get() }
}

/// # Safety
///
/// As for [`recording`].
unsafe fn open<'a>(base: Base) -> Result<&'a mut Recording> {
    // SAFETY: as for `recording`, as the caller promises.
    let recording = unsafe { recording(base) };
    if recording.state == RecordingState::Open {
        return Ok(recording);
    }
    Err(Failure::new(Code::FailedPrecondition, "the command buffer is not recording"))
}

/// Appends a command to a command buffer that is recording.
///
/// # Safety
///
/// As for [`recording`].
unsafe fn record(base: Base, make: impl FnOnce() -> Result<Record>) -> sys::iree_status_t {
    guard_in_memory(|| {
        // SAFETY: as for `recording`, as the caller promises.
        let recording = unsafe { open(base)? };
        recording.add(make()?);
        Ok(())
    })
}

static VTABLE: sys::iree_hal_command_buffer_vtable_t = sys::iree_hal_command_buffer_vtable_t {
    destroy: Some(destroy),
    begin: Some(begin),
    end: Some(end),
    begin_debug_group: Some(begin_debug_group),
    end_debug_group: Some(end_debug_group),
    execution_barrier: Some(execution_barrier),
    signal_event: Some(change_event),
    reset_event: Some(change_event),
    wait_events: Some(wait_events),
    advise_buffer: Some(advise_buffer),
    flush_buffer: Some(flush_buffer),
    invalidate_buffer: Some(invalidate_buffer),
    fill_buffer: Some(fill_buffer),
    update_buffer: Some(update_buffer),
    copy_buffer: Some(copy_buffer),
    collective: Some(collective),
    dispatch: Some(dispatch),
};

unsafe extern "C" fn destroy(base: Base) {
    guard_or((), || {
        let object = base.cast::<CommandBuffer>();
        // SAFETY: the last reference is gone.
        unsafe {
            let allocator = (*object).allocator;
            free(allocator, object);
        }
    });
}

unsafe extern "C" fn begin(base: Base) -> sys::iree_status_t {
    guard_in_memory(|| {
        // SAFETY: C passes a live command buffer of ours.
        let recording = unsafe { recording(base) };
        match recording.state {
            RecordingState::Initial => recording.state = RecordingState::Open,
            RecordingState::Open => {
                return Err(Failure::new(
                    Code::FailedPrecondition,
                    "the command buffer is recording already",
                ));
            }
            RecordingState::Closed => {
                return Err(Failure::new(
                    Code::FailedPrecondition,
                    "a command buffer can be recorded only once",
                ));
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn end(base: Base) -> sys::iree_status_t {
    guard_in_memory(|| {
        // SAFETY: C passes a live command buffer of ours.
        let recording = unsafe { open(base)? };
        recording.steps.iter_mut().for_each(|step| step.records.shrink_to_fit());
        recording.state = RecordingState::Closed;
        Ok(())
    })
}

unsafe extern "C" fn begin_debug_group(
    base: Base,
    _label: sys::iree_string_view_t,
    _color: sys::iree_hal_label_color_t,
    _location: *const sys::iree_hal_label_location_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours.
    guard_in_memory(|| unsafe { open(base) }.map(drop))
}

unsafe extern "C" fn end_debug_group(base: Base) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours.
    guard_in_memory(|| unsafe { open(base) }.map(drop))
}

unsafe extern "C" fn execution_barrier(
    base: Base,
    _source: sys::iree_hal_execution_stage_t,
    _target: sys::iree_hal_execution_stage_t,
    _flags: sys::iree_hal_execution_barrier_flags_t,
    _memory_barrier_count: usize,
    _memory_barriers: *const sys::iree_hal_memory_barrier_t,
    _buffer_barrier_count: usize,
    _buffer_barriers: *const sys::iree_hal_buffer_barrier_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours.
    unsafe { record(base, || Ok(Record::Barrier)) }
}

/// Signals or resets an event. Neither does anything in an in-order queue.
unsafe extern "C" fn change_event(
    base: Base,
    event: *mut sys::iree_hal_event_t,
    _source: sys::iree_hal_execution_stage_t,
) -> sys::iree_status_t {
    guard_in_memory(|| {
        if event.is_null() {
            return Err(invalid("there is no event to signal or reset"));
        }
        // SAFETY: C passes a live command buffer of ours.
        unsafe { open(base) }.map(drop)
    })
}

unsafe extern "C" fn wait_events(
    base: Base,
    _event_count: usize,
    _events: *mut *const sys::iree_hal_event_t,
    _source: sys::iree_hal_execution_stage_t,
    _target: sys::iree_hal_execution_stage_t,
    _memory_barrier_count: usize,
    _memory_barriers: *const sys::iree_hal_memory_barrier_t,
    _buffer_barrier_count: usize,
    _buffer_barriers: *const sys::iree_hal_buffer_barrier_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours.
    unsafe { record(base, || Ok(Record::Barrier)) }
}

unsafe extern "C" fn advise_buffer(
    base: Base,
    _buffer: sys::iree_hal_buffer_ref_t,
    _flags: sys::iree_hal_memory_advise_flags_t,
    _arg0: u64,
    _arg1: u64,
) -> sys::iree_status_t {
    // Advice may be ignored. SAFETY: C passes a live command buffer of ours.
    guard_in_memory(|| unsafe { open(base) }.map(drop))
}

/// A flush only checks its range: a queue's writes are visible once its epoch is reported.
unsafe extern "C" fn flush_buffer(base: Base, target: sys::iree_hal_buffer_ref_t) -> sys::iree_status_t {
    guard_in_memory(|| {
        // SAFETY: C passes a live command buffer of ours, and a buffer that is alive or null.
        unsafe {
            open(base)?;
            Reference::new(&target).map(drop)
        }
    })
}

unsafe extern "C" fn invalidate_buffer(base: Base, target: sys::iree_hal_buffer_ref_t) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours, and a buffer that is alive or null, as `flush_buffer` asks.
    unsafe { flush_buffer(base, target) }
}

unsafe extern "C" fn fill_buffer(
    base: Base,
    target: sys::iree_hal_buffer_ref_t,
    pattern: *const c_void,
    pattern_length: usize,
    _flags: sys::iree_hal_fill_flags_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours and lets us use the rest for the call.
    unsafe { record(base, || Record::fill(Reference::new(&target)?, pattern, pattern_length)) }
}

unsafe extern "C" fn update_buffer(
    base: Base,
    source: *const c_void,
    source_offset: usize,
    target: sys::iree_hal_buffer_ref_t,
    _flags: sys::iree_hal_update_flags_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours and lets us use the rest for the call; the source has as many
    // bytes as the target asks for.
    unsafe {
        record(base, || {
            let reference = Reference::new(&target)?;
            let length = update_length(&reference)?;
            let source = bytes(source, source_offset, length)?;
            Record::update(update_staging::copy(source)?, reference)
        })
    }
}

/// The bytes that the source of an update has. A length "to the end" is known only of a buffer that is named
/// directly.
fn update_length(target: &Reference) -> Result<usize> {
    let length = match target {
        Reference::Direct(range) => range.length,
        Reference::Slot { length, .. } => *length,
    };
    isize::try_from(length).map(isize::unsigned_abs).map_err(|_| {
        let message = "an update of a binding slot needs a length: the slot's buffer is not known when its \
                       bytes are captured";
        Failure::new(Code::OutOfRange, message)
    })
}

unsafe extern "C" fn copy_buffer(
    base: Base,
    source: sys::iree_hal_buffer_ref_t,
    target: sys::iree_hal_buffer_ref_t,
    _flags: sys::iree_hal_copy_flags_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours and lets us use the rest for the call.
    unsafe { record(base, || Record::copy(Reference::new(&source)?, Reference::new(&target)?)) }
}

unsafe extern "C" fn collective(
    base: Base,
    channel: *mut sys::iree_hal_channel_t,
    op: sys::iree_hal_collective_op_t,
    param: u32,
    send: sys::iree_hal_buffer_ref_t,
    recv: sys::iree_hal_buffer_ref_t,
    element_count: sys::iree_device_size_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live command buffer of ours and lets us use the rest for the call.
        unsafe {
            let device = &(*base.cast::<CommandBuffer>()).device;
            let recording = open(base)?;
            let record =
                CollectiveRecord::new(device, channel, op, param, [&send, &recv], to_u64(element_count))?;
            recording.add_collective(record);
        }
        Ok(())
    })
}

unsafe extern "C" fn dispatch(
    base: Base,
    executable: *mut sys::iree_hal_executable_t,
    function: sys::iree_hal_executable_function_t,
    config: sys::iree_hal_dispatch_config_t,
    constants: sys::iree_const_byte_span_t,
    bindings: sys::iree_hal_buffer_ref_list_t,
    flags: sys::iree_hal_dispatch_flags_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live command buffer of ours and lets us use the rest for the call.
    unsafe {
        let device = &(*base.cast::<CommandBuffer>()).device;
        record(base, || Record::dispatch(device, executable, function, &config, constants, bindings, flags))
    }
}

/// Events. A queue is in order, so an event has no state.
pub(crate) mod event {
    use super::*;
    use crate::ffi::object::{Header, resource};

    #[repr(C)]
    struct Event {
        resource: Header,
        allocator: HostAllocator,
    }

    static VTABLE: sys::iree_hal_event_vtable_t = sys::iree_hal_event_vtable_t { destroy: Some(destroy) };

    unsafe extern "C" fn destroy(event: *mut sys::iree_hal_event_t) {
        let event = event.cast::<Event>();
        // SAFETY: the last reference is gone.
        guard_or((), || unsafe { free((*event).allocator, event) });
    }

    /// A new event, owned by the caller.
    pub(crate) fn create(allocator: HostAllocator, out: Out<*mut sys::iree_hal_event_t>) -> Result {
        let event = allocate(allocator, Event { resource: resource(&raw const VTABLE), allocator })?;
        out.set(event.as_ptr().cast());
        Ok(())
    }
}

/// The buffers of an execution, checked against the command buffer's slots.
///
/// # Safety
///
/// The table is valid for the call.
pub(crate) unsafe fn bindings(
    recorded: &Recorded,
    table: &sys::iree_hal_buffer_binding_table_t,
) -> Result<Box<[Option<BufferRange>]>> {
    // SAFETY: the table is valid for the call, as the caller promises.
    let bindings = unsafe { crate::command::record::binding_table(table)? };
    if bindings.len() < recorded.binding_count() {
        let message = format!(
            "the command buffer needs a binding table of {} slots, and got one of {}",
            recorded.binding_count(),
            bindings.len()
        );
        return Err(invalid(message));
    }
    for (slot, (uses, binding)) in recorded.slots().iter().zip(&bindings).enumerate() {
        let Some(range) = binding else { continue };
        for usage in uses.iter() {
            usage.check(range.borrow()).map_err(|failure| {
                Failure::new(
                    failure.code(),
                    format!("slot {slot} of the binding table: {}", failure.message()),
                )
            })?;
        }
    }
    Ok(bindings)
}
