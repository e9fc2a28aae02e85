// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The rank of this process in its job, from its launcher's environment variables.
//!
//! All processes of a job have one command line. So a device's URI may contain `{rank}`, the rank in the whole job,
//! and `{local_rank}`, the rank among the processes of the same machine. A channel provider that gives the process
//! another rank than its launcher does is refused.

use crate::ffi::status::{Result, invalid};
use hal_semaphore::{Code, Failure};
use std::borrow::Cow;

/// The rank in the job: Open MPI, MPICH and others by PMI, PMIx, Slurm.
const RANK: &[&str] = &["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];

/// The rank on the machine: Open MPI, MPICH and Intel, Slurm.
const LOCAL_RANK: &[&str] = &["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// The rank in a job and the number of ranks, by launcher. One launcher may have been started by another.
const JOBS: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
];

/// Refuses a channel provider's rank if a launcher of this process contradicts it and none confirms it. An MPI
/// library that does not match the launcher takes each process for one that was started alone, and every rank would
/// compute with its own data only.
pub(crate) fn check_place(place: (u32, u32)) -> Result {
    check_place_with(place, &|variable| std::env::var(variable).ok())
}

fn check_place_with((rank, count): (u32, u32), lookup: &dyn Fn(&str) -> Option<String>) -> Result {
    let said = |&(rank, count): &(&'static str, &'static str)| {
        Some(((rank, count), (number(&[rank], lookup)?, number(&[count], lookup)?)))
    };
    let said: Vec<_> = JOBS.iter().filter_map(said).collect();
    if said.iter().any(|&(_, place)| place == (rank, count)) {
        return Ok(());
    }
    let Some(&((of_rank, of_count), (launched, all))) = said.first() else { return Ok(()) };
    let message = format!(
        "the channel provider says that this process is rank {rank} of {count}, but its launcher says rank \
         {launched} of {all} ({of_rank}, {of_count}): the provider has loaded another MPI than the launcher's; \
         start the job with the launcher of that MPI (IREE's tools load Open MPI: on Debian and Ubuntu, \
         mpirun.openmpi of openmpi-bin), or give the device no provider to use the launcher's own MPI"
    );
    Err(Failure::new(Code::FailedPrecondition, message))
}

/// The number in the first of these variables that is set.
fn number(variables: &[&str], lookup: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    variables.iter().find_map(|variable| lookup(variable)?.trim().parse().ok())
}

/// A text of a URI with the ranks in place of their placeholders.
pub(crate) fn expand(text: &str) -> Result<Cow<'_, str>> {
    expand_with(text, &|variable| std::env::var(variable).ok())
}

fn expand_with<'a>(text: &'a str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Cow<'a, str>> {
    let mut expanded = Cow::Borrowed(text);
    for (name, variables) in [("{rank}", RANK), ("{local_rank}", LOCAL_RANK)] {
        if !expanded.contains(name) {
            continue;
        }
        let Some(rank) = number(variables, lookup) else {
            let message = format!(
                "{text:?} names {name}, but the rank of this process is unknown: none of {} is set; start it \
                 with mpirun or srun, or write a number instead",
                variables.join(", ")
            );
            return Err(invalid(message));
        };
        expanded = Cow::Owned(expanded.replace(name, &rank.to_string()));
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| set.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn ranks_are_put_in_the_place_of_their_names() {
        let open_mpi = with(&[("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")]);
        assert_eq!(expand_with("emulated/{rank}", &open_mpi).unwrap(), "emulated/5");
        assert_eq!(expand_with("{local_rank}/{rank}", &open_mpi).unwrap(), "1/5");
        let slurm = with(&[("SLURM_PROCID", "12"), ("SLURM_LOCALID", "4")]);
        assert_eq!(expand_with("{local_rank}", &slurm).unwrap(), "4");
        assert_eq!(expand_with("{rank}", &with(&[("PMI_RANK", "3")])).unwrap(), "3");
    }

    #[test]
    fn place_that_a_launcher_says_too_is_taken_and_any_other_is_refused() {
        let alone = with(&[]);
        assert!(check_place_with((3, 8), &alone).is_ok());
        let mpich = with(&[("PMI_RANK", "2"), ("PMI_SIZE", "4")]);
        assert!(check_place_with((2, 4), &mpich).is_ok());
        for wrong in [(0, 1), (2, 5), (1, 4)] {
            let refused = check_place_with(wrong, &mpich).unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition);
            let says = format!("rank {} of {}", wrong.0, wrong.1);
            for text in [says.as_str(), "rank 2 of 4", "PMI_RANK", "PMI_SIZE", "mpirun.openmpi"] {
                assert!(refused.message().contains(text), "{refused} does not say {text}");
            }
        }
        const SLURM: &[(&str, &str)] = &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert!(check_place_with((0, 1), &with(SLURM)).is_err());
        // A job of Open MPI whose daemons were started by a job of Slurm.
        let within = |name: &str| match name {
            "OMPI_COMM_WORLD_RANK" => Some("5".to_owned()),
            "OMPI_COMM_WORLD_SIZE" => Some("6".to_owned()),
            "SLURM_PROCID" | "SLURM_STEP_NUM_TASKS" => Some("1".to_owned()),
            _ => None,
        };
        assert!(check_place_with((5, 6), &within).is_ok());
        // A batch script, which is no step of its own.
        assert!(check_place_with((0, 1), &with(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "9")])).is_ok());
    }

    #[test]
    fn nothing_else_is_touched_and_what_is_not_known_is_refused() {
        let nowhere = with(&[]);
        assert!(matches!(expand_with("emulated/{slot}", &nowhere), Ok(Cow::Borrowed("emulated/{slot}"))));
        let refused = expand_with("emulated/{rank}", &nowhere).unwrap_err();
        assert!(refused.message().contains("OMPI_COMM_WORLD_RANK"), "{refused}");
        assert!(refused.message().contains("mpirun"), "{refused}");
    }
}
