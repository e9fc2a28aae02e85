// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions whose form has parts: comparisons, conversions, moves, memory, and those across lanes.

use super::decode::{Decoded, Decoder, Variable};
use super::instruction::{
    Access, Atomic, Class, Cmp, Combine, Constant, Convert, Op, Pred, Round, Shuffle, Slot, Space, Type, Vote,
};
use super::text::Written;

fn type_of(word: &str) -> Option<Type> {
    Some(match word {
        "u8" | "b8" => Type::U8,
        "u16" | "b16" => Type::U16,
        "u32" | "b32" => Type::U32,
        "u64" | "b64" => Type::U64,
        "s8" => Type::S8,
        "s16" => Type::S16,
        "s32" => Type::S32,
        "s64" => Type::S64,
        "f16" => Type::F16,
        "bf16" => Type::Bf16,
        "f32" => Type::F32,
        "f64" => Type::F64,
        _ => return None,
    })
}

fn cmp_of(word: &str, kind: Type) -> Option<Cmp> {
    Some(match (word, kind.is_float()) {
        ("eq", _) => Cmp::Eq,
        ("ne", _) => Cmp::Ne,
        ("lt", _) | ("lo", false) => Cmp::Lt,
        ("le", _) | ("ls", false) => Cmp::Le,
        ("gt", _) | ("hi", false) => Cmp::Gt,
        ("ge", _) | ("hs", false) => Cmp::Ge,
        ("equ", true) => Cmp::Equ,
        ("neu", true) => Cmp::Neu,
        ("ltu", true) => Cmp::Ltu,
        ("leu", true) => Cmp::Leu,
        ("gtu", true) => Cmp::Gtu,
        ("geu", true) => Cmp::Geu,
        ("num", true) => Cmp::Num,
        ("nan", true) => Cmp::Nan,
        _ => return None,
    })
}

const UNKNOWN: &str = "a form that is not known";

