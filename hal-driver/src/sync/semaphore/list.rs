// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Lists of semaphores and values: those of a C call, and those that outlive it.

use super::IreeTimeline;
use crate::ffi::status::{Result, check, invalid, raw};
use crate::sync::teardown;
use hal_semaphore::Failure;
use hal_semaphore::stall::{Step, TimelineName};
use hal_semaphore::timeline::TimelineValues;
use hal_sys as sys;

/// Semaphores and values of C's: two arrays, borrowed for a call.
///
/// # Invariants
///
/// There are as many values as semaphores.
pub(crate) struct List<'a> {
    semaphores: &'a [IreeTimeline],
    values: &'a [u64],
}

impl<'a> List<'a> {
    /// The list of a call.
    ///
    /// # Safety
    ///
    /// The list is valid during `'a`, as IREE's interface promises for the length of a call.
    #[inline(always)]
    pub(crate) unsafe fn new(list: &'a sys::iree_hal_semaphore_list_t) -> Result<Self> {
        // SAFETY: valid during `'a`, as the caller promises.
        let (pointers, values) = unsafe {
            let pointers = crate::ffi::object::slice(list.semaphores.cast_const(), list.count)?;
            (pointers, crate::ffi::object::slice(list.payload_values.cast_const(), list.count)?)
        };
        if pointers.iter().any(|pointer| pointer.is_null()) {
            return Err(invalid("a semaphore list has a null semaphore"));
        }
        // SAFETY: a handle is a non-null pointer to a semaphore, which all of these are, and is only borrowed here.
        let semaphores = unsafe { std::slice::from_raw_parts(pointers.as_ptr().cast(), pointers.len()) };
        Ok(Self { semaphores, values })
    }

    /// An empty list.
    pub(crate) fn empty() -> Self {
        Self { semaphores: &[], values: &[] }
    }

    /// The same list.
    pub(crate) fn borrow(&self) -> List<'a> {
        List { semaphores: self.semaphores, values: self.values }
    }

    /// True if all values are reached.
    pub(crate) fn reached(&self) -> bool {
        self.semaphores.iter().zip(self.values).all(|(semaphore, &value)| semaphore.reached(value))
    }

    /// A list with references of its own.
    pub(crate) fn to_owned(&self) -> OwnedList {
        OwnedList { semaphores: self.semaphores.to_vec(), values: self.values.to_vec() }
    }
}

impl TimelineValues<IreeTimeline> for List<'_> {
    fn len(&self) -> usize {
        self.semaphores.len()
    }

    fn get(&self, index: usize) -> Option<(&IreeTimeline, u64)> {
        let semaphore = self.semaphores.get(index)?;
        // SAFETY: there are as many values as semaphores, of which there is one with this number.
        Some((semaphore, unsafe { *self.values.get_unchecked(index) }))
    }
}

/// A list with references of its own.
///
/// # Invariants
///
/// There are as many values as semaphores.
#[derive(Default)]
pub(crate) struct OwnedList {
    semaphores: Vec<IreeTimeline>,
    values: Vec<u64>,
}

impl OwnedList {
    /// The list for a call to C, which may read it until this is dropped.
    pub(crate) fn raw(&mut self) -> sys::iree_hal_semaphore_list_t {
        sys::iree_hal_semaphore_list_t {
            count: self.semaphores.len(),
            semaphores: self.semaphores.as_mut_ptr().cast(),
            payload_values: self.values.as_mut_ptr(),
        }
    }

    pub(crate) fn push(&mut self, semaphore: IreeTimeline, value: u64) {
        self.semaphores.push(semaphore);
        self.values.push(value);
    }

    /// Appends a list, with new references.
    pub(crate) fn extend(&mut self, list: &List<'_>) {
        self.semaphores.extend_from_slice(list.semaphores);
        self.values.extend_from_slice(list.values);
    }

    pub(crate) fn borrow(&self) -> List<'_> {
        List { semaphores: &self.semaphores, values: &self.values }
    }

    /// What signalling it does.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let named =
            |(semaphore, &value)| Step { timeline: TimelineName::of::<IreeTimeline>(semaphore), value };
        self.semaphores.iter().zip(&self.values).map(named).collect()
    }

    /// Signals all of it, or fails all of it.
    pub(crate) fn signal_or_fail(mut self, outcome: std::result::Result<(), &Failure>) {
        let _inside = teardown::enter();
        // SAFETY: the list keeps its semaphores alive, by the invariant of `IreeTimeline`; the status is taken over.
        unsafe {
            match outcome {
                // A semaphore that cannot be signalled has failed, or is past the value already: the others can.
                Ok(()) => {
                    for (semaphore, &value) in self.semaphores.iter().zip(&self.values) {
                        drop(check(sys::iree_hal_semaphore_signal(
                            semaphore.0.as_ptr(),
                            value,
                            std::ptr::null(),
                        )));
                    }
                }
                Err(failure) => sys::iree_hal_semaphore_list_fail(self.raw(), raw(failure)),
            }
        }
    }
}
