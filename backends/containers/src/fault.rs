// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is wrong with a container, while it travels outwards and learns where it is.

use std::fmt;
use thiserror::Error;

/// What kind of wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
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
pub struct Fault {
    kind: FaultKind,
    text: String,
}

impl Fault {
    /// A fault of this kind.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Of another kind of file, version or device.
    pub fn incompatible(text: impl Into<String>) -> Self {
        Self::new(FaultKind::Incompatible, text)
    }

    /// Of what is damaged, or contradicts itself.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(FaultKind::Invalid, text)
    }

    /// Of what is correct, and more than can be done here.
    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::new(FaultKind::Unsupported, text)
    }

    /// The same, and it is in here.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.text = format!("{place}: {}", self.text);
        self
    }

    /// What kind of wrong.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// What a program is told whose executable of this format it is wrong with, when all of its place is known.
    #[cfg(feature = "failure")]
    pub fn failure(&self, format: &str) -> hal_backend::Failure {
        use hal_backend::Code;
        let code = match self.kind {
            FaultKind::Incompatible => Code::Incompatible,
            FaultKind::Invalid => Code::InvalidArgument,
            FaultKind::Unsupported => Code::Unimplemented,
            FaultKind::Forbidden => Code::PermissionDenied,
        };
        hal_backend::Failure::new(code, format!("{format} executable: {self}"))
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
