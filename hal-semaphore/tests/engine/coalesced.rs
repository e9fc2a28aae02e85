// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Barriers and markers that end with the work before them, behind work that was reported before its producer.
//!
//! Job 1 runs on queue 1, and job 2 on queue 0 waits for it natively. Both have run, and the report of job 2
//! comes first: its queue is gated. Barriers and markers behind job 2 have no work of their own on the device,
//! and could seem to end at once. They must not: no effect is seen before its cause, and each fails with its
//! own cause (rules S1, S3, S5).

use crate::rig::{Job, TestEngine, broken, gone};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;

const NATIVE: [NativeWaits; 2] = [NativeWaits::Epochs, NativeWaits::Events];

/// When the coalesced markers come: before the report of job 2, or after it.
const BEFORE_REPORT: [bool; 2] = [true, false];

struct Gated {
    rig: TestEngine,
    /// Signalled by job 1.
    produced: Semaphore,
    /// Signalled by job 1, too; waited for by nothing in the beginning.
    other: Semaphore,
    /// Signalled by job 2.
    consumed: Semaphore,
    /// Signalled by the barrier, which waits for `consumed`.
    barrier: Semaphore,
    /// Signalled by marker 3, which waits for `barrier`.
    marker: Semaphore,
}

impl Gated {
    fn new(native_waits: NativeWaits, marked_before_report: bool, producer: Job) -> Self {
        let rig = TestEngine::new(3, native_waits);
        let [produced, other, consumed, barrier, marker] = rig.semaphores();
        let signals = [(&produced, 1), (&other, 1)];
        rig.submit(1, &[], &signals, Action::Queue(producer));
        rig.job(0, &[(&produced, 1)], &[(&consumed, 1)], 2);
        let gated = Self { rig, produced, other, consumed, barrier, marker };
        if marked_before_report {
            gated.mark();
        }
        assert!(gated.rig.step(1) && gated.rig.step(0) && gated.rig.report(0));
        if !marked_before_report {
            gated.mark();
        }
        gated
    }

    fn mark(&self) {
        self.rig.barrier(0, &[(&self.consumed, 1)], &[(&self.barrier, 1)]);
        let waits = self.rig.waits(|rig| rig.marker(0, &[(&self.barrier, 1)], &[(&self.marker, 1)], 3));
        assert_eq!(waits.blocked, 0, "the device knows its order without the host");
    }

    fn all(&self) -> [&Semaphore; 4] {
        [&self.produced, &self.consumed, &self.barrier, &self.marker]
    }

    /// Nothing is visible yet, and nothing is reclaimed.
    fn assert_unseen(&self) {
        for semaphore in self.all() {
            assert_eq!(semaphore.query().unwrap(), 0, "{:?}", self.all());
        }
        assert!(self.rig.reclaimed().is_empty());
    }
}

fn each_case(check: impl Fn(NativeWaits, bool)) {
    for native_waits in NATIVE {
        for before_report in BEFORE_REPORT {
            check(native_waits, before_report);
        }
    }
}

/// The coalesced markers of a gated queue wait with it, and end in their order when the producer is reported (S5).
#[test]
fn coalesced_markers_of_a_gated_queue_end_after_the_producers_report() {
    each_case(|native_waits, before_report| {
        let gated = Gated::new(native_waits, before_report, Job::new(1));
        gated.assert_unseen();
        assert_eq!(gated.rig.markers(), [3], "the backend has seen the marker in its place");
        assert!(gated.rig.report(1));
        for semaphore in gated.all() {
            assert_eq!(semaphore.query().unwrap(), 1, "{native_waits:?}");
        }
        assert_eq!(gated.rig.reclaimed(), [1, 2, 3]);
        gated.rig.assert_idle();
    });
}

/// The producer fails: job 2 ran on inputs that were never made. It and the markers coalesced with it fail with
/// the producer's cause (S3).
#[test]
fn coalesced_markers_of_a_gated_queue_fail_with_the_producer() {
    each_case(|native_waits, before_report| {
        let cause = broken("parity");
        let gated = Gated::new(native_waits, before_report, Job::new(1).fails(&cause));
        gated.assert_unseen();
        assert!(gated.rig.report(1));
        for semaphore in gated.all() {
            assert!(semaphore.query().unwrap_err().same_root(&cause), "{native_waits:?}");
        }
        assert_eq!(gated.rig.reclaimed(), [1, 2, 3]);
        gated.rig.assert_idle();
    });
}

/// The host fails what the queue is gated on. The gate opens without the producer, whose report comes later and changes
/// nothing (S1, S3).
#[test]
fn coalesced_markers_of_a_gated_queue_fail_with_the_host() {
    each_case(|native_waits, before_report| {
        let gated = Gated::new(native_waits, before_report, Job::new(1));
        let cause = broken("the program gives up");
        gated.produced.fail(cause.clone());
        for semaphore in gated.all() {
            assert!(semaphore.query().unwrap_err().same_root(&cause), "{native_waits:?}");
        }
        assert_eq!(gated.rig.reclaimed(), [2, 3]);
        assert!(gated.rig.report(1));
        assert_eq!(gated.other.query().unwrap(), 1);
        assert_eq!(gated.rig.reclaimed(), [2, 3, 1]);
        gated.rig.assert_idle();
    });
}

