// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The completion thread.
//!
//! No descriptor becomes readable when a submission ends, and on Gaudi 2 no request waits for the first of several. So
//! one thread waits for the oldest job of one queue after the other, and polls the oldest jobs of all queues after
//! each wait. The kernel wakes the thread when that job ends, or at the next tick of its clock, 1 to 10 ms apart: no
//! wait is shorter. With nothing in queued, the thread sleeps.

use super::{AwaitedEpoch, Queue, QueuedJob, Queues, QueuesState};
use crate::executable::IndirectDispatch;
use crate::kmd::{Progress, clock};
use hal_backend::{Failure, QueueId};
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use std::time::Duration;

/// How long the thread waits for one submission before it polls the others: to the next tick of the kernel's clock.
const TICK: Duration = Duration::from_micros(1);

/// How long to wait for room that other users of the card take.
const NO_ROOM: Duration = Duration::from_millis(1);

/// An outcome to report to the engine.
struct JobReport {
    id: QueueId,
    epoch: u64,
    outcome: Result<(), Failure>,
}

impl QueuedJob {
    /// Notifies its observer, which may do anything. The caller holds no lock.
    fn notify(&self, outcome: Result<(), &Failure>) {
        let Some(observer) = &self.observer else { return };
        for &(command, begin, end) in &self.times {
            observer.command(command, begin, end);
        }
        let end = self.end.unwrap_or_else(clock);
        observer.job(self.begin.min(end), end, outcome);
    }
}

impl Queues {
    /// Waits for the loss of the card, also while nothing is in queued, and has the completion thread close the card:
    /// the kernel kills a process that keeps one open through a reset.
    pub(crate) fn watch_for_reset(&self) {
        let Some(cause) = self.planner.card.wait_for_loss(&self.shutdown) else { return };
        let failure = self.submitter.ended(cause);
        self.state.lock().lost.get_or_insert(failure);
        self.work.notify_all();
    }

    /// The completion thread. Returns once it is stopped and nothing is in queued.
    pub(crate) fn serve(&self) {
        let mut turn = 0_usize;
        loop {
            let mut state = self.state.lock();
            self.advance_all(&mut state);
            if self.lose(&mut state) {
                return;
            }
            let reports = retire(&mut state);
            if !reports.is_empty() {
                self.advance_all(&mut state);
                drop(state);
                self.notify(reports);
                continue;
            }
            let mut oldest_jobs = oldest_jobs(&state);
            if oldest_jobs.is_empty() {
                if state.queues.iter().any(Queue::is_behind) {
                    // Submissions of other users of the card take the room, and their ends are not reported.
                    self.work.wait_for(&mut state, NO_ROOM);
                } else if state.stopping {
                    return;
                } else {
                    self.work.wait(&mut state);
                }
                continue;
            }
            drop(state);
            let count = oldest_jobs.len();
            oldest_jobs.rotate_left(turn % count);
            turn = turn.wrapping_add(1);
            self.poll_oldest(&oldest_jobs);
        }
    }

    /// Loses the card because the completion thread has panicked: no job in flight could be reported any more.
    pub(crate) fn server_panicked(&self, why: &Failure) {
        let mut state = self.state.lock();
        state.lost.get_or_insert_with(|| why.clone());
        self.lose(&mut state);
    }

    /// Has the completion thread lose the card because the thread that waits for its loss has panicked.
    pub(crate) fn watcher_panicked(&self, why: &Failure) {
        self.state.lock().lost.get_or_insert_with(|| why.clone());
        self.work.notify_all();
    }

    /// Waits for the first jobs of the queues, then polls each.
    fn poll_oldest(&self, oldest_jobs: &[OldestJob]) {
        let sequences: SmallVec<[u64; 8]> = oldest_jobs.iter().map(|oldest| oldest.sequence).collect();
        // The result is not used: each job is polled below.
        let _ = self.submitter.wait_any(&sequences, TICK);
        for oldest in oldest_jobs {
            let progress = self.submitter.poll(oldest.sequence, Duration::ZERO);
            if progress == Progress::Busy {
                continue;
            }
            let mut state = self.state.lock();
            if let Some(failure) = self.submitter.failure(oldest.hardware, oldest.sequence, &progress) {
                state.lost.get_or_insert(failure);
                return;
            }
            self.finish_oldest(&mut state, oldest, &progress);
        }
    }

