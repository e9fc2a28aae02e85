// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the environment or a control call asks for.

use std::time::Duration;

/// Options, as `NAME=VALUE` with commas between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `seed=N`: delays of streams, order of blocks and of graphs' nodes; with 0 there are none.
    pub seed: u64,
    /// `delay=N`: the longest delay of a stream before an operation, in microseconds.
    pub delay: Duration,
    /// `devices=N`.
    pub devices: i32,
    /// `memory=N`: MiB of each device.
    pub memory: u64,
    /// `pending=N`: how many launches a stream takes before it blocks the caller.
    pub pending: usize,
    /// `budget=N`: how many instructions of warps a launch may run before it is a timeout.
    pub budget: Option<u64>,
    /// `exit`: a broken rule ends the process.
    pub exit: bool,
    /// `quiet`: broken rules are counted and not printed.
    pub quiet: bool,
    /// `counts`: how often each function was called is printed at the end of the process.
    pub counts: bool,
    /// `times`: each launch is printed with its time.
    pub times: bool,
    /// `fault=NAME@N`: the Nth event of this kind from now fails. `fault=FUNCTION:RESULT@N`: the Nth call of a
    /// function, or of `any`, does nothing and returns a result; one that stays is the process's from then on.
    pub faults: Vec<(Injection, u64)>,
}

/// A failure that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injection {
    /// `illegal-address`: a kernel that runs makes the process's error 700, which stays.
    IllegalAddress,
    /// `launch-failed`: a kernel that runs makes the process's error 719, which stays.
    LaunchFailed,
    /// `launch-error`: a launch of a kernel or a graph is refused with 701.
    LaunchError,
    /// `out-of-memory`: an allocation, or to instantiate a graph, fails with 2.
    OutOfMemory,
    /// `stall`: a kernel does not end until `release`.
    Stall,
    /// `FUNCTION:RESULT`: a call of a function.
    Call(String, i32),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            delay: Duration::from_micros(200),
            devices: 1,
            memory: 4096,
            pending: 1000,
            budget: None,
            exit: false,
            quiet: false,
            counts: false,
            times: false,
            faults: Vec::new(),
        }
    }
}

impl Options {
    /// Changes what a text names.
    ///
    /// # Errors
    /// What in it is not an option.
    pub fn apply(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = || value.parse::<u64>().map_err(|_| format!("`{part}` is not an option"));
            match name {
                "seed" => self.seed = number()?,
                "delay" => self.delay = Duration::from_micros(number()?),
                "devices" => self.devices = i32::try_from(number()?.min(64)).unwrap_or(64),
                "memory" => self.memory = number()?.clamp(1, 1 << 20),
                "pending" => self.pending = usize::try_from(number()?.max(1)).unwrap_or(usize::MAX),
                "budget" => self.budget = Some(number()?),
                "exit" if value.is_empty() => self.exit = true,
                "quiet" if value.is_empty() => self.quiet = true,
                "counts" if value.is_empty() => self.counts = true,
                "times" if value.is_empty() => self.times = true,
                "fault" => self.faults.push(fault(value)?),
                _ => return Err(format!("`{part}` is not an option")),
            }
        }
        Ok(())
    }
}

fn fault(value: &str) -> Result<(Injection, u64), String> {
    let (name, number) = value.split_once('@').unwrap_or((value, "1"));
    let kind = match name {
        "illegal-address" => Injection::IllegalAddress,
        "launch-failed" => Injection::LaunchFailed,
        "launch-error" => Injection::LaunchError,
        "out-of-memory" => Injection::OutOfMemory,
        "stall" => Injection::Stall,
        _ => match name.split_once(':').map(|(function, result)| (function, result.parse())) {
            Some((function, Ok(result))) if result != 0 => Injection::Call(function.to_owned(), result),
            _ => return Err(format!("`{name}` is not a fault")),
        },
    };
    let number =
        number.parse().ok().filter(|&it| it > 0).ok_or_else(|| format!("`{number}` is not a number"))?;
    Ok((kind, number))
}
