// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters that emulated machines share. Each emulator declares those that it reads.

use hal_backend::{Code, Failure, Parameter, Parameters, processors};
use std::time::Duration;

/// `workers=N`.
pub const WORKERS: Parameter = Parameter {
    name: "workers",
    values: "N",
    default: "one for each processor",
    effect: "threads that execute, 1 to 64",
};

/// `schedule=parallel|seeded`.
pub const SCHEDULE: Parameter = Parameter {
    name: "schedule",
    values: "parallel|seeded",
    default: "parallel",
    effect: "`seeded` executes on one thread, in an order drawn by `seed`",
};

/// `seed=N`.
pub const SEED: Parameter = Parameter {
    name: "seed",
    values: "N",
    default: "0",
    effect: "the seed of `schedule=seeded` and of random faults",
};

/// `machine=NAME`.
pub const MACHINE: Parameter = Parameter {
    name: "machine",
    values: "NAME",
    default: "none",
    effect: "the name under which this user's other processes see which cards are in use",
};

/// `fault=FAULT`.
pub const FAULT: Parameter = Parameter {
    name: "fault",
    values: "FAULT",
    default: "none",
    effect: "a [fault](#faults) to inject; may be given several times",
};

/// `cards=N`, with an emulator's own default.
pub const fn cards(default: &'static str) -> Parameter {
    Parameter { name: "cards", values: "N", default, effect: "how many cards there are, 1 to 8" }
}

/// `speed=N`, with what it speeds up; `1/N` gives slow machines more time.
pub const fn speed(effect: &'static str) -> Parameter {
    Parameter { name: "speed", values: "N|1/N", default: "1", effect }
}

/// How a machine executes.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// How many threads execute.
    pub workers: usize,
    /// True if the next unit of work is drawn by the seed, rather than taken by a worker that is free.
    pub seeded: bool,
    /// The seed of `seeded` and of random faults.
    pub seed: u64,
    /// How much faster than the clock emulated seconds pass.
    pub speed: u32,
    /// How much slower.
    pub slowness: u32,
    /// Under which name other processes see what is in use.
    pub machine: Option<String>,
}

impl Default for Execution {
    fn default() -> Self {
        Self { workers: processors(), seeded: false, seed: 0, speed: 1, slowness: 1, machine: None }
    }
}

/// The most cards of a machine.
pub const MOST_CARDS: usize = 8;

/// Refuses a card that a machine of so many has not.
pub fn check_card(driver: &str, number: usize, cards: usize) -> Result<(), Failure> {
    if number < cards {
        return Ok(());
    }
    let many = if cards == 1 { "1 card" } else { &format!("{cards} cards") };
    let advice = if number < MOST_CARDS {
        format!("give cards={} for it", number + 1)
    } else {
        format!("a machine has up to {MOST_CARDS}, numbered from 0 to {}", MOST_CARDS - 1)
    };
    let message = format!(
        "there is no {driver}://emulated/{number}: the machine has {many}, from emulated/0; {advice}"
    );
    Err(Failure::new(Code::NotFound, message))
}

impl Execution {
    /// Reads [`WORKERS`], [`SCHEDULE`] and [`SEED`].
    pub fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let defaults = Self::default();
        let seeded = parameters.choice("schedule", &["parallel", "seeded"])? == Some("seeded");
        let workers = parameters.number("workers", defaults.workers, 1, 64)?;
        Ok(Self {
            workers: if seeded { 1 } else { workers },
            seeded,
            seed: parameters.number("seed", 0, 0, u64::MAX)?,
            ..defaults
        })
    }

    /// The same, with the speed of the parameters.
    pub fn with_speed(self, parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        const MOST: u32 = 1_000_000;
        let Some(text) = parameters.take("speed")? else { return Ok(self) };
        let number = |text: &str| text.parse().ok().filter(|number| (1..=MOST).contains(number));
        let (speed, slowness) = match text.strip_prefix("1/") {
            Some(slower) => (Some(1), number(slower)),
            None => (number(text), Some(1)),
        };
        match (speed, slowness) {
            (Some(speed), Some(slowness)) => Ok(Self { speed, slowness, ..self }),
            _ => {
                let why = format!("is {text:?}; it takes a number from 1 to {MOST}, or 1/ and such a number");
                Err(parameters.refuse("speed", &why))
            }
        }
    }

    /// The same, with the [name](MACHINE) of the parameters.
    pub fn with_machine(self, parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        Ok(Self { machine: name(parameters)?, ..self })
    }

    /// How long an emulated length of time takes.
    pub fn real(&self, emulated: Duration) -> Duration {
        emulated.saturating_mul(self.slowness) / self.speed.max(1)
    }
}

/// The name of a machine, which becomes part of a file's name.
fn name(parameters: &mut Parameters<'_>) -> Result<Option<String>, Failure> {
    let Some(text) = parameters.take("machine")? else { return Ok(None) };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
        let why = format!("is {text:?}; it takes a name of up to 64 letters, digits, - and _");
        return Err(parameters.refuse("machine", &why));
    }
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Execution, Failure> {
        let mut parameters = Parameters::new("device", pairs.iter().copied());
        let execution = Execution::read(&mut parameters)?;
        let execution = execution.with_speed(&mut parameters)?.with_machine(&mut parameters)?;
        parameters.finish().map(|()| execution)
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let execution = read(&[]).unwrap();
        assert_eq!(execution, Execution::default());
        assert_eq!((execution.workers, execution.seeded, execution.seed), (processors(), false, 0));
        assert_eq!((execution.speed, execution.machine), (1, None));
    }

    #[test]
    fn each_parameter_is_read() {
        let given = [("workers", "3"), ("seed", "9"), ("speed", "100"), ("machine", "rack-1_a")];
        let execution = read(&given).unwrap();
        assert_eq!((execution.workers, execution.seed, execution.speed), (3, 9, 100));
        assert_eq!(execution.machine.as_deref(), Some("rack-1_a"));
        assert_eq!(execution.real(Duration::from_secs(1)), Duration::from_millis(10));
        let slow = read(&[("speed", "1/20")]).unwrap();
        assert_eq!(slow.real(Duration::from_secs(1)), Duration::from_secs(20));
        let seeded = read(&[("schedule", "seeded"), ("workers", "8")]).unwrap();
        assert_eq!((seeded.workers, seeded.seeded), (1, true));
    }

    #[test]
    fn card_that_is_not_there_is_refused_with_how_to_have_it() {
        assert!(check_card("device", 0, 1).is_ok() && check_card("device", 7, 8).is_ok());
        let message = |number, cards| check_card("device", number, cards).unwrap_err().message().to_owned();
        assert!(message(1, 1).contains("device://emulated/1: the machine has 1 card, "), "{}", message(1, 1));
        assert!(message(7, 2).ends_with("give cards=8 for it"));
        assert!(message(8, 8).ends_with("up to 8, numbered from 0 to 7"));
    }

    #[test]
    fn each_wrong_value_is_refused_by_name() {
        for (key, value) in [
            ("workers", "0"),
            ("workers", "65"),
            ("schedule", "chaotic"),
            ("seed", "-1"),
            ("speed", "0"),
            ("speed", "1/0"),
            ("speed", "2/3"),
            ("machine", ""),
            ("machine", "a/b"),
        ] {
            let refused = read(&[(key, value)]).unwrap_err();
            assert!(refused.message().starts_with(&format!("device: parameter {key} ")), "{refused}");
        }
    }
}
