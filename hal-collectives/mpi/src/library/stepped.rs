// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A made-up MPI in which nothing moves unless a test says so, step by step: one message [arrives](arrive),
//! or one that has met its receive is [read](finish). It belongs to the thread that [begins](network) it.
#![allow(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

use super::loopback::{ANY_SOURCE, library, tell};
use super::{Handle, Library};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};

/// A message: its sender, and how many it has sent before.
pub(crate) type Id = (usize, usize);

struct Message {
    id: Id,
    request: Handle,
    tag: c_int,
    address: usize,
    length: usize,
    /// A copy of one that has gone at once.
    bytes: Option<Vec<u8>>,
}

struct Posted {
    request: Handle,
    source: c_int,
    tag: c_int,
    address: usize,
    room: usize,
    is_cancelled: bool,
}

/// What is done as a call of some rank to receive with some tag begins.
type Hook = (usize, c_int, Box<dyn FnOnce()>);

/// What is done as a call of some rank begins, so many calls from now, and says whether that one fails.
type AtCall = (usize, usize, Box<dyn FnOnce() -> bool>);

/// How messages go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    /// Those of at most so many bytes have gone at once.
    pub(crate) eager: usize,
    /// Others are read as soon as they have met their receives, and not when a test says so.
    pub(crate) is_prompt: bool,
    /// What is cancelled gets no message any more, and has ended when a test [says so](settle).
    pub(crate) lingers: bool,
}

#[derive(Default)]
struct Net {
    way: Way,
    begun: Vec<usize>,
    sent: Vec<usize>,
    /// From one rank to another, in their order.
    channels: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// By the rank that they have come to, or that waits for them.
    unexpected: Vec<Vec<Message>>,
    posted: Vec<Vec<Posted>>,
    met: BTreeMap<(usize, Id), (Message, Posted)>,
    ended: BTreeMap<Handle, Option<usize>>,
}

thread_local! {
    static NET: RefCell<Net> = RefCell::default();
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static AT_CALL: RefCell<Option<AtCall>> = const { RefCell::new(None) };
}

const RANK_BITS: u32 = 40;

fn rank_of(request: Handle) -> usize {
    request >> RANK_BITS
}

/// A call of a rank begins: whether it fails.
fn fails(rank: usize) -> bool {
    let due = AT_CALL.with_borrow_mut(|at| {
        at.take_if(|(of, left, _)| {
            let is_due = (*of, *left) == (rank, 0);
            *left -= usize::from(*of == rank && !is_due);
            is_due
        })
    });
    due.is_some_and(|(_, _, work)| work())
}

fn copy(message: &Message, posted: &Posted) {
    assert!(message.length <= posted.room, "a message of {} bytes into {}", message.length, posted.room);
    let from = message.bytes.as_ref().map_or(message.address as *const u8, |bytes| bytes.as_ptr());
    // SAFETY: whoever has begun a transfer keeps its memory until it has ended, which is what tests are for;
    // and there is room.
    unsafe { std::ptr::copy(from, posted.address as *mut u8, message.length) };
}

impl Net {
    fn request(&mut self, rank: usize) -> Handle {
        self.begun[rank] += 1;
        rank << RANK_BITS | self.begun[rank]
    }

    fn meet(&mut self, rank: usize, message: Message, posted: Posted) {
        if message.bytes.is_some() {
            copy(&message, &posted);
            self.ended.insert(posted.request, Some(message.length));
        } else {
            let of = (rank, message.id);
            self.met.insert(of, (message, posted));
            if self.way.is_prompt {
                self.finish(of);
            }
        }
    }

    fn settle(&mut self) {
        let ended =
            self.posted.iter_mut().flat_map(|posted| posted.extract_if(.., |posted| posted.is_cancelled));
        self.ended.extend(ended.map(|posted| (posted.request, None)));
    }

    fn finish(&mut self, of: (usize, Id)) {
        let Some((message, posted)) = self.met.remove(&of) else { return };
        copy(&message, &posted);
        self.ended.insert(message.request, Some(message.length));
        self.ended.insert(posted.request, Some(message.length));
    }
}

fn fits(message: &Message, posted: &Posted) -> bool {
    let is_from = posted.source == ANY_SOURCE || usize::try_from(posted.source) == Ok(message.id.0);
    message.tag == posted.tag && is_from && !posted.is_cancelled
}

unsafe extern "C" fn send(
    address: *mut c_void,
    count: c_int,
    _type: Handle,
    peer: c_int,
    tag: c_int,
    rank: Handle,
    request: *mut Handle,
) -> c_int {
    if fails(rank) {
        return 1;
    }
    let (length, peer) =
        (usize::try_from(count).unwrap_or_default(), usize::try_from(peer).unwrap_or_default());
    NET.with_borrow_mut(|net| {
        let handle = net.request(rank);
        // SAFETY: the sender's memory is as long as it says.
        let now = || unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) }.to_vec();
        let bytes = (length <= net.way.eager).then(now);
        if bytes.is_some() {
            net.ended.insert(handle, Some(length));
        }
        let id = (rank, net.sent[rank]);
        net.sent[rank] += 1;
        let message = Message { id, request: handle, tag, address: address as usize, length, bytes };
        net.channels.entry((rank, peer)).or_default().push_back(message);
        // SAFETY: `Library` passes a word of its own.
        unsafe { *request = handle };
    });
    0
}

