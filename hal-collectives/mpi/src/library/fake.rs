// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An MPI between ranks of one process, for tests and for counting instructions: what an operation costs here is what
//! this crate does for it. A message arrives at once, and a collective is done by the last rank that calls it. A rank
//! gets what it waits for when it tests.
//!
//! It stops a test at what the standard forbids: send and receive memory of a collective that overlap, parts that
//! overlap or are not what is sent, a request that is tested when it has ended, an end of MPI on another thread.
#![allow(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

use super::{Constants, Functions, Handle, Library, THREAD_MULTIPLE, folds};
use hal_backend::HostRange;
use hal_collectives::{Element, Reduction, reduce};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(test)]
pub(crate) mod hooks;

/// Without tests, nothing is otherwise.
#[cfg(not(test))]
mod hooks {
    pub(super) fn fails() -> bool {
        false
    }

    pub(super) fn are_tests_broken() -> bool {
        false
    }

    pub(super) fn is_late(_all: &[super::Joined]) -> bool {
        false
    }

    pub(super) fn finalize() {}
}

/// A communicator's handle is its number and a rank in it.
const RANKS: usize = 1 << 16;
const ANY_SOURCE: c_int = -1;
const IN_PLACE: usize = 1;

/// The handles of numbers, folds and groups begin at these.
const NUMBERS: Handle = 1;
const FOLDS: Handle = 1;
const OWN_FOLDS: Handle = 100;

/// The sizes of the numbers, in their order.
const SIZES: [usize; 12] = [1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 16];
const ELEMENTS: [Element; 11] = [
    Element::U8,
    Element::I8,
    Element::U8,
    Element::I16,
    Element::U16,
    Element::I32,
    Element::U32,
    Element::I64,
    Element::U64,
    Element::F32,
    Element::F64,
];

/// A receive that waits for its message.
struct Posted {
    request: Handle,
    source: c_int,
    tag: c_int,
    address: usize,
    room: usize,
}

struct Message {
    source: c_int,
    tag: c_int,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Inbox {
    posted: VecDeque<Posted>,
    unexpected: VecDeque<Message>,
}

/// A rank's call of a collective.
#[derive(Clone)]
struct Joined {
    request: Handle,
    kind: Collective,
    send: usize,
    recv: usize,
    /// The bytes of a part, and from one part to the next of what is sent and received.
    bytes: usize,
    next: [usize; 2],
    /// A number.
    of: usize,
    fold: Handle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collective {
    Broadcast(usize),
    Gather,
    GatherPlaces,
    Exchange,
    ExchangePlaces,
    Reduce(usize),
    ReduceAll,
    ReduceParts,
}

/// A communicator: the ranks of the job in it, and the collectives that not all ranks have called.
#[derive(Default)]
struct Communicator {
    ranks: usize,
    inboxes: Vec<Inbox>,
    called: Vec<usize>,
    open: BTreeMap<usize, Vec<Option<Joined>>>,
}

#[derive(Default)]
struct State {
    communicators: Vec<Communicator>,
    /// Those that were made, by parent, ranks, and how often this rank had made the like.
    made: BTreeMap<(usize, Vec<c_int>, usize), usize>,
    makes: BTreeMap<(Handle, Vec<c_int>), usize>,
    groups: Vec<Vec<c_int>>,
    folds: Vec<folds::Function>,
    /// Requests that have begun, and those that have ended.
    next: Handle,
    ended: BTreeSet<Handle>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    let mut state: MutexGuard<'_, _> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    work(state.get_or_insert_with(State::default))
}

fn size(count: c_int) -> usize {
    usize::try_from(count).unwrap_or_default()
}

fn split(communicator: Handle) -> (usize, usize) {
    (communicator / RANKS, communicator % RANKS)
}

impl Joined {
    /// Each rank has handles of its own for the folds that it has made.
    fn fits(&self, other: &Self, made: &[folds::Function]) -> bool {
        let fold = |one: &Self| match one.fold.checked_sub(OWN_FOLDS) {
            None => one.fold,
            Some(own) => made[own] as usize,
        };
        (self.kind, self.bytes, self.of, fold(self)) == (other.kind, other.bytes, other.of, fold(other))
    }

