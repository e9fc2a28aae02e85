// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The outcome of a program, and its differences from the expected one.

use crate::common::{self, List, Semaphore, check};
use crate::host::cause;
use crate::oracle::{Causes, Cell};
use crate::program::{Action, Memory};
use crate::scene::{Scene, params};
use hal_semaphore::Code;
use hal_sys as sys;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Scene {
    /// Waits until every timeline has its expected value or failure. Returns false if one of them still waits.
    pub(crate) fn wait_for_the_end(&self) -> bool {
        let mut left = Some(Instant::now() + self.patience);
        for (number, timeline) in self.expected.timelines.iter().enumerate() {
            let patience = left.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
            let ended = wait(&self.timelines[number], timeline.value, patience);
            match ended {
                Err(error) if error.code == Code::DeadlineExceeded => {
                    left = None;
                    let value = self.timelines[number].value();
                    self.trouble(format!("s{number} never came to {}: {value:?}", timeline.value));
                }
                Err(error) if timeline.causes.is_empty() => {
                    self.trouble(format!("s{number} failed: {:?} {}", error.code, error.text));
                }
                Err(error) => {
                    if !self.is_cause(&timeline.causes, &error) {
                        let causes = &timeline.causes;
                        let (code, text) = (error.code, error.text);
                        self.trouble(format!(
                            "s{number} failed with {code:?} {text:?}, and not for {causes:?}"
                        ));
                    }
                }
                Ok(()) if !timeline.causes.is_empty() => {
                    self.trouble(format!("s{number} is at {}, and had to fail", timeline.value));
                }
                Ok(()) => {
                    let value = self.timelines[number].value();
                    if !value.as_ref().is_ok_and(|value| *value == timeline.value) {
                        self.trouble(format!("s{number} is at {value:?}, and not at {}", timeline.value));
                    }
                }
            }
        }
        left.is_some() && self.wait_for_calls()
    }

    /// True if an error comes from one of the steps.
    pub(crate) fn is_cause(&self, causes: &Causes, error: &common::Error) -> bool {
        causes.iter().any(|&step| {
            let action = &self.program.steps[step].action;
            // A device words its own failure.
            let is_told = matches!(action, Action::Broken(_)) || error.text.contains(&cause(step));
            action.begins_to_fail() == Some(error.code) && is_told
        })
    }

    /// Checks that every function was called once, or never if something before it failed.
    fn wait_for_calls(&self) -> bool {
        let begin = Instant::now();
        for (number, step) in self.program.steps.iter().enumerate() {
            let Action::Call { .. } = step.action else { continue };
            let begun = self.expected.causes(&step.waits).is_empty();
            let called = || self.calls[number].load(Ordering::Acquire);
            while begun && called() == 0 {
                if begin.elapsed() > self.patience {
                    self.trouble(format!("step {number} was never called"));
                    return false;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            if called() != usize::from(begun) {
                self.trouble(format!("step {number} was called {} times", called()));
            }
        }
        true
    }

    /// Compares all remaining content.
    pub(crate) fn compare(&self) {
        for (number, cells) in self.expected.buffers.iter().enumerate() {
            let Some(cells) = cells else { continue };
            let spec = self.program.buffers[number];
            match self.contents(number, spec.device, spec.length) {
                Ok(found) => {
                    if let Some(text) = difference(&found, cells, 0) {
                        self.trouble(format!("b{number} in the end: {text}"));
                    }
                }
                Err(error) => self.trouble(format!("b{number} cannot be read: {}", error.text)),
            }
        }
        for (number, cells) in self.expected.files.iter().enumerate() {
            if let Some(text) = difference(&self.files[number].read(), cells, 0) {
                self.trouble(format!("f{number} in the end: {text}"));
            }
        }
    }

    fn contents(&self, number: usize, device: usize, length: usize) -> common::Result<Vec<u8>> {
        let device = &self.machine.devices[device];
        let staging = device.try_buffer_of(params(Memory::Mapped), length)?;
        let (done, none) = (device.semaphore(0), List::none());
        device.copy(&none, &done.at(1), self.buffers[number].get().unwrap(), &staging, length)?;
        done.wait(1)?;
        Ok(staging.read())
    }
}

/// Waits so long; returns a failure with its message.
pub(crate) fn wait(semaphore: &Semaphore, value: u64, patience: Duration) -> common::Result {
    let waited = unsafe {
        let timeout = sys::iree_make_timeout_ms(patience.as_millis() as i64);
        check(sys::iree_hal_semaphore_wait(semaphore.0, value, timeout, 0))
    };
    match waited {
        Err(error) if error.code != Code::DeadlineExceeded => Err(semaphore.value().err().unwrap_or(error)),
        other => other,
    }
}

pub(crate) fn difference(found: &[u8], expected: &[Cell], offset: usize) -> Option<String> {
    let differs = |(found, expected): (&u8, &Cell)| expected.is_some_and(|expected| expected != *found);
    let pairs = || found.iter().zip(expected);
    let first = pairs().position(differs)?;
    let count = pairs().filter(|&pair| differs(pair)).count();
    let (found, expected) = (found[first], expected[first]?);
    Some(format!("{found:#04x} instead of {expected:#04x} at {}, and {count} bytes differ", offset + first))
}
