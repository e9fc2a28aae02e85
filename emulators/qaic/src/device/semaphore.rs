// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The semaphores of a channel: 32 counters of twelve bits.

use hal_qaic_abi::uapi::{Semaphore, sem};

/// The semaphores of a channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Semaphores([u16; sem::COUNT as usize]);

impl Semaphores {
    /// Semaphores with these values; the rest are zero.
    pub(crate) fn new(values: &[u32]) -> Self {
        let mut semaphores = Self::default();
        for (semaphore, &value) in semaphores.0.iter_mut().zip(values) {
            *semaphore = u16::try_from(value).unwrap_or(sem::VALUE_MAX).min(sem::VALUE_MAX);
        }
        semaphores
    }

    #[expect(clippy::indexing_slicing, reason = "an index has five bits")]
    pub(crate) fn value(&self, index: u8) -> u16 {
        self.0[usize::from(index)]
    }

    #[expect(clippy::indexing_slicing, reason = "an index has five bits")]
    fn semaphore(&mut self, index: u8) -> &mut u16 {
        &mut self.0[usize::from(index)]
    }

    /// Adds to a semaphore, up to its greatest value.
    pub(crate) fn add(&mut self, index: u8, value: u16) {
        let semaphore = self.semaphore(index);
        *semaphore = semaphore.saturating_add(value).min(sem::VALUE_MAX);
    }

    /// Subtracts from a semaphore, down to zero.
    pub(crate) fn take(&mut self, index: u8, value: u16) {
        let semaphore = self.semaphore(index);
        *semaphore = semaphore.saturating_sub(value);
    }

    /// Executes a command. Returns false, without an effect, if it has to wait.
    pub(crate) fn perform(&mut self, command: &Semaphore) -> bool {
        let value = self.value(command.index);
        match command.cmd {
            sem::INIT => {
                self.take(command.index, value);
                self.add(command.index, command.val);
            }
            sem::INC => self.add(command.index, command.val),
            sem::DEC => self.take(command.index, command.val),
            sem::WAIT_EQUAL => return value == command.val,
            sem::WAIT_GT_EQ => return value >= command.val,
            sem::WAIT_GT_0 => {
                if value == 0 {
                    return false;
                }
                self.take(command.index, 1);
            }
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_its_effect() {
        let mut semaphores = Semaphores::new(&[5]);
        let mut perform = |cmd, val| {
            let done = semaphores.perform(&Semaphore { cmd, val, ..Semaphore::default() });
            (done, semaphores.value(0))
        };
        assert_eq!(perform(sem::NOP, 9), (true, 5));
        assert_eq!(perform(sem::INC, 3), (true, 8));
        assert_eq!(perform(sem::DEC, 7), (true, 1));
        assert_eq!(perform(sem::WAIT_EQUAL, 2), (false, 1));
        assert_eq!(perform(sem::WAIT_EQUAL, 1), (true, 1));
        assert_eq!(perform(sem::WAIT_GT_EQ, 2), (false, 1));
        assert_eq!(perform(sem::WAIT_GT_EQ, 0), (true, 1));
        assert_eq!(perform(sem::WAIT_GT_0, 0), (true, 0));
        assert_eq!(perform(sem::WAIT_GT_0, 0), (false, 0));
        assert_eq!(perform(sem::INIT, 4095), (true, 4095));
        assert_eq!(perform(sem::INC, 1), (true, 4095));
    }
}
