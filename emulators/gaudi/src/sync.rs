// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Sync objects, monitors and fences, by which queues wait for each other.
//!
//! A *sync object* is a counter. An armed *monitor* watches up to eight adjacent sync objects. When all have
//! reached their values, it writes a word and is disarmed: most often it writes to a *fence* of a queue, which
//! is a counter that a packet of that queue waits for and decrements. An engine's queues share a second
//! processor, the lower one, with fences of its own. On the second generation four objects can form one long
//! number, which four monitors wait for.
//!
//! The driver signals and waits by the same means, with objects and monitors of its own; a program's packets
//! use the program's. Engines write to all of them by addresses of registers.

use crate::arbiter::{Arbiter, ArbiterRequest, Register};
use crate::completions::{CompletionQueues, Entry};
use crate::hardware::Hardware;
use crate::strides::{self, StridedTransfer};
use std::collections::BTreeMap;

/// The greatest value of a sync object: it has fifteen bits.
const VALUE: u32 = (1 << 15) - 1;
/// Adds to the value instead of replacing it.
const ADD: u32 = 1 << 31;
/// Writes four adjacent objects, each of which holds fifteen bits of one number. Second generation.
const LONG: u32 = 1 << 24;
/// How many objects and monitors one long number takes.
const PARTS: u32 = 4;
/// In a monitor's configuration: it watches a long number; which half of its group that is; its address is the
/// number of a completion queue, which sends its message.
const LONG_MONITOR: u32 = 1;
const HIGH_GROUP: u32 = 1 << 31;
const TO_QUEUE: u32 = 1 << 4;
const WITH_MESSAGE: u32 = 1 << 8;

/// The registers of one sync manager, from its first sync object on.
#[derive(Debug)]
struct SyncLayout {
    /// The base address of the registers.
    registers: u64,
    /// Each manager's first sync object, from there.
    managers: [u64; 4],
    objects: u64,
    monitors: u64,
    /// Monitors' registers: the two halves of an address, the word, the watched objects, and the configuration.
    address_low: u64,
    address_high: u64,
    payload: u64,
    arm: u64,
    config: Option<u64>,
}

static GAUDI1: SyncLayout = SyncLayout {
    registers: 0x7F_FC00_0000,
    // West and south, east and south, west and north, east and north. rule(sync-addresses)
    managers: [0x49_2000, 0x4B_2000, 0x4D_2000, 0x4F_2000],
    objects: 2048,
    monitors: 512,
    address_low: 0x2000,
    address_high: 0x2800,
    payload: 0x3000,
    arm: 0x3800,
    config: None,
};

static GAUDI2: SyncLayout = SyncLayout {
    registers: 0x1000_007F_F800_0000,
    managers: [0x410_0000, 0x430_0000, 0x450_0000, 0x470_0000],
    objects: 8192,
    monitors: 2048,
    address_low: 0x8000,
    address_high: 0xA000,
    payload: 0xC000,
    arm: 0xE000,
    config: Some(0x1_0000),
};

fn layout(hardware: &Hardware) -> &'static SyncLayout {
    if hardware.dram_virtual { &GAUDI2 } else { &GAUDI1 }
}

/// The index of a register in a row of words.
fn place(offset: u64, first: u64, count: u64) -> Option<u32> {
    let distance = offset.checked_sub(first)?;
    let number = distance / 4;
    (distance % 4 == 0 && number < count).then(|| u32::try_from(number).ok()).flatten()
}

/// One monitor.
#[derive(Clone, Copy, Debug, Default)]
struct Monitor {
    address: [u32; 2],
    payload: u32,
    config: u32,
    /// The watched objects, while it is armed.
    armed: Option<u32>,
    /// Part of the number that another monitor waits for.
    part: u32,
}

