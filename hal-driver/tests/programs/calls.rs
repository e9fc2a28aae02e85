// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The calls of a program. Memory that is borrowed for a call is overwritten before it is freed.

use crate::common::{self, Buffer, Commands, check};
use crate::host::{Ticket, called, cause};
use crate::program::{Action, At, Base, BufferPart, Command, Count, Dispatch, Ends, Memory, Recorded};
use crate::scene::{Scene, params};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::{null, null_mut};
use std::sync::Arc;

impl Scene {
    /// A part as a reference for a command buffer or a dispatch. Its buffer is kept in `kept`.
    fn reference(&self, part: &BufferPart, kept: &mut Vec<Buffer>) -> sys::iree_hal_buffer_ref_t {
        match part.base {
            Base::Slot(slot) => unsafe {
                sys::iree_hal_make_indirect_buffer_ref(slot as u32, part.offset, part.length)
            },
            Base::Buffer(_) => {
                let (buffer, offset) = self.buffer(part);
                let raw = buffer.0;
                kept.push(buffer);
                unsafe { sys::iree_hal_make_buffer_ref(raw, offset, part.length) }
            }
        }
    }

    pub(crate) fn record(&self, number: usize) -> common::Result<Commands> {
        let recording = &self.program.recordings[number];
        let mut mode = 0;
        if recording.one_shot {
            mode |= sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT;
        }
        if !recording.validated {
            mode |= sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED;
        }
        let (categories, device) = (sys::IREE_HAL_COMMAND_CATEGORY_ANY, self.device(recording.device));
        unsafe {
            let mut raw = null_mut();
            check(sys::iree_hal_command_buffer_create(
                device,
                mode,
                categories,
                u64::MAX,
                recording.slots,
                &raw mut raw,
            ))?;
            let commands = Commands(raw);
            check(sys::iree_hal_command_buffer_begin(raw))?;
            for recorded in &recording.commands {
                match recorded {
                    Recorded::Barrier => check(sys::iree_hal_command_buffer_execution_barrier(
                        raw,
                        sys::IREE_HAL_EXECUTION_STAGE_COMMAND_RETIRE,
                        sys::IREE_HAL_EXECUTION_STAGE_COMMAND_ISSUE,
                        0,
                        0,
                        null(),
                        0,
                        null(),
                    ))?,
                    Recorded::Command(command) => self.record_command(raw, recording.device, command)?,
                }
            }
            check(sys::iree_hal_command_buffer_end(raw))?;
            Ok(commands)
        }
    }

