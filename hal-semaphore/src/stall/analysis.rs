// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The causes of a standstill: a graph of operations, in which each waits for others.
//!
//! First a fixed point finds the operations that can end if devices, the host and other drivers do all that they may.
//! The others are in cycles or wait for one. Then each operation is followed, from what it waits for to who is to end
//! that, until nothing of this process is to end it: that is its cause.

use super::{
    Cause, HostWait, Operation, Place, Process, Queue, Reason, Snapshot, Stage, Step, TimelineName,
    UndeliveredSteps, Wait, Waiter,
};
use std::collections::HashMap;

/// A process with the causes of what stands still in it.
///
/// Its text begins with the causes; see [the module](super) for what they claim.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The process.
    pub process: Process,
    /// The causes, those that hold up most first.
    pub causes: Vec<Cause>,
    is_partial: bool,
    /// The operations that signal a timeline, by value.
    promises: HashMap<TimelineName, Vec<(u64, Place)>>,
}

impl Report {
    /// The report of three snapshots of a process, taken one after the other. All claims are about the middle one.
    pub fn of(before: &Process, process: Process, after: &Process) -> Self {
        let mut process = process;
        // Before a lock that is free in another snapshot is taken for one that no thread keeps.
        let is_partial = is_partial(&process);
        for other in [before, after] {
            compare(&mut process, other);
        }
        let graph = Graph::new(&process, is_partial);
        let (causes, promises) = (graph.causes(), graph.promises());
        Self { process, causes, is_partial, promises }
    }

    /// The operation that has promised this value of a timeline, or a larger one: the one whose signal comes first.
    pub fn promise(&self, step: Step) -> Option<Place> {
        let promises = self.promises.get(&step.timeline)?;
        promises.get(promises.partition_point(|&(value, _)| value < step.value)).map(|&(_, place)| place)
    }

    /// The operation at a place.
    pub fn operation(&self, place: Place) -> Option<&Operation> {
        let device = self.process.devices.get(place.device)?;
        device.snapshot.queues.get(place.queue)?.operations.get(place.operation)
    }

    /// True if a queue was locked, has more operations than a snapshot takes, or has operations that are ending: a
    /// value may be promised by an operation that was not seen.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }
}

fn is_partial(process: &Process) -> bool {
    let queues = process.devices.iter().flat_map(|device| &device.snapshot.queues);
    queues.into_iter().any(|queue| queue.is_locked || queue.is_ending || queue.omitted > 0)
}

/// Marks what is not the same in another snapshot, and removes waits that are over there.
fn compare(process: &mut Process, other: &Process) {
    let others: HashMap<u32, &Snapshot> =
        other.devices.iter().map(|device| (device.snapshot.engine, &device.snapshot)).collect();
    for device in &mut process.devices {
        let other = others.get(&device.snapshot.engine);
        device.snapshot.callbacks = device.snapshot.callbacks.min(other.map_or(0, |other| other.callbacks));
        for (number, queue) in device.snapshot.queues.iter_mut().enumerate() {
            match other.and_then(|other| other.queues.get(number)) {
                Some(other) => compare_queue(queue, other),
                None => queue.operations.iter_mut().for_each(|operation| operation.stands = false),
            }
        }
        for steps in &mut device.snapshot.undelivered {
            let is_there =
                |other: &&Snapshot| other.undelivered.iter().any(|them| them.timeline == steps.timeline);
            steps.stands &= other.is_some_and(is_there);
        }
    }
    let waits: HashMap<Step, &HostWait> = other.host_waits.iter().map(|wait| (wait.step, wait)).collect();
    for wait in &mut process.host_waits {
        let (count, reached) = waits.get(&wait.step).map_or((0, 0), |them| (them.count, them.reached));
        (wait.count, wait.reached) = (wait.count.min(count), wait.reached.max(reached));
    }
    process.host_waits.retain(|wait| wait.count > 0);
}

