// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The launcher of this process, found out by the environment variables that it has set.
//!
//! | launcher | sets |
//! |---|---|
//! | Open MPI's `mpirun` | `OMPI_COMM_WORLD_SIZE`, `OMPI_COMM_WORLD_LOCAL_SIZE` |
//! | MPICH's `mpiexec`, Slurm's `srun --mpi=pmi2` | `PMI_SIZE`, MPICH's also `MPI_LOCALNRANKS` |
//! | Slurm's `srun --mpi=pmix` | `PMIX_RANK`, `PMIX_NAMESPACE`; for their number, `SLURM_STEP_NUM_TASKS` |
//!
//! Where the sources of Slurm and of PMIx set them: `SLURM_STEP_NUM_TASKS` and `SLURM_STEP_TASKS_PER_NODE` in
//! `env_array_for_step` (`src/common/env.c`), which for a step of several parts (a heterogeneous job) has the
//! tasks of all; `SLURM_NODEID` in `setup_env` there; `PMI_SIZE` and `PMI_RANK` in `mpi_p_slurmstepd_task`
//! (`src/plugins/mpi/pmi2/mpi_pmi2.c`); `PMIX_NAMESPACE` and `PMIX_RANK` in `PMIx_server_setup_fork`
//! (openpmix, `src/server/pmix_server.c`), which Slurm's plug-in calls (`pmixp_lib_setup_fork`,
//! `src/plugins/mpi/pmix/pmixp_client.c`), and where a client asks for them (`src/client/pmix_client.c`).
//!
//! `srun` sets its own variables with any `--mpi`, also where no MPI would find the others; so they count
//! only beside those of PMIx. Open MPI's `mpirun` sets those of PMIx too, within a job of Slurm's perhaps:
//! its own come first.

use rustix::process::getppid;
use rustix::thread::sched_getaffinity;

/// The launcher of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    OpenMpi,
    /// By PMI: MPICH's, or Slurm's.
    Pmi,
    /// Slurm's, by PMIx, which Open MPI asks for.
    Pmix,
}

/// An environment.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

fn of_process() -> Environment<'static> {
    Environment(&|name| std::env::var(name).ok())
}

/// The launcher of this process, if it is one of MPI programs.
pub(crate) fn launcher() -> Option<Launcher> {
    of_process().launcher()
}

/// Whether a launcher of MPI programs started this process beside others.
pub(crate) fn is_launched() -> bool {
    let environment = of_process();
    environment.launcher().is_some() && environment.launched() != Some(1)
}

/// How many processes the launcher says that it has started.
pub(crate) fn launched() -> Option<u32> {
    of_process().launched()
}

/// How many of them are on this machine, as the launcher says; or all.
pub(crate) fn ranks_on_this_machine() -> usize {
    of_process().ranks_on_this_machine()
}

/// Whether MPI itself lets others have the processor where it finds that nothing has ended.
pub(crate) fn mpi_yields() -> bool {
    of_process().mpi_yields()
}

/// How many processors the ranks on this machine have together. A launcher may have bound each of them to
/// one: then they are those of its own process here, which is their parent.
pub(crate) fn processors_on_this_machine() -> usize {
    let allowed = |process| sched_getaffinity(process).map_or(0, |set| set.count() as usize);
    let launcher = getppid().map_or(0, |parent| allowed(Some(parent)));
    processors(allowed(None), launcher, std::thread::available_parallelism().map_or(1, usize::from))
}

/// How many processors there are for all ranks, where so many are allowed to this one and to its launcher,
/// and it can use so many at a time: that may be less than it is allowed.
fn processors(own: usize, launcher: usize, usable: usize) -> usize {
    if launcher > own { launcher } else { usable }
}

