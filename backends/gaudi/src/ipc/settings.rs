// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How sharing is set: by parameters of the URI, else by the environment.

use hal_backend::{Code, Failure, Parameters};
use std::time::Duration;

/// The settings of sharing. [The module](super) says what each is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// False if memory is not shared at all.
    pub dmabuf: bool,
    /// True if a part of an allocation can be exported.
    pub mapped: bool,
    /// How many imports are kept.
    pub cache: usize,
    /// Between how many cards there may be channels.
    pub devices: usize,
    /// How long an exporter may take to answer.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dmabuf: true, mapped: true, cache: 64, devices: 8, patience: Duration::from_secs(30) }
    }
}

const DMABUF: &str = "UCT_GAUDI_IPC_ENABLE_DMABUF";
const MAPPED: &str = "UCT_GAUDI_IPC_ENABLE_MAPPED_DMABUF";
const CACHE: &str = "UCT_GAUDI_IPC_DMABUF_CACHE_SIZE";
const DEVICES: &str = "UCT_GAUDI_IPC_MAX_DEVICES";

/// The most that may be asked for.
const MOST_CACHED: usize = 1 << 20;
const MOST_DEVICES: usize = 1 << 10;
/// An hour, in seconds.
const MOST_PATIENCE: u64 = 3600;

impl Settings {
    /// The settings of a process: those of its environment, which `variable` looks up.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let wrong = |key: &str, value: &str, takes: &str| {
            Failure::new(
                Code::InvalidArgument,
                format!("the environment has {key}={value}; it takes {takes}"),
            )
        };
        let truth = |key: &str, otherwise: bool| match variable(key).as_deref() {
            None | Some("") => Ok(otherwise),
            Some("yes" | "y" | "on" | "1" | "true") => Ok(true),
            Some("no" | "n" | "off" | "0" | "false") => Ok(false),
            Some(other) => Err(wrong(key, other, "yes or no")),
        };
        let number = |key: &str, otherwise: usize, least: usize, most: usize| match variable(key).as_deref() {
            None | Some("") => Ok(otherwise),
            Some(text) => match text.parse() {
                Ok(number) if (least..=most).contains(&number) => Ok(number),
                _ => Err(wrong(key, text, &format!("a number from {least} to {most}"))),
            },
        };
        let defaults = Self::default();
        Ok(Self {
            dmabuf: truth(DMABUF, defaults.dmabuf)?,
            mapped: truth(MAPPED, defaults.mapped)?,
            cache: number(CACHE, defaults.cache, 0, MOST_CACHED)?,
            devices: number(DEVICES, defaults.devices, 1, MOST_DEVICES)?,
            patience: defaults.patience,
        })
    }

    /// The settings of a device.
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let environment = Self::of_environment(|key| std::env::var(key).ok())?;
        let mut is_on = |key, otherwise| {
            Ok::<_, Failure>(match parameters.choice(key, &["on", "off"])? {
                Some(word) => word == "on",
                None => otherwise,
            })
        };
        let (dmabuf, mapped) =
            (is_on("dmabuf", environment.dmabuf)?, is_on("mapped_dmabuf", environment.mapped)?);
        Ok(Self {
            dmabuf,
            mapped,
            cache: parameters.number("dmabuf_cache", environment.cache, 0, MOST_CACHED)?,
            devices: parameters.number("max_devices", environment.devices, 1, MOST_DEVICES)?,
            patience: Duration::from_secs(parameters.number(
                "peer_timeout",
                environment.patience.as_secs(),
                1,
                MOST_PATIENCE,
            )?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_read_and_nonsense_in_it_is_named() {
        let of = |key: &'static str, value: &'static str| {
            Settings::of_environment(move |name| (name == key).then(|| value.to_owned()))
        };
        assert_eq!(of("OTHER", "no").unwrap(), Settings::default());
        assert!(!of(DMABUF, "no").unwrap().dmabuf && !of(MAPPED, "0").unwrap().mapped);
        assert_eq!((of(CACHE, "7").unwrap().cache, of(DEVICES, "2").unwrap().devices), (7, 2));
        for (key, value) in [(DMABUF, "maybe"), (MAPPED, "2"), (CACHE, "-1"), (CACHE, "lots"), (DEVICES, "0")]
        {
            let refused = of(key, value).unwrap_err();
            assert!(refused.message().contains(key) && refused.message().contains(value), "{refused}");
        }
    }

    #[test]
    fn parameters_go_before_the_environment() {
        let mut parameters =
            Parameters::new("gaudi", [("dmabuf", "off"), ("dmabuf_cache", "3"), ("peer_timeout", "7")]);
        let settings = Settings::read(&mut parameters).unwrap();
        assert_eq!((settings.dmabuf, settings.cache, settings.patience), (false, 3, Duration::from_secs(7)));
        assert!(Settings::read(&mut Parameters::new("gaudi", [("dmabuf", "perhaps")])).is_err());
    }
}
