// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Records: the commands of a command buffer, or of a single queue operation, before their buffers are resolved to
//! memory.
//!
//! A record retains what it uses (rule S11) but does not yet name memory: a stream-ordered buffer gets its memory
//! when its allocation happens, and an indirect buffer is chosen when the command buffer is executed.
//! [`Record::resolve`] decides both at submission.
//!
//! A buffer's access and usage bits are checked before anything is accepted ([`Use`]): when the record is made for
//! a buffer that is named, and when the binding table arrives for one in a slot. This protects no memory; a
//! dispatch may access its bindings as it likes.

use crate::command::executable::{DeviceIdentity, Executable, Function};
use crate::command::host_program::check_local_memory;
use crate::ffi::constants::{ACCESS_READ, ACCESS_WRITE, Access};
use crate::ffi::object::{extent, slice, to_u64};
use crate::ffi::status::{Result, invalid};
use crate::memory::buffer_range::{BorrowedRange, BufferRange};
use hal_backend::{Command, Constants, Device, Dispatch, HostRange, Pattern, Span, Workgroups};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;
use std::sync::Arc;

/// A buffer of a record: a range of a buffer, or of the buffer in a slot of the binding table.
pub(crate) enum Reference {
    Direct(BufferRange),
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
                offset: to_u64(reference.offset),
                length: extent(reference.length),
            });
        }
        // SAFETY: the buffer is alive, as the function asks of one that is not null.
        let range = unsafe { BufferRange::retain(reference.buffer, reference.offset, reference.length) };
        range.map(Reference::Direct)
    }

    /// Checks that a buffer which is named directly allows a use. Called for every buffer when the record is made.
    pub(crate) fn check(&self, usage: Use) -> Result {
        match self {
            Reference::Direct(range) => usage.check(range.borrow()),
            Reference::Slot { .. } => Ok(()),
        }
    }

    /// The memory, if it is certain now and later.
    #[inline(always)]
    fn resolve_static<D: Device>(&self, device: &Arc<D>) -> Resolved<Span<D>> {
        match self {
            Reference::Direct(range) => range.borrow().resolve_static(device).ok_or(Unresolved::Open),
            Reference::Slot { .. } => Err(Unresolved::Open),
        }
    }

    /// The memory, or its substitute if the device cannot use it.
    fn resolve<D: Device>(
        &self,
        device: &Arc<D>,
        table: &[Option<BufferRange>],
        substitutes: &Substitutes,
        usage: Use,
    ) -> Result<Span<D>> {
        let range = self.bytes(table)?;
        match substitutes.of(&range) {
            Some(staging) => staging.resolve(device, usage.writes()),
            None => range.resolve(device, usage.writes()),
        }
    }

    /// The range of the buffer.
    pub(crate) fn bytes<'a>(&'a self, table: &'a [Option<BufferRange>]) -> Result<Cow<'a, BufferRange>> {
        match self {
            Reference::Direct(range) => Ok(Cow::Borrowed(range)),
            Reference::Slot { slot, offset, length } => match table.get(*slot) {
                Some(Some(binding)) => binding.part(*offset, *length).map(Cow::Owned),
                Some(None) => Err(invalid(format!("slot {slot} of the binding table holds no buffer"))),
                None => {
                    let count = table.len();
                    let message =
                        format!("slot {slot} is past the end of the binding table, which has {count}");
                    Err(Failure::new(Code::OutOfRange, message))
                }
            },
        }
    }
}

/// Stand-ins for memory of other devices that an operation cannot use in place. Usually empty.
#[derive(Default)]
pub(crate) struct Substitutes(Box<[(BufferRange, BufferRange)]>);

