// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Words of PTX, and statements made of them.

use super::Refusal;

/// A word or a sign, and the line it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: u32,
}

/// Splits a text into words and signs, without comments.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Refusal> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if first == '\n' {
            line += 1;
            1
        } else if first.is_whitespace() || first == '\0' {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let Some(end) = rest.find("*/") else {
                return Err(Refusal::new(line, "a comment without an end"));
            };
            let (comment, _) = rest.split_at(end + 2);
            line += u32::try_from(comment.matches('\n').count()).unwrap_or(0);
            end + 2
        } else if first == '"' {
            let text = rest.get(1..).unwrap_or_default();
            let end = text.find(['"', '\n']).filter(|&end| text.as_bytes().get(end) == Some(&b'"'));
            end.ok_or_else(|| Refusal::new(line, "a text without an end"))? + 2
        } else if is_word(first) {
            rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
        } else if ",;{}()[]:=|<>+-@!".contains(first) {
            1
        } else {
            return Err(Refusal::new(line, format!("the character {first:?}")));
        };
        let (word, after) = rest.split_at(length);
        let blank =
            first.is_whitespace() || first == '\0' || word.starts_with("//") || word.starts_with("/*");
        if !blank {
            found.push(Token { text: word, line });
        }
        rest = after;
    }
    Ok(found)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// A cursor over tokens.
pub(super) struct Cursor<'t, 'a> {
    tokens: &'t [Token<'a>],
    line: u32,
}

impl<'t, 'a> Cursor<'t, 'a> {
    pub(super) fn new(tokens: &'t [Token<'a>]) -> Self {
        Self { tokens, line: tokens.first().map_or(1, |token| token.line) }
    }

    /// The line of the last token that was taken.
    pub(super) fn line(&self) -> u32 {
        self.line
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.tokens.first().map(|token| token.text)
    }

    pub(super) fn peek_second(&self) -> Option<&'a str> {
        self.tokens.get(1).map(|token| token.text)
    }

    pub(super) fn peek_third(&self) -> Option<&'a str> {
        self.tokens.get(2).map(|token| token.text)
    }

    pub(super) fn take(&mut self) -> Result<&'a str, Refusal> {
        let Some((first, rest)) = self.tokens.split_first() else {
            return Err(Refusal::new(self.line, "the text ends within a statement"));
        };
        self.tokens = rest;
        self.line = first.line;
        Ok(first.text)
    }

    /// Takes the next token if it is this one.
    pub(super) fn accept(&mut self, text: &str) -> bool {
        let is_it = self.peek() == Some(text);
        if is_it {
            let _ = self.take();
        }
        is_it
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<(), Refusal> {
        let found = self.take()?;
        if found == text {
            return Ok(());
        }
        Err(Refusal::new(self.line, format!("`{found}` where `{text}` belongs")))
    }

    /// A whole number, with a sign.
    pub(super) fn integer(&mut self) -> Result<i128, Refusal> {
        let negative = self.accept("-");
        let text = self.take()?;
        let value = unsigned(text).ok_or_else(|| Refusal::new(self.line, format!("the number `{text}`")))?;
        Ok(if negative { -i128::from(value) } else { i128::from(value) })
    }

    /// A whole number that is a size.
    pub(super) fn size(&mut self) -> Result<u32, Refusal> {
        let value = self.integer()?;
        u32::try_from(value)
            .ok()
            .filter(|&size| size <= 1 << 30)
            .ok_or_else(|| Refusal::new(self.line, format!("the size {value}")))
    }
}

/// A whole number: decimal, hexadecimal, octal or binary, with or without `U`.
pub(super) fn unsigned(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('U').unwrap_or(text);
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Some(binary) = digits.strip_prefix("0b") {
        return u64::from_str_radix(binary, 2).ok();
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return u64::from_str_radix(digits, 8).ok();
    }
    digits.parse().ok()
}

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    /// A register, a symbol, a label, or `_`.
    Name(String),
    /// A number by its bits; `true` for one written as a float.
    Number(u64, bool),
    /// `[base+offset]`; without a base, an address.
    Address(Option<String>, i64),
    /// `{a, b}`.
    Vector(Vec<Written>),
    /// `a|b`.
    Pair(String, String),
    /// `!p`.
    Not(String),
}

