// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The description of an operation that a profile records.

use crate::command::command_buffer::Recorded;
use crate::command::record::{DispatchRecord, Record};
use crate::device::profile::{CommandLayout, Dispatched, OperationDescription};
use crate::device::work::Operation;
use hal_backend::Device;
use hal_sys as sys;

impl OperationDescription {
    /// Describes a single transfer or dispatch, apart from its waits and signals.
    pub(crate) fn of_record(record: &Record, affinity: u64) -> Self {
        let mut about = OperationDescription {
            operations: 1,
            affinity,
            payload: record.payload(),
            ..OperationDescription::default()
        };
        about.kind = match record {
            Record::Fill { .. } => sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_FILL,
            Record::Copy { .. } => sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_COPY,
            Record::Update { .. } => sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_UPDATE,
            Record::Dispatch(dispatch) => {
                about.dispatches.push(Dispatched::new(0, 0, dispatch));
                about.executables.push(dispatch.executable.clone());
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_DISPATCH
            }
            Record::Barrier => sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_BARRIER,
        };
        about
    }

    /// Describes any other operation, apart from its waits and signals.
    pub(crate) fn of<D: Device>(operation: &Operation<D>, affinity: u64) -> Self {
        let mut about = OperationDescription { operations: 1, affinity, ..OperationDescription::default() };
        about.kind = match operation {
            // Their record or command buffer was described before it was resolved.
            Operation::Record(_) | Operation::Command(_) | Operation::ExecutionEnd(_) => {
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_BARRIER
            }
            Operation::Execute { commands, step, .. } => {
                about.command_buffer = commands.profile_id();
                let records = &commands.step(*step).records;
                about.operations = records.len();
                let before: usize = commands.steps().iter().take(*step).map(|step| step.records.len()).sum();
                for (number, record) in records.iter().enumerate() {
                    if let Record::Dispatch(dispatch) = record {
                        about.dispatches.push(Dispatched::new(number, before + number, dispatch));
                        about.executables.push(dispatch.executable.clone());
                    }
                }
                about.layout = Some(CommandLayout::new(commands));
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_EXECUTE
            }
            // IREE's profiles have no kind for it: it is the part of an execution that the device does not run.
            Operation::Collectives(collectives) => {
                let commands = collectives.commands();
                about.command_buffer = commands.profile_id();
                about.operations = collectives.count();
                about.payload = collectives.payload();
                about.layout = Some(CommandLayout::new(commands));
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_EXECUTE
            }
            Operation::Dealloca(_) => sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_DEALLOCA,
            Operation::Alloca(alloca) => {
                about.payload = alloca.length;
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_ALLOCA
            }
            Operation::Await(asked) => {
                about.payload = asked.0.length;
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_ALLOCA
            }
            Operation::Return(bounce) => {
                about.payload = bounce.length();
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_COPY
            }
            Operation::HostCall(_) => sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_HOST_CALL,
            Operation::Transfer(transfer) => {
                about.payload = transfer.range.length;
                if transfer.writes_file {
                    sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_WRITE
                } else {
                    sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_READ
                }
            }
        };
        about
    }
}

impl Dispatched {
    fn new(number: usize, index: usize, dispatch: &DispatchRecord) -> Self {
        Self {
            number,
            index,
            executable: dispatch.executable.profile_id(),
            function: dispatch.function.index,
            name: dispatch.executable.name(&dispatch.function).to_owned(),
            indirect: dispatch.is_indirect(),
            workgroups: dispatch.workgroups(),
            workgroup_size: dispatch.workgroup_size(),
        }
    }
}

impl CommandLayout {
    fn new(commands: &Recorded) -> Self {
        // SAFETY: defaults are plain values.
        let (mut record, template) = unsafe {
            (
                sys::iree_hal_profile_command_buffer_record_default(),
                sys::iree_hal_profile_command_operation_record_default(),
            )
        };
        let (mode, categories, affinity) = commands.properties();
        record.command_buffer_id = commands.profile_id();
        record.mode = mode;
        record.command_categories = categories;
        record.queue_affinity = affinity;
        let operation = |(index, command): (usize, &Record)| {
            let mut operation = template;
            operation.command_index = u32::try_from(index).unwrap_or(u32::MAX);
            operation.command_buffer_id = commands.profile_id();
            operation.length = command.payload();
            operation.type_ = match command {
                Record::Barrier => sys::IREE_HAL_PROFILE_COMMAND_OPERATION_TYPE_BARRIER,
                Record::Fill { .. } => sys::IREE_HAL_PROFILE_COMMAND_OPERATION_TYPE_FILL,
                Record::Copy { .. } => sys::IREE_HAL_PROFILE_COMMAND_OPERATION_TYPE_COPY,
                Record::Update { .. } => sys::IREE_HAL_PROFILE_COMMAND_OPERATION_TYPE_UPDATE,
                Record::Dispatch(dispatch) => {
                    operation.executable_id = dispatch.executable.profile_id();
                    operation.function_ordinal = u32::try_from(dispatch.function.index).unwrap_or(u32::MAX);
                    operation.workgroup_count = dispatch.workgroups();
                    operation.workgroup_size = dispatch.workgroup_size();
                    operation.binding_count = dispatch.binding_count();
                    sys::IREE_HAL_PROFILE_COMMAND_OPERATION_TYPE_DISPATCH
                }
            };
            operation
        };
        let records = commands.steps().iter().flat_map(|step| &step.records);
        Self { record, operations: records.enumerate().map(operation).collect() }
    }
}
