// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask mutants`: wrong lines in the engine, and which test notices.
//!
//! A test suite proves what it would notice. This makes one line of the engine wrong at a time, in a copy under
//! `target/mutants/`, and runs the engine's tests on it. A mutant that no test notices is a line that no test needs: it
//! wants a test, or a reason in `hal-semaphore/mutants.toml`.
//!
//! `catalog.rs` makes the list of mutants from the engine's text as it is, with `tokens.rs` and `operators.rs`; `suite.rs`
//! has the copy and says which tests run and in which order; `process.rs` runs them; `report.rs` and `accepted.rs` tell.

mod accepted;
mod catalog;
mod operators;
mod process;
mod report;
mod suite;
mod tokens;

use crate::workspace;
use anyhow::{Context, Result, bail};
use catalog::{Files, Mutant};
use process::Verdict;
use report::Progress;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use suite::{CRATE, Copy, Stage};

/// How many are tried when nothing is said about it.
const SAMPLE: usize = 40;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Try so many, chosen at random but always the same for one seed [default: 40]
    #[arg(long, value_name = "N", conflicts_with = "all")]
    sample: Option<usize>,
    /// Which sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Try all
    #[arg(long)]
    all: bool,
    /// Only those in files whose path contains this; all of them, unless --sample is given
    #[arg(long, value_name = "PATTERN")]
    file: Vec<String>,
    /// Only those whose id begins so
    #[arg(long, value_name = "ID", conflicts_with_all = ["sample", "all"])]
    only: Vec<String>,
    /// Name them and try none
    #[arg(long)]
    list: bool,
    /// What survives the tests meets loom's models too, and weakened atomics are among the mutants
    #[arg(long)]
    loom: bool,
    /// Those that the list accepts as survivors too, which are left out otherwise
    #[arg(long)]
    accepted: bool,
    /// How many are tried at a time, each in a copy of its own [default: one for every two cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// How long each stage of the tests may take [default: by what it takes with nothing wrong]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// The tests noticed; which stage, and which test.
    Noticed(&'static str, String),
    /// The tests of this stage did not come to an end, which is noticed too.
    TimedOut(&'static str),
    Survived,
    NotCompiled,
}

/// A mutant that was tried.
#[derive(Clone, Debug)]
struct Tried {
    mutant: Mutant,
    fate: Fate,
    took: Duration,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let folder = workspace::root()?.join(CRATE);
    let files = catalog::read(&folder)?;
    let every = catalog::mutants(&files);
    let accepted = accepted::read(&folder.join("mutants.toml"))?;
    let stale: Vec<_> =
        accepted.iter().filter(|entry| !every.iter().any(|mutant| entry.covers(mutant))).collect();
    let is_accepted = |mutant: &Mutant| accepted.iter().any(|entry| entry.covers(mutant));
    let chosen = choose(
        every.into_iter().filter(|mutant| options.accepted || !is_accepted(mutant)).collect(),
        options,
    );
    if chosen.is_empty() {
        bail!("there is no such mutant; `cargo xtask mutants --list --all` names them");
    }
    if options.list {
        chosen.iter().for_each(|mutant| println!("{}", report::line(mutant)));
        println!("{} mutants", chosen.len());
        return Ok(true);
    }
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    let tried = try_all(&files, chosen, options)?;
    report::end(&tried, &accepted, &stale)
}

/// The mutants that the options ask for, by place.
fn choose(mut mutants: Vec<Mutant>, options: &Options) -> Vec<Mutant> {
    let Options { file, only, .. } = options;
    mutants.retain(|mutant| {
        (options.loom || !mutant.is_for_loom())
            && (file.is_empty() || file.iter().any(|pattern| mutant.file.contains(pattern)))
            && (only.is_empty() || only.iter().any(|id| mutant.id.starts_with(id)))
    });
    let named = options.all || !only.is_empty() || !file.is_empty();
    if let Some(count) = options.sample.or((!named).then_some(SAMPLE)) {
        mutants = catalog::sample(mutants, count, options.seed);
    }
    mutants
}

/// Tries the mutants, several at a time.
fn try_all(files: &Files, mutants: Vec<Mutant>, options: &Options) -> Result<Vec<Tried>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.unwrap_or(cores / 2).clamp(1, mutants.len());
    let folder = workspace::target()?.join("mutants");
    println!("{} mutants, {jobs} at a time; building the tests in {}", mutants.len(), folder.display());
    let progress = Mutex::new(Progress::new(mutants.len()));
    let waiting = Mutex::new(VecDeque::from(mutants));
    let work = |job: usize| {
        let worker = Worker::new(files, &folder.join(job.to_string()), (cores / jobs).max(1), options)?;
        held(&progress).begin();
        loop {
            // In a statement of its own, so that the lock is not held while the mutant is tried.
            let next = held(&waiting).pop_front();
            let Some(mutant) = next else { return Ok(()) };
            let tried = worker.attempt(mutant)?;
            held(&progress).add(tried)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=jobs).map(|job| scope.spawn(move || work(job))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread that tried mutants panicked"),
        })
    })?;
    Ok(progress.into_inner().unwrap_or_else(PoisonError::into_inner).tried)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread tries mutants with.
