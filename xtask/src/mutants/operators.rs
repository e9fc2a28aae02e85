// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The ways in which a line can be wrong, and every place in a file where one applies.

use super::tokens::{Kind, Token, Tokens};
use std::collections::HashSet;
use std::ops::Range;

/// One wrong line: what is replaced, where, and by what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mutation {
    /// What is done, as the list of accepted survivors names it.
    pub(super) operator: String,
    /// The bytes that are replaced.
    pub(super) range: Range<usize>,
    /// By what.
    pub(super) by: String,
    /// A byte of the line that a reader would look at.
    pub(super) anchor: usize,
}

impl Mutation {
    /// The file with this line wrong.
    pub(super) fn apply(&self, source: &str) -> String {
        format!("{}{}{}", &source[..self.range.start], self.by, &source[self.range.end..])
    }
}

/// Operators of two operands, and what they become.
const SWAPPED: [(&str, &str); 10] = [
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("==", "!="),
    ("!=", "=="),
    ("&&", "||"),
    ("||", "&&"),
    ("+=", "-="),
    ("-=", "+="),
];

/// Methods with an opposite.
const OPPOSITE: [(&str, &str); 9] = [
    ("min", "max"),
    ("min_by_key", "max_by_key"),
    ("any", "all"),
    ("is_some", "is_none"),
    ("is_ok", "is_err"),
    ("is_some_and", "is_none_or"),
    ("front", "back"),
    ("pop_front", "pop_back"),
    ("push_front", "push_back"),
];

/// The functions that switch the model checkers' deliberate defects on. Mutants of these switches are those defects.
const SWITCHES: [&str; 1] = ["is_mutated"];

/// What begins something other than a statement that is an expression.
const NO_EXPRESSION: [&str; 31] = [
    "let", "if", "else", "match", "while", "for", "loop", "return", "break", "continue", "use", "mod", "pub",
    "fn", "const", "static", "type", "struct", "enum", "union", "trait", "impl", "where", "unsafe", "extern",
    "async", "move", "ref", "mut", "as", "in",
];

/// Every mutation of a file, in the order of their places; none twice, and none that changes nothing.
pub(super) fn mutations(source: &str) -> Vec<Mutation> {
    let tokens = Tokens::new(source);
    let mut found = Vec::new();
    let defects: Vec<Range<usize>> =
        (0..tokens.len()).filter_map(|index| At { tokens: &tokens, index }.deliberate_defect()).collect();
    let is_in_defect = |index: &usize| defects.iter().any(|defect| defect.contains(index));
    for index in (0..tokens.len()).filter(|index| !tokens.is_exempt(*index) && !is_in_defect(index)) {
        let at = At { tokens: &tokens, index };
        found.extend(at.of_a_mark());
        found.extend(at.of_a_word());
        found.extend(at.conditions());
        found.extend(at.statement());
        found.extend(at.bodies());
    }
    let without_spaces = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    // What changes nothing is no mutation either.
    let mut seen = HashSet::from([without_spaces(source)]);
    found.retain(|mutation| seen.insert(without_spaces(&mutation.apply(source))));
    found
}

/// A token, and what can be done to the code that begins there.
struct At<'a> {
    tokens: &'a Tokens<'a>,
    index: usize,
}

