// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parts that a group is split into.
//!
//! A split is an all-gather of what each rank says. Compiled modules split in every call, and a communicator is
//! expensive: so a part is used again when ranks split the group in the same way and all of them have released it.
//! Every rank records all parts, whether it is in them or not, and says which of them it does not use; so all come
//! to the same part.

use crate::engine::Command;
use crate::group::{ALONE, Group, Member, hash};
use crate::notice::Generation;
use crate::table::{Groups, Splitting};
use hal_backend::HostRange;
use hal_collectives::{Communicator, Operation, OperationEntry, PendingGroup, Result};
use hal_semaphore::{Code, Failure};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The bytes that a rank says: its color, its key, and the parts that it does not use.
pub(crate) const CALL: usize = 20;

/// The most parts that are used again.
const RECORDED: usize = 64;

/// A part: the ranks in its group, and it, if this rank is among them.
struct Recorded {
    ranks: Vec<u32>,
    group: Option<Arc<Group>>,
    /// This rank has said that it does not use it, in a split that is not over.
    is_offered: bool,
}

/// A rank's side of a split.
pub(crate) struct Split {
    pub(crate) color: Option<u32>,
    pub(crate) pending: PendingGroup,
    /// Dropped when the pending part is.
    pub(crate) splitting: Splitting,
}

/// The split of a rank that is over, until those before it are.
type Ended = (Result<HostRange>, Split);

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Parts {
    recorded: Vec<Recorded>,
    splits: u32,
    /// The next split to be over, and those behind it that are.
    next: u32,
    ended: BTreeMap<u32, Ended>,
}

impl Parts {
    /// The number of a split, and what this rank says in it.
    pub(crate) fn call(&mut self, color: Option<u32>, key: i32) -> (u32, [u8; CALL]) {
        let mut unused = 0_u64;
        for (at, part) in self.recorded.iter_mut().enumerate() {
            let is_idle = part.group.as_ref().is_none_or(|group| group.is_idle());
            if is_idle && !part.is_offered {
                unused |= 1 << at;
                part.is_offered = true;
            }
        }
        let split = self.splits;
        self.splits += 1;
        let mut call = [0; CALL];
        let (words, rest) = call.split_at_mut(8);
        words.copy_from_slice(&color.map_or(-1, i64::from).to_le_bytes());
        let (words, rest) = rest.split_at_mut(4);
        words.copy_from_slice(&key.to_le_bytes());
        rest.copy_from_slice(&unused.to_le_bytes());
        (split, call)
    }

    /// A split is over: this rank gets its part, when the splits before are over.
    pub(crate) fn called(group: &Arc<Group>, split: u32, all: Result<HostRange>, own: Split) {
        let mut parts = group.parts.lock();
        parts.ended.insert(split, (all, own));
        loop {
            let next = parts.next;
            let Some((all, Split { color, pending, splitting })) = parts.ended.remove(&next) else { return };
            parts.next += 1;
            if let (Err(why), Some(color)) = (&all, color) {
                // Others may have come out of the split, and be reserved for the part that this rank does not know.
                let of = id_of_part(group, next, color.into());
                group.engine.send(Command::NeverJoins(of, group.clone(), why.clone()));
            }
            let part = all.map(|all| parts.part(group, next, color, &all));
            drop(parts);
            let member = part.and_then(|part| match part {
                Some(part) => Member::claim(part, ALONE).map(|member| Arc::new(member) as _),
                None => Err(Failure::new(Code::NotFound, "this rank is in no part of the group")),
            });
            pending.set(member);
            drop(pending);
            drop(splitting);
            parts = group.parts.lock();
        }
    }

    /// Records the parts of a split, and returns this rank's.
    fn part(
        &mut self,
        group: &Arc<Group>,
        split: u32,
        color: Option<u32>,
        all: &HostRange,
    ) -> Option<Arc<Group>> {
        let mut colors: BTreeMap<i64, Vec<(i32, u32)>> = BTreeMap::new();
        let mut unused = vec![0; group.members.len()];
        for (rank, unused) in (0..).zip(&mut unused) {
            let (mut of, mut key, mut parts) = ([0; 8], [0; 4], [0; 8]);
            let at = u64::from(rank) * CALL as u64;
            let read = all.read(at, &mut of) & all.read(at + 8, &mut key) & all.read(at + 12, &mut parts);
            debug_assert!(read, "there is a call of each rank");
            colors.entry(i64::from_le_bytes(of)).or_default().push((i32::from_le_bytes(key), rank));
            *unused = u64::from_le_bytes(parts);
        }
        colors.remove(&-1);
        let mut own = None;
        for (of, mut ranks) in colors {
            ranks.sort_unstable();
            let ranks: Vec<u32> = ranks.into_iter().map(|(_, rank)| rank).collect();
            let all_unused =
                ranks.iter().filter_map(|&rank| unused.get(rank as usize)).fold(u64::MAX, |a, b| a & b);
            let known = self
                .recorded
                .iter()
                .enumerate()
                .find(|(at, part)| part.ranks == ranks && all_unused >> at & 1 == 1);
            let part = match known {
                Some((_, part)) => part.group.clone(),
                None => {
                    let part = new_part(group, split, of, &ranks);
                    if self.recorded.len() < RECORDED {
                        self.recorded.push(Recorded { ranks, group: part.clone(), is_offered: false });
                    }
                    part
                }
            };
            if color.map(i64::from) == Some(of) {
                own = part;
            }
        }
        // What this rank offered in this split.
        let offered = unused.get(group.rank as usize).copied().unwrap_or_default();
        for (at, part) in self.recorded.iter_mut().enumerate() {
            part.is_offered &= offered >> at & 1 == 0;
        }
        own
    }
}

/// A part of a group that was not there before, if this rank is in it.
fn new_part(group: &Arc<Group>, split: u32, color: i64, ranks: &[u32]) -> Option<Arc<Group>> {
    let own = u32::try_from(ranks.iter().position(|&rank| rank == group.rank)?).ok()?;
    let name = format!("{} split {split} color {color}", group.name);
    let number = id_of_part(group, split, color).number;
    let members = ranks.iter().map(|&rank| group.member(rank)).collect();
    Some(Groups::get(&group.engine, number, name, (members, own), group.terms, true))
}

/// What a part is called that was not there before its split.
fn id_of_part(group: &Group, split: u32, color: i64) -> Generation {
    let Generation { number, generation } = group.id;
    let words = number.to_le_bytes().into_iter().chain(color.to_le_bytes());
    let words = words.chain([generation, split].map(u32::to_le_bytes).into_iter().flatten());
    Generation { number: hash(words), generation: 0 }
}

/// A part that is being agreed on, for its rank.
pub(crate) struct Part {
    pub(crate) pending: PendingGroup,
    /// The group that is split.
    pub(crate) group: Arc<Group>,
}

impl Part {
    /// The part, on which no process waits that was forked from the rank's.
    fn get(&self) -> Result<&PendingGroup> {
        self.group.engine.check_process().map(|()| &self.pending)
    }
}

impl Communicator for Part {
    fn place(&self) -> Result<(u32, u32)> {
        self.get()?.place()
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>> {
        self.get()?.enter(operation)
    }

    fn end(&self, why: &Failure) {
        self.pending.end(why);
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.get()?.split(color, key)
    }
}
