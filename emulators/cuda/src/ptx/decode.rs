// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Statements to instructions: names become numbers of registers.

use super::forms::lookup;
use super::instruction::{Class, Constant, Inst, Op, Slot, Special, U32};
use super::targets::least;
use super::text::{Statement, Written};
use super::types::{Kind, signature};
use super::{Kernel, Refusal};
use std::collections::{HashMap, HashSet};

/// What a name stands for, other than a register or a label.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variable {
    Parameter { offset: u32, size: u32 },
    Global(u32),
    Shared { size: u32, alignment: u32 },
    Local { offset: u32 },
}

/// Names and what they stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables(HashMap<String, Variable>);

impl Variables {
    pub(super) fn add(&mut self, name: String, variable: Variable, line: u32) -> Result<(), Refusal> {
        if self.0.contains_key(&name) {
            return Err(Refusal::new(line, format!("a second `{name}`")));
        }
        self.0.insert(name, variable);
        Ok(())
    }
}

/// How many registers of a class a kernel may have.
const MOST_REGISTERS: u32 = 1 << 16;
/// How many bytes of local memory a thread may have.
const MOST_LOCAL: u32 = 512 << 10;

/// Registers, those of them that a block has declared itself, and variables.
type Names = (HashMap<String, Family>, HashSet<String>, Variables);

/// Registers that were declared together.
#[derive(Clone, Copy, Debug)]
struct Family {
    first: Slot,
    kind: Kind,
    /// How many there are; none for a single name.
    count: Option<u32>,
}

/// Decodes the body of a kernel.
pub(super) struct Decoder {
    pub(super) kernel: Kernel,
    pub(super) variables: Variables,
    /// The number of the module's target.
    target: u32,
    /// Each family of names (`%r` of `%r<12>`) or single name.
    families: HashMap<String, Family>,
    /// The families that this block has declared itself.
    own: HashSet<String>,
    /// What the blocks around this one know.
    outer: Vec<Names>,
    labels: HashMap<String, u32>,
    jumps: Vec<(usize, String, u32)>,
    constants: HashMap<(Class, Constant), Slot>,
    /// Where the shared variables are that were used.
    shared: HashMap<String, u32>,
    /// The guard of the statement that is being decoded.
    guard: (u32, bool),
    source: String,
}

/// The result of a step of the decoder.
pub(super) type Decoded<T> = Result<T, String>;

impl Decoder {
    pub(super) fn new(kernel: Kernel, variables: Variables, target: u32) -> Self {
        let mut decoder = Self {
            kernel,
            variables,
            target,
            families: HashMap::new(),
            own: HashSet::new(),
            outer: Vec::new(),
            labels: HashMap::new(),
            jumps: Vec::new(),
            constants: HashMap::new(),
            shared: HashMap::new(),
            guard: (0, false),
            source: String::new(),
        };
        // Guard 0 is "always".
        decoder.constant(Class::P, Constant::Bits(1));
        decoder
    }

    pub(super) fn registers(
        &mut self,
        name: String,
        kind: Kind,
        count: Option<u32>,
        line: u32,
    ) -> Result<(), Refusal> {
        let first = self.fresh_many(kind.class(), count.unwrap_or(1)).map_err(|it| Refusal::new(line, it))?;
        // A register that a nested block declares hides one of the same name.
        if !self.own.insert(name.clone()) {
            return Err(Refusal::new(line, format!("a second `{name}`")));
        }
        self.families.insert(name, Family { first, kind, count });
        Ok(())
    }

    /// Begins a block within the body.
    pub(super) fn open_block(&mut self) {
        let own = std::mem::take(&mut self.own);
        self.outer.push((self.families.clone(), own, self.variables.clone()));
    }

    /// Ends a block: what it declared is not known any more. False at the end of the body.
    pub(super) fn close_block(&mut self) -> bool {
        let Some(outer) = self.outer.pop() else { return false };
        (self.families, self.own, self.variables) = outer;
        true
    }

