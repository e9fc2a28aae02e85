// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask mutants`: wrong lines in a crate, the engine unless another one is named, and which test notices.
//!
//! A test suite proves what it would notice. This makes one line of the crate wrong at a time, in a copy under
//! `target/mutants/`, and runs the crate's tests on it. A mutant that no test notices is a line that no test needs: it
//! wants a test, or a reason in the crate's `mutants.toml`.
//!
//! `catalog.rs` makes the list of mutants from the crate's text as it is, with `tokens.rs` and `operators.rs`; `together.rs`
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
use report::{Progress, Record};
use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use suite::{Copy, How, Objection, Stage, Subject};
use together::{Blamed, Rendered};

/// How many are tried when nothing is said about it.
const SAMPLE: usize = 40;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Try this many mutants (one wrong line each), chosen at random but always the same for one seed [default: 40]
    #[arg(long, value_name = "N", conflicts_with = "all")]
    sample: Option<usize>,
    /// Which sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Try all
    #[arg(long)]
    all: bool,
    /// The folder of the crate whose lines are made wrong
    #[arg(long = "crate", value_name = "FOLDER", default_value = suite::ENGINE)]
    subject: String,
    /// Only mutants of files whose path contains this; all of them, unless --sample is given. Of several, in this order
    #[arg(long, value_name = "PATTERN")]
    file: Vec<String>,
    /// Without the tests whose name contains this
    #[arg(long, value_name = "PATTERN")]
    skip: Vec<String>,
    /// Add each result to this file, and try none that it has one of
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Only the first tests, which are quick: what survives them may be noticed by the others
    #[arg(long)]
    brief: bool,
    /// Only mutants whose id begins with this
    #[arg(long, value_name = "ID", conflicts_with_all = ["sample", "all"])]
    only: Vec<String>,
    /// Name the mutants and try none
    #[arg(long)]
    list: bool,
    /// Try what survives the tests on loom's models too, and also weaker orders of atomics
    #[arg(long)]
    loom: bool,
    /// Also those that mutants.toml accepts as survivors, which are left out otherwise
    #[arg(long)]
    accepted: bool,
    /// Build each mutant on its own, not all behind a switch in one build (as with --loom)
    #[arg(long)]
    apart: bool,
    /// Leave out mutants that have to be built on their own
    #[arg(long, conflicts_with_all = ["apart", "loom"])]
    together: bool,
    /// How many are tried at a time, each in a copy of its own [default: one for every two cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// How much processor time each stage of the tests may take [default: by what it takes with nothing wrong]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// The tests noticed; which stage, and which test.
    Noticed(String, String),
    /// The tests of this stage did not come to an end, which is noticed too.
    TimedOut(String),
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
    let subject = Subject::new(&options.subject)?;
    let folder = workspace::root()?.join(&subject.folder);
    let files = catalog::read(&folder)?;
    let every = catalog::mutants(&files);
    let accepted = accepted::read(&folder.join("mutants.toml"))?;
    accepted::check(&accepted, &every).with_context(|| format!("in {}/mutants.toml", subject.folder))?;
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
    let tried = try_all(&subject, &files, chosen, options)?;
    report::end(&subject.folder, &tried, &accepted)
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
    mutants.sort_by_key(|mutant| file.iter().position(|pattern| mutant.file.contains(pattern)));
    mutants
}

