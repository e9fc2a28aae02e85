// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What happens in a world, drawn from a seed.

use super::model::ELEMENTS;
use crate::common::dice::Dice;
use crate::rig::*;
use std::collections::BTreeSet;

/// Bytes of a buffer, and buffers of a device.
pub(super) const LENGTH: usize = 1000;
pub(super) const BUFFERS: usize = 6;

/// Devices that differ in whose memory the host can map, how they wait, how they report, and in what order they end
/// work.
const DEVICES: [&str; 14] = [
    "mock://?queues=3",
    "mock://?queues=2&fault=jitter&schedule=seeded",
    "mock://?queues=2&heaps=2",
    "mock://?queues=2&heaps=2&fault=jitter&schedule=seeded",
    "mock://?queues=1&heaps=2&latency=100us&waits=none",
    "mock://?queues=2&latency=200us&waits=events",
    "mock://?queues=2&heaps=2&completion=poll",
    "mock://?queues=2&completion=descriptor&depth=2",
    "mock://?queues=1&depth=1&workers=1",
    "template://?",
    "gaudi://emulated?",
    "gaudi://emulated?generation=gaudi2",
    "qaic://emulated?",
    "tenstorrent://emulated?",
];

/// The ranks, each a device, in their order.
pub(super) struct Group {
    pub(super) members: Vec<usize>,
}

impl Group {
    pub(super) fn rank_of(&self, device: usize) -> Option<usize> {
        self.members.iter().position(|&member| member == device)
    }
}

/// A split of a group: the color and key of each rank, and which group is the part of a color.
pub(super) struct Split {
    pub(super) of: usize,
    pub(super) calls: Vec<(i32, i32)>,
    pub(super) parts: Vec<(i32, usize)>,
}

/// A buffer: whose memory it is, and whether the host can map it.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) owner: usize,
    pub(super) visible: bool,
}

/// What the ranks of a group do together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collective {
    pub(super) group: usize,
    pub(super) kind: u32,
    /// The root, or who sends.
    pub(super) from: usize,
    /// Who receives, of a transfer between two.
    pub(super) to: usize,
    pub(super) element: usize,
    pub(super) reduction: u32,
    pub(super) count: usize,
}

impl Collective {
    fn is_transfer(&self) -> bool {
        [SEND, SEND_RECV].contains(&self.kind)
    }

    /// How many bytes a rank sends and receives, of so many.
    pub(super) fn places(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let one = self.count * ELEMENTS[self.element].size;
        match self.kind {
            ALL_GATHER => (one, one * ranks),
            REDUCE_SCATTER => (one * ranks, one),
            BROADCAST if rank == self.from => (one, 0),
            BROADCAST => (0, one),
            REDUCE => (one, if rank == self.from { one } else { 0 }),
            // `from` sends and `to` receives; a ring is every rank's to the next one.
            SEND => (if rank == self.from { one } else { 0 }, if rank == self.to { one } else { 0 }),
            _ => (one, one),
        }
    }
}

/// Bytes of a buffer that a command uses, and how it names them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) buffer: usize,
    pub(super) offset: usize,
    pub(super) length: usize,
    /// As many or more.
    pub(super) named: usize,
    /// Named by a slot, whose binding begins so far before.
    pub(super) slot: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Fill {
        target: Place,
        pattern: [u8; 4],
    },
    Copy {
        source: Place,
        target: Place,
    },
    Update {
        target: Place,
        byte: u8,
    },
    /// One of the event's.
    Collective {
        number: usize,
        send: Option<Place>,
        recv: Option<Place>,
    },
}

impl What {
    /// The buffers that it uses, and whether it writes them.
    pub(super) fn uses(&self) -> Vec<(usize, bool)> {
        match self {
            What::Fill { target, .. } | What::Update { target, .. } => vec![(target.buffer, true)],
            What::Copy { source, target } => vec![(source.buffer, false), (target.buffer, true)],
            What::Collective { send, recv, .. } => {
                let send = send.iter().map(|place| (place.buffer, false));
                send.chain(recv.iter().map(|place| (place.buffer, true))).collect()
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// A barrier comes before.
    pub(super) barrier: bool,
    pub(super) what: What,
}

/// The command buffer of one device in an event.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) device: usize,
    pub(super) items: Vec<Item>,
    pub(super) affinity: u64,
    pub(super) one_shot: bool,
    /// Waits for a signal of the host's that comes so much later.
    pub(super) gate: Option<u64>,
    /// Everything is released as soon as it is submitted.
    pub(super) release_at_once: bool,
    /// Events whose execution on another device is waited for.
    pub(super) after: Vec<(usize, usize)>,
}

impl Script {
    /// The buffers that it uses, and whether it writes them.
    pub(super) fn uses(&self) -> impl Iterator<Item = (usize, bool)> {
        self.items.iter().flat_map(|item| item.what.uses())
    }
}

/// Something that several devices do, each with a command buffer, so many times.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) collectives: Vec<Collective>,
    pub(super) scripts: Vec<Script>,
    pub(super) times: usize,
    /// Which of the threads of a device submits it.
    pub(super) thread: usize,
}

impl Event {
    pub(super) fn script_of(&self, device: usize) -> Option<&Script> {
        self.scripts.iter().find(|script| script.device == device)
    }

