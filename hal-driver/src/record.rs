//! Commands as they are recorded: what a command buffer holds, and what a single queue operation is.
//!
//! A record keeps what it uses (rule S11) but does not yet say which memory that is: a stream-ordered buffer gets its
//! memory when its allocation happens, and an indirect buffer its buffer when the command buffer is executed. Both are
//! settled when the work goes to its queue, by [`Record::resolve`].

use crate::buffer::Slice;
use crate::executable::{Executable, Function};
use crate::object::{extent, slice, wide};
use crate::status::{Result, invalid, unimplemented};
use hal_backend::{Command, Constants, Device, Dispatch, HostRange, Pattern, Span, Workgroups};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A buffer of a record: a part of one, or of whatever a slot of the binding table will hold.
pub(crate) enum Reference {
    Direct(Slice),
    Slot { slot: usize, offset: u64, length: u64 },
}

impl Reference {
    /// # Safety
    ///
    /// The buffer of the reference is alive, or null.
    pub(crate) unsafe fn new(reference: &sys::iree_hal_buffer_ref_t) -> Result<Self> {
        if reference.buffer.is_null() {
            let slot = reference.buffer_slot() as usize;
            return Ok(Reference::Slot {
                slot,
                offset: wide(reference.offset),
                length: extent(reference.length),
            });
        }
        Slice::new(reference.buffer, reference.offset, reference.length).map(Reference::Direct)
    }

    /// The memory, if it is settled which that is.
    fn settled<D: Device>(&self, device: &Arc<D>) -> Resolved<Span<D>> {
        match self {
            Reference::Direct(slice) => slice.settled(device).ok_or(Unresolved::Open),
            Reference::Slot { .. } => Err(Unresolved::Open),
        }
    }

    fn resolve<D: Device>(&self, device: &Arc<D>, table: &[Option<Slice>]) -> Result<Span<D>> {
        match self {
            Reference::Direct(slice) => slice.resolve(device),
            Reference::Slot { slot, offset, length } => match table.get(*slot) {
                Some(Some(binding)) => binding.part(*offset, *length)?.resolve(device),
                Some(None) => Err(invalid(format!("slot {slot} of the binding table holds no buffer"))),
                None => {
                    let count = table.len();
                    let message = format!("slot {slot} is past the binding table, which has {count}");
                    Err(Failure::new(Code::OutOfRange, message))
                }
            },
        }
    }
}

/// Why there is no memory.
enum Unresolved {
    /// Which it is will be known later.
    Open,
    Failed(Failure),
}

impl From<Failure> for Unresolved {
    fn from(failure: Failure) -> Self {
        Unresolved::Failed(failure)
    }
}

type Resolved<T> = std::result::Result<T, Unresolved>;

/// The buffers of an execution, in slot order.
///
/// # Safety
///
/// The table and its buffers are alive.
pub(crate) unsafe fn binding_table(
    table: &sys::iree_hal_buffer_binding_table_t,
) -> Result<Box<[Option<Slice>]>> {
    // SAFETY: the caller's promise.
    let bindings = unsafe { slice(table.bindings, table.count) };
    let own = |binding: &sys::iree_hal_buffer_binding_t| {
        if binding.buffer.is_null() {
            return Ok(None);
        }
        Slice::new(binding.buffer, binding.offset, binding.length).map(Some)
    };
    bindings.iter().map(own).collect()
}

/// One command.
pub(crate) enum Record {
    Fill { target: Reference, pattern: Pattern },
    Copy { source: Reference, target: Reference },
    Update { source: HostRange, target: Reference },
    Dispatch(Box<DispatchRecord>),
    Barrier,
}

/// How many workgroups a recorded dispatch has.
pub(crate) enum Count {
    Fixed([u32; 3]),
    Indirect(Reference),
}

pub(crate) struct DispatchRecord {
    pub(crate) executable: Executable,
    pub(crate) function: Function,
    workgroup_size: [u32; 3],
    count: Count,
    local_memory: u32,
    constants: Constants,
    bindings: SmallVec<[Reference; 4]>,
}

