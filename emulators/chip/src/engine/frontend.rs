// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The way of a thread's instructions to the units: a queue, two expanders, and the gate at which they wait
//! (`MOPExpander.md`, `REPLAY.md`, `STALLWAIT.md`).
//!
//! A core of the thread pushes into the queue, and the MOP expander makes sequences of some instructions. Core B's
//! instructions go by without it. The replay expander keeps instructions and replays them. Order never changes.

use super::error::{EngineError, rule, zero};
use hal_tenstorrent_loader::tensix::instructions::{Instruction, Mop, Replay, block};
use hal_tenstorrent_loader::tensix::{Chip, Conditions};
use std::collections::VecDeque;

/// How many instructions the queue takes. Hardware has more queues behind it, for what expanders make.
const QUEUE: usize = 32;
/// How many instructions a replay expander keeps.
const REPLAYED: usize = 32;
/// How many words configure a MOP expander.
pub(super) const MOP_WORDS: usize = 9;

/// A word that a core pushed.
#[derive(Clone, Copy, Debug)]
struct Pushed {
    word: u32,
    /// True if the MOP expander does not see it.
    bypasses: bool,
}

/// What a thread waits for until instructions of some units may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatchedWait {
    /// Bits as those of the instruction.
    pub(super) conditions: u32,
    /// The semaphores, if it is these.
    pub(super) semaphores: Option<u32>,
    /// Bits of [`block`].
    pub(super) blocks: u32,
}

/// The unit that executes an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nothing, where it arrives.
    None,
    /// Semaphores.
    Sync,
    /// Waits for conditions, which only the gate knows.
    Wait,
    /// Unpackers.
    Unpack,
    /// Products and moves between registers.
    Matrix,
    /// The packer.
    Pack,
    /// The registers of a thread.
    Scalar,
    /// The configuration.
    Config,
    /// Counters of unpackers and the packer.
    Misc,
}

impl Unit {
    /// The unit of an instruction.
    pub(super) const fn of(instruction: Instruction) -> Self {
        match instruction {
            Instruction::Nop(_) | Instruction::Mop(_) | Instruction::MopCfg(_) | Instruction::Replay(_) => {
                Self::None
            }
            Instruction::Seminit(_) | Instruction::Sempost(_) | Instruction::Semget(_) => Self::Sync,
            Instruction::Stallwait(_) | Instruction::Semwait(_) => Self::Wait,
            Instruction::Unpacr(_) | Instruction::UnpacrNop(_) => Self::Unpack,
            Instruction::Zeroacc(_)
            | Instruction::Zerosrc(_)
            | Instruction::Mvmul(_)
            | Instruction::Cleardvalid(_)
            | Instruction::Setrwc(_)
            | Instruction::Incrwc(_) => Self::Matrix,
            Instruction::Pacr(_) => Self::Pack,
            Instruction::Setdmareg(_) => Self::Scalar,
            Instruction::Wrcfg(_) | Instruction::Setc16(_) => Self::Config,
            Instruction::Setadc(_)
            | Instruction::Setadcxy(_)
            | Instruction::Incadcxy(_)
            | Instruction::Setadczw(_)
            | Instruction::Incadczw(_)
            | Instruction::Setadcxx(_) => Self::Misc,
        }
    }

    /// True if a block mask keeps its instructions from starting.
    pub(super) const fn is_blocked_by(self, blocks: u32) -> bool {
        match self {
            Self::None => blocks == 0x1ff,
            unit => blocks & unit.blocked_by() != 0,
        }
    }

    /// The bits of a block mask that keep its instructions from starting.
    const fn blocked_by(self) -> u32 {
        match self {
            // Only by all of them.
            Self::None => 0,
            Self::Sync => block::SYNC,
            Self::Wait => 0x1ff,
            Self::Unpack => block::THREAD_CONTROL | block::UNPACK,
            Self::Matrix => block::MATH,
            Self::Pack => block::THREAD_CONTROL | block::PACK,
            Self::Scalar => block::THREAD_CONTROL | block::SCALAR,
            Self::Config => block::CONFIG,
            Self::Misc => block::THREAD_CONTROL,
        }
    }
}