/// A condition of a queue: one of its fences has reached a value, and the packet decrements it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    /// The owner and the number of the fence: a queue's own, or that of the lower processor, which all queues
    /// of an engine share.
    place: (u32, u32),
    pub(crate) target: u32,
    pub(crate) taken: u32,
}

impl Fence {
    /// The fence in a packet's first word, for the processor that executes it.
    pub(crate) fn of_packet(hardware: &Hardware, queue: u32, config: u32, upper: bool) -> Self {
        let whose = if upper { queue } else { LOWER | engine_of(hardware, queue) };
        Self { place: (whose, config >> 30), target: config >> 16 & 0xFF, taken: config & 0xF }
    }
}

/// The condition of a queue's packet, and the step behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    Fence(Fence),
    Grant(ArbiterRequest),
}

/// Distinguishes the fences of an engine's lower processor from those of its first queue.
const LOWER: u32 = 1 << 31;

/// The first queue of a queue's engine. A queue of the driver's follows the first two engines of the first
/// generation.
pub(crate) fn engine_of(hardware: &Hardware, queue: u32) -> u32 {
    let first = if hardware.dram_virtual || queue < 8 { 0 } else { 9 };
    queue.checked_sub(first).map_or(queue, |within| first + within / 4 * 4)
}

/// Values that packets of a queue can depend on.
#[derive(Clone, Copy, Debug, Default)]
struct PacketOperands {
    predicates: u32,
    scalars: [u32; 4],
}

/// The driver's use of the two sync objects of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// The object's value after the next signal.
    pub(crate) next: u32,
    /// The current object.
    pub(crate) current: usize,
    /// How many submissions and reservations use each, plus one for an object that is not used up.
    pub(crate) needed: [u32; 2],
    /// True if that one is dropped when the object becomes current again.
    pub(crate) stale: [bool; 2],
}

impl Default for Stream {
    fn default() -> Self {
        Self { next: 1, current: 0, needed: [1, 1], stale: [false; 2] }
    }
}

/// The most signals of an object before the other one is used. rule(signal-turns)
pub(crate) const MAX_SIGNALS: u32 = 1 << 15;

/// All of it, of one card. A missing entry is zero.
#[derive(Debug, Default)]
pub(crate) struct Sync {
    /// By manager and number.
    objects: BTreeMap<(usize, u32), u32>,
    monitors: BTreeMap<(usize, u32), Monitor>,
    /// By queue and number.
    fences: BTreeMap<(u32, u32), u32>,
    registers: BTreeMap<u32, PacketOperands>,
    /// By the first queue of the engine.
    arbiters: BTreeMap<u32, Arbiter>,
    transfers: BTreeMap<u32, strides::TransferRegisters>,
    streams: BTreeMap<u32, Stream>,
    completions: CompletionQueues,
}

/// A transfer that a write to a register begins, and the first queue of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BegunTransfer {
    pub(crate) engine: u32,
    pub(crate) transfer: StridedTransfer,
}

/// An effect of a write to a register, outside of the registers here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A word goes to another address.
    Word {
        address: u64,
        value: u32,
    },
    /// A completion queue's entry goes to memory.
    Entry {
        address: u64,
        entry: Entry,
    },
    Transfer(BegunTransfer),
    /// The hardware refuses it.
    Refused(String),
}

impl Sync {
    /// The value of one of the driver's objects, which are all in the first manager.
    pub(crate) fn object(&self, number: u32) -> u32 {
        self.objects.get(&(0, number)).copied().unwrap_or(0)
    }

    pub(crate) fn stream(&mut self, queue: u32) -> &mut Stream {
        self.streams.entry(queue).or_default()
    }

    /// Drops one use of an object. It is set to zero when no use is left. rule(signal-turns)
    pub(crate) fn release_object(&mut self, hardware: &Hardware, queue: u32, which: usize) {
        let Some(needed) = self.stream(queue).needed.get_mut(which) else { return };
        *needed = needed.saturating_sub(1);
        if *needed == 0 {
            *needed = 1;
            let number = hardware.sync_object(queue) + u32::try_from(which).unwrap_or(0);
            self.objects.remove(&(0, number));
        }
    }