    /// Finishes the first job of a queue, whose last submission has ended well. The others have ended too, and each is
    /// polled: the kernel keeps an error with the submission that it happened to.
    fn finish_oldest(&self, state: &mut QueuesState, oldest: &OldestJob, progress: &Progress) {
        let queue = state.queue_mut(oldest.queue);
        #[expect(clippy::expect_used, reason = "this thread alone takes jobs out of their queues")]
        let queued = queue.jobs.front_mut().expect("a job on the card is in its queue");
        let mut ends: SmallVec<[Option<u64>; 4]> = SmallVec::new();
        let mut lost = None;
        for submission in &queued.submissions {
            let own = submission.sequence() == oldest.sequence;
            let progress = if own {
                progress.clone()
            } else {
                self.submitter.poll(submission.sequence(), Duration::ZERO)
            };
            lost =
                lost.or_else(|| self.submitter.failure(submission.queue(), submission.sequence(), &progress));
            ends.push(if let Progress::Done { at, .. } = progress { at } else { None });
        }
        queued.submissions.clear();
        // The card began this job when it had ended the one before.
        queued.begin = queued.begin.max(queue.ended);
        let mut begin = queued.begin;
        for (command, index) in queued.marks.drain(..) {
            let end = ends.get(index).copied().flatten().unwrap_or_else(clock).max(begin);
            queued.times.push((command, begin, end));
            begin = end;
        }
        queue.ended = ends.last().copied().flatten().unwrap_or_else(clock);
        queued.end = Some(queue.ended);
        if let Some(failure) = lost {
            state.lost.get_or_insert(failure);
        }
    }

    fn notify(&self, reports: Vec<(JobReport, QueuedJob)>) {
        let mut reports = reports.into_iter().peekable();
        while let Some((report, queued)) = reports.next() {
            queued.notify(report.outcome.as_ref().map(drop));
            // The job's memory is free before its completion is reported.
            drop(queued);
            let is_implied =
                |(next, _): &(JobReport, QueuedJob)| next.id == report.id && next.outcome.is_ok();
            if report.outcome.is_ok() && reports.peek().is_some_and(is_implied) {
                continue;
            }
            self.reporter.ended(report.id, report.epoch, report.outcome);
        }
    }

    /// Closes the card if it is lost, reports the loss, then drops the jobs in queued.
    fn lose(&self, state: &mut MutexGuard<'_, QueuesState>) -> bool {
        let Some(failure) = state.lost.clone() else { return false };
        let jobs: Vec<QueuedJob> = state.queues.iter_mut().flat_map(|queue| queue.jobs.drain(..)).collect();
        MutexGuard::unlocked(state, || {
            // The kernel kills a process that keeps a card open through a reset.
            self.submitter.close();
            self.planner.card.lose(&failure);
            self.reporter.lose(failure);
            drop(jobs);
        });
        true
    }
}

/// The oldest job of a queue, if it is on the card.
struct OldestJob {
    queue: usize,
    hardware: u32,
    sequence: u64,
}

fn oldest_jobs(state: &QueuesState) -> SmallVec<[OldestJob; 4]> {
    let oldest = |(queue, jobs): (usize, &Queue)| {
        let last = jobs.jobs.front()?.submissions.last()?;
        Some(OldestJob { queue, hardware: last.queue(), sequence: last.sequence() })
    };
    state.queues.iter().enumerate().filter_map(oldest).collect()
}

/// Takes the first job of a queue out of it, if it is over.
fn take_over(state: &mut QueuesState, number: usize) -> Option<QueuedJob> {
    let queued = state.queue(number).jobs.front()?;
    let reached = |wait: &AwaitedEpoch| state.queue(wait.queue).completed >= wait.epoch;
    let is_over = queued.submitted && queued.submissions.is_empty() && queued.needs.iter().all(reached);
    if is_over { state.queue_mut(number).jobs.pop_front() } else { None }
}

/// Takes the jobs that are over out of their queues.
fn retire(state: &mut QueuesState) -> Vec<(JobReport, QueuedJob)> {
    let mut reports = Vec::new();
    let mut again = true;
    while again {
        again = false;
        for number in 0..state.queues.len() {
            while let Some(mut queued) = take_over(state, number) {
                let queue = state.queue_mut(number);
                queue.completed = queued.epoch;
                again = true;
                let refusal = queued.indirect.iter().find_map(IndirectDispatch::refusal);
                // Programs end early once the device is stopped.
                let stopped = || state.aborted.clone();
                let failure = queued.failure.take().or_else(|| refusal.cloned()).or_else(stopped);
                let outcome = failure.map_or(Ok(()), Err);
                queued.end.get_or_insert_with(clock);
                reports.push((JobReport { id: queued.id, epoch: queued.epoch, outcome }, queued));
            }
        }
    }
    reports
}
