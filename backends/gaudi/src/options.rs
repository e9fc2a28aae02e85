// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a `gaudi://` URI.

use crate::{ipc, submit};
use hal_backend::{Failure, Parameter, Parameters};
use std::time::Duration;

/// The parameters of every card.
pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "open_timeout",
        values: "SECONDS",
        default: "130",
        effect: "how long to wait for a card that is being reset",
    },
    Parameter {
        name: "timeout",
        values: "SECONDS",
        default: "the kernel's: 30; 600 on Gaudi",
        effect: "how long a submission may take; then the kernel resets the card",
    },
    Parameter {
        name: "in_flight",
        values: "N",
        default: "63; 1024 on Gaudi",
        effect: "how many submissions may be in flight",
    },
    Parameter {
        name: "dmabuf",
        values: "on|off",
        default: "on",
        effect: "whether memory is [shared](#memory-for-others) at all",
    },
    Parameter {
        name: "mapped_dmabuf",
        values: "on|off",
        default: "on",
        effect: "whether a part of an allocation can be exported, if the card can",
    },
    Parameter { name: "dmabuf_cache", values: "N", default: "64", effect: "how many imports are kept" },
    Parameter {
        name: "max_devices",
        values: "N",
        default: "8",
        effect: "between how many cards there may be channels",
    },
    Parameter {
        name: "peer_timeout",
        values: "SECONDS",
        default: "30",
        effect: "how long an exporter may take to answer, if bytes go through the host",
    },
];

/// How many seconds a card that is being reset is waited for. The kernel gives the firmware 25 to 85 s to come up,
/// and 10 s and 30 s for what it loads then.
const OPEN_TIMEOUT: u64 = 130;

/// The settings of a device.
#[derive(Debug)]
pub(crate) struct Options {
    /// How long to wait for a card that is being reset.
    pub(crate) patience: Duration,
    /// How many submissions may be in flight; by default as many as the kernel takes.
    pub(crate) in_flight: Option<usize>,
    /// How many seconds a submission may take; by default as many as the kernel gives it.
    pub(crate) timeout: Option<u32>,
    /// How memory is shared.
    pub(crate) ipc: ipc::Settings,
}

impl Options {
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        Ok(Self {
            patience: patience(parameters)?,
            in_flight: parameters.optional_number("in_flight", submit::LEAST, 1 << 14)?,
            timeout: parameters.optional_number("timeout", 1, 86_400)?,
            ipc: ipc::Settings::read(parameters)?,
        })
    }
}

/// How long to wait for a card that is being reset.
pub(crate) fn patience(parameters: &mut Parameters<'_>) -> Result<Duration, Failure> {
    parameters.number("open_timeout", OPEN_TIMEOUT, 0, 3600).map(Duration::from_secs)
}