    /// Refuses memory that overlaps.
    fn check(&self, rank: usize, ranks: usize) {
        let parts = |next: usize| if ranks > 1 { next * (ranks - 1) + self.bytes } else { self.bytes };
        let [send, recv] = self.next;
        assert!([send, recv].iter().all(|&next| next >= self.bytes || next == 0), "parts overlap");
        let (sent, got) = match self.kind {
            Collective::Broadcast(_) | Collective::Gather | Collective::GatherPlaces => return,
            Collective::Exchange | Collective::ExchangePlaces => (parts(send), parts(recv)),
            Collective::Reduce(root) if root != rank => return,
            Collective::Reduce(_) | Collective::ReduceAll => (self.bytes, self.bytes),
            Collective::ReduceParts => (self.bytes * ranks, self.bytes),
        };
        let is_apart = self.send + sent <= self.recv || self.recv + got <= self.send;
        assert!(is_apart || self.bytes == 0, "{:?} receives into what it sends", self.kind);
    }
}

impl State {
    fn request(&mut self) -> Handle {
        self.next += 1;
        self.next
    }

    /// A rank calls a collective. The last one does it for all.
    fn call(
        &mut self,
        communicator: Handle,
        kind: Collective,
        [send, recv]: [usize; 2],
        (count, of, next): (c_int, Handle, [usize; 2]),
        fold: Handle,
    ) -> Handle {
        let request = self.request();
        let (number, rank) = split(communicator);
        let of = of - NUMBERS;
        let next = next.map(|next| next * SIZES[of]);
        let joined = Joined { request, kind, send, recv, bytes: size(count) * SIZES[of], next, of, fold };
        let communicator = &mut self.communicators[number];
        joined.check(rank, communicator.ranks);
        let at = communicator.called[rank];
        communicator.called[rank] += 1;
        let ranks = communicator.ranks;
        let open = communicator.open.entry(at).or_insert_with(|| vec![None; ranks]);
        open[rank] = Some(joined);
        if open.iter().all(Option::is_some)
            && let Some(all) = communicator.open.remove(&at)
        {
            let all: Vec<Joined> = all.into_iter().flatten().collect();
            // A mismatch never ends.
            if all.iter().all(|one| one.fits(&all[0], &self.folds)) && !hooks::is_late(&all) {
                self.end(&all);
            }
        }
        request
    }

    fn end(&mut self, all: &[Joined]) {
        self.perform(all);
        self.ended.extend(all.iter().map(|one| one.request));
    }

    fn perform(&self, all: &[Joined]) {
        for (rank, one) in all.iter().enumerate() {
            let (bytes, [from_next, to_next]) = (one.bytes, one.next);
            match one.kind {
                Collective::Gather | Collective::GatherPlaces => {
                    for (at, other) in all.iter().enumerate() {
                        copy(other.send, one.recv + at * to_next, bytes);
                    }
                }
                Collective::Exchange | Collective::ExchangePlaces => {
                    for (at, other) in all.iter().enumerate() {
                        copy(other.send + rank * other.next[0], one.recv + at * to_next, bytes);
                    }
                }
                Collective::Broadcast(root) if rank != root => copy(all[root].send, one.recv, bytes),
                Collective::Broadcast(_) => {}
                Collective::Reduce(root) if rank != root => {}
                Collective::Reduce(_) | Collective::ReduceAll => self.fold(all, (0, bytes), one.recv),
                Collective::ReduceParts => self.fold(all, (rank * from_next, bytes), one.recv),
            }
        }
    }

