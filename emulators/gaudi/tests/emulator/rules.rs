// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The table of rules, the emulator's source and these tests name the same rules.

use std::collections::BTreeSet;
use std::path::Path;

/// Every rule that a text cites.
fn cited(text: &str) -> BTreeSet<String> {
    let after = text.split("rule(").skip(1);
    let names = after.filter_map(|rest| rest.split_once(')')).map(|(name, _)| name);
    let plain = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    names.filter(plain).map(str::to_owned).collect()
}

/// Every rule that the files of a folder cite, this one's excepted.
fn cited_in(folder: &Path) -> BTreeSet<String> {
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let sources =
        files.filter(|path| path.extension().is_some_and(|end| end == "rs") && !path.ends_with("rules.rs"));
    sources.flat_map(|path| cited(&std::fs::read_to_string(path).unwrap())).collect()
}

/// The rows of the table: a rule's name, what it says, and where that was read.
fn table() -> Vec<(String, String, String)> {
    let text = include_str!("../../rules.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once("` | ")?;
        let (rule, source) = rest.trim_end_matches(" |").rsplit_once(" | ")?;
        Some((name.to_owned(), rule.to_owned(), source.to_owned()))
    })
    .collect()
}

#[test]
fn every_rule_has_a_source_and_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (source, tests) = (cited_in(&root.join("src")), cited_in(&root.join("tests/emulator")));
    let rows = table();
    let listed: BTreeSet<String> = rows.iter().map(|(name, ..)| name.clone()).collect();
    assert_eq!(listed.len(), rows.len(), "a rule stands twice in the table");
    let missing =
        |of: &BTreeSet<String>, from: &BTreeSet<String>| of.difference(from).cloned().collect::<Vec<_>>();
    assert_eq!(missing(&source, &listed), [""; 0], "cited by the source, and not in the table");
    assert_eq!(missing(&listed, &source), [""; 0], "in the table, and not in the source");
    assert_eq!(missing(&listed, &tests), [""; 0], "in the table, and in no test");
    assert_eq!(missing(&tests, &listed), [""; 0], "cited by a test, and not in the table");
    for (name, _, source) in rows {
        // A function of the kernel's, or a name of a table or of a number in it.
        let named = source.split('`').skip(1).step_by(2).any(|word| word.contains('_'));
        assert!(named, "{name} does not say where it was read: {source}");
    }
}