/// The host signals what the queue is gated on, before the producer is reported. That opens the gate as well (S2).
#[test]
fn coalesced_markers_of_a_gated_queue_end_with_a_host_signal() {
    each_case(|native_waits, before_report| {
        let gated = Gated::new(native_waits, before_report, Job::new(1));
        gated.produced.signal(1).unwrap();
        for semaphore in gated.all() {
            assert_eq!(semaphore.query().unwrap(), 1, "{native_waits:?}");
        }
        assert_eq!(gated.rig.reclaimed(), [2, 3]);
        assert!(gated.rig.report(1));
        assert_eq!(gated.other.query().unwrap(), 1);
        gated.rig.assert_idle();
    });
}

/// The gate has opened for job 2 through the host, and the producer's report is still to come. A marker that waits for
/// another signal of the same producer must wait for that report, on an empty queue (S5, S6).
#[test]
fn coalesced_marker_on_an_empty_queue_waits_for_the_late_report() {
    each_case(|native_waits, before_report| {
        let gated = Gated::new(native_waits, before_report, Job::new(1));
        gated.produced.signal(1).unwrap();
        let [late, later] = gated.rig.semaphores();
        gated.rig.barrier(0, &[(&gated.other, 1)], &[(&late, 1)]);
        gated.rig.marker(0, &[(&late, 1)], &[(&later, 1)], 4);
        assert_eq!((late.query().unwrap(), later.query().unwrap()), (0, 0), "{native_waits:?}");
        gated.rig.run_until_idle();
        assert_eq!((late.query().unwrap(), later.query().unwrap()), (1, 1), "{native_waits:?}");
        assert_eq!(gated.rig.reclaimed(), [2, 3, 1, 4]);
        gated.rig.assert_idle();
    });
}

/// A job on a third queue waits for a coalesced marker of the gated queue. The device can run the job at once;
/// its signal is seen after the marker's (S5, S6).
#[test]
fn consumer_of_a_gated_coalesced_marker_runs_at_once_and_ends_last() {
    each_case(|native_waits, before_report| {
        let gated = Gated::new(native_waits, before_report, Job::new(1));
        let end = gated.rig.semaphore();
        let waits = gated.rig.waits(|rig| rig.job(2, &[(&gated.marker, 1)], &[(&end, 1)], 4));
        assert_eq!(waits.blocked, 0, "{native_waits:?}, markers before the report: {before_report}");
        assert!(gated.rig.step(2) && gated.rig.report(2));
        gated.assert_unseen();
        assert_eq!(end.query().unwrap(), 0);
        assert!(gated.rig.report(1));
        assert_eq!((gated.marker.query().unwrap(), end.query().unwrap()), (1, 1));
        assert_eq!(gated.rig.reclaimed(), [1, 2, 3, 4]);
        gated.rig.assert_idle();
    });
}

/// The device is lost while its queue is gated. Job 1 was never reported and fails everything behind it; each
/// job is reclaimed once (S3, S5).
#[test]
fn coalesced_markers_of_a_gated_queue_fail_with_the_device() {
    each_case(|native_waits, before_report| {
        let gated = Gated::new(native_waits, before_report, Job::new(1));
        let cause = gone();
        gated.rig.lose(&cause);
        for semaphore in gated.all() {
            assert!(semaphore.query().unwrap_err().same_root(&cause), "{native_waits:?}");
        }
        let mut reclaimed = gated.rig.reclaimed();
        reclaimed.sort_unstable();
        assert_eq!(reclaimed, [1, 2, 3]);
        gated.rig.assert_idle();
    });
}

/// A gated queue at a forced shutdown: the signals fail, and the work is reclaimed when the producer is
/// reported (S5, S10).
#[test]
fn forced_shutdown_fails_the_coalesced_markers_of_a_gated_queue() {
    each_case(|native_waits, before_report| {
        let gated = Gated::new(native_waits, before_report, Job::new(1));
        let clock = VirtualClock::new();
        let zero = std::time::Duration::ZERO;
        gated.rig.engine.shut_down(&clock, zero, zero).unwrap_err();
        for semaphore in gated.all() {
            assert_eq!(semaphore.query().unwrap_err().origin(), Origin::Shutdown, "{native_waits:?}");
        }
        gated.rig.run_until_idle();
        let mut reclaimed = gated.rig.reclaimed();
        reclaimed.sort_unstable();
        assert_eq!(reclaimed, [1, 2, 3]);
        gated.rig.assert_idle();
    });
}
