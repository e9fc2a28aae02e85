// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The host's part of a program: functions that queues call, and threads that wait, read and write.

use crate::common::{self, check};
use crate::ending::{difference, wait};
use crate::program::{Action, Ends, Visit};
use crate::scene::Scene;
use hal_sys as sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Scene {
    /// The thread of a step: waits, visits, and signals.
    pub(crate) fn be_the_host(&self, number: usize, visit: Option<&Visit>) -> common::Result {
        let step = &self.program.steps[number];
        for at in &step.waits {
            wait(&self.timelines[at.timeline], at.value, self.patience)?;
        }
        self.visit(number, visit)?;
        for at in &step.signals {
            self.timelines[at.timeline].signal(at.value)?;
        }
        Ok(())
    }

    fn visit(&self, number: usize, visit: Option<&Visit>) -> common::Result {
        let Some(Visit { part, bytes }) = visit else { return Ok(()) };
        let (buffer, offset) = self.buffer(part);
        let mut found = vec![0_u8; part.length];
        unsafe {
            let (memory, length) = (found.as_mut_ptr().cast(), found.len());
            check(sys::iree_hal_buffer_map_read(buffer.0, offset, memory, length))?;
            let memory = bytes.as_ptr().cast();
            check(sys::iree_hal_buffer_map_write(buffer.0, offset, memory, bytes.len()))?;
        }
        let expected = self.expected.seen[number].as_ref().unwrap();
        if let Some(text) = difference(&found, expected, part.offset) {
            self.trouble(format!("step {number} found in {part}: {text}"));
        }
        Ok(())
    }

    /// The host call of a step.
    fn call(
        self: Arc<Self>,
        number: usize,
        context: &sys::iree_hal_host_call_context_t,
    ) -> sys::iree_status_t {
        let step = &self.program.steps[number];
        for at in &step.waits {
            if self.timelines[at.timeline].value().is_ok_and(|value| value < at.value) {
                self.trouble(format!("step {number} was called before s{}@{}", at.timeline, at.value));
            }
        }
        let Action::Call { visit, ends } = &step.action else { panic!("step {number} has no function") };
        let listed = if *ends == Ends::Detached { 0 } else { step.signals.len() };
        if context.signal_semaphore_list.count != listed || context.device != self.device(step.device) {
            self.trouble(format!("step {number} was called with another list, or for another device"));
        }
        if let Err(error) = self.visit(number, visit.as_ref()) {
            self.trouble(format!("step {number} could not look: {}", error.text));
        }
        self.calls[number].fetch_add(1, Ordering::AcqRel);
        match ends {
            Ends::Well | Ends::Detached => null_mut(),
            Ends::Failed(code) => common::failure(*code, &cause(number)),
            Ends::Deferred => {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(200));
                    for at in &self.program.steps[number].signals {
                        if let Err(error) = self.timelines[at.timeline].signal(at.value) {
                            self.trouble(format!("step {number} could not signal later: {}", error.text));
                        }
                    }
                });
                // A status without a message is its code.
                sys::IREE_STATUS_DEFERRED as usize as sys::iree_status_t
            }
        }
    }
}

/// The message of a step that fails on purpose.
pub(crate) fn cause(step: usize) -> String {
    format!("step {step} fails on purpose.")
}

/// The argument of a host call.
pub(crate) type Ticket = (Weak<Scene>, usize);

/// The function of every call.
pub(crate) unsafe extern "C" fn called(
    user_data: *mut c_void,
    arguments: *const u64,
    context: *mut sys::iree_hal_host_call_context_t,
) -> sys::iree_status_t {
    let (scene, number) = *unsafe { Box::from_raw(user_data.cast::<Ticket>()) };
    let scene = scene.upgrade().expect("a program has not ended before its calls");
    let arguments = unsafe { std::slice::from_raw_parts(arguments, 4) };
    if arguments != [number as u64, !number as u64, 1, 2] {
        scene.trouble(format!("step {number} was called with {arguments:x?}"));
    }
    scene.call(number, unsafe { &*context })
}
