// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The queue operations of the device.

use super::collective_steps::end_groups;
use super::submit::{SemaphoreLists, Side};
use super::{DeviceState, HalDevice, Raw, Table};
use crate::command::command_buffer::{Recorded, bindings};
use crate::command::record::{Record, Reference, Use, fill_pattern};
use crate::device::work::{HostCall, Operation, ProgramCall, Transfer};
use crate::ffi::constants::{ACCESS_READ, ACCESS_WRITE};
use crate::ffi::object::Opaque;
use crate::ffi::object::{Borrowed, Out, Retained, bytes, slice, to_device_size, to_u64};
use crate::ffi::status::{Result, check, guard, invalid};
use crate::memory::alloca::{Alloca, Attempt, Dealloca};
use crate::memory::buffer_range::{BorrowedRange, BufferRange};
use crate::memory::heap;
use crate::memory::reservation::Pool;
use crate::memory::transient::TransientBuffer;
use crate::sync::semaphore::List;
use hal_backend::{Command, Device, Pattern};
use hal_semaphore::{Affinity, Code, Failure};
use hal_sys as sys;
use std::ffi::c_void;

const ALLOCA_FLAGS: sys::iree_hal_alloca_flags_t = INDETERMINATE | MAY_WAIT;

const INDETERMINATE: sys::iree_hal_alloca_flags_t =
    sys::IREE_HAL_ALLOCA_FLAG_INDETERMINATE_LIFETIME as sys::iree_hal_alloca_flags_t;

const MAY_WAIT: sys::iree_hal_alloca_flags_t =
    sys::IREE_HAL_ALLOCA_FLAG_ALLOW_POOL_WAIT_FRONTIER as sys::iree_hal_alloca_flags_t;

const NON_BLOCKING: sys::iree_hal_host_call_flags_t =
    sys::IREE_HAL_HOST_CALL_FLAG_NON_BLOCKING as sys::iree_hal_host_call_flags_t;

impl<D: Device> DeviceState<D> {
    /// Submits a transfer or a dispatch; an empty one is a barrier.
    #[inline(always)]
    fn record(&self, affinity: Affinity, lists: &SemaphoreLists<'_>, record: Record, length: u64) -> Result {
        if length == 0 {
            return self.barrier(affinity, lists);
        }
        if !self.can_use(&record) {
            return self.submit_bounced(affinity, lists, record);
        }
        self.submit_record(affinity, lists, record)
    }

    #[inline]
    fn fill(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        target: BorrowedRange<'_>,
        pattern: Pattern,
    ) -> Result {
        Use::Target.check(target)?;
        if let Some(target) = self.certain_memory(target) {
            return self.submit_command(affinity, lists, Command::Fill { target, pattern });
        }
        let record = Record::Fill { target: Reference::Direct(target.retain()), pattern };
        self.record(affinity, lists, record, target.length)
    }

    #[inline]
    fn copy(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        source: BorrowedRange<'_>,
        target: BorrowedRange<'_>,
    ) -> Result {
        if source.length != target.length {
            return Err(invalid(format!("cannot copy {} bytes onto {}", source.length, target.length)));
        }
        Use::Source.check(source)?;
        Use::Target.check(target)?;
        if let Some(from) = self.certain_memory(source)
            && let Some(to) = self.certain_memory(target)
        {
            return self.submit_command(affinity, lists, Command::Copy { source: from, target: to });
        }
        let (from, to) = (Reference::Direct(source.retain()), Reference::Direct(target.retain()));
        self.record(affinity, lists, Record::Copy { source: from, target: to }, target.length)
    }

    /// Submits an update and captures its bytes.
    #[inline]
    fn update(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        source: &[u8],
        target: BorrowedRange<'_>,
    ) -> Result {
        let source = self.staging.capture(source)?;
        if let Some(target) = self.certain_memory(target) {
            return self.submit_command(affinity, lists, Command::Update { source, target });
        }
        let record = Record::Update { source, target: Reference::Direct(target.retain()) };
        self.record(affinity, lists, record, target.length)
    }

