// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A process of its own for a test, and system calls that fail in it, as in a sandbox or at a limit.

use std::process::{Command, Stdio};

/// The test's name in its own process.
const ALONE: &str = "HAL_DRIVER_ALONE";

/// Runs a test in its own process. True in that process.
pub(crate) fn is_alone(test: &str) -> bool {
    is_alone_for(test, &[""]).is_some()
}

/// Runs a test once for each of these cases, in a process of its own each. In that process, returns the case.
pub(crate) fn is_alone_for(test: &str, cases: &[&str]) -> Option<String> {
    if let Ok(case) = std::env::var(ALONE) {
        return Some(case);
    }
    for case in cases {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(ALONE, case).stdin(Stdio::null());
        let ended = command.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && text.contains("1 passed"), "{case}: {}: {text}", ended.status);
    }
    None
}

/// Has these system calls fail with an error number, on every thread of this process and for good.
pub(crate) fn forbid(calls: &[libc::c_long], errno: i32) {
    filter(calls, libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap(), 0);
}

/// Has one call fail, with an error number that is chosen each time by its first argument, while the thread that calls
/// waits.
pub(crate) fn forbid_by(call: libc::c_long, choose: impl Fn(i32) -> i32 + Send + 'static) {
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let listener = filter(&[call], libc::SECCOMP_RET_USER_NOTIF, flags);
    std::thread::spawn(move || {
        loop {
            let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // The thread that called may have ended meanwhile.
            if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) } < 0 {
                continue;
            }
            // The kernel reads the lower half of a register.
            let errno = choose((notice.data.args[0] & 0xffff_ffff) as u32 as i32);
            let mut answer: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
            (answer.id, answer.error) = (notice.id, -errno);
            unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
        }
    });
}

/// Has every thread of this process be answered so by the kernel when it makes one of these system calls. Returns the
/// listener's descriptor, if the flags ask for one.
fn filter(calls: &[libc::c_long], answer: u32, flags: libc::c_ulong) -> i32 {
    // Loads the call's number, compares it with each, and answers.
    let statement = |code: u32, k: u32| libc::sock_filter { code: code.try_into().unwrap(), jt: 0, jf: 0, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (number, call) in calls.iter().enumerate() {
        let to_answer = u8::try_from(calls.len() - number).unwrap();
        let compare = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (*call).try_into().unwrap());
        filter.push(libc::sock_filter { jt: to_answer, ..compare });
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    filter.push(statement(libc::BPF_RET | libc::BPF_K, answer));
    let program = libc::sock_fprog { len: filter.len().try_into().unwrap(), filter: filter.as_mut_ptr() };
    let outcome = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC | flags);
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)
    };
    assert!(outcome >= 0, "{}", std::io::Error::last_os_error());
    outcome.try_into().unwrap()
}

/// Has no thread of this process start another one, as at a limit of threads.
pub(crate) fn forbid_threads() {
    forbid(&[libc::SYS_clone3, libc::SYS_clone], libc::EAGAIN);
}

/// Limits a resource of this process.
pub(crate) fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit.rlim_cur = value;
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Takes this thread's rights of an administrator, if it has them.
pub(crate) fn lose_capabilities() {
    const VERSION_3: u32 = 0x2008_0522;
    let (header, none) = ([VERSION_3, 0], [0_u32; 6]);
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) }, 0);
}

/// Does to descriptors what a program does that closes those of others and opens its own: the numbers are of another
/// file, which cannot be written. They are not just closed, as a build of Rust's library for tests ends the process
/// that does so.
pub(crate) fn take_over(descriptors: &[i32]) {
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    for &descriptor in descriptors {
        assert_eq!(unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) }, descriptor);
    }
}

/// The descriptors of this process, but for the three that each process has.
pub(crate) fn descriptors() -> Vec<i32> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    let mut numbers: Vec<i32> = names.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
    // The one of the listing is closed by now.
    numbers.retain(|&number| number > 2 && unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
    numbers.sort_unstable();
    numbers
}
