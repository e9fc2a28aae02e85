// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask mutants`: wrong lines in the engine, and which test notices.
//!
//! A test suite proves what it would notice. This makes one line of the engine wrong at a time, in a copy under
//! `target/mutants/`, and runs the engine's tests on it. A mutant that no test notices is a line that no test needs: it
//! wants a test, or a reason in `hal-semaphore/mutants.toml`.
//!
//! `catalog.rs` makes the list of mutants from the engine's text as it is, with `tokens.rs` and `operators.rs`; `together.rs`
//! puts as many as it can into one build, `suite.rs` has the copy and says which tests run and in which order; `process.rs`
//! runs them; `report.rs` and `accepted.rs` tell.

mod accepted;
mod catalog;
mod operators;
mod process;
mod report;
mod suite;
mod together;
mod tokens;

use crate::workspace;
use anyhow::{Context, Result, bail};
use catalog::{Files, Mutant};
use process::Verdict;
use report::Progress;
use std::cell::OnceCell;
use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
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
    /// Each in a build of its own, as are those with --loom and those that can be built no other way
    #[arg(long)]
    apart: bool,
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

/// Tries the mutants, several at a time: first those that are in one build, then the others.
fn try_all(files: &Files, mutants: Vec<Mutant>, options: &Options) -> Result<Vec<Tried>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.unwrap_or(cores / 2).clamp(1, mutants.len());
    let folder = workspace::target()?.join("mutants");
    println!("{} mutants, {jobs} at a time; building the tests in {}", mutants.len(), folder.display());
    let progress = Mutex::new(Progress::new(mutants.len()));
    let threads = (cores / jobs).max(1);
    let copies: Vec<Copy> =
        (1..=jobs).map(|job| Copy::new(&folder.join(job.to_string()), threads)).collect::<Result<_>>()?;
    let (mut together, mut texts) = (HashSet::new(), files.clone());
    if let Some(copy) = copies.first().filter(|_| !options.loom && !options.apart) {
        (together, texts) = put_together(copy, files, &mutants)?;
        println!("{} of them are in one build", together.len());
    }
    let (first, second): (Vec<_>, Vec<_>) =
        mutants.into_iter().enumerate().partition(|(number, _)| together.contains(number));
    for (mutants, texts, in_one) in [(first, &texts, true), (second, files, false)] {
        let waiting = Mutex::new(VecDeque::from(mutants));
        if held(&waiting).is_empty() {
            continue;
        }
        let work = |copy: &Copy| {
            let worker = Worker::new(texts, copy, options)?;
            held(&progress).begin();
            loop {
                // In a statement of its own, so that the lock is not held while the mutant is tried.
                let next = held(&waiting).pop_front();
                let Some((number, mutant)) = next else { return Ok(()) };
                let tried = worker.attempt(mutant, in_one.then_some(number))?;
                held(&progress).add(tried)?;
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = copies.iter().map(|copy| scope.spawn(move || work(copy))).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread that tried mutants panicked"),
            })
        })?;
    }
    Ok(progress.into_inner().unwrap_or_else(PoisonError::into_inner).tried)
}