    /// The state at the beginning of a context: the program's objects are zero, arbiters are off, and transfers
    /// report their end as before. rule(sync-restored)
    pub(crate) fn restore(&mut self, hardware: &Hardware) {
        let (first_object, first_monitor) = (hardware.first_sob, hardware.first_monitor);
        self.objects.retain(|&(manager, number), _| manager == 0 && number < first_object);
        self.monitors.retain(|&(manager, number), _| manager == 0 && number < first_monitor);
        self.fences.clear();
        self.registers.clear();
        self.arbiters.clear();
        self.transfers.clear();
        self.completions.restore();
    }

    /// The predicates of a queue, a bit for each.
    pub(crate) fn predicates(&self, queue: u32) -> u32 {
        self.registers.get(&queue).map_or(0, |registers| registers.predicates)
    }

    /// The scalars of a queue.
    pub(crate) fn scalars(&self, queue: u32) -> [u32; 4] {
        self.registers.get(&queue).map_or([0; 4], |registers| registers.scalars)
    }

    /// Loads scalars of a queue, or its predicates: from one word, or from the first bit of several.
    pub(crate) fn load_registers(&mut self, queue: u32, scalars: bool, words: &[u32]) {
        let registers = self.registers.entry(queue).or_default();
        match (scalars, words) {
            (true, words) => {
                for (scalar, &word) in registers.scalars.iter_mut().zip(words) {
                    *scalar = word;
                }
            }
            (false, &[word]) => registers.predicates = word,
            (false, words) => {
                let bits = (0..32_u32).zip(words).map(|(place, &word)| (word & 1) << place);
                registers.predicates = bits.fold(0, |all, bit| all | bit);
            }
        }
    }

    /// True if a condition is satisfied.
    pub(crate) fn is_open(&self, hold: WaitCondition) -> bool {
        match hold {
            WaitCondition::Fence(fence) => {
                self.fences.get(&fence.place).copied().unwrap_or(0) >= fence.target
            }
            WaitCondition::Grant(request) => {
                self.arbiters.get(&request.engine).is_none_or(|arbiter| arbiter.is_open(request))
            }
        }
    }

    /// Passes a satisfied condition, and decrements its fence.
    pub(crate) fn pass(&mut self, hold: WaitCondition) -> bool {
        let fence = match hold {
            WaitCondition::Fence(fence) => fence,
            WaitCondition::Grant(request) => {
                return self.arbiters.get_mut(&request.engine).is_none_or(|arbiter| arbiter.take(request));
            }
        };
        if !self.is_open(hold) {
            return false;
        }
        let count = self.fences.entry(fence.place).or_default();
        *count = count.saturating_sub(fence.taken);
        true
    }

    /// The arbiter of an engine, if a program has written to it.
    pub(crate) fn arbiter(&mut self, engine: u32) -> Option<&mut Arbiter> {
        self.arbiters.get_mut(&engine)
    }

    fn transfer_registers(&mut self, hardware: &Hardware, queue: u32) -> &mut strides::TransferRegisters {
        let engine = engine_of(hardware, queue);
        self.transfers.entry(engine).or_insert_with(|| strides::TransferRegisters::new(hardware, engine))
    }

    /// Writes a register of the transfers of a queue's engine. Returns the transfer that this begins, if any.
    pub(crate) fn write_transfer(
        &mut self,
        hardware: &Hardware,
        queue: u32,
        offset: u32,
        value: u32,
    ) -> Option<StridedTransfer> {
        self.transfer_registers(hardware, queue).write(offset, value)
    }

    /// The word that a transfer of a queue's engine writes when it ends, and its address.
    pub(crate) fn completion(&mut self, hardware: &Hardware, queue: u32) -> (u64, u32) {
        self.transfer_registers(hardware, queue).completion()
    }