unsafe extern "C" fn receive(
    address: *mut c_void,
    count: c_int,
    _type: Handle,
    source: c_int,
    tag: c_int,
    rank: Handle,
    request: *mut Handle,
) -> c_int {
    if fails(rank) {
        return 1;
    }
    if let Some((_, _, hook)) =
        HOOK.with_borrow_mut(|hook| hook.take_if(|hook| (hook.0, hook.1) == (rank, tag)))
    {
        hook();
    }
    let room = usize::try_from(count).unwrap_or_default();
    NET.with_borrow_mut(|net| {
        let handle = net.request(rank);
        let is_cancelled = false;
        let posted = Posted { request: handle, source, tag, address: address as usize, room, is_cancelled };
        match net.unexpected[rank].iter().position(|message| fits(message, &posted)) {
            Some(at) => {
                let message = net.unexpected[rank].remove(at);
                net.meet(rank, message, posted);
            }
            None => net.posted[rank].push(posted),
        }
        // SAFETY: `Library` passes a word of its own.
        unsafe { *request = handle };
    });
    0
}

unsafe extern "C" fn test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    // SAFETY: `Library` passes words of its own.
    unsafe {
        tell(request, flag, status, |handle| {
            if fails(rank_of(handle)) {
                Err(1)
            } else {
                Ok(NET.with_borrow_mut(|net| net.ended.remove(&handle)))
            }
        })
    }
}

unsafe extern "C" fn cancel(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let handle = unsafe { *request };
    if fails(rank_of(handle)) {
        return 1;
    }
    NET.with_borrow_mut(|net| {
        let posted = &mut net.posted[rank_of(handle)];
        if let Some(at) = posted.iter().position(|posted| posted.request == handle) {
            posted[at].is_cancelled = true;
            if !net.way.lingers {
                net.settle();
            }
        }
    });
    0
}

/// The libraries of the ranks of a new network of this thread, the one before being over.
pub(crate) fn network(ranks: usize, way: Way) -> impl Iterator<Item = Library> {
    let new = Net {
        way,
        begun: vec![0; ranks],
        sent: vec![0; ranks],
        unexpected: (0..ranks).map(|_| Vec::new()).collect(),
        posted: (0..ranks).map(|_| Vec::new()).collect(),
        ..Net::default()
    };
    NET.set(new);
    (0..ranks).map(move |rank| {
        let place = [rank, ranks].map(|number| u32::try_from(number).unwrap_or_default());
        Library { send, receive, test, cancel, ..library(rank, place.into()) }
    })
}

/// Does something as a rank's next receive of a message with some tag begins.
pub(crate) fn before_receive(rank: usize, tag: i32, work: impl FnOnce() + 'static) {
    HOOK.set(Some((rank, super::LEAST_TAGS - tag, Box::new(work))));
}

/// Does something at a rank's call that comes so many calls from now, which says whether that one fails.
pub(crate) fn at_call(rank: usize, calls: usize, work: impl FnOnce() -> bool + 'static) {
    AT_CALL.set(Some((rank, calls, Box::new(work))));
}

/// Whether there was no such call so far. There will be none any more.
pub(crate) fn take_call() -> bool {
    AT_CALL.take().is_some()
}

/// Between which ranks messages are on their way.
pub(crate) fn on_their_way() -> Vec<(usize, usize)> {
    NET.with_borrow(|net| net.channels.iter().filter(|(_, all)| !all.is_empty()).map(|(of, _)| *of).collect())
}

/// The first message that is on its way from one rank to another arrives.
pub(crate) fn arrive(from: usize, to: usize) {
    NET.with_borrow_mut(|net| {
        let Some(message) = net.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        match net.posted[to].iter().position(|posted| fits(&message, posted)) {
            Some(at) => {
                let posted = net.posted[to].remove(at);
                net.meet(to, message, posted);
            }
            None => net.unexpected[to].push(message),
        }
    });
}

/// Messages that have met their receives, and were not read so far: by whom, and which.
pub(crate) fn met() -> Vec<(usize, Id)> {
    NET.with_borrow(|net| net.met.keys().copied().collect())
}

/// One of those is read.
pub(crate) fn finish(of: (usize, Id)) {
    NET.with_borrow_mut(|net| net.finish(of));
}

/// What was cancelled has ended.
pub(crate) fn settle() {
    NET.with_borrow_mut(Net::settle);
}

/// How many messages no receive has met.
pub(crate) fn unmet() -> usize {
    NET.with_borrow(|net| {
        net.channels.values().map(VecDeque::len).sum::<usize>()
            + net.unexpected.iter().map(Vec::len).sum::<usize>()
    })
}
