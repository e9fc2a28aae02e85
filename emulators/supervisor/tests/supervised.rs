// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Programs that know nothing of this project, on emulated cards: in C over the kernel's header, and in Python.
//!
//! Each test runs the supervisor's own binary, as a user does. Where the system does not let a process be
//! supervised, they fail, and the supervisor's message says what to allow.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The command that runs programs with cards.
const SUPERVISOR: &str = env!("CARGO_BIN_EXE_with-cards");

/// Both generations.
const BOTH: [&str; 2] = ["gaudi1", "gaudi2"];

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// Runs a program, and says how it ended.
fn run(uri: &str, program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(SUPERVISOR);
    command.args(["--report", uri, "--"]).arg(program).args(arguments);
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{error}", output.status)
}

/// Runs a program that must end well, and gives what it and the supervisor said.
fn well(uri: &str, program: &Path, arguments: &[&str]) -> String {
    let output = run(uri, program, arguments);
    let text = text(&output);
    assert!(output.status.success(), "{uri} {} {arguments:?}: {text}", program.display());
    text
}

/// Runs one of the programs in Python.
fn python(uri: &str, name: &str) -> String {
    python_with(uri, name, &[])
}

fn python_with(uri: &str, name: &str, arguments: &[&str]) -> String {
    let script = programs().join("cards.py");
    let words = [&[script.to_str().unwrap(), name], arguments].concat();
    let text = well(uri, Path::new("python3"), &words);
    assert!(text.contains(&format!("{name} ok")), "{text}");
    text
}

/// On both generations, with more parameters.
fn both(name: &str, more: &str) -> Vec<String> {
    BOTH.iter()
        .map(|generation| python(&format!("gaudi://emulated?generation={generation}&{more}"), name))
        .collect()
}

/// The program in C: over the kernel's own header where the system has it, and over the layouts in our words.
fn compiled(own_layouts: bool) -> &'static Path {
    static BUILT: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    BUILT[usize::from(own_layouts)].get_or_init(|| {
        let name = if own_layouts { "card-static" } else { "card" };
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut compiler = Command::new("gcc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]);
        if own_layouts {
            // Linked in the way in which nothing can be put between a program and the system.
            compiler.args(["-static", "-DOWN_LAYOUTS"]);
        }
        compiler.arg(programs().join("card.c")).arg("-o").arg(&target);
        let output = compiler.output().expect("gcc should be installed");
        assert!(output.status.success(), "{}", text(&output));
        target
    })
}

#[test]
fn c_program_over_the_kernels_header_runs_unmodified() {
    for own_layouts in [false, true] {
        let program = compiled(own_layouts);
        let abi = Command::new(program).arg("--abi").output().unwrap();
        let abi = String::from_utf8(abi.stdout).unwrap();
        for generation in BOTH {
            let uri = format!("gaudi://emulated?generation={generation}&abi={}", abi.trim());
            let text = well(&uri, program, &["/dev/accel/accel1"]);
            assert!(text.contains("bytes went down and up"), "{text}");
            assert!(text.contains("card 1: 1 opens, 2 submissions"), "{text}");
            assert!(text.contains("0 resets, 0 kills, 0 left at closes"), "{text}");
        }
    }
}

#[test]
fn file_system_shows_cards_and_everything_that_it_had() {
    for text in both("files", "") {
        assert!(text.contains("0 resets"), "{text}");
    }
}

/// Libraries for PCI and for devices find cards by links, numbers and descriptors that only name files.
#[test]
fn devices_are_found_on_their_bus_in_their_class_and_by_number() {
    python_with("gaudi://emulated", "tree", &["habanalabs", "accel/accel{}", "0x1da3"]);
    python_with("qaic://emulated?cards=2", "tree", &["qaic", "accel/accel{}", "0x17cb"]);
    let tenstorrent = ["tenstorrent", "tenstorrent/tenstorrent!{}", "0x1e52"];
    python_with("tenstorrent://emulated?cards=2", "tree", &tenstorrent);
}

/// Files of which no read and no write can be foreseen: the machine answers each.
#[test]
fn words_of_a_card_are_read_and_written_through_debugfs() {
    both("debugs", "");
}

/// Registers are mapped: each access, by whatever instruction, of threads and children, is answered by the card.
#[test]
fn windows_of_a_card_are_mapped_and_every_access_reaches_the_card() {
    for flags in [&["-O0"][..], &["-O2", "-static"], &["-O3", "-march=native"]] {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("window{}", flags.concat()));
        let mut compiler = Command::new("gcc");
        compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
        let built = compiler.arg(programs().join("window.c")).arg("-o").arg(&target).output().unwrap();
        assert!(built.status.success(), "{}", text(&built));
        let output = run("tenstorrent://emulated", &target, &["/dev/tenstorrent/0"]);
        // It kills itself at the end.
        assert_eq!(output.status.code(), Some(128 + 9), "{flags:?} {}", text(&output));
        assert!(text(&output).contains("windows ok"), "{}", text(&output));
        assert!(text(&output).contains("card 0: 2 opens, 1 resets"), "{}", text(&output));
    }
}

