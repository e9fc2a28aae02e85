// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What goes wrong on request: faults with names, which `fault=NAME:…` in a URI asks for.
//!
//! An emulator lists the [forms](Form) that it knows. Each device has [`Faults`] of its own, which count what happens to
//! the device from 1, for as long as its machine lives: what has happened does not happen again after a reset or
//! another open.

use hal_backend::{Failure, Parameters};
use hal_kernel::Errno;
use std::fmt;

/// When a fault strikes, which is also how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `name`: always.
    Always,
    /// `name:N`: at the N-th event.
    Nth,
    /// `name:N`: at each N-th event.
    Each,
    /// `name:K`: at the first K events.
    First,
    /// `name:N` or `name:N:K`: at the N-th event, or at K events from there.
    From,
    /// `name:N`: not at events; the emulator [asks](Faults::value) for the number.
    Value,
}

/// Errors that a program can choose from, as it writes them.
pub type Errors = &'static [(&'static str, Errno)];

/// A fault that an emulator knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    name: &'static str,
    when: When,
    /// If there are any, one is written between the name and the numbers.
    errors: Errors,
}

impl Form {
    /// A fault whose outcome is always the same.
    pub const fn new(name: &'static str, when: When) -> Self {
        Self { name, when, errors: &[] }
    }

    /// A fault with an error of the program's choice.
    pub const fn with_error(name: &'static str, when: When, errors: Errors) -> Self {
        Self { name, when, errors }
    }

    /// Reads what was written behind `fault=`.
    fn parse(&self, text: &str) -> Option<Fault> {
        let mut parts = text.split(':');
        if parts.next()? != self.name {
            return None;
        }
        let mut error = None;
        if !self.errors.is_empty() {
            let name = parts.next()?;
            error = Some(self.errors.iter().find(|(known, _)| *known == name)?.1);
        }
        let mut number = || parts.next()?.parse::<u64>().ok().filter(|&number| number > 0);
        let (first, count) = match self.when {
            When::Always => (1, u64::MAX),
            When::First => (1, number()?),
            When::Nth | When::Each | When::Value => (number()?, 1),
            When::From => {
                let first = number()?;
                let count = parts.next().map_or(Some(1), |text| text.parse().ok().filter(|&count| count > 0));
                (first, count?)
            }
        };
        parts.next().is_none().then_some(Fault { form: *self, error, first, count })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = format!("{}{}", self.name, if self.errors.is_empty() { "" } else { ":ERRNO" });
        match self.when {
            When::Always => f.write_str(&head)?,
            When::First => write!(f, "{head}:K")?,
            When::Nth | When::Each | When::Value => write!(f, "{head}:N")?,
            When::From => write!(f, "{head}:N or {head}:N:K")?,
        }
        let names: Vec<_> = self.errors.iter().map(|(name, _)| *name).collect();
        match names.split_last() {
            None => Ok(()),
            Some((last, [])) => write!(f, " ({last})"),
            Some((last, rest)) => write!(f, " ({} or {last})", rest.join(", ")),
        }
    }
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    form: Form,
    error: Option<Errno>,
    first: u64,
    count: u64,
}

impl Fault {
    /// Takes every fault from the parameters of a URI.
    pub fn read(parameters: &mut Parameters<'_>, forms: &[Form]) -> Result<Vec<Self>, Failure> {
        let mut faults = Vec::new();
        for text in parameters.take_all("fault") {
            match forms.iter().find_map(|form| form.parse(text)) {
                Some(fault) => faults.push(fault),
                None => {
                    let forms: Vec<_> = forms.iter().map(Form::to_string).collect();
                    let list =
                        forms.split_last().map(|(last, rest)| format!("{} or {last}", rest.join(", ")));
                    let why = format!("is {text:?}; it takes {}", list.unwrap_or_default());
                    return Err(parameters.refuse("fault", &why));
                }
            }
        }
        Ok(faults)
    }

    /// Whether it strikes at this event.
    fn strikes(&self, event: u64) -> bool {
        match self.form.when {
            When::Value => false,
            When::Each => event.is_multiple_of(self.first),
            _ => event >= self.first && event - self.first < self.count,
        }
    }
}

/// The faults of a device, and how many events there were of each kind.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    faults: Vec<Fault>,
    events: Vec<(&'static str, u64)>,
}

impl Faults {
    /// Nothing has happened yet.
    pub fn new(faults: &[Fault]) -> Self {
        Self { faults: faults.to_vec(), events: Vec::new() }
    }