impl Substitutes {
    /// Pairs of a range that the operation names and its substitute of the same length. They are sorted by address
    /// and do not overlap.
    pub(crate) fn new(pairs: Vec<(BufferRange, BufferRange)>) -> Self {
        Self(pairs.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The substitute for a range, if there is one.
    fn of(&self, range: &BufferRange) -> Option<BufferRange> {
        if self.0.is_empty() {
            return None;
        }
        let place = range.place();
        let behind = self.0.partition_point(|(original, _)| original.place() <= place);
        let (original, staging) = self.0.get(behind.checked_sub(1)?)?;
        staging.part(range.offset_in(original)?, range.length).ok()
    }
}

/// The use that an operation makes of a buffer: copy source, copy target, dispatch and so on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A transfer reads it.
    Source,
    /// A transfer writes all of it.
    Target,
    /// A dispatch uses it. How is not known, so access is not checked.
    Binding,
    /// A dispatch takes its workgroup count from it.
    Count,
    /// A collective sends it.
    Sent,
    /// A collective receives into all of it.
    Received,
}

impl Use {
    const ALL: [Use; 6] = [Use::Source, Use::Target, Use::Binding, Use::Count, Use::Sent, Use::Received];

    /// True if the previous content of the buffer may matter.
    pub(crate) fn reads(self) -> bool {
        !matches!(self, Use::Target | Use::Received)
    }

    /// True if it surely writes.
    fn writes(self) -> bool {
        self.needs().0 & ACCESS_WRITE != 0
    }

    /// The access and the usage that a buffer must have.
    fn needs(self) -> (Access, sys::iree_hal_buffer_usage_t) {
        match self {
            Use::Source => (ACCESS_READ, sys::IREE_HAL_BUFFER_USAGE_TRANSFER_SOURCE),
            Use::Target => (ACCESS_WRITE, sys::IREE_HAL_BUFFER_USAGE_TRANSFER_TARGET),
            Use::Binding => (0, sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE),
            Use::Count => (ACCESS_READ, sys::IREE_HAL_BUFFER_USAGE_DISPATCH_INDIRECT_PARAMETERS),
            Use::Sent => (ACCESS_READ, sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_READ),
            Use::Received => (ACCESS_WRITE, sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_WRITE),
        }
    }

    /// The name of the use for people, and IREE's names of the access and the usage that it needs.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Use::Source => ("the source of a transfer", "READ", "TRANSFER_SOURCE"),
            Use::Target => ("the target of a transfer", "WRITE", "TRANSFER_TARGET"),
            Use::Binding => ("a binding of a dispatch", "NONE", "DISPATCH_STORAGE"),
            Use::Count => ("the workgroup count of a dispatch", "READ", "DISPATCH_INDIRECT_PARAMETERS"),
            Use::Sent => ("what a collective sends", "READ", "DISPATCH_STORAGE_READ"),
            Use::Received => ("where a collective receives", "WRITE", "DISPATCH_STORAGE_WRITE"),
        }
    }

    /// Checks that a buffer allows this use.
    #[inline]
    pub(crate) fn check(self, range: BorrowedRange<'_>) -> Result {
        let ((access, usage), needs) = (range.allowed(), self.needs());
        if access & needs.0 == needs.0 && usage & needs.1 == needs.1 {
            return Ok(());
        }
        Err(self.denied(access, usage))
    }

    #[cold]
    fn denied(self, access: Access, usage: sys::iree_hal_buffer_usage_t) -> Failure {
        let (what, access_name, usage_name) = self.names();
        let missing = if access & self.needs().0 == self.needs().0 {
            format!("usage IREE_HAL_BUFFER_USAGE_{usage_name}")
        } else {
            format!("access IREE_HAL_MEMORY_ACCESS_{access_name}")
        };
        let message = format!(
            "the buffer cannot be {what}: it was created without {missing}, which its allocation or import has \
             to request (it has access {access:#x} and usage {usage:#x})"
        );
        Failure::new(Code::PermissionDenied, message)
    }
}

/// The uses of one binding slot by all commands of a recording.
#[derive(Clone, Copy, Default)]
pub(crate) struct Uses(u8);

