// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a `mock://` URI.

use crate::fault::Faults;
use hal_backend::{Completion, Failure, NativeWaits, Parameter, Parameters, processors};
use std::time::Duration;

/// The parameters of a mock device. The driver reads `devices`, and [`Options::read`] the rest.
pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "devices",
        values: "N",
        default: "2",
        effect: "how many devices there are, `mock://0` to `mock://N-1`, 1 to 64",
    },
    Parameter { name: "queues", values: "N", default: "2", effect: "hardware queues, 1 to 64" },
    Parameter {
        name: "workers",
        values: "N",
        default: "one for each processor",
        effect: "threads that run work, 1 to 64; one with `schedule=seeded`",
    },
    Parameter {
        name: "memory",
        values: "SIZE",
        default: "64g",
        effect: "the memory of the device, such as `512k` or `64m`; past it `RESOURCE_EXHAUSTED`",
    },
    Parameter {
        name: "depth",
        values: "N",
        default: "1024",
        effect: "jobs that a queue holds, 1 to 1048576; the engine keeps more until there is room",
    },
    Parameter {
        name: "waits",
        values: "epochs|events|none",
        default: "epochs",
        effect: "native waits between queues (`epochs`: until another queue completed a job; `events`: for a \
                 recorded event; `none`: the host waits)",
    },
    Parameter {
        name: "completion",
        values: "callback|poll|descriptor",
        default: "callback",
        effect: "how the host learns that a job has ended",
    },
    Parameter {
        name: "heaps",
        values: "N",
        default: "1",
        effect: "kinds of memory, 1 or 2; with 2 the host cannot map the device's own",
    },
    Parameter {
        name: "latency",
        values: "TIME",
        default: "0",
        effect: "how much later each job completes, such as `50us` or `2ms`, 60s at most",
    },
    Parameter {
        name: "schedule",
        values: "parallel|seeded",
        default: "parallel",
        effect: "`seeded` runs one job at a time, from a queue drawn by `seed`",
    },
    Parameter {
        name: "seed",
        values: "N",
        default: "0",
        effect: "the seed of `schedule=seeded` and `fault=jitter`",
    },
    Parameter {
        name: "fault",
        values: "FAULT",
        default: "none",
        effect: "a [fault](#faults) to inject; may be given several times",
    },
];

/// The settings of a device.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) queues: usize,
    pub(crate) workers: usize,
    pub(crate) memory: u64,
    pub(crate) depth: usize,
    pub(crate) waits: NativeWaits,
    pub(crate) completion: Completion,
    pub(crate) heaps: usize,
    pub(crate) latency: Duration,
    pub(crate) seeded: bool,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
}

impl Options {
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let seeded = parameters.choice("schedule", &["parallel", "seeded"])? == Some("seeded");
        let workers = parameters.number("workers", processors(), 1, 64)?;
        let waits = match parameters.choice("waits", &["epochs", "events", "none"])? {
            Some("none") => NativeWaits::None,
            Some("events") => NativeWaits::Events,
            _ => NativeWaits::Epochs,
        };
        let completion = match parameters.choice("completion", &["callback", "poll", "descriptor"])? {
            Some("poll") => Completion::Poll,
            Some("descriptor") => Completion::Descriptor,
            _ => Completion::Callback,
        };
        let faults = Faults::read(parameters)?;
        if faults.hang_up() && completion != Completion::Descriptor {
            return Err(parameters.refuse("fault", "has hangup:N, which needs completion=descriptor"));
        }
        Ok(Self {
            queues: parameters.number("queues", 2, 1, 64)?,
            workers: if seeded { 1 } else { workers },
            memory: parameters.bytes("memory")?.unwrap_or(64 << 30),
            depth: parameters.number("depth", 1024, 1, 1 << 20)?,
            waits,
            completion,
            heaps: parameters.number("heaps", 1, 1, 2)?,
            latency: duration(parameters, "latency")?.unwrap_or(Duration::ZERO),
            seeded,
            seed: parameters.number("seed", 0, 0, u64::MAX)?,
            faults,
        })
    }
}

