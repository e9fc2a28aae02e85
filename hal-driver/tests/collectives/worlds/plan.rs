// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The events of a world, drawn from a seed.

use super::model::ELEMENTS;
use crate::common::random::Random;
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

/// The ranks, each a device, in order.
pub(super) struct Group {
    pub(super) members: Vec<usize>,
}

impl Group {
    pub(super) fn rank_of(&self, device: usize) -> Option<usize> {
        self.members.iter().position(|&member| member == device)
    }
}

/// A split of a group: the color and key of each rank, and the group of each color.
pub(super) struct GroupSplit {
    pub(super) of: usize,
    pub(super) calls: Vec<(i32, i32)>,
    pub(super) parts: Vec<(i32, usize)>,
}

/// A buffer: its owner, and whether the host can map it.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) owner: usize,
    pub(super) visible: bool,
}

/// A collective of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collective {
    pub(super) group: usize,
    pub(super) kind: u32,
    /// The root, or the sender.
    pub(super) from: usize,
    /// The receiver of a transfer between two ranks.
    pub(super) to: usize,
    pub(super) element: usize,
    pub(super) reduction: u32,
    pub(super) count: usize,
}

impl Collective {
    fn is_transfer(&self) -> bool {
        [SEND, SEND_RECV].contains(&self.kind)
    }

    /// The number of bytes that a rank sends and receives.
    pub(super) fn places(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let one = self.count * ELEMENTS[self.element].size;
        match self.kind {
            ALL_GATHER => (one, one * ranks),
            REDUCE_SCATTER => (one * ranks, one),
            BROADCAST if rank == self.from => (one, 0),
            BROADCAST => (0, one),
            REDUCE => (one, if rank == self.from { one } else { 0 }),
            // `from` sends and `to` receives; in a ring each rank sends to the next.
            SEND => (if rank == self.from { one } else { 0 }, if rank == self.to { one } else { 0 }),
            _ => (one, one),
        }
    }
}

/// A range of a buffer in a command, and how the command names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedRange {
    pub(super) buffer: usize,
    pub(super) offset: usize,
    pub(super) length: usize,
    /// The named length, which may be larger.
    pub(super) named: usize,
    /// The slot that names it, whose binding begins this much earlier.
    pub(super) slot: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Fill {
        target: NamedRange,
        pattern: [u8; 4],
    },
    Copy {
        source: NamedRange,
        target: NamedRange,
    },
    Update {
        target: NamedRange,
        byte: u8,
    },
    /// A collective of the event.
    Collective {
        number: usize,
        send: Option<NamedRange>,
        recv: Option<NamedRange>,
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
    /// True if a barrier precedes it.
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
    /// The delay of a signal from the host that it waits for.
    pub(super) gate: Option<u64>,
    /// True if everything is released as soon as it is submitted.
    pub(super) release_at_once: bool,
    /// Events whose execution on another device it waits for.
    pub(super) after: Vec<(usize, usize)>,
}

impl Script {
    /// The buffers that it uses, and whether it writes them.
    pub(super) fn uses(&self) -> impl Iterator<Item = (usize, bool)> {
        self.items.iter().flat_map(|item| item.what.uses())
    }
}

/// Command buffers that several devices execute so many times.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) collectives: Vec<Collective>,
    pub(super) scripts: Vec<Script>,
    pub(super) times: usize,
    /// The thread of a device that submits it.
    pub(super) thread: usize,
}

impl Event {
    pub(super) fn script_of(&self, device: usize) -> Option<&Script> {
        self.scripts.iter().find(|script| script.device == device)
    }

    /// The groups of a device's part in it.
    pub(super) fn groups_of(&self, script: &Script) -> BTreeSet<usize> {
        let number = |item: &Item| match item.what {
            What::Collective { number, .. } => Some(self.collectives[number].group),
            _ => None,
        };
        script.items.iter().filter_map(number).collect()
    }
}

/// The failure in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorldFault {
    None,
    /// The host's signal for a device in an event fails.
    Gate {
        event: usize,
        device: usize,
    },
    /// A device enters a collective with another type.
    Mismatch {
        event: usize,
        device: usize,
    },
    /// The device injects a fault of its own.
    Device {
        device: usize,
    },
    /// A device submits nothing from an event on.
    Absent {
        event: usize,
        device: usize,
    },
    /// The program releases a device and everything of it, after so many submissions.
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
    pub(super) splits: Vec<GroupSplit>,
    pub(super) memory: Vec<Vec<Memory>>,
    pub(super) events: Vec<Event>,
    pub(super) fault: WorldFault,
}

