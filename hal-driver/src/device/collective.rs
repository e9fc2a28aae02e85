// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Command buffers with collectives: a chain of steps.
//!
//! A step's commands go to the queue, and its collectives to the host, side by side; both wait for both parts of the step
//! before. Two timelines of our own order them. The last barrier is submitted first, as it alone has the program's signals:
//! if they are refused, nothing has begun, and whatever goes wrong later reaches them along the chain.
//!
//! Memory that the host can map is used where it is, whoever's it is. Other memory is brought into host memory before and
//! taken back after, by its owner's queue, as for any [loan](super::loan).

use super::State;
use super::queue::{SemaphoreLists, Side};
use crate::buffer::Slice;
use crate::collective::{CollectiveRecord, Collectives, Entered};
use crate::command_buffer::{Recorded, Step};
use crate::lending::Lending;
use crate::record::{Reference, Use};
use crate::semaphore::{IreeTimeline, List, OwnedList};
use crate::status::{Result, invalid};
use crate::work::Operation;
use hal_backend::Device;
use hal_collectives::Entry;
use hal_semaphore::{Affinity, Failure};
use std::collections::VecDeque;

/// Where a collective finds the bytes of a buffer.
struct Route {
    /// What the host can map: the bytes themselves, or what stands for them.
    near: Slice,
    /// Whose they are otherwise, and what says that they were copied.
    far: Option<(Lending, IreeTimeline)>,
}

/// The memory of one collective.
#[derive(Default)]
struct Routes {
    send: Option<Route>,
    recv: Option<Route>,
}

/// What orders the steps of one execution.
struct Chain<'a> {
    steps: &'a [Step],
    /// The memory of each step's collectives.
    routes: Vec<Vec<Routes>>,
    /// Each at the number of a step, from 1, when that part of it has ended.
    commands: IreeTimeline,
    collectives: IreeTimeline,
}

impl Chain<'_> {
    /// What says that a step has ended.
    fn end_of(&self, number: usize) -> OwnedList {
        let mut list = OwnedList::default();
        let (Some(step), Some(routes)) = (self.steps.get(number), self.routes.get(number)) else {
            return list;
        };
        if !step.records.is_empty() {
            list.push(self.commands.clone(), number as u64 + 1);
        }
        if !step.collectives.is_empty() {
            list.push(self.collectives.clone(), number as u64 + 1);
        }
        for (_, copied) in routes.iter().filter_map(|routes| routes.recv.as_ref()?.far.as_ref()) {
            list.push(copied.clone(), 1);
        }
        list
    }

    /// What a step waits for.
    fn waits(&self, number: usize, first: &List<'_>) -> OwnedList {
        number.checked_sub(1).map_or_else(|| first.to_owned(), |before| self.end_of(before))
    }
}

type Entries = VecDeque<Box<dyn Entry>>;