#[test]
fn tenstorrent_cards_answer_as_their_driver_does() {
    for name in ["lends", "lent", "holders"] {
        python("tenstorrent://emulated?cards=2", name);
    }
    python_with("tenstorrent://emulated?cards=2", "telemetry", &["p150a"]);
    python_with("tenstorrent://emulated?cards=2&board=n150", "telemetry", &["n150"]);
}

/// Requests of the vendor's open library and tests that no other program here makes.
#[test]
fn programs_like_the_vendors_tests_find_their_devices() {
    python("gaudi://emulated?abi=old", "numbers");
    both("doors", "");
    both("asks", "");
    both("late", "");
    python("gaudi://emulated?dram=6g", "full");
    python("gaudi://emulated", "decides");
}

#[test]
fn python_program_moves_bytes_and_meets_the_kernels_rules() {
    both("transfer", "");
}

#[test]
fn threads_forks_and_duplicates_share_a_card() {
    both("threads", "");
}

#[test]
fn signal_ends_a_wait_as_a_kernel_would() {
    both("interrupted", "fault=hang:1");
}

#[test]
fn no_request_is_lost_or_repeated_under_a_storm_of_signals() {
    for text in both("storm", "") {
        assert!(text.contains("300 submissions"), "{text}");
    }
}

#[test]
fn card_is_opened_as_soon_as_a_close_has_returned() {
    for text in both("again", "fault=hang:20") {
        assert!(text.contains("30 opens"), "{text}");
    }
}

#[test]
fn mappings_take_no_descriptors() {
    let script = programs().join("cards.py");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        r#"ulimit -n 200 && exec "$0" "$@""#,
        SUPERVISOR,
        "gaudi://emulated",
        "--",
        "python3",
    ]);
    let output = command.arg(script).arg("many").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn program_that_closes_after_a_reset_notification_is_spared() {
    for text in both("told", "fault=hang:1") {
        let late = "with-cards: card 0: submission 1 has not ended within";
        assert!(text.contains("1 resets, 0 kills") && text.contains(late), "{text}");
        assert!(text.contains("(rule cs-timeout: cs_timedout, cs_handle_tdr)"), "{text}");
    }
}

#[test]
fn program_without_notification_is_killed_by_a_reset() {
    let script = programs().join("cards.py");
    for generation in BOTH {
        let uri = format!("gaudi://emulated?generation={generation}&fault=reset:1");
        let output = run(&uri, Path::new("python3"), &[script.to_str().unwrap(), "untold"]);
        assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output));
        let text = text(&output);
        let killed = "with-cards: card 0: the process that opened the card is killed";
        // At once, and once more at the end.
        for said in [
            "1 resets, 1 kills",
            "with-cards: card 0: a fault resets it",
            killed,
            "device_kill_open_processes",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}

/// The driver finds the process by the thread that opened the card. Systems before 6.9 have no handle of a
/// thread, so there the supervisor has the process's.
#[test]
fn program_whose_opening_thread_has_ended_is_not_killed() {
    let me = rustix::process::getpid();
    let thread = rustix::process::PidfdFlags::from_bits_retain(0o200);
    let script = programs().join("cards.py");
    for generation in BOTH {
        let uri = format!("gaudi://emulated?generation={generation}&fault=reset:1&speed=20");
        let output = run(&uri, Path::new("python3"), &[script.to_str().unwrap(), "left"]);
        let text = text(&output);
        if rustix::process::pidfd_open(me, thread).is_ok() {
            assert!(output.status.success() && text.contains("1 resets, 0 kills"), "{text}");
        } else {
            assert!(text.contains("1 resets, 1 kills"), "{text}");
        }
    }
}

#[test]
fn times_of_interrupts_are_mapped_like_any_buffer() {
    let text = python("gaudi://emulated?generation=gaudi2", "times");
    assert!(text.contains("0 resets"), "{text}");
}

#[test]
fn processes_with_a_card_each_share_memory_and_one_may_be_killed() {
    for text in both("share", "register=on") {
        assert_eq!(text.matches("0 kills").count(), 2, "{text}");
    }
}

#[test]
fn buffer_objects_of_another_driver_are_mapped_by_its_rules() {
    let text = python("qaic://emulated", "objects");
    assert!(text.contains("card 0: 2 opens"), "{text}");
}

#[test]
fn resources_that_a_killed_program_has_set_apart_come_back() {
    python("qaic://emulated", "groups");
}

#[test]
fn killed_programs_with_random_requests_leave_a_card_usable() {
    for more in ["", "counter=int&segment=4k"] {
        let text = python(&format!("qaic://emulated?{more}"), "attack");
        assert!(text.contains(" 0 resets, 0 users left"), "{text}");
    }
}

