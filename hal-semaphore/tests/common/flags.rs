// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The command line of a test program that takes flags of its own, in place of libtest's harness.
//!
//! `cargo test -p CRATE --test NAME -- --help` lists the flags. A name runs the tests that have it in theirs;
//! libtest's own flags are accepted, so that `cargo test --workspace -- --skip NAME` works here too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::OnceLock;

/// A flag as it stands in the help: `--seconds N` has a value, `--survey` has none; and what it does.
pub(crate) type Flag = (&'static str, &'static str);

/// libtest's flags with a value, which does not matter here.
const LIBTEST: [&str; 4] = ["--test-threads", "--color", "--format", "--logfile"];

#[derive(Debug, Default)]
struct Given {
    flags: Vec<(String, String)>,
    filters: Vec<String>,
    skipped: Vec<String>,
    is_exact: bool,
    lists: bool,
}

static GIVEN: OnceLock<Given> = OnceLock::new();

fn given() -> &'static Given {
    GIVEN.get_or_init(Given::default)
}

/// A flag's value, if it was given.
pub(crate) fn word(name: &str) -> Option<&'static str> {
    given().flags.iter().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str())
}

/// The same as a number.
pub(crate) fn number(name: &str) -> Option<u64> {
    word(name).map(|text| text.parse().unwrap_or_else(|_| panic!("{name} {text} is not a number")))
}

/// Runs the tests that the command line asks for, one after the other.
pub(crate) fn run(flags: &[Flag], tests: &[(&'static str, fn())]) -> ExitCode {
    match read(std::env::args().skip(1), flags) {
        Ok(read) => drop(GIVEN.set(read)),
        Err(help) => {
            println!("{help}");
            return ExitCode::from(u8::from(!help.starts_with("Flags")));
        }
    }
    let given = given();
    let matches = |name: &str, part: &String| if given.is_exact { name == part } else { name.contains(part) };
    let is_wanted = |name: &str| {
        (given.filters.is_empty() || given.filters.iter().any(|part| matches(name, part)))
            && !given.skipped.iter().any(|part| matches(name, part))
    };
    let mut failed = 0;
    for (name, test) in tests.iter().filter(|(name, _)| is_wanted(name)) {
        if given.lists {
            println!("{name}: test");
            continue;
        }
        println!("test {name}");
        let outcome = catch_unwind(AssertUnwindSafe(test));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += u8::from(outcome.is_err());
    }
    ExitCode::from(if failed == 0 { 0 } else { 101 })
}

fn read(words: impl Iterator<Item = String>, flags: &[Flag]) -> Result<Given, String> {
    let mut given = Given::default();
    let mut words = words.flat_map(|word| match word.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => vec![flag.to_owned(), value.to_owned()],
        _ => vec![word],
    });
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} takes a value"));
        let own = flags.iter().find(|(flag, _)| flag.split(' ').next() == Some(word.as_str()));
        match word.as_str() {
            _ if own.is_some_and(|(flag, _)| flag.contains(' ')) => {
                let value = value()?;
                given.flags.push((word, value));
            }
            _ if own.is_some() => given.flags.push((word, String::new())),
            "--help" | "-h" => {
                let lines = flags.iter().map(|(flag, about)| format!("\n  {flag:<16} {about}"));
                return Err(format!("Flags:{}", lines.collect::<String>()));
            }
            "--skip" => given.skipped.push(value()?),
            "--exact" => given.is_exact = true,
            "--list" => given.lists = true,
            "--nocapture" | "--no-capture" | "--show-output" | "--quiet" | "-q" | "--include-ignored" => {}
            // No test here is one to ignore.
            "--ignored" => given.filters.push("(none)".to_owned()),
            libtest if LIBTEST.contains(&libtest) => drop(value()?),
            unknown if unknown.starts_with('-') => {
                return Err(format!("there is no flag {unknown}; see --help"));
            }
            filter => given.filters.push(filter.to_owned()),
        }
    }
    Ok(given)
}