/// Tries the mutants, several at a time: first those that are in one build, then the others.
fn try_all(subject: &Subject, files: &Files, mutants: Vec<Mutant>, options: &Options) -> Result<Vec<Tried>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.unwrap_or(cores / 2).clamp(1, mutants.len());
    let folder = workspace::target()?.join("mutants");
    println!("{} mutants, {jobs} at a time; building the tests in {}", mutants.len(), folder.display());
    let threads = (cores / jobs).max(1);
    let copies: Vec<Copy> = (1..=jobs)
        .map(|job| Copy::new(subject, &folder.join(job.to_string()), threads, files))
        .collect::<Result<_>>()?;
    let (mut together, mut texts) = (HashSet::new(), files.clone());
    if let Some(copy) = copies.first().filter(|_| !options.loom && !options.apart) {
        (together, texts) = put_together(copy, files, &mutants)?;
        println!("{} of them are in one build", together.len());
    }
    // Those that were tried are in the build as well, so that it is the same each time.
    let record = Record::open(options.resume.as_deref())?;
    let is_wanted = |number: &usize| !options.together || together.contains(number);
    let wanted = mutants.into_iter().enumerate().filter(|(number, _)| is_wanted(number));
    let (before, mutants): (Vec<_>, Vec<_>) =
        wanted.partition(|(_, mutant)| record.fate(&mutant.id).is_some());
    let before = before.into_iter().filter_map(|(_, mutant)| {
        Some(Tried { fate: record.fate(&mutant.id)?, mutant, took: Duration::ZERO })
    });
    let progress = Mutex::new(Progress::new(mutants.len(), before.collect(), record));
    let (first, second): (Vec<_>, Vec<_>) =
        mutants.into_iter().partition(|(number, _)| together.contains(number));
    for (mutants, texts, in_one) in [(first, &texts, true), (second, files, false)] {
        let waiting = Mutex::new(VecDeque::from(mutants));
        if held(&waiting).is_empty() {
            continue;
        }
        let work = |copy: &Copy| {
            let worker = Worker::new(subject, texts, copy, options, in_one)?;
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

/// What cannot be in the build of all mutants.
#[derive(Default)]
struct LeftOut {
    /// Mutants, by number.
    mutants: HashSet<usize>,
    /// Pieces around which there can be no braces, by file.
    pieces: HashMap<String, HashSet<Range<usize>>>,
}

impl LeftOut {
    fn len(&self) -> usize {
        self.mutants.len() + self.pieces.values().map(HashSet::len).sum::<usize>()
    }

    /// Leaves out what the compiler objects to.
    fn add(&mut self, file: &str, blamed: &Blamed) {
        match blamed {
            Blamed::Mutant(number) => {
                self.mutants.insert(*number);
            }
            Blamed::Piece(piece) => {
                self.pieces.entry(file.to_owned()).or_default().insert(piece.clone());
            }
        }
    }

    /// A line for each, to be read again.
    fn text(&self) -> String {
        let mutants = self.mutants.iter().map(|number| format!("{number}\n"));
        let pieces = self.pieces.iter().flat_map(|(file, pieces)| {
            pieces.iter().map(move |piece| format!("{} {} {file}\n", piece.start, piece.end))
        });
        mutants.chain(pieces).collect()
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let mut parts = line.splitn(3, ' ');
        let first = parts.next()?.parse().ok()?;
        match parts.next() {
            None => self.mutants.insert(first),
            Some(end) => {
                let piece = first..end.parse().ok()?;
                self.pieces.entry(parts.next()?.to_owned()).or_default().insert(piece)
            }
        };
        Some(())
    }
}

/// The numbers of the mutants that can be in one build, and the files with them.
fn put_together(copy: &Copy, files: &Files, mutants: &[Mutant]) -> Result<(HashSet<usize>, Files)> {
    // What the compiler said the last time it says again.
    let known = copy.folder().join("left-out");
    let of = format!("{:016x}\n", catalog::fingerprint(files, mutants));
    let mut left_out = LeftOut::default();
    if let Ok(text) = std::fs::read_to_string(&known)
        && let Some(lines) = text.strip_prefix(&of)
    {
        for line in lines.lines() {
            // A line that means nothing is one thing more for the compiler to say.
            let _ = left_out.read(line);
        }
    }
    let mut said = left_out.len();
    loop {
        let (mut inside, mut texts, mut rendered) = (HashSet::new(), Files::new(), HashMap::new());
        for (file, text) in files {
            let of_file = mutants.iter().enumerate().filter(|(_, mutant)| mutant.file == *file);
            let numbered: Vec<_> = of_file
                .filter(|(number, _)| !left_out.mutants.contains(number))
                .map(|(number, mutant)| (number, &mutant.mutation))
                .collect();
            let given_up = left_out.pieces.get(file).cloned().unwrap_or_default();
            let made = together::render(text, &numbered, &given_up).with_context(|| file.clone())?;
            let switch = if catalog::is_root(file) { together::SWITCH } else { "" };
            let text = format!("{}{switch}", made.text);
            copy.write(file, &text)?;
            texts.insert(file.clone(), text);
            inside.extend(made.mutants.iter().copied());
            rendered.insert(file.as_str(), made);
        }
        let objections = copy.objections()?;
        if objections.is_empty() {
            std::fs::write(&known, of + &left_out.text())
                .with_context(|| format!("writing {}", known.display()))?;
            return Ok((inside, texts));
        }
        let mut blamed = HashSet::new();
        for objection in &objections {
            let Some(made) = rendered.get(objection.file.as_str()) else { continue };
            blamed
                .extend(blame(made, objection, mutants).into_iter().map(|it| (objection.file.as_str(), it)));
        }
        blamed.iter().for_each(|(file, blamed)| left_out.add(file, blamed));
        if left_out.len() == said {
            bail!("the compiler objects to mutants where there are none: {objections:?}");
        }
        said = left_out.len();
        println!(
            "{} mutants have to be built on their own, {} go to larger pieces",
            left_out.mutants.len(),
            said - left_out.mutants.len()
        );
    }
}

/// What is to blame for an objection: the mutant that stands there; else those without which what it is about would have
/// another value; else the piece that stands there; else the mutants between the places that it is about without which something
/// does not end there; else all between them; else all of the file.
fn blame(made: &Rendered, objection: &Objection, mutants: &[Mutant]) -> Vec<Blamed> {
    let found = objection.at.iter().find_map(|at| made.blamed(at.start));
    if let Some(Blamed::Mutant(number)) = found {
        return vec![Blamed::Mutant(*number)];
    }
    let mutant = |number: &usize| mutants.get(*number);
    if let Some(name) = objection.at.first().and_then(|at| made.text.get(at.clone())) {
        let assigns = |number: &&usize| mutant(number).is_some_and(|mutant| mutant.drops_assignment_to(name));
        let assigned: Vec<_> = made.mutants.iter().filter(assigns).copied().map(Blamed::Mutant).collect();
        if !assigned.is_empty() {
            return assigned;
        }
    }
    if let Some(piece) = found {
        return vec![piece.clone()];
    }
    let start = objection.at.iter().map(|at| at.start).min().unwrap_or_default();
    let end = objection.at.iter().map(|at| at.end).max().unwrap_or_default();
    let between = made.within(&(start..end));
    let mut blamed = between.clone();
    blamed.retain(|number| mutant(number).is_some_and(Mutant::drops_an_end));
    for others in [&between, &made.mutants] {
        if blamed.is_empty() {
            blamed.clone_from(others);
        }
    }
    blamed.into_iter().map(Blamed::Mutant).collect()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is run on a mutant.
struct Run {
    stage: Stage,
    /// How much processor time it may take, once that is known.
    limit: OnceCell<Duration>,
    /// The programs with every wrong line in them, once they are built.
    programs: OnceCell<Vec<PathBuf>>,
}

/// What one thread tries mutants with.
struct Worker<'a> {
    /// The crate with nothing wrong that is not asked for.
    files: &'a Files,
    copy: &'a Copy,
    options: &'a Options,
    runs: Vec<Run>,
    likely: RefCell<Likely>,
}

/// The tests of the first stage that noticed mutants, which are likely to notice the next ones.
#[derive(Default)]
struct Likely {
    /// By file, the last ones that did: neighbours are noticed by the same tests.
    last: HashMap<String, VecDeque<String>>,
    /// How often each did.
    often: HashMap<String, usize>,
}

/// How many of each kind are run first.
const LIKELY: usize = 8;

impl Likely {
    fn add(&mut self, file: &str, test: &str) {
        let last = self.last.entry(file.to_owned()).or_default();
        last.retain(|other| other != test);
        last.push_front(test.to_owned());
        last.truncate(LIKELY);
        *self.often.entry(test.to_owned()).or_default() += 1;
    }

    /// Those that are worth running before the others are.
    fn tests(&self, file: &str) -> Vec<String> {
        let mut tests: Vec<String> = self.last.get(file).into_iter().flatten().cloned().collect();
        let mut often: Vec<_> = self.often.iter().collect();
        often.sort_by_key(|&(test, count)| (std::cmp::Reverse(count), test));
        let others = often.into_iter().map(|(test, _)| test).take(LIKELY);
        let others: Vec<_> = others.filter(|test| !tests.contains(test)).cloned().collect();
        tests.extend(others);
        tests
    }
}

/// The shortest limit of a test run, in case other programs load the machine: a mutant that hangs costs this at least.
const LEAST_LIMIT: Duration = Duration::from_secs(10);

impl<'a> Worker<'a> {
    /// Brings the copy up to date and runs the first tests with nothing wrong.
    fn new(
        subject: &Subject,
        files: &'a Files,
        copy: &'a Copy,
        options: &'a Options,
        in_one: bool,
    ) -> Result<Self> {
        for (file, text) in files {
            copy.write(file, text)?;
        }
        let mut stages = suite::stages(subject, options.loom);
        if options.brief {
            stages.truncate(1);
        }
        let run = |stage: Stage| Run {
            stage: if in_one { stage } else { stage.apart() },
            limit: OnceCell::new(),
            programs: OnceCell::new(),
        };
        let runs = stages.into_iter().map(run).collect();
        let worker = Self { files, copy, options, runs, likely: RefCell::default() };
        if let Some(first) = worker.runs.first() {
            worker.limit(first)?;
        }
        Ok(worker)
    }

    fn how(&self, limit: Duration, wrong_line: Option<usize>) -> How<'a> {
        How { seed: self.options.seed, skipped: &self.options.skip, named: &[], limit, wrong_line }
    }

    /// Runs a stage with nothing wrong. How long it may take with something wrong.
    fn measure(&self, stage: &Stage) -> Result<Duration> {
        let used = self.copy.baseline(stage, self.how(Duration::from_secs(600), None))?;
        let limit = self.options.timeout.map(Duration::from_secs);
        let limit = limit.unwrap_or((used * 5).max(LEAST_LIMIT));
        let (name, used) = (stage.name, used.as_secs_f64());
        println!("{name}: {used:.1} s of processor time with nothing wrong, at most {} s", limit.as_secs());
        Ok(limit)
    }

    /// Runs the tests with the line wrong until one notices. A mutant with a number is in the build.
    fn attempt(&self, mutant: Mutant, number: Option<usize>) -> Result<Tried> {
        let begin = Instant::now();
        let fate = match number {
            Some(number) => self.fate_in_build(&mutant.file, number),
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
    fn limit(&self, run: &Run) -> Result<Duration> {
        match run.limit.get() {
            Some(limit) => Ok(*limit),
            None => {
                let measured = self.measure(&run.stage)?;
                Ok(*run.limit.get_or_init(|| measured))
            }
        }
    }

    fn programs<'b>(&self, run: &'b Run) -> Result<&'b [PathBuf]> {
        match run.programs.get() {
            Some(programs) => Ok(programs),
            None => {
                let built = self.copy.programs(&run.stage)?;
                Ok(run.programs.get_or_init(|| built))
            }
        }
    }

    fn fate_in_build(&self, file: &str, number: usize) -> Result<Fate> {
        let likely = self.likely.borrow().tests(file);
        if let Some(first) = self.runs.first().filter(|_| !likely.is_empty()) {
            let how = How { named: &likely, ..self.how(self.limit(first)?, Some(number)) };
            let (verdict, _) = self.copy.test(&first.stage, self.programs(first)?, how)?;
            if let Some(fate) = self.noticed(file, first, verdict) {
                return Ok(fate);
            }
        }
        for run in &self.runs {
            let how = self.how(self.limit(run)?, Some(number));
            let (verdict, _) = self.copy.test(&run.stage, self.programs(run)?, how)?;
            if let Some(fate) = self.noticed(file, run, verdict) {
                return Ok(fate);
            }
        }
        Ok(Fate::Survived)
    }

    fn fate(&self, mutant: &Mutant, right: &str) -> Result<Fate> {
        let wrong = mutant.mutation.apply(right);
        for run in &self.runs {
            self.copy.write(&mutant.file, right)?;
            let limit = self.limit(run)?;
            self.copy.write(&mutant.file, &wrong)?;
            let Some(verdict) = self.copy.run(&run.stage, self.how(limit, None))? else {
                return Ok(Fate::NotCompiled);
            };
            if let Some(fate) = self.noticed(&mutant.file, run, verdict) {
                return Ok(fate);
            }
        }
        Ok(Fate::Survived)
    }

    /// What becomes of a mutant that a stage has met; nothing if it goes on.
    fn noticed(&self, file: &str, run: &Run, verdict: Verdict) -> Option<Fate> {
        let stage = run.stage.name.to_owned();
        match verdict {
            Verdict::Passed => None,
            Verdict::Failed(test) => {
                let is_first = self.runs.first().is_some_and(|first| std::ptr::eq(first, run));
                if is_first && !test.contains(' ') {
                    self.likely.borrow_mut().add(file, &test);
                }
                Some(Fate::Noticed(stage, test))
            }
            Verdict::TimedOut => Some(Fate::TimedOut(stage)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that is changed takes its reason with it, or has none any more.
    #[test]
    fn each_entry_of_each_list_is_about_a_line_that_is_there() {
        let (mut files, mut lists) = (Vec::new(), 0);
        workspace::files_below(&workspace::root().unwrap(), &mut files);
        for list in files.iter().filter(|file| file.ends_with("mutants.toml")) {
            let every = catalog::mutants(&catalog::read(list.parent().unwrap()).unwrap());
            let checked = accepted::check(&accepted::read(list).unwrap(), &every);
            assert!(checked.is_ok(), "{}: {:#}", list.display(), checked.unwrap_err());
            lists += 1;
        }
        assert!(lists > 0, "there is no list");
    }

    #[test]
    fn tests_that_noticed_neighbours_or_most_come_first() {
        let mut likely = Likely::default();
        for test in ["often", "often", "once"] {
            likely.add("a", test);
        }
        likely.add("b", "other");
        assert_eq!(likely.tests("a"), ["once", "often", "other"]);
        assert_eq!(likely.tests("b"), ["other", "often", "once"]);
        assert_eq!(likely.tests("c"), ["often", "once", "other"]);
    }

    #[test]
    fn value_that_is_gone_is_blamed_on_the_line_that_gives_it_the_next_one() {
        let source = "fn a() {\n    loop {\n        b(c);\n        d();\n        c = e();\n    }\n}\n";
        let mutants = catalog::mutants(&Files::from([("src/a.rs".into(), source.into())]));
        let numbered: Vec<_> = mutants.iter().map(|mutant| &mutant.mutation).enumerate().collect();
        let made = together::render(source, &numbered, &HashSet::new()).unwrap();
        let gone = made.text.rfind("b(c)").unwrap() + 2;
        let objection = Objection { file: "src/a.rs".into(), at: std::iter::once(gone..gone + 1).collect() };
        let blamed = blame(&made, &objection, &mutants);
        let [Blamed::Mutant(number)] = blamed[..] else { panic!("{blamed:?}") };
        assert_eq!((mutants[number].operator.as_str(), mutants[number].line), ("statement dropped", 5));
    }

    #[test]
    fn mutants_left_out_are_read_again() {
        let mut left_out = LeftOut::default();
        left_out.add("src/a.rs", &Blamed::Mutant(7));
        left_out.add("src/a.rs", &Blamed::Piece(1..20));
        let mut again = LeftOut::default();
        left_out.text().lines().for_each(|line| again.read(line).unwrap());
        assert_eq!((again.mutants, again.pieces), (left_out.mutants, left_out.pieces));
    }
}
