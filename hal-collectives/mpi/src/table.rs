// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The groups that an engine knows, by their numbers, which are the same in all processes.
//!
//! A group stays when its channels are gone, with its communicator and its count of operations: other ranks may
//! still have channels, and compiled modules join anew in every call.

use crate::engine::{Command, Engine};
use crate::group::Group;
use crate::notice::Generation;
use hal_collectives::Terms;
use hal_semaphore::Failure;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// This process's record of the groups with one number.
#[derive(Default)]
struct Known {
    /// The present generation, unless it has failed.
    group: Option<Arc<Group>>,
    /// The last generation that has failed, and why.
    failed: Option<(u32, Failure)>,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Groups {
    known: Mutex<BTreeMap<u64, Known>>,
    /// The channels of this process.
    channels: AtomicUsize,
    /// The splits that are under way, each of which may have a channel that the program has released.
    splits: AtomicUsize,
}

/// A split is under way as long as this is there.
pub(crate) struct Splitting(Arc<Groups>);

impl Drop for Splitting {
    fn drop(&mut self) {
        self.0.splits.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Groups {
    /// The group with a number, or a new one. One that has failed is begun anew, unless it is a part: other ranks
    /// were in the one that has failed.
    pub(crate) fn get(
        engine: &Arc<Engine>,
        number: u64,
        name: String,
        members: (Vec<u32>, u32),
        terms: Terms,
        is_part: bool,
    ) -> Arc<Group> {
        let mut known = engine.groups.known.lock();
        let known_one = known.entry(number).or_default();
        if let Some(group) = &known_one.group {
            return group.clone();
        }
        let failed = known_one.failed.clone();
        let generation = if is_part { 0 } else { failed.as_ref().map_or(0, |(last, _)| last + 1) };
        let id = Generation { number, generation };
        let group = Arc::new(Group::new(engine.clone(), id, name, members, terms, is_part));
        let failed = failed.filter(|_| is_part);
        known_one.group = failed.is_none().then(|| group.clone());
        drop(known);
        if is_part {
            // Though it has failed: the others may be reserved for its communicator.
            engine.send(Command::Join(group.clone()));
        }
        if let Some((_, failure)) = failed {
            group.fail(&failure);
        }
        group
    }

    /// The group of a notice, if this process is in it.
    pub(crate) fn find(&self, id: Generation) -> Option<Arc<Group>> {
        let known = self.known.lock();
        known.get(&id.number)?.group.clone().filter(|group| group.id == id)
    }

    /// The groups of this process that have not failed.
    pub(crate) fn all(&self) -> Vec<Arc<Group>> {
        self.known.lock().values().filter_map(|known| known.group.clone()).collect()
    }

    /// Why a group has failed, or one of its later generations.
    pub(crate) fn failure(&self, id: Generation) -> Option<Failure> {
        let known = self.known.lock();
        let (_, failure) =
            known.get(&id.number)?.failed.as_ref().filter(|(last, _)| *last >= id.generation)?;
        Some(failure.clone())
    }

    /// Records that a group has failed: it is not joined any more. Returns the one that has failed by this, of this
    /// generation or one before.
    pub(crate) fn remember_failure(&self, id: Generation, failure: &Failure) -> Option<Arc<Group>> {
        let mut known = self.known.lock();
        let known = known.entry(id.number).or_default();
        if known.failed.as_ref().is_none_or(|&(last, _)| last < id.generation) {
            known.failed = Some((id.generation, failure.clone()));
        }
        known.group.take_if(|group| group.id.generation <= id.generation)
    }

    /// This process has one channel more. True if it is the first.
    pub(crate) fn joined(&self) -> bool {
        self.channels.fetch_add(1, Ordering::SeqCst) == 0
    }

    pub(crate) fn left(&self) {
        self.channels.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn begin_split(self: &Arc<Self>) -> Splitting {
        self.splits.fetch_add(1, Ordering::SeqCst);
        Splitting(self.clone())
    }

    pub(crate) fn are_being_split(&self) -> bool {
        self.splits.load(Ordering::SeqCst) > 0
    }

    /// True if this process has a channel.
    pub(crate) fn any(&self) -> bool {
        self.channels.load(Ordering::SeqCst) > 0
    }
}