    /// Adds one to an object of the driver's, as the packet of a signal does.
    pub(crate) fn signal(&mut self, hardware: &Hardware, number: u32) -> Vec<Effect> {
        let layout = layout(hardware);
        let [first, ..] = layout.managers;
        self.write(hardware, layout.registers + first + u64::from(number) * 4, ADD | 1).unwrap_or_default()
    }

    /// Writes a word to the address of a register, and returns what this triggers outside of here. Nothing, if
    /// there is no such register at the address.
    pub(crate) fn write(&mut self, hardware: &Hardware, address: u64, value: u32) -> Option<Vec<Effect>> {
        let mut effects = Vec::new();
        if !self.store(hardware, address, value, &mut effects) {
            return None;
        }
        // A monitor may write to an object that another one watches, or to itself. One that arms itself for a
        // condition that is satisfied would run forever; so does hardware, until it is reset.
        const MOST: usize = 4096;
        for _ in 0..MOST {
            let Some((key, monitor)) = self.triggered() else { break };
            for step in 0..=(monitor.config >> 5 & 3) {
                let (manager, number) = key;
                let writes = self.monitors.get(&(manager, number + step)).copied().unwrap_or_default();
                self.carry_out(hardware, manager, writes, &mut effects);
            }
        }
        Some(effects)
    }

    /// Writes a monitor's word to its address, or to its completion queue.
    fn carry_out(&mut self, hardware: &Hardware, manager: usize, writes: Monitor, effects: &mut Vec<Effect>) {
        let [low, high] = writes.address.map(u64::from);
        if writes.config & TO_QUEUE == 0 {
            self.send(hardware, high << 32 | low, writes.payload, effects);
            return;
        }
        let [number, _] = writes.address;
        let Some(completion) = self.completions.complete(hardware, manager, number, writes.payload) else {
            effects.push(Effect::Refused(format!(
                "a monitor writes to completion queue {number} of sync manager {manager}, which is no program's: \
                 take one that SYNC_MANAGER names"
            )));
            return;
        };
        effects.push(Effect::Entry { address: completion.address, entry: completion.entry });
        if writes.config & WITH_MESSAGE != 0 {
            let (address, value) = completion.message;
            self.send(hardware, address, value, effects);
        }
    }

    /// Writes a word to a register, or passes it on.
    fn send(&mut self, hardware: &Hardware, address: u64, value: u32, effects: &mut Vec<Effect>) {
        if !self.store(hardware, address, value, effects) {
            effects.push(Effect::Word { address, value });
        }
    }

    /// Takes the first monitor whose objects have all reached their values.
    fn triggered(&mut self) -> Option<((usize, u32), Monitor)> {
        let mut all = self.monitors.iter();
        let found =
            all.find(|&(&key, monitor)| monitor.armed.is_some_and(|armed| self.is_far(key, monitor, armed)));
        let (&key, _) = found?;
        let monitor = self.monitors.get_mut(&key)?;
        monitor.armed = None;
        Some((key, *monitor))
    }

    fn is_far(&self, (manager, number): (usize, u32), monitor: &Monitor, armed: u32) -> bool {
        let group = armed & 0xFF | (monitor.config >> 16 & 0xF) << 8;
        let (mask, equal, wanted) = (armed >> 8 & 0xFF, armed >> 16 & 1 == 1, armed >> 17);
        let value = |object: u32| self.objects.get(&(manager, object)).copied().unwrap_or(0);
        if monitor.config & LONG_MONITOR != 0 {
            let first = group * 8 + if monitor.config & HIGH_GROUP != 0 { PARTS } else { 0 };
            let part =
                |number: u32| self.monitors.get(&(manager, number)).map_or(0, |monitor| monitor.part >> 17);
            let reached = (0..PARTS).fold(0, |all, part| all | u64::from(value(first + part)) << (15 * part));
            let wanted =
                (1..PARTS).fold(u64::from(wanted), |all, at| all | u64::from(part(number + at)) << (15 * at));
            return if equal { reached == wanted } else { reached >= wanted };
        }
        (0..8).filter(|bit| mask >> bit & 1 == 0).all(|bit| {
            let value = value(group * 8 + bit);
            if equal { value == wanted } else { value >= wanted }
        })
    }

