// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a program sees where the process is at a limit, or in a sandbox: a refusal with a message, and no end of the
//! process.

use crate::common::forbidden::limit;
use crate::common::{Device, List, Result, new_pool, testdata};
use crate::processes::DEVICES;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The format of a device's executables, and the suite's folder of them.
fn format(uri: &str) -> (&'static str, &'static str) {
    match uri.split(':').next().unwrap() {
        "nvidia" => ("PTXE", "cuda_sm80"),
        "tenstorrent" => ("embedded-elf-riscv_32", "riscv32_bits"),
        _ => ("vmvx-bytecode-fb", "vmvx"),
    }
}

/// Uses what needs memory: transfers, stream-ordered memory, an executable and a dispatch.
pub(crate) fn work(device: &Device, uri: &str) -> Result {
    let (own, seen) = (device.try_local_buffer(1 << 20)?, device.try_buffer(1 << 20)?);
    let chain = device.semaphore(0);
    let mut value = 0;
    let mut step = |queue: &dyn Fn(&List, &List) -> Result| {
        queue(&chain.at(value), &chain.at(value + 1))?;
        value += 1;
        chain.wait(value)
    };
    step(&|waits, signals| device.fill(waits, signals, &own, (0, 1 << 20), &[7]))?;
    step(&|waits, signals| device.copy(waits, signals, &own, &seen, 1 << 20))?;
    let many = vec![5; 100 << 10];
    step(&|waits, signals| device.update_on(1, waits, signals, &many, (&own, 0)))?;
    let (folder, format) = (format(uri).1, format(uri).0);
    let executable = device.load(format, &testdata(&format!("{folder}/command_buffer_dispatch_test.bin")))?;
    let bindings = [&seen.subspan(0, 8), &own.subspan(0, 8)];
    step(&|waits, signals| device.dispatch(1, waits, signals, &executable, &[], &bindings))?;
    for length in [4096, 20 << 20] {
        let transient = std::cell::OnceCell::new();
        step(&|waits, signals| {
            let _ = transient.set(device.alloca(waits, signals, length)?);
            Ok(())
        })?;
        let Some(transient) = transient.get() else { continue };
        step(&|waits, signals| device.fill(waits, signals, transient, (0, length), &[4]))?;
        step(&|waits, signals| device.dealloca(waits, signals, transient))?;
    }
    Ok(())
}

/// The addresses that this process uses.
fn used() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').next().unwrap().parse::<u64>().unwrap()
}

/// What a process of its own does that may have so many bytes more.
fn use_a_device(uri: &str, before_it_opens: bool, more: u64) -> Result {
    let bound = || limit(libc::RLIMIT_AS, used() + more);
    // The proactor is IREE's.
    let (pool, _) = new_pool()?;
    if before_it_opens {
        bound();
    }
    let device = Device::open_with_pool(uri, pool);
    unsafe { hal_sys::iree_async_proactor_pool_release(pool) };
    let device = device?;
    if !before_it_opens {
        bound();
    }
    work(&device, uri)
}

/// Small allocations end a Rust program where there is no memory for them; those whose size the caller chooses, and
/// those of 64 KiB and more, do not.
#[test]
fn process_at_its_limit_of_memory_is_refused_what_does_not_fit() {
    const CASE: &str = "HAL_DRIVER_MEMORY";
    if let Ok(case) = std::env::var(CASE) {
        let mut parts = case.split(' ');
        let mut next = || parts.next().unwrap();
        let (uri, before, more) = (next(), next() == "true", next().parse().unwrap());
        match use_a_device(uri, before, more) {
            Ok(()) => println!("done"),
            Err(error) => println!("refused: {:?}: {}", error.code, error.text),
        }
        return;
    }
    let mut wrong = Vec::new();
    for uri in DEVICES {
        for before in [true, false] {
            for more in [1 << 18, 1 << 20, 3 << 20, 9 << 20, 30 << 20, 100 << 20, 1 << 30] {
                let case = format!("{uri} {before} {more}");
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "--nocapture"]);
                command.arg("limits::process_at_its_limit_of_memory_is_refused_what_does_not_fit");
                command.env(CASE, &case).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
                let begin = Instant::now();
                let ended = command.output().unwrap();
                let text = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
                let told = ended.status.success() && (text.contains("done") || text.contains("refused: "));
                let bug = text.contains("panicked") || text.contains("refused: Internal");
                let small = failed_allocation(&text).is_some_and(|bytes| bytes < 64 << 10);
                let of_libc = text.contains("Fatal glibc error");
                if bug || !(told || small || of_libc) || begin.elapsed() > Duration::from_secs(8) {
                    wrong.push(format!("{case}: {} after {:?}: {text}", ended.status, begin.elapsed()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The size of the allocation that ended a process.
fn failed_allocation(text: &str) -> Option<u64> {
    text.split("memory allocation of ").nth(1)?.split(' ').next()?.parse().ok()
}
