// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A warp: 32 lanes, their registers, and which of them are where.

#![expect(clippy::indexing_slicing, reason = "the decoder made the numbers of registers and instructions")]
#![expect(clippy::cast_possible_truncation, reason = "registers hold the lower bits")]

use super::access::local_bytes;
use super::alu::{self, Doubles, Words};
use super::block::{Context, block_registers, initial};
use super::convert::convert;
use super::{Fault, LANES, Launch};
use crate::ptx::Kernel;
use crate::ptx::instruction::{Class, Combine, Convert, Inst, Op, Pred, Round, Shuffle, Type, Vote};
use half::f16;

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// All lanes have returned.
    Returned,
    /// All lanes that have not are at this barrier.
    Barrier(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// At an instruction across lanes, of which some are elsewhere.
    Lanes,
    Barrier,
}

/// Lanes that are at the same instruction.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    pc: usize,
    lanes: u32,
    state: State,
}

/// A fault, the lane and the instruction.
pub(super) type Failed = (Fault, usize, usize);

/// A warp.
pub(super) struct Warp {
    pub(super) w: Vec<Words>,
    pub(super) d: Vec<Doubles>,
    p: Vec<u32>,
    pub(super) local: Vec<u8>,
    /// The lanes that exist.
    all: u32,
    returned: u32,
    fragments: Vec<Fragment>,
    block_registers: Vec<(usize, usize)>,
}

impl Warp {
    pub(super) fn new(kernel: &Kernel, launch: &Launch<'_>, threads: u32, number: usize) -> Self {
        check_processor();
        let [w, d, p] = kernel.registers.map(|count| count as usize);
        let lanes = (threads as usize - number * LANES).min(LANES);
        let mut warp = Self {
            w: vec![[0; LANES]; w],
            d: vec![[0; LANES]; d],
            p: vec![0; p],
            local: vec![0xa5; local_bytes(kernel.local_bytes)],
            all: if lanes == LANES { !0 } else { (1 << lanes) - 1 },
            returned: 0,
            fragments: Vec::new(),
            block_registers: block_registers(kernel),
        };
        for (slot, constant) in &kernel.constants {
            let index = slot.index as usize;
            for lane in 0..LANES {
                let value = initial(*constant, launch, number, lane);
                match slot.class {
                    Class::W => warp.w[index][lane] = value as u32,
                    Class::D => warp.d[index][lane] = value,
                    Class::P => warp.p[index] |= u32::from(value != 0) << lane,
                }
            }
        }
        warp
    }

    /// Puts the warp at the beginning of a block.
    pub(super) fn begin(&mut self, kernel: &Kernel, block: [u32; 3]) {
        for (index, axis) in &self.block_registers {
            self.w[*index] = [block[*axis]; LANES];
        }
        if kernel.local_bytes > 0 {
            self.local.fill(0xa5);
        }
        self.returned = 0;
        self.fragments.clear();
        self.fragments.push(Fragment { pc: 0, lanes: self.all, state: State::Runs });
    }

    /// Whether a lane has returned.
    pub(super) fn has_returned(&self) -> bool {
        self.returned != 0
    }

    /// Goes on behind a barrier.
    pub(super) fn release(&mut self) {
        for fragment in &mut self.fragments {
            fragment.pc += 1;
            fragment.state = State::Runs;
        }
    }