    /// The groups of what a device does in it.
    pub(super) fn groups_of(&self, script: &Script) -> BTreeSet<usize> {
        let number = |item: &Item| match item.what {
            What::Collective { number, .. } => Some(self.collectives[number].group),
            _ => None,
        };
        script.items.iter().filter_map(number).collect()
    }
}

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// What the host signals in an event, for a device, fails.
    Gate {
        event: usize,
        device: usize,
    },
    /// A device asks for another type.
    Misfit {
        event: usize,
        device: usize,
    },
    /// The device has one of its own.
    Device {
        device: usize,
    },
    /// A device submits nothing from an event on.
    Absent {
        event: usize,
        device: usize,
    },
    /// The program lets go of a device, and of all that is its, after so many submissions.
    Released {
        device: usize,
        after: usize,
    },
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) uris: Vec<String>,
    pub(super) groups: Vec<Group>,
    pub(super) created: usize,
    pub(super) splits: Vec<Split>,
    pub(super) memory: Vec<Vec<Memory>>,
    pub(super) events: Vec<Event>,
    pub(super) fault: Fault,
}

impl World {
    pub(super) fn new(seed: u64, faulty: bool) -> Self {
        let mut dice = Dice::new(seed.wrapping_mul(2) + u64::from(faulty));
        let count = dice.between(2, 5);
        let mut uris: Vec<String> = (0..count).map(|_| dice.pick(&DEVICES).to_owned()).collect();
        let piece = dice.pick(&[64, 100, 777, 4096]);
        let (groups, created, splits) = draw_groups(&mut dice, count);
        let memory: Vec<Vec<Memory>> = (0..count)
            .map(|device| {
                let draw = |_| Memory {
                    owner: if dice.one_in(5) { dice.below(count) } else { device },
                    visible: dice.one_in(3),
                };
                (0..BUFFERS).map(draw).collect()
            })
            .collect();
        let mut world = Self {
            seed,
            uris: Vec::new(),
            groups,
            created,
            splits,
            memory,
            events: Vec::new(),
            fault: Fault::None,
        };
        for number in 0..dice.between(3, 9) {
            let event = world.draw_event(&mut dice, number);
            world.events.push(event);
        }
        world.assign_threads();
        let mut timeout = "60";
        if faulty {
            world.fault = world.draw_fault(&mut dice, count);
            match world.fault {
                Fault::Device { device } => {
                    let (job, kind) = (
                        dice.between(8, 40),
                        dice.pick(&["lose", "lose", "fail:copy", "fail:fill", "panic"]),
                    );
                    let room =
                        dice.pick(&["", "&depth=1", "&depth=1&latency=300us", "&depth=1&fault=jitter"]);
                    let (queues, heaps) = (dice.between(1, 3), dice.between(1, 2));
                    uris[device] = format!("mock://?queues={queues}&heaps={heaps}{room}&fault={kind}:{job}");
                }
                Fault::Absent { .. } | Fault::Released { .. } => timeout = "0.5",
                _ => {}
            }
        }
        let terms = format!("collective_piece={piece}&collective_timeout={timeout}");
        let join = |uri: String| {
            let uri = if uri.ends_with('?') { uri } else { uri + "&" };
            uri + &terms
        };
        world.uris = uris.into_iter().map(join).collect();
        world
    }