impl Uses {
    pub(crate) fn add(&mut self, usage: Use) {
        self.0 |= 1 << usage as u8;
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Use> {
        Use::ALL.into_iter().filter(move |usage| self.0 & 1 << *usage as u8 != 0)
    }
}

enum Unresolved {
    /// The buffer is not known yet.
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
) -> Result<Box<[Option<BufferRange>]>> {
    // SAFETY: the table is alive, as the caller promises.
    let bindings = unsafe { slice(table.bindings, table.count)? };
    let own = |binding: &sys::iree_hal_buffer_binding_t| {
        if binding.buffer.is_null() {
            return Ok(None);
        }
        // SAFETY: the table's buffers are alive, as the caller promises.
        unsafe { BufferRange::retain(binding.buffer, binding.offset, binding.length) }.map(Some)
    };
    bindings.iter().map(own).collect()
}

/// IREE's dispatch flags. The ones that this driver ignores permit optimisations that it does not use.
const KNOWN_FLAGS: sys::iree_hal_dispatch_flag_bits_t =
    sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_PARAMETERS
        | sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_PARAMETERS
        | sys::IREE_HAL_DISPATCH_FLAG_CUSTOM_DIRECT_ARGUMENTS
        | sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_ARGUMENTS
        | sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_ARGUMENTS
        | sys::IREE_HAL_DISPATCH_FLAG_ALLOW_INLINE_EXECUTION
        | sys::IREE_HAL_DISPATCH_FLAG_BORROW_RESOURCE_LIFETIMES;

const INDIRECT_ARGUMENTS: &str = "no device reads a dispatch's arguments from a buffer \
    (IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_ARGUMENTS, DYNAMIC_INDIRECT_ARGUMENTS); pass constants and bindings";

/// Which of some flags a dispatch has. Flags that no dispatch has are refused, and those that no device here obeys.
#[inline]
fn checked_flags(
    flags: sys::iree_hal_dispatch_flags_t,
) -> Result<impl Fn(sys::iree_hal_dispatch_flag_bits_t) -> bool> {
    let has = move |bits: sys::iree_hal_dispatch_flag_bits_t| {
        flags & sys::iree_hal_dispatch_flags_t::from(bits) != 0
    };
    let unknown = flags & !sys::iree_hal_dispatch_flags_t::from(KNOWN_FLAGS);
    if unknown != 0 {
        return Err(invalid(format!("a dispatch has no flags {unknown:#x}")));
    }
    let indirect = sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_ARGUMENTS
        | sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_ARGUMENTS;
    if has(indirect) {
        return Err(Failure::new(Code::Unavailable, INDIRECT_ARGUMENTS));
    }
    Ok(has)
}

/// The bytes of a workgroup count in a buffer: three words.
const COUNT_BYTES: usize = 12;

/// The place of a workgroup count in C's buffer: three aligned words.
///
/// # Safety
///
/// As for [`Reference::new`].
unsafe fn count_reference(reference: &sys::iree_hal_buffer_ref_t) -> Result<Reference> {
    let (offset, length) = (reference.offset, reference.length);
    if !offset.is_multiple_of(4) {
        return Err(invalid(format!("a workgroup count begins at a multiple of 4 bytes, not at {offset}")));
    }
    if length < COUNT_BYTES {
        let message =
            format!("a workgroup count has {COUNT_BYTES} bytes, but the buffer's range has {length}");
        return Err(Failure::new(Code::OutOfRange, message));
    }
    // SAFETY: the buffer is alive or null, as the caller promises.
    unsafe { Reference::new(&sys::iree_hal_buffer_ref_t { length: COUNT_BYTES, ..*reference }) }
}

/// The workgroup size: C's, or the function's own.
#[inline]
fn workgroup_size(asked: [u32; 3], own: [u32; 3]) -> Result<[u32; 3]> {
    match asked {
        [0, 0, 0] => Ok(own.map(|size| size.max(1))),
        some if some.contains(&0) => {
            let message = format!(
                "a workgroup of {some:?} has no size; each dimension is at least 1, or all are 0 for the \
                 function's own"
            );
            Err(invalid(message))
        }
        some => Ok(some),
    }
}

/// One command.
pub(crate) enum Record {
    Fill { target: Reference, pattern: Pattern },
    Copy { source: Reference, target: Reference },
    Update { source: HostRange, target: Reference },
    Dispatch(Box<DispatchRecord>),
    Barrier,
}

/// The number of workgroups of a recorded dispatch.
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

/// A fill's pattern, from C's memory.
///
/// # Safety
///
/// The pattern is valid for its length.
#[inline]
pub(crate) unsafe fn fill_pattern(pattern: *const std::ffi::c_void, length: usize) -> Result<Pattern> {
    // SAFETY: so many bytes are valid there, as the caller promises.
    let bytes = unsafe { slice(pattern.cast::<u8>(), length)? };
    Pattern::new(bytes).ok_or_else(|| invalid(format!("a fill pattern has 1 to 16 bytes, not {length}")))
}

impl Record {
    /// A fill from C's arguments.
    ///
    /// # Safety
    ///
    /// The pattern is valid for its length.
    #[inline]
    pub(crate) unsafe fn fill(
        target: Reference,
        pattern: *const std::ffi::c_void,
        length: usize,
    ) -> Result<Self> {
        // SAFETY: the pattern is valid, as the caller promises.
        let pattern = unsafe { fill_pattern(pattern, length)? };
        target.check(Use::Target)?;
        Ok(Record::Fill { target, pattern })
    }

