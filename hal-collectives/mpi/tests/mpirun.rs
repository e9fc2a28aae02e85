// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Jobs of several processes: each scenario of `examples/ranks.rs`, launched by whatever `mpirun` the machine has. A machine
//! without one fails here with what to install.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The program that is a rank, which cargo builds beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples/ranks");
    assert!(
        program.is_file(),
        "{} is missing; cargo builds it with the tests of its package",
        program.display()
    );
    program
}

/// Launches a job. Its processes may be more than there are processors.
fn launch(ranks: usize, scenario: &str, options: &[&str]) -> Output {
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]).args(options);
    mpirun.arg(program()).arg(scenario);
    match mpirun.output() {
        Ok(output) => output,
        Err(error) => panic!(
            "mpirun cannot be started: {error}; install an MPI (on Debian and Ubuntu: apt-get install openmpi-bin)"
        ),
    }
}

/// Runs a scenario that every rank ends well.
fn ends_well(ranks: usize, scenario: &str) {
    let output = launch(ranks, scenario, &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario} on {ranks} ranks: {}\n{text}\n{errors}", output.status);
    let told = text.lines().filter(|line| line.ends_with(&format!("{scenario} ok"))).count();
    assert_eq!(told, ranks, "{text}\n{errors}");
}

#[test]
fn every_kind_works_between_processes() {
    for ranks in [1, 2, 3, 4, 5] {
        ends_well(ranks, "kinds");
    }
}

#[test]
fn operations_meet_in_whatever_order_they_start() {
    ends_well(3, "orders");
}

#[test]
fn operations_of_many_groups_do_not_meet() {
    ends_well(3, "groups");
}

#[test]
fn groups_that_are_let_go_and_joined_again_go_on_counting() {
    ends_well(3, "again");
}

#[test]
fn whatever_does_not_fit_is_noticed_whoever_it_is() {
    ends_well(3, "misfits");
}

#[test]
fn groups_are_split() {
    ends_well(4, "split");
}

#[test]
fn what_does_not_fit_fails_every_process_with_one_message() {
    ends_well(2, "misfit");
    ends_well(4, "misfit");
}

#[test]
fn who_gives_up_and_who_does_not_come_fail_every_process_in_time() {
    ends_well(3, "gives-up");
    ends_well(3, "late");
}

/// A launcher ends a job whose process died; it can be told not to, and then those that are left see it themselves.
#[test]
fn a_rank_that_is_killed_hangs_nobody() {
    for options in [&[][..], &["--enable-recovery"]] {
        let begin = Instant::now();
        let output = launch(3, "killed", options);
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?} with {options:?}", begin.elapsed());
        if options.is_empty() {
            assert!(!output.status.success());
        } else {
            let text = String::from_utf8_lossy(&output.stdout);
            let told = text.lines().filter(|line| line.ends_with("killed ok")).count();
            assert_eq!(told, 2, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