    fn fresh_many(&mut self, class: Class, count: u32) -> Decoded<Slot> {
        let [w, d, p] = &mut self.kernel.registers;
        let used = match class {
            Class::W => w,
            Class::D => d,
            Class::P => p,
        };
        let index = *used;
        *used = index.saturating_add(count);
        if *used > MOST_REGISTERS {
            return Err(format!("more than {MOST_REGISTERS} registers"));
        }
        Ok(Slot { class, index })
    }

    /// A register that has no name.
    pub(super) fn fresh(&mut self, class: Class) -> Decoded<u32> {
        self.fresh_many(class, 1).map(|slot| slot.index)
    }

    pub(super) fn local(&mut self, size: u32, alignment: u32, line: u32) -> Result<Variable, Refusal> {
        let offset = self.kernel.local_bytes.next_multiple_of(alignment.max(8));
        self.kernel.local_bytes = offset.saturating_add(size);
        if self.kernel.local_bytes > MOST_LOCAL {
            return Err(Refusal::new(line, "more local memory than a thread can have"));
        }
        Ok(Variable::Local { offset })
    }

    pub(super) fn label(&mut self, name: String, line: u32) -> Result<(), Refusal> {
        let here = u32::try_from(self.kernel.code.len()).unwrap_or(u32::MAX);
        match self.labels.insert(name, here) {
            None => Ok(()),
            Some(_) => Err(Refusal::new(line, "a second label of this name")),
        }
    }

    /// Ends the kernel: labels become numbers.
    pub(super) fn finish(mut self, line: u32) -> Result<Kernel, Refusal> {
        self.source = "}".to_owned();
        self.guard = (0, false);
        self.emit(Op::Return, 0, [0; 3]);
        for (at, label, line) in &self.jumps {
            let target =
                self.labels.get(label).ok_or_else(|| Refusal::new(*line, format!("no label `{label}`")))?;
            if let Some(inst) = self.kernel.code.get_mut(*at) {
                inst.d = *target;
            }
        }
        if u32::try_from(self.kernel.code.len()).is_err() {
            return Err(Refusal::new(line, "too many instructions"));
        }
        // Registers can be read before they are written only by a program that is wrong or does not care.
        self.kernel.shared_bytes = self.kernel.shared_bytes.next_multiple_of(16);
        Ok(self.kernel)
    }

