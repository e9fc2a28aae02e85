// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A loaded executable, and the measured cost of its functions.

use hal_backend::{Failure, HostCall, HostProgram};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A loaded executable.
pub struct Executable {
    host: Arc<dyn HostProgram>,
    costs: Box<[Cost]>,
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable").field("costs", &self.costs).finish_non_exhaustive()
    }
}

impl Executable {
    pub(crate) fn new(host: Arc<dyn HostProgram>) -> Self {
        let costs = host.functions().iter().map(|_| Cost::default()).collect();
        Self { host, costs }
    }

    pub(crate) fn run(
        &self,
        call: &HostCall<'_>,
        workgroups: Range<u64>,
        worker: usize,
    ) -> Result<(), Failure> {
        self.host.run_dispatch(call, workgroups, worker)
    }

    /// The estimated time of one worker for some workgroups of a function.
    pub(crate) fn estimate(&self, function: usize, workgroups: u64) -> Duration {
        self.costs.get(function).map_or(Duration::ZERO, |cost| cost.estimate(workgroups))
    }

    /// Records the time that one worker took for some workgroups of a function.
    pub(crate) fn learn(&self, function: usize, time: Duration, workgroups: u64) {
        if let Some(cost) = self.costs.get(function) {
            cost.learn(time, workgroups);
        }
    }
}

/// The time of one worker for a workgroup of a function, which decides whether sharing pays.
///
/// A running mean in sixteenths of nanoseconds. An unmeasured workgroup counts as long.
#[derive(Debug)]
struct Cost(AtomicU64);

const UNKNOWN: u64 = u64::MAX;

impl Default for Cost {
    fn default() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }
}

impl Cost {
    /// The estimated time of so many workgroups.
    fn estimate(&self, workgroups: u64) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).saturating_mul(workgroups) / 16)
    }

    /// Adds a measurement. Concurrent updates all count.
    fn learn(&self, time: Duration, workgroups: u64) {
        let Some(each) = u64::try_from(time.as_nanos())
            .unwrap_or(u64::MAX / 32)
            .saturating_mul(16)
            .checked_div(workgroups)
        else {
            return;
        };
        let mean = match self.0.load(Ordering::Relaxed) {
            UNKNOWN => each,
            mean => mean - mean / 4 + each / 4,
        };
        self.0.store(mean.min(UNKNOWN - 1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_cost_is_long_and_a_known_one_follows_the_times() {
        let cost = Cost::default();
        assert!(cost.estimate(1) > Duration::from_secs(60));
        cost.learn(Duration::from_micros(10), 10);
        assert_eq!(cost.estimate(5), Duration::from_micros(5));
        for _ in 0..50 {
            cost.learn(Duration::from_nanos(300), 100);
        }
        assert!(cost.estimate(100) < Duration::from_nanos(500), "{:?}", cost.estimate(100));
        cost.learn(Duration::MAX, 0);
        cost.learn(Duration::MAX, 1);
        assert!(cost.estimate(u64::MAX) > Duration::from_secs(60));
    }
}
