// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a program sees where the process is at a limit, or in a sandbox: a refusal with a message, and no end of the
//! process.

use crate::common::forbidden::{
    descriptors, forbid, forbid_by, is_alone, is_alone_for, limit, lose_capabilities, take_over,
};
use crate::common::{Device, List, Result, new_pool, testdata};
use crate::processes::DEVICES;
use hal_semaphore::Code;
use hal_sys as sys;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An executable for a device.
pub(crate) struct Program {
    pub(crate) format: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Program {
    pub(crate) fn read(uri: &str) -> Self {
        let (format, folder) = match uri.split(':').next().unwrap() {
            "nvidia" => ("PTXE", "cuda_sm80"),
            "tenstorrent" => ("embedded-elf-riscv_32", "riscv32_bits"),
            _ => ("vmvx-bytecode-fb", "vmvx"),
        };
        Self { format, bytes: testdata(&format!("{folder}/command_buffer_dispatch_test.bin")) }
    }
}

/// Uses what needs memory: transfers, stream-ordered memory, an executable and a dispatch.
pub(crate) fn work(device: &Device, program: &Program) -> Result {
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
    let executable = device.load(program.format, &program.bytes)?;
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

/// A limit of a process, above what it uses.
#[derive(Clone, Copy)]
enum Limit {
    Memory,
    Descriptors,
    /// Bytes of a file, whatever is used.
    FileSize,
    /// Memory that may be locked, in a process that locks all that it gets, as those do that are not to be paged out.
    LockedMemory,
}

impl Limit {
    /// Lets this process have so many more than now.
    fn apply(self, more: u64) {
        match self {
            Limit::Memory => {
                let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
                let used = 4096 * statm.split(' ').next().unwrap().parse::<u64>().unwrap();
                limit(libc::RLIMIT_AS, used + more);
            }
            Limit::FileSize => limit(libc::RLIMIT_FSIZE, more),
            Limit::LockedMemory => {
                // Who is no administrator cannot have more than the process was started with.
                let all = libc::rlimit { rlim_cur: more, rlim_max: more };
                unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const all) };
                lose_capabilities();
                assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
            }
            Limit::Descriptors => {
                let is_open = |number: &u64| Path::new(&format!("/proc/self/fd/{number}")).is_symlink();
                let mut free = (0..).filter(|number| !is_open(number));
                limit(libc::RLIMIT_NOFILE, free.nth(usize::try_from(more).unwrap()).unwrap());
            }
        }
    }
}

/// What a process of its own does at a limit, which it reaches before it opens the device or behind that.
fn use_a_device(uri: &str, before_it_opens: bool, kind: Limit, more: u64) -> Result {
    // The proactor is IREE's. The executables are read before descriptors are scarce.
    let (pool, _) = new_pool()?;
    let program = Program::read(uri);
    if before_it_opens {
        kind.apply(more);
    }
    let device = Device::open_with_pool(uri, pool);
    unsafe { hal_sys::iree_async_proactor_pool_release(pool) };
    let device = device?;
    if !before_it_opens {
        kind.apply(more);
    }
    work(&device, &program)?;
    shared(&device, 1 << 20)
}