    fn draw_event(&self, dice: &mut Dice, number: usize) -> Event {
        let several = dice.below(4);
        let collectives: Vec<Collective> = (0..several).map(|_| self.draw_collective(dice)).collect();
        let is_in = |device: usize| collectives.iter().any(|one| self.takes_part(one, device));
        let mut devices: Vec<usize> = (0..self.memory.len()).filter(|&device| is_in(device)).collect();
        if devices.is_empty() {
            devices.push(dice.below(self.memory.len()));
        }
        let times = if dice.one_in(3) { 2 } else { 1 };
        let scripts = devices.into_iter().map(|device| {
            let mut items = Vec::new();
            draw_locals(dice, &mut items, collectives.is_empty());
            for (place, one) in collectives.iter().enumerate() {
                if self.takes_part(one, device) {
                    let group = &self.groups[one.group];
                    let rank = group.rank_of(device).unwrap();
                    items.push(draw_places(dice, place, one, (rank, group.members.len())));
                    draw_locals(dice, &mut items, false);
                }
            }
            let mut items = put_barriers(dice, items);
            shuffle(dice, &mut items, &collectives);
            let after = self.events.iter().enumerate().rev().take(3).filter_map(|(before, event)| {
                let script = &event.scripts[dice.below(event.scripts.len())];
                dice.one_in(3).then_some((before, script.device))
            });
            let after = after.collect();
            Script {
                device,
                items,
                affinity: if dice.one_in(2) { u64::MAX } else { 1 << dice.below(2) },
                one_shot: times == 1 && dice.one_in(2),
                gate: dice.one_in(3).then(|| dice.below(8) as u64),
                release_at_once: dice.one_in(2),
                after,
            }
        });
        let scripts = scripts.collect();
        Event { collectives, scripts, times, thread: number }
    }

    fn takes_part(&self, one: &Collective, device: usize) -> bool {
        let rank = self.groups[one.group].rank_of(device);
        rank.is_some_and(|rank| one.kind != SEND || rank == one.from || rank == one.to)
    }

    fn draw_collective(&self, dice: &mut Dice) -> Collective {
        const KINDS: [u32; 8] =
            [ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER, SEND, SEND_RECV];
        let group = dice.below(self.groups.len());
        let ranks = self.groups[group].members.len();
        let (kind, element) = (dice.pick(&KINDS), dice.below(ELEMENTS.len()));
        let most = (LENGTH / 2) / ELEMENTS[element].size / ranks;
        let mut count = if dice.one_in(12) { 0 } else { dice.between(1, most) };
        if kind == ALL_TO_ALL {
            count *= ranks;
        }
        let from = dice.below(ranks);
        // A rank may send to itself, by one operation that does both.
        let to = if ranks == 1 { from } else { (from + 1 + dice.below(ranks - 1)) % ranks };
        let kind = if kind == SEND && ranks == 1 { SEND_RECV } else { kind };
        Collective { group, kind, from, to, element, reduction: dice.below(5) as u32, count }
    }

    /// Events that have a group in common are submitted by the same thread of a device, so that all ranks submit
    /// them in one order.
    fn assign_threads(&mut self) {
        let mut thread_of: Vec<usize> = (0..self.groups.len()).collect();
        for event in &self.events {
            let groups: Vec<usize> = event.collectives.iter().map(|one| one.group).collect();
            for pair in groups.windows(2) {
                let (old, new) = (thread_of[pair[1]], thread_of[pair[0]]);
                thread_of.iter_mut().filter(|thread| **thread == old).for_each(|thread| *thread = new);
            }
        }
        for (number, event) in self.events.iter_mut().enumerate() {
            event.thread = event.collectives.first().map_or(number, |one| thread_of[one.group]) % 2;
        }
    }

    fn draw_fault(&self, dice: &mut Dice, count: usize) -> Fault {
        let (event, device) = (dice.below(self.events.len()), dice.below(count));
        let script = dice.below(self.events[event].scripts.len());
        let of_event = self.events[event].scripts[script].device;
        match dice.below(5) {
            0 => Fault::Gate { event, device: of_event },
            1 => {
                let with_peers =
                    |(_, event): &(usize, &Event)| event.collectives.iter().any(|one| self.needs_all(one));
                match self.events.iter().enumerate().find(with_peers) {
                    Some((event, found)) => {
                        let group = found.collectives.iter().find(|one| self.needs_all(one)).unwrap().group;
                        Fault::Misfit { event, device: self.groups[group].members[0] }
                    }
                    None => Fault::None,
                }
            }
            2 => Fault::Device { device },
            3 => Fault::Absent { event, device: of_event },
            _ => Fault::Released { device, after: dice.below(self.events.len() + 1) },
        }
    }

    /// Whether every rank of several has to come.
    pub(super) fn needs_all(&self, one: &Collective) -> bool {
        !one.is_transfer() && self.groups[one.group].members.len() > 1
    }
}

fn draw_groups(dice: &mut Dice, count: usize) -> (Vec<Group>, usize, Vec<Split>) {
    let mut groups = Vec::new();
    for _ in 0..dice.between(1, 3) {
        let mut members: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            members.swap(at, dice.below(at + 1));
        }
        members.truncate(if dice.one_in(2) { count } else { dice.between(1, count) });
        groups.push(Group { members });
    }
    let (created, mut splits) = (groups.len(), Vec::new());
    for _ in 0..dice.below(3) {
        let of = dice.below(groups.len());
        let members = groups[of].members.clone();
        let calls: Vec<(i32, i32)> =
            members.iter().map(|_| (dice.below(4) as i32 - 1, dice.below(3) as i32 - 1)).collect();
        let mut parts = Vec::new();
        for color in 0..3 {
            let mut of_color: Vec<(i32, usize)> = Vec::new();
            for (rank, &(own, key)) in calls.iter().enumerate() {
                if own == color {
                    of_color.push((key, rank));
                }
            }
            of_color.sort_unstable();
            if !of_color.is_empty() {
                parts.push((color, groups.len()));
                groups.push(Group { members: of_color.iter().map(|&(_, rank)| members[rank]).collect() });
            }
        }
        splits.push(Split { of, calls, parts });
    }
    (groups, created, splits)
}