impl Decoder {
    /// Decodes an instruction whose form has parts; false if it is none of them.
    pub(super) fn generic(&mut self, name: &str, operands: &[Written], line: u32) -> Decoded<bool> {
        let parts: Vec<&str> = name.split('.').collect();
        let Some((first, rest)) = parts.split_first() else { return Ok(false) };
        match *first {
            "setp" => self.compare(rest, operands)?,
            "cvt" => self.convert(rest, operands)?,
            "cvta" => self.convert_address(rest, operands)?,
            "ld" => self.memory(rest, operands, false)?,
            "st" => self.memory(rest, operands, true)?,
            "atom" => self.atomic(rest, operands, true)?,
            "red" => self.atomic(rest, operands, false)?,
            "shfl" => self.shuffle(rest, operands)?,
            "vote" => self.vote(rest, operands)?,
            "lop3" => self.lop3(rest, operands)?,
            "bar" | "barrier" if rest.first() != Some(&"warp") => self.barrier(first, rest, operands)?,
            "bra" => {
                if !matches!(rest, [] | ["uni"]) {
                    return Err(UNKNOWN.to_owned());
                }
                let [target] = operands else { return Err("a jump without a label".to_owned()) };
                self.jump(target, line)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Moves between one register and several, and of the clock; false if it is another instruction.
    pub(super) fn moves(&mut self, name: &str, operands: &[Written]) -> Decoded<bool> {
        let Some(kind) = name.strip_prefix("mov.") else { return Ok(false) };
        let [to, from] = operands else { return Ok(false) };
        if from.name() == Some("%globaltimer") && matches!(kind, "u64" | "b64") {
            let d = self.destination(to, Class::D)?;
            self.emit(Op::Timer, d, [0; 3]);
            return Ok(true);
        }
        let (whole, several, packs) = match (to, from) {
            (Written::Vector(parts), whole) => (whole, parts, false),
            (whole, Written::Vector(parts)) => (whole, parts, true),
            _ => return Ok(false),
        };
        let bytes = match kind {
            "b16" => 2,
            "b32" => 4,
            "b64" => 8,
            _ => return Err(UNKNOWN.to_owned()),
        };
        let class = if bytes == 8 { Class::D } else { Class::W };
        let count = u8::try_from(several.len()).unwrap_or(u8::MAX);
        if !matches!(count, 2 | 4) || bytes / count == 0 {
            return Err("a vector of this length".to_owned());
        }
        let list = self.list(several, |_| Class::W, !packs)?;
        let part = bytes / count;
        if packs {
            let d = self.destination(whole, class)?;
            self.emit(Op::Pack { bytes: part, parts: count, list }, d, [0; 3]);
        } else {
            let a = self.source(whole, class)?;
            self.emit(Op::Unpack { bytes: part, parts: count, list }, 0, [a, 0, 0]);
        }
        Ok(true)
    }

    /// Puts the registers of a vector into the kernel's list.
    fn list(
        &mut self,
        several: &[Written],
        class: impl Fn(Option<Class>) -> Class,
        written: bool,
    ) -> Decoded<u32> {
        let mut slots = Vec::new();
        for part in several {
            let found = part.name().and_then(|name| self.any_register(name)).map(|slot| slot.class);
            let class = class(found);
            let index = if written { self.destination(part, class)? } else { self.source(part, class)? };
            slots.push(Slot { class, index });
        }
        let list = u32::try_from(self.kernel.lists.len()).map_err(|_| "too many vectors")?;
        self.kernel.lists.extend(slots);
        Ok(list)
    }

    fn compare(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let (flush, rest): (Vec<&str>, Vec<&str>) = rest.iter().partition(|part| **part == "ftz");
        let (cmp, combine, kind) = match rest.as_slice() {
            [cmp, kind] => (cmp, Combine::None, kind),
            [cmp, "and", kind] => (cmp, Combine::And, kind),
            [cmp, "or", kind] => (cmp, Combine::Or, kind),
            [cmp, "xor", kind] => (cmp, Combine::Xor, kind),
            _ => return Err(UNKNOWN.to_owned()),
        };
        // Bits without a sign are equal or not, and `lo` and its kin are for numbers without one.
        let fits = match kind.as_bytes() {
            [b'b', b'1'..=b'9', ..] => matches!(*cmp, "eq" | "ne"),
            [b's', ..] => !matches!(*cmp, "lo" | "ls" | "hi" | "hs"),
            _ => true,
        };
        let kind = type_of(kind).filter(|kind| kind.bytes() > 1 && fits).ok_or(UNKNOWN)?;
        let cmp = cmp_of(cmp, kind).ok_or(UNKNOWN)?;
        if !flush.is_empty() && kind != Type::F32 {
            return Err(UNKNOWN.to_owned());
        }
        let (to, a, b, third) = match operands {
            [to, a, b] if combine == Combine::None => (to, a, b, None),
            [to, a, b, c] if combine != Combine::None => (to, a, b, Some(c)),
            _ => return Err("operands of another number".to_owned()),
        };
        let mut a = self.source(a, kind.class())?;
        let mut b = self.source(b, kind.class())?;
        if !flush.is_empty() {
            a = self.flushed(a)?;
            b = self.flushed(b)?;
        }
        let c = match third {
            None => 0,
            Some(Written::Not(name)) => {
                let from = self.register(name, Class::P)?;
                let negated = self.fresh(Class::P)?;
                self.emit(Op::Pred(Pred::Not), negated, [from, 0, 0]);
                negated
            }
            Some(written) => self.source(written, Class::P)?,
        };
        let (d, e) = match to {
            Written::Pair(p, q) => (
                self.destination(&Written::Name(p.clone()), Class::P)?,
                self.destination(&Written::Name(q.clone()), Class::P)?,
            ),
            one => (self.destination(one, Class::P)?, self.fresh(Class::P)?),
        };
        self.emit(Op::Compare(cmp, kind, combine), d, [a, b, c]).e = e;
        Ok(())
    }

    fn convert(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let [modifiers @ .., to, from] = rest else { return Err(UNKNOWN.to_owned()) };
        let (to, from) = (type_of(to).ok_or(UNKNOWN)?, type_of(from).ok_or(UNKNOWN)?);
        let mut convert = Convert { to, from, round: Round::None, saturate: false };
        let mut flush = false;
        for modifier in modifiers {
            match *modifier {
                "sat" => convert.saturate = true,
                "ftz" if from == Type::F32 || to == Type::F32 => flush = true,
                other if convert.round == Round::None => {
                    convert.round = match other {
                        "rn" => Round::Rn,
                        "rz" => Round::Rz,
                        "rm" => Round::Rm,
                        "rp" => Round::Rp,
                        "rni" => Round::Rni,
                        "rzi" => Round::Rzi,
                        "rmi" => Round::Rmi,
                        "rpi" => Round::Rpi,
                        _ => return Err(UNKNOWN.to_owned()),
                    }
                }
                _ => return Err(UNKNOWN.to_owned()),
            }
        }
        if !rounds(convert) {
            return Err(UNKNOWN.to_owned());
        }
        let [d, a] = operands else { return Err("operands of another number".to_owned()) };
        // Registers may be wider than the types.
        let found = |written: &Written, decoder: &Self| {
            written.name().and_then(|name| decoder.any_register(name)).map(|slot| slot.class)
        };
        let wide_to = found(d, self) == Some(Class::D) && to.class() == Class::W;
        let wide_from = found(a, self) == Some(Class::D) && from.class() == Class::W;
        let mut source = self.source(a, if wide_from { Class::D } else { from.class() })?;
        if wide_from {
            let narrow = self.fresh(Class::W)?;
            self.emit(Op::Convert(bits(Type::U32, Type::U64)), narrow, [source, 0, 0]);
            source = narrow;
        }
        if flush && from == Type::F32 {
            source = self.flushed(source)?;
        }
        if wide_to {
            let narrow = self.fresh(Class::W)?;
            self.emit(Op::Convert(convert), narrow, [source, 0, 0]);
            let widen = if to.is_signed() { bits(Type::S64, to) } else { bits(Type::U64, to) };
            let d = self.destination(d, Class::D)?;
            self.emit(Op::Convert(widen), d, [narrow, 0, 0]);
        } else {
            let d = self.destination(d, to.class())?;
            self.emit(Op::Convert(convert), d, [source, 0, 0]);
        }
        Ok(())
    }

    /// `cvta.to.global.u64`: addresses of global memory are the same in both; the others have a base.
    fn convert_address(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let (back, space) = match rest {
            ["to", space, "u64"] => (true, *space),
            [space, "u64"] => (false, *space),
            _ => return Err(UNKNOWN.to_owned()),
        };
        let base = match space {
            "global" | "const" => 0,
            "shared" => crate::simt::SHARED_WINDOW,
            "local" => crate::simt::LOCAL_WINDOW,
            _ => return Err(UNKNOWN.to_owned()),
        };
        let [d, a] = operands else { return Err("operands of another number".to_owned()) };
        let a = self.source(a, Class::D)?;
        let d = self.destination(d, Class::D)?;
        let base = if back { 0_u64.wrapping_sub(base) } else { base };
        let b = self.constant(Class::D, Constant::Bits(base)).index;
        self.emit(Op::B64(super::instruction::B64::Add), d, [a, b, 0]);
        Ok(())
    }

    fn memory(&mut self, rest: &[&str], operands: &[Written], store: bool) -> Decoded<()> {
        let mut rest = rest.to_vec();
        let kind = rest.pop().and_then(type_of).ok_or(UNKNOWN)?;
        let mut parts = 1;
        let mut space = None;
        for word in rest {
            match word {
                "v2" => parts = 2,
                "v4" => parts = 4,
                // Order: one thread runs at a time, and what it writes is there.
                "volatile" | "weak" | "relaxed" | "acquire" | "release" | "cta" | "gpu" | "sys" | "mmio" => {}
                "nc" | "L1::no_allocate" | "L1::evict_first" | "L1::evict_last" | "L1::evict_normal" => {}
                "ca" | "cg" | "cs" | "cv" | "lu" | "wb" | "wt" => {}
                space_word if space.is_none() => space = Some(space_word),
                _ => return Err(UNKNOWN.to_owned()),
            }
        }
        let (value, address) = match operands {
            [address, value] if store => (value, address),
            [value, address] => (value, address),
            _ => return Err("operands of another number".to_owned()),
        };
        let several = match value {
            Written::Vector(several) => several.as_slice(),
            one => std::slice::from_ref(one),
        };
        // Longer vectors are for targets from `sm_100` on, and 16-bit floats are moved as bits.
        if matches!(kind, Type::F16 | Type::Bf16) {
            return Err(UNKNOWN.to_owned());
        }
        if several.len() != usize::from(parts) || kind.bytes() * parts > 16 {
            return Err("a vector of another length".to_owned());
        }
        // Registers may be wider than what is moved.
        let least = kind.class();
        let pick = move |found| match found {
            Some(Class::D) => Class::D,
            _ => least,
        };
        let list = self.list(several, pick, !store)?;
        let mut access = Access {
            space: Space::Generic,
            bytes: kind.bytes(),
            signed: kind.is_signed(),
            parts,
            list,
            offset: 0,
        };
        if space == Some("param") {
            if store {
                return Err("a store to a parameter".to_owned());
            }
            access.offset = self.parameter(address, access)?;
            self.emit(Op::Parameter(access), 0, [0; 3]);
            return Ok(());
        }
        if store && space == Some("const") {
            return Err("a store to a constant".to_owned());
        }
        access.space = space_of(space)?;
        let a = self.base(address, &mut access)?;
        let op = if store { Op::Store(access) } else { Op::Load(access) };
        self.emit(op, 0, [a, 0, 0]);
        Ok(())
    }

    fn parameter(&self, address: &Written, access: Access) -> Decoded<i64> {
        let Written::Address(Some(name), offset) = address else {
            return Err("a parameter without a name".to_owned());
        };
        let Some(Variable::Parameter { offset: begin, size }) = self.variable(name) else {
            return Err(format!("no parameter `{name}`"));
        };
        let bytes = i64::from(access.bytes) * i64::from(access.parts);
        if *offset < 0 || offset.saturating_add(bytes) > i64::from(size) {
            return Err("a part outside of its parameter".to_owned());
        }
        let at = i64::from(begin) + offset;
        if at % i64::from(access.bytes) != 0 {
            return Err("a misaligned parameter".to_owned());
        }
        Ok(at)
    }

    /// The register with the address, to which the access's offset is added.
    fn base(&mut self, address: &Written, access: &mut Access) -> Decoded<u32> {
        let Written::Address(base, offset) = address else {
            return Err("an address without brackets".to_owned());
        };
        access.offset = *offset;
        let Some(name) = base else {
            return Ok(self.constant(Class::D, Constant::Bits(0)).index);
        };
        match (self.any_register(name), self.variable(name)) {
            (Some(Slot { class: Class::D, index }), _) => Ok(index),
            (Some(Slot { class: Class::W, index }), _) if access.space != Space::Generic => {
                let wide = self.fresh(Class::D)?;
                self.emit(Op::Convert(bits(Type::U64, Type::U32)), wide, [index, 0, 0]);
                Ok(wide)
            }
            (None, Some(Variable::Global(number))) if access.space == Space::Global => {
                Ok(self.constant(Class::D, Constant::Global(number, 0)).index)
            }
            (None, Some(Variable::Shared { .. })) if access.space == Space::Shared => {
                let begin = u64::from(self.shared_offset(name)?);
                Ok(self.constant(Class::D, Constant::Bits(begin)).index)
            }
            (None, Some(Variable::Local { offset })) if access.space == Space::Local => {
                Ok(self.constant(Class::D, Constant::Bits(u64::from(offset))).index)
            }
            (None, None) => Err(format!("no register or variable `{name}`")),
            _ => Err(format!("`{name}` in this space")),
        }
    }

    fn atomic(&mut self, rest: &[&str], operands: &[Written], wanted: bool) -> Decoded<()> {
        let mut rest: Vec<&str> = rest.to_vec();
        let kind = rest.pop().and_then(type_of).ok_or(UNKNOWN)?;
        let word = rest.pop().ok_or(UNKNOWN)?;
        // `atom.global.add.noftz.f16`.
        let word = if word == "noftz" { rest.pop().ok_or(UNKNOWN)? } else { word };
        let mut space = None;
        for part in rest {
            match part {
                "relaxed" | "acquire" | "release" | "acq_rel" | "cta" | "gpu" | "sys" => {}
                part if space.is_none() => space = Some(part),
                _ => return Err(UNKNOWN.to_owned()),
            }
        }
        let float = kind.is_float();
        let op = match word {
            "add" if float => Atomic::AddF,
            "add" => Atomic::Add,
            "min" if !float => Atomic::Min,
            "max" if !float => Atomic::Max,
            "and" if !float => Atomic::And,
            "or" if !float => Atomic::Or,
            "xor" if !float => Atomic::Xor,
            "exch" if wanted && !float => Atomic::Exch,
            "cas" if wanted && !float => Atomic::Cas,
            "inc" if kind == Type::U32 => Atomic::Inc,
            "dec" if kind == Type::U32 => Atomic::Dec,
            _ => return Err(UNKNOWN.to_owned()),
        };
        let narrow_ok = op == Atomic::AddF || (op == Atomic::Cas && kind == Type::U16);
        if kind.bytes() < 4 && !narrow_ok {
            return Err(UNKNOWN.to_owned());
        }
        let (to, rest) = match operands {
            [to, rest @ ..] if wanted => (Some(to), rest),
            rest => (None, rest),
        };
        let (address, values) = rest.split_first().ok_or("operands of another number")?;
        if values.len() != if op == Atomic::Cas { 2 } else { 1 } {
            return Err("operands of another number".to_owned());
        }
        let mut access = Access {
            space: space_of(space)?,
            bytes: kind.bytes(),
            signed: false,
            parts: 1,
            list: 0,
            offset: 0,
        };
        let a = self.base(address, &mut access)?;
        let mut slots = [0; 2];
        for (slot, value) in slots.iter_mut().zip(values) {
            *slot = self.source(value, kind.class())?;
        }
        let d = match to {
            Some(to) => self.destination(to, kind.class())?,
            None => self.fresh(kind.class())?,
        };
        let [b, c] = slots;
        self.emit(Op::Atomic(op, kind, access, wanted), d, [a, b, c]);
        Ok(())
    }

    fn shuffle(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let ["sync", mode, "b32"] = rest else { return Err(UNKNOWN.to_owned()) };
        let mode = match *mode {
            "bfly" => Shuffle::Bfly,
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "idx" => Shuffle::Idx,
            _ => return Err(UNKNOWN.to_owned()),
        };
        let [to, a, b, c, members] = operands else { return Err("operands of another number".to_owned()) };
        let (d, p) = match to {
            Written::Pair(d, p) => (
                self.destination(&Written::Name(d.clone()), Class::W)?,
                self.destination(&Written::Name(p.clone()), Class::P)?,
            ),
            one => (self.destination(one, Class::W)?, self.fresh(Class::P)?),
        };
        let a = self.source(a, Class::W)?;
        let b = self.source(b, Class::W)?;
        let c = self.source(c, Class::W)?;
        let members = self.source(members, Class::W)?;
        // Four operands and two destinations: the first two of these lie in the list.
        let list = u32::try_from(self.kernel.lists.len()).map_err(|_| "too many vectors")?;
        self.kernel.lists.push(Slot { class: Class::W, index: d });
        self.kernel.lists.push(Slot { class: Class::P, index: p });
        self.emit(Op::Shuffle(mode), list, [a, b, c]).e = members;
        Ok(())
    }

    fn vote(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let vote = match rest {
            ["sync", "all", "pred"] => Vote::All,
            ["sync", "any", "pred"] => Vote::Any,
            ["sync", "uni", "pred"] => Vote::Uni,
            ["sync", "ballot", "b32"] => Vote::Ballot,
            _ => return Err(UNKNOWN.to_owned()),
        };
        let [to, a, members] = operands else { return Err("operands of another number".to_owned()) };
        let a = match a {
            Written::Not(name) => {
                let from = self.register(name, Class::P)?;
                let negated = self.fresh(Class::P)?;
                self.emit(Op::Pred(Pred::Not), negated, [from, 0, 0]);
                negated
            }
            written => self.source(written, Class::P)?,
        };
        let members = self.source(members, Class::W)?;
        let d = self.destination(to, if vote == Vote::Ballot { Class::W } else { Class::P })?;
        self.emit(Op::Vote(vote), d, [a, 0, 0]).e = members;
        Ok(())
    }

    fn lop3(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let (["b32"], [d, a, b, c, Written::Number(table, false)]) = (rest, operands) else {
            return Err(UNKNOWN.to_owned());
        };
        let table = u8::try_from(*table).map_err(|_| "a table of more than eight bits")?;
        let a = self.source(a, Class::W)?;
        let b = self.source(b, Class::W)?;
        let c = self.source(c, Class::W)?;
        let d = self.destination(d, Class::W)?;
        self.emit(Op::Lop3(table), d, [a, b, c]);
        Ok(())
    }

    /// A barrier of all threads of the block.
    fn barrier(&mut self, first: &str, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let known = match first {
            "bar" => matches!(rest, ["sync"] | ["cta", "sync"]),
            _ => matches!(rest, ["sync", "aligned"] | ["cta", "sync", "aligned"]),
        };
        let [Written::Number(number @ 0..16, false)] = operands else {
            return Err("a barrier of a part of the block".to_owned());
        };
        if !known {
            return Err(UNKNOWN.to_owned());
        }
        self.emit(Op::Barrier, u32::try_from(*number).unwrap_or(0), [0; 3]);
        Ok(())
    }
}

fn space_of(space: Option<&str>) -> Decoded<Space> {
    match space {
        None => Ok(Space::Generic),
        Some("global" | "const") => Ok(Space::Global),
        Some("shared" | "shared::cta") => Ok(Space::Shared),
        Some("local") => Ok(Space::Local),
        Some(_) => Err(UNKNOWN.to_owned()),
    }
}

fn bits(to: Type, from: Type) -> Convert {
    Convert { to, from, round: Round::None, saturate: false }
}

/// Whether a conversion rounds as its types need.
fn rounds(it: Convert) -> bool {
    use Round::{None, Rm, Rmi, Rn, Rni, Rp, Rpi, Rz, Rzi};
    let (to, from) = (it.to, it.from);
    let order = |kind: Type| (kind.bytes(), kind == Type::Bf16);
    match (to.is_float(), from.is_float()) {
        (false, false) => it.round == None,
        (false, true) => matches!(it.round, Rni | Rzi | Rmi | Rpi),
        (true, false) => matches!(it.round, Rn | Rz | Rm | Rp) && !(to.bytes() == 2 && it.round != Rn),
        (true, true) if to == from => matches!(it.round, None | Rni | Rzi | Rmi | Rpi),
        (true, true) if order(to) > order(from) && to.bytes() > from.bytes() => it.round == None,
        (true, true) if to.bytes() == 2 && from.bytes() == 2 => it.round == Rn,
        (true, true) if to.bytes() == 2 => matches!(it.round, Rn | Rz),
        (true, true) => matches!(it.round, Rn | Rz | Rm | Rp),
    }
}

impl super::instruction::B64 {
    /// Whether the second operand has 32 bits.
    #[must_use]
    pub fn is_shift(self) -> bool {
        matches!(self, Self::Shl | Self::ShrU | Self::ShrS)
    }
}