    fn record_command(
        &self,
        commands: *mut sys::iree_hal_command_buffer_t,
        device: usize,
        command: &Command,
    ) -> common::Result {
        let mut kept = Vec::new();
        unsafe {
            match command {
                Command::Fill { target, pattern } => {
                    let mut copied = pattern.clone();
                    let status = sys::iree_hal_command_buffer_fill_buffer(
                        commands,
                        self.reference(target, &mut kept),
                        copied.as_ptr().cast(),
                        copied.len(),
                        0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Update { target, bytes } => {
                    let mut copied = shifted(bytes);
                    let status = sys::iree_hal_command_buffer_update_buffer(
                        commands,
                        copied.as_ptr().cast(),
                        SHIFT,
                        self.reference(target, &mut kept),
                        0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Copy { source, target } => check(sys::iree_hal_command_buffer_copy_buffer(
                    commands,
                    self.reference(source, &mut kept),
                    self.reference(target, &mut kept),
                    0,
                )),
                Command::Dispatch(dispatch) => self.with_dispatch(
                    device,
                    dispatch,
                    |executable, function, config, constants, list, flags| {
                        sys::iree_hal_command_buffer_dispatch(
                            commands,
                            executable,
                            function,
                            config,
                            constants,
                            list,
                            flags.into(),
                        )
                    },
                ),
            }
        }
    }

    /// Calls with a dispatch's arguments, and overwrites them afterwards.
    fn with_dispatch(
        &self,
        device: usize,
        dispatch: &Dispatch,
        call: impl FnOnce(
            *mut sys::iree_hal_executable_t,
            sys::iree_hal_executable_function_t,
            sys::iree_hal_dispatch_config_t,
            sys::iree_const_byte_span_t,
            sys::iree_hal_buffer_ref_list_t,
            u32,
        ) -> sys::iree_status_t,
    ) -> common::Result {
        let (module, function) = dispatch.kernel.place();
        let executable = &self.machine.kernels[device][module][dispatch.format];
        let mut kept = Vec::new();
        let mut config = sys::iree_hal_dispatch_config_t { workgroup_count: [1; 3], ..Default::default() };
        let mut flags = 0;
        match &dispatch.count {
            Count::Fixed(count) => config.workgroup_count[0] = *count,
            Count::Buffer(part) => {
                config.workgroup_count = [u32::MAX; 3];
                config.workgroup_count_ref = self.reference(part, &mut kept);
                flags = sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_PARAMETERS;
            }
        }
        let mut words = dispatch.kernel.constants().to_vec();
        let constants =
            sys::iree_const_byte_span_t { data: words.as_ptr().cast(), data_length: words.len() * 4 };
        let mut references: Vec<_> =
            dispatch.bindings.iter().map(|part| self.reference(part, &mut kept)).collect();
        let list = sys::iree_hal_buffer_ref_list_t { count: references.len(), values: references.as_ptr() };
        let status = unsafe {
            let function = sys::iree_hal_executable_function_from_index(function);
            call(executable.0, function, config, constants, list, flags)
        };
        words.fill(u32::MAX);
        references.fill(sys::iree_hal_buffer_ref_t::default());
        check(status)
    }

    pub(crate) fn submit_all(self: &Arc<Self>, thread: usize) {
        for &number in &self.program.order {
            if self.program.steps[number].thread != thread {
                continue;
            }
            if let Err(error) = self.submit(number) {
                if self.machine.refuses_late(self.program.steps[number].device)
                    && self.is_cause(&self.expected.failures[number], &error)
                {
                    for at in &self.program.steps[number].signals {
                        self.timelines[at.timeline].fail(error.code, &error.text);
                    }
                    continue;
                }
                self.trouble(format!("step {number} was refused: {:?} {}", error.code, error.text));
                // Its waiters must not wait for ever.
                for at in &self.program.steps[number].signals {
                    self.timelines[at.timeline].fail(Code::Cancelled, "a step before was refused");
                }
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    fn submit(self: &Arc<Self>, number: usize) -> common::Result {
        let step = &self.program.steps[number];
        let device = self.device(step.device);
        let affinity = self.machine.affinity(step.device, step.affinity);
        let mut lists = SemaphoreLists::of(self, &step.waits, &step.signals);
        let (waits, signals) = lists.raw();
        let submitted = unsafe {
            match &step.action {
                Action::Barrier => {
                    check(sys::iree_hal_device_queue_barrier(device, affinity, waits, signals, 0))
                }
                Action::Command(command) | Action::Broken(command) => {
                    self.submit_command(step.device, affinity, waits, signals, command)
                }
                Action::Execute { recording, table } => {
                    let one_shot;
                    let commands = match &self.reusable[*recording] {
                        Some(commands) => commands,
                        None => {
                            one_shot = self.record(*recording)?;
                            &one_shot
                        }
                    };
                    let mut kept = Vec::new();
                    let mut bindings: Vec<sys::iree_hal_buffer_binding_t> = table
                        .iter()
                        .map(|part| {
                            let reference = self.reference(part, &mut kept);
                            sys::iree_hal_buffer_binding_t {
                                buffer: reference.buffer,
                                offset: reference.offset,
                                length: reference.length,
                            }
                        })
                        .collect();
                    let table = sys::iree_hal_buffer_binding_table_t {
                        count: bindings.len(),
                        bindings: bindings.as_ptr(),
                    };
                    let status = sys::iree_hal_device_queue_execute(
                        device, affinity, waits, signals, commands.0, table, 0,
                    );
                    bindings.fill(sys::iree_hal_buffer_binding_t::default());
                    check(status)
                }
                Action::Allocate(buffer) => {
                    let (params, length) = (params(Memory::Transient), self.program.buffers[*buffer].length);
                    let (pool, mut made) = (null_mut(), null_mut());
                    check(sys::iree_hal_device_queue_alloca(
                        device,
                        affinity,
                        waits,
                        signals,
                        pool,
                        params,
                        length,
                        0,
                        &raw mut made,
                    ))
                    .map(|()| drop(self.buffers[*buffer].set(Buffer(made))))
                }
                Action::Deallocate(buffer) => {
                    let buffer = self.buffer(&BufferPart::of_buffer(*buffer, 0, 0)).0;
                    check(sys::iree_hal_device_queue_dealloca(device, affinity, waits, signals, buffer.0, 0))
                }
                Action::ReadFile { file, offset, target } => {
                    let (buffer, at) = self.buffer(target);
                    let (file, offset) = (self.files[*file].imported[step.device], *offset as u64);
                    check(sys::iree_hal_device_queue_read(
                        device,
                        affinity,
                        waits,
                        signals,
                        file,
                        offset,
                        buffer.0,
                        at,
                        target.length,
                        0,
                    ))
                }
                Action::WriteFile { source, file, offset } => {
                    let (buffer, at) = self.buffer(source);
                    let (file, offset) = (self.files[*file].imported[step.device], *offset as u64);
                    check(sys::iree_hal_device_queue_write(
                        device,
                        affinity,
                        waits,
                        signals,
                        buffer.0,
                        at,
                        file,
                        offset,
                        source.length,
                        0,
                    ))
                }
                Action::Call { ends, .. } => {
                    // A function that is never called leaks its ticket.
                    let ticket: Ticket = (Arc::downgrade(self), number);
                    let user_data = Box::into_raw(Box::new(ticket)).cast();
                    let call = sys::iree_hal_host_call_t { fn_: Some(called), user_data };
                    let flags = if *ends == Ends::Detached {
                        u64::from(sys::IREE_HAL_HOST_CALL_FLAG_NON_BLOCKING)
                    } else {
                        0
                    };
                    let mut arguments = [number as u64, !number as u64, 1, 2];
                    let status = sys::iree_hal_device_queue_host_call(
                        device,
                        affinity,
                        waits,
                        signals,
                        call,
                        arguments.as_ptr(),
                        flags,
                    );
                    arguments.fill(u64::MAX);
                    check(status)
                }
                Action::Host(visit) => self.be_the_host(number, visit.as_ref()),
                Action::Fail(code) => {
                    for at in &step.signals {
                        self.timelines[at.timeline].fail(*code, &cause(number));
                    }
                    Ok(())
                }
            }
        };
        lists.overwrite();
        submitted
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    fn submit_command(
        &self,
        number: usize,
        affinity: u64,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        command: &Command,
    ) -> common::Result {
        let device = self.device(number);
        unsafe {
            match command {
                Command::Fill { target, pattern } => {
                    let (buffer, offset) = self.buffer(target);
                    let mut copied = pattern.clone();
                    let (bytes, count) = (copied.as_ptr().cast(), copied.len());
                    let status = sys::iree_hal_device_queue_fill(
                        device,
                        affinity,
                        waits,
                        signals,
                        buffer.0,
                        offset,
                        target.length,
                        bytes,
                        count,
                        0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Update { target, bytes } => {
                    let (buffer, offset) = self.buffer(target);
                    let mut copied = shifted(bytes);
                    let (source, length) = (copied.as_ptr().cast(), target.length);
                    let status = sys::iree_hal_device_queue_update(
                        device, affinity, waits, signals, source, SHIFT, buffer.0, offset, length, 0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Copy { source, target } => {
                    let ((from, from_offset), (to, to_offset)) = (self.buffer(source), self.buffer(target));
                    let length = target.length;
                    check(sys::iree_hal_device_queue_copy(
                        device,
                        affinity,
                        waits,
                        signals,
                        from.0,
                        from_offset,
                        to.0,
                        to_offset,
                        length,
                        0,
                    ))
                }
                Command::Dispatch(dispatch) => self.with_dispatch(
                    number,
                    dispatch,
                    |executable, function, config, constants, list, flags| {
                        sys::iree_hal_device_queue_dispatch(
                            device,
                            affinity,
                            waits,
                            signals,
                            executable,
                            function,
                            config,
                            constants,
                            list,
                            flags.into(),
                        )
                    },
                ),
            }
        }
    }
}

/// The offset of an update's bytes in their memory.
const SHIFT: usize = 3;

fn shifted(bytes: &[u8]) -> Vec<u8> {
    [[0xDD; SHIFT].as_slice(), bytes].concat()
}

/// Semaphore lists that are overwritten after the call.
struct SemaphoreLists {
    waits: (Vec<*mut sys::iree_hal_semaphore_t>, Vec<u64>),
    signals: (Vec<*mut sys::iree_hal_semaphore_t>, Vec<u64>),
}

impl SemaphoreLists {
    fn of(scene: &Scene, waits: &[At], signals: &[At]) -> Self {
        let list = |points: &[At]| points.iter().map(|at| (scene.timelines[at.timeline].0, at.value)).unzip();
        Self { waits: list(waits), signals: list(signals) }
    }

    fn raw(&mut self) -> (sys::iree_hal_semaphore_list_t, sys::iree_hal_semaphore_list_t) {
        let raw =
            |list: &mut (Vec<*mut sys::iree_hal_semaphore_t>, Vec<u64>)| sys::iree_hal_semaphore_list_t {
                count: list.0.len(),
                semaphores: list.0.as_mut_ptr(),
                payload_values: list.1.as_mut_ptr(),
            };
        (raw(&mut self.waits), raw(&mut self.signals))
    }

    fn overwrite(&mut self) {
        for list in [&mut self.waits, &mut self.signals] {
            list.0.fill(null_mut());
            list.1.fill(u64::MAX);
        }
    }
}