impl LatchedWait {
    /// `STALLWAIT`: masks of zero stand for others.
    pub(super) const fn stall(chip: Chip, conditions: u32, blocks: u32) -> Self {
        let Conditions { scalar, unpack_0, unpack_1, pack, .. } = chip.conditions();
        let conditions = if conditions == 0 { scalar | unpack_0 | unpack_1 | pack } else { conditions };
        Self { conditions, semaphores: None, blocks: if blocks == 0 { block::MATH } else { blocks } }
    }
}

/// What a replay expander keeps.
#[derive(Clone, Copy, Debug)]
struct Recording {
    index: usize,
    left: u32,
    executes: bool,
}

/// A thread's instructions before they start.
#[derive(Clone, Debug)]
pub(super) struct Frontend {
    chip: Chip,
    queue: VecDeque<Pushed>,
    mop: [u32; MOP_WORDS],
    mask_hi: u32,
    /// What a MOP became.
    expanded: VecDeque<u32>,
    replay: [u32; REPLAYED],
    recording: Option<Recording>,
    /// What is at the gate, and behind it by a replay.
    ready: VecDeque<u32>,
    /// What the thread waits for.
    pub(super) wait: Option<LatchedWait>,
}

impl Frontend {
    pub(super) fn new(chip: Chip) -> Self {
        Self {
            chip,
            queue: VecDeque::with_capacity(QUEUE),
            mop: [0; MOP_WORDS],
            mask_hi: 0,
            expanded: VecDeque::new(),
            replay: [0; REPLAYED],
            recording: None,
            ready: VecDeque::new(),
            wait: None,
        }
    }