#[test]
fn damaged_programs_leave_a_card_whole_for_the_next_one() {
    for generation in BOTH {
        python_with(&format!("gaudi://emulated?generation={generation}"), "damaged", &["gaudi"]);
    }
    python_with("tenstorrent://emulated", "damaged", &["tenstorrent"]);
    let text = python_with("qaic://emulated", "damaged", &["qaic"]);
    assert!(text.contains(" 0 resets, 0 users left"), "{text}");
}

/// Runs a program that waits for what never ends: the supervisor, and the program's number.
fn asleep() -> (std::process::Child, i32) {
    let mut command = Command::new(SUPERVISOR);
    command.args(["gaudi://emulated?fault=hang:1", "--", "python3"]);
    command.arg(programs().join("cards.py")).arg("asleep").stdout(Stdio::piped());
    let mut supervisor = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let number = line.trim().strip_prefix("waiting ").and_then(|number| number.parse().ok());
    (supervisor, number.unwrap_or_else(|| panic!("it said {line:?}")))
}

fn soon(mut process: std::process::Child) -> std::process::ExitStatus {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < until, "it has not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(process: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(process).unwrap(), signal).unwrap();
}

#[test]
fn program_that_is_killed_in_a_wait_leaves_no_waiter() {
    let (supervisor, program) = asleep();
    kill(program, rustix::process::Signal::KILL);
    assert_eq!(soon(supervisor).code(), Some(128 + 9));
}

#[test]
fn supervisor_that_is_ended_ends_its_program() {
    let (supervisor, program) = asleep();
    kill(i32::try_from(supervisor.id()).unwrap(), rustix::process::Signal::TERM);
    assert_eq!(soon(supervisor).signal(), Some(15));
    let until = Instant::now() + Duration::from_secs(60);
    while std::fs::read_to_string(format!("/proc/{program}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < until, "the program goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn status_is_the_programs_own() {
    let shell =
        |script: &str| run("gaudi://emulated?cards=1", Path::new("sh"), &["-c", script]).status.code();
    assert_eq!(shell("exit 7"), Some(7));
    assert_eq!(shell("kill -TERM $$"), Some(128 + 15));
    // The program's children continue, and are served, after its own end.
    assert_eq!(shell("(sleep 0.2; test -c /dev/accel/accel0 || kill -KILL $PPID) & exit 3"), Some(3));
    let missing = run("gaudi://emulated", Path::new("/no/such/program"), &[]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing).contains("there is no program /no/such/program"));
    let folder = run("gaudi://emulated", Path::new("/tmp"), &[]);
    assert_eq!(folder.status.code(), Some(126), "{}", text(&folder));
    for wrong in [&["gaudi://0", "--", "true"][..], &["gaudi://emulated"], &["--colour"], &[]] {
        assert_eq!(
            Command::new(SUPERVISOR).args(wrong).output().unwrap().status.code(),
            Some(125),
            "{wrong:?}"
        );
    }
}

#[test]
fn supervision_needs_no_rights() {
    if !rustix::process::geteuid().is_root() {
        // Then every other test has shown it.
        return;
    }
    let folder = std::env::temp_dir().join(format!("with-cards-unprivileged-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let copies = [Path::new(SUPERVISOR), compiled(true)].map(|program| {
        let copy = folder.join(program.file_name().unwrap());
        std::fs::copy(program, &copy).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
        copy
    });
    let mut command = Command::new(&copies[0]);
    command.args(["gaudi://emulated", "--"]).arg(&copies[1]).current_dir("/");
    let output = command.uid(65_534).gid(65_534).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn forbidden_seccomp_is_reported_with_the_remedy() {
    for (errno, advice) in
        [(libc::EPERM, "--security-opt seccomp=unconfined"), (libc::ENOSYS, "Linux 5.14 or newer")]
    {
        let mut command = Command::new(SUPERVISOR);
        command.args(["gaudi://emulated", "--", "true"]);
        // SAFETY: between fork and exec this makes two system calls on what is on its stack.
        unsafe { command.pre_exec(move || refuse_seccomp(errno)) };
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", text(&output));
        assert!(text(&output).contains(advice), "{}", text(&output));
    }
    let nested = run("gaudi://emulated", Path::new(SUPERVISOR), &["gaudi://emulated", "--", "true"]);
    assert_eq!(nested.status.code(), Some(125));
    assert!(text(&nested).contains("do not nest"), "{}", text(&nested));
}

/// Makes this process and its children get an error from the system call that filters are put on with.
fn refuse_seccomp(errno: i32) -> std::io::Result<()> {
    let statement = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    let number = u32::try_from(libc::SYS_seccomp).unwrap_or(0);
    let filter = [
        statement(0x20, 0, 0, 0),
        statement(0x15, 0, 1, number),
        statement(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
        statement(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the filter lives through the calls, which copy it.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn cost_of_a_supervised_request_is_printed() {
    let output = Command::new(SUPERVISOR).args(["--cost", "gaudi://emulated?cards=1"]).output().unwrap();
    let text = text(&output);
    assert!(output.status.success() && text.contains("a request of a card"), "{text}");
    assert!(!text.contains("failed"), "{text}");
}
