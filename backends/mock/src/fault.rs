// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Injected faults.

use hal_backend::{Code, Command, Failure, Origin, Parameters, splitmix64};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The delay of `late:N`.
const LATE: Duration = Duration::from_millis(50);

/// The longest delay of `jitter`.
const JITTER_NS: u64 = 500_000;

/// The kinds of operations that `fail` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedKind {
    Fill,
    Copy,
    Update,
    Dispatch,
    Job,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Fail { kind: CountedKind, number: u64, code: Code },
    Late { number: u64 },
    Lose { number: u64 },
    Panic { number: u64 },
    Exhausted { number: u64 },
    HangUp { number: u64 },
}

/// The faults of a device, with their counters.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    faults: Vec<Fault>,
    jitter: bool,
    counts: [AtomicU64; 5],
    allocations: AtomicU64,
}

/// The status names that `fail` takes, as IREE writes them.
const CODES: [(&str, Code); 16] = [
    ("CANCELLED", Code::Cancelled),
    ("UNKNOWN", Code::Unknown),
    ("INVALID_ARGUMENT", Code::InvalidArgument),
    ("DEADLINE_EXCEEDED", Code::DeadlineExceeded),
    ("NOT_FOUND", Code::NotFound),
    ("ALREADY_EXISTS", Code::AlreadyExists),
    ("PERMISSION_DENIED", Code::PermissionDenied),
    ("RESOURCE_EXHAUSTED", Code::ResourceExhausted),
    ("FAILED_PRECONDITION", Code::FailedPrecondition),
    ("ABORTED", Code::Aborted),
    ("OUT_OF_RANGE", Code::OutOfRange),
    ("UNIMPLEMENTED", Code::Unimplemented),
    ("INTERNAL", Code::Internal),
    ("UNAVAILABLE", Code::Unavailable),
    ("DATA_LOSS", Code::DataLoss),
    ("UNAUTHENTICATED", Code::Unauthenticated),
];

impl Faults {
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let mut faults = Self::default();
        for text in parameters.take_all("fault") {
            if text == "jitter" {
                faults.jitter = true;
            } else if let Some(fault) = parse(text) {
                faults.faults.push(fault);
            } else {
                let why = format!(
                    "is {text:?}; it takes fail:KIND:N[:STATUS] (KIND is fill, copy, update, dispatch or job), late:N, \
                     jitter, lose:N, panic:N, oom:N or hangup:N"
                );
                return Err(parameters.refuse("fault", &why));
            }
        }
        Ok(faults)
    }

    /// True if there are any.
    pub(crate) fn any(&self) -> bool {
        self.jitter || !self.faults.is_empty()
    }

    /// True if any job may complete late.
    pub(crate) fn delays(&self) -> bool {
        self.jitter || self.faults.iter().any(|fault| matches!(fault, Fault::Late { .. }))
    }

    /// True if the descriptor hangs up at some job.
    pub(crate) fn hang_up(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::HangUp { .. }))
    }

    /// True if the descriptor hangs up at this job.
    pub(crate) fn hangs_up_at(&self, job: u64) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::HangUp { number } if *number == job))
    }

    /// Counts an operation of a kind, and fails it if a fault says so.
    pub(crate) fn count_and_fail(&self, kind: CountedKind) -> Result<(), Failure> {
        let Some(count) = self.counts.get(kind as usize).filter(|_| !self.faults.is_empty()) else {
            return Ok(());
        };
        let now = count.fetch_add(1, Ordering::Relaxed) + 1;
        for fault in &self.faults {
            if let Fault::Fail { kind: struck, number, code } = *fault
                && struck == kind
                && number == now
            {
                let message = format!("{kind:?} number {number} failed, as fault=fail asked");
                return Err(Failure::new(code, message));
            }
        }
        Ok(())
    }

    /// The loss of the device at this job, if a fault says so.
    pub(crate) fn loses(&self, job: u64) -> Option<Failure> {
        let lost = self.faults.iter().any(|fault| matches!(fault, Fault::Lose { number } if *number == job));
        lost.then(|| {
            let message = format!("the mock device was lost at job {job}, as fault=lose asked");
            Failure::with_origin(Code::Unavailable, Origin::Device, message)
        })
    }

    /// Panics at this job, if a fault says so.
    pub(crate) fn panic_at(&self, job: u64) {
        let asked =
            self.faults.iter().any(|fault| matches!(fault, Fault::Panic { number } if *number == job));
        assert!(!asked, "at job {job}, as fault=panic asked");
    }

    /// The time between a job's end and its completion.
    pub(crate) fn delay(&self, job: u64, seed: u64) -> Duration {
        let late = self.faults.iter().any(|fault| matches!(fault, Fault::Late { number } if *number == job));
        let jitter = if self.jitter {
            Duration::from_nanos(splitmix64(seed ^ job) % JITTER_NS)
        } else {
            Duration::ZERO
        };
        jitter + if late { LATE } else { Duration::ZERO }
    }

    /// Counts an allocation, and fails it if a fault says so.
    pub(crate) fn allocate(&self) -> Result<(), Failure> {
        let now = self.allocations.fetch_add(1, Ordering::Relaxed) + 1;
        if self.faults.iter().any(|fault| matches!(fault, Fault::Exhausted { number } if *number == now)) {
            let message = format!("allocation number {now} found no memory, as fault=oom asked");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        Ok(())
    }
}

