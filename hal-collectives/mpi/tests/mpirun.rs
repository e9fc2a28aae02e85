// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Jobs of several processes: each scenario of `examples/ranks.rs`, launched by whatever `mpirun` the machine
//! has, and by MPICH's launcher. A machine without one of them fails here with what to install.
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

/// What launches a job, with its options. The MPI that a rank loads is the one of whatever launched it.
#[derive(Clone, Copy)]
struct Launcher {
    program: &'static str,
    options: &'static [&'static str],
    package: &'static str,
}

/// Whatever is the machine's MPI: Open MPI where nothing else was chosen. Processes may be more than processors.
const MPI: Launcher = Launcher {
    program: "mpirun",
    options: &["--allow-run-as-root", "--oversubscribe"],
    package: "openmpi-bin",
};

const MPICH: Launcher = Launcher { program: "mpiexec.mpich", options: &[], package: "mpich" };

/// The scenario is a word, or two: what happens, and when.
fn command(launcher: Launcher, ranks: usize, scenario: &str, options: &[&str]) -> Command {
    let mut job = Command::new(launcher.program);
    job.args(launcher.options).args(options).args(["-n", &ranks.to_string()]);
    job.arg(program()).args(scenario.split(' '));
    job
}

fn launch(launcher: Launcher, ranks: usize, scenario: &str, options: &[&str]) -> Output {
    match command(launcher, ranks, scenario, options).output() {
        Ok(output) => output,
        Err(error) => panic!(
            "{} cannot be started: {error}; install it (on Debian and Ubuntu: apt-get install {})",
            launcher.program, launcher.package
        ),
    }
}

/// Runs a scenario that every rank ends well.
fn ends_well(ranks: usize, scenario: &str) {
    ends_well_by(MPI, ranks, scenario, &[]);
}

fn ends_well_by(launcher: Launcher, ranks: usize, scenario: &str, options: &[&str]) {
    let output = launch(launcher, ranks, scenario, options);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario} on {ranks} ranks: {}\n{text}\n{errors}", output.status);
    let word = scenario.split(' ').next().unwrap();
    let told = text.lines().filter(|line| line.ends_with(&format!("{word} ok"))).count();
    assert_eq!(told, ranks, "{text}\n{errors}");
}

#[test]
fn mpich_carries_the_same() {
    for (ranks, scenario) in [
        (1, "kinds"),
        (3, "kinds"),
        (3, "orders"),
        (3, "groups"),
        (2, "pieces"),
        (3, "again"),
        (4, "split"),
        (3, "mismatches"),
        (3, "gives-up"),
        (3, "late"),
    ] {
        ends_well_by(MPICH, ranks, scenario, &[]);
    }
}

/// A process that is told of another MPI than the one that started it says what to install.
#[test]
fn library_of_another_mpi_is_refused() {
    ends_well_by(MPICH, 2, "wrong", &["-env", "OMPI_COMM_WORLD_SIZE", "2"]);
}

/// A folder in which each name of an MPI's library is a file that is none, so that nothing is found by it.
fn folder_without_mpi() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("without-mpi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libmpi.so.40", "libmpi.so", "libmpich.so.12", "libmpi.so.12", "libmpich.so"] {
        std::fs::write(folder.join(name), "").unwrap();
    }
    folder
}

