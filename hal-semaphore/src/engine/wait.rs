//! Waiting on the host: any or all of some timelines, until a moment.

use super::state::{Effect, HOST, HostOutcome, HostWait, Target};
use super::{POLL_INTERVAL, Shared, WaitMode};
use crate::backend::Backend;
use crate::clock::{Clock, Time};
use crate::error::WaitError;
use crate::failure::Failure;
use crate::ids::MAX_VALUE;
use crate::timeline::{Points, Timeline, iter};
use smallvec::SmallVec;

impl<B: Backend> Shared<B> {
    pub(super) fn wait<P>(
        &self,
        mode: WaitMode,
        points: &P,
        clock: &dyn Clock,
        until: Option<Time>,
    ) -> Result<usize, WaitError>
    where
        P: Points<B::Timeline> + ?Sized,
    {
        if points.is_empty() {
            return if mode == WaitMode::All { Ok(0) } else { Err(WaitError::Empty) };
        }
        if let Some((_, value)) = iter(points).find(|&(_, value)| value > MAX_VALUE) {
            return Err(WaitError::ValueTooLarge { value });
        }
        if let Some(result) = seen(mode, points) {
            return result;
        }
        if until.is_some_and(|until| until <= clock.now()) {
            self.poll_devices();
            return seen(mode, points).unwrap_or(Err(WaitError::DeadlineExceeded));
        }

        let mut core = self.core.lock();
        for (index, (timeline, _)) in iter(points).enumerate() {
            if core.own_slot(timeline).is_some_and(|slot| core.slots.get(slot).is_none_or(|slot| !slot.owned))
            {
                return Err(WaitError::DroppedTimeline { index });
            }
        }
        let pending = core.notifications.acquire();
        let wait = core.host_waits.insert(HostWait {
            remaining: points.len(),
            any: mode == WaitMode::Any,
            pending: pending.clone(),
            outcome: None,
            slots: SmallVec::new(),
        });
        for (index, (timeline, value)) in iter(points).enumerate() {
            // A value that the engine has seen reached, or a failure, may not be published yet. The wake-up queues
            // up behind the publication, so that a thread that has waited also sees what it waited for.
            match core.state_of(timeline, value) {
                Some(Ok(())) => core.host_reached(wait, index),
                Some(Err(failure)) => core.host_failed(wait, index, &failure),
                None => {
                    let slot = match core.own_slot(timeline) {
                        Some(slot) => slot,
                        None => {
                            let slot = core.new_slot(false, 0);
                            core.effects.then(Effect::Watch(timeline.clone(), value, slot));
                            slot
                        }
                    };
                    core.use_slot(slot);
                    let index = u32::try_from(index).unwrap_or(u32::MAX);
                    core.park(slot, HOST, value, Target::Wait { wait, index });
                    if let Some(record) = core.host_waits.get_mut(wait) {
                        record.slots.push(slot);
                    }
                }
            }
        }
        let polled = core.is_polled();
        self.pump(core);

        let mut interval = POLL_INTERVAL;
        while !pending.is_raised() {
            if polled {
                self.poll_devices();
                if pending.is_raised() {
                    break;
                }
            }
            if pending.spin() {
                break;
            }
            let now = clock.now();
            if until.is_some_and(|until| until <= now) {
                break;
            }
            let next = if polled {
                interval = (interval * 2).min(POLL_INTERVAL * 32);
                Some(until.map_or(now + interval, |until| until.min(now + interval)))
            } else {
                until
            };
            clock.sleep(&pending, next);
        }

        let raised = pending.is_raised();
        let mut core = self.core.lock();
        let record = core.host_waits.remove(wait);
        core.notifications.release(pending);
        let outcome = record.map(|record| {
            for slot in &record.slots {
                if !raised || mode == WaitMode::Any {
                    core.leave_stale(*slot);
                }
                core.drop_user(*slot);
            }
            record.outcome
        });
        self.pump(core);
        match outcome.flatten() {
            Some(HostOutcome::Reached(index)) if raised => Ok(index),
            Some(HostOutcome::Failed(index, failure)) if raised => Err(WaitError::Failed { index, failure }),
            _ => Err(WaitError::DeadlineExceeded),
        }
    }
}

/// The outcome of a wait as the timelines themselves show it; nothing while it is open.
fn seen<T, P>(mode: WaitMode, points: &P) -> Option<Result<usize, WaitError>>
where
    T: Timeline,
    P: Points<T> + ?Sized,
{
    let mut failed: Option<(usize, Failure)> = None;
    let mut last = 0;
    let mut all = true;
    for (index, (timeline, value)) in iter(points).enumerate() {
        let failure = timeline.failure();
        if timeline.value() >= value {
            if mode == WaitMode::Any {
                return Some(Ok(index));
            }
            last = index;
            continue;
        }
        all = false;
        if let Some(failure) = failure {
            failed.get_or_insert((index, failure));
        }
    }
    match failed {
        Some((index, failure)) => Some(Err(WaitError::Failed { index, failure })),
        None if all => Some(Ok(last)),
        None => None,
    }
}
