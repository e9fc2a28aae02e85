// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The operations that only move bytes: all-gather, broadcast and all-to-all.

use super::{
    Copying, ExchangeStep, Plan, SCATTERED, STRAIGHT, Schedule, Scratch, copy, part, shifted, steps,
};
use crate::announced::{Messages, Totals};
use hal_backend::HostRange;
use hal_collectives::{Parts, Result};

/// The distances 1, 2, 4 and so on below a number of ranks.
fn doublings(ranks: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|bit| 1_u32 << bit).take_while(move |&distance| distance < ranks)
}

impl Plan {
    /// Every rank gets what each rank sends.
    pub(super) fn all_gather(
        &self,
        send: &HostRange,
        recv: &Parts,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        let bytes = self.bytes();
        let own = recv.of(self.rank);
        if self.ranks > 2 && bytes < STRAIGHT {
            return self.all_gather_doubling(send, recv, scratch);
        }
        let (send, plan, recv) = (send.clone(), self.clone(), recv.clone());
        let mut first = ExchangeStep {
            meanwhile: Some(Box::new(Copying::new(send.clone(), own))),
            ..ExchangeStep::default()
        };
        let (mut sends, mut receives) = (Totals::new(), Totals::new());
        if self.ranks > 1 {
            first.send(self.ahead(1), Some(send));
            first.receive(self.behind(1), Some(recv.of(self.behind(1))));
            // As much in each turn.
            let turn = Messages::of(first.receives.iter().map(|receive| receive.length));
            let all = turn.times(self.ranks - 1);
            if all.count > 0 {
                sends.push((self.ahead(1), all));
                receives.push((self.behind(1), all));
            }
        }
        let rest = (1..self.ranks.saturating_sub(1)).map(move |turn| plan.around(turn, &recv));
        Ok(Schedule { steps: Box::new(std::iter::once(first).chain(rest)), sends, receives })
    }

    /// A turn of a ring: what came in the turn before goes on.
    fn around(&self, turn: u32, all: &Parts) -> ExchangeStep {
        let mut step = ExchangeStep::default();
        step.send(self.ahead(1), Some(all.of(self.behind(turn))));
        step.receive(self.behind(1), Some(all.of(self.behind(turn + 1))));
        step
    }

    /// In each step everything that is here goes to a rank twice as far away.
    fn all_gather_doubling(&self, send: &HostRange, recv: &Parts, scratch: &mut Scratch) -> Result<Schedule> {
        let bytes = self.bytes();
        // From this rank's on, around the ring.
        let turned = scratch.take(bytes * u64::from(self.ranks))?;
        copy(send, &part(&turned, 0, bytes));
        let mut schedule = Vec::new();
        for distance in doublings(self.ranks) {
            let length = u64::from(distance.min(self.ranks - distance)) * bytes;
            let mut step = ExchangeStep::default();
            step.send(self.behind(distance), Some(part(&turned, 0, length)));
            step.receive(self.ahead(distance), Some(part(&turned, u64::from(distance) * bytes, length)));
            schedule.push(step);
        }
        let (recv, plan) = (recv.clone(), self.clone());
        schedule.push(ExchangeStep::default().after(move || {
            for place in 0..plan.ranks {
                copy(&part(&turned, u64::from(place) * bytes, bytes), &recv.of(plan.ahead(place)));
            }
        }));
        Ok(steps(schedule))
    }

    /// Every rank gets what the root sends; it has it in `all`, where the others get it.
    pub(super) fn broadcast(&self, root: u32, all: &HostRange) -> Schedule {
        if self.ranks > 2 && self.bytes() >= SCATTERED {
            return self.broadcast_scattered(root, all);
        }
        // Counted from the root.
        let place = shifted(self.rank, self.ranks - root, self.ranks);
        let rank = |place: u32| shifted(place, root, self.ranks);
        let mut schedule = Vec::new();
        let lowest = if place == 0 { self.ranks.next_power_of_two() } else { place & place.wrapping_neg() };
        if place != 0 {
            let mut step = ExchangeStep::default();
            step.receive(rank(place - lowest), Some(all.clone()));
            schedule.push(step);
        }
        let mut step = ExchangeStep::default();
        for distance in doublings(lowest).collect::<Vec<_>>().into_iter().rev() {
            if distance < self.ranks - place {
                step.send(rank(place + distance), Some(all.clone()));
            }
        }
        schedule.push(step);
        steps(schedule)
    }

