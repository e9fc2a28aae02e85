// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Filling in templates for one dispatch.

use super::container::{Entry, PatchKind, Step};
use super::failure;
use hal_backend::Failure;
use hal_backend::container::{Name, ParseError};

/// What one dispatch knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    /// The size of a workgroup, for entries that leave it open.
    pub workgroup_size: [u32; 3],
    /// How many workgroups; zeros if that is indirect.
    pub workgroup_count: [u32; 3],
    /// The device address where the number of workgroups is read from when the step runs; zero if it is known.
    pub indirect: u64,
    /// Bytes of workgroup-local memory beyond what the function asks for itself.
    pub local_memory: u32,
    /// Constants; at least as many as the entry takes.
    pub constants: &'a [u32],
    /// Each binding's device address and length; at least as many as the entry takes.
    pub bindings: &'a [(u64, u64)],
    /// Where each data segment of the container was placed.
    pub data: &'a [u64],
}

impl Entry {
    /// Appends a step's packets to `out`, filled in for a call. Nothing is allocated but by `out` itself, and nothing
    /// is appended on failure.
    ///
    /// A call with too few bindings or constants is refused, as is one with an address or a length that a patch cannot
    /// write, or with an indirect count for an entry that takes none. The failure names the function.
    pub fn encode(&self, step: usize, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let begin = out.len();
        self.append(step, call, out).map_err(|error| {
            out.truncate(begin);
            failure(&error.within(format_args!("dispatch of {}", Name(&self.name))))
        })
    }

    fn append(&self, number: usize, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), ParseError> {
        self.check(call)?;
        let Some(step) = self.steps.get(number) else {
            return Err(ParseError::invalid(format!("step {number} of {}", self.steps.len())));
        };
        let begin = out.len();
        out.extend_from_slice(&step.template);
        let template = out.get_mut(begin..).unwrap_or_default();
        self.fill(step, call, template).map_err(|error| error.within(format_args!("step {number}")))
    }

    /// Refuses calls that leave open what the entry needs.
    fn check(&self, call: &Call<'_>) -> Result<(), ParseError> {
        let counts = [
            ("bindings", call.bindings.len(), self.bindings),
            ("constants", call.constants.len(), self.constants),
        ];
        for (what, given, taken) in counts {
            if given < usize::from(taken) {
                return Err(ParseError::invalid(format!(
                    "{given} {what} given, and the function takes {taken}"
                )));
            }
        }
        let takes_indirect = || {
            let patches = self.steps.iter().flat_map(|step| &step.patches);
            patches.map(|patch| patch.kind).any(|kind| kind == PatchKind::IndirectAddress)
        };
        if call.indirect != 0 && !takes_indirect() {
            let text =
                "its workgroup count is indirect, which the function was not compiled for; give the count";
            return Err(ParseError::unsupported(text));
        }
        Ok(())
    }

    fn fill(&self, step: &Step, call: &Call<'_>, template: &mut [u8]) -> Result<(), ParseError> {
        let size = if self.workgroup_size == [0; 3] { call.workgroup_size } else { self.workgroup_size };
        for patch in &step.patches {
            let value = match patch.kind {
                PatchKind::BindingAddress { binding, addend } => {
                    let (address, length) = call.binding(binding)?;
                    if addend > length {
                        return Err(ParseError::invalid(format!(
                            "binding {binding} has {length} bytes, and the function begins {addend} bytes into it"
                        )));
                    }
                    plus(address, addend)?
                }
                PatchKind::BindingLength { binding } => call.binding(binding)?.1,
                PatchKind::BindingLengthWord { binding } => {
                    let (_, length) = call.binding(binding)?;
                    if length > u64::from(u32::MAX) {
                        return Err(ParseError::invalid(format!(
                            "binding {binding} has {length} bytes, and the function takes at most {} there",
                            u32::MAX
                        )));
                    }
                    length
                }
                PatchKind::Constant { constant } => {
                    let value = call.constants.get(usize::from(constant)).copied();
                    u64::from(
                        value.ok_or_else(|| ParseError::invalid(format!("no constant {constant} given")))?,
                    )
                }
                PatchKind::WorkgroupCount(axis) => u64::from(axis.of(call.workgroup_count)),
                PatchKind::WorkgroupSize(axis) => u64::from(axis.of(size)),
                PatchKind::LocalMemory => u64::from(call.local_memory),
                PatchKind::IndirectAddress => call.indirect,
                PatchKind::DataAddress { segment, addend } => {
                    let address = call.data.get(usize::from(segment)).copied();
                    let address = address.ok_or_else(|| {
                        ParseError::invalid(format!("data segment {segment} was placed nowhere"))
                    })?;
                    plus(address, addend)?
                }
            };
            // Little endian, so that the first four bytes of a number that fits into them are that number.
            let bytes = value.to_le_bytes();
            let target = usize::try_from(patch.offset).ok().and_then(|offset| template.get_mut(offset..));
            let target = target.and_then(|target| target.get_mut(..patch.kind.width()));
            match (target, bytes.get(..patch.kind.width())) {
                (Some(target), Some(bytes)) => target.copy_from_slice(bytes),
                _ => {
                    let text = format!("a patch at {} is outside of its template", patch.offset);
                    return Err(ParseError::invalid(text));
                }
            }
        }
        Ok(())
    }
}

impl Call<'_> {
    fn binding(&self, number: u16) -> Result<(u64, u64), ParseError> {
        let binding = self.bindings.get(usize::from(number)).copied();
        binding.ok_or_else(|| ParseError::invalid(format!("no binding {number} given")))
    }
}

fn plus(address: u64, addend: u64) -> Result<u64, ParseError> {
    address.checked_add(addend).ok_or_else(|| {
        ParseError::invalid(format!("{addend:#x} bytes behind {address:#x} is beyond every address"))
    })
}
