// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is said of mutants, while they are tried and at the end.

use super::accepted::{self, Accepted};
use super::catalog::Mutant;
use super::{Fate, Tried};
use crate::workspace;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// A mutant on one line.
pub(super) fn line(mutant: &Mutant) -> String {
    let Mutant { id, file, line, operator, original, mutated, .. } = mutant;
    format!("{id}  {file}:{line}  [{operator}]  {original}  →  {mutated}")
}

/// Results on disk, a line for each, so that a run that is stopped can go on.
#[derive(Default)]
pub(super) struct Record {
    known: HashMap<String, Fate>,
    file: Option<File>,
}

impl Record {
    /// Reads the file, if one was named, and adds to it from now on.
    pub(super) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = if path.exists() {
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        } else {
            String::new()
        };
        let known = text.lines().filter_map(read_fate).collect();
        let file = File::options().create(true).append(true).open(path);
        Ok(Self { known, file: Some(file.with_context(|| format!("opening {}", path.display()))?) })
    }

    /// What became of the mutant with this id, if it was tried.
    pub(super) fn fate(&self, id: &str) -> Option<Fate> {
        self.known.get(id).cloned()
    }

    fn add(&mut self, Tried { mutant, fate, took }: &Tried) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let (fate, stage, test) = words(fate);
        let (id, took) = (&mutant.id, took.as_secs_f64());
        writeln!(file, "{id}\t{fate}\t{stage}\t{test}\t{took:.1}\t{}", line(mutant))
            .context("recording a result")
    }
}

/// A mutant's id and what became of it. A line that was not written to its end says nothing.
fn read_fate(line: &str) -> Option<(String, Fate)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [id, fate, stage, test, _took, _line] = fields.as_slice() else { return None };
    let fate = match *fate {
        "noticed" => Fate::Noticed((*stage).to_owned(), (*test).to_owned()),
        "timed out" => Fate::TimedOut((*stage).to_owned()),
        "survived" => Fate::Survived,
        "did not compile" => Fate::NotCompiled,
        _ => return None,
    };
    Some(((*id).to_owned(), fate))
}

/// What became of a mutant, in which stage, and which test noticed.
fn words(fate: &Fate) -> (&str, &str, &str) {
    match fate {
        Fate::Noticed(stage, test) => ("noticed", stage, test),
        Fate::TimedOut(stage) => ("timed out", stage, ""),
        Fate::Survived => ("survived", "", ""),
        Fate::NotCompiled => ("did not compile", "", ""),
    }
}

/// What was tried so far.
pub(super) struct Progress {
    total: usize,
    done: usize,
    begin: Option<Instant>,
    record: Record,
    pub(super) tried: Vec<Tried>,
}

impl Progress {
    /// So many are to be tried beside those that were tried before.
    pub(super) fn new(total: usize, before: Vec<Tried>, record: Record) -> Self {
        Self { total, done: 0, begin: None, record, tried: before }
    }

    /// The first build is over: what is to come goes at an even pace.
    pub(super) fn begin(&mut self) {
        self.begin.get_or_insert_with(Instant::now);
    }

    /// Says how one went, and keeps it.
    pub(super) fn add(&mut self, tried: Tried) -> Result<()> {
        let Tried { mutant, fate, took } = &tried;
        let fate = match fate {
            Fate::Noticed(stage, test) => format!("noticed by {test} ({stage})"),
            Fate::TimedOut(stage) => format!("timed out ({stage})"),
            Fate::Survived => "SURVIVED".into(),
            Fate::NotCompiled => "did not compile".into(),
        };
        let begin = *self.begin.get_or_insert_with(Instant::now);
        self.done += 1;
        let (done, total) = (self.done, self.total);
        let expected = begin.elapsed() * u32::try_from(total)? / u32::try_from(done)?;
        println!(
            "[{done:>3}/{total}  {} of {}]  {:>4.1} s  {fate}: {}",
            clock(begin.elapsed()),
            clock(expected),
            took.as_secs_f64(),
            line(mutant)
        );
        self.record.add(&tried)?;
        self.tried.push(tried);
        write_json(&self.tried)
    }
}

fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Says how all went; whether every survivor is accepted.
pub(super) fn end(folder: &str, tried: &[Tried], accepted: &[Accepted]) -> Result<bool> {
    let survivors = || tried.iter().filter(|tried| tried.fate == Fate::Survived).map(|tried| &tried.mutant);
    let reason =
        |mutant: &Mutant| accepted.iter().find(|entry| entry.covers(mutant)).map(|entry| &entry.reason);
    let unexplained: Vec<_> = survivors().filter(|mutant| reason(mutant).is_none()).collect();
    println!();
    for mutant in survivors() {
        match reason(mutant) {
            Some(reason) => println!("accepted: {}: {reason}", line(mutant)),
            None => println!("survived: {}", line(mutant)),
        }
    }
    if !unexplained.is_empty() {
        println!(
            "\nno test needs these lines: write one that does, or say in {folder}/mutants.toml why none can\n"
        );
        unexplained.iter().for_each(|mutant| println!("{}", accepted::entry(mutant)));
    }
    let open = accepted.iter().filter(|entry| entry.is_open()).count();
    println!("{} kinds of survivors are accepted, {open} of them until there is a test", accepted.len());
    println!("{}", summary(tried));
    println!("everything: {}", workspace::target()?.join("mutants.json").display());
    Ok(unexplained.is_empty())
}

fn summary(tried: &[Tried]) -> String {
    let count = |is: fn(&Fate) -> bool| tried.iter().filter(|tried| is(&tried.fate)).count();
    format!(
        "{} noticed, {} survived, {} timed out, {} did not compile",
        count(|fate| matches!(fate, Fate::Noticed(..))),
        count(|fate| matches!(fate, Fate::Survived)),
        count(|fate| matches!(fate, Fate::TimedOut(_))),
        count(|fate| matches!(fate, Fate::NotCompiled)),
    )
}

fn write_json(tried: &[Tried]) -> Result<()> {
    let path = workspace::target()?.join("mutants.json");
    let rows: Vec<_> = tried.iter().map(json).collect();
    std::fs::write(&path, format!("[\n{}\n]\n", rows.join(",\n")))
        .with_context(|| format!("writing {}", path.display()))
}

fn json(tried: &Tried) -> String {
    let Tried { mutant, fate, took } = tried;
    let (fate, stage, test) = words(fate);
    let fields = [
        ("id", mutant.id.as_str()),
        ("file", &mutant.file),
        ("operator", &mutant.operator),
        ("original", &mutant.original),
        ("mutated", &mutant.mutated),
        ("fate", fate),
        ("stage", stage),
        ("test", test),
    ];
    let mut row = String::from("  {");
    for (name, value) in fields {
        // Writing to a string cannot fail.
        let _ = write!(row, "\"{name}\": \"{}\", ", escaped(value));
    }
    let _ = write!(row, "\"line\": {}, \"seconds\": {:.3}}}", mutant.line, took.as_secs_f64());
    row
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(fate: Fate) -> Tried {
        let mutant = Mutant {
            id: "1".into(),
            file: "src/a.rs".into(),
            line: 7,
            original: "a(\"b\\n\")".into(),
            ..Mutant::default()
        };
        Tried { mutant, fate, took: Duration::from_millis(1500) }
    }

    #[test]
    fn last_line_counts() {
        let all = [
            tried(Fate::Survived),
            tried(Fate::Noticed("quick".into(), "a".into())),
            tried(Fate::TimedOut("unit".into())),
            tried(Fate::NotCompiled),
            tried(Fate::Survived),
        ];
        assert_eq!(summary(&all), "1 noticed, 2 survived, 1 timed out, 1 did not compile");
    }

    #[test]
    fn row_is_json() {
        let row = json(&tried(Fate::Noticed("quick".into(), "dag::a".into())));
        assert!(row.contains(r#""original": "a(\"b\\n\")""#), "{row}");
        assert!(row.ends_with(r#""test": "dag::a", "line": 7, "seconds": 1.500}"#), "{row}");
    }

    #[test]
    fn results_are_read_again_and_half_a_line_is_none() {
        for fate in [
            Fate::Noticed("quick".into(), "dag::a".into()),
            Fate::TimedOut("unit".into()),
            Fate::Survived,
            Fate::NotCompiled,
        ] {
            let path = std::env::temp_dir().join(format!("mutants-{}", std::process::id()));
            Record::open(Some(&path)).unwrap().add(&tried(fate.clone())).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(Record::open(Some(&path)).unwrap().fate("1"), Some(fate));
            std::fs::remove_file(&path).unwrap();
            assert_eq!(read_fate(text.split_at(9).0), None);
        }
    }

    #[test]
    fn survivor_without_a_reason_is_reported() {
        let survivor = tried(Fate::Survived);
        let entry = Accepted {
            file: survivor.mutant.file.clone(),
            line: survivor.mutant.original.clone(),
            operator: "*".into(),
            reason: "both are right".into(),
            ..Accepted::default()
        };
        assert!(!end("a", std::slice::from_ref(&survivor), &[]).unwrap());
        assert!(end("a", &[survivor], &[entry]).unwrap());
    }
}