impl Record {
    /// A fill with what C lends us.
    ///
    /// # Safety
    ///
    /// The pattern is valid for its length.
    pub(crate) unsafe fn fill(
        target: Reference,
        pattern: *const std::ffi::c_void,
        length: usize,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { slice(pattern.cast::<u8>(), length) };
        match Pattern::new(bytes) {
            Some(pattern) => Ok(Record::Fill { target, pattern }),
            None => Err(invalid(format!("a fill pattern has 1 to 16 bytes, not {length}"))),
        }
    }

    /// A dispatch with what C lends us.
    ///
    /// # Safety
    ///
    /// Everything is valid for the call.
    pub(crate) unsafe fn dispatch(
        executable: *mut sys::iree_hal_executable_t,
        function: sys::iree_hal_executable_function_t,
        config: &sys::iree_hal_dispatch_config_t,
        constants: sys::iree_const_byte_span_t,
        bindings: sys::iree_hal_buffer_ref_list_t,
        flags: sys::iree_hal_dispatch_flags_t,
    ) -> Result<Self> {
        let has = |bits: sys::iree_hal_dispatch_flag_bits_t| {
            flags & sys::iree_hal_dispatch_flags_t::from(bits) != 0
        };
        if has(sys::IREE_HAL_DISPATCH_FLAG_CUSTOM_DIRECT_ARGUMENTS)
            || has(sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_ARGUMENTS)
            || has(sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_ARGUMENTS)
        {
            return Err(unimplemented("dispatch with custom arguments"));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let executable = Executable::of(executable)?;
            let function = executable.function(function)?;
            let bytes = slice(constants.data, constants.data_length);
            if bytes.len() % 4 != 0 {
                return Err(invalid(format!(
                    "dispatch constants are 32-bit words, not {} bytes",
                    bytes.len()
                )));
            }
            let constants: Constants = bytes
                .chunks_exact(4)
                .map(|word| word.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte)))
                .collect();
            let references = slice(bindings.values, bindings.count);
            executable.check(&function, constants.len(), references.len())?;
            let bindings = references
                .iter()
                .map(|reference| Reference::new(reference))
                .collect::<Result<SmallVec<_>>>()?;
            let indirect = has(sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_PARAMETERS)
                || has(sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_PARAMETERS);
            let count = if indirect {
                let mut parameters = config.workgroup_count_ref;
                parameters.length = 12;
                Count::Indirect(Reference::new(&parameters)?)
            } else {
                Count::Fixed(config.workgroup_count)
            };
            Ok(Record::Dispatch(Box::new(DispatchRecord {
                executable,
                function,
                workgroup_size: config.workgroup_size.map(|size| size.max(1)),
                count,
                local_memory: config.dynamic_workgroup_local_memory,
                constants,
                bindings,
            })))
        }
    }

    /// The command for the device, with the memory that the buffers have now.
    pub(crate) fn resolve<D: Device>(&self, device: &Arc<D>, table: &[Option<Slice>]) -> Result<Command<D>> {
        self.translate(|reference| reference.resolve(device, table))
    }

    /// The command for the device, if it is settled already which memory it works on: then nothing but that memory need be
    /// kept.
    pub(crate) fn settled<D: Device>(&self, device: &Arc<D>) -> Result<Option<Command<D>>> {
        match self.translate(|reference| reference.settled(device)) {
            Ok(command) => Ok(Some(command)),
            Err(Unresolved::Open) => Ok(None),
            Err(Unresolved::Failed(failure)) => Err(failure),
        }
    }

    /// The command with what `memory` says that each reference is.
    fn translate<D: Device, E: From<Failure>>(
        &self,
        memory: impl Fn(&Reference) -> std::result::Result<Span<D>, E>,
    ) -> std::result::Result<Command<D>, E> {
        match self {
            Record::Fill { target, pattern } => {
                Ok(Command::Fill { target: memory(target)?, pattern: *pattern })
            }
            Record::Copy { source, target } => {
                let (source, target) = (memory(source)?, memory(target)?);
                if source.length != target.length {
                    let message = format!("cannot copy {} bytes onto {}", source.length, target.length);
                    return Err(invalid(message).into());
                }
                Ok(Command::Copy { source, target })
            }
            Record::Update { source, target } => {
                let target = memory(target)?;
                if target.length != source.length() {
                    let message = format!("cannot update {} bytes with {}", target.length, source.length());
                    return Err(invalid(message).into());
                }
                Ok(Command::Update { source: source.clone(), target })
            }
            Record::Dispatch(dispatch) => dispatch.translate(memory),
            Record::Barrier => Ok(Command::Barrier),
        }
    }

    /// Looks at the buffers that it uses, and whether it writes them.
    pub(crate) fn visit(&self, mut look: impl FnMut(&Reference, bool)) {
        match self {
            Record::Fill { target, .. } | Record::Update { target, .. } => look(target, true),
            Record::Copy { source, target } => {
                look(source, false);
                look(target, true);
            }
            Record::Dispatch(dispatch) => {
                for binding in &dispatch.bindings {
                    look(binding, true);
                }
                if let Count::Indirect(reference) = &dispatch.count {
                    look(reference, false);
                }
            }
            Record::Barrier => {}
        }
    }

    /// The same, to put others in their place.
    pub(crate) fn references_mut(&mut self) -> SmallVec<[(&mut Reference, bool); 4]> {
        match self {
            Record::Fill { target, .. } | Record::Update { target, .. } => smallvec![(target, true)],
            Record::Copy { source, target } => smallvec![(source, false), (target, true)],
            Record::Dispatch(dispatch) => {
                let DispatchRecord { bindings, count, .. } = &mut **dispatch;
                let mut references: SmallVec<[_; 4]> =
                    bindings.iter_mut().map(|binding| (binding, true)).collect();
                if let Count::Indirect(reference) = count {
                    references.push((reference, false));
                }
                references
            }
            Record::Barrier => SmallVec::new(),
        }
    }

    /// How many bytes it moves.
    pub(crate) fn payload(&self) -> u64 {
        let length = |reference: &Reference| match reference {
            Reference::Direct(slice) => slice.length,
            Reference::Slot { length, .. } => *length,
        };
        match self {
            Record::Fill { target, .. } | Record::Copy { target, .. } => length(target),
            Record::Update { source, .. } => source.length(),
            Record::Dispatch(_) | Record::Barrier => 0,
        }
    }
}