impl At<'_> {
    fn text(&self) -> &str {
        self.tokens.text(self.index)
    }

    /// The bytes from one token to the end of another.
    fn bytes(&self, first: usize, last: usize) -> Range<usize> {
        let start = self.tokens.get(first).map_or(0, |token| token.at);
        start..self.tokens.get(last).map_or(start, |token| token.end()).max(start)
    }

    fn replace(&self, operator: String, range: Range<usize>, by: &str) -> Mutation {
        Mutation { operator, anchor: range.start, range, by: by.into() }
    }

    fn swap(&self, by: &str) -> Mutation {
        self.replace(format!("{} to {by}", self.text()), self.bytes(self.index, self.index), by)
    }

    /// The condition of a deliberate defect that begins here, behind its switch, and what it guards: none of it ever runs
    /// in the tests that mutants meet.
    fn deliberate_defect(&self) -> Option<Range<usize>> {
        let (tokens, first) = (self.tokens, self.index + 1);
        if self.text() != "if" || !SWITCHES.contains(&tokens.text(first)) {
            return None;
        }
        let end = tokens.find(first, &["{", "=>"])?;
        let switch = tokens.closing(first + 1)?;
        let is_guard = end == switch + 1 || tokens.text(switch + 1) == "&&";
        let has_other_way = (switch..end).any(|at| tokens.text(at) == "||");
        (is_guard && !has_other_way).then(|| self.index..tokens.closing(end).unwrap_or(end))
    }

    /// Whether this stands at a word without a space, as the mark of a macro does.
    fn follows_a_word(&self) -> bool {
        let (before, this) = (self.index.checked_sub(1), self.tokens.get(self.index));
        let end = before.and_then(|before| self.tokens.get(before)).map(Token::end);
        before.is_some_and(|before| self.tokens.is_word(before)) && end == this.map(|token| token.at)
    }

    fn of_a_mark(&self) -> Option<Mutation> {
        let (tokens, index) = (self.tokens, self.index);
        if tokens.get(index)?.kind != Kind::Mark {
            return None;
        }
        let swapped = SWAPPED.iter().find(|(from, _)| *from == self.text());
        if let Some((_, by)) = swapped {
            let has_left = tokens.is_word(index.checked_sub(1)?)
                || matches!(tokens.before(index), ")" | "]" | "}" | "?");
            let after_keyword = NO_EXPRESSION.contains(&tokens.before(index));
            return (tokens.is_spaced(index) && has_left && !after_keyword).then(|| self.swap(by));
        }
        match self.text() {
            "!" if !self.follows_a_word() && !SWITCHES.contains(&tokens.text(index + 1)) => {
                Some(self.replace("! dropped".into(), self.bytes(index, index), ""))
            }
            "+" | "-" if tokens.is_spaced(index) && tokens.text(index + 1) == "1" => {
                let operator = format!("{} 1 dropped", self.text());
                Some(self.replace(operator, self.bytes(index, index + 1), ""))
            }
            "=>" if matches!(tokens.text(index + 1), "return" | "continue" | "break")
                && tokens.text(index + 2) == "," =>
            {
                let operator = format!("{} dropped", tokens.text(index + 1));
                Some(self.replace(operator, self.bytes(index + 1, index + 1), "{}"))
            }
            _ => None,
        }
    }

    fn of_a_word(&self) -> Option<Mutation> {
        let (tokens, index) = (self.tokens, self.index);
        match (tokens.before(index), self.text()) {
            (_, "true") => Some(self.swap("false")),
            (_, "false") => Some(self.swap("true")),
            ("::", "AcqRel" | "Acquire" | "Release" | "SeqCst") => Some(self.swap("Relaxed")),
            (".", name) if tokens.text(index + 1) == "(" => {
                let opposite = OPPOSITE.iter().find_map(|&(a, b)| match name {
                    _ if name == a => Some(b),
                    _ if name == b => Some(a),
                    _ => None,
                })?;
                Some(self.swap(opposite))
            }
            (before, "Some") if !matches!(before, "let" | "|" | "&" | "ref") => {
                let close = tokens.closing(index + 1).filter(|_| tokens.text(index + 1) == "(")?;
                let is_value = matches!(tokens.text(close + 1), ";" | "," | ")" | "}" | ".");
                is_value.then(|| self.replace("Some to None".into(), self.bytes(index, close), "None"))
            }
            _ => None,
        }
    }

    /// What `if` and `while` look at, and the guards of a match's arms.
    fn conditions(&self) -> Vec<Mutation> {
        let (tokens, first) = (self.tokens, self.index + 1);
        let values: &[&str] = match self.text() {
            "if" => &["true", "false"],
            // Nothing is learnt from a loop without an end.
            "while" => &["false"],
            _ => return Vec::new(),
        };
        let Some(end) = tokens.find(first, &["{", "=>"]) else { return Vec::new() };
        let is_switch = (first..end).find(|&at| tokens.text(at) != "!");
        let is_switch = is_switch.is_some_and(|at| {
            SWITCHES.contains(&tokens.text(at))
                && tokens.closing(at + 1).is_some_and(|close| close + 1 == end)
        });
        if is_switch || (first..end).any(|at| tokens.text(at) == "let") {
            return Vec::new();
        }
        let range = self.bytes(first, end - 1);
        let of = |value: &&str| self.replace(format!("{} {value}", self.text()), range.clone(), value);
        values.iter().map(of).collect()
    }

    /// A whole statement, if what begins here is one that has an effect: a call, an assignment, a way out behind others.
    fn statement(&self) -> Option<Mutation> {
        let (tokens, index) = (self.tokens, self.index);
        let is_first = matches!(tokens.before(index), ";" | "{" | "}");
        let is_way_out = matches!(self.text(), "return" | "continue" | "break");
        let is_expression = match tokens.get(index)?.kind {
            Kind::Word => !NO_EXPRESSION.contains(&self.text()),
            _ => self.text() == "*",
        };
        if !is_first || !(is_expression || is_way_out && tokens.before(index) != "{") {
            return None;
        }
        let end = tokens.find(index, &[";"])?;
        if is_expression
            && !(index..end).any(|at| matches!(tokens.text(at), "(" | "=" | "+=" | "-=" | "|=" | "&="))
        {
            return None;
        }
        // The only one under a condition: the condition that is false is the same.
        if tokens.before(index) == "{"
            && tokens.text(end + 1) == "}"
            && self.is_alone_under_a_condition(end + 2)
        {
            return None;
        }
        // What goes at the end of a block goes there all the same.
        if self.text() == "drop" && tokens.text(end + 1) == "}" {
            return None;
        }
        // A macro's definition, or a struct's field, is no statement.
        if matches!(tokens.text(index + 1), "!" | ":") {
            return None;
        }
        Some(self.replace("statement dropped".into(), self.bytes(index, end), ""))
    }

    /// Whether the block that begins before this is that of an `if` whose condition may be said to be false, and has no `else`.
    fn is_alone_under_a_condition(&self, behind: usize) -> bool {
        let tokens = self.tokens;
        if tokens.text(behind) == "else" {
            return false;
        }
        let Some(open) = self.index.checked_sub(1) else { return false };
        // Back to where the statement around it begins.
        let begin = (0..open).rev().find(|&at| matches!(tokens.text(at), ";" | "{" | "}"));
        let first = begin.map_or(0, |at| at + 1);
        tokens.text(first) == "if"
            && tokens.find(first + 1, &["{"]) == Some(open)
            && !(first..open).any(|at| tokens.text(at) == "let")
    }

    /// The whole body of a function that returns nothing or a bool.
    fn bodies(&self) -> Vec<Mutation> {
        let (tokens, index) = (self.tokens, self.index);
        if self.text() != "fn" || !tokens.is_word(index + 1) {
            return Vec::new();
        }
        let open = tokens.find(index, &["{", ";"]).filter(|&open| tokens.text(open) == "{");
        let Some((open, close)) = open.and_then(|open| Some((open, tokens.closing(open)?))) else {
            return Vec::new();
        };
        let arrow = tokens.find(index, &["->", "{"]).filter(|&at| tokens.text(at) == "->");
        let values: &[&str] = match arrow {
            None if close > open + 1 => &[""],
            Some(arrow) if tokens.text(arrow + 1) == "bool" && arrow + 2 == open => &["true", "false"],
            _ => return Vec::new(),
        };
        let anchor = tokens.get(index).map_or(0, |token| token.at);
        let body = |value: &&str| Mutation {
            operator: if value.is_empty() { "body dropped".into() } else { format!("body {value}") },
            range: self.bytes(open, close),
            by: if value.is_empty() { "{}".into() } else { format!("{{ {value} }}") },
            anchor,
        };
        values.iter().map(body).collect()
    }
}

#[cfg(test)]
mod tests;
