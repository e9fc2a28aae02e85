// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A made-up MPI in which everything takes its time that MPI lets take time, in an order that a seed says:
//! messages arrive late, and in another order where they have other tags; a send ends at once, or when its
//! message has been received; what is sent is read, and what is received is written, at any time until then.
//! Calls may fail, and ranks may go.
#![allow(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

use super::loopback::{ANY_SOURCE, library, tell};
use super::{Handle, Library};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What happens in a world beside what has to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Messages of at most so many bytes have gone at once.
    pub(crate) eager: usize,
    /// One in so many things that are under way moves at a time.
    pub(crate) slow: u64,
    /// One in so many calls that begin or ask for something fails; none if 0.
    pub(crate) begins_fail: u64,
    pub(crate) asks_fail: u64,
    /// One in so many messages takes so much longer than others that many come before it; none if 0.
    pub(crate) late: u64,
    /// Whether what is cancelled may still get its message before it ends.
    pub(crate) lingers: bool,
}

/// How many times as long a late message takes.
const LATE: u64 = 400;

struct Sent {
    request: Handle,
    source: c_int,
    target: c_int,
    tag: c_int,
    address: usize,
    length: usize,
    /// A copy of an eager message.
    bytes: Option<Vec<u8>>,
    has_arrived: bool,
    is_late: bool,
}

struct Posted {
    request: Handle,
    rank: c_int,
    source: c_int,
    tag: c_int,
    address: usize,
    room: usize,
    is_cancelled: bool,
}

struct World {
    weather: Weather,
    state: u64,
    next: Handle,
    /// In the order in which they were sent, and in which they were asked for.
    sent: Vec<Sent>,
    posted: Vec<Posted>,
    under_way: Vec<(Sent, Posted)>,
    /// Whether by a message, and of how many bytes.
    ended: BTreeMap<Handle, Option<usize>>,
    gone: BTreeSet<c_int>,
}

static WORLDS: Mutex<BTreeMap<usize, World>> = Mutex::new(BTreeMap::new());

const RANKS: usize = 1 << 8;

fn worlds() -> MutexGuard<'static, BTreeMap<usize, World>> {
    WORLDS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(world: Handle, work: impl FnOnce(&mut World) -> T) -> T {
    let mut worlds = worlds();
    work(worlds.get_mut(&(world / RANKS)).unwrap_or_else(|| panic!("a world that is over")))
}

fn number(of: usize) -> c_int {
    c_int::try_from(of).unwrap_or_else(|_| panic!("{of}"))
}

impl World {
    fn chance(&mut self, one_in: u64) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        one_in > 0 && (self.state >> 8).is_multiple_of(one_in)
    }

    fn request(&mut self) -> Handle {
        self.next += 1;
        self.next
    }

    /// Gives a message that has arrived to the first receive that it fits.
    fn meet(&mut self) {
        let mut at = 0;
        while let Some(sent) = self.sent.get(at) {
            let fits = |posted: &Posted| {
                posted.rank == sent.target
                    && posted.tag == sent.tag
                    && (posted.source == ANY_SOURCE || posted.source == sent.source)
            };
            // One that was sent before with the same tag comes first.
            let is_first = !self.sent.iter().take(at).any(|before| {
                (before.source, before.target, before.tag) == (sent.source, sent.target, sent.tag)
            });
            match self.posted.iter().position(fits).filter(|_| sent.has_arrived && is_first) {
                Some(place) => {
                    let (sent, posted) = (self.sent.remove(at), self.posted.remove(place));
                    // A part may be written as soon as it has met its receive.
                    copy(&sent, &posted, sent.length / 2);
                    self.under_way.push((sent, posted));
                }
                None => at += 1,
            }
        }
    }

    /// Some of what is under way moves.
    fn move_some(&mut self) {
        let slow = self.weather.slow;
        for at in 0..self.sent.len() {
            let moves = self.chance(if self.sent[at].is_late { LATE } else { slow });
            let gone = &self.gone;
            let sent = &mut self.sent[at];
            sent.has_arrived |= moves && !gone.contains(&sent.source) && !gone.contains(&sent.target);
        }
        self.meet();
        let mut at = 0;
        while at < self.posted.len() {
            if self.posted[at].is_cancelled && self.chance(slow) {
                let Posted { request, .. } = self.posted.remove(at);
                self.ended.insert(request, None);
            } else {
                at += 1;
            }
        }
        let mut at = 0;
        while at < self.under_way.len() {
            let moves = self.chance(slow);
            let (sent, _) = &self.under_way[at];
            if moves && !self.gone.contains(&sent.source) && !self.gone.contains(&sent.target) {
                let (sent, posted) = self.under_way.swap_remove(at);
                copy(&sent, &posted, sent.length);
                if sent.bytes.is_none() {
                    self.ended.insert(sent.request, Some(sent.length));
                }
                self.ended.insert(posted.request, Some(sent.length));
            } else {
                at += 1;
            }
        }
    }
}