    /// The heap and the parameters of a stream-ordered buffer.
    fn place_transient(
        &self,
        params: &sys::iree_hal_buffer_params_t,
        length: u64,
    ) -> Result<(usize, sys::iree_hal_buffer_params_t)> {
        let mut params = *params;
        // SAFETY: parameters of ours, in which what was left open is filled in.
        unsafe { sys::iree_hal_buffer_params_canonicalize(&raw mut params) };
        let (heap, params) = heap::place(&self.properties, &params)?;
        if self.properties.heaps.get(heap).is_none_or(|heap| length > heap.max_allocation) {
            let message =
                format!("this device cannot allocate {length} bytes of the kind that was asked for");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        Ok((heap, params))
    }

    /// A buffer of no bytes, for which no queue allocates.
    fn empty_buffer(
        &self,
        params: sys::iree_hal_buffer_params_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let mut buffer = std::ptr::null_mut();
        // SAFETY: the device holds its allocator; the out-parameter is ours.
        let buffer = unsafe {
            let allocator = self.device_allocator().get();
            check(sys::iree_hal_allocator_allocate_buffer(allocator, params, 0, &raw mut buffer))?;
            Retained::adopt(buffer)
        };
        buffer.ok_or_else(|| invalid("the allocator reported success but returned no buffer"))
    }

    #[expect(clippy::too_many_arguments, reason = "IREE passes these values")]
    /// A stream-ordered allocation: the buffer exists at once, its memory when the waits are reached.
    fn alloca(
        &self,
        raw: Raw,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        pool: Option<Pool>,
        params: &sys::iree_hal_buffer_params_t,
        length: u64,
        flags: sys::iree_hal_alloca_flags_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        if flags & !ALLOCA_FLAGS != 0 {
            return Err(invalid(format!("queue_alloca has no flags {:#x}", flags & !ALLOCA_FLAGS)));
        }
        let (heap, mut params) = self.place_transient(params, length)?;
        if length == 0 {
            let buffer = self.empty_buffer(params)?;
            self.barrier(affinity, lists)?;
            return Ok(buffer);
        }
        // A stream-ordered buffer belongs to one queue.
        let queue = Affinity(1 << affinity.0.trailing_zeros().min(63));
        let mut placement_flags = sys::IREE_HAL_BUFFER_PLACEMENT_FLAG_ASYNCHRONOUS;
        if flags & INDETERMINATE != 0 {
            placement_flags |= sys::IREE_HAL_BUFFER_PLACEMENT_FLAG_INDETERMINATE_LIFETIME;
        }
        let placement = sys::iree_hal_buffer_placement_t {
            device: raw,
            queue_affinity: queue.0,
            flags: placement_flags as sys::iree_hal_buffer_placement_flags_t,
            reserved: 0,
        };
        if pool.is_none() {
            // All memory of the heap has this alignment, and IREE's pools know only smaller ones.
            params.min_alignment = 0;
        }
        let buffer = TransientBuffer::create(self.allocator, placement, &params, length, self.pools.clone())?;
        let (pool, early_limit) = match pool {
            Some(pool) => (pool, 0),
            None => self.pools.select(heap, length)?,
        };
        let may_wait = flags & MAY_WAIT != 0;
        let alloca =
            Alloca { pool, params, length, may_wait, buffer: buffer.clone(), early_limit, is_early: false };
        // Waits already reached: allocate now, and return errors to the caller.
        let (side, operation) = if lists.waits.reached() {
            match self.pending_allocas.attempt(&alloca)? {
                Attempt::Done => {
                    self.submit_barrier(queue, lists, sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_ALLOCA, length)?;
                    return Ok(buffer.to_buffer());
                }
                Attempt::Frontier(reservation) => {
                    (Side::Host, Operation::Await(Box::new((alloca, Some(reservation)))))
                }
                Attempt::Exhausted => (Side::Host, Operation::Await(Box::new((alloca, None)))),
            }
        } else {
            (if early_limit > 0 { Side::Early } else { Side::Host }, Operation::Alloca(alloca))
        };
        self.submit(queue, lists, side, operation)?;
        Ok(buffer.to_buffer())
    }

    /// A stream-ordered deallocation. For any other buffer, or one of another device, it is a barrier.
    fn dealloca(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        buffer: Borrowed<'_, sys::iree_hal_buffer_t>,
    ) -> Result {
        let buffer = TransientBuffer::of(buffer).filter(|buffer| buffer.is_of(&self.pools));
        let Some(buffer) = buffer else { return self.barrier(affinity, lists) };
        self.submit(
            affinity,
            lists,
            Side::Marker,
            Operation::Dealloca(Dealloca::new(buffer, self.pools.own())),
        )
    }

    /// Copies between a file and a buffer.
    fn transfer(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        file: Borrowed<'_, sys::iree_hal_file_t>,
        file_offset: u64,
        range: BufferRange,
        writes_file: bool,
    ) -> Result {
        let length = range.length;
        let access = if writes_file { ACCESS_WRITE } else { ACCESS_READ };
        if writes_file { Use::Source } else { Use::Target }.check(range.borrow())?;
        let raw = file.get();
        // SAFETY: the file is borrowed, and keeps its storage.
        let (storage, size, blocking) = unsafe {
            check(sys::iree_hal_file_validate_access(raw, access))?;
            let storage = Borrowed::new(sys::iree_hal_file_storage_buffer(raw));
            (storage, sys::iree_hal_file_length(raw), sys::iree_hal_file_supports_synchronous_io(raw))
        };
        if length == 0 {
            return self.barrier(affinity, lists);
        }
        if let Some(storage) = storage {
            let bytes =
                BufferRange::new(storage.retain(), to_device_size(file_offset), to_device_size(length))?;
            return if writes_file {
                self.copy(affinity, lists, range.borrow(), bytes.borrow())
            } else {
                self.copy(affinity, lists, bytes.borrow(), range.borrow())
            };
        }
        let outside = file_offset.checked_add(length).is_none_or(|end| size > 0 && end > size);
        if outside && !writes_file {
            let message = format!("{length} bytes at {file_offset} are not inside a file of {size} bytes");
            return Err(Failure::new(Code::OutOfRange, message));
        }
        if !blocking {
            return Err(invalid("the file can neither be mapped nor read and written from a thread"));
        }
        let mapped = range.is_host_visible();
        let transfer = Transfer { file: file.retain(), file_offset, range, writes_file };
        if !mapped {
            return self.staged(affinity, lists, &transfer);
        }
        self.submit(affinity, lists, Side::Host, Operation::Transfer(Box::new(transfer)))
    }

    fn host_call(
        &self,
        raw: Raw,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        call: ProgramCall,
        arguments: [u64; 4],
        blocks: bool,
    ) -> Result {
        let queue = Affinity(1 << affinity.0.trailing_zeros().min(63));
        let signals = blocks.then(|| lists.signals.to_owned());
        let call = HostCall { call, arguments, affinity: queue.0, device: Opaque(raw.cast()), signals };
        let operation = Operation::HostCall(Box::new(call));
        if blocks {
            // The call signals or fails its own semaphores, perhaps later.
            let waits = SemaphoreLists { waits: lists.waits.borrow(), signals: List::empty() };
            return self.submit(queue, &waits, Side::Host, operation);
        }
        self.submit(queue, lists, Side::Host, operation)
    }
}

impl<D: Device> Table<D> {
    pub(super) unsafe extern "C" fn queue_alloca(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        pool: *mut sys::iree_hal_pool_t,
        params: sys::iree_hal_buffer_params_t,
        allocation_size: sys::iree_device_size_t,
        flags: sys::iree_hal_alloca_flags_t,
        out: *mut *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let affinity = state.affinity(affinity);
                // A pool outlives its allocations, as IREE requires of its owner.
                let pool = (!pool.is_null()).then(|| Pool::new(pool));
                let buffer =
                    state.alloca(device, affinity, &lists, pool, &params, to_u64(allocation_size), flags)?;
                Out::new(out).set(buffer.into_raw());
            }
            Ok(())
        })
    }

    pub(super) unsafe extern "C" fn queue_dealloca(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        buffer: *mut sys::iree_hal_buffer_t,
        _flags: sys::iree_hal_dealloca_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let buffer = Borrowed::required(buffer, "there is no buffer to deallocate")?;
                state.dealloca(state.affinity(affinity), &lists, buffer)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_fill(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        target: *mut sys::iree_hal_buffer_t,
        target_offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
        pattern: *const c_void,
        pattern_length: usize,
        _flags: sys::iree_hal_fill_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let target = BorrowedRange::new(target, target_offset, length)?;
                let pattern = fill_pattern(pattern, pattern_length)?;
                state.fill(state.affinity(affinity), &lists, target, pattern)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_update(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        source: *const c_void,
        source_offset: usize,
        target: *mut sys::iree_hal_buffer_t,
        target_offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
        _flags: sys::iree_hal_update_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call; the source has `length`
            // bytes.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let target = BorrowedRange::new(target, target_offset, length)?;
                Use::Target.check(target)?;
                let count = usize::try_from(target.length).map_err(|_| {
                    invalid(
                        "an update is larger than the address \
                         space",
                    )
                })?;
                state.update(state.affinity(affinity), &lists, bytes(source, source_offset, count)?, target)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_copy(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        source: *mut sys::iree_hal_buffer_t,
        source_offset: sys::iree_device_size_t,
        target: *mut sys::iree_hal_buffer_t,
        target_offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
        _flags: sys::iree_hal_copy_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let source = BorrowedRange::new(source, source_offset, length)?;
                let target = BorrowedRange::new(target, target_offset, length)?;
                state.copy(state.affinity(affinity), &lists, source, target)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_read(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        file: *mut sys::iree_hal_file_t,
        file_offset: u64,
        target: *mut sys::iree_hal_buffer_t,
        target_offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
        _flags: sys::iree_hal_read_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let target = BufferRange::retain(target, target_offset, length)?;
                let file = Borrowed::required(file, "there is no file to read")?;
                state.transfer(state.affinity(affinity), &lists, file, file_offset, target, false)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_write(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        source: *mut sys::iree_hal_buffer_t,
        source_offset: sys::iree_device_size_t,
        file: *mut sys::iree_hal_file_t,
        file_offset: u64,
        length: sys::iree_device_size_t,
        _flags: sys::iree_hal_write_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let source = BufferRange::retain(source, source_offset, length)?;
                let file = Borrowed::required(file, "there is no file to write")?;
                state.transfer(state.affinity(affinity), &lists, file, file_offset, source, true)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_host_call(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        call: sys::iree_hal_host_call_t,
        arguments: *const u64,
        flags: sys::iree_hal_host_call_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours, four arguments, and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let arguments =
                    slice(arguments, 4)?.try_into().map_err(|_| invalid("a call has four arguments"))?;
                let blocks = flags & NON_BLOCKING == 0;
                let call = ProgramCall::new(call).ok_or_else(|| invalid("a host call needs a function"))?;
                state.host_call(device, state.affinity(affinity), &lists, call, arguments, blocks)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_dispatch(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        executable: *mut sys::iree_hal_executable_t,
        function: sys::iree_hal_executable_function_t,
        config: sys::iree_hal_dispatch_config_t,
        constants: sys::iree_const_byte_span_t,
        bindings: sys::iree_hal_buffer_ref_list_t,
        flags: sys::iree_hal_dispatch_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let device = &state.identity;
                let record =
                    Record::dispatch(device, executable, function, &config, constants, bindings, flags)?;
                record.check_direct()?;
                if record.is_without_workgroups() {
                    return state.barrier(state.affinity(affinity), &lists);
                }
                state.record(state.affinity(affinity), &lists, record, 1)
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_execute(
        device: Raw,
        affinity: sys::iree_hal_queue_affinity_t,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        command_buffer: *mut sys::iree_hal_command_buffer_t,
        table: sys::iree_hal_buffer_binding_table_t,
        _flags: sys::iree_hal_execute_flags_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live device of ours and lets us use the rest for the call.
            unsafe {
                let (state, lists) = (HalDevice::<D>::of(device), SemaphoreLists::new(&waits, &signals)?);
                let affinity = state.affinity(affinity);
                if command_buffer.is_null() {
                    return state.barrier(affinity, &lists);
                }
                let command_buffer =
                    Borrowed::required(command_buffer, "there is no command buffer to execute")?;
                let commands = Recorded::new(command_buffer, &state.identity)?;
                let bindings = bindings(&commands, &table).inspect_err(|why| end_groups(&commands, why))?;
                if commands.has_collectives() {
                    return state.execute_steps(affinity, &lists, &commands, &bindings);
                }
                // A single step without collectives.
                let bounces = state.bounce_commands(&commands, commands.step(0), &bindings)?;
                let substitutes = bounces.substitutes();
                let operation = Operation::Execute { commands, step: 0, bindings, substitutes, part: None };
                state.with_bounces(affinity, &lists, &bounces, |lists| {
                    state.submit(affinity, lists, Side::Queue, operation)
                })
            }
        })
    }

    pub(super) unsafe extern "C" fn queue_flush(
        _device: Raw,
        _affinity: sys::iree_hal_queue_affinity_t,
    ) -> sys::iree_status_t {
        // Submissions go out at once.
        crate::ffi::status::OK
    }
}