    /// The root's memory in a share for each rank, which go along a tree from the root; then all gather the
    /// shares, in log n steps.
    fn broadcast_scattered(&self, root: u32, all: &HostRange) -> Schedule {
        let (ranks, length) = (self.ranks, all.length());
        // Counted from the root.
        let place = shifted(self.rank, ranks - root, ranks);
        let rank = |place: u32| shifted(place, root, ranks);
        let shares = |from: u32, to: u32| {
            let bound = |place: u32| {
                let at = u128::from(length) * u128::from(place) / u128::from(ranks);
                u64::try_from(at).unwrap_or(u64::MAX)
            };
            Some(part(all, bound(from), bound(to) - bound(from)))
        };
        let mut schedule = Vec::new();
        let lowest = if place == 0 { ranks.next_power_of_two() } else { place & place.wrapping_neg() };
        if place != 0 {
            let mut step = ExchangeStep::default();
            step.receive(rank(place - lowest), shares(place, ranks.min(place + lowest)));
            schedule.push(step);
        }
        let mut step = ExchangeStep::default();
        for distance in doublings(lowest).collect::<Vec<_>>().into_iter().rev() {
            if distance < ranks - place {
                let first = place + distance;
                step.send(rank(first), shares(first, ranks.min(first + distance)));
            }
        }
        schedule.push(step);
        // So many shares from a place on, around the ring.
        let around = |first: u32, count: u32| {
            let end = u64::from(first) + u64::from(count);
            let behind = u32::try_from(end.saturating_sub(ranks.into())).unwrap_or_default();
            [(first, first + (count - behind)), (0, behind)].map(|(from, to)| shares(from, to))
        };
        for distance in doublings(ranks) {
            let count = distance.min(ranks - distance);
            let mut step = ExchangeStep::default();
            // The root has everything, and is sent nothing.
            let to = shifted(place, ranks - distance, ranks);
            if to != 0 {
                around(place, count).into_iter().for_each(|range| step.send(rank(to), range));
            }
            if place != 0 {
                let from = shifted(place, distance, ranks);
                around(from, count).into_iter().for_each(|range| step.receive(rank(from), range));
            }
            schedule.push(step);
        }
        steps(schedule)
    }

    /// Every rank gets the part that each rank has for it.
    pub(super) fn all_to_all(&self, send: &Parts, recv: &Parts, scratch: &mut Scratch) -> Result<Schedule> {
        let bytes = self.bytes() / u64::from(self.ranks);
        if self.ranks > 3 && bytes < STRAIGHT {
            return self.all_to_all_collected(send, recv, bytes, scratch);
        }
        let (plan, send, recv) = (self.clone(), send.clone(), recv.clone());
        Ok(Schedule::by_steps((0..self.ranks).map(move |distance| {
            let (to, from) = (plan.ahead(distance), plan.behind(distance));
            let mut step = ExchangeStep::default();
            if distance == 0 {
                copy(&send.of(plan.rank), &recv.of(plan.rank));
            } else {
                step.send(to, Some(send.of(to)));
                step.receive(from, Some(recv.of(from)));
            }
            step
        })))
    }

    /// In the step of distance d, what has a way with that bit before it goes so far, together.
    fn all_to_all_collected(
        &self,
        send: &Parts,
        recv: &Parts,
        bytes: u64,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        // By how far they have to go, and later by how far they came.
        let parts = scratch.take(bytes * u64::from(self.ranks))?;
        for way in 0..self.ranks {
            copy(&send.of(self.ahead(way)), &part(&parts, u64::from(way) * bytes, bytes));
        }
        let mut schedule = Vec::new();
        for distance in doublings(self.ranks) {
            let ways: Vec<u32> = (0..self.ranks).filter(|way| way & distance != 0).collect();
            let length = bytes * ways.len() as u64;
            let (packed, came) = (scratch.take(length)?, scratch.take(length)?);
            let (parts, packing, ways_out) = (parts.clone(), packed.clone(), ways.clone());
            let unpacked = parts.clone();
            schedule.push(ExchangeStep::default().after(move || {
                for (place, &way) in (0..).zip(&ways_out) {
                    copy(&part(&parts, u64::from(way) * bytes, bytes), &part(&packing, place * bytes, bytes));
                }
            }));
            let mut step = ExchangeStep::default();
            step.send(self.ahead(distance), Some(packed));
            step.receive(self.behind(distance), Some(came.clone()));
            schedule.push(step.after(move || {
                for (place, &way) in (0..).zip(&ways) {
                    copy(&part(&came, place * bytes, bytes), &part(&unpacked, u64::from(way) * bytes, bytes));
                }
            }));
        }
        let (plan, recv) = (self.clone(), recv.clone());
        schedule.push(ExchangeStep::default().after(move || {
            for way in 0..plan.ranks {
                copy(&part(&parts, u64::from(way) * bytes, bytes), &recv.of(plan.behind(way)));
            }
        }));
        Ok(steps(schedule))
    }
}