#[test]
fn process_without_any_mpi_library_is_told_what_to_install() {
    let folder = folder_without_mpi();
    for (launcher, package) in [
        (&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")][..], "apt-get install libopenmpi3"),
        (&[("PMI_SIZE", "2"), ("PMI_RANK", "0")], "apt-get install libmpich12"),
        (
            &[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "slurm.pmix.1.0"), ("SLURM_STEP_NUM_TASKS", "2")],
            "Slurm's launcher with PMIx",
        ),
        (&[], "apt-get install openmpi-bin"),
    ] {
        let mut alone = Command::new(program());
        alone.args(["missing", package]).env("LD_LIBRARY_PATH", &folder).envs(launcher.iter().copied());
        let output = alone.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.ends_with(b"missing ok\n"), "{errors}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A program that was started by no launcher, and one whose environment tells of the other MPI.
#[test]
fn library_that_the_program_has_loaded_is_the_one_that_is_used() {
    for (library, environment) in [
        ("libmpi.so.40", None),
        ("libmpi.so.40", Some(("PMI_SIZE", "1"))),
        ("libmpich.so.12", None),
        ("libmpich.so.12", Some(("OMPI_COMM_WORLD_SIZE", "1"))),
    ] {
        let mut alone = Command::new(program());
        alone.args(["loaded", library]).envs(environment);
        let output = alone.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{library}, {environment:?}: {errors}");
    }
}

#[test]
fn every_kind_works_between_processes() {
    for ranks in [1, 2, 3, 4, 5] {
        ends_well(ranks, "kinds");
    }
}

#[test]
fn every_kind_works_in_pieces() {
    for ranks in [1, 2, 3] {
        ends_well(ranks, "pieces");
    }
}

/// A launcher ends the job when a rank ends without MPI, so ranks that have done their part wait for one that goes on.
#[test]
fn rank_that_goes_on_after_the_last_collective_is_waited_for_at_the_end() {
    ends_well(2, "lags");
}

/// Some MPIs end without going on with what has begun.
#[test]
fn rank_that_ends_with_its_channel_ends_what_it_has_started_before() {
    ends_well(3, "exits");
    ends_well_by(MPICH, 3, "exits", &[]);
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
fn operations_that_do_not_fit_are_noticed_on_any_rank() {
    ends_well(3, "mismatches");
}

#[test]
fn each_rank_that_gives_up_at_each_step_ends_the_group_for_all() {
    ends_well(3, "faults");
}

/// Below `MPI_THREAD_MULTIPLE` nothing else is done while a communicator is made.
#[test]
fn program_that_has_begun_mpi_without_threads_splits_and_fails_as_any_other() {
    for (ranks, scenario) in [
        (4, "split lent"),
        (3, "groups lent"),
        (3, "faults lent"),
        (3, "gives-up lent"),
        (3, "late lent"),
        (8, "split lent"),
    ] {
        ends_well(ranks, scenario);
        ends_well_by(MPICH, ranks, scenario, &[]);
    }
}

#[test]
fn mpi_that_the_program_has_begun_is_used_and_left_to_it() {
    ends_well(2, "program");
    ends_well_by(MPICH, 2, "program", &[]);
}

/// Any other call would end the job.
#[test]
fn mpi_that_the_program_has_ended_before_its_first_group_is_refused() {
    ends_well(2, "over");
    ends_well_by(MPICH, 2, "over", &[]);
}

#[test]
fn collectives_of_the_program_on_all_processes_and_those_of_groups_do_not_mix() {
    ends_well(3, "beside");
    // More ranks than processors take half a minute here: each waits for the others without sleeping.
    ends_well_by(MPICH, 2, "beside", &[]);
}

#[test]
fn messages_of_the_program_and_those_of_collectives_do_not_mix_whatever_tags_it_uses() {
    ends_well(3, "tags");
    ends_well_by(MPICH, 3, "tags", &[]);
}

#[test]
fn program_receives_with_any_tag_beside_groups_that_are_made_after_the_first_collective() {
    ends_well(3, "any");
    ends_well_by(MPICH, 3, "any", &[]);
}

/// By each way that a message's bytes are read when the receiver comes to them.
#[test]
fn rank_that_was_stopped_does_not_take_what_was_written_when_the_sender_had_given_up() {
    ends_well(2, "stopped");
    ends_well_by(MPI, 2, "stopped", &["--mca", "btl", "self,tcp"]);
    ends_well_by(MPICH, 2, "stopped", &[]);
}

/// MPI has no room for the notice before the rank goes on, and the bytes of the message are read from its
/// sender's memory then.
#[test]
fn rank_that_was_stopped_does_not_take_what_was_written_where_the_notice_waits_behind_many_letters() {
    ends_well(2, "flooded");
    ends_well_by(MPI, 2, "flooded", &["--mca", "btl", "self,tcp"]);
    ends_well_by(MPICH, 2, "flooded", &[]);
}

/// Where the library copies through shared memory in parts, as it does in a container that forbids more, the
/// sender has to look as well.
#[test]
fn what_a_rank_sends_goes_on_its_way_though_the_rank_waits_for_nothing() {
    ends_well_by(MPI, 2, "leaves", &["--mca", "btl_vader_single_copy_mechanism", "none"]);
    ends_well_by(MPICH, 2, "leaves", &[]);
}

/// Whatever stops and goes on meanwhile, for who sends signals to the ranks.
#[test]
#[ignore = "takes a minute; run by hand"]
fn random_programs_have_the_right_bytes() {
    ends_well(3, "random");
    ends_well_by(MPICH, 3, "random", &[]);
}

#[test]
fn process_forked_from_a_rank_ends_without_ending_mpi_and_is_refused() {
    ends_well(2, "forks");
    ends_well_by(MPICH, 2, "forks", &[]);
}

#[test]
fn groups_are_split() {
    ends_well(4, "split");
}

#[test]
fn what_does_not_fit_fails_every_process_with_one_message() {
    ends_well(2, "mismatch");
    ends_well(4, "mismatch");
}

#[test]
fn ranks_that_give_up_or_do_not_come_fail_every_process_in_time() {
    ends_well(3, "gives-up");
    ends_well(3, "late");
}

/// A rank that goes on after it was stopped has its MPI write to memory of an operation that has failed elsewhere.
#[test]
fn mpi_writes_to_no_memory_that_the_program_has_back() {
    ends_well(2, "writes");
    ends_well_by(MPI, 2, "writes", &["--mca", "btl", "self,tcp"]);
    ends_well_by(MPICH, 2, "writes", &[]);
}

/// It is a rank of the group whose split is not over yet elsewhere, and it may be the one that others ask.
#[test]
fn rank_that_is_in_no_part_ends_mpi_while_the_others_make_theirs() {
    for who in ["0", "1", "3"] {
        for turn in 0..3 {
            for launcher in [MPI, MPICH] {
                ends_well_by(launcher, 4, &format!("apart {who}"), &[]);
            }
            println!("rank {who}, turn {turn}");
        }
    }
}

#[test]
fn rank_that_stands_still_while_a_communicator_is_made_holds_others_up_for_their_time() {
    for delay in ["0", "100", "1000", "100 lent"] {
        for launcher in [MPI, MPICH] {
            ends_well_by(launcher, 3, &format!("paused {delay}"), &[]);
            ends_well_by(launcher, 3, &format!("overdue {delay}"), &[]);
        }
    }
}

/// A launcher ends a job whose process died; it can be told not to, and then those that are left see it themselves.
#[test]
fn rank_that_is_killed_leaves_no_other_hanging() {
    let making = [0, 300, 3000].map(|delay| format!("making {delay}"));
    let steps = ["joined", "entered", "started", "compared", "split", "again"].map(str::to_owned);
    for step in steps.iter().chain(&making) {
        for (launcher, options) in [(MPI, &[][..]), (MPI, &["--enable-recovery"]), (MPICH, &[])] {
            let begin = Instant::now();
            let output = launch(launcher, 3, &format!("killed {step}"), options);
            assert!(
                begin.elapsed() < Duration::from_secs(300),
                "{step}: {:?} with {options:?}",
                begin.elapsed()
            );
            if options.is_empty() {
                assert!(!output.status.success());
            } else {
                let text = String::from_utf8_lossy(&output.stdout);
                let told = text.lines().filter(|line| line.ends_with("killed ok")).count();
                assert_eq!(told, 2, "{step}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }
}

/// One rank is lost in a random way at a random step of a random program, and each of the others checks what it is
/// promised. By hand: `SEED=7 mpirun --enable-recovery -n 3 ranks hostile`.
#[test]
fn ranks_keep_what_they_are_promised_whichever_way_a_random_one_is_lost() {
    for seed in 1..=4 {
        let ranks = 2 + seed % 3;
        let options = ["--enable-recovery", "-x", "SEED"];
        let begin = Instant::now();
        let mut job = command(MPI, ranks, "hostile", &options);
        let output = job.env("SEED", seed.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let told = text.lines().filter(|line| line.ends_with("hostile ok")).count();
        let says = format!(
            "seed {seed}, {:?}: {text}\n{}",
            begin.elapsed(),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(told + 1 >= ranks && begin.elapsed() < Duration::from_secs(300), "{says}");
    }
}