impl Environment<'_> {
    fn is_set(&self, name: &str) -> bool {
        self.0(name).is_some_and(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.0(name)?.trim().parse().ok()
    }

    /// Open MPI 4 does if its launcher says that there are more ranks than processors, or the user wants it
    /// (`ompi/runtime/ompi_mpi_params.c`). Of others nothing is known.
    fn mpi_yields(&self) -> bool {
        let says = |name| self.0(name).map(|value| ["1", "true"].contains(&value.trim()));
        let wanted = says("OMPI_MCA_mpi_yield_when_idle").or_else(|| says("OMPI_MCA_mpi_oversubscribe"));
        self.launcher() == Some(Launcher::OpenMpi) && wanted == Some(true)
    }

    fn launcher(&self) -> Option<Launcher> {
        let by_pmix =
            ["PMIX_RANK", "PMIX_NAMESPACE", "SLURM_STEP_NUM_TASKS"].iter().all(|name| self.is_set(name));
        if self.is_set("OMPI_COMM_WORLD_SIZE") {
            Some(Launcher::OpenMpi)
        } else if self.is_set("PMI_SIZE") {
            Some(Launcher::Pmi)
        } else {
            by_pmix.then_some(Launcher::Pmix)
        }
    }

    fn launched(&self) -> Option<u32> {
        self.number(match self.launcher()? {
            Launcher::OpenMpi => "OMPI_COMM_WORLD_SIZE",
            Launcher::Pmi => "PMI_SIZE",
            Launcher::Pmix => "SLURM_STEP_NUM_TASKS",
        })
    }

    fn ranks_on_this_machine(&self) -> usize {
        let here = match self.launcher() {
            Some(Launcher::OpenMpi) => self.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
            Some(Launcher::Pmi) => self.number("MPI_LOCALNRANKS").or_else(|| self.tasks_of_slurm()),
            Some(Launcher::Pmix) => self.tasks_of_slurm(),
            None => None,
        };
        here.or_else(|| self.launched()).and_then(|ranks| ranks.try_into().ok()).unwrap_or(1)
    }

    /// How many processes Slurm has started on this machine: of `4(x2),3` the third machine has 3.
    fn tasks_of_slurm(&self) -> Option<u32> {
        let (list, mut node) = (self.0("SLURM_STEP_TASKS_PER_NODE")?, self.number("SLURM_NODEID")?);
        for entry in list.split(',') {
            let (tasks, nodes) = entry.trim().trim_end_matches(')').split_once("(x").unwrap_or((entry, "1"));
            let nodes: u32 = nodes.parse().ok()?;
            if node < nodes {
                return tasks.trim().parse().ok();
            }
            node -= nodes;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an environment says: who launched, how many, and how many here.
    fn says(set: &[(&str, &str)]) -> (Option<Launcher>, Option<u32>, usize) {
        let find = |name: &str| {
            set.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        };
        let environment = Environment(&find);
        (environment.launcher(), environment.launched(), environment.ranks_on_this_machine())
    }

    #[test]
    fn open_mpi_yields_where_its_launcher_or_the_user_says_so() {
        let yields = |set: &[(&str, &str)]| {
            let find = |name: &str| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            Environment(&find).mpi_yields()
        };
        let (job, shares) = (("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_MCA_mpi_oversubscribe", "1"));
        let wants = |value| ("OMPI_MCA_mpi_yield_when_idle", value);
        assert!(yields(&[job, shares]) && yields(&[job, wants("true")]));
        assert!(!yields(&[job]) && !yields(&[job, ("OMPI_MCA_mpi_oversubscribe", "0")]));
        assert!(!yields(&[job, shares, wants("0")]) && !yields(&[("PMI_SIZE", "8"), shares]));
    }

    const SLURM: [(&str, &str); 4] = [
        ("SLURM_PROCID", "6"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_NUM_TASKS", "11"),
        ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
    ];
    const PMIX: [(&str, &str); 2] = [("PMIX_RANK", "6"), ("PMIX_NAMESPACE", "slurm.pmix.17.0")];

    #[test]
    fn processors_are_the_launchers_where_it_has_bound_its_ranks_and_else_those_that_can_be_used() {
        assert_eq!(processors(1, 8, 1), 8);
        assert_eq!(processors(8, 8, 2), 2, "a container may use less than it is allowed");
        assert_eq!(processors(8, 1, 8), 8, "the launcher is bound, and its ranks are not");
        assert_eq!(processors(8, 0, 8), 8, "the launcher has gone");
    }

    #[test]
    fn launcher_is_known_by_what_it_sets() {
        let open_mpi = [("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        assert_eq!(says(&open_mpi), (Some(Launcher::OpenMpi), Some(8), 2));
        let mpich = [("PMI_SIZE", "6"), ("MPI_LOCALNRANKS", "3")];
        assert_eq!(says(&mpich), (Some(Launcher::Pmi), Some(6), 3));
        assert_eq!(says(&[("PMI_SIZE", "6")]), (Some(Launcher::Pmi), Some(6), 6));
        assert_eq!(says(&[]), (None, None, 1));
        assert_eq!(says(&[("PMI_SIZE", "")]), (None, None, 1));
    }

    #[test]
    fn step_of_slurm_is_a_job_where_an_mpi_can_find_the_others() {
        assert_eq!(says(&[&SLURM[..], &PMIX].concat()), (Some(Launcher::Pmix), Some(11), 4));
        assert_eq!(says(&[&SLURM[..], &[("PMI_SIZE", "11")]].concat()), (Some(Launcher::Pmi), Some(11), 4));
        assert_eq!(says(&SLURM), (None, None, 1), "srun --mpi=none");
        for left_out in 0..2 {
            assert_eq!(says(&[&SLURM[..], &PMIX[left_out..=left_out]].concat()).0, None);
        }
        // No variable says how many there are.
        assert_eq!(says(&PMIX), (None, None, 1));
    }

    #[test]
    fn mpirun_within_a_step_of_slurm_is_the_launcher() {
        let within = [&SLURM[..], &PMIX, &[("OMPI_COMM_WORLD_SIZE", "2")]].concat();
        assert_eq!(says(&within), (Some(Launcher::OpenMpi), Some(2), 2));
    }

    #[test]
    fn processes_on_each_machine_are_those_that_slurm_says() {
        for (node, tasks) in [("0", 4), ("1", 4), ("2", 3), ("3", 11)] {
            let set: Vec<_> =
                SLURM.into_iter().filter(|(name, _)| *name != "SLURM_NODEID").chain(PMIX).collect();
            assert_eq!(says(&[&set[..], &[("SLURM_NODEID", node)]].concat()).2, tasks, "on machine {node}");
        }
    }
}
