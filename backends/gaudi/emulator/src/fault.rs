//! What goes wrong on request.
//!
//! Each card counts for itself, from when the machine was made, and across opens: what has happened does not happen
//! again after a reset and a new open.

use hal_backend::{Failure, Parameters};
use hal_emulation::Errno;

/// One thing that goes wrong. [The crate](crate) has the table of what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The first opens fail.
    Open {
        /// With what.
        error: Errno,
        /// How many.
        count: u64,
    },
    /// This allocation of device memory finds none.
    Alloc(u64),
    /// This mapping finds no memory.
    Map(u64),
    /// Some submissions are refused.
    Submit {
        /// With what.
        error: Errno,
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// This submission never ends.
    Hang(u64),
    /// The card is reset when this submission is about to run.
    Reset(u64),
    /// The card is reset half way through this transfer.
    Partial(u64),
    /// Of the waits that would sleep, each of this number is interrupted.
    Interrupt(u64),
    /// The outcomes of only so many submissions are remembered.
    Gone(u64),
    /// There is no wait for the first of several.
    NoMulti,
    /// Queues complete late, by chance.
    Jitter,
    /// Two fatal errors come when this submission is about to run.
    Malfunction(u64),
    /// The card is pulled out at this request.
    Unplug(u64),
    /// Device memory cannot be exported.
    NoP2p,
    /// The kernel is older and says less about the hardware.
    ShortInfo,
}

/// What is right, for the message to whoever wrote something else.
const FORMS: &str = "open:ERRNO:K (EBUSY, EAGAIN or EPERM), alloc:N, map:N, submit:ERRNO:N or submit:ERRNO:N:K \
                     (EAGAIN, EBUSY, EINVAL or ENOMEM), hang:N, reset:N, partial:N, eintr:N, gone:N, no-multi, jitter, \
                     malfunction:N, unplug:N, no-p2p or short-info";

impl Fault {
    /// Takes every fault from the parameters of a URI.
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Vec<Self>, Failure> {
        let mut faults = Vec::new();
        for text in parameters.take_all("fault") {
            match parse(text) {
                Some(fault) => faults.push(fault),
                None => {
                    return Err(parameters.refuse("fault", &format!("is {text:?}; it takes {FORMS}")));
                }
            }
        }
        Ok(faults)
    }
}

fn parse(text: &str) -> Option<Fault> {
    let mut parts = text.split(':');
    let name = parts.next()?;
    let mut error = |allowed: &[(&str, Errno)]| {
        let name = parts.next()?;
        allowed.iter().find(|(known, _)| *known == name).map(|&(_, error)| error)
    };
    let fault = match name {
        "open" => {
            let error = error(&[("EBUSY", Errno::BUSY), ("EAGAIN", Errno::AGAIN), ("EPERM", Errno::PERM)])?;
            Fault::Open { error, count: number(parts.next()?)? }
        }
        "submit" => {
            let error = error(&[
                ("EAGAIN", Errno::AGAIN),
                ("EBUSY", Errno::BUSY),
                ("EINVAL", Errno::INVAL),
                ("ENOMEM", Errno::NOMEM),
            ])?;
            let first = number(parts.next()?)?;
            let count = parts.next().map_or(Some(1), number)?;
            Fault::Submit { error, first, count }
        }
        "no-multi" => Fault::NoMulti,
        "jitter" => Fault::Jitter,
        "no-p2p" => Fault::NoP2p,
        "short-info" => Fault::ShortInfo,
        _ => {
            let make = match name {
                "alloc" => Fault::Alloc,
                "map" => Fault::Map,
                "hang" => Fault::Hang,
                "reset" => Fault::Reset,
                "partial" => Fault::Partial,
                "eintr" => Fault::Interrupt,
                "gone" => Fault::Gone,
                "malfunction" => Fault::Malfunction,
                "unplug" => Fault::Unplug,
                _ => return None,
            };
            make(number(parts.next()?)?)
        }
    };
    parts.next().is_none().then_some(fault)
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&number| number > 0)
}

/// What can happen to a submission that is about to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Hang,
    Reset,
    Malfunction,
}

/// The faults of a card, and how far it is on the way to each.
#[derive(Debug)]
pub(crate) struct Faults {
    faults: Vec<Fault>,
    opens: u64,
    allocations: u64,
    mappings: u64,
    attempts: u64,
    transfers: u64,
    sleeps: u64,
    requests: u64,
}

impl Faults {
    pub(crate) fn new(faults: &[Fault]) -> Self {
        Self {
            faults: faults.to_vec(),
            opens: 0,
            allocations: 0,
            mappings: 0,
            attempts: 0,
            transfers: 0,
            sleeps: 0,
            requests: 0,
        }
    }

    fn find<T>(&self, choose: impl Fn(Fault) -> Option<T>) -> Option<T> {
        self.faults.iter().find_map(|&fault| choose(fault))
    }

