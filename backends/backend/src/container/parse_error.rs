// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Why a container is refused, and where in it.

use hal_semaphore::{Code, Failure};
use std::fmt;
use thiserror::Error;

/// How a container is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// Another kind of file, a version that is not understood, or for another device.
    Incompatible,
    /// Damaged, or contradicting itself.
    Invalid,
    /// Correct, and more than can be done here.
    Unsupported,
    /// What a device or its kernel forbids.
    Forbidden,
}

/// Why a container is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct ParseError {
    kind: ParseErrorKind,
    text: String,
}

impl ParseError {
    /// An error of this kind.
    pub fn new(kind: ParseErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Of another kind of file, version or device.
    pub fn incompatible(text: impl Into<String>) -> Self {
        Self::new(ParseErrorKind::Incompatible, text)
    }

    /// Of what is damaged, or contradicts itself.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(ParseErrorKind::Invalid, text)
    }

    /// Of what is correct, and more than can be done here.
    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::new(ParseErrorKind::Unsupported, text)
    }

    /// Adds the place that the error is in.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.text = format!("{place}: {}", self.text);
        self
    }

    /// How it is wrong.
    pub fn kind(&self) -> ParseErrorKind {
        self.kind
    }

    /// The failure of loading an executable of this format, once all of the place is known.
    pub fn failure(&self, format: &str) -> Failure {
        let code = match self.kind {
            ParseErrorKind::Incompatible => Code::Incompatible,
            ParseErrorKind::Invalid => Code::InvalidArgument,
            ParseErrorKind::Unsupported => Code::Unimplemented,
            ParseErrorKind::Forbidden => Code::PermissionDenied,
        };
        Failure::new(code, format!("{format} executable: {self}"))
    }
}

/// A name in a message: quoted, and cut where it is long, because it is the file's own.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(pub &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(64) {
            Some((end, _)) => write!(f, "{:?}...", self.0.split_at(end).0),
            None => write!(f, "{:?}", self.0),
        }
    }
}