impl DispatchRecord {
    fn translate<D: Device, E: From<Failure>>(
        &self,
        memory: impl Fn(&Reference) -> std::result::Result<Span<D>, E>,
    ) -> std::result::Result<Command<D>, E> {
        let workgroups = match &self.count {
            Count::Fixed(count) => Workgroups::Count(*count),
            Count::Indirect(reference) => Workgroups::Indirect(memory(reference)?),
        };
        let bindings = self.bindings.iter().map(memory).collect::<std::result::Result<SmallVec<_>, E>>()?;
        Ok(Command::Dispatch(Box::new(Dispatch {
            executable: self.executable.loaded::<D>()?,
            function: self.function.index,
            workgroup_size: self.workgroup_size,
            workgroups,
            local_memory: self.local_memory,
            constants: self.constants.clone(),
            bindings,
        })))
    }

    /// The number of workgroups, where it is known when recording.
    pub(crate) fn workgroups(&self) -> [u32; 3] {
        match &self.count {
            Count::Fixed(count) => *count,
            Count::Indirect(_) => [0; 3],
        }
    }

    /// Whether a buffer says how many workgroups there are.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(self.count, Count::Indirect(_))
    }

    /// How many buffers it takes.
    pub(crate) fn binding_count(&self) -> u32 {
        u32::try_from(self.bindings.len()).unwrap_or(u32::MAX)
    }

    /// The size of a workgroup.
    pub(crate) fn workgroup_size(&self) -> [u32; 3] {
        self.workgroup_size
    }
}
