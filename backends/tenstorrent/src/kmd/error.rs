// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The errors of a card.

use hal_backend::{Code, Failure};
use hal_kernel::Errno;
use hal_tenstorrent_abi::CallError;

/// Why something of a card failed.
#[derive(Clone, Debug)]
pub enum Error {
    /// The card is gone: reset, pulled out, or hung. Nothing of it can be used any more.
    Gone(String),
    /// The kernel refused a call.
    Refused(CallError),
    /// Anything else that is not the card's fault.
    Other(Failure),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused { errno: Errno::NODEV, .. } => Error::Gone(error.to_string()),
            other => Error::Refused(other),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Error::Other(failure)
    }
}

impl Error {
    /// The error of an access through a mapping.
    pub(crate) fn access(errno: Errno) -> Self {
        match errno {
            Errno::NODEV => Error::Gone(
                "its mappings were taken back, since it was reset or removed: close it and open it again"
                    .to_owned(),
            ),
            other => Error::Other(Failure::new(
                Code::Internal,
                format!("an access through a window was refused: {other}"),
            )),
        }
    }

    /// True if the device is lost with it.
    pub fn is_end(&self) -> bool {
        matches!(self, Error::Gone(_))
    }

    /// The failure that a program gets, for a card of this name.
    pub fn failure(&self, card: &str) -> Failure {
        match self {
            Error::Gone(why) => Failure::new(Code::Unavailable, format!("{card} is gone: {why}")),
            Error::Refused(error) => {
                let code = match error {
                    CallError::Refused {
                        errno: Errno::NOMEM | Errno::NOSPC | Errno::MFILE | Errno::NFILE,
                        ..
                    } => Code::ResourceExhausted,
                    CallError::Refused { errno: Errno::ACCESS | Errno::PERM, .. } => Code::PermissionDenied,
                    CallError::Refused { errno: Errno::BUSY | Errno::AGAIN, .. } => Code::Unavailable,
                    CallError::Api { .. } | CallError::TooOld { .. } => Code::FailedPrecondition,
                    _ => Code::Internal,
                };
                Failure::new(code, format!("{card}: {error}"))
            }
            Error::Other(failure) => Failure::new(failure.code(), format!("{card}: {}", failure.message())),
        }
    }
}
