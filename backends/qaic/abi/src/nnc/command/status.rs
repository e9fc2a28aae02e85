// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The status of a command.

use std::fmt;

/// The status of a command. Zero is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub i32);

impl Status {
    /// It went well.
    pub const SUCCESS: Status = Status(0);
    /// Something went wrong.
    pub const ERROR: Status = Status(-1);
    /// The channel could not be set up.
    pub const DMA_ERROR: Status = Status(-2);
    /// There is no such command.
    pub const UNDEFINED_REQUEST: Status = Status(-3);
    /// There is not enough memory.
    pub const MEMORY: Status = Status(-4);
    /// The network is of another version, or broken.
    pub const METADATA: Status = Status(-5);
    /// An argument makes no sense.
    pub const PARAMETER: Status = Status(-6);
    /// Something did not happen in time.
    pub const TIMEOUT: Status = Status(-7);
    /// It belongs to another user, or is in use.
    pub const NOT_PERMITTED: Status = Status(-9);
    /// There is no such thing.
    pub const NOT_FOUND: Status = Status(-11);
    /// There are not enough multicast groups.
    pub const NO_MULTICAST: Status = Status(-12);
    /// There are not enough cores.
    pub const NO_CORES: Status = Status(-13);
    /// There are not enough channels.
    pub const NO_CHANNEL: Status = Status(-14);
    /// There are not enough semaphores.
    pub const NO_SEMAPHORES: Status = Status(-15);
    /// A command is longer or shorter than it should be.
    pub const LENGTH: Status = Status(-17);
    /// The rings are too small.
    pub const QUEUE_TOO_SMALL: Status = Status(-34);
    /// The sub-system is being restarted.
    pub const RESTARTING: Status = Status(-36);
    /// The program in the network's image is not for these cores.
    pub const IMAGE: Status = Status(-46);

    /// True for success.
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    /// True if a resource is missing that others have now, so that it may work later.
    pub fn is_exhaustion(self) -> bool {
        matches!(
            self,
            Self::MEMORY | Self::NO_MULTICAST | Self::NO_CORES | Self::NO_CHANNEL | Self::NO_SEMAPHORES
        )
    }

    /// Its meaning, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::ERROR => "a general error",
            Self::DMA_ERROR => "the DMA channel could not be set up",
            Self::UNDEFINED_REQUEST => "it does not know the command",
            Self::MEMORY => "it has not enough memory left",
            Self::METADATA => {
                "it does not understand the network's metadata; compile the network with the SDK of the card's firmware"
            }
            Self::PARAMETER => "an argument makes no sense to it",
            Self::TIMEOUT => "something did not happen in time",
            Self::NOT_PERMITTED => "it belongs to another user or is in use",
            Self::NOT_FOUND => "it has no such thing",
            Self::NO_MULTICAST => "it has not enough multicast groups left",
            Self::NO_CORES => "it has not enough cores left",
            Self::NO_CHANNEL => "it has no DMA channel left",
            Self::NO_SEMAPHORES => "it has not enough semaphores left",
            Self::LENGTH => "the command has an unexpected length",
            Self::QUEUE_TOO_SMALL => "the channel's rings are too small",
            Self::RESTARTING => "its sub-system is being restarted",
            Self::IMAGE => "its cores cannot run the network's program; compile the network for this card",
            _ => "a reason that only its firmware's documentation names",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (NNC status {})", self.meaning(), self.0)
    }
}