struct Worker<'a> {
    files: &'a Files,
    copy: Copy,
    /// What is run, and how long it may take, once that is known.
    stages: Vec<(Stage, OnceCell<Duration>)>,
    seed: u64,
    /// How long a stage may take, if that was said.
    limit: Option<Duration>,
}

impl<'a> Worker<'a> {
    /// Makes the copy and runs the first tests with nothing wrong.
    fn new(files: &'a Files, folder: &Path, threads: usize, options: &Options) -> Result<Self> {
        let copy = Copy::new(folder, threads)?;
        let stages = suite::stages(options.loom).into_iter().map(|stage| (stage, OnceCell::new())).collect();
        let limit = options.timeout.map(Duration::from_secs);
        let worker = Self { files, copy, stages, seed: options.seed, limit };
        if let Some((stage, limit)) = worker.stages.first() {
            let _ = limit.set(worker.measure(stage)?);
        }
        Ok(worker)
    }

    /// Runs a stage with nothing wrong. How long it may take with something wrong.
    fn measure(&self, stage: &Stage) -> Result<Duration> {
        let took = self.copy.baseline(stage, self.seed)?;
        // Other work on the machine may take most of it for a while; a mutant that hangs costs this.
        let limit = self.limit.unwrap_or(took * 5 + Duration::from_secs(5));
        let (name, took) = (stage.name, took.as_secs_f64());
        println!("{name}: {took:.1} s with nothing wrong, at most {:.0} s", limit.as_secs_f64());
        Ok(limit)
    }

    /// Makes the line wrong, runs the tests until one notices, and makes it right again.
    fn attempt(&self, mutant: Mutant) -> Result<Tried> {
        let begin = Instant::now();
        let right = self.files.get(&mutant.file).context("a mutant of no file")?;
        let fate = self.fate(&mutant, right);
        self.copy.write(&mutant.file, right)?;
        Ok(Tried { mutant, fate: fate?, took: begin.elapsed() })
    }

    fn fate(&self, mutant: &Mutant, right: &str) -> Result<Fate> {
        let wrong = mutant.mutation.apply(right);
        for (stage, limit) in &self.stages {
            let limit = match limit.get() {
                Some(limit) => *limit,
                None => {
                    // No mutant has come so far yet. Most samples never do, so what it costs is found out here.
                    self.copy.write(&mutant.file, right)?;
                    let measured = self.measure(stage)?;
                    *limit.get_or_init(|| measured)
                }
            };
            self.copy.write(&mutant.file, &wrong)?;
            match self.copy.run(stage, self.seed, limit)? {
                None => return Ok(Fate::NotCompiled),
                Some(Verdict::Passed) => {}
                Some(Verdict::Failed(test)) => return Ok(Fate::Noticed(stage.name, test)),
                Some(Verdict::TimedOut) => return Ok(Fate::TimedOut(stage.name)),
            }
        }
        Ok(Fate::Survived)
    }
}