fn copy(sent: &Sent, posted: &Posted, length: usize) {
    assert!(sent.length <= posted.room, "a message of {} bytes into {}", sent.length, posted.room);
    let from = sent.bytes.as_ref().map_or(sent.address as *const u8, |bytes| bytes.as_ptr());
    // SAFETY: whoever has begun a transfer keeps its memory until it has ended, which is what tests are for;
    // and there is room.
    unsafe { std::ptr::copy(from, posted.address as *mut u8, length) };
}

/// Begins something for a rank, unless that fails, and writes down its request.
///
/// # Safety
///
/// The request is a word of the caller's.
unsafe fn begin(rank: Handle, request: *mut Handle, work: impl FnOnce(&mut World, Handle)) -> c_int {
    with(rank, |of| {
        if of.chance(of.weather.begins_fail) {
            return 1;
        }
        let handle = of.request();
        work(of, handle);
        // SAFETY: as the caller promises.
        unsafe { *request = rank / RANKS * RANKS + (handle << 32) };
        0
    })
}

/// The world of a request, and its number there.
fn parts(request: Handle) -> (Handle, Handle) {
    (request & 0xFFFF_FFFF, request >> 32)
}

unsafe extern "C" fn send(
    address: *mut c_void,
    count: c_int,
    _type: Handle,
    peer: c_int,
    tag: c_int,
    world: Handle,
    request: *mut Handle,
) -> c_int {
    let length = usize::try_from(count).unwrap_or_default();
    let sent = |of: &mut World, request: Handle| {
        // SAFETY: the sender's memory is as long as it says.
        let now = || unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) }.to_vec();
        let bytes = (length <= of.weather.eager).then(now);
        if bytes.is_some() {
            of.ended.insert(request, Some(length));
        }
        let (source, address) = (number(world % RANKS), address as usize);
        let is_late = of.chance(of.weather.late) && (length > 0 || of.chance(2));
        let has_arrived = false;
        of.sent.push(Sent {
            request,
            source,
            target: peer,
            tag,
            address,
            length,
            bytes,
            has_arrived,
            is_late,
        });
    };
    // SAFETY: `Library` passes a word of its own.
    unsafe { begin(world, request, sent) }
}

unsafe extern "C" fn receive(
    address: *mut c_void,
    count: c_int,
    _type: Handle,
    peer: c_int,
    tag: c_int,
    world: Handle,
    request: *mut Handle,
) -> c_int {
    let room = usize::try_from(count).unwrap_or_default();
    let posted = |of: &mut World, request: Handle| {
        let (rank, address) = (number(world % RANKS), address as usize);
        of.posted.push(Posted { request, rank, source: peer, tag, address, room, is_cancelled: false });
        of.meet();
    };
    // SAFETY: `Library` passes a word of its own.
    unsafe { begin(world, request, posted) }
}

unsafe extern "C" fn test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    let ended = |request: Handle| {
        let (world, handle) = parts(request);
        with(world, |of| {
            of.move_some();
            if of.chance(of.weather.asks_fail) { Err(1) } else { Ok(of.ended.remove(&handle)) }
        })
    };
    // SAFETY: `Library` passes words of its own.
    unsafe { tell(request, flag, status, ended) }
}

unsafe extern "C" fn cancel(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let (world, handle) = parts(unsafe { *request });
    with(world, |of| {
        // MPI may go on with everything in any call.
        of.move_some();
        if of.weather.lingers {
            let posted = of.posted.iter_mut().find(|posted| posted.request == handle);
            return posted.into_iter().for_each(|posted| posted.is_cancelled = true);
        }
        let posted = of.posted.len();
        of.posted.retain(|posted| posted.request != handle);
        if of.posted.len() < posted {
            of.ended.insert(handle, None);
        }
    });
    0
}

/// The libraries of the ranks of a new world, and its number.
pub(crate) fn world(ranks: u32, weather: Weather, seed: u64) -> (usize, Vec<Library>) {
    let mut worlds = worlds();
    let at = worlds.keys().next_back().map_or(1, |last| last + 1);
    let state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let (sent, posted, under_way) = (Vec::new(), Vec::new(), Vec::new());
    let (ended, gone) = (BTreeMap::new(), BTreeSet::new());
    worlds.insert(at, World { weather, state, next: 0, sent, posted, under_way, ended, gone });
    let of_rank = |rank: u32| {
        let library = library(at * RANKS + rank as usize, (rank, ranks));
        Library { send, receive, test, cancel, ..library }
    };
    (at, (0..ranks).map(of_rank).collect())
}

/// From now on nothing comes from or to a rank.
pub(crate) fn go(world: usize, rank: usize) {
    with(world * RANKS, |of| of.gone.insert(number(rank)));
}

/// The calls of a world succeed from now on.
pub(crate) fn calm(world: usize) {
    with(world * RANKS, |of| (of.weather.begins_fail, of.weather.asks_fail) = (0, 0));
}

/// How many messages were sent that no receive has met.
pub(crate) fn unmet(world: usize) -> usize {
    with(world * RANKS, |of| of.sent.len())
}

/// A world is over.
pub(crate) fn end(world: usize) {
    worlds().remove(&world);
}