impl World {
    pub(super) fn new(seed: u64, faulty: bool) -> Self {
        let mut random = Random::new(seed.wrapping_mul(2) + u64::from(faulty));
        let count = random.between(2, 5);
        let mut uris: Vec<String> = (0..count).map(|_| random.pick(&DEVICES).to_owned()).collect();
        let piece = random.pick(&[64, 100, 777, 4096]);
        let (groups, created, splits) = draw_groups(&mut random, count);
        let memory: Vec<Vec<Memory>> = (0..count)
            .map(|device| {
                let draw = |_| Memory {
                    owner: if random.one_in(5) { random.below(count) } else { device },
                    visible: random.one_in(3),
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
            fault: WorldFault::None,
        };
        for number in 0..random.between(3, 9) {
            let event = world.draw_event(&mut random, number);
            world.events.push(event);
        }
        world.assign_threads();
        let mut timeout = "60";
        if faulty {
            world.fault = world.draw_fault(&mut random, count);
            match world.fault {
                WorldFault::Device { device } => {
                    let (job, kind) = (
                        random.between(8, 40),
                        random.pick(&["lose", "lose", "fail:copy", "fail:fill", "panic"]),
                    );
                    let room =
                        random.pick(&["", "&depth=1", "&depth=1&latency=300us", "&depth=1&fault=jitter"]);
                    let (queues, heaps) = (random.between(1, 3), random.between(1, 2));
                    uris[device] = format!("mock://?queues={queues}&heaps={heaps}{room}&fault={kind}:{job}");
                }
                WorldFault::Absent { .. } | WorldFault::Released { .. } => timeout = "2",
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

    fn draw_event(&self, random: &mut Random, number: usize) -> Event {
        let several = random.below(4);
        let collectives: Vec<Collective> = (0..several).map(|_| self.draw_collective(random)).collect();
        let is_in = |device: usize| collectives.iter().any(|one| self.takes_part(one, device));
        let mut devices: Vec<usize> = (0..self.memory.len()).filter(|&device| is_in(device)).collect();
        if devices.is_empty() {
            devices.push(random.below(self.memory.len()));
        }
        let times = if random.one_in(3) { 2 } else { 1 };
        let scripts = devices.into_iter().map(|device| {
            let mut items = Vec::new();
            draw_locals(random, &mut items, collectives.is_empty());
            for (place, one) in collectives.iter().enumerate() {
                if self.takes_part(one, device) {
                    let group = &self.groups[one.group];
                    let rank = group.rank_of(device).unwrap();
                    items.push(draw_places(random, place, one, (rank, group.members.len())));
                    draw_locals(random, &mut items, false);
                }
            }
            let mut items = put_barriers(random, items);
            shuffle(random, &mut items, &collectives);
            let after = self.events.iter().enumerate().rev().take(3).filter_map(|(before, event)| {
                let script = &event.scripts[random.below(event.scripts.len())];
                random.one_in(3).then_some((before, script.device))
            });
            let after = after.collect();
            Script {
                device,
                items,
                affinity: if random.one_in(2) { u64::MAX } else { 1 << random.below(2) },
                one_shot: times == 1 && random.one_in(2),
                gate: random.one_in(3).then(|| random.below(8) as u64),
                release_at_once: random.one_in(2),
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

    fn draw_collective(&self, random: &mut Random) -> Collective {
        const KINDS: [u32; 8] =
            [ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER, SEND, SEND_RECV];
        let group = random.below(self.groups.len());
        let ranks = self.groups[group].members.len();
        let (kind, element) = (random.pick(&KINDS), random.below(ELEMENTS.len()));
        let most = (LENGTH / 2) / ELEMENTS[element].size / ranks;
        let mut count = if random.one_in(12) { 0 } else { random.between(1, most) };
        if kind == ALL_TO_ALL {
            count *= ranks;
        }
        let from = random.below(ranks);
        // A rank may send to itself, with a single send-receive.
        let to = if ranks == 1 { from } else { (from + 1 + random.below(ranks - 1)) % ranks };
        let kind = if kind == SEND && ranks == 1 { SEND_RECV } else { kind };
        Collective { group, kind, from, to, element, reduction: random.below(5) as u32, count }
    }

    /// The same thread of a device submits events that share a group, so that all ranks submit them in one order.
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

    fn draw_fault(&self, random: &mut Random, count: usize) -> WorldFault {
        let (event, device) = (random.below(self.events.len()), random.below(count));
        let script = random.below(self.events[event].scripts.len());
        let of_event = self.events[event].scripts[script].device;
        match random.below(5) {
            0 => WorldFault::Gate { event, device: of_event },
            1 => {
                let with_peers =
                    |(_, event): &(usize, &Event)| event.collectives.iter().any(|one| self.needs_all(one));
                match self.events.iter().enumerate().find(with_peers) {
                    Some((event, found)) => {
                        let group = found.collectives.iter().find(|one| self.needs_all(one)).unwrap().group;
                        WorldFault::Mismatch { event, device: self.groups[group].members[0] }
                    }
                    None => WorldFault::None,
                }
            }
            2 => WorldFault::Device { device },
            3 => WorldFault::Absent { event, device: of_event },
            _ => WorldFault::Released { device, after: random.below(self.events.len() + 1) },
        }
    }

    /// True if every one of several ranks has to come.
    pub(super) fn needs_all(&self, one: &Collective) -> bool {
        !one.is_transfer() && self.groups[one.group].members.len() > 1
    }
}

fn draw_groups(random: &mut Random, count: usize) -> (Vec<Group>, usize, Vec<GroupSplit>) {
    let mut groups = Vec::new();
    for _ in 0..random.between(1, 3) {
        let mut members: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            members.swap(at, random.below(at + 1));
        }
        members.truncate(if random.one_in(2) { count } else { random.between(1, count) });
        groups.push(Group { members });
    }
    let (created, mut splits) = (groups.len(), Vec::new());
    for _ in 0..random.below(3) {
        let of = random.below(groups.len());
        let members = groups[of].members.clone();
        let calls: Vec<(i32, i32)> =
            members.iter().map(|_| (random.below(4) as i32 - 1, random.below(3) as i32 - 1)).collect();
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
        splits.push(GroupSplit { of, calls, parts });
    }
    (groups, created, splits)
}

fn draw_place(random: &mut Random, buffer: usize, length: usize, aligned: bool) -> NamedRange {
    let room = LENGTH - length;
    let mut offset = random.below(room + 1);
    if aligned {
        offset &= !3;
    }
    named_place(random, buffer, offset, length)
}

fn named_place(random: &mut Random, buffer: usize, offset: usize, length: usize) -> NamedRange {
    let rest = LENGTH - offset - length;
    let named = length + if random.one_in(3) { random.below(rest + 1) } else { 0 };
    let slot = random.one_in(3).then(|| random.below(offset + 1) & !3);
    NamedRange { buffer, offset, length, named, slot }
}

fn draw_locals(random: &mut Random, items: &mut Vec<What>, some: bool) {
    for _ in 0..random.below(3).max(usize::from(some)) {
        let length = 4 * random.between(1, LENGTH / 8);
        let [first, second] = [random.below(BUFFERS), random.between(1, BUFFERS - 1)];
        let place = |random: &mut Random, buffer| {
            let place = draw_place(random, buffer, length, true);
            NamedRange { named: length, ..place }
        };
        items.push(match random.below(3) {
            0 => What::Fill { target: place(random, first), pattern: (random.next() as u32).to_le_bytes() },
            1 => {
                let source = place(random, first);
                What::Copy { source, target: place(random, (first + second) % BUFFERS) }
            }
            _ => What::Update { target: place(random, first), byte: random.next() as u8 },
        });
    }
}

/// The ranges from which a rank sends and into which it receives, in place if the kind permits.
fn draw_places(random: &mut Random, number: usize, one: &Collective, (rank, ranks): (usize, usize)) -> What {
    let (sends, receives) = one.places(rank, ranks);
    let [first, second] = [random.below(BUFFERS), random.between(1, BUFFERS - 1)];
    let second = (first + second) % BUFFERS;
    let own = rank * one.count * ELEMENTS[one.element].size;
    let in_place = random.one_in(3) && sends > 0 && receives > 0;
    let (send, recv) = match one.kind {
        ALL_REDUCE | REDUCE if in_place => {
            let place = draw_place(random, first, sends, false);
            (place, named_place(random, first, place.offset, receives))
        }
        ALL_GATHER if in_place => {
            let recv = draw_place(random, first, receives, false);
            (named_place(random, first, recv.offset + own, sends), recv)
        }
        REDUCE_SCATTER if in_place => {
            let send = draw_place(random, first, sends, false);
            (send, named_place(random, first, send.offset + own, receives))
        }
        _ => (draw_place(random, first, sends, false), draw_place(random, second, receives, false)),
    };
    What::Collective { number, send: (sends > 0).then_some(send), recv: (receives > 0).then_some(recv) }
}

/// Adds barriers where a command depends on another, and sometimes elsewhere.
fn put_barriers(random: &mut Random, whats: Vec<What>) -> Vec<Item> {
    let mut since: Vec<(usize, bool)> = Vec::new();
    let mut items = Vec::new();
    for what in whats {
        let uses = what.uses();
        let meets = |(buffer, writes): &(usize, bool)| {
            since.iter().any(|(other, wrote)| other == buffer && (*writes || *wrote))
        };
        let barrier = uses.iter().any(meets) || random.one_in(4);
        if barrier {
            since.clear();
        }
        since.extend(uses);
        items.push(Item { barrier, what });
    }
    items
}

/// Each rank records the items between two barriers in its own order, apart from collectives of one group.
fn shuffle(random: &mut Random, items: &mut [Item], collectives: &[Collective]) {
    for second in 1..items.len() {
        let group = |item: &Item| match item.what {
            What::Collective { number, .. } => Some(collectives[number].group),
            _ => None,
        };
        let same = group(&items[second]).is_some() && group(&items[second]) == group(&items[second - 1]);
        if !items[second].barrier && !same && random.one_in(2) {
            let barrier = items[second - 1].barrier;
            items.swap(second - 1, second);
            items[second - 1].barrier = barrier;
            items[second].barrier = false;
        }
    }
}