    /// Writes a number of four objects: the lowest part, which clears the others, or an increment.
    fn store_long(&mut self, manager: usize, first: u32, value: u32) {
        let parts = (0..PARTS).map(|part| self.objects.get(&(manager, first + part)).copied().unwrap_or(0));
        let old = (0..PARTS).zip(parts).fold(0, |all, (part, value)| all | u64::from(value) << (15 * part));
        let new = if value & ADD == 0 { u64::from(value & VALUE) } else { old + u64::from(value & VALUE) };
        for part in 0..PARTS {
            let bits = u32::try_from(new >> (15 * part) & u64::from(VALUE)).unwrap_or(0);
            self.objects.insert((manager, first + part), bits);
        }
    }

    /// True if a monitor is one of the three that belong to a long one before it.
    fn is_part(&self, manager: usize, number: u32) -> bool {
        (1..PARTS)
            .filter_map(|before| self.monitors.get(&(manager, number.checked_sub(before)?)))
            .any(|monitor| monitor.config & LONG_MONITOR != 0)
    }

    /// Writes one register. Returns false if it is none of these.
    fn store(&mut self, hardware: &Hardware, address: u64, value: u32, effects: &mut Vec<Effect>) -> bool {
        let layout = layout(hardware);
        let Some(offset) = address.checked_sub(layout.registers) else { return false };
        if let Some(fence) = fence_at(hardware, offset) {
            *self.fences.entry(fence).or_default() += value;
            return true;
        }
        if let Some((engine, register)) = Register::at(hardware, offset) {
            self.arbiters.entry(engine).or_default().write(register, value);
            return true;
        }
        if let Some((engine, register)) = strides::register_at(hardware, offset) {
            let begun = self.write_transfer(hardware, engine, register, value);
            effects.extend(begun.map(|transfer| Effect::Transfer(BegunTransfer { engine, transfer })));
            return true;
        }
        let managers = layout.managers.iter().enumerate();
        let inside = managers.filter_map(|(number, &first)| Some((number, offset.checked_sub(first)?)));
        for (manager, offset) in inside {
            if let Some(object) = place(offset, 0, layout.objects) {
                if value & LONG != 0 && hardware.dram_virtual {
                    self.store_long(manager, object, value);
                    return true;
                }
                let old = self.objects.entry((manager, object)).or_default();
                *old = if value & ADD == 0 { value } else { old.wrapping_add(value) } & VALUE;
                return true;
            }
            let rows = [
                Some(layout.address_low),
                Some(layout.address_high),
                Some(layout.payload),
                Some(layout.arm),
                layout.config,
            ];
            let found =
                (0..).zip(rows).find_map(|(row, first)| Some((row, place(offset, first?, layout.monitors)?)));
            let Some((row, number)) = found else {
                if self.completions.write(hardware, manager, offset, value) {
                    return true;
                }
                continue;
            };
            let is_part = row == 3 && self.is_part(manager, number);
            let monitor = self.monitors.entry((manager, number)).or_default();
            match row {
                0 => monitor.address[0] = value,
                1 => monitor.address[1] = value,
                2 => monitor.payload = value,
                3 if is_part => monitor.part = value,
                3 => monitor.armed = Some(value),
                _ => monitor.config = value,
            }
            return true;
        }
        false
    }
}

/// The address of a sync object of the first manager.
pub(crate) fn object_offset(hardware: &Hardware, number: u32) -> u32 {
    let [first, ..] = layout(hardware).managers;
    u32::try_from(first).unwrap_or(0) + number * 4
}

