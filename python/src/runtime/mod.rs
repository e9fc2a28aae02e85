// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's runtime as the package uses it: objects that release themselves, errors with IREE's text, and the few
//! calls that load and run modules. All unsafe code about IREE is here; nothing here knows Python.

mod buffer;
mod device;
mod element;
mod instance;
mod object;
mod process;
mod profile;
mod program;
mod status;
mod value;

pub(crate) use buffer::{Foreign, HostView, View};
pub(crate) use device::{Device, ListedDevice, drivers, list};
pub(crate) use element::Element;
pub(crate) use process::{check_not_forked, has_opened, is_forked};
pub(crate) use profile::Profile;
pub(crate) use program::{Function, Program, StartedCall, read};
pub(crate) use status::{Error, Result};
pub(crate) use value::{ArgumentKind, Value};

/// A view of text for one call.
fn view(text: &str) -> hal_sys::iree_string_view_t {
    hal_sys::iree_string_view_t { data: text.as_ptr().cast(), size: text.len() }
}

/// A copy of C's text.
///
/// # Safety
///
/// The text is valid for the call.
unsafe fn text(view: hal_sys::iree_string_view_t) -> String {
    if view.data.is_null() {
        return String::new();
    }
    // SAFETY: the text is valid for the call, as the function asks.
    let bytes = unsafe { std::slice::from_raw_parts(view.data.cast::<u8>(), view.size) };
    String::from_utf8_lossy(bytes).into_owned()
}