fn compare_queue(queue: &mut Queue, other: &Queue) {
    queue.is_locked &= other.is_locked;
    queue.is_full &= other.is_full;
    queue.is_submitting &= other.is_submitting && queue.submitted == other.submitted;
    let others: HashMap<u64, &Operation> = other.operations.iter().map(|them| (them.id, them)).collect();
    for operation in &mut queue.operations {
        match others.get(&operation.id) {
            Some(them) => {
                operation.stands &= them.stage == operation.stage;
                operation.waits.retain_mut(|wait| {
                    let Some(their) = them.waits.iter().find(|their| their.step == wait.step) else {
                        return false;
                    };
                    wait.reached = wait.reached.max(their.reached);
                    true
                });
            }
            // What a locked queue has is not known.
            None => operation.stands = false,
        }
    }
}

/// Who is to end something.
#[derive(Clone, Copy)]
enum Next {
    Operation(usize),
    Root(Root),
}

/// What nothing of this process is to end, without who waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Root {
    Unpromised(Step),
    Notification(Step),
    /// The number of the cycle.
    Cycle(usize),
    Device(usize),
    Host(usize),
    Thread(usize),
    Submission(usize, usize),
    Delivery(usize, TimelineName),
}

/// The operations of a process, by number, and what they signal.
struct Graph<'a> {
    process: &'a Process,
    places: Vec<Place>,
    /// The number of the first operation of each queue of each device.
    firsts: Vec<Vec<usize>>,
    /// The operations that signal a timeline, by value.
    signals: HashMap<TimelineName, Vec<(u64, usize)>>,
    /// The devices that have deliveries for a timeline.
    deliveries: HashMap<TimelineName, usize>,
    is_partial: bool,
    /// Whether an operation ends if everybody does what they may.
    can_end: Vec<bool>,
    cycles: Vec<Vec<usize>>,
    /// The cycle that an operation is in.
    cycle_of: HashMap<usize, usize>,
}

impl<'a> Graph<'a> {
    fn new(process: &'a Process, is_partial: bool) -> Self {
        let mut graph = Self {
            process,
            places: Vec::new(),
            firsts: Vec::new(),
            signals: HashMap::new(),
            deliveries: HashMap::new(),
            is_partial,
            can_end: Vec::new(),
            cycles: Vec::new(),
            cycle_of: HashMap::new(),
        };
        graph.number();
        graph.can_end = FixedPoint::new(&graph).solve();
        graph.find_cycles();
        graph
    }

    /// Numbers the operations.
    fn number(&mut self) {
        for (device, owner) in self.process.devices.iter().enumerate() {
            let mut firsts = Vec::new();
            for (queue, owner) in owner.snapshot.queues.iter().enumerate() {
                firsts.push(self.places.len());
                for (operation, about) in owner.operations.iter().enumerate() {
                    for step in &about.signals {
                        let number = self.places.len();
                        self.signals.entry(step.timeline).or_default().push((step.value, number));
                    }
                    self.places.push(Place { device, queue, operation });
                }
            }
            self.firsts.push(firsts);
            for steps in &owner.snapshot.undelivered {
                self.deliveries.entry(self.named(steps.timeline)).or_insert(device);
            }
        }
        self.signals.values_mut().for_each(|signals| signals.sort_unstable());
    }

    /// The name of a timeline that is known by its address.
    fn named(&self, timeline: TimelineName) -> TimelineName {
        let TimelineName::Foreign(identity) = timeline else { return timeline };
        let known = self.process.addresses.iter().find(|(_, address)| **address == identity);
        known.map_or(timeline, |(name, _)| *name)
    }

