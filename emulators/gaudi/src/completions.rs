// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Completion queues of the second generation's sync managers. rule(completion-queues)
//!
//! A monitor can be told to write to a completion queue instead of an address. The queue puts the word into
//! memory, in a ring, or adds it to a number there, and then sends a message of its own, most often to the
//! doorbell of interrupts.

use crate::hardware::Hardware;
use std::collections::BTreeMap;

/// How many queues a manager has.
const QUEUES: u32 = 64;
/// Where their registers begin, from the manager's first sync object on, and the distance of the rows.
const REGISTERS: u64 = 0x1_E050;
const ROW: u64 = 0x100;

/// An entry that goes to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Word(u32),
    Count(u64),
}

/// The effects of a monitor that writes to a queue, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) address: u64,
    pub(crate) entry: Entry,
    /// The address and the word of the queue's message.
    pub(crate) message: (u64, u32),
}

/// The registers of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct CompletionQueue {
    base: [u32; 2],
    size_log2: u32,
    message_address: [u32; 2],
    message: u32,
    /// True if it adds up its words.
    counts: bool,
    /// The offset of the next word, and the sum of all words.
    next: u64,
    sum: u64,
}

impl CompletionQueue {
    fn complete(&mut self, word: u32) -> Completion {
        let base = wide(self.base);
        let message = (wide(self.message_address), self.message);
        if self.counts {
            self.sum = self.sum.wrapping_add(u64::from(word));
            return Completion { address: base, entry: Entry::Count(self.sum), message };
        }
        let size = 1_u64.checked_shl(self.size_log2).unwrap_or(u64::MAX).max(4);
        let address = base.wrapping_add(self.next);
        self.next = if self.next + 4 < size { self.next + 4 } else { 0 };
        Completion { address, entry: Entry::Word(word), message }
    }
}

fn wide([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The queues of all managers. A missing one has zeros in its registers.
#[derive(Debug, Default)]
pub(crate) struct CompletionQueues(BTreeMap<(usize, u32), CompletionQueue>);

impl CompletionQueues {
    /// Sets all registers to zero. The driver's own queues are not here.
    pub(crate) fn restore(&mut self) {
        self.0.clear();
    }

    /// Writes a register at an offset from a manager's first sync object. Returns false if a program has no such
    /// register.
    pub(crate) fn write(&mut self, hardware: &Hardware, manager: usize, offset: u64, value: u32) -> bool {
        let Some(within) = offset.checked_sub(REGISTERS).filter(|_| hardware.dram_virtual) else {
            return false;
        };
        let Some(number) = u32::try_from(within % ROW / 4).ok().filter(|_| within.is_multiple_of(4)) else {
            return false;
        };
        if !is_programs(hardware, manager, number) {
            return false;
        }
        let mut queue = self.0.get(&(manager, number)).copied().unwrap_or_default();
        match within / ROW {
            0 => queue.base[0] = value,
            1 => queue.base[1] = value,
            2 => queue.size_log2 = value,
            // The next two rows are the driver's: the position, and the protection.
            5 => queue.message_address[0] = value,
            6 => queue.message_address[1] = value,
            7 => queue.message = value,
            8 => queue.counts = value & 1 == 1,
            _ => return false,
        }
        self.0.insert((manager, number), queue);
        true
    }

    /// Puts a word into a queue; nothing, if a program has no queue of that number.
    pub(crate) fn complete(
        &mut self,
        hardware: &Hardware,
        manager: usize,
        number: u32,
        word: u32,
    ) -> Option<Completion> {
        is_programs(hardware, manager, number)
            .then(|| self.0.entry((manager, number)).or_default().complete(word))
    }
}

/// True if a queue is there for programs.
fn is_programs(hardware: &Hardware, manager: usize, number: u32) -> bool {
    let first = if manager == 0 { hardware.first_cq } else { hardware.other_cq };
    (first..QUEUES).contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware;
    use hal_gaudi_abi::generation::Generation;

    #[test]
    fn queue_is_a_ring_of_words_or_one_sum() {
        let hardware = hardware::of(Generation::Gaudi2);
        let mut queues = CompletionQueues::default();
        for (row, value) in [(0, 0x1000), (1, 2), (2, 3), (5, 0x77), (7, 48)] {
            assert!(queues.write(hardware, 1, REGISTERS + row * ROW + 9 * 4, value));
        }
        let address = |completion: Option<Completion>| completion.map(|completion| completion.address);
        let found: Vec<_> = (0..3).map(|word| address(queues.complete(hardware, 1, 9, word))).collect();
        assert_eq!(found, [0x2_0000_1000, 0x2_0000_1004, 0x2_0000_1000].map(Some));
        assert!(queues.write(hardware, 1, REGISTERS + 8 * ROW + 9 * 4, 1));
        queues.complete(hardware, 1, 9, u32::MAX);
        let sum = queues.complete(hardware, 1, 9, 3).unwrap();
        assert_eq!((sum.entry, sum.message), (Entry::Count(0x1_0000_0002), (0x77, 48)));
    }

    #[test]
    fn drivers_queues_and_registers_are_no_programs() {
        let (first, second) = (hardware::of(Generation::Gaudi1), hardware::of(Generation::Gaudi2));
        let mut queues = CompletionQueues::default();
        for (hardware, manager, offset) in [
            (first, 0, REGISTERS + 8),
            (second, 0, REGISTERS + 4),
            (second, 1, REGISTERS + 3 * ROW),
            (second, 1, REGISTERS + 4 * ROW),
            (second, 1, REGISTERS + 9 * ROW),
            (second, 1, REGISTERS + 2),
            (second, 1, REGISTERS - 4),
        ] {
            assert!(!queues.write(hardware, manager, offset, 1), "{offset:#x}");
        }
        assert!(queues.complete(second, 0, 1, 1).is_none() && queues.complete(second, 3, 64, 1).is_none());
        assert!(queues.write(second, 0, REGISTERS + 8, 1) && queues.write(second, 1, REGISTERS, 1));
    }
}
