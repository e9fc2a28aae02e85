// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waits for objects, and the times of their last execution (`qaic_wait_bo_ioctl`, `qaic_perf_stats_bo_ioctl`).

use super::object::Stats;
use super::slice::read_all;
use crate::injection;
use crate::machine::{Guard, Machine};
use emulator_core::drm::take;
use emulator_core::interrupt;
use emulator_core::{Errno, Process};
use hal_qaic_abi::uapi::{CHANNELS, PerfStats, PerfStatsEntry, Wait};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

impl Machine {
    /// `qaic_wait_bo_ioctl`. It does not wait for an object that was never executed, and does not check the
    /// device's status of a transfer.
    pub(crate) fn wait(&self, number: usize, user: u32, argument: &[u8]) -> Result<(), Errno> {
        let request: Wait = take(argument)?;
        if request.pad != 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        let card = &mut state.cards[number];
        card.online()?;
        if request.dbc_id >= CHANNELS {
            return Err(Errno::INVAL);
        }
        if card.channel(request.dbc_id)?.user != Some(user) {
            return Err(Errno::PERM);
        }
        let object = card.user(user)?.object(request.handle).ok_or(Errno::NOENT)?;
        let default = Duration::from_millis(self.options.module.wait_exec_default_timeout_ms.into());
        let timeout = match request.timeout {
            0 => self.real(default),
            given => Duration::from_millis(given.into()),
        };
        card.channel(request.dbc_id)?.waits += 1;
        let result = self.until_complete(&mut state, number, object, timeout);
        let card = &mut state.cards[number];
        let channel = &mut card.channels[request.dbc_id];
        channel.waits -= 1;
        // A thread may wait for the release of the channel.
        self.core.wake(number);
        let released = channel.user.is_none();
        // A wait that times out reports only that; one that a signal has interrupted may have lost its channel
        // as well.
        match card.restarting {
            _ if result == Err(Errno::TIMEDOUT) => result,
            Some(channel) if channel == request.dbc_id => Err(Errno::PIPE),
            _ if released => Err(Errno::PERM),
            _ => result,
        }
    }

    /// Sleeps until an object is complete.
    fn until_complete(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        object: u64,
        timeout: Duration,
    ) -> Result<(), Errno> {
        let until = Instant::now().checked_add(timeout);
        let mut slept = false;
        loop {
            let card = &mut state.cards[number];
            // An object that is gone is not in flight.
            if card.objects.get(object).is_none_or(|object| object.complete) {
                return Ok(());
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(Errno::TIMEDOUT);
            }
            // Spurious wakeups do not count as further waits.
            if !std::mem::replace(&mut slept, true) && card.injections.strikes(injection::INTERRUPT) {
                return Err(Errno::INTR);
            }
            if interrupt::is_pending() {
                return Err(Errno::INTR);
            }
            if state.is_stopping() {
                return Err(Errno::NODEV);
            }
            self.sleep(state, number, until);
        }
    }

    /// `qaic_perf_stats_bo_ioctl`. The owner of the channel is not checked.
    pub(crate) fn statistics(
        &self,
        process: &dyn Process,
        number: usize,
        user: u32,
        argument: &[u8],
    ) -> Result<(), Errno> {
        let request: PerfStats = take(argument)?;
        {
            let state = self.lock();
            state.cards[number].online()?;
        }
        if request.hdr.dbc_id >= CHANNELS {
            return Err(Errno::INVAL);
        }
        let count = request.hdr.count.into();
        let mut entries: Vec<PerfStatsEntry> = read_all(process, request.data, count, Errno::INVAL)?;
        let mut state = self.lock();
        let card = &mut state.cards[number];
        for entry in &mut entries {
            let object = card.user(user)?.object(entry.handle).ok_or(Errno::NOENT)?;
            let object = card.objects.get(object).ok_or(Errno::NOENT)?;
            let elements = object.slicing.as_ref().map_or(0, |slicing| slicing.elements());
            answer(entry, &object.stats, elements);
        }
        drop(state);
        process.write(request.data, entries.as_bytes())
    }
}

/// Fills in the known times of an execution. One that has not completed has no time on the device.
fn answer(entry: &mut PerfStatsEntry, stats: &Stats, elements: usize) {
    let micros = |from: u64, to: u64| u32::try_from(to.saturating_sub(from) / 1000).unwrap_or(u32::MAX);
    entry.queue_level_before = stats.level_before;
    entry.num_queue_element = u32::try_from(elements).unwrap_or(u32::MAX);
    entry.submit_latency_us = micros(stats.received, stats.submitted);
    entry.device_latency_us = micros(stats.submitted, stats.processed);
}