    fn queue(&self, place: Place) -> Option<&'a Queue> {
        self.process.devices.get(place.device)?.snapshot.queues.get(place.queue)
    }

    fn get(&self, number: usize) -> Option<(Place, &'a Queue, &'a Operation)> {
        let place = *self.places.get(number)?;
        let queue = self.queue(place)?;
        Some((place, queue, queue.operations.get(place.operation)?))
    }

    /// The operation before this one in its queue's order.
    fn before(&self, number: usize) -> Option<usize> {
        let (place, _, operation) = self.get(number)?;
        (operation.epoch.is_some() && place.operation > 0).then(|| number - 1)
    }

    /// The operation at an epoch of a queue, or the last one before it: an epoch may be that of an operation that
    /// ends with others.
    fn at(&self, device: usize, queue: u32, epoch: u64) -> Option<usize> {
        let queue = queue as usize;
        let operations = &self.queue(Place { device, queue, operation: 0 })?.operations;
        let behind = operations.partition_point(|other| other.epoch.is_some_and(|known| known <= epoch));
        Some(self.firsts.get(device)?.get(queue)? + behind.checked_sub(1)?)
    }

    /// The operation whose signal comes first of those that are enough.
    fn promise(&self, step: Step) -> Option<usize> {
        let signals = self.signals.get(&step.timeline)?;
        let first = signals.partition_point(|&(value, _)| value < step.value);
        signals.get(first).map(|&(_, number)| number)
    }

    /// The operation that ends a wait.
    fn ender(&self, device: usize, wait: &Wait) -> Option<usize> {
        match wait.behind {
            _ if wait.is_reached() || self.deliveries.contains_key(&wait.step.timeline) => None,
            Some((queue, epoch)) => self.at(device, queue, epoch),
            None => self.promise(wait.step),
        }
    }

    /// What the operation waits for that does not end, if it cannot end.
    fn unended(&self, number: usize) -> Option<usize> {
        let (place, _, operation) = self.get(number)?;
        let stuck = |&number: &usize| self.can_end.get(number) == Some(&false);
        let no_promise_ends = |wait: &&Wait| {
            wait.behind.is_some()
                || self.signals.get(&wait.step.timeline).is_some_and(|signals| {
                    let first = signals.partition_point(|&(value, _)| value < wait.step.value);
                    signals.iter().skip(first).all(|(_, number)| stuck(number))
                })
        };
        let waits = operation.waits.iter().filter(no_promise_ends);
        waits
            .filter_map(|wait| self.ender(place.device, wait))
            .chain(self.before(number))
            .find(|next| stuck(next) && (*next != number || operation.epoch.is_none()))
    }

    /// Follows each operation that cannot end until one comes twice.
    fn find_cycles(&mut self) {
        const NEW: usize = usize::MAX;
        let mut walks = vec![NEW; self.places.len()];
        for start in 0..self.places.len() {
            let mut path = Vec::new();
            let mut next = (self.can_end.get(start) == Some(&false)).then_some(start);
            while let Some(number) = next {
                match walks.get_mut(number) {
                    Some(walk) if *walk == NEW => *walk = start,
                    Some(walk) if *walk == start => {
                        let begin = path.iter().position(|other| *other == number).unwrap_or(0);
                        let cycle = path.split_off(begin);
                        self.cycle_of.extend(cycle.iter().map(|number| (*number, self.cycles.len())));
                        self.cycles.push(cycle);
                        break;
                    }
                    _ => break,
                }
                path.push(number);
                next = self.unended(number);
            }
        }
    }

    /// Who ends the wait of an operation or of the host.
    fn ends(&self, device: Option<usize>, wait: &Wait) -> Next {
        if wait.is_reached() {
            return Next::Root(Root::Notification(wait.step));
        }
        if let Some(&device) = self.deliveries.get(&wait.step.timeline) {
            return Next::Root(Root::Delivery(device, wait.step.timeline));
        }
        let ender = device.map_or_else(|| self.promise(wait.step), |device| self.ender(device, wait));
        ender.map_or(Next::Root(Root::Unpromised(wait.step)), Next::Operation)
    }

    /// Who is to end an operation.
    fn next(&self, number: usize) -> Option<Next> {
        if let Some(&cycle) = self.cycle_of.get(&number) {
            return Some(Next::Root(Root::Cycle(cycle)));
        }
        if self.can_end.get(number) == Some(&false) {
            return self.unended(number).map(Next::Operation);
        }
        let (place, queue, operation) = self.get(number)?;
        let submission = Next::Root(Root::Submission(place.device, place.queue));
        let order = self.before(number).map(Next::Operation);
        let thread = Next::Root(Root::Thread(number));
        Some(match operation.stage {
            Stage::Blocked => self.blocked(place, operation).unwrap_or(thread),
            Stage::Ready => thread,
            Stage::Queued if queue.is_submitting => submission,
            Stage::Queued if queue.is_full => {
                order.or_else(|| self.other_work(number).map(Next::Operation)).unwrap_or(thread)
            }
            Stage::Queued | Stage::BehindDevice => order.unwrap_or(thread),
            Stage::Submitting => submission,
            Stage::OnDevice => order.unwrap_or_else(|| {
                let behind = operation.waits.iter().filter(|wait| wait.behind.is_some());
                let producer = behind.filter_map(|wait| self.ender(place.device, wait)).next();
                producer.map_or(Next::Root(Root::Device(number)), Next::Operation)
            }),
            Stage::Reported => match operation.waits.first() {
                Some(wait) => self.ends(Some(place.device), wait),
                None => order.unwrap_or(thread),
            },
            Stage::OnHost => Next::Root(Root::Host(number)),
        })
    }

    /// Who ends a wait that blocks: one that nobody has promised says more than another.
    fn blocked(&self, place: Place, operation: &Operation) -> Option<Next> {
        let waits = operation.waits.iter().filter(|wait| wait.behind.is_none());
        let mut nexts = waits.map(|wait| self.ends(Some(place.device), wait));
        let first = nexts.next()?;
        let is_root = |next: &Next| matches!(next, Next::Root(_));
        Some(if is_root(&first) { first } else { nexts.find(is_root).unwrap_or(first) })
    }

    /// The oldest work of another queue of a full device.
    fn other_work(&self, number: usize) -> Option<usize> {
        let place = self.places.get(number)?;
        let mut firsts = self.firsts.get(place.device)?.iter().copied();
        firsts.find(|&first| {
            self.get(first).is_some_and(|(_, _, operation)| {
                matches!(operation.stage, Stage::OnDevice | Stage::Reported | Stage::Submitting)
            })
        })
    }

    /// The roots of all operations.
    fn roots(&self) -> Vec<Option<Root>> {
        let mut roots: Vec<Option<Root>> = vec![None; self.places.len()];
        let mut seen = vec![false; self.places.len()];
        for start in 0..self.places.len() {
            let (mut path, mut at) = (Vec::new(), start);
            let root = loop {
                match seen.get_mut(at) {
                    Some(seen) if !*seen => *seen = true,
                    // Followed before, or by this walk: then nothing is known of it.
                    _ => break roots.get(at).copied().flatten(),
                }
                path.push(at);
                match self.next(at) {
                    Some(Next::Operation(next)) => at = next,
                    Some(Next::Root(root)) => break Some(root),
                    None => break None,
                }
            };
            for number in path {
                if let Some(place) = roots.get_mut(number) {
                    *place = root;
                }
            }
        }
        roots
    }

    /// The signals, by the places of their operations.
    fn promises(&self) -> HashMap<TimelineName, Vec<(u64, Place)>> {
        let place = |&(value, number): &(u64, usize)| Some((value, *self.places.get(number)?));
        let places = |signals: &Vec<(u64, usize)>| signals.iter().filter_map(place).collect();
        self.signals.iter().map(|(timeline, signals)| (*timeline, places(signals))).collect()
    }

    fn causes(&self) -> Vec<Cause> {
        let mut causes = Causes { graph: self, found: HashMap::new(), order: Vec::new() };
        let roots = self.roots();
        for (number, root) in roots.iter().enumerate() {
            if let Some(root) = *root
                && let Some((place, _, operation)) = self.get(number)
                && operation.stands
            {
                causes.add(root, Waiter::Operation(place), operation.waits.iter());
            }
        }
        for (number, host) in self.process.host_waits.iter().enumerate() {
            let wait = waited(host);
            let root = match self.ends(None, &wait) {
                Next::Root(root) => Some(root),
                Next::Operation(number) => roots.get(number).copied().flatten(),
            };
            if let Some(root) = root {
                causes.add(root, Waiter::Host(number), std::iter::once(&wait));
            }
        }
        causes.finish()
    }
}