    /// True if a word that is pushed must wait.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE
    }

    /// True if nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.is_expanded() && self.ready.is_empty()
    }

    /// True if no MOP is being expanded, or will be before what is pushed next.
    pub(super) fn is_expanded(&self) -> bool {
        self.expanded.is_empty() && !self.queue.iter().any(|pushed| pushed.word >> 24 == Mop::OPCODE)
    }

    /// Appends a word to the queue.
    pub(super) fn push(&mut self, word: u32, bypasses: bool) {
        self.queue.push_back(Pushed { word, bypasses });
    }

    /// Forgets what is not behind the MOP expander yet.
    pub(super) fn discard(&mut self) {
        self.queue.clear();
        self.expanded.clear();
    }

    /// Sets a word of the MOP expander's configuration, if there is one.
    pub(super) fn set_mop(&mut self, number: usize, value: u32) -> Option<()> {
        *self.mop.get_mut(number)? = value;
        Some(())
    }

    /// The instruction at the gate, or the word that is none and the reason.
    pub(super) fn next(&mut self) -> Result<Option<u32>, (u32, EngineError)> {
        while self.ready.is_empty() {
            let Some(word) = self.behind_mop()? else { return Ok(None) };
            self.replayed(word).map_err(|error| (word, error))?;
        }
        Ok(self.ready.front().copied())
    }

    /// The instruction at the gate has started.
    pub(super) fn start(&mut self) {
        self.ready.pop_front();
    }

    /// The next word behind the MOP expander.
    fn behind_mop(&mut self) -> Result<Option<u32>, (u32, EngineError)> {
        loop {
            if let Some(word) = self.expanded.pop_front() {
                return Ok(Some(word));
            }
            let Some(Pushed { word, bypasses }) = self.queue.pop_front() else { return Ok(None) };
            match Instruction::decode(word, self.chip) {
                Some(Instruction::MopCfg(fields)) if !bypasses => self.mask_hi = fields.mask_hi.get(),
                Some(Instruction::Mop(mop)) if !bypasses => {
                    self.expand(mop).map_err(|error| (word, error))?;
                }
                _ => return Ok(Some(word)),
            }
        }
    }

    fn expand(&mut self, mop: Mop) -> Result<(), EngineError> {
        if mop.template.get() == 0 {
            self.expand_mask(self.mask_hi << 16 | mop.mask_lo.get(), mop.count1.get() + 1)
        } else {
            zero("the MOP's mask", mop.mask_lo.get())?;
            zero("the MOP's count", mop.count1.get())?;
            self.expand_loops()
        }
    }

    /// Template 0: for each bit of a mask, one of two short sequences.
    fn expand_mask(&mut self, mut mask: u32, count: u32) -> Result<(), EngineError> {
        rule(count <= 32, "the MOP's count", count, "the mask has 32 bits")?;
        let [_, flags, b, a0, a1, a2, a3, skip_a0, skip_b] = self.mop;
        rule(flags <= 3, "MopCfg[1]", flags, "template 0 has two flags")?;
        let (has_b, has_a123) = (flags & 1 != 0, flags & 2 != 0);
        for _ in 0..count {
            if mask & 1 == 0 {
                self.expanded.push_back(a0);
                if has_a123 {
                    self.expanded.extend([a1, a2, a3]);
                }
                self.expanded.extend(has_b.then_some(b));
            } else {
                self.expanded.push_back(skip_a0);
                self.expanded.extend(has_b.then_some(skip_b));
            }
            mask >>= 1;
        }
        Ok(())
    }

    /// Template 1: a loop in a loop.
    fn expand_loops(&mut self) -> Result<(), EngineError> {
        const COUNT: &str = "a loop of template 1 has 1 to 127 rounds";
        let [outer, inner, start, end0, end1, mut op, op1, last_of_all, last] = self.mop;
        rule((1..=127).contains(&outer), "MopCfg[0]", outer, COUNT)?;
        rule((1..=127).contains(&inner), "MopCfg[1]", inner, COUNT)?;
        // With a second instruction, the inner loop alternates, and has a round for each.
        let (inner, flip) = if is_nop(op1) { (inner, 0) } else { (2 * inner, op ^ op1) };
        for round in 1..=outer {
            self.expanded.extend((!is_nop(start)).then_some(start));
            for step in 1..=inner {
                self.expanded.push_back(match (step == inner, round == outer) {
                    (false, _) => op,
                    (true, false) => last,
                    (true, true) => last_of_all,
                });
                op ^= flip;
            }
            if !is_nop(end0) {
                self.expanded.push_back(end0);
                self.expanded.extend((!is_nop(end1)).then_some(end1));
            }
        }
        Ok(())
    }

    /// Brings a word through the replay expander.
    fn replayed(&mut self, word: u32) -> Result<(), EngineError> {
        if let Some(recording) = &mut self.recording {
            if let Some(place) = self.replay.get_mut(recording.index % REPLAYED) {
                *place = word;
            }
            recording.index += 1;
            recording.left -= 1;
            self.ready.extend(recording.executes.then_some(word));
            if recording.left == 0 {
                self.recording = None;
            }
            return Ok(());
        }
        let Some(Instruction::Replay(Replay { load, exec, count, index })) =
            Instruction::decode(word, self.chip)
        else {
            self.ready.push_back(word);
            return Ok(());
        };
        let left = if count.get() == 0 { 64 } else { count.get() };
        let (index, executes) = (index.get() as usize, exec.get() == 1);
        if load.get() == 1 {
            self.recording = Some(Recording { index, left, executes });
        } else {
            zero("the REPLAY's Exec without Load", exec.get())?;
            let kept = self.replay.iter().cycle().skip(index).take(left as usize);
            self.ready.extend(kept);
        }
        Ok(())
    }
}

/// True if a MOP leaves this instruction away.
const fn is_nop(word: u32) -> bool {
    word >> 24 == hal_tenstorrent_loader::tensix::instructions::Nop::OPCODE
}
