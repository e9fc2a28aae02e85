// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a `nvidia://` URI.

use crate::library::ContextKind;
use crate::queue::WaitKind;
use hal_backend::{Failure, Parameter, Parameters};

/// The parameters of every card.
pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "streams",
        values: "N",
        default: "2",
        effect: "queues, each a stream of CUDA's, 1 to 8; more than 8 would share channels of the card",
    },
    Parameter {
        name: "waits",
        values: "events|epochs",
        default: "events",
        effect: "how a stream waits for another: for an event at its end, or for a word of memory that it writes",
    },
    Parameter {
        name: "context",
        values: "own|primary",
        default: "own",
        effect: "`primary` works in the context that other libraries of the process use",
    },
    Parameter {
        name: "library",
        values: "PATH",
        default: "libcuda.so.1",
        effect: "the library of NVIDIA's driver",
    },
];

/// The most streams.
const MOST_STREAMS: usize = 8;

/// The settings of a device.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) streams: usize,
    pub(crate) waits: WaitKind,
    pub(crate) context: ContextKind,
    pub(crate) library: Option<String>,
}

impl Options {
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        Ok(Self {
            streams: parameters.number("streams", 2, 1, MOST_STREAMS)?,
            waits: match parameters.choice("waits", &["events", "epochs"])? {
                Some("epochs") => WaitKind::Words,
                _ => WaitKind::Events,
            },
            context: match parameters.choice("context", &["own", "primary"])? {
                Some("primary") => ContextKind::Primary,
                _ => ContextKind::Own,
            },
            library: parameters.take("library")?.map(str::to_owned),
        })
    }
}
