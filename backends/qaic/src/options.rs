// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a `qaic://` URI.

use crate::networks::Settings;
use hal_backend::{Failure, Parameter, Parameters};
use std::time::Duration;

/// The parameters of every card.
pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "open_timeout",
        values: "SECONDS",
        default: "10",
        effect: "how long to wait for a card that boots or is being reset",
    },
    Parameter {
        name: "control_timeout",
        values: "SECONDS",
        default: "the kernel's: 60",
        effect: "how long a message to the card may take, at most what the kernel waits",
    },
    Parameter {
        name: "timeout",
        values: "SECONDS",
        default: "60",
        effect: "how long a dispatch may take; then its network is stopped and the dispatch fails",
    },
    Parameter {
        name: "restart_timeout",
        values: "SECONDS",
        default: "5",
        effect: "how long a network waits for a sub-system that restarts",
    },
    Parameter { name: "channels", values: "N", default: "16", effect: "how many networks run at once" },
    Parameter {
        name: "elements",
        values: "N",
        default: "512, or what is needed",
        effect: "how many elements a channel's rings have; a given number is never raised",
    },
    Parameter {
        name: "in_flight",
        values: "N",
        default: "what the ring takes",
        effect: "how many dispatches of one network are queued at once",
    },
];

/// The settings of a device.
pub(crate) struct Options {
    /// How long to wait for a card that boots or is being reset.
    pub(crate) patience: Duration,
    /// How long a message to the card may take; by default as long as the kernel waits.
    pub(crate) control: Option<Duration>,
    pub(crate) settings: Settings,
}

impl Options {
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let default = Settings::default();
        let mut seconds = |key, default: Duration, least| {
            parameters.number(key, default.as_secs(), least, 86_400).map(Duration::from_secs)
        };
        let patience = seconds("open_timeout", Duration::from_secs(10), 0)?;
        let timeout = seconds("timeout", default.timeout, 1)?;
        let restart_timeout = seconds("restart_timeout", default.restart_timeout, 0)?;
        let control = parameters.optional_number("control_timeout", 1, 86_400)?;
        let elements = parameters.optional_number("elements", 1, 1 << 15)?;
        let in_flight = parameters.optional_number("in_flight", 1, 1 << 15)?;
        let settings = Settings {
            channels: parameters.number("channels", default.channels, 1, default.channels)?,
            elements,
            in_flight,
            timeout,
            restart_timeout,
            ..default
        };
        Ok(Self { patience, control: control.map(Duration::from_secs), settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::Code;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Options, Failure> {
        Options::read(&mut Parameters::new("qaic", pairs.iter().copied()))
    }

    #[test]
    fn timeouts_are_read_or_refused() {
        let given = read(&[
            ("open_timeout", "0"),
            ("control_timeout", "7"),
            ("timeout", "90"),
            ("restart_timeout", "0"),
            ("channels", "3"),
            ("elements", "64"),
        ]);
        let given = given.unwrap();
        assert_eq!((given.patience, given.control), (Duration::ZERO, Some(Duration::from_secs(7))));
        let settings = given.settings;
        assert_eq!((settings.timeout, settings.restart_timeout), (Duration::from_secs(90), Duration::ZERO));
        assert_eq!((settings.channels, settings.elements), (3, Some(64)));
        let default = read(&[]).unwrap();
        assert_eq!((default.control, default.settings.elements), (None, None));
        for pair in [
            ("timeout", "0"),
            ("control_timeout", "0"),
            ("control_timeout", "soon"),
            ("channels", "17"),
            ("elements", "0"),
        ] {
            let refused = read(&[pair]).map(|_| ()).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(pair.0), "{refused}");
        }
    }
}
