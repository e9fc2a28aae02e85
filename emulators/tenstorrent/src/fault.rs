// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The faults of a card. [The crate](crate) has the table of what each does.

use emulator_core::fault::{Form, When};

/// Another program has all of the smallest windows but these.
pub(crate) const WINDOWS: Form = Form::new("windows", When::Value);
/// The bridge shows no windows of 4 GiB; where larger ones are in the first region, other programs have them.
pub(crate) const NO_LARGE_WINDOWS: Form = Form::new("no-large-windows", When::Always);
/// The card is reset when this tile is let go.
pub(crate) const RESET: Form = Form::new("reset", When::Nth);
/// This tile that is let go never executes anything.
pub(crate) const HANG: Form = Form::new("hang", When::Nth);
/// This tile that is let go cannot be held again.
pub(crate) const STUCK: Form = Form::new("stuck", When::Nth);
/// This window that is pointed somewhere shows a tile that is fused off.
pub(crate) const HARVESTED: Form = Form::new("harvested", When::Nth);
/// Of this read of more than one word, the last bit is not what was there.
pub(crate) const FLIP: Form = Form::new("flip", When::Nth);
/// The card is pulled out at this request.
pub(crate) const UNPLUG: Form = Form::new("unplug", When::Nth);

/// Every fault, in the order in which a program that asks for none of them is told.
pub(crate) const ALL: &[Form] = &[WINDOWS, NO_LARGE_WINDOWS, RESET, HANG, STUCK, HARVESTED, FLIP, UNPLUG];
