// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The system calls that are intercepted: a program for the kernel's packet filter.
//!
//! It sees the number of a call and its arguments, but not the memory that they point to. So it intercepts
//! every call that takes a path, of `ioctl` only the requests of the types that accelerators have, of `mmap` only
//! the mappings of files, of the calls that move bytes only those on the numbers of [live files](crate::live), and the
//! calls that unmap only where a machine has registers to map. All other calls go to the system at the cost of the
//! filter alone.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_USER_NOTIF, sock_filter,
};
use std::ops::Range;

/// The system calls that take a path, or that describe a descriptor.
pub(crate) const PATHS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
];

/// The system calls that unmap a part of memory.
pub(crate) const UNMAPPINGS: [i64; 2] = [libc::SYS_munmap, libc::SYS_mremap];

/// The system calls that read and write a live file.
pub(crate) const TRANSFERS: [i64; 4] =
    [libc::SYS_read, libc::SYS_write, libc::SYS_pread64, libc::SYS_pwrite64];

/// The types of intercepted requests: DRM's, that of older Gaudi drivers, and that of Tenstorrent's.
pub(crate) const REQUESTS: [u32; 3] = [b'd' as u32, b'H' as u32, 0xfa];

/// The architecture of the system calls' numbers.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Offsets in the filter's input (`struct seccomp_data`).
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;

/// The lower half of an argument, on these little-endian machines.
const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

fn statement(code: u32, k: u32) -> sock_filter {
    #[expect(clippy::cast_possible_truncation, reason = "every code of the filter's language has 16 bits")]
    let code = code as u16;
    sock_filter { code, jt: 0, jf: 0, k }
}

/// The number of a system call, as the filter sees it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of calls are small and not negative"
)]
const fn number(call: i64) -> u32 {
    call as u32
}

fn load(offset: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset)
}

fn answer(with: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, with)
}

/// Skips one set of instructions if the value is equal, another if not.
fn jump_if_equal(k: u32, equal: u8, not: u8) -> sock_filter {
    sock_filter { jt: equal, jf: not, ..statement(BPF_JMP | BPF_JEQ | BPF_K, k) }
}

/// Skips one instruction if the value is less.
fn skip_if_less(k: u32) -> sock_filter {
    sock_filter { jt: 0, jf: 1, ..statement(BPF_JMP | BPF_JGE | BPF_K, k) }
}

/// The filter, with the descriptors that live files get, for a machine that may map registers.
pub(crate) fn program(live: &Range<u32>, maps_registers: bool) -> Vec<sock_filter> {
    let allow = || answer(SECCOMP_RET_ALLOW);
    let notify = || answer(SECCOMP_RET_USER_NOTIF);
    let mut program = vec![load(MACHINE), jump_if_equal(ARCHITECTURE, 1, 0), allow(), load(NUMBER)];
    let unmappings = UNMAPPINGS.iter().filter(|_| maps_registers);
    for &call in PATHS.iter().chain(unmappings) {
        program.extend([jump_if_equal(number(call), 0, 1), notify()]);
    }
    // An ioctl by the type of its request, which is in bits 8 to 16.
    program.extend([
        jump_if_equal(number(libc::SYS_ioctl), 0, 7),
        load(low(1)),
        statement(BPF_ALU | BPF_AND | BPF_K, 0xFF00),
    ]);
    let [first, second, third] = REQUESTS;
    program.extend([
        jump_if_equal(first << 8, 2, 0),
        jump_if_equal(second << 8, 1, 0),
        jump_if_equal(third << 8, 0, 1),
        notify(),
        allow(),
    ]);
    // A mapping by its flags.
    program.extend([
        jump_if_equal(number(libc::SYS_mmap), 0, 5),
        load(low(3)),
        statement(BPF_ALU | BPF_AND | BPF_K, libc::MAP_ANONYMOUS.cast_unsigned()),
        jump_if_equal(0, 0, 1),
        notify(),
        allow(),
    ]);
    // A transfer of bytes by its descriptor.
    if !live.is_empty() {
        let tests = TRANSFERS.into_iter().zip([4, 3, 2, 1]);
        program.extend(tests.map(|(call, to_number)| jump_if_equal(number(call), to_number, 0)));
        program.extend([allow(), load(low(0)), skip_if_less(live.start), skip_if_less(live.end)]);
        program.extend([allow(), notify()]);
    }
    program.push(allow());
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter's answer to a call, by its own rules.
    fn is_notified(machine: u32, call: i64, arguments: [u64; 6]) -> bool {
        is_notified_by(&program(&(960..1024), false), machine, call, arguments)
    }

    fn is_notified_by(program: &[sock_filter], machine: u32, call: i64, arguments: [u64; 6]) -> bool {
        let mut data = Vec::new();
        data.extend(i32::try_from(call).unwrap().to_le_bytes());
        data.extend(machine.to_le_bytes());
        data.extend(0_u64.to_le_bytes());
        arguments.iter().for_each(|argument| data.extend(argument.to_le_bytes()));
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                0x20 => value = u32::from_le_bytes(data[k as usize..k as usize + 4].try_into().unwrap()),
                0x54 => value &= k,
                0x35 => at += usize::from(if value >= k { jt } else { jf }),
                0x15 => at += usize::from(if value == k { jt } else { jf }),
                0x06 => return k == SECCOMP_RET_USER_NOTIF,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn only_calls_that_may_concern_a_device_are_intercepted() {
        let here = |call, arguments| is_notified(ARCHITECTURE, call, arguments);
        for &call in PATHS {
            assert!(here(call, [0; 6]), "{call}");
            assert!(
                !is_notified(0x4000_0003, call, [0; 6]),
                "another architecture's numbers mean other calls"
            );
        }
        let ioctl = |request| here(libc::SYS_ioctl, [3, request, 0, 0, 0, 0]);
        assert!(ioctl(0xC018_6440) && ioctl(0xC018_4801) && ioctl(0xFFFF_FFFF_C018_6440));
        assert!(ioctl(0xFA00) && ioctl(0xFA10));
        assert!(!ioctl(0x5401) && !ioctl(0x541B) && !ioctl(0x4004_6200));
        let mmap = |flags: i32, offset| {
            here(libc::SYS_mmap, [0, 4096, 3, u64::from(flags.cast_unsigned()), 3, offset])
        };
        assert!(mmap(libc::MAP_SHARED, 1 << 60) && mmap(libc::MAP_SHARED, 0) && mmap(libc::MAP_PRIVATE, 0));
        assert!(!mmap(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 0));
        for call in UNMAPPINGS {
            assert!(!here(call, [0; 6]), "{call}");
            let with_registers = program(&(960..1024), true);
            assert!(is_notified_by(&with_registers, ARCHITECTURE, call, [0; 6]), "{call}");
        }
        for call in [libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_futex, libc::SYS_execve] {
            assert!(!here(call, [u64::MAX; 6]), "{call}");
        }
        for call in TRANSFERS {
            let of = |number: u64| here(call, [number, 0, 0, 0, 0, 0]);
            assert_eq!([0, 959, 960, 1023, 1024].map(of), [false, false, true, true, false], "{call}");
        }
    }
}