/// A length of time: a number with `ns`, `us`, `ms` or `s` behind it.
fn duration(parameters: &mut Parameters<'_>, key: &'static str) -> Result<Option<Duration>, Failure> {
    let Some(text) = parameters.take(key)? else { return Ok(None) };
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("ns") => Some(1),
        Some("us") => Some(1_000),
        Some("ms") => Some(1_000_000),
        Some("s") => Some(1_000_000_000),
        Some("") if digits == "0" => Some(1),
        _ => None,
    };
    let time =
        unit.and_then(|unit: u64| digits.parse::<u64>().ok()?.checked_mul(unit)).map(Duration::from_nanos);
    match time {
        Some(time) if time <= Duration::from_secs(60) => Ok(Some(time)),
        _ => {
            Err(parameters
                .refuse(key, &format!("is {text:?}; it takes a time up to 60s, such as 50us or 2ms")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Options, Failure> {
        let mut parameters = Parameters::new("mock", pairs.iter().copied());
        let options = Options::read(&mut parameters)?;
        parameters.finish().map(|()| options)
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let options = read(&[]).unwrap();
        assert_eq!((options.queues, options.depth, options.memory), (2, 1024, 64 << 30));
        assert_eq!(
            (options.waits, options.latency, options.seeded),
            (NativeWaits::Epochs, Duration::ZERO, false)
        );
        assert_eq!(options.workers, processors());
        assert_eq!((options.completion, options.heaps), (Completion::Callback, 1));
    }

    #[test]
    fn parameters_are_declared_as_they_are_read() {
        let mut parameters = Parameters::new("mock", []);
        parameters.declare(PARAMETERS);
        Options::read(&mut parameters).unwrap();
        assert_eq!(parameters.undeclared(), [""; 0]);
        assert_eq!(parameters.untaken(), ["devices"]);
        for &Parameter { name, values, default, .. } in PARAMETERS {
            if values.contains('|') {
                for value in values.split('|') {
                    assert!(read(&[(name, value)]).is_ok(), "{name}={value}");
                }
                assert!(values.split('|').any(|value| value == default), "{name}");
            } else if !matches!(name, "devices" | "workers" | "fault") {
                assert!(read(&[(name, default)]).is_ok(), "{name}={default}");
            }
        }
    }

    #[test]
    fn each_parameter_is_read() {
        let pairs = [
            ("queues", "5"),
            ("workers", "3"),
            ("memory", "1m"),
            ("depth", "7"),
            ("waits", "none"),
            ("completion", "poll"),
            ("heaps", "2"),
            ("latency", "50us"),
            ("seed", "9"),
        ];
        let options = read(&pairs).unwrap();
        assert_eq!((options.queues, options.workers, options.memory), (5, 3, 1 << 20));
        assert_eq!((options.depth, options.waits), (7, NativeWaits::None));
        assert_eq!((options.completion, options.heaps), (Completion::Poll, 2));
        assert_eq!((options.latency, options.seed), (Duration::from_micros(50), 9));
        assert_eq!(read(&[("waits", "events")]).unwrap().waits, NativeWaits::Events);
        let hangs_up = [("completion", "descriptor"), ("fault", "hangup:3")];
        assert_eq!(read(&hangs_up).unwrap().completion, Completion::Descriptor);
        assert_eq!(read(&[("schedule", "seeded"), ("workers", "8")]).unwrap().workers, 1);
    }

    #[test]
    fn each_wrong_value_is_refused_by_name() {
        for (key, value) in [
            ("queues", "0"),
            ("queues", "65"),
            ("workers", "none"),
            ("memory", "lots"),
            ("depth", "0"),
            ("waits", "sometimes"),
            ("completion", "pigeon"),
            ("heaps", "3"),
            ("latency", "5"),
            ("latency", "61s"),
            ("schedule", "chaotic"),
            ("seed", "-1"),
            ("fault", "fail"),
            ("fault", "hangup:1"),
            ("colour", "red"),
        ] {
            let refused = read(&[(key, value)]).unwrap_err();
            assert!(refused.message().starts_with(&format!("mock: parameter {key} ")), "{refused}");
        }
    }
}