impl<D: Device> State<D> {
    /// Executes commands that have collectives.
    pub(super) fn execute_steps(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        commands: &Recorded,
        bindings: &[Option<Slice>],
    ) -> Result {
        let steps = commands.steps();
        let routes = steps.iter().map(|step| {
            step.collectives.iter().map(|record| self.routes(record, bindings)).collect::<Result<Vec<_>>>()
        });
        let chain = Chain {
            steps,
            routes: routes.collect::<Result<_>>()?,
            commands: self.timeline()?,
            collectives: self.timeline()?,
        };
        let mut entries = Entries::new();
        let outcome = steps.iter().flat_map(|step| &step.collectives).try_for_each(|record| {
            entries.push_back(record.communicator.enter(record.operation)?);
            Ok(())
        });
        let last = steps.len() - 1;
        let over = chain.end_of(last);
        let outcome = outcome.and_then(|()| {
            self.barrier(affinity, &SemaphoreLists { waits: over.borrow(), signals: lists.signals.borrow() })
        });
        if let Err(failure) = outcome {
            give_up(entries, &failure);
            return Err(failure);
        }
        // From here on it was accepted: what goes wrong is told through the signals, and not by a thread that submits.
        for number in 0..steps.len() {
            let waits = chain.waits(number, &lists.waits);
            let step = self
                .step_commands(affinity, &waits, &chain, number, (commands, bindings))
                .and_then(|()| self.step_collectives(affinity, &waits, &chain, number, &mut entries));
            if let Err(failure) = step {
                give_up(entries, &failure);
                self.pool.run(move || over.settle(Err(&failure)));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Where the bytes of a collective are.
    fn routes(&self, record: &CollectiveRecord, bindings: &[Option<Slice>]) -> Result<Routes> {
        let route = |reference: &Option<Reference>, way: Use| {
            let Some(reference) = reference else { return Ok(None) };
            let slice = reference.bytes(bindings)?.into_owned();
            if slice.sole_user().is_none() {
                return Ok(Some(Route { near: slice, far: None }));
            }
            way.check(&slice)?;
            let owner = slice.owner()?;
            let near = self.staging_with(&owner, slice.length)?;
            let far = Some((Lending::new(owner, slice, near.clone()), self.timeline()?));
            Ok::<_, Failure>(Some(Route { near, far }))
        };
        Ok(Routes { send: route(&record.send, Use::Source)?, recv: route(&record.recv, Use::Target)? })
    }

    /// Submits what a step has for the queue.
    fn step_commands(
        &self,
        affinity: Affinity,
        waits: &OwnedList,
        chain: &Chain<'_>,
        number: usize,
        (commands, bindings): (&Recorded, &[Option<Slice>]),
    ) -> Result {
        let Some(step) = chain.steps.get(number).filter(|step| !step.records.is_empty()) else {
            return Ok(());
        };
        let mut signals = OwnedList::default();
        signals.push(chain.commands.clone(), number as u64 + 1);
        let loans = self.lend_to_commands(commands, step, bindings)?;
        let operation = Operation::Execute {
            commands: commands.clone(),
            step: number,
            bindings: bindings.into(),
            stand_ins: loans.stand_ins(),
        };
        let lists = SemaphoreLists { waits: waits.borrow(), signals: signals.borrow() };
        self.with_loans(affinity, &lists, &loans, |lists| {
            self.submit(affinity, lists, Side::Queue, operation)
        })
    }

    /// Submits a step's collectives, between the copies of the memory that the host cannot map.
    fn step_collectives(
        &self,
        affinity: Affinity,
        waits: &OwnedList,
        chain: &Chain<'_>,
        number: usize,
        entries: &mut Entries,
    ) -> Result {
        let (Some(step), Some(routes)) = (chain.steps.get(number), chain.routes.get(number)) else {
            return Ok(());
        };
        if step.collectives.is_empty() {
            return Ok(());
        }
        let mut ready = waits.borrow().to_owned();
        for (lending, copied) in routes.iter().filter_map(|routes| routes.send.as_ref()?.far.as_ref()) {
            lending.fetch(&waits.borrow(), (copied, 1))?;
            ready.push(copied.clone(), 1);
        }
        let mut entered = Vec::with_capacity(routes.len());
        for (record, routes) in step.collectives.iter().zip(routes) {
            let near = |route: &Option<Route>| route.as_ref().map(|route| route.near.clone());
            entered.push(Entered {
                communicator: record.communicator.clone(),
                entry: entries.pop_front().ok_or_else(|| invalid("a collective was not entered"))?,
                send: near(&routes.send),
                recv: near(&routes.recv),
            });
        }
        let mut moved = OwnedList::default();
        moved.push(chain.collectives.clone(), number as u64 + 1);
        let lists = SemaphoreLists { waits: ready.borrow(), signals: moved.borrow() };
        self.submit(affinity, &lists, Side::Host, Operation::Collectives(Box::new(Collectives(entered))))?;
        for (lending, copied) in routes.iter().filter_map(|routes| routes.recv.as_ref()?.far.as_ref()) {
            lending.copy((&lending.staging, &lending.original), &moved.borrow(), (copied, 1))?;
        }
        Ok(())
    }
}

/// Tells the groups that this rank does not take part in what it has entered.
fn give_up(entries: Entries, why: &Failure) {
    for entry in entries {
        entry.give_up(why);
    }
}
