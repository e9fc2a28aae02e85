// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The errors between a client and a device.
//!
//! The kernel's numbers mean different things for different calls; here each meaning has a name.

use super::Errno;
use hal_backend::memory_file::limit_advice;
use hal_backend::{Code, Failure};
use hal_qaic_abi::container::{ParseError, ParseErrorKind};
use hal_qaic_abi::nnc::command::Status;
use hal_qaic_abi::nnc::{Malformed, Version};
use hal_qaic_abi::uapi::Call;
use std::time::Duration;
use thiserror::Error;

/// Why a call did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// The device is offline, being reset, or unplugged.
    #[error("it is gone or being reset; open it again when it is back")]
    Gone,
    /// The workload's channel is not this client's any more: its sub-system has crashed, or the device was reset.
    #[error(
        "the workload is lost: its sub-system restarts, or its channel was taken away; the device goes on"
    )]
    WorkloadLost,
    /// The device refused what it was asked.
    #[error("{what}: the device refuses: {status}")]
    Refused {
        /// The request.
        what: &'static str,
        /// Its answer.
        status: Status,
    },
    /// The device has not answered.
    #[error("{what}: no answer within {waited:?}; the device may be hung: see the kernel's log, or reset it")]
    NoAnswer {
        /// The request.
        what: &'static str,
        /// How long it had.
        waited: Duration,
    },
    /// An answer that is not what was sent.
    #[error("{what}: the answer has a wrong checksum; the link to the device may be bad")]
    Checksum {
        /// The request.
        what: &'static str,
    },
    /// An answer that makes no sense.
    #[error("{what}: the device's answer is not understood: {why}")]
    Answer {
        /// The request.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The device speaks another version of the protocol.
    #[error(
        "the device's {what} are of version {device}, and this driver's of {ours}; use firmware and driver of one \
         release"
    )]
    Version {
        /// Which half of the protocol.
        what: &'static str,
        /// The device's version.
        device: Version,
        /// The version of this backend.
        ours: Version,
    },
    /// The network's metadata is not what the device's firmware reads.
    #[error(
        "the network's metadata is of version {network}, and the device reads {device}; {}",
        remedy(*network, *device)
    )]
    Metadata {
        /// The network's version.
        network: Version,
        /// The device's version.
        device: Version,
    },
    /// The network is for another generation of hardware.
    #[error(
        "the network was compiled for hardware {network}, and the device is {device}; compile it for the device"
    )]
    Hardware {
        /// The network's generation.
        network: Version,
        /// The device's generation.
        device: Version,
    },
    /// A network takes more than the device has altogether.
    #[error("the network takes {network} {what}, and the whole device has {device}; compile it for less")]
    Demand {
        /// Of which resource.
        what: &'static str,
        /// How many the network takes.
        network: u64,
        /// How many the device has.
        device: u64,
    },
    /// Other programs have what is missing, and have not given it back.
    #[error(
        "{error}, since other programs that use it have had it for {waited:.0?}; let them run fewer networks at a time \
         (channels=), or compile networks for fewer cores"
    )]
    Scarce {
        /// What is missing.
        error: Box<Error>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// A wait ended before what it waited for.
    #[error("it has not ended in time")]
    TimedOut,
    /// The channel's ring has no room now.
    #[error("the channel's ring is full")]
    Full,
    /// The objects of one run never fit into the channel's ring.
    #[error("the channel's ring is too small for the network's buffers; give elements= more")]
    Ring,
    /// A buffer object is queued.
    #[error("the buffer object is queued")]
    Queued,
    /// A message to the device that cannot be made.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A container that is refused.
    #[error(transparent)]
    Container(#[from] ParseError),
    /// Whatever else the kernel says.
    #[error("{what}: {} ({errno}, errno {})", advice(*errno), errno.raw_os_error())]
    Kernel {
        /// The call.
        what: &'static str,
        /// The kernel's number.
        errno: Errno,
    },
}

/// What to do with a network and a device of different releases.
fn remedy(network: Version, device: Version) -> &'static str {
    if network.major > device.major {
        "the network is newer: compile it with the SDK of the device's firmware, or update the firmware"
    } else {
        "the device is newer: compile the network with the SDK of its firmware"
    }
}

/// The purpose of a call, in messages.
fn purpose(call: Call) -> &'static str {
    match call {
        Call::Manage => "a message to the device",
        Call::CreateBo => "a buffer object",
        Call::MmapBo => "the mapping of a buffer object",
        Call::AttachSlice => "the slices of a buffer object",
        Call::Execute | Call::PartialExecute => "the execution of buffer objects",
        Call::Wait => "a wait",
        Call::PerfStats => "the statistics of an execution",
        Call::DetachSlice => "the end of slices",
        Call::PartitionDevice => "a partition",
        Call::Version => "the name of the driver",
        Call::GemClose => "the end of a buffer object",
        Call::HandleToDescriptor | Call::DescriptorToHandle => "a shared buffer object",
    }
}

