// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The faults of a card. [The crate](crate) has the table of what each does.

use emulator_core::injection::{InjectionForm, When};

/// Another program has all of the smallest windows but these.
pub(crate) const WINDOWS: InjectionForm = InjectionForm::new("windows", When::Value);
/// The bridge shows no windows of 4 GiB; where larger ones are in the first region, other programs have them.
pub(crate) const NO_LARGE_WINDOWS: InjectionForm = InjectionForm::new("no-large-windows", When::Always);
/// The card is reset when this tile is let go.
pub(crate) const RESET: InjectionForm = InjectionForm::new("reset", When::Nth);
/// This tile that is let go never executes anything.
pub(crate) const HANG: InjectionForm = InjectionForm::new("hang", When::Nth);
/// This tile that is let go cannot be held again.
pub(crate) const STUCK: InjectionForm = InjectionForm::new("stuck", When::Nth);
/// This window that is pointed somewhere shows a tile that is fused off.
pub(crate) const HARVESTED: InjectionForm = InjectionForm::new("harvested", When::Nth);
/// Of this read of more than one word, the last bit is not what was there.
pub(crate) const FLIP: InjectionForm = InjectionForm::new("flip", When::Nth);
/// The card is pulled out at this request.
pub(crate) const UNPLUG: InjectionForm = InjectionForm::new("unplug", When::Nth);

/// Every fault, in the order in which a program that asks for none of them is told.
pub(crate) const ALL: &[InjectionForm] =
    &[WINDOWS, NO_LARGE_WINDOWS, RESET, HANG, STUCK, HARVESTED, FLIP, UNPLUG];
