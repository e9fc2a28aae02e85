// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Host programs on an emulated card: the packet that calls one, which no hardware has.

use emulator_core::ProgramHost;
use hal_backend::{Code, Failure};
use hal_gaudi_abi::programs::{CardPrograms, ProgramCall};
use std::sync::Arc;

/// The operation of the emulator's own packet, which no hardware has.
pub const DISPATCH: u32 = 0x1f;

/// Offsets in a packet with [`DISPATCH`].
///
/// Behind the fixed part come the bindings, each an address and a length of eight bytes, then the constants of four
/// bytes, then zeros up to a multiple of eight.
pub mod dispatch {
    /// The whole packet's length, 4 bytes.
    pub const LENGTH: usize = 0;
    /// The control word, 4 bytes.
    pub const CONTROL: usize = 4;
    /// The program, 8 bytes: a number that the emulator returned.
    pub const PROGRAM: usize = 8;
    /// The function of the program, 4 bytes.
    pub const FUNCTION: usize = 16;
    /// Workgroup-local memory beyond the function's own, 4 bytes.
    pub const LOCAL_MEMORY: usize = 20;
    /// The size of a workgroup, 3 times 4 bytes.
    pub const WORKGROUP_SIZE: usize = 24;
    /// The number of bindings, 4 bytes.
    pub const BINDINGS: usize = 36;
    /// The number of workgroups, 3 times 4 bytes.
    pub const WORKGROUP_COUNT: usize = 40;
    /// The number of constants, 4 bytes.
    pub const CONSTANTS: usize = 52;
    /// The address from which the packet reads the number of workgroups when it runs, 8 bytes; zero if the
    /// packet holds the number.
    pub const INDIRECT: usize = 56;
    /// The length of the fixed part.
    pub const FIXED: usize = 64;
}

/// The length of the packet with this many bindings and constants.
pub(crate) fn dispatch_length(bindings: usize, constants: usize) -> usize {
    let fixed = dispatch::FIXED.saturating_add(bindings.saturating_mul(16));
    fixed.saturating_add(constants.div_ceil(2).saturating_mul(8))
}

/// Host programs of a machine in this process, or in the one that supervises it.
pub(crate) struct Programs(pub(crate) Arc<dyn ProgramHost>);

impl CardPrograms for Programs {
    fn host(&self) -> &dyn ProgramHost {
        &*self.0
    }

    fn encode(&self, call: &ProgramCall<'_>) -> Result<Vec<u8>, Failure> {
        let (bindings, constants) = (call.bindings.len(), call.constants.len());
        let length = dispatch_length(bindings, constants);
        let word = |number: usize| {
            u32::try_from(number).map_err(|_| {
                let message =
                    format!("a dispatch of {bindings} bindings and {constants} constants is too long");
                Failure::new(Code::InvalidArgument, message)
            })
        };
        let head = [word(length)?, DISPATCH << 24];
        let (bindings, constants) = (word(bindings)?, word(constants)?);
        let [x, y, z] = call.workgroup_size;
        let [columns, rows, layers] = call.workgroup_count;
        let sizes = [call.function, call.local_memory, x, y, z, bindings, columns, rows, layers, constants];
        // The fields follow the order of `dispatch`.
        let mut commands = Vec::with_capacity(length);
        commands.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        commands.extend(call.program.to_le_bytes());
        commands.extend(sizes.iter().flat_map(|word| word.to_le_bytes()));
        commands.extend(call.indirect.to_le_bytes());
        let binding = |&(address, length): &(u64, u64)| [address, length];
        commands.extend(call.bindings.iter().flat_map(binding).flat_map(u64::to_le_bytes));
        commands.extend(call.constants.iter().flat_map(|constant| constant.to_le_bytes()));
        commands.resize(length, 0);
        Ok(commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::HostProgram;

    struct None;

    impl ProgramHost for None {
        fn load(&self, _: Arc<dyn HostProgram>) -> u64 {
            0
        }

        fn unload(&self, _: u64) {}

        fn workers(&self) -> usize {
            1
        }
    }

    #[test]
    fn call_has_each_field_where_the_engine_reads_it() {
        let call = ProgramCall {
            program: 0x0102_0304_0506_0708,
            function: 9,
            workgroup_size: [10, 11, 12],
            workgroup_count: [13, 14, 15],
            indirect: 0x1112_1314_1516_1718,
            local_memory: 16,
            constants: &[17, 18, 19],
            bindings: &[(1 << 40, 20), (2 << 40, 21)],
        };
        let programs = Programs(Arc::new(None));
        let packet = programs.encode(&call).unwrap();
        let word = |at: usize| u32::from_le_bytes(*packet[at..].first_chunk().unwrap());
        let long = |at: usize| u64::from_le_bytes(*packet[at..].first_chunk().unwrap());
        assert_eq!(
            (word(dispatch::LENGTH) as usize, word(dispatch::CONTROL)),
            (packet.len(), DISPATCH << 24)
        );
        assert_eq!((long(dispatch::PROGRAM), word(dispatch::FUNCTION)), (call.program, 9));
        assert_eq!((word(dispatch::LOCAL_MEMORY), long(dispatch::INDIRECT)), (16, call.indirect));
        assert_eq!((word(dispatch::BINDINGS), word(dispatch::CONSTANTS)), (2, 3));
        for axis in 0..3 {
            assert_eq!(word(dispatch::WORKGROUP_SIZE + 4 * axis), call.workgroup_size[axis]);
            assert_eq!(word(dispatch::WORKGROUP_COUNT + 4 * axis), call.workgroup_count[axis]);
        }
        let behind = [0, 8, 16, 24].map(|at| long(dispatch::FIXED + at));
        assert_eq!(behind, [1 << 40, 20, 2 << 40, 21]);
        let constants = [0, 4, 8, 12].map(|at| word(dispatch::FIXED + 32 + at));
        assert_eq!(constants, [17, 18, 19, 0]);
        assert_eq!(packet.len(), dispatch_length(2, 3));
    }
}