/// The meaning of an errno for which a call has no meaning of its own.
fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "there is no such buffer object",
        Errno::INVAL => "the kernel does not accept that",
        Errno::FAULT => "memory that was given cannot be read or written",
        Errno::ACCESS => "this user may not do that; add it to the group of the device's node",
        Errno::NOSPC => "there is not enough room",
        Errno::AGAIN => {
            "the device has taken no message for seconds; it may be busy or hung: see the kernel's log, or try again"
        }
        Errno::INTR => "a signal interrupted it, and what it did before is unknown",
        Errno::IO => "the device was reset before it answered",
        _ => limit_advice(errno).unwrap_or("the kernel's driver failed"),
    }
}

/// The code of a device's refusal. Its number and what it means are in the message.
fn refusal(status: Status) -> Code {
    match status {
        _ if status.is_exhaustion() => Code::ResourceExhausted,
        Status::QUEUE_TOO_SMALL => Code::ResourceExhausted,
        Status::RESTARTING => Code::Unavailable,
        Status::NOT_PERMITTED => Code::PermissionDenied,
        Status::METADATA | Status::IMAGE => Code::Incompatible,
        Status::UNDEFINED_REQUEST => Code::Unimplemented,
        Status::PARAMETER | Status::LENGTH => Code::InvalidArgument,
        Status::TIMEOUT => Code::DeadlineExceeded,
        Status::NOT_FOUND => Code::NotFound,
        _ => Code::Internal,
    }
}

impl Error {
    /// The meaning of an errno for a call.
    pub fn of(call: Call, errno: Errno) -> Self {
        let what = purpose(call);
        let on_channel = matches!(
            call,
            Call::AttachSlice | Call::DetachSlice | Call::Execute | Call::PartialExecute | Call::Wait
        );
        match errno {
            Errno::NODEV => Error::Gone,
            // A channel without this owner, and one whose sub-system restarts. For a message it is another matter.
            Errno::PERM | Errno::PIPE if on_channel => Error::WorkloadLost,
            Errno::PIPE if call == Call::Manage => Error::Checksum { what },
            Errno::AGAIN if on_channel => Error::Full,
            Errno::TIMEDOUT if call == Call::Wait => Error::TimedOut,
            Errno::BUSY if call == Call::DetachSlice => Error::Queued,
            Errno::NOSPC if call == Call::AttachSlice => Error::Ring,
            errno => Error::Kernel { what, errno },
        }
    }