    #[inline]
    pub(crate) fn copy(source: Reference, target: Reference) -> Result<Self> {
        source.check(Use::Source)?;
        target.check(Use::Target)?;
        Ok(Record::Copy { source, target })
    }

    /// An update with captured bytes.
    #[inline]
    pub(crate) fn update(source: HostRange, target: Reference) -> Result<Self> {
        target.check(Use::Target)?;
        Ok(Record::Update { source, target })
    }

    /// A dispatch for a device, from C's arguments.
    ///
    /// # Safety
    ///
    /// Everything is valid for the call.
    pub(crate) unsafe fn dispatch(
        device: &DeviceIdentity,
        executable: *mut sys::iree_hal_executable_t,
        function: sys::iree_hal_executable_function_t,
        config: &sys::iree_hal_dispatch_config_t,
        constants: sys::iree_const_byte_span_t,
        bindings: sys::iree_hal_buffer_ref_list_t,
        flags: sys::iree_hal_dispatch_flags_t,
    ) -> Result<Self> {
        let has = checked_flags(flags)?;
        // SAFETY: all of it is valid for the call, as the caller promises.
        unsafe {
            let executable = Executable::of(executable)?;
            executable.check_device(device)?;
            let function = executable.function(function)?;
            let bytes = slice(constants.data, constants.data_length)?;
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
            let workgroup_size = workgroup_size(config.workgroup_size, executable.workgroup_size(&function))?;
            let references = if has(sys::IREE_HAL_DISPATCH_FLAG_CUSTOM_DIRECT_ARGUMENTS) {
                executable.check_arguments(&function, bytes.len())?;
                // The arguments have their addresses.
                &[]
            } else {
                let references = slice(bindings.values, bindings.count)?;
                executable.check(&function, constants.len(), references.len())?;
                references
            };
            let bindings = references
                .iter()
                .map(|reference| {
                    let binding = Reference::new(reference)?;
                    binding.check(Use::Binding)?;
                    Ok(binding)
                })
                .collect::<Result<SmallVec<_>>>()?;
            let indirect = has(sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_PARAMETERS)
                || has(sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_PARAMETERS);
            let count = if indirect {
                let reference = count_reference(&config.workgroup_count_ref)?;
                reference.check(Use::Count)?;
                Count::Indirect(reference)
            } else {
                Count::Fixed(config.workgroup_count)
            };
            check_local_memory(config.dynamic_workgroup_local_memory)?;
            Ok(Record::Dispatch(Box::new(DispatchRecord {
                executable,
                function,
                workgroup_size,
                count,
                local_memory: config.dynamic_workgroup_local_memory,
                constants,
                bindings,
            })))
        }
    }

    /// The command for the device, with the memory that the buffers have now.
    pub(crate) fn resolve<D: Device>(
        &self,
        device: &Arc<D>,
        table: &[Option<BufferRange>],
        substitutes: &Substitutes,
    ) -> Result<Command<D>> {
        self.translate(|reference, usage| reference.resolve(device, table, substitutes, usage))
    }

    /// The command for the device, if its memory is certain already: then only that memory must be retained.
    #[inline(always)]
    pub(crate) fn resolve_static<D: Device>(&self, device: &Arc<D>) -> Result<Option<Command<D>>> {
        match self.translate(|reference, _| reference.resolve_static(device)) {
            Ok(command) => Ok(Some(command)),
            Err(Unresolved::Open) => Ok(None),
            Err(Unresolved::Failed(failure)) => Err(failure),
        }
    }