/// True if an address is one of a register.
pub(crate) fn is_register(hardware: &Hardware, address: u64) -> bool {
    let size = if hardware.dram_virtual { 0x800_0000 } else { 0x400_0000 };
    let first = layout(hardware).registers;
    (first..first + size).contains(&address)
}

/// The target of a short message: an offset from one of four bases. rule(message-bases)
pub(crate) fn short_address(hardware: &Hardware, base: u32, offset: u32) -> Option<u64> {
    let layout = layout(hardware);
    let [first, _, _, last] = layout.managers;
    let start = match (hardware.dram_virtual, base) {
        (false, 0) => last + layout.address_low,
        (false, 1) => last,
        (false, 2) | (true, 0) => first + layout.address_low,
        (false, 3) | (true, 1) => first,
        _ => return None,
    };
    Some(layout.registers + start + u64::from(offset))
}

/// The queue and the number of the fence at a register. rule(fence-addresses)
fn fence_at(hardware: &Hardware, offset: u64) -> Option<(u32, u32)> {
    /// Fences, each with a word for each queue and one for the lower processor.
    const WORDS: u64 = 4 * 5;
    let row = if hardware.dram_virtual { 0x290 } else { 0x308 };
    let (first, within) = engine_at(hardware, offset)?;
    let number = place(within, row, WORDS)?;
    let (fence, stream) = (number / 5, number % 5);
    Some((if stream < 4 { first + stream } else { LOWER | first }, fence))
}

