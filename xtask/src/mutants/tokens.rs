// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Rust source as tokens, with what no mutant may touch marked.
//!
//! This is far less than a parser, and enough: it tells code from comments and text, matches brackets, and finds the
//! items that are compiled for tests and model checkers only. What it gets wrong about a mutant, the compiler says.

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier, a keyword or a number.
    Word,
    /// A string, a character or a lifetime.
    Literal,
    /// An operator or a bracket.
    Mark,
}

/// A token, and where it is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// Longest first, so that the first that matches is the one.
const MARKS: [&str; 25] = [
    "<<=", ">>=", "...", "..=", "==", "!=", "<=", ">=", "&&", "||", "=>", "->", "::", "+=", "-=", "*=", "/=",
    "%=", "^=", "&=", "|=", "<<", ">>", "..", "#!",
];

/// Macros whose arguments are text for people, or checks of the engine by itself.
const EXEMPT_MACROS: [&str; 14] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "format",
    "format_args",
    "write",
    "writeln",
    "panic",
    "unreachable",
    "todo",
    "unimplemented",
];

/// A file's tokens.
pub(super) struct Tokens<'a> {
    pub(super) source: &'a str,
    all: Vec<Token<'a>>,
    /// For each opening bracket, the index of the one that closes it.
    close: Vec<Option<usize>>,
    exempt: Vec<bool>,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(source: &'a str) -> Self {
        let all = split(source);
        let close = brackets(&all);
        let exempt = vec![false; all.len()];
        let mut tokens = Self { source, all, close, exempt };
        for range in tokens.exempt_ranges() {
            tokens.exempt.iter_mut().take(range.end).skip(range.start).for_each(|exempt| *exempt = true);
        }
        tokens
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&Token<'a>> {
        self.all.get(index)
    }

    /// The token's text; nothing outside the file.
    pub(super) fn text(&self, index: usize) -> &'a str {
        self.get(index).map_or("", |token| token.text)
    }

    /// The text of the token before this one.
    pub(super) fn before(&self, index: usize) -> &'a str {
        index.checked_sub(1).map_or("", |before| self.text(before))
    }

    pub(super) fn is_word(&self, index: usize) -> bool {
        self.get(index).is_some_and(|token| token.kind == Kind::Word)
    }

    /// Whether no mutant may touch this token.
    pub(super) fn is_exempt(&self, index: usize) -> bool {
        self.exempt.get(index).copied().unwrap_or(true)
    }

    /// The index of the bracket that closes the one at `index`.
    pub(super) fn closing(&self, index: usize) -> Option<usize> {
        self.close.get(index).copied().flatten()
    }

    /// The first of `ends` from `index` on that is in no bracket. A bracket that closes around `index` ends the search.
    pub(super) fn find(&self, mut index: usize, ends: &[&str]) -> Option<usize> {
        loop {
            let token = self.get(index)?;
            if token.kind == Kind::Mark && ends.contains(&token.text) {
                return Some(index);
            }
            index = match token.text {
                ")" | "]" | "}" if token.kind == Kind::Mark => return None,
                _ => self.closing(index).unwrap_or(index) + 1,
            };
        }
    }

    /// Whether whitespace stands on both sides, as rustfmt puts it around an operator of two operands.
    pub(super) fn is_spaced(&self, index: usize) -> bool {
        let Some(token) = self.get(index) else { return false };
        let space = |text: Option<char>| text.is_some_and(char::is_whitespace);
        space(self.source.get(..token.at).and_then(|text| text.chars().next_back()))
            && space(self.source.get(token.end()..).and_then(|text| text.chars().next()))
    }

    fn exempt_ranges(&self) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        for index in 0..self.len() {
            let end = match self.text(index) {
                "#" | "#!" if self.text(index + 1) == "[" => self.closing(index + 1).map(|close| {
                    let only_checked = self.text(index) == "#" && self.is_for_checks(index + 2..close);
                    if only_checked { self.item_end(close + 1) } else { close + 1 }
                }),
                "use" | "mod" if self.is_word(index) => self
                    .find(index, &[";", "{"])
                    .map(|end| if self.text(end) == ";" { end + 1 } else { index + 1 }),
                "impl" => self
                    .find(index, &["{", ";"])
                    .filter(|&open| {
                        (index..open).any(|at| self.text(at) == "Debug" && self.text(at + 1) == "for")
                    })
                    .and_then(|open| self.closing(open)),
                name if self.text(index + 1) == "!" && EXEMPT_MACROS.contains(&name) => {
                    self.closing(index + 2).map(|close| close + 1)
                }
                _ => None,
            };
            ranges.extend(end.map(|end| index..end));
        }
        ranges
    }

    /// Whether an attribute leaves its item to tests or model checkers.
    fn is_for_checks(&self, mut attribute: Range<usize>) -> bool {
        let texts = |name| attribute.clone().any(|index| self.text(index) == name);
        let checks = ["test", "loom", "shuttle"].into_iter().any(texts);
        let all_of_test = ["cfg", "(", "all", "(", "test"];
        attribute.clone().map(|index| self.text(index)).take(all_of_test.len()).eq(all_of_test)
            || checks && !texts("not") && attribute.next().is_some_and(|first| self.text(first) == "cfg")
    }

    /// Behind the item, field or statement that begins at `index`.
    fn item_end(&self, mut index: usize) -> usize {
        while self.text(index) == "#" {
            index = self.closing(index + 1).map_or(self.len(), |close| close + 1);
        }
        let is_item = matches!(
            self.text(index),
            "pub"
                | "fn"
                | "mod"
                | "impl"
                | "struct"
                | "enum"
                | "use"
                | "const"
                | "static"
                | "trait"
                | "type"
                | "let"
        );
        let ends: &[&str] = if is_item { &["{", ";"] } else { &["{", ";", ","] };
        let Some(end) = self.find(index, ends) else { return index };
        // What is used or declared may have braces before its semicolon.
        match self.text(index) {
            "use" | "let" | "static" | "const" => {
                self.find(end, &[";"]).or(self.closing(end)).unwrap_or(end) + 1
            }
            _ => self.closing(end).unwrap_or(end) + 1,
        }
    }
}