/// Has processes use every device at these distances from a limit. Each succeeds or is refused, in a minute, since
/// something has run out. Small
/// allocations end a Rust program where there is no memory for them; those whose size a caller chooses, and those of
/// 64 KiB and more, do not.
fn at_a_limit(test: &str, kind: Limit, distances: &[u64]) {
    const CASE: &str = "HAL_DRIVER_LIMIT";
    if let Ok(case) = std::env::var(CASE) {
        let mut parts = case.split(' ');
        let mut next = || parts.next().unwrap();
        let (uri, before, more) = (next(), next() == "true", next().parse().unwrap());
        match use_a_device(uri, before, kind, more) {
            Ok(()) => println!("done"),
            Err(error) => println!("refused: {:?}: {}", error.code, error.text),
        }
        return;
    }
    let mut wrong = Vec::new();
    for uri in DEVICES {
        for before in [true, false] {
            for more in distances {
                let case = format!("{uri} {before} {more}");
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "--nocapture", test]).stdin(Stdio::null());
                command.env(CASE, &case).env("RUST_BACKTRACE", "0");
                let begin = Instant::now();
                let ended = command.output().unwrap();
                let text = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
                let told = text.contains("done") || text.contains("refused: ResourceExhausted: ");
                let is_lost = text.contains("left for the memory of a simulated chip");
                let told = (told || is_lost) && ended.status.success();
                // Rust's library panics if a thread that has started has no room for its signal stack.
                let of_rust = text.contains("stack_overflow.rs");
                let bug = text.contains("panicked") && !of_rust;
                let small = failed_allocations(&text).max().is_some_and(|bytes| bytes < 64 << 10);
                let of_libc = text.contains("Fatal glibc error");
                if bug || !(told || small || of_libc || of_rust) || begin.elapsed() > Duration::from_secs(60)
                {
                    wrong.push(format!("{case}: {} after {:?}: {text}", ended.status, begin.elapsed()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The sizes of the allocations that ended a process: on several threads at once, perhaps.
fn failed_allocations(text: &str) -> impl Iterator<Item = u64> {
    text.split("memory allocation of ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok())
}

#[test]
fn process_at_its_limit_of_memory_is_refused_what_does_not_fit() {
    let test = "limits::process_at_its_limit_of_memory_is_refused_what_does_not_fit";
    at_a_limit(test, Limit::Memory, &[5 << 16, 1 << 20, 3 << 20, 12 << 20, 40 << 20]);
}

#[test]
fn process_at_its_limit_of_descriptors_is_refused_what_needs_one() {
    let test = "limits::process_at_its_limit_of_descriptors_is_refused_what_needs_one";
    at_a_limit(test, Limit::Descriptors, &[0, 2, 5, 12]);
}

/// A refusal to lock memory is none of a card's: `EAGAIN` is not one that is not ready.
#[test]
fn process_that_locks_its_memory_is_refused_what_it_may_not_lock() {
    let test = "limits::process_that_locks_its_memory_is_refused_what_it_may_not_lock";
    at_a_limit(test, Limit::LockedMemory, &[6 << 20, 20 << 20, 60 << 20]);
}

/// Memory that can be exported.
fn shared(device: &Device, length: usize) -> Result {
    let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT;
    let type_ = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
    let params = sys::iree_hal_buffer_params_t { type_, usage, ..Default::default() };
    device.try_buffer_of(params, length).map(drop)
}

#[test]
fn process_at_its_limit_of_a_files_size_is_refused_what_needs_a_longer_one() {
    let test = "limits::process_at_its_limit_of_a_files_size_is_refused_what_needs_a_longer_one";
    at_a_limit(test, Limit::FileSize, &[0, 4096, 4 << 20]);
}

/// The kernel ends a process that makes a file longer than its limit.
#[test]
fn shared_memory_beyond_the_limit_of_a_files_size_is_refused() {
    if !is_alone("limits::shared_memory_beyond_the_limit_of_a_files_size_is_refused") {
        return;
    }
    let device = Device::open("mock").unwrap();
    limit(libc::RLIMIT_FSIZE, 1 << 20);
    shared(&device, 1 << 20).unwrap();
    let refused = shared(&device, (1 << 20) + 1).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "{}", refused.text);
    assert!(refused.text.contains("ulimit -f"), "{}", refused.text);
}

/// The calls that emulated cards are built on, as a container's sandbox may forbid them.
const CALLS: [(&str, libc::c_long); 5] = [
    ("memfd_create", libc::SYS_memfd_create),
    ("ftruncate", libc::SYS_ftruncate),
    ("flock", libc::SYS_flock),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
];

#[test]
fn sandbox_that_forbids_a_call_is_named_where_emulated_cards_need_it() {
    let test = "limits::sandbox_that_forbids_a_call_is_named_where_emulated_cards_need_it";
    let Some(call) = is_alone_for(test, &CALLS.map(|(name, _)| name)) else { return };
    let number = CALLS.iter().find(|(name, _)| *name == call).unwrap().1;
    forbid(&[number], libc::EPERM);
    for uri in DEVICES {
        let emulates_a_kernel = uri.contains("emulated") && !uri.starts_with("nvidia");
        if emulates_a_kernel {
            Device::cannot_be_opened(uri, Code::FailedPrecondition, &call);
            continue;
        }
        let device = Device::open(uri).unwrap();
        work(&device, &Program::read(uri)).unwrap();
        if call == "memfd_create" {
            let refused = shared(&device, 4096).unwrap_err();
            assert_eq!(refused.code, Code::FailedPrecondition, "{uri}: {}", refused.text);
            assert!(refused.text.contains("memfd_create"), "{uri}: {}", refused.text);
        }
    }
}

/// IREE makes an io_uring then, whose thread ends with the first refused call: nothing would be notified.
#[test]
fn sandbox_that_lets_an_io_uring_be_made_and_not_used_is_named() {
    let test = "limits::sandbox_that_lets_an_io_uring_be_made_and_not_used_is_named";
    let calls =
        [("io_uring_enter", libc::SYS_io_uring_enter), ("io_uring_register", libc::SYS_io_uring_register)];
    let Some(call) = is_alone_for(test, &calls.map(|(name, _)| name)) else { return };
    let number = calls.iter().find(|(name, _)| *name == call).unwrap().1;
    forbid(&[number], libc::EPERM);
    for uri in DEVICES {
        Device::cannot_be_opened(uri, Code::FailedPrecondition, &call);
    }
}

/// The proactor's thread ends then, and what needs it, such as a timepoint that a program has exported, stands still.
#[test]
fn sandbox_that_closes_io_uring_behind_the_opening_is_named_by_a_wait() {
    let test = "limits::sandbox_that_closes_io_uring_behind_the_opening_is_named_by_a_wait";
    let Some(uri) = is_alone_for(test, &DEVICES) else { return };
    let program = Program::read(&uri);
    let device = Device::open(&uri).unwrap();
    let io_uring = [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter];
    let has_io_uring = unsafe { libc::syscall(libc::SYS_io_uring_enter, -1, 0, 0, 0, 0, 0) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF);
    work(&device, &program).unwrap();
    forbid(&io_uring, libc::EPERM);
    let done = device.semaphore(0);
    for _ in 0..2 {
        // A device that reports by descriptor is lost.
        if let Err(error) = work(&device, &program) {
            assert!(error.text.contains("io_uring_enter"), "{error:?}");
        }
        if has_io_uring {
            let error = done.wait_for(1, 600_000).unwrap_err();
            assert_eq!(error.code, Code::FailedPrecondition, "{error:?}");
            assert!(error.text.contains("io_uring_enter"), "{error:?}");
        }
    }
    // Ends what hangs.
    unsafe { libc::alarm(300) };
    drop((done, device));
}

/// A wait of over a second looks now and then whether its proactor still polls, with the one call that names no
/// descriptor. Here the value is reached during that look.
#[test]
fn wait_whose_value_is_reached_while_it_finds_io_uring_closed_has_the_value() {
    if !is_alone("limits::wait_whose_value_is_reached_while_it_finds_io_uring_closed_has_the_value") {
        return;
    }
    let device = Device::open("mock").unwrap();
    let done = device.semaphore(0);
    let to_signal = Mutex::new(Some(done.clone()));
    forbid_by(libc::SYS_io_uring_enter, move |descriptor| {
        if let Some(done) = to_signal.lock().unwrap().take_if(|_| descriptor == -1) {
            done.signal(1).unwrap();
        }
        libc::EPERM
    });
    done.wait_for(1, 600_000).unwrap();
}

/// The sandbox is closed between the look of the device that is opened and the first poll.
#[test]
fn wait_finds_io_uring_closed_before_it_was_ever_polled() {
    if !is_alone("limits::wait_finds_io_uring_closed_before_it_was_ever_polled") {
        return;
    }
    let (pool, _) = new_pool().unwrap();
    let is_open = Arc::new(AtomicBool::new(false));
    let is_closed = is_open.clone();
    forbid_by(libc::SYS_io_uring_enter, move |descriptor| {
        if descriptor == -1 && !is_closed.load(Ordering::Relaxed) { libc::EBADF } else { libc::EPERM }
    });
    let device = Device::open_with_pool("mock", pool).unwrap();
    unsafe { sys::iree_async_proactor_pool_release(pool) };
    is_open.store(true, Ordering::Relaxed);
    let error = device.semaphore(0).wait_for(1, 60_000).unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition, "{error:?}");
    assert!(error.text.contains("io_uring_enter"), "{error:?}");
}

/// Calls that IREE and emulated cards do without.
#[test]
fn sandbox_that_forbids_what_can_be_done_otherwise_is_not_noticed() {
    let test = "limits::sandbox_that_forbids_what_can_be_done_otherwise_is_not_noticed";
    let Some(call) = is_alone_for(test, &["io_uring", "ioctl"]) else { return };
    forbid(
        match &call[..] {
            "io_uring" => &[libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter],
            _ => &[libc::SYS_ioctl],
        },
        libc::EPERM,
    );
    for uri in DEVICES {
        work(&Device::open(uri).unwrap(), &Program::read(uri)).unwrap();
    }
}

/// A program that becomes a daemon closes every descriptor that it finds, IREE's and the drivers' among them.
#[test]
fn device_whose_descriptors_were_closed_fails_and_is_released() {
    let test = "limits::device_whose_descriptors_were_closed_fails_and_is_released";
    let Some(uri) = is_alone_for(test, &DEVICES) else { return };
    let program = Program::read(&uri);
    let device = Device::open(&uri).unwrap();
    work(&device, &program).unwrap();
    // Ends what hangs.
    unsafe { libc::alarm(300) };
    take_over(&descriptors());
    // What has no descriptors works on.
    if let Err(error) = work(&device, &program) {
        assert_ne!(error.code, Code::DeadlineExceeded, "{}", error.text);
        assert!(error.text.len() > 20, "{error:?}");
    }
    drop(device);
}

/// A program that is started while work is under way, as compilers and shells are by some programs.
#[test]
fn program_that_is_started_beside_work_inherits_no_descriptor() {
    let test = "limits::program_that_is_started_beside_work_inherits_no_descriptor";
    let Some(uri) = is_alone_for(test, &DEVICES) else { return };
    let inherited = || {
        let list = Command::new("ls").arg("/proc/self/fd").stdin(Stdio::null()).output().unwrap();
        assert!(list.status.success());
        String::from_utf8(list.stdout).unwrap().lines().count()
    };
    let before = inherited();
    let program = Program::read(&uri);
    let device = Device::open(&uri).unwrap();
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(&device, &program));
        let mut counts = vec![inherited()];
        while !working.is_finished() {
            counts.push(inherited());
        }
        working.join().unwrap().unwrap();
        counts.push(inherited());
        assert_eq!(counts, vec![before; counts.len()], "{uri}");
    });
}

/// Has every reading of the clock of days be an hour before or behind the last one.
const CLOCK: &str = r"
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long readings;
static long hour(void) { return __atomic_add_fetch(&readings, 1, __ATOMIC_RELAXED) % 2 ? 3600 : -3600; }
int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += hour();
  return result;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
  return 0;
}
";

/// Work and waits with a deadline go by a clock that nobody sets.
#[test]
fn deadlines_do_not_follow_the_clock_of_days() {
    let test = "limits::deadlines_do_not_follow_the_clock_of_days";
    const CLOCKLESS: &str = "HAL_DRIVER_CLOCK";
    if let Ok(uri) = std::env::var(CLOCKLESS) {
        let days = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!(days().abs_diff(days()) > 7000, "the clock jumps");
        let device = Device::open(&uri).unwrap();
        work(&device, &Program::read(&uri)).unwrap();
        let never = device.semaphore(0);
        let begin = Instant::now();
        assert_eq!(never.wait_for(1, 300).unwrap_err().code, Code::DeadlineExceeded);
        assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
        return;
    }
    let folder = std::env::temp_dir().join(format!("hal-clock-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, CLOCK).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(built.success());
    for uri in DEVICES {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", test]).stdin(Stdio::null());
        let ended = command.env(CLOCKLESS, uri).env("LD_PRELOAD", &library).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && text.contains("1 passed"), "{uri}: {}: {text}", ended.status);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