/// The wait of the host as a wait.
fn waited(host: &HostWait) -> Wait {
    Wait { step: host.step, reached: Some(host.reached), behind: None }
}

/// The causes that were found.
struct Causes<'g, 'a> {
    graph: &'g Graph<'a>,
    found: HashMap<Root, (Option<Reason>, usize)>,
    order: Vec<Root>,
}

impl Causes<'_, '_> {
    /// Adds somebody who stands still for this reason.
    fn add<'w>(&mut self, root: Root, waiter: Waiter, waits: impl Iterator<Item = &'w Wait>) {
        let known = self.found.get(&root).is_some_and(|(reason, _)| reason.is_some());
        let reason = if known { None } else { self.reason(root, waiter, waits) };
        let (found, holds_up) = self.found.entry(root).or_insert_with(|| {
            self.order.push(root);
            (None, 0)
        });
        *holds_up += 1;
        if let Some(reason) = reason {
            *found = Some(reason);
        }
    }

    /// The reason, unless that itself moves, or this waiter waits for something else first.
    fn reason<'w>(
        &self,
        root: Root,
        waiter: Waiter,
        mut waits: impl Iterator<Item = &'w Wait>,
    ) -> Option<Reason> {
        let standing =
            |number| self.graph.get(number).filter(|(_, _, operation)| operation.stands).map(|it| it.0);
        Some(match root {
            Root::Unpromised(step) => {
                let wait = waits.find(|wait| wait.step == step)?;
                Reason::Unpromised { waiter, step, reached: wait.reached }
            }
            Root::Notification(step) => {
                waits.find(|wait| wait.step == step)?;
                Reason::Notification { waiter, step }
            }
            Root::Cycle(number) => {
                let members = self.graph.cycles.get(number)?.iter();
                Reason::Cycle(members.map(|member| standing(*member)).collect::<Option<_>>()?)
            }
            Root::Device(number) => Reason::Device(standing(number)?),
            Root::Host(number) => Reason::Host(standing(number)?),
            Root::Thread(number) => Reason::Thread(standing(number)?),
            Root::Submission(device, queue) => {
                let place = Place { device, queue, operation: 0 };
                self.graph.queue(place).filter(|queue| queue.is_submitting)?;
                Reason::Submission { device, queue }
            }
            Root::Delivery(device, timeline) => {
                let steps = &self.graph.process.devices.get(device)?.snapshot.undelivered;
                let is_it = |steps: &&UndeliveredSteps| self.graph.named(steps.timeline) == timeline;
                steps.iter().find(is_it).filter(|steps| steps.stands)?;
                Reason::Delivery { device, timeline }
            }
        })
    }

    fn finish(mut self) -> Vec<Cause> {
        let mut cause = |root| {
            let (reason, holds_up) = self.found.remove(root)?;
            Some(Cause { reason: reason?, holds_up })
        };
        let mut causes: Vec<Cause> = self.order.iter().filter_map(&mut cause).collect();
        for (device, about) in self.graph.process.devices.iter().enumerate() {
            let locked = about.snapshot.queues.iter().enumerate().filter(|(_, queue)| queue.is_locked);
            causes.extend(
                locked.map(|(queue, _)| Cause { reason: Reason::Lock { device, queue }, holds_up: 0 }),
            );
        }
        causes.sort_by_key(|cause| (std::cmp::Reverse(cause.holds_up), rank(&cause.reason)));
        causes
    }
}