/// An instruction as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    /// The predicate, and whether it is negated.
    pub(super) guard: Option<(String, bool)>,
    pub(super) name: String,
    pub(super) operands: Vec<Written>,
    pub(super) line: u32,
}

/// Reads an instruction, up to and with its `;`.
pub(super) fn statement(cursor: &mut Cursor<'_, '_>) -> Result<Statement, Refusal> {
    let guard = if cursor.accept("@") {
        let negated = cursor.accept("!");
        Some((cursor.take()?.to_owned(), negated))
    } else {
        None
    };
    let mut name = cursor.take()?.to_owned();
    let line = cursor.line();
    // `ld.global.L1::no_allocate.b32`.
    while cursor.accept(":") {
        cursor.expect(":")?;
        name = format!("{name}::{}", cursor.take()?);
    }
    let mut operands = Vec::new();
    if !cursor.accept(";") {
        loop {
            operands.push(operand(cursor)?);
            if cursor.accept(";") {
                break;
            }
            cursor.expect(",")?;
        }
    }
    Ok(Statement { guard, name, operands, line })
}

fn operand(cursor: &mut Cursor<'_, '_>) -> Result<Written, Refusal> {
    match cursor.peek() {
        Some("[") => {
            cursor.expect("[")?;
            let base = match cursor.peek() {
                Some(word) if word != "-" && unsigned(word).is_none() => Some(cursor.take()?.to_owned()),
                _ => None,
            };
            let mut offset = 0;
            if base.is_none() || cursor.accept("+") || cursor.peek() == Some("-") {
                offset = cursor.integer()?;
            }
            cursor.expect("]")?;
            let bits = i64::try_from(offset).or_else(|_| u64::try_from(offset).map(u64::cast_signed));
            let offset = bits.map_err(|_| Refusal::new(cursor.line(), "an offset without bounds"))?;
            Ok(Written::Address(base, offset))
        }
        Some("{") => {
            cursor.expect("{")?;
            let mut parts = Vec::new();
            loop {
                if cursor.peek() == Some("{") {
                    return Err(Refusal::new(cursor.line(), "a vector in a vector"));
                }
                parts.push(operand(cursor)?);
                if cursor.accept("}") {
                    return Ok(Written::Vector(parts));
                }
                cursor.expect(",")?;
            }
        }
        Some("!") => {
            cursor.expect("!")?;
            Ok(Written::Not(cursor.take()?.to_owned()))
        }
        _ => scalar(cursor),
    }
}

fn scalar(cursor: &mut Cursor<'_, '_>) -> Result<Written, Refusal> {
    if cursor.peek() == Some("-") {
        let value = cursor.integer()?;
        let value =
            i64::try_from(value).map_err(|_| Refusal::new(cursor.line(), "a number without bounds"))?;
        return Ok(Written::Number(value.cast_unsigned(), false));
    }
    let word = cursor.take()?;
    let float = |digits: &str, length| {
        let bits = (digits.len() == length).then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        bits.ok_or_else(|| Refusal::new(cursor.line(), format!("the number `{word}`")))
    };
    if let Some(digits) = word.strip_prefix("0f").or_else(|| word.strip_prefix("0F")) {
        return Ok(Written::Number(float(digits, 8)?, true));
    }
    if let Some(digits) = word.strip_prefix("0d").or_else(|| word.strip_prefix("0D")) {
        return Ok(Written::Number(float(digits, 16)?, true));
    }
    if let Some(value) = unsigned(word) {
        return Ok(Written::Number(value, false));
    }
    if word.starts_with(|c: char| c.is_ascii_digit() || ",;{}()[]:=|<>+-@!\"".contains(c)) {
        return Err(Refusal::new(cursor.line(), format!("`{word}` where an operand belongs")));
    }
    if cursor.accept("|") {
        return Ok(Written::Pair(word.to_owned(), cursor.take()?.to_owned()));
    }
    Ok(Written::Name(word.to_owned()))
}
