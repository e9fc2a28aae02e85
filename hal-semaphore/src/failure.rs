// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Failures: a code, a message and an origin, shared unchanged by everything that fails for the same cause.
//!
//! A [`Failure`] is made once, where the error is detected, and is then shared by reference count: from an
//! operation to its signals, from a timeline to the operations that wait for it, and so on. Nothing replaces or
//! wraps it on the way, so the far end reads the first cause (rule S3). [`Failure::same_root`] compares two
//! failures by their cause.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The kind of a failure: the codes of gRPC and Abseil under their numbers, and two more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(
    missing_docs,
    reason = "the names are the documentation, shared with every system that uses these codes"
)]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
    Deferred = 17,
    Incompatible = 18,
}

impl Code {
    const ALL: [Code; 18] = [
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
        Code::Deferred,
        Code::Incompatible,
    ];

    /// The code with this number; [`Code::Unknown`] for a number that has no name.
    pub fn from_number(number: u32) -> Code {
        Self::ALL.into_iter().find(|&code| code as u32 == number).unwrap_or(Code::Unknown)
    }
}

/// The origin of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An operation's own work failed on its device or in its host call.
    Operation,
    /// The whole device was lost.
    Device,
    /// The program failed a timeline on purpose.
    Host,
    /// A timeline was dropped while operations still waited for it: it can never be signalled.
    Abandoned,
    /// The engine was shut down.
    Shutdown,
}

/// One failure and its cause. Cheap to clone; every clone is the same failure.
#[derive(Clone)]
pub struct Failure(Arc<Inner>);

struct Inner {
    code: Code,
    origin: Origin,
    message: Box<str>,
}

impl Failure {
    /// A failure of an operation's own work.
    pub fn new(code: Code, message: impl Into<Box<str>>) -> Self {
        Self::with_origin(code, Origin::Operation, message)
    }

    /// A failure that began at `origin`.
    pub fn with_origin(code: Code, origin: Origin, message: impl Into<Box<str>>) -> Self {
        Self(Arc::new(Inner { code, origin, message: message.into() }))
    }

    /// A panic that was caught; `who` panicked. This drops the payload; if that panics too, it is leaked.
    pub fn panicked(who: &str, payload: Box<dyn Any + Send>) -> Self {
        let words = payload
            .downcast_ref::<&str>()
            .map(|words| (*words).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        let dropped = |payload| catch_unwind(AssertUnwindSafe(|| drop(payload)));
        if let Err(worst) = dropped(payload).or_else(dropped) {
            std::mem::forget(worst);
        }
        Self::with_origin(Code::Internal, Origin::Device, format!("{who} panicked: {words}"))
    }

    /// A thread that could not be started, since the process is at a limit.
    pub fn without_thread(name: &str, error: &std::io::Error) -> Self {
        let message = format!(
            "thread {name:?} cannot be started: {error}; raise the limit of threads (ulimit -u, pids.max) or of memory \
             (ulimit -v, ulimit -l)"
        );
        Self::new(Code::ResourceExhausted, message)
    }

    /// The code of the failure.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The origin of the failure.
    pub fn origin(&self) -> Origin {
        self.0.origin
    }

    /// The message, for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// True if both come from the same event.
    pub fn same_root(&self, other: &Failure) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({:?}, {:?}, {:?})", self.code(), self.origin(), self.message())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code(), self.message())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_numbers() {
        for (index, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, index + 1);
            assert_eq!(Code::from_number(code as u32), code);
        }
        assert_eq!(Code::from_number(0), Code::Unknown);
        assert_eq!(Code::from_number(99), Code::Unknown);
    }

    #[test]
    fn clones_share_their_root_and_equal_failures_do_not() {
        let failure = Failure::new(Code::DataLoss, "bank 3 parity");
        assert!(failure.same_root(&failure.clone()));
        assert!(!failure.same_root(&Failure::new(Code::DataLoss, "bank 3 parity")));
        assert_eq!(failure.to_string(), "DataLoss: bank 3 parity");
    }

    #[test]
    fn panic_keeps_its_message_and_who_panicked() {
        let failure = Failure::panicked("bank 3", Box::new("parity".to_owned()));
        assert_eq!((failure.code(), failure.origin()), (Code::Internal, Origin::Device));
        assert_eq!(failure.message(), "bank 3 panicked: parity");
        assert_eq!(Failure::panicked("bank 3", Box::new("heat")).message(), "bank 3 panicked: heat");
        assert_eq!(Failure::panicked("bank 3", Box::new(7)).message(), "bank 3 panicked: no message");
    }
}
