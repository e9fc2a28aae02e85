// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that fail while messages are on their way: who is told when, and what becomes of the memory.

use super::*;
use crate::ending::GRACE;
use crate::group::Generation;
use crate::library::loopback::{late_network, network};
use crate::wire::{Asked, Content, FIRST_TAG, HEADER, Header, LETTER, Meeting};
use hal_collectives::Line;

/// A limit that nothing here comes near.
const LONG: Duration = Duration::from_secs(20);

/// Words of a transfer, whose message comes behind a letter.
const WORDS: u32 = 6_000;

/// Two ranks, of which the first receives what the second one has announced and not sent.
struct Announced {
    ranks: [Rank; 2],
    groups: [Box<dyn Communicator>; 2],
    /// Where the message will be written, as long as nobody says that it is gone.
    address: *const u32,
    /// Says that the memory goes, and whether the engine is free then.
    goes: Receiver<bool>,
    told: Receiver<Outcome>,
}

fn receive() -> Operation {
    Operation { kind: Kind::Recv { from: 1 }, element: Element::U32, count: WORDS.into() }
}

impl Announced {
    fn by(network: impl Iterator<Item = Library>) -> Self {
        let watchers = Box::leak(Box::default());
        let ranks: Vec<Rank> =
            network.map(|library| Rank(Arc::new(Engine::new(library, watchers)))).collect();
        let ranks: [Rank; 2] = ranks.try_into().ok().unwrap();
        let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"late", TERMS));
        let (recv, goes) = memory_that_asks(&ranks[0].0, WORDS as usize);
        let address = recv.address().cast_const().cast();
        let (tell, told) = channel();
        let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
        let buffers = Buffers { send: None, recv: Some(recv) };
        assert!(groups[0].enter(receive()).unwrap().start(buffers, done).is_none());
        let this = Self { ranks, groups, address, goes, told };
        this.announce();
        assert!(this.told.try_recv().is_err());
        this
    }

    fn announce(&self) {
        let number = *self.ranks[0].0.groups.lock().keys().next().unwrap();
        let (group, line) = (Generation { number, generation: 0 }, Line::Pair { from: 1, to: 0 });
        let sends = Operation { kind: Kind::Send { to: 0 }, ..receive() };
        let header = Header {
            meeting: Meeting { group, line, number: 0, piece: 0 },
            from: 1,
            source: 1,
            asked: Some(Asked { operation: sends, pieces: 1 }),
            content: Content::Part { length: u64::from(WORDS) * 4, tag: Some(FIRST_TAG) },
        };
        let letter = HostRange::allocate(HEADER as u64, 64).unwrap();
        assert!(letter.write(0, &header.to_bytes()));
        self.message(letter, LETTER);
        self.ranks[0].look();
    }

    fn message(&self, bytes: HostRange, tag: i32) {
        let sent = self.ranks[1].0.with(LONG, |progress| progress.library().send(bytes, 0, tag).is_ok());
        assert_eq!(sent, Some(true));
    }

    fn deliver(&self) {
        self.message(memory(&vec![5; WORDS as usize]), FIRST_TAG);
    }

    fn fail(&self) {
        self.groups[0].end(&Failure::new(Code::DataLoss, "gone"));
        self.ranks[0].look();
    }
}

#[test]
fn failure_is_told_when_a_message_that_is_on_its_way_has_come_and_not_before() {
    let late = Announced::by(late_network(2));
    late.fail();
    assert!(late.told.try_recv().is_err(), "told while a message may be written");
    assert!(late.goes.try_recv().is_err());
    late.deliver();
    late.ranks[0].look();
    assert_eq!(late.told.try_recv(), Ok(Err(Code::DataLoss)));
    assert_eq!(late.goes.try_recv(), Ok(true));
}

#[test]
fn receive_that_has_not_met_its_message_is_cancelled_and_the_failure_told_at_once() {
    let announced = Announced::by(network(2));
    announced.fail();
    assert_eq!(announced.told.try_recv(), Ok(Err(Code::DataLoss)));
    assert_eq!(announced.goes.try_recv(), Ok(true));
}

#[test]
fn message_that_does_not_come_holds_a_failure_up_for_a_bounded_time_and_its_memory_until_it_comes() {
    let late = Announced::by(late_network(2));
    let begin = Instant::now();
    late.fail();
    let told = std::iter::from_fn(|| {
        assert!(begin.elapsed() < LONG);
        late.ranks[0].look();
        Some(late.told.try_recv())
    });
    assert_eq!(told.flatten().next(), Some(Err(Code::DataLoss)));
    assert!(begin.elapsed() >= GRACE);
    let look = late.ranks[0].0.look();
    assert!(!look.waits && look.sends, "nobody waits for it, and it is looked for now and then");
    assert!(late.goes.try_recv().is_err(), "memory was let go of that MPI may write");
    late.deliver();
    // SAFETY: nobody was told that it is gone, and the thread that writes it is this one.
    assert_eq!(unsafe { late.address.read_volatile() }, 5);
    late.ranks[0].look();
    assert_eq!(late.goes.try_recv(), Ok(true));
    assert!(!late.ranks[0].0.look().sends);
}

#[test]
fn letters_that_came_early_to_a_group_that_fails_are_let_go_of() {
    let (ranks, groups) = pair();
    let _ahead = sum(&*groups[1], 5);
    ranks[0].look();
    let early = || ranks[0].0.with(LONG, |progress| progress.early());
    assert_eq!(early(), Some(1));
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    assert_eq!(early(), Some(0));
}

/// An owner of memory that panics when it is let go of.
struct Panics(Vec<u32>);

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("an owner of memory");
    }
}

fn memory_that_panics() -> HostRange {
    let mut owner = Arc::new(Panics(vec![1]));
    let start = Arc::get_mut(&mut owner).unwrap().0.as_mut_ptr();
    // SAFETY: a word that lives as long as its owner.
    unsafe { HostRange::from_raw(start.cast(), 4, Some(owner)) }
}

#[test]
fn owners_of_memory_that_panic_when_it_is_let_go_of_leave_all_told() {
    let (ranks, groups) = pair();
    let (tell, told) = channel();
    let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
    let buffers = Buffers { send: Some(memory_that_panics()), recv: Some(memory_that_panics()) };
    sum_with(&*groups[0], buffers, done);
    let behind = sum(&*groups[0], 3).1;
    let [other, other_behind] = [1, 4].map(|word| sum(&*groups[1], word).1);
    look_all(&ranks);
    for told in [told, behind, other, other_behind] {
        assert_eq!(told.try_recv(), Ok(Ok(())));
    }
}
