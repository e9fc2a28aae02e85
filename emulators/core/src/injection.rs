// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Faults to inject on request, which `fault=NAME:…` in a URI asks for.
//!
//! An emulator lists the [forms](InjectionForm) that it knows. Each device has its own [`Injections`], which
//! count the device's events from 1 for as long as the machine lives: a reset or another open does not repeat
//! an injection.

use hal_backend::{Failure, Parameters};
use hal_kernel::Errno;
use std::fmt;

/// When an injection strikes, and how it is written.
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
    /// `name:N`: no event; the emulator [reads](Injections::value) the number.
    Value,
}

/// Errors that a program can choose from, with their names.
pub type NamedErrors = &'static [(&'static str, Errno)];

/// A kind of injection that an emulator knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectionForm {
    name: &'static str,
    when: When,
    /// If there are any, the name of one stands between the injection's name and the numbers.
    errors: NamedErrors,
}

impl InjectionForm {
    /// An injection whose outcome is always the same.
    pub const fn new(name: &'static str, when: When) -> Self {
        Self { name, when, errors: &[] }
    }

    /// An injection with an error that the program chooses.
    pub const fn with_error(name: &'static str, when: When, errors: NamedErrors) -> Self {
        Self { name, when, errors }
    }

    /// Parses the text behind `fault=`.
    fn parse(&self, text: &str) -> Option<Injection> {
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
        parts.next().is_none().then_some(Injection { form: *self, error, first, count })
    }
}

impl fmt::Display for InjectionForm {
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

/// One fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    form: InjectionForm,
    error: Option<Errno>,
    first: u64,
    count: u64,
}

impl Injection {
    /// Takes every `fault` from the parameters of a URI.
    pub fn read(parameters: &mut Parameters<'_>, forms: &[InjectionForm]) -> Result<Vec<Self>, Failure> {
        let mut injections = Vec::new();
        for text in parameters.take_all("fault") {
            match forms.iter().find_map(|form| form.parse(text)) {
                Some(injection) => injections.push(injection),
                None => {
                    let forms: Vec<_> = forms.iter().map(InjectionForm::to_string).collect();
                    let list =
                        forms.split_last().map(|(last, rest)| format!("{} or {last}", rest.join(", ")));
                    let why = format!("is {text:?}; it takes {}", list.unwrap_or_default());
                    return Err(parameters.refuse("fault", &why));
                }
            }
        }
        Ok(injections)
    }

    /// True if it strikes at this event.
    fn strikes(&self, event: u64) -> bool {
        match self.form.when {
            When::Value => false,
            When::Each => event.is_multiple_of(self.first),
            _ => event >= self.first && event - self.first < self.count,
        }
    }
}

/// The injections of a device, and how many events of each kind there were.
#[derive(Clone, Debug, Default)]
pub struct Injections {
    injections: Vec<Injection>,
    events: Vec<(&'static str, u64)>,
}

impl Injections {
    /// The injections of a device that has had no event yet.
    pub fn new(injections: &[Injection]) -> Self {
        Self { injections: injections.to_vec(), events: Vec::new() }
    }

    fn of(&self, form: InjectionForm) -> impl Iterator<Item = &Injection> {
        self.injections.iter().filter(move |fault| fault.form.name == form.name)
    }

    /// True if the URI asks for an injection.
    pub fn has(&self, form: InjectionForm) -> bool {
        self.of(form).next().is_some()
    }

    /// The number of an injection, if the URI asks for it.
    pub fn value(&self, form: InjectionForm) -> Option<u64> {
        self.of(form).next().map(|fault| fault.first)
    }

    /// True if an injection strikes at an event that the device numbers itself.
    pub fn strikes_at(&self, form: InjectionForm, event: u64) -> bool {
        self.of(form).any(|fault| fault.strikes(event))
    }

    /// Counts an event. Returns whether the injection strikes.
    pub fn strikes(&mut self, form: InjectionForm) -> bool {
        let event = self.count(form);
        self.strikes_at(form, event)
    }

    /// Counts an event. Returns the chosen error if the injection strikes. The form must be one [with an
    /// error](InjectionForm::with_error).
    #[expect(clippy::expect_used, reason = "what was read of a form with errors has one of them")]
    pub fn fail(&mut self, form: InjectionForm) -> Result<(), Errno> {
        let event = self.count(form);
        match self.of(form).find(|fault| fault.strikes(event)) {
            Some(fault) => Err(fault.error.expect("a fault with an error")),
            None => Ok(()),
        }
    }

    fn count(&mut self, form: InjectionForm) -> u64 {
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

    const BUSY: NamedErrors = &[("EBUSY", Errno::BUSY), ("EAGAIN", Errno::AGAIN)];
    const OPEN: InjectionForm = InjectionForm::with_error("open", When::First, BUSY);
    const SUBMIT: InjectionForm = InjectionForm::with_error("submit", When::From, BUSY);
    const ALLOC: InjectionForm = InjectionForm::new("alloc", When::Nth);
    const EACH: InjectionForm = InjectionForm::new("each", When::Each);
    const FEW: InjectionForm = InjectionForm::new("few", When::Value);
    const LATE: InjectionForm = InjectionForm::new("late", When::Always);
    const ALL: &[InjectionForm] = &[OPEN, SUBMIT, ALLOC, EACH, FEW, LATE];

    fn faults(texts: &[&str]) -> Result<Injections, Failure> {
        let mut parameters = Parameters::new("device", texts.iter().map(|&text| ("fault", text)));
        Ok(Injections::new(&Injection::read(&mut parameters, ALL)?))
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
    fn invalid_injection_is_refused_with_every_form() {
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