    /// The command, with `memory` as the resolution of each reference.
    #[inline(always)]
    fn translate<D: Device, E: From<Failure>>(
        &self,
        memory: impl Fn(&Reference, Use) -> std::result::Result<Span<D>, E>,
    ) -> std::result::Result<Command<D>, E> {
        match self {
            Record::Fill { target, pattern } => {
                Ok(Command::Fill { target: memory(target, Use::Target)?, pattern: *pattern })
            }
            Record::Copy { source, target } => {
                let (source, target) = (memory(source, Use::Source)?, memory(target, Use::Target)?);
                if source.length != target.length {
                    let message = format!("cannot copy {} bytes onto {}", source.length, target.length);
                    return Err(invalid(message).into());
                }
                Ok(Command::Copy { source, target })
            }
            Record::Update { source, target } => {
                let target = memory(target, Use::Target)?;
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

    /// Checks that each buffer is named directly, as it must be without a binding table.
    pub(crate) fn check_direct(&self) -> Result {
        let mut direct = true;
        self.visit(|reference, _| direct &= matches!(reference, Reference::Direct(_)));
        if direct { Ok(()) } else { Err(invalid("a buffer is missing, and there is no binding table")) }
    }

    /// Calls `visit` with each buffer and its use.
    #[inline(always)]
    pub(crate) fn visit(&self, mut visit: impl FnMut(&Reference, Use)) {
        match self {
            Record::Fill { target, .. } | Record::Update { target, .. } => visit(target, Use::Target),
            Record::Copy { source, target } => {
                visit(source, Use::Source);
                visit(target, Use::Target);
            }
            Record::Dispatch(dispatch) => {
                for binding in &dispatch.bindings {
                    visit(binding, Use::Binding);
                }
                if let Count::Indirect(reference) = &dispatch.count {
                    visit(reference, Use::Count);
                }
            }
            Record::Barrier => {}
        }
    }

    /// Replaces buffers by their substitutes.
    pub(crate) fn replace(&mut self, substitutes: &Substitutes) {
        for reference in self.references_mut() {
            if let Reference::Direct(range) = reference
                && let Some(staging) = substitutes.of(range)
            {
                *range = staging;
            }
        }
    }

    fn references_mut(&mut self) -> SmallVec<[&mut Reference; 4]> {
        match self {
            Record::Fill { target, .. } | Record::Update { target, .. } => smallvec![target],
            Record::Copy { source, target } => smallvec![source, target],
            Record::Dispatch(dispatch) => {
                let DispatchRecord { bindings, count, .. } = &mut **dispatch;
                let mut references: SmallVec<[_; 4]> = bindings.iter_mut().collect();
                if let Count::Indirect(reference) = count {
                    references.push(reference);
                }
                references
            }
            Record::Barrier => SmallVec::new(),
        }
    }

    /// True for a dispatch that has no workgroups, which is done as soon as it is reached: no device gets it.
    pub(crate) fn is_without_workgroups(&self) -> bool {
        let Record::Dispatch(dispatch) = self else { return false };
        matches!(dispatch.count, Count::Fixed(count) if count.contains(&0))
    }

    /// The bytes that it moves.
    pub(crate) fn payload(&self) -> u64 {
        let length = |reference: &Reference| match reference {
            Reference::Direct(range) => range.length,
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
        memory: impl Fn(&Reference, Use) -> std::result::Result<Span<D>, E>,
    ) -> std::result::Result<Command<D>, E> {
        let workgroups = match &self.count {
            Count::Fixed(count) => Workgroups::Count(*count),
            Count::Indirect(reference) => Workgroups::Indirect(memory(reference, Use::Count)?),
        };
        let bindings = self
            .bindings
            .iter()
            .map(|binding| memory(binding, Use::Binding))
            .collect::<std::result::Result<SmallVec<_>, E>>()?;
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

    /// The number of workgroups, if it is known when recording.
    pub(crate) fn workgroups(&self) -> [u32; 3] {
        match &self.count {
            Count::Fixed(count) => *count,
            Count::Indirect(_) => [0; 3],
        }
    }

    /// True if a buffer has the number of workgroups.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(self.count, Count::Indirect(_))
    }

    /// The number of its bindings.
    pub(crate) fn binding_count(&self) -> u32 {
        u32::try_from(self.bindings.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn workgroup_size(&self) -> [u32; 3] {
        self.workgroup_size
    }
}
