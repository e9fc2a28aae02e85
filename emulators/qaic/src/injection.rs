// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The faults that can be injected into a card. [The crate](crate) has a table of their effects.

use emulator_core::injection::{InjectionForm, When};

/// The first opens find a device that has not booted.
pub(crate) const BOOT: InjectionForm = InjectionForm::new("boot", When::First);
/// This buffer object finds no memory.
pub(crate) const ALLOC: InjectionForm = InjectionForm::new("alloc", When::Nth);
/// The control channel has no room for this message.
pub(crate) const CONTROL_FULL: InjectionForm = InjectionForm::new("control-full", When::Nth);
/// The answer to this message is lost.
pub(crate) const CONTROL_LOST: InjectionForm = InjectionForm::new("control-lost", When::Nth);
/// The answer to this message has a wrong checksum.
pub(crate) const CONTROL_CRC: InjectionForm = InjectionForm::new("control-crc", When::Nth);
/// This message is answered as if it had been another one.
pub(crate) const CONTROL_WRONG: InjectionForm = InjectionForm::new("control-wrong", When::Nth);
/// This activation is answered with a channel that does not exist.
pub(crate) const BAD_CHANNEL: InjectionForm = InjectionForm::new("bad-channel", When::Nth);
/// This deactivation is refused by the device.
pub(crate) const DEACTIVATE: InjectionForm = InjectionForm::new("deactivate", When::Nth);
/// This interrupt is lost.
pub(crate) const LOST_MSI: InjectionForm = InjectionForm::new("lost-msi", When::Nth);
/// This completion has an error.
pub(crate) const STATUS: InjectionForm = InjectionForm::new("status", When::Nth);
/// Of the waits that would sleep, each of this number is interrupted.
pub(crate) const INTERRUPT: InjectionForm = InjectionForm::new("eintr", When::Each);
/// This call of a network never ends.
pub(crate) const HANG: InjectionForm = InjectionForm::new("hang", When::Nth);
/// The outputs of this call wait for a semaphore that is never added to.
pub(crate) const DEADLOCK: InjectionForm = InjectionForm::new("deadlock", When::Nth);
/// The cores of a network crash when this call is about to run.
pub(crate) const CRASH: InjectionForm = InjectionForm::new("crash", When::Nth);
/// The card resets when this call of a network is about to run.
pub(crate) const RESET: InjectionForm = InjectionForm::new("reset", When::Nth);
/// The card is pulled out at this request.
pub(crate) const UNPLUG: InjectionForm = InjectionForm::new("unplug", When::Nth);

/// Every injection, in the order of the error message that lists them.
pub(crate) const ALL: &[InjectionForm] = &[
    BOOT,
    ALLOC,
    CONTROL_FULL,
    CONTROL_LOST,
    CONTROL_CRC,
    CONTROL_WRONG,
    BAD_CHANNEL,
    DEACTIVATE,
    LOST_MSI,
    STATUS,
    INTERRUPT,
    HANG,
    DEADLOCK,
    CRASH,
    RESET,
    UNPLUG,
];
