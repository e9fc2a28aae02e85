// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the program that launched this process says of it, in variables of the environment.
//!
//! A job of many processes has one command line for all. So a device's URI may name the rank of its process: `{rank}` is
//! the rank in the whole job, `{local_rank}` the rank among the processes on the same machine.

use crate::ffi::status::{Result, invalid};
use std::borrow::Cow;

/// The rank in the job: Open MPI, MPICH and others by PMI, PMIx, Slurm.
const RANK: &[&str] = &["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];

/// The rank on the machine: Open MPI, MPICH and Intel, Slurm.
const LOCAL_RANK: &[&str] = &["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// The number that the first of some variables has.
fn number(variables: &[&str], lookup: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    variables.iter().find_map(|variable| lookup(variable)?.trim().parse().ok())
}

/// A text of a URI with the ranks in the place of their names.
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
                "{text:?} names {name}, and nothing says which rank this process is: none of {} is set; start it with \
                 mpirun or srun, or put a number there",
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
    fn nothing_else_is_touched_and_what_is_not_known_is_refused() {
        let nowhere = with(&[]);
        assert!(matches!(expand_with("emulated/{slot}", &nowhere), Ok(Cow::Borrowed("emulated/{slot}"))));
        let refused = expand_with("emulated/{rank}", &nowhere).unwrap_err();
        assert!(refused.message().contains("OMPI_COMM_WORLD_RANK"), "{refused}");
        assert!(refused.message().contains("mpirun"), "{refused}");
    }
}
