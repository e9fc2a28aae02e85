// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A made-up MPI in which everything takes its time that MPI lets take time, in an order that a seed says: messages arrive late, and in another order where they
//! have other tags; a send ends at once, or when its message has been received; what is sent is read, and what is received is written, at any time until then. Calls may
//! fail, and ranks may go.
#![allow(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

use super::{Handle, Library};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_void};
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
const ANY_SOURCE: c_int = -1;

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
    // SAFETY: whoever has begun a transfer keeps its memory until it has ended, which is what tests are for; and there is room.
    unsafe { std::ptr::copy(from, posted.address as *mut u8, length) };
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
    with(world, |of| {
        if of.chance(of.weather.begins_fail) {
            return 1;
        }
        let handle = of.request();
        // SAFETY: the sender's memory is as long as it says, and its word is there.
        let bytes = unsafe {
            *request = world / RANKS * RANKS + (handle << 32);
            (length <= of.weather.eager).then(|| {
                if length == 0 {
                    Vec::new()
                } else {
                    std::slice::from_raw_parts(address.cast::<u8>(), length).to_vec()
                }
            })
        };
        if bytes.is_some() {
            of.ended.insert(handle, Some(length));
        }
        let address = address as usize;
        let source = number(world % RANKS);
        let is_late = of.chance(of.weather.late) && (length > 0 || of.chance(2));
        of.sent.push(Sent {
            request: handle,
            source,
            target: peer,
            tag,
            address,
            length,
            bytes,
            has_arrived: false,
            is_late,
        });
        0
    })
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
    with(world, |of| {
        if of.chance(of.weather.begins_fail) {
            return 1;
        }
        let handle = of.request();
        let (rank, address) = (number(world % RANKS), address as usize);
        of.posted.push(Posted { request: handle, rank, source: peer, tag, address, room, is_cancelled: false });
        of.meet();
        // SAFETY: the receiver's word.
        unsafe { *request = world / RANKS * RANKS + (handle << 32) };
        0
    })
}

unsafe extern "C" fn test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    // SAFETY: `Library` passes words of its own; a status begins with two here.
    unsafe {
        let (world, handle) = (*request & 0xFFFF_FFFF, *request >> 32);
        let ended = if *request == 0 {
            Some(Some(0))
        } else {
            let ended = with(world, |of| {
                of.move_some();
                if of.chance(of.weather.asks_fail) {
                    return Err(());
                }
                Ok(of.ended.remove(&handle))
            });
            match ended {
                Ok(ended) => ended,
                Err(()) => return 1,
            }
        };
        *flag = c_int::from(ended.is_some());
        if let Some(by_message) = ended {
            *request = 0;
            *status.cast::<[u64; 2]>() = [u64::from(by_message.is_none()), by_message.unwrap_or(0) as u64];
        }
    }
    0
}

unsafe extern "C" fn cancel(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let (world, handle) = unsafe { (*request & 0xFFFF_FFFF, *request >> 32) };
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

unsafe extern "C" fn was_cancelled(status: *const c_void, flag: *mut c_int) -> c_int {
    // SAFETY: written by `test`.
    unsafe { *flag = c_int::from(*status.cast::<u64>() != 0) };
    0
}

unsafe extern "C" fn count(status: *const c_void, _type: Handle, count: *mut c_int) -> c_int {
    // SAFETY: written by `test`.
    unsafe { *count = c_int::try_from((*status.cast::<[u64; 2]>())[1]).unwrap_or(c_int::MAX) };
    0
}

unsafe extern "C" fn error_string(_code: c_int, _text: *mut c_char, _length: *mut c_int) -> c_int {
    0
}

unsafe extern "C" fn finalize() -> c_int {
    0
}

unsafe extern "C" fn finalized(flag: *mut c_int) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    unsafe { *flag = 1 };
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
    let library = |rank: u32| Library {
        world: at * RANKS + rank as usize,
        byte: 0,
        any_source: ANY_SOURCE,
        last_tag: super::LEAST_TAGS,
        send,
        receive,
        test,
        cancel,
        was_cancelled,
        count,
        error_string,
        finalize,
        finalized,
        failure: OnceCell::new(),
        owned: true,
        rank,
        size: ranks,
    };
    (at, (0..ranks).map(library).collect())
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
