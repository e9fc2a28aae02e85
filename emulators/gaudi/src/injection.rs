// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The faults that can be injected into a card. [The crate](crate) has a table of their effects.

use emulator_core::Errno;
use emulator_core::injection::{InjectionForm, NamedErrors, When};

/// Errors that an open can fail with.
const OPEN_ERRORS: NamedErrors = &[("EBUSY", Errno::BUSY), ("EAGAIN", Errno::AGAIN), ("EPERM", Errno::PERM)];
/// Errors that a submission can fail with.
const SUBMIT_ERRORS: NamedErrors =
    &[("EAGAIN", Errno::AGAIN), ("EBUSY", Errno::BUSY), ("EINVAL", Errno::INVAL), ("ENOMEM", Errno::NOMEM)];

/// The first opens fail.
pub(crate) const OPEN: InjectionForm = InjectionForm::with_error("open", When::First, OPEN_ERRORS);
/// This allocation of device memory finds none.
pub(crate) const ALLOC: InjectionForm = InjectionForm::new("alloc", When::Nth);
/// This mapping finds no memory.
pub(crate) const MAP: InjectionForm = InjectionForm::new("map", When::Nth);
/// Some submissions are refused.
pub(crate) const SUBMIT: InjectionForm = InjectionForm::with_error("submit", When::From, SUBMIT_ERRORS);
/// This submission never ends.
pub(crate) const HANG: InjectionForm = InjectionForm::new("hang", When::Nth);
/// The card is reset when this submission is about to run.
pub(crate) const RESET: InjectionForm = InjectionForm::new("reset", When::Nth);
/// The card is reset half way through this transfer.
pub(crate) const PARTIAL: InjectionForm = InjectionForm::new("partial", When::Nth);
/// Of the waits that would sleep, each of this number is interrupted.
pub(crate) const INTERRUPT: InjectionForm = InjectionForm::new("eintr", When::Each);
/// The outcomes of only so many submissions are remembered.
pub(crate) const GONE: InjectionForm = InjectionForm::new("gone", When::Value);
/// There is no wait for the first of several.
pub(crate) const NO_MULTI: InjectionForm = InjectionForm::new("no-multi", When::Always);
/// There are no signals of the driver's own.
pub(crate) const NO_SIGNALS: InjectionForm = InjectionForm::new("no-signals", When::Always);
/// Queues complete late, by chance.
pub(crate) const JITTER: InjectionForm = InjectionForm::new("jitter", When::Always);
/// Two fatal errors come when this submission is about to run.
pub(crate) const MALFUNCTION: InjectionForm = InjectionForm::new("malfunction", When::Nth);
/// The card is pulled out at this request.
pub(crate) const UNPLUG: InjectionForm = InjectionForm::new("unplug", When::Nth);
/// Device memory cannot be exported.
pub(crate) const NO_P2P: InjectionForm = InjectionForm::new("no-p2p", When::Always);
/// The kernel is older and says less about the hardware.
pub(crate) const SHORT_INFO: InjectionForm = InjectionForm::new("short-info", When::Always);
/// No two pages of device memory that are free lie side by side.
pub(crate) const FRAGMENTED: InjectionForm = InjectionForm::new("fragmented", When::Always);

/// Every injection, in the order of the error message that lists them.
pub(crate) const ALL: &[InjectionForm] = &[
    OPEN,
    ALLOC,
    MAP,
    SUBMIT,
    HANG,
    RESET,
    PARTIAL,
    INTERRUPT,
    GONE,
    NO_MULTI,
    NO_SIGNALS,
    JITTER,
    MALFUNCTION,
    UNPLUG,
    NO_P2P,
    SHORT_INFO,
    FRAGMENTED,
];

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_core::injection::Injection;
    use hal_backend::Parameters;

    #[test]
    fn list_of_forms_is_what_the_documentation_has() {
        let refused =
            Injection::read(&mut Parameters::new("gaudi", [("fault", "explode")]), ALL).unwrap_err();
        let list = "it takes open:ERRNO:K (EBUSY, EAGAIN or EPERM), alloc:N, map:N, submit:ERRNO:N or \
                    submit:ERRNO:N:K (EAGAIN, EBUSY, EINVAL or ENOMEM), hang:N, reset:N, partial:N, eintr:N, gone:N, \
                    no-multi, no-signals, jitter, malfunction:N, unplug:N, no-p2p, short-info or \
                    fragmented";
        assert!(refused.message().ends_with(list), "{refused}");
    }
}
