// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The table of rules, the emulator and these tests say the same: whatever the table names is there.

use std::collections::HashSet;
use std::path::Path;

/// The table.
const RULES: &str = include_str!("../../rules.md");

/// Everything that is written in a folder and those below it.
fn sources(folder: &Path, text: &mut String) {
    let mut entries: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

fn text_of(folders: &[&str]) -> String {
    let mut text = String::new();
    for folder in folders {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut text);
    }
    text
}

/// The parts between backticks.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// A cell without what is in parentheses.
fn outside(cell: &str) -> String {
    let mut depth = 0;
    let mut rest = cell.to_owned();
    rest.retain(|letter| {
        depth += i32::from(letter == '(');
        let kept = depth == 0;
        depth -= i32::from(letter == ')');
        kept
    });
    rest
}

/// Rules: what is said, its source, its tests.
fn rules() -> Vec<[&'static str; 3]> {
    let rows = RULES.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    let rules = cells.filter_map(|cells| <[&str; 3]>::try_from(cells).ok());
    rules.filter(|[rule, ..]| *rule != "rule").collect()
}

#[test]
fn every_rule_names_tests_that_there_are() {
    let text = text_of(&["src", "tests/emulator"]);
    let functions: Vec<&str> =
        text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next()).collect();
    let (mut named, mut rules_seen) = (0, 0);
    for [rule, _, tests] in rules() {
        assert!(names(tests).next().is_some() || tests.contains("emulated"), "{rule}: no test");
        rules_seen += 1;
        for name in names(tests) {
            // A name that is cut, or one of several words, is a test; the others are files.
            let test = name.trim_end_matches('…');
            let is_test = (name.ends_with('…') || name.contains('_')) && !name.contains([':', '/', '.']);
            if is_test {
                named += 1;
                let found = functions.iter().any(|function| function.starts_with(test));
                assert!(found, "{rule}: there is no test {name}");
            }
        }
    }
    assert!(rules_seen > 60 && named > 60, "{rules_seen} rules name {named} tests");
}

#[test]
fn every_function_of_the_kernel_that_a_rule_is_from_is_named_where_the_rule_is_kept() {
    let text = text_of(&["src", "../core/src"]);
    let words: HashSet<&str> =
        text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let mut named = 0;
    for [rule, source, _] in rules() {
        for function in names(&outside(source)).filter(|name| name.contains('_') && !name.contains('.')) {
            named += 1;
            assert!(words.contains(function), "{rule}: the emulator does not name {function}");
        }
    }
    assert!(named > 70, "{named} functions");
}