/// Of reasons that hold up as much, what surely never ends comes first.
fn rank(reason: &Reason) -> u8 {
    match reason {
        Reason::Cycle(_) => 0,
        Reason::Unpromised { .. } => 1,
        Reason::Lock { .. } => 2,
        Reason::Thread(_) => 3,
        Reason::Submission { .. } => 4,
        Reason::Notification { .. } => 5,
        Reason::Delivery { .. } => 6,
        Reason::Host(_) => 7,
        Reason::Device(_) => 8,
    }
}

/// Finds the operations that can end: the least set in which each has everything that it needs.
struct FixedPoint<'g, 'a> {
    graph: &'g Graph<'a>,
    /// What each operation needs and does not have.
    needs: Vec<usize>,
    /// The operations that need this one to end.
    dependents: Vec<Vec<usize>>,
    /// The operations that need a value of a timeline, the smallest last.
    waiting: HashMap<TimelineName, Vec<(u64, usize)>>,
    ready: Vec<usize>,
}

impl<'g, 'a> FixedPoint<'g, 'a> {
    fn new(graph: &'g Graph<'a>) -> Self {
        let count = graph.places.len();
        let mut this = Self {
            graph,
            needs: vec![0; count],
            dependents: vec![Vec::new(); count],
            waiting: HashMap::new(),
            ready: Vec::new(),
        };
        for number in 0..count {
            this.add(number);
        }
        this.waiting.values_mut().for_each(|waiting| waiting.sort_unstable_by(|a, b| b.cmp(a)));
        this
    }