    /// Whether this one, which has no number, is asked for.
    pub(crate) fn has(&self, wanted: Fault) -> bool {
        self.faults.contains(&wanted)
    }

    /// Counts an open.
    pub(crate) fn open(&mut self) -> Result<(), Errno> {
        self.opens += 1;
        let now = self.opens;
        let error = self.find(|fault| match fault {
            Fault::Open { error, count } if now <= count => Some(error),
            _ => None,
        });
        error.map_or(Ok(()), Err)
    }

    /// Counts an allocation of device memory.
    pub(crate) fn allocate(&mut self) -> Result<(), Errno> {
        self.allocations += 1;
        if self.has(Fault::Alloc(self.allocations)) { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// Counts a mapping.
    pub(crate) fn map(&mut self) -> Result<(), Errno> {
        self.mappings += 1;
        if self.has(Fault::Map(self.mappings)) { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// Counts an attempt to submit.
    pub(crate) fn submit(&mut self) -> Result<(), Errno> {
        self.attempts += 1;
        let now = self.attempts;
        let error = self.find(|fault| match fault {
            Fault::Submit { error, first, count } if now >= first && now - first < count => Some(error),
            _ => None,
        });
        error.map_or(Ok(()), Err)
    }

    /// What happens when this submission is about to run.
    pub(crate) fn blow(&self, submission: u64) -> Option<Blow> {
        self.find(|fault| match fault {
            Fault::Hang(number) if number == submission => Some(Blow::Hang),
            Fault::Reset(number) if number == submission => Some(Blow::Reset),
            Fault::Malfunction(number) if number == submission => Some(Blow::Malfunction),
            _ => None,
        })
    }

    /// Counts a transfer; whether it ends half way.
    pub(crate) fn transfer(&mut self) -> bool {
        self.transfers += 1;
        self.has(Fault::Partial(self.transfers))
    }

    /// Counts a wait that would sleep; whether it is interrupted.
    pub(crate) fn sleep(&mut self) -> bool {
        self.sleeps += 1;
        let now = self.sleeps;
        self.find(|fault| match fault {
            Fault::Interrupt(each) if now.is_multiple_of(each) => Some(()),
            _ => None,
        })
        .is_some()
    }

    /// Counts a request; whether the card is pulled out.
    pub(crate) fn request(&mut self) -> bool {
        self.requests += 1;
        self.has(Fault::Unplug(self.requests))
    }

    /// Of how many submissions the outcome is remembered, if that is fewer than the hardware's.
    pub(crate) fn remembered(&self) -> Option<u64> {
        self.find(|fault| match fault {
            Fault::Gone(number) => Some(number),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_with_the_number_strikes_and_no_other() {
        let mut faults = Faults::new(&[
            Fault::Submit { error: Errno::AGAIN, first: 2, count: 2 },
            Fault::Alloc(2),
            Fault::Interrupt(3),
            Fault::Hang(5),
        ]);
        assert_eq!(faults.submit(), Ok(()));
        assert_eq!((faults.submit(), faults.submit()), (Err(Errno::AGAIN), Err(Errno::AGAIN)));
        assert_eq!(faults.submit(), Ok(()));
        assert_eq!((faults.allocate(), faults.allocate()), (Ok(()), Err(Errno::NOMEM)));
        assert_eq!((1..=6).filter(|_| faults.sleep()).count(), 2);
        assert_eq!((faults.blow(4), faults.blow(5)), (None, Some(Blow::Hang)));
    }

    #[test]
    fn nonsense_is_refused_with_the_list() {
        for text in [
            "",
            "open",
            "open:EBUSY",
            "open:EIO:1",
            "open:EBUSY:0",
            "alloc",
            "alloc:x",
            "submit:EAGAIN",
            "submit:EPERM:1",
            "submit:EAGAIN:1:2:3",
            "hang:0",
            "jitter:1",
            "gone",
            "no-multi:",
            "explode",
        ] {
            let refused = Fault::read(&mut Parameters::new("gaudi", [("fault", text)])).unwrap_err();
            assert!(refused.message().contains("no-p2p or short-info"), "{text}: {refused}");
        }
    }

    #[test]
    fn each_form_is_read() {
        for (text, fault) in [
            ("open:EAGAIN:3", Fault::Open { error: Errno::AGAIN, count: 3 }),
            ("submit:ENOMEM:2", Fault::Submit { error: Errno::NOMEM, first: 2, count: 1 }),
            ("submit:EBUSY:2:5", Fault::Submit { error: Errno::BUSY, first: 2, count: 5 }),
            ("map:4", Fault::Map(4)),
            ("partial:1", Fault::Partial(1)),
            ("eintr:1", Fault::Interrupt(1)),
            ("gone:4", Fault::Gone(4)),
            ("unplug:9", Fault::Unplug(9)),
            ("no-multi", Fault::NoMulti),
        ] {
            assert_eq!(parse(text), Some(fault), "{text}");
        }
    }
}