/// The engine that a queue register belongs to, by its first queue, and the register's offset among the
/// engine's.
pub(crate) fn engine_at(hardware: &Hardware, offset: u64) -> Option<(u32, u64)> {
    /// A row of engines: the first one's registers, the distance, the count, and the first queue of the first.
    type Engines = (u64, u64, u32, u32);
    const FIRST: [Engines; 5] = [
        (0x50_8000, 0x2_0000, 2, 0),
        (0x54_8000, 0x2_0000, 6, 9),
        (0x16_8000, 0, 1, 33),
        (0x06_8000, 0, 1, 37),
        (0xE0_8000, 0x4_0000, 8, 41),
    ];
    const PLAIN: [Engines; 2] = [(0x4C8_A000, 0x1_0000, 2, 0), (0x4E0_A000, 0x1_0000, 2, 252)];
    const PARTS: [Engines; 3] =
        [(0x41C_A000, 0x1_0000, 2, 8), (0x40C_A000, 0, 1, 16), (0x400_A000, 0x1_0000, 6, 20)];
    /// The distance of the second generation's parts, and the first queues of each part but the first.
    const PART: u64 = 0x20_0000;
    const SHIFTS: [u32; 4] = [0, 40, 76, 112];
    /// The size of an engine's queue registers.
    const LENGTH: u64 = 0x1000;
    let inside = |(first, apart, count, queue): Engines| {
        (0..count).find_map(|engine| {
            let within = offset.checked_sub(first + apart * u64::from(engine))?;
            (within < LENGTH).then_some((queue + engine * 4, within))
        })
    };
    if !hardware.dram_virtual {
        return FIRST.into_iter().find_map(inside);
    }
    let parts = SHIFTS.into_iter().zip(0_u64..).flat_map(|(shift, part)| {
        PARTS.map(|(first, apart, count, queue)| {
            // The first part's seventh tensor engine precedes the second part's queues.
            let count = if part == 0 && count == 6 { 7 } else { count };
            (first + part * PART, apart, count, queue + shift)
        })
    });
    PLAIN.into_iter().chain(parts).find_map(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware;
    use hal_gaudi_abi::generation::Generation;

    const SOB: u64 = 0x1000_007F_F800_0000 + 0x410_0000;

    /// The two halves of an address, the lower one first.
    fn halves(address: u64) -> [u32; 2] {
        [address, address >> 32].map(|half| u32::try_from(half & 0xFFFF_FFFF).unwrap())
    }

    #[test]
    fn monitor_writes_to_a_fence_when_its_objects_have_got_far_enough() {
        let hardware = hardware::of(Generation::Gaudi2);
        let mut sync = Sync::default();

        // The second fence of the first stream of the second tensor engine of the third part.
        let address = 0x1000_007F_F800_0000_u64 + 0x441_A000 + 0x290 + 2 * 0x14;
        let fence = WaitCondition::Fence(Fence::of_packet(hardware, 96 + 4, 2 << 30 | 1 << 16 | 1, true));
        let mut set = |offset: u64, value: u32| {
            assert_eq!(sync.write(hardware, SOB + offset, value), Some(vec![]));
        };
        let [low, high] = halves(address);
        set(0x8000 + 300 * 4, low);
        set(0xA000 + 300 * 4, high);
        set(0xC000 + 300 * 4, 1);
        // Objects 800 and 802, at least three.
        set(0xE000 + 300 * 4, 3 << 17 | (!0b101_u32 & 0xFF) << 8 | 100);
        set(802 * 4, 3);
        assert!(!sync.pass(fence));
        for _ in 0..3 {
            assert!(!sync.is_open(fence));
            assert!(sync.write(hardware, SOB + 800 * 4, ADD | 1).is_some());
        }
        assert!(sync.pass(fence) && !sync.pass(fence), "it was taken");
        sync.write(hardware, SOB + 800 * 4, ADD | 1);
        assert!(!sync.is_open(fence), "it is not armed any more");
    }

    #[test]
    fn monitor_with_several_words_writes_them_all_and_may_arm_itself() {
        let hardware = hardware::of(Generation::Gaudi2);
        let mut sync = Sync::default();
        let arm = 1 << 17 | 0xFE << 8 | 100;
        let words =
            [(0xFFF0_77FF_FFFF_0000_u64, 50), (SOB + 800 * 4, ADD | VALUE), (SOB + 0xE000 + 300 * 4, arm)];
        for (number, (address, payload)) in (300_u64..).zip(words) {
            let [low, high] = halves(address);
            sync.write(hardware, SOB + 0x8000 + number * 4, low);
            sync.write(hardware, SOB + 0xA000 + number * 4, high);
            sync.write(hardware, SOB + 0xC000 + number * 4, payload);
        }
        sync.write(hardware, SOB + 0x1_0000 + 300 * 4, 2 << 5);
        sync.write(hardware, SOB + 0xE000 + 300 * 4, arm);
        for _ in 0..2 {
            let written = sync.write(hardware, SOB + 800 * 4, ADD | 1).unwrap();
            assert_eq!(written, [Effect::Word { address: 0xFFF0_77FF_FFFF_0000, value: 50 }]);
            assert_eq!(sync.object(800), 0);
        }
    }

    #[test]
    fn every_queue_of_an_engine_has_four_fences_of_its_own() {
        for (generation, pages) in [(Generation::Gaudi1, 0..0x1000_u64), (Generation::Gaudi2, 0x4000..0x5000)]
        {
            let hardware = hardware::of(generation);
            let registers =
                pages.flat_map(|page| (0x280..0x380).step_by(4).map(move |inside| page << 12 | inside));
            let found: Vec<_> = registers.filter_map(|offset| fence_at(hardware, offset)).collect();
            let mut sorted = found.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), found.len(), "two registers for one fence");
            let queues = (0..hardware.queues).filter(|&queue| {
                hardware.is_enabled(queue) && hardware.queue(queue) != Some(hardware::QueueKind::Driver)
            });
            for queue in queues {
                assert_eq!(
                    sorted.iter().filter(|(other, _)| *other == queue).count(),
                    4,
                    "{generation}: {queue}"
                );
            }
        }
    }
}