    /// True if a resource is missing that may be free later.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            Error::Refused { status, .. } => status.is_exhaustion(),
            Error::Full => true,
            _ => false,
        }
    }

    fn code(&self) -> Code {
        match self {
            Error::Gone | Error::WorkloadLost | Error::Full | Error::Queued => Code::Unavailable,
            Error::Refused { status, .. } => refusal(*status),
            Error::Version { .. } | Error::Metadata { .. } | Error::Hardware { .. } => Code::Incompatible,
            Error::Scarce { error, .. } => error.code(),
            Error::Answer { .. } => Code::Internal,
            Error::NoAnswer { .. } | Error::TimedOut => Code::DeadlineExceeded,
            Error::Checksum { .. } => Code::DataLoss,
            Error::Ring | Error::Demand { .. } => Code::ResourceExhausted,
            Error::Malformed(_) => Code::InvalidArgument,
            Error::Container(fault) => match fault.kind() {
                ParseErrorKind::Incompatible => Code::Incompatible,
                ParseErrorKind::Invalid => Code::InvalidArgument,
                ParseErrorKind::Unsupported => Code::Unimplemented,
                ParseErrorKind::Forbidden => Code::PermissionDenied,
            },
            Error::Kernel { errno, .. } => match *errno {
                Errno::NOMEM | Errno::NOSPC | Errno::MFILE | Errno::NFILE => Code::ResourceExhausted,
                Errno::INVAL | Errno::FAULT | Errno::NOENT => Code::InvalidArgument,
                Errno::ACCESS | Errno::PERM => Code::PermissionDenied,
                Errno::INTR => Code::Aborted,
                Errno::IO | Errno::AGAIN => Code::Unavailable,
                _ => Code::Internal,
            },
        }
    }

    /// The failure that a program gets, about the device with this name.
    pub fn failure(&self, name: &str) -> Failure {
        Failure::new(self.code(), format!("{name}: {self}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meaning_of_an_error_number_depends_on_its_call() {
        assert_eq!(Error::of(Call::Execute, Errno::PIPE), Error::WorkloadLost);
        assert_eq!(Error::of(Call::Wait, Errno::PERM), Error::WorkloadLost);
        assert!(matches!(Error::of(Call::Manage, Errno::PIPE), Error::Checksum { .. }));
        assert!(matches!(Error::of(Call::Manage, Errno::PERM), Error::Kernel { .. }));
        assert_eq!(Error::of(Call::Execute, Errno::AGAIN), Error::Full);
        assert_eq!(Error::of(Call::DetachSlice, Errno::BUSY), Error::Queued);
        assert_eq!(Error::of(Call::Wait, Errno::TIMEDOUT), Error::TimedOut);
        for call in Call::ALL {
            assert_eq!(Error::of(call, Errno::NODEV), Error::Gone);
        }
    }

    #[test]
    fn each_refusal_of_a_device_has_its_code_and_its_number() {
        let cases = [
            (-1, Code::Internal),
            (-2, Code::Internal),
            (-3, Code::Unimplemented),
            (-4, Code::ResourceExhausted),
            (-5, Code::Incompatible),
            (-6, Code::InvalidArgument),
            (-7, Code::DeadlineExceeded),
            (-9, Code::PermissionDenied),
            (-11, Code::NotFound),
            (-12, Code::ResourceExhausted),
            (-13, Code::ResourceExhausted),
            (-14, Code::ResourceExhausted),
            (-15, Code::ResourceExhausted),
            (-17, Code::InvalidArgument),
            (-34, Code::ResourceExhausted),
            (-36, Code::Unavailable),
            (-46, Code::Incompatible),
            (-99, Code::Internal),
        ];
        for (number, code) in cases {
            let failure = Error::Refused { what: "it", status: Status(number) }.failure("accel0");
            assert_eq!(failure.code(), code, "{number}");
            assert!(failure.message().ends_with(&format!("(NNC status {number})")), "{failure}");
        }
    }

    #[test]
    fn failures_name_the_device_the_number_and_the_advice() {
        let refused = Error::Refused { what: "the activation", status: Status::NO_CORES }.failure("accel3");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(
            refused.message(),
            "accel3: the activation: the device refuses: it has not enough cores left (NNC status -13)"
        );
        let denied = Error::of(Call::CreateBo, Errno::ACCESS).failure("accel0");
        assert_eq!(denied.code(), Code::PermissionDenied);
        assert!(denied.message().contains("group") && denied.message().contains("errno 13"), "{denied}");
        assert_eq!(Error::Gone.failure("x").code(), Code::Unavailable);
        assert_eq!(Error::TimedOut.failure("x").code(), Code::DeadlineExceeded);
    }

    #[test]
    fn each_error_has_its_code() {
        let version = Version { major: 1, minor: 0 };
        let malformed = Malformed::TooShort { what: "it", needed: 2, found: 1 };
        for (error, code) in [
            (Error::Gone, Code::Unavailable),
            (Error::WorkloadLost, Code::Unavailable),
            (Error::Full, Code::Unavailable),
            (Error::Queued, Code::Unavailable),
            (Error::Version { what: "it", device: version, ours: version }, Code::Incompatible),
            (Error::Metadata { network: version, device: version }, Code::Incompatible),
            (Error::Hardware { network: version, device: version }, Code::Incompatible),
            (Error::Demand { what: "cores", network: 2, device: 1 }, Code::ResourceExhausted),
            (Error::Answer { what: "it", why: String::new() }, Code::Internal),
            (Error::NoAnswer { what: "it", waited: Duration::ZERO }, Code::DeadlineExceeded),
            (Error::TimedOut, Code::DeadlineExceeded),
            (Error::Checksum { what: "it" }, Code::DataLoss),
            (Error::Ring, Code::ResourceExhausted),
            (Error::Malformed(malformed), Code::InvalidArgument),
        ] {
            assert_eq!(error.failure("x").code(), code, "{error}");
        }
    }

    #[test]
    fn each_error_number_has_its_code_and_message() {
        for (errno, code, says) in [
            (Errno::NOMEM, Code::ResourceExhausted, "memory"),
            (Errno::NOSPC, Code::ResourceExhausted, "room"),
            (Errno::INVAL, Code::InvalidArgument, "does not accept"),
            (Errno::FAULT, Code::InvalidArgument, "cannot be read"),
            (Errno::NOENT, Code::InvalidArgument, "no such buffer object"),
            (Errno::ACCESS, Code::PermissionDenied, "group"),
            (Errno::PERM, Code::PermissionDenied, "failed"),
            (Errno::INTR, Code::Aborted, "signal"),
            (Errno::IO, Code::Unavailable, "reset"),
            (Errno::AGAIN, Code::Unavailable, "try again"),
            (Errno::MFILE, Code::ResourceExhausted, "files"),
            (Errno::NFILE, Code::ResourceExhausted, "files"),
            (Errno::XDEV, Code::Internal, "failed"),
        ] {
            let failure = Error::Kernel { what: "it", errno }.failure("accel0");
            assert_eq!(failure.code(), code, "{failure}");
            let number = format!("errno {}", errno.raw_os_error());
            assert!(failure.message().contains(says) && failure.message().contains(&number), "{failure}");
        }
    }
}