fn draw_place(dice: &mut Dice, buffer: usize, length: usize, aligned: bool) -> Place {
    let room = LENGTH - length;
    let mut offset = dice.below(room + 1);
    if aligned {
        offset &= !3;
    }
    named_place(dice, buffer, offset, length)
}

fn named_place(dice: &mut Dice, buffer: usize, offset: usize, length: usize) -> Place {
    let rest = LENGTH - offset - length;
    let named = length + if dice.one_in(3) { dice.below(rest + 1) } else { 0 };
    let slot = dice.one_in(3).then(|| dice.below(offset + 1) & !3);
    Place { buffer, offset, length, named, slot }
}

fn draw_locals(dice: &mut Dice, items: &mut Vec<What>, some: bool) {
    for _ in 0..dice.below(3).max(usize::from(some)) {
        let length = 4 * dice.between(1, LENGTH / 8);
        let [first, second] = [dice.below(BUFFERS), dice.between(1, BUFFERS - 1)];
        let place = |dice: &mut Dice, buffer| {
            let place = draw_place(dice, buffer, length, true);
            Place { named: length, ..place }
        };
        items.push(match dice.below(3) {
            0 => What::Fill { target: place(dice, first), pattern: (dice.next() as u32).to_le_bytes() },
            1 => {
                let source = place(dice, first);
                What::Copy { source, target: place(dice, (first + second) % BUFFERS) }
            }
            _ => What::Update { target: place(dice, first), byte: dice.next() as u8 },
        });
    }
}

/// Where a rank sends from and receives, in place where the kind can be.
fn draw_places(dice: &mut Dice, number: usize, one: &Collective, (rank, ranks): (usize, usize)) -> What {
    let (sends, receives) = one.places(rank, ranks);
    let [first, second] = [dice.below(BUFFERS), dice.between(1, BUFFERS - 1)];
    let second = (first + second) % BUFFERS;
    let own = rank * one.count * ELEMENTS[one.element].size;
    let in_place = dice.one_in(3) && sends > 0 && receives > 0;
    let (send, recv) = match one.kind {
        ALL_REDUCE | REDUCE if in_place => {
            let place = draw_place(dice, first, sends, false);
            (place, named_place(dice, first, place.offset, receives))
        }
        ALL_GATHER if in_place => {
            let recv = draw_place(dice, first, receives, false);
            (named_place(dice, first, recv.offset + own, sends), recv)
        }
        REDUCE_SCATTER if in_place => {
            let send = draw_place(dice, first, sends, false);
            (send, named_place(dice, first, send.offset + own, receives))
        }
        _ => (draw_place(dice, first, sends, false), draw_place(dice, second, receives, false)),
    };
    What::Collective { number, send: (sends > 0).then_some(send), recv: (receives > 0).then_some(recv) }
}

/// A barrier where one command needs what another one has done, and at times where none is needed.
fn put_barriers(dice: &mut Dice, whats: Vec<What>) -> Vec<Item> {
    let mut since: Vec<(usize, bool)> = Vec::new();
    let mut items = Vec::new();
    for what in whats {
        let uses = what.uses();
        let meets = |(buffer, writes): &(usize, bool)| {
            since.iter().any(|(other, wrote)| other == buffer && (*writes || *wrote))
        };
        let barrier = uses.iter().any(meets) || dice.one_in(4);
        if barrier {
            since.clear();
        }
        since.extend(uses);
        items.push(Item { barrier, what });
    }
    items
}

/// Between two barriers each rank records in an order of its own, but for collectives of one group.
fn shuffle(dice: &mut Dice, items: &mut [Item], collectives: &[Collective]) {
    for second in 1..items.len() {
        let group = |item: &Item| match item.what {
            What::Collective { number, .. } => Some(collectives[number].group),
            _ => None,
        };
        let same = group(&items[second]).is_some() && group(&items[second]) == group(&items[second - 1]);
        if !items[second].barrier && !same && dice.one_in(2) {
            let barrier = items[second - 1].barrier;
            items.swap(second - 1, second);
            items[second - 1].barrier = barrier;
            items[second].barrier = false;
        }
    }
}
