// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of a call that another process answers.
//!
//! This program runs itself, with cards and without, and repeats calls.

use crate::launch::Refused;
use emulator_core::drm;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The argument by which this program calls itself.
pub(crate) const PROBE: &str = "--probe";

/// The number of repetitions of each call.
const TIMES: u32 = 20_000;

/// A node of the machine.
const NODE: &str = "/dev/accel/accel0";

/// A request that only identifies the driver, without its name.
const REQUEST: libc::Ioctl = drm::VERSION as libc::Ioctl;

/// Prints the cost of calls without cards, and with those of a machine.
pub(crate) fn measure(uri: &str) -> Result<u8, Refused> {
    let probe = [OsString::from(PROBE)];
    let me = OsString::from("/proc/self/exe");
    println!("not supervised:");
    match std::process::Command::new(&me).arg(PROBE).status() {
        Ok(status) if status.success() => {}
        other => {
            let message = format!("this program cannot run itself: {other:?}");
            return Err(Refused { status: crate::OURS, message });
        }
    }
    println!("supervised, with {uri}:");
    crate::run(uri, false, &me, &probe)
}

/// The time of one repetition.
fn time(mut call: impl FnMut() -> bool) -> Option<Duration> {
    let round = |count: u32, call: &mut dyn FnMut() -> bool| (0..count).all(|_| call());
    if !round(TIMES / 10, &mut call) {
        return None;
    }
    let begin = Instant::now();
    round(TIMES, &mut call).then(|| begin.elapsed() / TIMES)
}

fn request(file: &File, number: libc::Ioctl) -> i32 {
    let mut argument = [0_u64; 8];
    // SAFETY: no request that is made here has a longer argument, and without lengths none of the addresses in
    // it is used.
    unsafe { libc::ioctl(file.as_raw_fd(), number, argument.as_mut_ptr()) }
}

/// Makes calls, and prints the time of each.
pub(crate) fn probe() -> ExitCode {
    /// `TIOCINQ`, a request of a type that the filter passes.
    const OTHER: libc::Ioctl = 0x541B;
    let Ok(null) = File::open("/dev/null") else { return ExitCode::FAILURE };
    let mut rows = Vec::new();
    if let Ok(card) = File::options().read(true).write(true).open(NODE) {
        rows.push(("a request of a card", time(|| request(&card, REQUEST) == 0)));
        rows.push(("stat of a node", time(|| Path::new(NODE).exists())));
    }
    rows.push(("a request of the same number to another device", time(|| request(&null, REQUEST) < 0)));
    rows.push(("a request of another type", time(|| request(&null, OTHER) < 0)));
    rows.push(("open and close of another file", time(|| File::open("/dev/null").is_ok())));
    rows.push(("reading no bytes", time(|| rustix::io::read(&null, &mut [0; 1]).is_ok())));
    for (what, took) in rows {
        match took {
            Some(took) => println!("  {what:<50} {:>8.2} µs", took.as_secs_f64() * 1e6),
            None => println!("  {what:<50}   failed"),
        }
    }
    ExitCode::SUCCESS
}
