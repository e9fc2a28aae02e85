// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What went wrong on a card, for people: the lines that a kernel would write to its log.

use std::collections::VecDeque;
use std::sync::OnceLock;

/// How many lines a card keeps.
const KEPT: usize = 32;

/// Where lines are also written, if anywhere.
static LOG: OnceLock<fn(&str)> = OnceLock::new();

/// Has the lines of every card of this process written somewhere too. The first one counts.
pub fn log_with(log: fn(&str)) {
    let _ = LOG.set(log);
}

/// The last lines of a card.
#[derive(Debug)]
pub struct Complaints {
    card: usize,
    /// The table of the emulator's rules, with the kernel's functions.
    rules: &'static str,
    lines: VecDeque<String>,
}

impl Complaints {
    /// None yet.
    pub fn new(card: usize, rules: &'static str) -> Self {
        Self { card, rules, lines: VecDeque::new() }
    }

    /// Adds a line.
    pub fn add(&mut self, line: String) {
        if let Some(log) = LOG.get() {
            log(&format!("card {}: {line}", self.card));
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Adds a line about what a rule of the kernel's driver says, with the functions that have the rule.
    pub fn add_by_rule(&mut self, rule: &str, line: &str) {
        let source = source(self.rules, rule);
        debug_assert!(source.is_some(), "{rule} is no rule");
        self.add(format!("{line} (rule {rule}: {})", source.unwrap_or_default()));
    }

    /// The last line.
    pub fn last(&self) -> Option<&str> {
        self.lines.back().map(String::as_str)
    }

    /// All of them, the oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// The functions of a rule, from the last column of its row.
fn source(rules: &str, rule: &str) -> Option<String> {
    let row = rules
        .lines()
        .find(|row| row.strip_prefix("| `").is_some_and(|row| row.starts_with(&format!("{rule}`"))))?;
    let source = row.trim_end_matches(['|', ' ']).rsplit('|').next()?;
    Some(source.trim().replace('`', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str =
        "| rule | says | source |\n|---|---|---|\n| `late` | Too late | `hl_tdr`, `cs_late` |\n";

    #[test]
    fn lines_have_the_kernels_functions_and_the_last_ones_are_kept() {
        let mut complaints = Complaints::new(0, RULES);
        assert_eq!(complaints.last(), None);
        complaints.add_by_rule("late", "submission 7");
        assert_eq!(complaints.last(), Some("submission 7 (rule late: hl_tdr, cs_late)"));
        (0..KEPT).for_each(|number| complaints.add(number.to_string()));
        assert_eq!(complaints.lines().collect::<Vec<_>>().len(), KEPT);
        assert_eq!(complaints.lines().next(), Some("0"));
    }
}