    fn add(&mut self, number: usize) {
        let Some((place, _, operation)) = self.graph.get(number) else { return };
        let mut needs = 0;
        // A thread is about to register the waits of one that is ready: they may be over.
        for wait in operation.waits.iter().filter(|_| operation.stage != Stage::Ready) {
            let Some(ender) = self.graph.ender(place.device, wait) else { continue };
            if wait.behind.is_none() {
                if self.graph.is_partial {
                    continue;
                }
                self.waiting.entry(wait.step.timeline).or_default().push((wait.step.value, number));
            } else if ender != number
                && let Some(dependents) = self.dependents.get_mut(ender)
            {
                dependents.push(number);
            } else {
                continue;
            }
            needs += 1;
        }
        if let Some(before) = self.graph.before(number)
            && let Some(dependents) = self.dependents.get_mut(before)
        {
            dependents.push(number);
            needs += 1;
        }
        if let Some(place) = self.needs.get_mut(number) {
            *place = needs;
        }
        if needs == 0 {
            self.ready.push(number);
        }
    }

    fn solve(mut self) -> Vec<bool> {
        let mut can_end = vec![false; self.needs.len()];
        while let Some(number) = self.ready.pop() {
            if let Some(can_end) = can_end.get_mut(number) {
                *can_end = true;
            }
            let dependents = self.dependents.get_mut(number).map(std::mem::take).unwrap_or_default();
            dependents.into_iter().for_each(|dependent| self.has_one_more(dependent));
            let signals = self.graph.get(number).map_or(&[][..], |(_, _, operation)| &operation.signals);
            signals.iter().for_each(|step| self.reach(*step));
        }
        can_end
    }

    /// A timeline reaches a value.
    fn reach(&mut self, step: Step) {
        let Some(waiting) = self.waiting.get_mut(&step.timeline) else { return };
        let enough = waiting.partition_point(|&(value, _)| value > step.value);
        for (_, number) in waiting.split_off(enough) {
            self.has_one_more(number);
        }
    }

    fn has_one_more(&mut self, number: usize) {
        if let Some(needs) = self.needs.get_mut(number) {
            *needs -= 1;
            if *needs == 0 {
                self.ready.push(number);
            }
        }
    }
}