/// The kind of a command.
pub(crate) fn kind<D: hal_backend::Device>(command: &Command<D>) -> Option<CountedKind> {
    match command {
        Command::Fill { .. } => Some(CountedKind::Fill),
        Command::Copy { .. } => Some(CountedKind::Copy),
        Command::Update { .. } => Some(CountedKind::Update),
        Command::Dispatch(_) => Some(CountedKind::Dispatch),
        Command::Barrier => None,
    }
}

fn parse(text: &str) -> Option<Fault> {
    let mut parts = text.split(':');
    let name = parts.next()?;
    let fault = match name {
        "fail" => {
            let kind = match parts.next()? {
                "fill" => CountedKind::Fill,
                "copy" => CountedKind::Copy,
                "update" => CountedKind::Update,
                "dispatch" => CountedKind::Dispatch,
                "job" => CountedKind::Job,
                _ => return None,
            };
            let number = count(parts.next()?)?;
            let code = match parts.next() {
                Some(name) => CODES.iter().find(|(known, _)| *known == name)?.1,
                None => Code::DataLoss,
            };
            Fault::Fail { kind, number, code }
        }
        "late" => Fault::Late { number: count(parts.next()?)? },
        "lose" => Fault::Lose { number: count(parts.next()?)? },
        "panic" => Fault::Panic { number: count(parts.next()?)? },
        "oom" => Fault::Exhausted { number: count(parts.next()?)? },
        "hangup" => Fault::HangUp { number: count(parts.next()?)? },
        _ => return None,
    };
    parts.next().is_none().then_some(fault)
}

fn count(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&number| number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(texts: &[&'static str]) -> Result<Faults, Failure> {
        Faults::read(&mut Parameters::new("mock", texts.iter().map(|&text| ("fault", text))))
    }

    #[test]
    fn one_with_the_number_fails_and_no_other() {
        let faults = faults(&["fail:copy:2:ABORTED", "fail:fill:1"]).unwrap();
        assert!(faults.count_and_fail(CountedKind::Copy).is_ok());
        assert_eq!(faults.count_and_fail(CountedKind::Copy).unwrap_err().code(), Code::Aborted);
        assert!(faults.count_and_fail(CountedKind::Copy).is_ok());
        assert_eq!(faults.count_and_fail(CountedKind::Fill).unwrap_err().code(), Code::DataLoss);
        assert!(faults.count_and_fail(CountedKind::Dispatch).is_ok());
    }

    #[test]
    fn loss_delay_and_exhaustion_have_their_number() {
        let faults = faults(&["lose:3", "late:2", "oom:1"]).unwrap();
        assert!(faults.loses(2).is_none());
        assert_eq!(faults.loses(3).unwrap().origin(), Origin::Device);
        faults.panic_at(3);
        assert_eq!((faults.delay(1, 0), faults.delay(2, 0)), (Duration::ZERO, LATE));
        assert_eq!(faults.allocate().unwrap_err().code(), Code::ResourceExhausted);
        assert!(faults.allocate().is_ok());
    }

    #[test]
    fn nonsense_is_refused_with_the_list() {
        for text in [
            "",
            "fail",
            "fail:copy",
            "fail:copy:0",
            "fail:paste:1",
            "fail:copy:1:BAD",
            "late",
            "lose:x",
            "panic",
            "panic:0",
            "oom:1:2",
            "hangup",
        ] {
            let refused = faults(&[text]).unwrap_err();
            assert!(refused.message().contains("jitter, lose:N, panic:N, oom:N or hangup:N"), "{refused}");
        }
    }
}
