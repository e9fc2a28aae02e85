// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions whose form has parts: comparisons, conversions, moves, memory, and those across lanes.

use super::decode::{Decoded, Decoder, Variable};
use super::instruction::{
    Access, Atomic, Class, Cmp, Combine, Constant, Convert, Op, Pred, Round, Shuffle, Slot, Space, Type, U32,
    Vote,
};
use super::memory_order::Qualifiers;
use super::text::Written;
use super::types::Kind;

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
    pub(super) fn generic(&mut self, parts: &[&str], operands: &[Written], line: u32) -> Decoded<bool> {
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
            let d = self.destination(to, Kind::U64)?;
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
        let count = u8::try_from(several.len()).unwrap_or(u8::MAX);
        if !matches!(count, 2 | 4) || bytes / count == 0 {
            return Err("a vector of this length".to_owned());
        }
        let part = bytes / count;
        let (kind, of_part) = (Kind::untyped(bytes * 8), Kind::untyped(part * 8));
        let mut slots = Vec::new();
        for written in several {
            let index = if packs {
                self.source(written, of_part)?
            } else {
                self.destination_or_none(written, of_part)?
            };
            slots.push(Slot { class: Class::W, index });
        }
        let list = self.list(slots)?;
        if packs {
            let d = self.destination(whole, kind)?;
            self.emit(Op::Pack { bytes: part, parts: count, list }, d, [0; 3]);
        } else {
            let a = self.source(whole, kind)?;
            self.emit(Op::Unpack { bytes: part, parts: count, list }, 0, [a, 0, 0]);
        }
        Ok(true)
    }

    /// Puts the registers of a vector into the kernel's list.
    fn list(&mut self, slots: impl IntoIterator<Item = Slot>) -> Decoded<u32> {
        let list = u32::try_from(self.kernel.lists.len()).map_err(|_| "too many vectors")?;
        self.kernel.lists.extend(slots);
        Ok(list)
    }

    fn compare(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let (flush, rest): (Vec<&str>, Vec<&str>) = rest.iter().partition(|part| **part == "ftz");
        let flush = match flush.len() {
            0 => false,
            1 if rest.last() == Some(&"f32") => true,
            _ => return Err("this form has no `.ftz`: the syntax in its section".to_owned()),
        };
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
        let operand = Kind::of(kind).ok_or(UNKNOWN)?;
        let kind = type_of(kind).filter(|kind| kind.bytes() > 1 && fits).ok_or(UNKNOWN)?;
        let cmp = cmp_of(cmp, kind).ok_or(UNKNOWN)?;
        let (to, a, b, third) = match operands {
            [to, a, b] if combine == Combine::None => (to, a, b, None),
            [to, a, b, c] if combine != Combine::None => (to, a, b, Some(c)),
            _ => return Err("operands of another number".to_owned()),
        };
        let mut a = self.source(a, operand)?;
        let mut b = self.source(b, operand)?;
        if flush {
            a = self.flushed(a)?;
            b = self.flushed(b)?;
        }
        let c = match third {
            None => 0,
            Some(Written::Not(name)) => {
                let from = self.register(name, Kind::PREDICATE)?;
                let negated = self.fresh(Class::P)?;
                self.emit(Op::Pred(Pred::Not), negated, [from, 0, 0]);
                negated
            }
            Some(written) => self.source(written, Kind::PREDICATE)?,
        };
        let (d, e) = match to {
            Written::Pair(p, q) => (
                self.destination_or_none(&Written::Name(p.clone()), Kind::PREDICATE)?,
                self.destination_or_none(&Written::Name(q.clone()), Kind::PREDICATE)?,
            ),
            one => (self.destination(one, Kind::PREDICATE)?, self.fresh(Class::P)?),
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
                "sat" if !convert.saturate => convert.saturate = true,
                "ftz" if from != Type::F32 && to != Type::F32 => {
                    return Err("a conversion without `f32` has no `.ftz`: section `cvt`".to_owned());
                }
                "ftz" if !flush => flush = true,
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
        if convert.saturate && !saturates(to, from) {
            return Err("nothing that saturation could change: section `cvt`".to_owned());
        }
        let [d, a] = operands else { return Err("operands of another number".to_owned()) };
        let source_kind = self.wide(a, from.into())?;
        let target_kind = self.wide(d, to.into())?;
        let mut source = self.source(a, source_kind)?;
        if source_kind.class() == Class::D && from.class() == Class::W {
            let narrow = self.fresh(Class::W)?;
            self.emit(Op::Convert(bits(Type::U32, Type::U64)), narrow, [source, 0, 0]);
            source = narrow;
        }
        if flush && from == Type::F32 {
            source = self.flushed(source)?;
        }
        let d = self.destination(d, target_kind)?;
        if target_kind.class() == Class::D && to.class() == Class::W {
            let narrow = self.fresh(Class::W)?;
            self.emit(Op::Convert(convert), narrow, [source, 0, 0]);
            let widen = if to.is_signed() { bits(Type::S64, to) } else { bits(Type::U64, to) };
            self.emit(Op::Convert(widen), d, [narrow, 0, 0]);
        } else {
            self.emit(Op::Convert(convert), d, [source, 0, 0]);
            if flush && to == Type::F32 {
                self.emit(Op::U32(U32::FlushF), d, [d, 0, 0]);
            }
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
        let a = self.source(a, Kind::U64)?;
        let d = self.destination(d, Kind::U64)?;
        let base = if back { 0_u64.wrapping_sub(base) } else { base };
        let b = self.constant(Class::D, Constant::Bits(base)).index;
        self.emit(Op::B64(super::instruction::B64::Add), d, [a, b, 0]);
        Ok(())
    }

    fn memory(&mut self, rest: &[&str], operands: &[Written], store: bool) -> Decoded<()> {
        let (word, rest) = rest.split_last().ok_or(UNKNOWN)?;
        let (kind, operand) = (type_of(word).ok_or(UNKNOWN)?, Kind::of(word).ok_or(UNKNOWN)?);
        let mut parts = 1;
        let mut qualifiers = Qualifiers::default();
        for word in rest {
            match *word {
                "v2" if parts == 1 => parts = 2,
                "v4" if parts == 1 => parts = 4,
                word => qualifiers.take(word)?,
            }
        }
        let space = if store { qualifiers.of_store()? } else { qualifiers.of_load()? };
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
        let mut slots = Vec::new();
        for part in several {
            let kind = self.wide(part, operand)?;
            let index = if store { self.source(part, kind)? } else { self.destination(part, kind)? };
            slots.push(Slot { class: kind.class(), index });
        }
        let list = self.list(slots)?;
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
        let found = self.any_register(name);
        match (found.map(|(slot, _)| slot), self.variable(name)) {
            (Some(Slot { class, .. }), _)
                if !found.is_some_and(|(_, kind)| kind.agrees(Kind::U64) || kind.agrees(Kind::U32))
                    && class != Class::P =>
            {
                Err(format!("{name} is no address: \"Type Checking Rules\""))
            }
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
        let (word, rest) = rest.split_last().ok_or(UNKNOWN)?;
        let (kind, operand) = (type_of(word).ok_or(UNKNOWN)?, Kind::of(word).ok_or(UNKNOWN)?);
        let (before, rest) = rest.split_last().ok_or(UNKNOWN)?;
        // `atom.global.add.noftz.f16`.
        let (name, rest, keeps) = match (*before, rest.split_last()) {
            ("noftz", Some((name, rest))) => (*name, rest, true),
            (name, _) => (name, rest, false),
        };
        let mut qualifiers = Qualifiers::default();
        rest.iter().try_for_each(|part| qualifiers.take(part))?;
        let space = qualifiers.of_atomic()?;
        if keeps != (name == "add" && *word == "f16") {
            return Err("`.noftz` is for sums of 16-bit floats, which need it: section `atom`".to_owned());
        }
        let op = atomic_of(name, word).filter(|op| wanted || !matches!(op, Atomic::Exch | Atomic::Cas));
        let op = op.ok_or("no operation of this name and type: section `atom`")?;
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
            *slot = self.source(value, operand)?;
        }
        let d = match to {
            Some(to) => self.destination_or_none(to, operand)?,
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
                self.destination_or_none(&Written::Name(d.clone()), Kind::B32)?,
                self.destination_or_none(&Written::Name(p.clone()), Kind::PREDICATE)?,
            ),
            one => (self.destination(one, Kind::B32)?, self.fresh(Class::P)?),
        };
        let a = self.source(a, Kind::B32)?;
        let b = self.source(b, Kind::U32)?;
        let c = self.source(c, Kind::U32)?;
        let members = self.source(members, Kind::U32)?;
        // Four operands and two destinations: the first two of these lie in the list.
        let list = self.list([Slot { class: Class::W, index: d }, Slot { class: Class::P, index: p }])?;
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
                let from = self.register(name, Kind::PREDICATE)?;
                let negated = self.fresh(Class::P)?;
                self.emit(Op::Pred(Pred::Not), negated, [from, 0, 0]);
                negated
            }
            written => self.source(written, Kind::PREDICATE)?,
        };
        let members = self.source(members, Kind::U32)?;
        let d = self.destination(to, if vote == Vote::Ballot { Kind::B32 } else { Kind::PREDICATE })?;
        self.emit(Op::Vote(vote), d, [a, 0, 0]).e = members;
        Ok(())
    }

    fn lop3(&mut self, rest: &[&str], operands: &[Written]) -> Decoded<()> {
        let (["b32"], [d, a, b, c, Written::Number(table, false)]) = (rest, operands) else {
            return Err(UNKNOWN.to_owned());
        };
        let table = u8::try_from(*table).map_err(|_| "a table of more than eight bits")?;
        let a = self.source(a, Kind::B32)?;
        let b = self.source(b, Kind::B32)?;
        let c = self.source(c, Kind::B32)?;
        let d = self.destination(d, Kind::B32)?;
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

/// The operation of a name on a type: bits, whole numbers and floats have different ones.
fn atomic_of(name: &str, kind: &str) -> Option<Atomic> {
    Some(match (name, kind) {
        ("and", "b32" | "b64") => Atomic::And,
        ("or", "b32" | "b64") => Atomic::Or,
        ("xor", "b32" | "b64") => Atomic::Xor,
        ("exch", "b32" | "b64") => Atomic::Exch,
        ("cas", "b16" | "b32" | "b64") => Atomic::Cas,
        ("add", "u32" | "s32" | "u64") => Atomic::Add,
        ("add", "f16" | "f32" | "f64") => Atomic::AddF,
        ("min", "u32" | "s32" | "u64" | "s64") => Atomic::Min,
        ("max", "u32" | "s32" | "u64" | "s64") => Atomic::Max,
        ("inc", "u32") => Atomic::Inc,
        ("dec", "u32") => Atomic::Dec,
        _ => return None,
    })
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

/// Whether the values of one type are more than those of the other, or its result is a float from 0 to 1.
fn saturates(to: Type, from: Type) -> bool {
    let more = if to.is_signed() { 1 } else { 0 };
    match (to, from) {
        (Type::Bf16, _) => false,
        _ if to.is_float() || from.is_float() => true,
        _ if to.is_signed() == from.is_signed() => to.bytes() < from.bytes(),
        _ if from.is_signed() => true,
        _ => to.bytes() * 8 - more < from.bytes() * 8,
    }
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