fn brackets(all: &[Token<'_>]) -> Vec<Option<usize>> {
    let mut close = vec![None; all.len()];
    let mut open = Vec::new();
    for (index, token) in all.iter().enumerate().filter(|(_, token)| token.kind == Kind::Mark) {
        match token.text {
            "(" | "[" | "{" => open.push(index),
            ")" | "]" | "}" => {
                if let Some(slot) = open.pop().and_then(|open| close.get_mut(open)) {
                    *slot = Some(index);
                }
            }
            _ => {}
        }
    }
    close
}

fn split(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let (kind, length) = next(rest);
        let length = length.max(1).min(rest.len());
        if let (Some(kind), Some(text)) = (kind, rest.get(..length)) {
            tokens.push(Token { kind, text, at });
        }
        at += length;
    }
    tokens
}

/// The kind and length of what `rest` begins with; no kind for what is no code.
fn next(rest: &str) -> (Option<Kind>, usize) {
    let first = rest.chars().next().unwrap_or(' ');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let until = |text: &str| rest.find(text).map_or(rest.len(), |at| at + text.len());
    if rest.starts_with("//") {
        return (None, until("\n"));
    }
    if rest.starts_with("/*") {
        return (None, block_comment(rest));
    }
    if let Some(length) = text_length(rest) {
        return (Some(Kind::Literal), length);
    }
    if is_word(first) {
        return (Some(Kind::Word), rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
    }
    if first.is_whitespace() || !first.is_ascii() {
        return (None, first.len_utf8());
    }
    (Some(Kind::Mark), MARKS.iter().find(|mark| rest.starts_with(**mark)).map_or(1, |mark| mark.len()))
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(text) = rest.get(at..).filter(|text| !text.is_empty()) {
        if text.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text.starts_with("*/") {
            (depth, at) = (depth.saturating_sub(1), at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += text.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of the string, character or lifetime that `rest` begins with.
fn text_length(rest: &str) -> Option<usize> {
    let plain = rest.trim_start_matches(['b', 'c', 'r']);
    let prefix = rest.len() - plain.len();
    if prefix > 2 {
        return None;
    }
    let hashes = plain.len() - plain.trim_start_matches('#').len();
    if rest.get(..prefix).is_some_and(|prefix| prefix.contains('r')) {
        let body = plain.get(hashes..)?.strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(prefix + hashes + 1 + body.find(&end).map_or(body.len(), |at| at + end.len()));
    }
    if let Some(body) = plain.strip_prefix('"') {
        return Some(prefix + 1 + quoted(body, '"').unwrap_or(body.len()));
    }
    let body = plain.strip_prefix('\'').filter(|_| prefix < 2)?;
    let mut chars = body.chars();
    let (first, second) = (chars.next()?, chars.next());
    if first == '\\' || second == Some('\'') {
        return Some(prefix + 1 + quoted(body, '\'')?);
    }
    let name = body.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(body.len());
    (prefix == 0).then_some(1 + name)
}

/// Behind the quote that ends `body`.
fn quoted(body: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        if c == quote && !escaped {
            return Some(at + 1);
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        split(source).iter().map(|token| token.text).collect()
    }

    fn open_to_mutants(source: &str) -> String {
        let tokens = Tokens::new(source);
        let texts: Vec<_> = (0..tokens.len())
            .filter(|&index| !tokens.is_exempt(index))
            .map(|index| tokens.text(index))
            .collect();
        texts.join(" ")
    }

    #[test]
    fn code_is_told_from_comments_and_text() {
        assert_eq!(texts("a /* b /* c */ d */ <= e // f\n>> 'x"), ["a", "<=", "e", ">>", "'x"]);
        assert_eq!(texts(r##"f("a < \" b", 'c', '\'', r#"d " e"#, b'x', &'a u8)"##).len(), 16);
        assert_eq!(
            texts("x..=9 r#type '\\u{1}' 'é' \"é\""),
            ["x", "..=", "9", "r", "#", "type", "'\\u{1}'", "'é'", "\"é\""]
        );
    }

    #[test]
    fn search_skips_brackets_and_ends_with_the_one_around_it() {
        let tokens = Tokens::new("f(a, { b; }); c }");
        assert_eq!(tokens.find(0, &[";"]).map(|index| tokens.before(index)), Some(")"));
        assert_eq!(tokens.find(11, &[";"]), None);
    }

    #[test]
    fn code_compiled_for_checks_alone_is_exempt() {
        assert_eq!(open_to_mutants("a #[cfg(test)] mod tests { b } c"), "a c");
        assert_eq!(
            open_to_mutants("#[cfg(any(loom, shuttle))] #[inline] pub fn a() -> [u8; 2] { b } c"),
            "c"
        );
        assert_eq!(open_to_mutants("#[cfg(loom)] use a::{b, c}; d"), "d");
        assert_eq!(open_to_mutants("S { #[cfg(loom)] a: b(1, 2), c: d }"), "S { c : d }");
        assert_eq!(open_to_mutants("#[cfg(all(test, not(any(loom, shuttle))))] mod tests { b } c"), "c");
        assert_eq!(open_to_mutants("#[cfg(not(any(loom, shuttle)))] fn a() { b }"), "fn a ( ) { b }");
        assert_eq!(open_to_mutants("#[cfg_attr(test, allow(x))] fn a() {}"), "fn a ( ) { }");
    }

    #[test]
    fn text_for_people_is_exempt() {
        assert_eq!(open_to_mutants("a; assert!(b < c, \"{}\", d); e"), "a ; ; e");
        assert_eq!(open_to_mutants("impl<T> fmt::Debug for X<T> { fn fmt() { a } } b"), "} b");
        assert_eq!(open_to_mutants("impl X { a }"), "impl X { a }");
    }
}