    /// Appends an instruction under the statement's guard.
    pub(super) fn emit(&mut self, op: Op, d: u32, [a, b, c]: [u32; 3]) -> &mut Inst {
        let (guard, negated) = self.guard;
        self.kernel.sources.push(self.source.clone());
        self.kernel.code.push(Inst { op, guard, negated, d, e: 0, a, b, c });
        let last = self.kernel.code.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "it was just pushed")]
        &mut self.kernel.code[last]
    }

    /// Decodes a statement.
    pub(super) fn decode(&mut self, statement: &Statement, source: &str) -> Result<(), Refusal> {
        self.source = source.to_owned();
        let outcome = self.guarded(statement);
        outcome.map_err(|reason| Refusal::new(statement.line, reason))
    }

    fn guarded(&mut self, statement: &Statement) -> Decoded<()> {
        self.guard = match &statement.guard {
            None => (0, false),
            Some((name, negated)) => (self.register(name, Kind::PREDICATE)?, *negated),
        };
        let name = statement.name.as_str();
        let parts: Vec<&str> = name.split('.').collect();
        let least = least(&parts);
        if least > self.target {
            let section = parts.first().copied().unwrap_or_default();
            return Err(format!(
                "sm_{least} or newer is needed: \"Target ISA Notes\" of section `{section}`"
            ));
        }
        if self.moves(name, &statement.operands)?
            || self.generic(&parts, &statement.operands, statement.line)?
        {
            return Ok(());
        }
        let form = name.replacen(".ftz", "", 1);
        let flush = form != name;
        if flush && !flushes(&form) {
            return Err("this form has no `.ftz`: the syntax in its section".to_owned());
        }
        let op = lookup(&form).ok_or("a form that is not known")?;
        self.plain(op, &form, &statement.operands, flush)
    }

    /// An instruction of the table: a destination and operands of fixed types.
    fn plain(&mut self, op: Op, form: &str, operands: &[Written], flush: bool) -> Decoded<()> {
        let (to, from) = signature(op, form);
        let expected = from.len() + usize::from(to.is_some());
        if operands.len() != expected {
            return Err(format!("{} operands where {expected} belong", operands.len()));
        }
        let (first, rest) = operands.split_at(usize::from(to.is_some()));
        let mut slots = [0; 4];
        for ((slot, written), kind) in slots.iter_mut().zip(rest).zip(from) {
            *slot = self.source(written, kind)?;
            if flush {
                *slot = self.flushed(*slot)?;
            }
        }
        let d = match (first, to) {
            ([written], Some(kind)) => self.destination(written, kind)?,
            _ => 0,
        };
        let [a, b, c, e] = slots;
        self.emit(op, d, [a, b, c]).e = e;
        if flush {
            self.emit(Op::U32(U32::FlushF), d, [d, 0, 0]);
        }
        Ok(())
    }

    /// A register with the same float, where a denormal one is zero.
    pub(super) fn flushed(&mut self, slot: u32) -> Decoded<u32> {
        let flushed = self.fresh(Class::W)?;
        self.emit(Op::U32(U32::FlushF), flushed, [slot, 0, 0]);
        Ok(flushed)
    }

    /// A jump to a label.
    pub(super) fn jump(&mut self, written: &Written, line: u32) -> Decoded<()> {
        let label = written.name().ok_or("a jump without a label")?.to_owned();
        let at = self.kernel.code.len();
        self.emit(Op::Branch, 0, [0; 3]);
        self.jumps.push((at, label, line));
        Ok(())
    }

    /// The register of a name, and its type.
    pub(super) fn any_register(&self, name: &str) -> Option<(Slot, Kind)> {
        if let Some(Family { first, kind, count: None }) = self.families.get(name) {
            return Some((*first, *kind));
        }
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: u32 = name.get(prefix.len()..)?.parse().ok()?;
        match self.families.get(prefix) {
            Some(Family { first, kind, count: Some(count) }) if number < *count => {
                Some((Slot { class: first.class, index: first.index + number }, *kind))
            }
            _ => None,
        }
    }

    /// The register of a name, which is of this type.
    pub(super) fn register(&self, name: &str, kind: Kind) -> Decoded<u32> {
        match self.any_register(name) {
            Some((slot, found)) if found.agrees(kind) => Ok(slot.index),
            Some(_) => Err(format!("the register {name} has another type: \"Type Checking Rules\"")),
            None => Err(format!("no register `{name}`")),
        }
    }

    pub(super) fn destination(&self, written: &Written, kind: Kind) -> Decoded<u32> {
        match written.name() {
            Some("_") => Err("`_` in place of this destination".to_owned()),
            Some(name) => self.register(name, kind),
            None => Err("a destination that is not a register".to_owned()),
        }
    }

    /// A destination that may be `_`, where nobody wants the result.
    pub(super) fn destination_or_none(&mut self, written: &Written, kind: Kind) -> Decoded<u32> {
        if written.name() == Some("_") { self.fresh(kind.class()) } else { self.destination(written, kind) }
    }

    /// A register that holds an operand.
    pub(super) fn source(&mut self, written: &Written, kind: Kind) -> Decoded<u32> {
        let class = kind.class();
        match written {
            Written::Number(_, true) if kind.is_whole() => {
                Err("a float where a whole number belongs: \"Type Checking Rules\"".to_owned())
            }
            Written::Number(bits, _) => Ok(self.constant(class, Constant::Bits(*bits)).index),
            Written::Name(name) => {
                if let Some(special) = special(name) {
                    if !Kind::U32.agrees(kind) {
                        return Err(format!("{name} is `u32`: \"Type Checking Rules\""));
                    }
                    return Ok(self.constant(class, Constant::Special(special)).index);
                }
                if Kind::U64.agrees(kind) && self.any_register(name).is_none() {
                    return self.address_of(name);
                }
                self.register(name, kind)
            }
            _ => Err("an operand of this kind".to_owned()),
        }
    }

    /// The type of the register of an operand that may be wider, as loads, stores and conversions take it; other
    /// operands are of the instruction's type.
    pub(super) fn wide(&self, written: &Written, kind: Kind) -> Decoded<Kind> {
        match written.name().and_then(|name| Some((name, self.any_register(name)?))) {
            Some((_, (_, found))) if found.holds(kind) => Ok(found),
            Some((name, _)) => Err(format!(
                "the register {name} does not hold this type: \"Operand Size Exceeding Instruction-Type Size\""
            )),
            None => Ok(kind),
        }
    }

    /// A register that holds the address of a variable in its own space.
    fn address_of(&mut self, name: &str) -> Decoded<u32> {
        let constant = match self.variables.0.get(name).copied() {
            Some(Variable::Global(number)) => Constant::Global(number, 0),
            Some(Variable::Shared { .. }) => Constant::Bits(u64::from(self.shared_offset(name)?)),
            Some(Variable::Local { offset }) => Constant::Bits(u64::from(offset)),
            Some(Variable::Parameter { .. }) => return Err("the address of a parameter".to_owned()),
            None => return Err(format!("no register or variable `{name}`")),
        };
        Ok(self.constant(Class::D, constant).index)
    }

    /// Where a shared variable is; it gets its place with its first use. One without a size has what the launch
    /// adds, behind all others.
    pub(super) fn shared_offset(&mut self, name: &str) -> Decoded<u32> {
        let Some(Variable::Shared { size, alignment }) = self.variables.0.get(name).copied() else {
            return Err(format!("`{name}` is not shared memory"));
        };
        if let Some(offset) = self.shared.get(name) {
            return Ok(*offset);
        }
        if size == 0 && self.shared.values().any(|_| true) {
            return Err("shared memory of both kinds in one kernel".to_owned());
        }
        let offset = self.kernel.shared_bytes.next_multiple_of(alignment.max(16));
        self.kernel.shared_bytes = offset.saturating_add(size);
        // More is for what a launch adds: "Shared Memory" in the programming guide's table of technical specifications.
        if self.kernel.shared_bytes > 48 << 10 {
            return Err("more shared memory than a block can have".to_owned());
        }
        self.shared.insert(name.to_owned(), offset);
        Ok(offset)
    }

    /// The variable of a name.
    pub(super) fn variable(&self, name: &str) -> Option<Variable> {
        self.variables.0.get(name).copied()
    }

    /// A register that holds a constant from the beginning.
    pub(super) fn constant(&mut self, class: Class, constant: Constant) -> Slot {
        if let Some(slot) = self.constants.get(&(class, constant)) {
            return *slot;
        }
        // The limit is checked where registers are declared; constants are as many as operands.
        let slot = self.fresh_many(class, 1).unwrap_or(Slot { class, index: 0 });
        self.constants.insert((class, constant), slot);
        self.kernel.constants.push((slot, constant));
        slot
    }
}

/// A special register of a name.
fn special(name: &str) -> Option<Special> {
    let (base, axis) = name.rsplit_once('.').unwrap_or((name, ""));
    let axis = match axis {
        "x" => 0,
        "y" => 1,
        "z" => 2,
        _ => 3,
    };
    match (base, axis) {
        ("%laneid", 3) => Some(Special::LaneId),
        ("%warpid", 3) => Some(Special::WarpId),
        ("%tid", 0..3) => Some(Special::Tid(axis)),
        ("%ntid", 0..3) => Some(Special::Ntid(axis)),
        ("%ctaid", 0..3) => Some(Special::Ctaid(axis)),
        ("%nctaid", 0..3) => Some(Special::Nctaid(axis)),
        _ => None,
    }
}

/// Whether a form without its `.ftz` may have one.
fn flushes(form: &str) -> bool {
    let name = form.split('.').next().unwrap_or_default();
    form.ends_with(".f32") && !matches!(name, "mov" | "selp" | "copysign" | "tanh")
}
