// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The faults that can be injected into a card. [The crate](crate) has a table of their effects.

use emulator_core::injection::{InjectionForm, When};

/// Another program has all of the smallest windows but these.
pub(crate) const WINDOWS: InjectionForm = InjectionForm::new("windows", When::Value);
/// The bridge shows no windows of 4 GiB; if larger ones are in the first region, other programs have them.
pub(crate) const NO_LARGE_WINDOWS: InjectionForm = InjectionForm::new("no-large-windows", When::Always);
/// The card is reset when this tile starts.
pub(crate) const RESET: InjectionForm = InjectionForm::new("reset", When::Nth);
/// This tile never executes anything after its start.
pub(crate) const HANG: InjectionForm = InjectionForm::new("hang", When::Nth);
/// This tile cannot be put into reset again after its start.
pub(crate) const STUCK: InjectionForm = InjectionForm::new("stuck", When::Nth);
/// This window shows a tile that is fused off.
pub(crate) const HARVESTED: InjectionForm = InjectionForm::new("harvested", When::Nth);
/// The last bit of this read of more than one word is wrong.
pub(crate) const FLIP: InjectionForm = InjectionForm::new("flip", When::Nth);
/// The card is pulled out at this request.
pub(crate) const UNPLUG: InjectionForm = InjectionForm::new("unplug", When::Nth);

/// Every injection, in the order of the error message that lists them.
pub(crate) const ALL: &[InjectionForm] =
    &[WINDOWS, NO_LARGE_WINDOWS, RESET, HANG, STUCK, HARVESTED, FLIP, UNPLUG];