    /// Folds some bytes of all ranks.
    fn fold(&self, all: &[Joined], (offset, length): (usize, usize), to: usize) {
        let (fold, of) = (all[0].fold, all[0].of);
        // SAFETY: the memory of a call that has not ended is there.
        let range = |at: usize| unsafe { HostRange::from_raw(at as *mut u8, length, None) };
        let target = range(to);
        if fold < OWN_FOLDS {
            let sources: Vec<HostRange> = all.iter().map(|one| range(one.send + offset)).collect();
            let reduction = [Reduction::Sum, Reduction::Product, Reduction::Minimum, Reduction::Maximum];
            let (element, reduction) = (ELEMENTS[of], reduction[fold - FOLDS]);
            return reduce(element, reduction, &sources, (0, length as u64), &mut |at, bytes| {
                assert!(target.write(at, bytes));
            });
        }
        let function = self.folds[fold - OWN_FOLDS];
        let mut result = vec![0_u8; length];
        assert!(range(all[0].send + offset).read(0, &mut result));
        for one in &all[1..] {
            let mut next = vec![0_u8; length];
            assert!(range(one.send + offset).read(0, &mut next));
            let (mut count, mut handle) = (c_int::try_from(length / SIZES[of]).unwrap_or_default(), 0);
            // SAFETY: both have so many numbers.
            unsafe {
                function(
                    result.as_mut_ptr().cast(),
                    next.as_mut_ptr().cast(),
                    &raw mut count,
                    &raw mut handle,
                );
            }
            result = next;
        }
        assert!(target.write(0, &result));
    }
}

/// Copies between the memories of two calls.
fn copy(from: usize, to: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the memory of calls that have not ended is there, and as long as they say.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    }
}

fn is_for(posted: &Posted, source: c_int, tag: c_int) -> bool {
    (posted.source == ANY_SOURCE || posted.source == source) && posted.tag == tag
}

unsafe extern "C" fn send(
    address: *mut c_void,
    count: c_int,
    of: Handle,
    peer: c_int,
    tag: c_int,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    if hooks::fails() {
        return 1;
    }
    with(|state| {
        let bytes = size(count) * SIZES[of - NUMBERS];
        let (handle, (number, source)) = (state.request(), split(communicator));
        let source = c_int::try_from(source).unwrap_or_default();
        let inbox = &mut state.communicators[number].inboxes[size(peer)];
        let place = inbox.posted.iter().position(|posted| is_for(posted, source, tag));
        match place.and_then(|at| inbox.posted.remove(at)) {
            Some(posted) => {
                assert!(bytes <= posted.room, "a message of {bytes} bytes into {}", posted.room);
                copy(address as usize, posted.address, bytes);
                state.ended.insert(posted.request);
            }
            None => {
                let mut sent = vec![0; bytes];
                copy(address as usize, sent.as_mut_ptr() as usize, bytes);
                inbox.unexpected.push_back(Message { source, tag, bytes: sent });
            }
        }
        state.ended.insert(handle);
        // SAFETY: the caller's word.
        unsafe { *request = handle };
    });
    0
}

unsafe extern "C" fn receive(
    address: *mut c_void,
    count: c_int,
    of: Handle,
    peer: c_int,
    tag: c_int,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    if hooks::fails() {
        return 1;
    }
    with(|state| {
        let room = size(count) * SIZES[of - NUMBERS];
        let (handle, (number, rank)) = (state.request(), split(communicator));
        let posted = Posted { request: handle, source: peer, tag, address: address as usize, room };
        let inbox = &mut state.communicators[number].inboxes[rank];
        let came = inbox.unexpected.iter().position(|message| is_for(&posted, message.source, message.tag));
        match came.and_then(|at| inbox.unexpected.remove(at)) {
            Some(message) => {
                assert!(message.bytes.len() <= room);
                copy(message.bytes.as_ptr() as usize, posted.address, message.bytes.len());
                state.ended.insert(handle);
            }
            None => inbox.posted.push_back(posted),
        }
        // SAFETY: the caller's word.
        unsafe { *request = handle };
    });
    0
}

/// Calls a collective, and writes its request.
///
/// # Safety
///
/// The word is the caller's.
unsafe fn call(
    communicator: Handle,
    kind: Collective,
    memory: [*const c_void; 2],
    what: (c_int, Handle, [usize; 2]),
    fold: Handle,
    request: *mut Handle,
) -> c_int {
    if hooks::fails() {
        return 1;
    }
    let memory = memory.map(|memory| memory as usize);
    let handle = with(|state| state.call(communicator, kind, memory, what, fold));
    // SAFETY: as the caller promises.
    unsafe { *request = handle };
    0
}

unsafe extern "C" fn broadcast(
    place: *mut c_void,
    count: c_int,
    of: Handle,
    root: c_int,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    let kind = Collective::Broadcast(size(root));
    // SAFETY: as `Library` calls it.
    unsafe { call(communicator, kind, [place, place], (count, of, [size(count); 2]), 0, request) }
}

/// Where the rank's own part is in what it receives, with so many numbers from one part to the next.
fn own_part(recv: *mut c_void, communicator: Handle, of: Handle, next: usize) -> *const c_void {
    recv.cast::<u8>().wrapping_add(split(communicator).1 * next * SIZES[of - NUMBERS]).cast()
}

unsafe extern "C" fn gather(
    send: *const c_void,
    count: c_int,
    of: Handle,
    recv: *mut c_void,
    receives: c_int,
    into: Handle,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    assert_eq!((count, of, send as usize), (receives, into, IN_PLACE));
    let send = own_part(recv, communicator, of, size(count));
    // SAFETY: as `Library` calls it.
    unsafe { call(communicator, Collective::Gather, [send, recv], (count, of, [size(count); 2]), 0, request) }
}

unsafe extern "C" fn exchange(
    send: *const c_void,
    count: c_int,
    of: Handle,
    recv: *mut c_void,
    receives: c_int,
    into: Handle,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    assert_eq!((count, of), (receives, into));
    // SAFETY: as `Library` calls it.
    unsafe {
        call(communicator, Collective::Exchange, [send, recv], (count, of, [size(count); 2]), 0, request)
    }
}

/// The numbers from one part to the next. Each part has so many.
///
/// # Safety
///
/// There is a count and a place for each rank of the communicator.
unsafe fn next(communicator: Handle, count: c_int, counts: *const c_int, places: *const c_int) -> usize {
    let ranks = with(|state| state.communicators[split(communicator).0].ranks);
    // SAFETY: as the caller promises.
    let [counts, places] = [counts, places].map(|words| unsafe { std::slice::from_raw_parts(words, ranks) });
    assert!(counts.iter().all(|&other| other == count), "parts of other lengths than others send");
    let next = places.get(1).map_or(0, |&place| size(place));
    assert!(places.iter().enumerate().all(|(rank, &place)| size(place) == rank * next));
    next
}

unsafe extern "C" fn gather_places(
    send: *const c_void,
    count: c_int,
    of: Handle,
    recv: *mut c_void,
    counts: *const c_int,
    places: *const c_int,
    into: Handle,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    assert_eq!((of, send as usize), (into, IN_PLACE));
    // SAFETY: as `Library` calls it.
    unsafe {
        let next = [0, next(communicator, count, counts, places)];
        let send = own_part(recv, communicator, of, next[1]);
        call(communicator, Collective::GatherPlaces, [send, recv], (count, of, next), 0, request)
    }
}

unsafe extern "C" fn exchange_places(
    send: *const c_void,
    counts: *const c_int,
    sent: *const c_int,
    of: Handle,
    recv: *mut c_void,
    receives: *const c_int,
    received: *const c_int,
    into: Handle,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    assert_eq!(of, into);
    // SAFETY: as `Library` calls it; there is a rank.
    unsafe {
        let sides = [(counts, sent), (receives, received)];
        let next = sides.map(|(each, places)| next(communicator, *counts, each, places));
        call(communicator, Collective::ExchangePlaces, [send, recv], (*counts, of, next), 0, request)
    }
}

unsafe extern "C" fn reduce_one(
    send: *const c_void,
    recv: *mut c_void,
    count: c_int,
    of: Handle,
    fold: Handle,
    root: c_int,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    let kind = Collective::Reduce(size(root));
    // SAFETY: as `Library` calls it.
    unsafe { call(communicator, kind, [send, recv], (count, of, [size(count); 2]), fold, request) }
}

unsafe extern "C" fn reduce_all(
    send: *const c_void,
    recv: *mut c_void,
    count: c_int,
    of: Handle,
    fold: Handle,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    // SAFETY: as `Library` calls it.
    unsafe {
        call(communicator, Collective::ReduceAll, [send, recv], (count, of, [size(count); 2]), fold, request)
    }
}

unsafe extern "C" fn reduce_parts(
    send: *const c_void,
    recv: *mut c_void,
    count: c_int,
    of: Handle,
    fold: Handle,
    communicator: Handle,
    request: *mut Handle,
) -> c_int {
    // SAFETY: as `Library` calls it.
    unsafe {
        call(
            communicator,
            Collective::ReduceParts,
            [send, recv],
            (count, of, [size(count); 2]),
            fold,
            request,
        )
    }
}

unsafe extern "C" fn test(request: *mut Handle, flag: *mut c_int, _status: *mut c_void) -> c_int {
    if hooks::fails() || hooks::are_tests_broken() {
        return 1;
    }
    // SAFETY: `Library` passes words of its own.
    unsafe {
        assert_ne!(*request, 0, "a request that has ended");
        let ended = with(|state| state.ended.remove(&*request));
        *flag = c_int::from(ended);
        if ended {
            *request = 0;
        }
    }
    0
}

unsafe extern "C" fn cancel(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let handle = unsafe { *request };
    with(|state| {
        let mut found = false;
        for inbox in state.communicators.iter_mut().flat_map(|one| &mut one.inboxes) {
            let posted = inbox.posted.len();
            inbox.posted.retain(|posted| posted.request != handle);
            found |= inbox.posted.len() < posted;
        }
        if found {
            state.ended.insert(handle);
        }
    });
    0
}

unsafe extern "C" fn group_of(communicator: Handle, group: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    unsafe { *group = communicator };
    0
}

unsafe extern "C" fn include(_of: Handle, count: c_int, ranks: *const c_int, group: *mut Handle) -> c_int {
    // SAFETY: as many ranks as are counted, and a word.
    unsafe {
        let ranks = std::slice::from_raw_parts(ranks, size(count)).to_vec();
        *group = with(|state| {
            state.groups.push(ranks);
            state.groups.len() - 1
        });
    }
    0
}

unsafe extern "C" fn create(parent: Handle, group: Handle, _tag: c_int, made: *mut Handle) -> c_int {
    let handle = with(|state| {
        let (number, rank) = split(parent);
        let ranks = state.groups[group].clone();
        let own = ranks.iter().position(|&other| size(other) == rank).unwrap_or_default();
        let makes = state.makes.entry((parent, ranks.clone())).or_default();
        *makes += 1;
        let count = ranks.len();
        let key = (number, ranks, *makes);
        let fresh = state.communicators.len();
        let at = *state.made.entry(key).or_insert(fresh);
        if at == fresh {
            state.communicators.push(Communicator::of(count));
        }
        at * RANKS + own
    });
    // SAFETY: `Library` passes a word of its own.
    unsafe { *made = handle };
    0
}

impl Communicator {
    fn of(ranks: usize) -> Self {
        let inboxes = (0..ranks).map(|_| Inbox::default()).collect();
        Self { ranks, inboxes, called: vec![0; ranks], open: BTreeMap::new() }
    }
}

unsafe extern "C" fn create_op(function: folds::Function, _commutes: c_int, made: *mut Handle) -> c_int {
    let handle = with(|state| {
        state.folds.push(function);
        OWN_FOLDS + state.folds.len() - 1
    });
    // SAFETY: `Library` passes a word of its own.
    unsafe { *made = handle };
    0
}

unsafe extern "C" fn of_handle(_handle: *mut Handle) -> c_int {
    0
}

unsafe extern "C" fn set_handler(_communicator: Handle, _handler: Handle) -> c_int {
    0
}

unsafe extern "C" fn error_string(_code: c_int, _text: *mut c_char, _length: *mut c_int) -> c_int {
    0
}

unsafe extern "C" fn finalize() -> c_int {
    hooks::finalize();
    0
}

unsafe extern "C" fn rank(communicator: Handle, number: *mut c_int) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    unsafe { *number = c_int::try_from(split(communicator).1).unwrap_or_default() };
    0
}

