// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What machines are made with, whatever their devices are, read from the parameters of a URI.
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `workers=N` | one for each processor | threads that execute, 1 to 64 |
//! | `schedule=parallel\|seeded` | parallel | `seeded` executes on one thread, in an order drawn by `seed` |
//! | `seed=N` | 0 | what `schedule=seeded` and faults of chance draw from |
//! | `speed=N` | 1 | how much faster the driver's time passes, not what a program gives a wait |
//! | `machine=NAME` | none | the name under which other processes of this user see what is in use |

use hal_backend::{Code, Failure, Parameters, processors};
use std::time::Duration;

/// How a machine executes. The [module](self) says what each parameter does.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// How many threads execute.
    pub workers: usize,
    /// Whether the next unit of work is drawn by the seed, rather than taken by a worker that is free.
    pub seeded: bool,
    /// What is drawn from.
    pub seed: u64,
    /// How much faster than the clock emulated seconds pass.
    pub speed: u64,
    /// Under which name other processes see what is in use.
    pub machine: Option<String>,
}

impl Default for Execution {
    fn default() -> Self {
        Self { workers: processors(), seeded: false, seed: 0, speed: 1, machine: None }
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
    /// Takes what is for every machine from the parameters of a URI.
    pub fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let defaults = Self::default();
        let seeded = parameters.choice("schedule", &["parallel", "seeded"])? == Some("seeded");
        let workers = parameters.number("workers", defaults.workers, 1, 64)?;
        Ok(Self {
            workers: if seeded { 1 } else { workers },
            seeded,
            seed: parameters.number("seed", 0, 0, u64::MAX)?,
            speed: parameters.number("speed", 1, 1, 1_000_000)?,
            machine: name(parameters)?,
        })
    }

    /// How long an emulated length of time takes.
    pub fn real(&self, emulated: Duration) -> Duration {
        let speed = u32::try_from(self.speed).unwrap_or(u32::MAX);
        emulated / speed.max(1)
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
            ("machine", ""),
            ("machine", "a/b"),
        ] {
            let refused = read(&[(key, value)]).unwrap_err();
            assert!(refused.message().starts_with(&format!("device: parameter {key} ")), "{refused}");
        }
    }
}