/// The numbers of the mutants that can be in one build, and the files with them.
fn put_together(copy: &Copy, files: &Files, mutants: &[Mutant]) -> Result<(HashSet<usize>, Files)> {
    let mut left_out = HashSet::new();
    loop {
        let (mut inside, mut texts, mut rendered) = (HashSet::new(), Files::new(), Vec::new());
        for (file, text) in files {
            let of_file = mutants.iter().enumerate().filter(|(_, mutant)| mutant.file == *file);
            let numbered: Vec<_> = of_file
                .filter(|(number, _)| !left_out.contains(number))
                .map(|(number, mutant)| (number, &mutant.mutation))
                .collect();
            let made = together::render(text, &numbered).with_context(|| file.clone())?;
            let switch = if file == "src/lib.rs" { together::SWITCH } else { "" };
            let text = format!("{}{switch}", made.text);
            copy.write(file, &text)?;
            texts.insert(file.clone(), text);
            inside.extend(made.mutants.iter().copied());
            rendered.push((file, made));
        }
        let objections = copy.objections()?;
        if objections.is_empty() {
            return Ok((inside, texts));
        }
        let before = left_out.len();
        for (file, at) in &objections {
            if let Some((_, made)) = rendered.iter().find(|(name, _)| *name == file) {
                left_out.extend(made.blamed(*at));
            }
        }
        if left_out.len() == before {
            bail!("the compiler objects to mutants where there are none: {objections:?}");
        }
        println!("{} mutants have to be built on their own", left_out.len());
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread tries mutants with.
struct Worker<'a> {
    /// The crate with nothing wrong that is not asked for.
    files: &'a Files,
    copy: &'a Copy,
    /// What is run, how long it may take, and the program with every wrong line in it, once these are known.
    stages: Vec<(Stage, OnceCell<Duration>, OnceCell<PathBuf>)>,
    seed: u64,
    /// How long a stage may take, if that was said.
    limit: Option<Duration>,
}

impl<'a> Worker<'a> {
    /// Brings the copy up to date and runs the first tests with nothing wrong.
    fn new(files: &'a Files, copy: &'a Copy, options: &Options) -> Result<Self> {
        for (file, text) in files {
            copy.write(file, text)?;
        }
        let stages = suite::stages(options.loom).into_iter();
        let stages = stages.map(|stage| (stage, OnceCell::new(), OnceCell::new())).collect();
        let limit = options.timeout.map(Duration::from_secs);
        let worker = Self { files, copy, stages, seed: options.seed, limit };
        if let Some((stage, limit, _)) = worker.stages.first() {
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

    /// Runs the tests with the line wrong until one notices. A mutant with a number is in the build.
    fn attempt(&self, mutant: Mutant, number: Option<usize>) -> Result<Tried> {
        let begin = Instant::now();
        let fate = match number {
            Some(number) => self.fate_in_build(number),
            None => {
                let right = self.files.get(&mutant.file).context("a mutant of no file")?;
                let fate = self.fate(&mutant, right);
                self.copy.write(&mutant.file, right)?;
                fate
            }
        };
        Ok(Tried { mutant, fate: fate?, took: begin.elapsed() })
    }

    /// How long a stage may take. Most samples never come to the later ones, so what it takes is found out when one does.
    fn limit(&self, stage: &Stage, known: &OnceCell<Duration>) -> Result<Duration> {
        match known.get() {
            Some(limit) => Ok(*limit),
            None => {
                let measured = self.measure(stage)?;
                Ok(*known.get_or_init(|| measured))
            }
        }
    }

    fn fate_in_build(&self, number: usize) -> Result<Fate> {
        for (stage, limit, program) in &self.stages {
            let limit = self.limit(stage, limit)?;
            let program = match program.get() {
                Some(program) => program,
                None => {
                    let built = self.copy.program(stage)?;
                    program.get_or_init(|| built)
                }
            };
            let verdict = self.copy.test(stage, program, self.seed, limit, Some(number))?;
            if let Some(fate) = noticed(stage, verdict) {
                return Ok(fate);
            }
        }
        Ok(Fate::Survived)
    }

    fn fate(&self, mutant: &Mutant, right: &str) -> Result<Fate> {
        let wrong = mutant.mutation.apply(right);
        for (stage, limit, _) in &self.stages {
            self.copy.write(&mutant.file, right)?;
            let limit = self.limit(stage, limit)?;
            self.copy.write(&mutant.file, &wrong)?;
            let Some(verdict) = self.copy.run(stage, self.seed, limit)? else {
                return Ok(Fate::NotCompiled);
            };
            if let Some(fate) = noticed(stage, verdict) {
                return Ok(fate);
            }
        }
        Ok(Fate::Survived)
    }
}

/// What becomes of a mutant that a stage has met; nothing if it goes on.
fn noticed(stage: &Stage, verdict: Verdict) -> Option<Fate> {
    match verdict {
        Verdict::Passed => None,
        Verdict::Failed(test) => Some(Fate::Noticed(stage.name, test)),
        Verdict::TimedOut => Some(Fate::TimedOut(stage.name)),
    }
}
