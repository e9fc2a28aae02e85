// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Errors of containers, with the place of the fault.

use hal_semaphore::{Code, Failure};
use std::fmt;
use thiserror::Error;

/// The kind of a container's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// Another kind of file, an unknown version, or a container for another device.
    Incompatible,
    /// A damaged or contradictory container.
    Invalid,
    /// A correct container that needs more than is supported.
    Unsupported,
    /// A container that a device or its kernel forbids.
    Forbidden,
}

/// The refusal of a container.
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

    /// The error of another kind of file, version or device.
    pub fn incompatible(text: impl Into<String>) -> Self {
        Self::new(ParseErrorKind::Incompatible, text)
    }

    /// The error of a damaged or contradictory container.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(ParseErrorKind::Invalid, text)
    }

    /// The error of a correct container that needs more than is supported.
    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::new(ParseErrorKind::Unsupported, text)
    }

    /// Adds the place of the fault.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.text = format!("{place}: {}", self.text);
        self
    }

    /// The kind of the fault.
    pub fn kind(&self) -> ParseErrorKind {
        self.kind
    }

    /// The failure of loading an executable of this format, with the whole place.
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

/// A name from the file in a message: quoted, and shortened if it is long.
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
