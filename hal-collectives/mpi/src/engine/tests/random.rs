// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs, whose results are those of groups within the process.

use super::*;
use hal_collectives::Memory;
use hal_collectives::local::{Request, join};
use half::{bf16, f16};

/// Small numbers, so that no order of summation rounds.
fn bytes_of(element: Element, value: usize) -> Vec<u8> {
    let value = u8::try_from(value).unwrap();
    match element {
        Element::I8 | Element::U8 => vec![value],
        Element::I16 | Element::U16 => u16::from(value).to_le_bytes().to_vec(),
        Element::I32 | Element::U32 => u32::from(value).to_le_bytes().to_vec(),
        Element::I64 | Element::U64 => u64::from(value).to_le_bytes().to_vec(),
        Element::F16 => f16::from(value).to_le_bytes().to_vec(),
        Element::Bf16 => bf16::from(value).to_le_bytes().to_vec(),
        Element::F32 => f32::from(value).to_le_bytes().to_vec(),
        Element::F64 => f64::from(value).to_le_bytes().to_vec(),
    }
}

fn filled(element: Element, bytes: u64, random: &mut Random) -> HostRange {
    let range = HostRange::allocate(bytes, 64).unwrap();
    for at in 0..bytes / element.size() {
        assert!(range.write(at * element.size(), &bytes_of(element, 1 + random.below(3))));
    }
    range
}

fn contents(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}

/// The memory of a rank: it sends and receives in different places, or in one.
fn buffers(operation: Operation, (rank, ranks): (u32, u32), in_place: bool, random: &mut Random) -> Buffers {
    let places = operation.places(rank, ranks);
    let element = operation.element;
    let send = places.send.map(|bytes| filled(element, bytes, random));
    let recv = places.recv.map(|bytes| filled(element, bytes, random));
    if !in_place {
        return Buffers { send, recv };
    }
    let own = operation.count * element.size() * u64::from(rank);
    match operation.kind {
        Kind::AllReduce(_) => Buffers { recv: send.clone(), send },
        Kind::Reduce { root, .. } if root == rank => Buffers { recv: send.clone(), send },
        Kind::AllGather => {
            let own = recv.as_ref().and_then(|recv| recv.slice(own, places.send?));
            Buffers { send: own, recv }
        }
        Kind::ReduceScatter(_) => {
            let own = send.as_ref().and_then(|send| send.slice(own, places.recv?));
            Buffers { send, recv: own }
        }
        _ => Buffers { send, recv },
    }
}

fn copied(buffers: &Buffers) -> Buffers {
    let copy = |range: &HostRange| {
        let copy = HostRange::allocate(range.length(), 64).unwrap();
        assert!(copy.copy_from(range));
        copy
    };
    Buffers { send: buffers.send.as_ref().map(copy), recv: buffers.recv.as_ref().map(copy) }
}

fn kind(rank: u32, ranks: u32, (which, reduction, root, distance): (usize, Reduction, u32, u32)) -> Kind {
    match which {
        0 => Kind::AllGather,
        1 => Kind::AllReduce(reduction),
        2 => Kind::AllToAll,
        3 => Kind::Broadcast { root },
        4 => Kind::Reduce { reduction, root },
        5 => Kind::ReduceScatter(reduction),
        6 => Kind::SendRecv {
            to: Some((rank + distance) % ranks),
            from: Some((rank + ranks - distance) % ranks),
        },
        // A chain: the first receives zeros.
        _ => Kind::SendRecv { to: (rank + 1 < ranks).then_some(rank + 1), from: rank.checked_sub(1) },
    }
}

/// What a rank does in a step: its operation, its memory here and in the group within the process, and whether it
/// starts the pieces one by one.
struct Part {
    operation: Operation,
    own: Buffers,
    theirs: Buffers,
    divides: bool,
}

/// What all ranks do in a step.
fn step(count: u32, random: &mut Random) -> Vec<Part> {
    let below = |random: &mut Random, below: u32| u32::try_from(random.below(below as usize)).unwrap();
    let reduction = Reduction::ALL[random.below(5)];
    let chosen = (random.below(8), reduction, below(random, count), below(random, count));
    let element = Element::ALL[random.below(12)];
    let words = random.below(40) as u64;
    let in_place = random.below(3) == 0;
    let part = |rank| {
        let kind = kind(rank, count, chosen);
        let elements = if kind == Kind::AllToAll { words * u64::from(count) } else { words };
        let operation = Operation { kind, element, count: elements };
        let in_place = in_place && random.below(2) == 0;
        let own = buffers(operation, (rank, count), in_place, random);
        let theirs = copied(&own);
        Part { operation, own, theirs, divides: random.below(2) == 0 }
    };
    (0..count).map(part).collect()
}

impl Part {
    /// Starts it on both. Returns the work of the group within the process.
    fn start(
        &self,
        (group, local): (&dyn Communicator, &dyn Communicator),
        tell: &std::sync::mpsc::Sender<Result>,
    ) -> Option<hal_collectives::Job> {
        let done = || -> Done {
            let tell = tell.clone();
            Box::new(move |end: Result| tell.send(end).unwrap())
        };
        let entry = group.enter(self.operation).unwrap();
        if self.divides {
            let whole = |range: &Option<HostRange>| range.clone().map(Memory::Whole);
            for piece in entry.divide() {
                piece.start(Buffers { send: whole(&self.own.send), recv: whole(&self.own.recv) }, done());
            }
        } else {
            entry.start(self.own.clone(), done());
        }
        local.enter(self.operation).unwrap().start(self.theirs.clone(), done())
    }
}

/// One program on both, and its results.
fn program(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let count = u32::try_from(1 + random.below(5)).unwrap();
    let ranks = job(count);
    let check = [Check::Off, Check::First, Check::On][random.below(3)];
    let piece = [16, 48, 1 << 10, 4 << 20][random.below(4)];
    let terms = Terms { check, piece, ..Terms::from(TERMS) };
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"random", terms)).collect();
    let id = seed.to_le_bytes();
    let local = |rank| {
        let request = Request { id: &id, name: "local", rank, count, owner: 1 + rank as usize, terms };
        join(&request).unwrap()
    };
    let locals: Vec<_> = (0..count).map(local).collect();
    for number in 0..6 {
        let parts = step(count, &mut random);
        let (tell, told) = channel();
        let both = groups.iter().zip(&locals);
        let jobs = parts
            .iter()
            .zip(both)
            .filter_map(|(part, (group, local))| part.start((&**group, &**local), &tell));
        jobs.collect::<Vec<_>>().into_iter().for_each(|job| job());
        drop(tell);
        let end = Instant::now() + LONG;
        loop {
            ranks.iter().for_each(Rank::poll);
            match told.try_recv() {
                Ok(outcome) => outcome.unwrap(),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => break,
                Err(_) => assert!(Instant::now() < end, "operation {number} of {seed}"),
            }
        }
        for (rank, Part { operation, own, theirs, divides }) in parts.iter().enumerate() {
            let [own, theirs] = [own, theirs].map(|buffers| buffers.recv.as_ref().map(contents));
            assert_eq!(own, theirs, "{operation} of rank {rank} of {count}, seed {seed}, divided {divides}");
        }
    }
}

#[test]
fn random_programs_have_the_results_of_groups_within_the_process() {
    (0..300).for_each(program);
}

#[test]
#[ignore = "takes minutes; run by hand"]
fn random_programs_for_long() {
    (0..100_000).for_each(program);
}
