// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is wrong with an executable, while it travels outwards and learns where it is.

use super::FORMAT;
use hal_backend::{Code, Failure};
use std::fmt;

/// Something that is refused. Becomes a [`Failure`] at the outermost level, when all of its place is known.
#[derive(Debug)]
pub(super) struct Fault {
    code: Code,
    text: String,
}

impl Fault {
    pub(super) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(super) fn invalid(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, text)
    }

    /// The same, and it is in here.
    pub(super) fn within(mut self, place: impl fmt::Display) -> Self {
        self.text = format!("{place}: {}", self.text);
        self
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::new(fault.code, format!("{FORMAT} executable: {}", fault.text))
    }
}

/// A name in a message: quoted, and cut where it is long, because whoever wrote the file chose it.
pub(super) struct Name<'a>(pub(super) &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(64) {
            Some((end, _)) => write!(f, "{:?}...", self.0.get(..end).unwrap_or_default()),
            None => write!(f, "{:?}", self.0),
        }
    }
}