unsafe extern "C" fn ranks(communicator: Handle, number: *mut c_int) -> c_int {
    let ranks = with(|state| state.communicators[split(communicator).0].ranks);
    // SAFETY: `Library` passes a word of its own.
    unsafe { *number = c_int::try_from(ranks).unwrap_or_default() };
    0
}

unsafe extern "C" fn level(level: *mut c_int) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    unsafe { *level = THREAD_MULTIPLE };
    0
}

unsafe extern "C" fn finalized(flag: *mut c_int) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    unsafe { *flag = 0 };
    0
}

const FUNCTIONS: Functions = Functions {
    send,
    receive,
    broadcast,
    gather,
    exchange,
    gather_places,
    exchange_places,
    reduce: reduce_one,
    reduce_all,
    reduce_parts,
    test,
    cancel,
    group_of,
    include,
    free_group: of_handle,
    create,
    set_handler,
    create_op,
    error_string,
    rank,
    size: ranks,
    level,
    finalize,
    finalized,
};

/// The libraries of the ranks of a new job.
pub(crate) fn network(ranks: u32) -> impl Iterator<Item = Library> {
    let world = with(|state| {
        state.communicators.push(Communicator::of(ranks as usize));
        state.communicators.len() - 1
    });
    (0..ranks).map(move |rank| {
        let constants = Constants {
            world: world * RANKS + rank as usize,
            errors_return: 0,
            any_source: ANY_SOURCE,
            in_place: IN_PLACE,
            numbers: std::array::from_fn(|number| NUMBERS + number),
            folds: std::array::from_fn(|fold| FOLDS + fold),
        };
        // SAFETY: the functions of this module, and its constants.
        let library = unsafe { Library::new(constants, FUNCTIONS, true) };
        Library { creates_at_once: true, ..library }
    })
}