    /// Runs until every lane has returned or is at a barrier.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn run(&mut self, context: &mut Context<'_, '_>) -> Result<Pause, Failed> {
        // SAFETY: `new` checked that the processor has the extensions that this is compiled for.
        unsafe { self.run_wide(context) }
    }

    /// Runs until every lane has returned or is at a barrier.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn run(&mut self, context: &mut Context<'_, '_>) -> Result<Pause, Failed> {
        self.run_wide(context)
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
    fn run_wide(&mut self, context: &mut Context<'_, '_>) -> Result<Pause, Failed> {
        loop {
            let runs = self.fragments.iter().enumerate().filter(|(_, it)| it.state == State::Runs);
            let Some((at, _)) = runs.min_by_key(|(_, it)| it.pc) else { break };
            let next = self.fragments.swap_remove(at);
            self.run_fragment(context, next)?;
        }
        let Some(first) = self.fragments.first().copied() else { return Ok(Pause::Returned) };
        let stuck = |message| Err((Fault::Stuck(message), first.lanes.trailing_zeros() as usize, first.pc));
        if self.fragments.iter().any(|it| it.state == State::Lanes) {
            return stuck("lanes wait for others that do not come");
        }
        let Inst { d: barrier, .. } = context.kernel.code[first.pc];
        if self.fragments.iter().any(|it| it.pc != first.pc) {
            return stuck("different barriers in one warp");
        }
        Ok(Pause::Barrier(barrier))
    }

    /// The next instruction at which another fragment is.
    #[inline(always)]
    fn limit(&self, pc: usize) -> usize {
        let behind = self.fragments.iter().filter(|it| it.pc > pc && it.state != State::Barrier);
        behind.map(|it| it.pc).min().unwrap_or(usize::MAX)
    }

    /// Adds a fragment, or joins it to one that is at the same instruction.
    fn add(&mut self, pc: usize, lanes: u32, state: State) {
        if lanes == 0 {
            return;
        }
        let here = |it: &&mut Fragment| {
            it.pc == pc && (it.state == state || (it.state != State::Barrier && state != State::Barrier))
        };
        match self.fragments.iter_mut().find(here) {
            Some(fragment) => {
                fragment.lanes |= lanes;
                // One that waits for lanes looks again when some have come.
                if fragment.state != state {
                    fragment.state = State::Runs;
                }
            }
            None => self.fragments.push(Fragment { pc, lanes, state }),
        }
    }

    /// Runs a fragment until it divides, waits, meets another or returns.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
    #[expect(clippy::too_many_lines, reason = "one loop, and each jump out of it needs all of its state")]
    fn run_fragment(&mut self, context: &mut Context<'_, '_>, fragment: Fragment) -> Result<(), Failed> {
        let kernel = context.kernel;
        let Fragment { mut pc, mut lanes, .. } = fragment;
        // Others may be at this very instruction.
        if let Some(at) = self.fragments.iter().position(|it| it.pc == pc && it.state != State::Barrier) {
            lanes |= self.fragments.swap_remove(at).lanes;
        }
        let mut limit = self.limit(pc);
        loop {
            if pc >= limit {
                self.add(pc, lanes, State::Runs);
                return Ok(());
            }
            let inst = kernel.code[pc];
            context.steps += 1;
            let guard = self.p[inst.guard as usize];
            let active = lanes & if inst.negated { !guard } else { guard };
            match inst.op {
                Op::Branch => {
                    let target = inst.d as usize;
                    if active == lanes {
                        if target <= pc
                            && context.steps >= context.look_at
                            && let Some(fault) = context.give_up()
                        {
                            return Err((fault, lanes.trailing_zeros() as usize, pc));
                        }
                        pc = target;
                        limit = if self.fragments.is_empty() { usize::MAX } else { self.limit(pc) };
                        if !self.fragments.is_empty() {
                            // One may be at the target.
                            self.add(pc, lanes, State::Runs);
                            return Ok(());
                        }
                        continue;
                    }
                    if active != 0 {
                        self.add(target, active, State::Runs);
                        self.add(pc + 1, lanes & !active, State::Runs);
                        return Ok(());
                    }
                }
                Op::Return => {
                    self.returned |= active;
                    lanes &= !active;
                    if lanes == 0 {
                        // Who waits for these lanes need not any more.
                        for it in self.fragments.iter_mut().filter(|it| it.state == State::Lanes) {
                            it.state = State::Runs;
                        }
                        return Ok(());
                    }
                }
                Op::Barrier => {
                    if active != lanes {
                        return Err((
                            Fault::Stuck("a barrier of some lanes of a warp"),
                            active.trailing_zeros() as usize % LANES,
                            pc,
                        ));
                    }
                    self.add(pc, lanes, State::Barrier);
                    return Ok(());
                }
                Op::Shuffle(_) | Op::Vote(_) | Op::WarpBarrier if active != 0 => {
                    let register = if inst.op == Op::WarpBarrier { inst.a } else { inst.e };
                    let lane = active.trailing_zeros() as usize;
                    let members = self.w[register as usize][lane] & self.all & !self.returned;
                    if members & active != active {
                        return Err((Fault::Stuck("a lane that is not one of those it names"), lane, pc));
                    }
                    if members != active {
                        if active != lanes {
                            self.add(pc + 1, lanes & !active, State::Runs);
                        }
                        self.add(pc, active, State::Lanes);
                        return Ok(());
                    }
                    self.across(kernel, inst, active);
                }
                Op::Trap if active != 0 => {
                    return Err((Fault::Trap, active.trailing_zeros() as usize, pc));
                }
                _ if active != 0 => self.step(context, inst, pc, active)?,
                _ => {}
            }
            pc += 1;
        }
    }

    #[inline(always)]
    pub(super) fn set32(&mut self, d: u32, value: &Words, active: u32) {
        let to = &mut self.w[d as usize];
        for lane in 0..LANES {
            to[lane] = if active >> lane & 1 == 1 { value[lane] } else { to[lane] };
        }
    }

    #[inline(always)]
    pub(super) fn set64(&mut self, d: u32, value: &Doubles, active: u32) {
        let to = &mut self.d[d as usize];
        for lane in 0..LANES {
            to[lane] = if active >> lane & 1 == 1 { value[lane] } else { to[lane] };
        }
    }

    #[inline(always)]
    fn set_predicate(&mut self, d: u32, value: u32, active: u32) {
        let to = &mut self.p[d as usize];
        *to = (*to & !active) | (value & active);
    }

    /// An instruction of each lane for itself.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn step(
        &mut self,
        context: &mut Context<'_, '_>,
        inst: Inst,
        pc: usize,
        active: u32,
    ) -> Result<(), Failed> {
        let Inst { d, a, b, c, .. } = inst;
        let (wa, wb) = (a as usize, b as usize);
        match inst.op {
            Op::U32(op) => self.set32(d, &alu::unary32(op, &self.w[wa]), active),
            Op::U64(op) => self.set64(d, &alu::unary64(op, &self.d[wa]), active),
            Op::Narrow(op) => self.set32(d, &alu::narrow(op, &self.d[wa]), active),
            Op::B32(op) => self.set32(d, &alu::binary32(op, &self.w[wa], &self.w[wb]), active),
            Op::B64(op) if op.is_shift() => {
                self.set64(d, &alu::shift64(op, &self.d[wa], &self.w[wb]), active);
            }
            Op::B64(op) => self.set64(d, &alu::binary64(op, &self.d[wa], &self.d[wb]), active),
            Op::MulWide(op) => self.set64(d, &alu::mul_wide(op, &self.w[wa], &self.w[wb]), active),
            Op::MadWide(op) => {
                let value = alu::mad_wide(op, &self.w[wa], &self.w[wb], &self.d[c as usize]);
                self.set64(d, &value, active);
            }
            Op::T32(op) => {
                let value = alu::ternary32(op, &self.w[wa], &self.w[wb], &self.w[c as usize]);
                self.set32(d, &value, active);
            }
            Op::T64(op) => {
                let value = alu::ternary64(op, &self.d[wa], &self.d[wb], &self.d[c as usize]);
                self.set64(d, &value, active);
            }
            Op::Bfi => {
                let (c, bits) = (&self.w[c as usize], &self.w[inst.e as usize]);
                self.set32(d, &alu::bit_insert(&self.w[wa], &self.w[wb], c, bits), active);
            }
            Op::Lop3(table) => {
                let value = alu::lop3(table, &self.w[wa], &self.w[wb], &self.w[c as usize]);
                self.set32(d, &value, active);
            }
            Op::Select32 => {
                let first = self.p[c as usize];
                let (yes, no) = (self.w[wa], self.w[wb]);
                self.set32(d, &yes, active & first);
                self.set32(d, &no, active & !first);
            }
            Op::Select64 => {
                let first = self.p[c as usize];
                let (yes, no) = (self.d[wa], self.d[wb]);
                self.set64(d, &yes, active & first);
                self.set64(d, &no, active & !first);
            }
            Op::Compare(cmp, kind, combine) => {
                let result = if kind.class() == Class::D {
                    alu::compare64(cmp, kind, &self.d[wa], &self.d[wb])
                } else {
                    alu::compare32(cmp, kind, &self.w[wa], &self.w[wb])
                };
                let third = self.p[c as usize];
                let combined = |it: u32| match combine {
                    Combine::None => it,
                    Combine::And => it & third,
                    Combine::Or => it | third,
                    Combine::Xor => it ^ third,
                };
                let (yes, no) = (combined(result), combined(!result));
                self.set_predicate(inst.e, no, active);
                self.set_predicate(d, yes, active);
            }
            Op::Pred(op) => {
                let a = self.p[wa];
                let value = match op {
                    Pred::Mov => a,
                    Pred::Not => !a,
                    Pred::And => a & self.p[wb],
                    Pred::Or => a | self.p[wb],
                    Pred::Xor => a ^ self.p[wb],
                };
                self.set_predicate(d, value, active);
            }
            Op::Convert(it) => self.convert(it, d, wa, active),
            Op::Pack { .. } | Op::Unpack { .. } => self.repack(context.kernel, inst, active),
            Op::Parameter(access) => self.parameter(context, access, active),
            Op::Load(access) => return self.load(context, access, pc, a, active),
            Op::Store(access) => return self.store(context, access, pc, a, active),
            Op::Atomic(op, kind, access, _) => {
                return self.atomic(context, (op, kind, access), inst, pc, active);
            }
            Op::ActiveMask => self.set32(d, &[active; LANES], active),
            Op::Timer => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                let now = now.map_or(0, |since| since.as_nanos() as u64);
                self.set64(d, &[now; LANES], active);
            }
            _ => {}
        }
        Ok(())
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
    fn convert(&mut self, it: Convert, d: u32, a: usize, active: u32) {
        use Type::{F16, F32, S32, S64, U32, U64};
        match (it.to, it.from, it.round, it.saturate) {
            (U64 | S64, U32, _, false) => self.widen(d, a, active, u64::from),
            (U64 | S64, S32, _, false) => {
                self.widen(d, a, active, |it| i64::from(it.cast_signed()).cast_unsigned());
            }
            (U32 | S32, U64 | S64, _, false) => {
                let mut words = [0; LANES];
                for (word, value) in words.iter_mut().zip(self.d[a]) {
                    *word = value as u32;
                }
                self.set32(d, &words, active);
            }
            (F32, S32, Round::Rn, false) => {
                self.each_word(d, a, active, |it| (it.cast_signed() as f32).to_bits());
            }
            (F32, F16, _, false) => {
                self.each_word(d, a, active, |it| f16::from_bits(it as u16).to_f32().to_bits());
            }
            _ => self.convert_each(it, d, a, active),
        }
    }

    #[inline(always)]
    fn widen(&mut self, d: u32, a: usize, active: u32, f: impl Fn(u32) -> u64) {
        let mut values = [0; LANES];
        for (value, word) in values.iter_mut().zip(self.w[a]) {
            *value = f(word);
        }
        self.set64(d, &values, active);
    }

    #[inline(always)]
    fn each_word(&mut self, d: u32, a: usize, active: u32, f: impl Fn(u32) -> u32) {
        let mut words = self.w[a];
        for word in &mut words {
            *word = f(*word);
        }
        self.set32(d, &words, active);
    }

    #[inline(never)]
    fn convert_each(&mut self, it: Convert, d: u32, a: usize, active: u32) {
        for lane in lanes(active) {
            let bits = if it.from.class() == Class::D { self.d[a][lane] } else { u64::from(self.w[a][lane]) };
            let value = convert(it, bits);
            if it.to.class() == Class::D {
                self.d[d as usize][lane] = value;
            } else {
                self.w[d as usize][lane] = value as u32;
            }
        }
    }

    /// Several registers into one, or one into several.
    #[inline(never)]
    fn repack(&mut self, kernel: &Kernel, inst: Inst, active: u32) {
        let (bytes, parts, list, packs) = match inst.op {
            Op::Pack { bytes, parts, list } => (bytes, parts, list, true),
            Op::Unpack { bytes, parts, list } => (bytes, parts, list, false),
            _ => return,
        };
        let bits = u32::from(bytes) * 8;
        let is_double = u32::from(bytes) * u32::from(parts) == 8;
        let slots = &kernel.lists[list as usize..list as usize + usize::from(parts)];
        for lane in lanes(active) {
            let mut whole = 0;
            if !packs {
                let a = inst.a as usize;
                whole = if is_double { self.d[a][lane] } else { u64::from(self.w[a][lane]) };
            }
            for (at, slot) in (0..).zip(slots) {
                let register = &mut self.w[slot.index as usize][lane];
                let mask = (1_u64 << bits) - 1;
                if packs {
                    whole |= (u64::from(*register) & mask) << (at * bits);
                } else {
                    *register = (whole >> (at * bits) & mask) as u32;
                }
            }
            if packs && is_double {
                self.d[inst.d as usize][lane] = whole;
            } else if packs {
                self.w[inst.d as usize][lane] = whole as u32;
            }
        }
    }

    /// An instruction across lanes, once all of them are there.
    #[inline(never)]
    fn across(&mut self, kernel: &Kernel, inst: Inst, active: u32) {
        match inst.op {
            Op::Shuffle(mode) => {
                let from = self.w[inst.a as usize];
                let (to, p) = (kernel.lists[inst.d as usize], kernel.lists[inst.d as usize + 1]);
                for lane in lanes(active) {
                    let (b, c) = (self.w[inst.b as usize][lane] & 31, self.w[inst.c as usize][lane]);
                    let (source, inside) = other_lane(mode, lane as u32, b, c);
                    self.w[to.index as usize][lane] = from[source as usize];
                    self.set_predicate(p.index, if inside { !0 } else { 0 }, 1 << lane);
                }
            }
            Op::Vote(vote) => {
                let votes = self.p[inst.a as usize] & active;
                match vote {
                    Vote::Ballot => self.set32(inst.d, &[votes; LANES], active),
                    _ => {
                        let is_true = match vote {
                            Vote::All => votes == active,
                            Vote::Any => votes != 0,
                            _ => votes == active || votes == 0,
                        };
                        self.set_predicate(inst.d, if is_true { !0 } else { 0 }, active);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The lane that a value comes from, and whether it is in the segment.
fn other_lane(mode: Shuffle, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let most = (lane & segment) | (clamp & !segment);
    let least = lane & segment;
    let (source, inside) = match mode {
        Shuffle::Up => (lane.wrapping_sub(b), lane.cast_signed() - b.cast_signed() >= most.cast_signed()),
        Shuffle::Down => (lane + b, lane + b <= most),
        Shuffle::Bfly => (lane ^ b, lane ^ b <= most),
        Shuffle::Idx => (least | (b & !segment), least | (b & !segment) <= most),
    };
    if inside { (source & 31, true) } else { (lane, false) }
}

/// The lanes of a mask.
#[inline(always)]
pub(super) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

/// Lanes are computed by instructions of x86-64-v3: without them, kernels take ten times as long, so that one asks for
/// another machine.
fn check_processor() {
    #[cfg(target_arch = "x86_64")]
    assert!(
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt"),
        "a processor with AVX2 and FMA is needed"
    );
}