    fn of(&self, form: Form) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(move |fault| fault.form.name == form.name)
    }

    /// Whether a fault is asked for at all.
    pub fn has(&self, form: Form) -> bool {
        self.of(form).next().is_some()
    }

    /// The number that was given with a fault, if it is asked for.
    pub fn value(&self, form: Form) -> Option<u64> {
        self.of(form).next().map(|fault| fault.first)
    }

    /// Whether a fault strikes at an event that its device numbers itself.
    pub fn strikes_at(&self, form: Form, event: u64) -> bool {
        self.of(form).any(|fault| fault.strikes(event))
    }

    /// Counts an event. Returns whether the fault strikes.
    pub fn strikes(&mut self, form: Form) -> bool {
        let event = self.count(form);
        self.strikes_at(form, event)
    }

    /// Counts an event. If the fault strikes, gives the error that was asked for: the form is one [with an error](Form::with_error).
    #[expect(clippy::expect_used, reason = "what was read of a form with errors has one of them")]
    pub fn fail(&mut self, form: Form) -> Result<(), Errno> {
        let event = self.count(form);
        match self.of(form).find(|fault| fault.strikes(event)) {
            Some(fault) => Err(fault.error.expect("a fault with an error")),
            None => Ok(()),
        }
    }

    fn count(&mut self, form: Form) -> u64 {
        match self.events.iter_mut().find(|(name, _)| *name == form.name) {
            Some((_, events)) => {
                *events += 1;
                *events
            }
            None => {
                self.events.push((form.name, 1));
                1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Errors = &[("EBUSY", Errno::BUSY), ("EAGAIN", Errno::AGAIN)];
    const OPEN: Form = Form::with_error("open", When::First, BUSY);
    const SUBMIT: Form = Form::with_error("submit", When::From, BUSY);
    const ALLOC: Form = Form::new("alloc", When::Nth);
    const EACH: Form = Form::new("each", When::Each);
    const FEW: Form = Form::new("few", When::Value);
    const LATE: Form = Form::new("late", When::Always);
    const ALL: &[Form] = &[OPEN, SUBMIT, ALLOC, EACH, FEW, LATE];

    fn faults(texts: &[&str]) -> Result<Faults, Failure> {
        let mut parameters = Parameters::new("device", texts.iter().map(|&text| ("fault", text)));
        Ok(Faults::new(&Fault::read(&mut parameters, ALL)?))
    }

    #[test]
    fn fault_of_each_form_strikes_when_it_says() {
        let mut faults =
            faults(&["open:EAGAIN:2", "submit:EBUSY:2:2", "alloc:2", "each:3", "few:7", "late"]).unwrap();
        let opens: Vec<_> = (0..3).map(|_| faults.fail(OPEN)).collect();
        assert_eq!(opens, [Err(Errno::AGAIN), Err(Errno::AGAIN), Ok(())]);
        let submits: Vec<_> = (0..4).map(|_| faults.fail(SUBMIT)).collect();
        assert_eq!(submits, [Ok(()), Err(Errno::BUSY), Err(Errno::BUSY), Ok(())]);
        let allocations: Vec<_> = (0..3).map(|_| faults.strikes(ALLOC)).collect();
        assert_eq!(allocations, [false, true, false]);
        assert_eq!((1..=6).filter(|_| faults.strikes(EACH)).count(), 2);
        assert_eq!((faults.value(FEW), faults.strikes(FEW)), (Some(7), false));
        assert!(faults.has(LATE) && faults.strikes(LATE));
        assert!(faults.strikes_at(ALLOC, 2) && !faults.strikes_at(ALLOC, 3), "a number of the device's own");
    }

    #[test]
    fn fault_that_is_not_asked_for_never_strikes() {
        let mut none = faults(&[]).unwrap();
        for &form in ALL {
            assert!(!none.has(form) && !none.strikes(form) && none.fail(form).is_ok(), "{form}");
            assert_eq!(none.value(form), None);
        }
    }

    #[test]
    fn two_of_one_name_both_strike() {
        let mut two = faults(&["alloc:1", "alloc:3"]).unwrap();
        let struck: Vec<_> = (0..4).map(|_| two.strikes(ALLOC)).collect();
        assert_eq!(struck, [true, false, true, false]);
    }

    #[test]
    fn nonsense_is_refused_with_every_form() {
        for text in [
            "",
            "open",
            "open:EBUSY",
            "open:EIO:1",
            "open:EBUSY:0",
            "open:EBUSY:1:1",
            "submit:EBUSY",
            "submit:EBUSY:1:0",
            "submit:EBUSY:1:2:3",
            "alloc",
            "alloc:x",
            "alloc:1:2",
            "late:1",
            "late:",
            "explode",
        ] {
            let refused = faults(&[text]).unwrap_err();
            let list = "it takes open:ERRNO:K (EBUSY or EAGAIN), submit:ERRNO:N or submit:ERRNO:N:K (EBUSY or EAGAIN), \
                        alloc:N, each:N, few:N or late";
            assert!(refused.message().ends_with(list), "{text}: {refused}");
        }
    }
}
