// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The meaning of the kernel's answers, with advice.

use super::Errno;
use super::uapi::{event, status};
use hal_backend::memory_file::limit_advice;
use hal_backend::{Code, Failure};

/// The name that the kernel's driver gives itself.
pub(super) const DRIVER: &str = "habanalabs";

/// The failure of a call, with advice.
pub(super) fn failure(name: &str, what: &str, errno: Errno) -> Failure {
    let (code, advice) = match errno {
        Errno::NOMEM => {
            (Code::ResourceExhausted, "there is not enough memory for it; give some back, or ask for less")
        }
        Errno::BUSY => (Code::Unavailable, "it is being reset; open it again"),
        Errno::NODEV => (Code::Unavailable, "it is gone; open it again if it comes back"),
        Errno::PERM => (Code::PermissionDenied, "its driver does not allow that"),
        Errno::FAULT => (Code::InvalidArgument, "memory that it was given cannot be read or written"),
        Errno::INVAL => (Code::InvalidArgument, "its driver does not accept that"),
        Errno::AGAIN => (Code::Unavailable, "its queues are full"),
        Errno::NOTTY => (Code::Unimplemented, "its driver does not know that"),
        _ => match limit_advice(errno) {
            Some(advice) => (Code::ResourceExhausted, advice),
            None => (Code::Internal, "its driver failed"),
        },
    };
    Failure::new(code, format!("{name}: {what}: {advice} ({errno}, errno {})", errno.raw_os_error()))
}

/// The names of the bits of the driver's events.
const EVENTS: [(u64, &str); 6] = [
    (event::UNDEFINED_OPCODE, "a command that it does not know"),
    (event::CS_TIMEOUT, "a submission that did not end in time"),
    (event::USER_ENGINE_ERROR, "an error of an engine"),
    (event::PAGE_FAULT, "an access to memory that is not mapped"),
    (event::DEVICE_UNAVAILABLE, "it is unavailable"),
    (event::DEVICE_RESET, "a reset"),
];

/// The names of the driver's events, for people.
pub(super) fn event_names(events: u64) -> impl Iterator<Item = &'static str> {
    EVENTS.iter().filter(move |(bit, _)| events & bit != 0).map(|&(_, name)| name)
}

/// The name of the state of a usable card.
pub(crate) const OPERATIONAL: &str = "operational";

/// The name of the state of a card that answers no question.
pub(crate) const GONE: &str = "gone";

/// The name of a state, for people.
pub(super) fn state_name(state: u32) -> &'static str {
    match state {
        status::OPERATIONAL => OPERATIONAL,
        status::IN_RESET => "being reset",
        status::MALFUNCTION => "broken until its driver is loaded again",
        status::NEEDS_RESET => "waiting for a reset",
        status::IN_DEVICE_CREATION => "being started",
        status::IN_RESET_AFTER_DEVICE_RELEASE => "being reset after its last use",
        _ => "in a state that this program does not know",
    }
}

/// Whether a state ends by itself.
pub(super) fn state_passes(state: u32) -> bool {
    matches!(state, status::IN_RESET | status::IN_DEVICE_CREATION | status::IN_RESET_AFTER_DEVICE_RELEASE)
}

/// Advice for a state in which a card is not used.
pub(super) fn state_advice(state: u32) -> &'static str {
    match state {
        status::MALFUNCTION => "load it again, and see the kernel's log for what broke it",
        status::NEEDS_RESET => "reset it",
        _ => "try again in a minute",
    }
}
