// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Requests of open files, by the rules of the kernel's DRM core, which calls every accelerator's driver.
//!
//! The core chooses the driver's function by the request's number alone. The size in the program's request says
//! how much is copied. A direction is copied only if both the program's request and the driver's have it; the
//! rest of the driver's argument is zero. The driver's output is copied back also when the driver fails.

use crate::process::Process;
use hal_kernel::Errno;
pub use hal_kernel::drm::{VERSION, Version};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The program passes the argument in.
const IN: u32 = 1 << 30;
/// The program gets the argument back.
const OUT: u32 = 2 << 30;

/// The type of every DRM request.
pub const KIND: u32 = b'd' as u32;

/// The number of a driver's first own request.
pub const DRIVER_BASE: u32 = 0x40;

/// The type of a request, such as [`KIND`].
pub const fn kind(request: u32) -> u32 {
    (request >> 8) & 0xFF
}

/// The number of a request.
pub const fn number(request: u32) -> u32 {
    request & 0xFF
}

/// How many bytes a request's argument has, by its number.
const fn size(request: u32) -> usize {
    ((request >> 16) & 0x3FFF) as usize
}

/// Reads an argument.
pub fn take<T: FromBytes>(argument: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(argument).map(|(value, _)| value).map_err(|_| Errno::FAULT)
}

/// Replaces an argument by the driver's answer, and fills the rest with zeros. The answer of a request is never
/// larger than its argument.
#[expect(
    clippy::expect_used,
    reason = "a request whose answer is larger than its argument is a defect of its emulator"
)]
pub fn give<T: IntoBytes + Immutable>(argument: &mut [u8], answer: &T) {
    argument.fill(0);
    answer.write_to_prefix(argument).expect("an answer fits into its argument");
}

/// Runs a driver's function on a copy of the argument that is at least as large as the driver's own request.
pub fn call(
    request: u32,
    own: u32,
    argument: &mut [u8],
    function: impl FnOnce(&mut [u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let given = size(request);
    let incoming = if request & own & IN == 0 { 0 } else { given };
    let outgoing = if request & own & OUT == 0 { 0 } else { given };
    let mut copy = vec![0; incoming.max(outgoing).max(size(own))];
    let source = argument.get(..incoming).ok_or(Errno::FAULT)?;
    copy.get_mut(..incoming).ok_or(Errno::FAULT)?.copy_from_slice(source);
    if argument.len() < outgoing {
        return Err(Errno::FAULT);
    }
    let result = function(copy.get_mut(..size(own)).ok_or(Errno::FAULT)?);
    let answer = copy.get(..outgoing).ok_or(Errno::FAULT)?;
    argument.get_mut(..outgoing).ok_or(Errno::FAULT)?.copy_from_slice(answer);
    result
}

const _: () = assert!(size(VERSION) == size_of::<Version>());

/// The identification of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The name by which programs know it.
    pub name: &'static str,
    /// The date of its first version.
    pub date: &'static str,
    /// For people.
    pub description: &'static str,
    /// Its version.
    pub version: [i32; 3],
}

impl Driver {
    /// Answers [`VERSION`]: the texts are cut to the program's buffers, and their full lengths are returned.
    pub fn answer(&self, process: &dyn Process, argument: &mut [u8]) -> Result<(), Errno> {
        let mut version: Version = take(argument)?;
        [version.major, version.minor, version.patch] = self.version;
        let put = |address: u64, room: &mut u64, text: &str| {
            let length = usize::try_from(*room).unwrap_or(usize::MAX).min(text.len());
            *room = text.len() as u64;
            let (bytes, _) = text.as_bytes().split_at(length);
            if address == 0 || bytes.is_empty() { Ok(()) } else { process.write(address, bytes) }
        };
        put(version.name, &mut version.name_length, self.name)?;
        put(version.date, &mut version.date_length, self.date)?;
        put(version.description, &mut version.description_length, self.description)?;
        give(argument, &version);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `_IOC` of a direction and a size.
    fn request(direction: u32, size: u32) -> u32 {
        direction | size << 16 | KIND << 8 | DRIVER_BASE
    }

    #[test]
    fn part_of_an_argument_that_is_not_handed_in_is_zero() {
        let mut argument = [7; 16];
        let result = call(request(IN | OUT, 4), request(IN | OUT, 16), &mut argument, |inner| {
            assert_eq!(inner, [[7; 4], [0; 4], [0; 4], [0; 4]].as_flattened());
            inner.fill(9);
            Ok(())
        });
        assert_eq!(
            (result, argument),
            (Ok(()), [[9; 4], [7; 4], [7; 4], [7; 4]].as_flattened().try_into().unwrap())
        );
    }

    #[test]
    fn direction_is_copied_where_both_have_it() {
        let mut argument = [7; 8];
        let write_only = request(IN, 8);
        let answer = |inner: &mut [u8]| {
            assert_eq!(inner, [7; 8]);
            inner.fill(9);
            Ok(())
        };
        assert_eq!(call(request(IN | OUT, 8), write_only, &mut argument, answer), Ok(()));
        assert_eq!(argument, [7; 8], "the driver's request gives nothing back");
        let blind = |inner: &mut [u8]| {
            assert_eq!(inner, [0; 8]);
            Ok(())
        };
        assert_eq!(call(request(OUT, 8), write_only, &mut argument, blind), Ok(()));
    }

    #[test]
    fn argument_that_was_written_comes_back_with_an_error_too() {
        let mut argument = [0; 8];
        let own = request(IN | OUT, 8);
        let result = call(own, own, &mut argument, |inner| {
            inner.fill(3);
            Err(Errno::CANCELED)
        });
        assert_eq!((result, argument), (Err(Errno::CANCELED), [3; 8]));
    }

    #[test]
    fn argument_that_is_not_there_is_a_fault() {
        let own = request(IN | OUT, 8);
        assert_eq!(call(own, own, &mut [0; 4], |_| unreachable!()), Err(Errno::FAULT));
        assert_eq!(call(own, own, &mut [0; 8], |_| Ok(())), Ok(()));
    }
}
