// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is said of mutants, while they are tried and at the end.

use super::accepted::{self, Accepted};
use super::catalog::Mutant;
use super::{Fate, Tried};
use crate::workspace;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// A mutant on one line.
pub(super) fn line(mutant: &Mutant) -> String {
    let Mutant { id, file, line, operator, original, mutated, .. } = mutant;
    format!("{id}  {file}:{line}  [{operator}]  {original}  →  {mutated}")
}

/// What was tried so far.
pub(super) struct Progress {
    total: usize,
    begin: Option<Instant>,
    pub(super) tried: Vec<Tried>,
}

impl Progress {
    pub(super) fn new(total: usize) -> Self {
        Self { total, begin: None, tried: Vec::new() }
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
        let (done, total) = (self.tried.len() + 1, self.total);
        let expected = begin.elapsed() * u32::try_from(total)? / u32::try_from(done)?;
        println!(
            "[{done:>3}/{total}  {} of {}]  {:>4.1} s  {fate}: {}",
            clock(begin.elapsed()),
            clock(expected),
            took.as_secs_f64(),
            line(mutant)
        );
        self.tried.push(tried);
        write_json(&self.tried)
    }
}

fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Says how all went; whether every survivor is accepted.
pub(super) fn end(tried: &[Tried], accepted: &[Accepted], stale: &[&Accepted]) -> Result<bool> {
    let survivors = || tried.iter().filter(|tried| tried.fate == Fate::Survived).map(|tried| &tried.mutant);
    let reason =
        |mutant: &Mutant| accepted.iter().find(|entry| entry.covers(mutant)).map(|entry| &entry.reason);
    let unexplained: Vec<_> = survivors().filter(|mutant| reason(mutant).is_none()).collect();
    println!();
    for entry in stale {
        println!(
            "stale: nothing is like this any more: {} `{}` [{}]",
            entry.file, entry.line, entry.operator
        );
    }
    for mutant in survivors() {
        match reason(mutant) {
            Some(reason) => println!("accepted: {}: {reason}", line(mutant)),
            None => println!("survived: {}", line(mutant)),
        }
    }
    if !unexplained.is_empty() {
        println!(
            "\nno test needs these lines: write one that does, or say in hal-semaphore/mutants.toml why none can\n"
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
    let (fate, stage, test) = match fate {
        Fate::Noticed(stage, test) => ("noticed", *stage, test.as_str()),
        Fate::TimedOut(stage) => ("timed out", *stage, ""),
        Fate::Survived => ("survived", "", ""),
        Fate::NotCompiled => ("did not compile", "", ""),
    };
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
    fn the_last_line_counts() {
        let all = [
            tried(Fate::Survived),
            tried(Fate::Noticed("quick", "a".into())),
            tried(Fate::TimedOut("unit")),
            tried(Fate::NotCompiled),
            tried(Fate::Survived),
        ];
        assert_eq!(summary(&all), "1 noticed, 2 survived, 1 timed out, 1 did not compile");
    }

    #[test]
    fn a_row_is_json() {
        let row = json(&tried(Fate::Noticed("quick", "dag::a".into())));
        assert!(row.contains(r#""original": "a(\"b\\n\")""#), "{row}");
        assert!(row.ends_with(r#""test": "dag::a", "line": 7, "seconds": 1.500}"#), "{row}");
    }

    #[test]
    fn whoever_survives_wants_a_reason() {
        let survivor = tried(Fate::Survived);
        let entry = Accepted {
            file: survivor.mutant.file.clone(),
            line: survivor.mutant.original.clone(),
            operator: "*".into(),
            reason: "both are right".into(),
            ..Accepted::default()
        };
        assert!(!end(std::slice::from_ref(&survivor), &[], &[]).unwrap());
        assert!(end(&[survivor], std::slice::from_ref(&entry), &[&entry]).unwrap());
    }
}
