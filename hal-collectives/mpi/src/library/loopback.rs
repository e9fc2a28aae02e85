// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An MPI between ranks of one process, for tests and for counting instructions: what a message costs here is what this crate does for
//! it. Messages arrive at once and in their order; nothing is ever late or lost.

use super::{Handle, Library};
#[cfg(test)]
use crate::wire::LETTER;
use std::cell::OnceCell;
#[cfg(test)]
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
#[cfg(test)]
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Every network of the process. A world is a number of a network and of a rank in it.
struct Networks {
    inboxes: BTreeMap<Handle, Inbox>,
    /// Requests that have ended: whether by a message, and of how many bytes.
    ended: BTreeMap<Handle, Option<usize>>,
    next: Handle,
}

static NETWORKS: Mutex<Networks> =
    Mutex::new(Networks { inboxes: BTreeMap::new(), ended: BTreeMap::new(), next: 1 });

pub(super) const ANY_SOURCE: c_int = -1;
const LAST_TAG: c_int = super::LEAST_TAGS;
/// How many ranks a network has at most.
const RANKS: usize = 1 << 16;

fn networks() -> MutexGuard<'static, Networks> {
    NETWORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_for(posted: &Posted, source: c_int, tag: c_int) -> bool {
    (posted.source == ANY_SOURCE || posted.source == source) && posted.tag == tag
}

impl Networks {
    fn request(&mut self) -> Handle {
        self.next += 1;
        self.next
    }
}

/// Puts bytes where a receive wants them.
///
/// # Safety
///
/// The memory of the receive is there.
unsafe fn place(bytes: &[u8], posted: &Posted) {
    assert!(bytes.len() <= posted.room, "a message of {} bytes into {}", bytes.len(), posted.room);
    // SAFETY: as many bytes are there, as was just checked and the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), posted.address as *mut u8, bytes.len()) };
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
    let (network, source) = (world - world % RANKS, world % RANKS);
    let source = c_int::try_from(source).unwrap_or_default();
    let length = usize::try_from(count).unwrap_or_default();
    // SAFETY: the sender's memory is as long as it says.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
    let mut networks = networks();
    let handle = networks.request();
    let inbox = networks.inboxes.entry(network + usize::try_from(peer).unwrap_or_default()).or_default();
    let place_of = inbox.posted.iter().position(|posted| is_for(posted, source, tag));
    match place_of.and_then(|at| inbox.posted.remove(at)) {
        Some(posted) => {
            // SAFETY: the memory of a receive that has not ended is there.
            unsafe { place(bytes, &posted) };
            networks.ended.insert(posted.request, Some(length));
        }
        None => inbox.unexpected.push_back(Message { source, tag, bytes: bytes.to_vec() }),
    }
    networks.ended.insert(handle, Some(length));
    // SAFETY: the sender's word.
    unsafe { *request = handle };
    0
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
    let mut networks = networks();
    let handle = networks.request();
    let posted = Posted { request: handle, source: peer, tag, address: address as usize, room };
    let inbox = networks.inboxes.entry(world).or_default();
    let came = inbox.unexpected.iter().position(|message| is_for(&posted, message.source, message.tag));
    match came.and_then(|at| inbox.unexpected.remove(at)) {
        Some(message) => {
            // SAFETY: the receiver's memory is as long as it says.
            unsafe { place(&message.bytes, &posted) };
            networks.ended.insert(handle, Some(message.bytes.len()));
        }
        None => inbox.posted.push_back(posted),
    }
    // SAFETY: the receiver's word.
    unsafe { *request = handle };
    0
}

/// What `MPI_Test` tells: whether a request has ended, whether that was by a message, and of how many bytes.
///
/// # Safety
///
/// The words are those of a call, and a status begins with two.
pub(super) unsafe fn tell(
    ended: Option<Option<usize>>,
    request: *mut Handle,
    flag: *mut c_int,
    status: *mut c_void,
) {
    // SAFETY: as the caller promises.
    unsafe {
        *flag = c_int::from(ended.is_some());
        if let Some(by_message) = ended {
            *request = 0;
            *status.cast::<[u64; 2]>() = [u64::from(by_message.is_none()), by_message.unwrap_or(0) as u64];
        }
    }
}

unsafe extern "C" fn test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    // SAFETY: `Library` passes words of its own.
    unsafe {
        let ended = if *request == 0 { Some(Some(0)) } else { networks().ended.remove(&*request) };
        tell(ended, request, flag, status);
    }
    0
}

unsafe extern "C" fn cancel(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let handle = unsafe { *request };
    let mut networks = networks();
    let before = networks.ended.len();
    let mut found = false;
    for inbox in networks.inboxes.values_mut() {
        let posted = inbox.posted.len();
        inbox.posted.retain(|posted| posted.request != handle);
        found |= inbox.posted.len() < posted;
    }
    if found {
        networks.ended.insert(handle, None);
    }
    debug_assert!(networks.ended.len() - before <= 1, "one request ends");
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

/// The library of a rank of so many, with the functions of this module.
pub(super) fn library(world: Handle, (rank, size): (u32, u32)) -> Library {
    Library {
        world,
        byte: 0,
        any_source: ANY_SOURCE,
        last_tag: LAST_TAG,
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
        size,
    }
}

/// The libraries of the ranks of a new network.
pub(crate) fn network(ranks: u32) -> impl Iterator<Item = Library> {
    let mut networks = networks();
    networks.next = (networks.next / RANKS + 1) * RANKS + 1;
    let world = networks.next - 1;
    (0..ranks).map(move |rank| library(world + rank as usize, (rank, ranks)))
}

/// How many messages a rank would receive now.
#[cfg(test)]
pub(crate) fn expected_by(rank: &Library) -> usize {
    networks().inboxes.get(&rank.world).map_or(0, |inbox| inbox.posted.len())
}

/// How many messages have come to a rank that has not asked for them.
#[cfg(test)]
pub(crate) fn unexpected_by(rank: &Library) -> usize {
    networks().inboxes.get(&rank.world).map_or(0, |inbox| inbox.unexpected.len())
}

/// What a letter has announced is on its way, and is not cancelled any more.
#[cfg(test)]
unsafe extern "C" fn cancel_letters(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let handle = unsafe { *request };
    let is_letter = |posted: &Posted| posted.request == handle && posted.tag == LAST_TAG - LETTER;
    if networks().inboxes.values().flat_map(|inbox| &inbox.posted).any(is_letter) {
        // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
        return unsafe { cancel(request) };
    }
    0
}

/// The libraries of a new network whose messages are late: those that a letter has announced have met their receives.
#[cfg(test)]
pub(crate) fn late_network(ranks: u32) -> impl Iterator<Item = Library> {
    network(ranks).map(|library| Library { cancel: cancel_letters, ..library })
}

/// Holds up one thread where it sends or looks for messages in a [held network](held_network).
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Gate {
    passage: Mutex<()>,
    /// Set before the thread locks the passage, and reset when it has.
    arrived: AtomicBool,
}

#[cfg(test)]
pub(crate) type Closed<'a> = MutexGuard<'a, ()>;

#[cfg(test)]
thread_local! {
    /// The gate of this thread, if any. No other thread is held up by it.
    static GATE: RefCell<Option<Arc<Gate>>> = const { RefCell::new(None) };
}

#[cfg(test)]
impl Gate {
    /// From now on this thread passes here.
    pub(crate) fn hold_up_this_thread(self: Arc<Self>) {
        GATE.set(Some(self));
    }

    /// The thread does not pass as long as what this returns is there.
    pub(crate) fn close(&self) -> Closed<'_> {
        self.passage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the thread is held up, if the gate is closed.
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::SeqCst)
    }

    /// This thread passes its gate, if it has one.
    fn pass() {
        if let Some(gate) = GATE.with_borrow(Clone::clone) {
            gate.arrived.store(true, Ordering::SeqCst);
            let _passage = gate.close();
            gate.arrived.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
unsafe extern "C" fn held_send(
    address: *mut c_void,
    count: c_int,
    of: Handle,
    peer: c_int,
    tag: c_int,
    world: Handle,
    request: *mut Handle,
) -> c_int {
    Gate::pass();
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe { send(address, count, of, peer, tag, world, request) }
}

#[cfg(test)]
unsafe extern "C" fn held_test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    Gate::pass();
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe { test(request, flag, status) }
}

/// The libraries of a new network in which threads that have a [`Gate`] can be held up.
#[cfg(test)]
pub(crate) fn held_network(ranks: u32) -> impl Iterator<Item = Library> {
    network(ranks).map(|library| Library { send: held_send, test: held_test, ..library })
}

#[cfg(test)]
unsafe extern "C" fn broken(_request: *mut Handle, _flag: *mut c_int, _status: *mut c_void) -> c_int {
    1
}

/// The library of a rank that is alone, and in which nothing that has begun can be asked about.
#[cfg(test)]
pub(crate) fn broken_network() -> Option<Library> {
    network(1).next().map(|library| Library { test: broken, ..library })
}

/// What is sent comes, and MPI does not say so.
#[cfg(test)]
unsafe extern "C" fn stuck_send(
    address: *mut c_void,
    count: c_int,
    of: Handle,
    peer: c_int,
    tag: c_int,
    world: Handle,
    request: *mut Handle,
) -> c_int {
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe {
        let code = send(address, count, of, peer, tag, world, request);
        networks().ended.remove(&*request);
        code
    }
}

/// The libraries of a new network in which nothing that is sent ever ends.
#[cfg(test)]
pub(crate) fn stuck_network(ranks: u32) -> impl Iterator<Item = Library> {
    network(ranks).map(|library| Library { send: stuck_send, ..library })
}

#[cfg(test)]
thread_local! {
    /// Messages with this tag are refused so many times more, on this thread.
    static REFUSED: std::cell::Cell<(c_int, u32)> = const { std::cell::Cell::new((0, 0)) };
}

/// The next calls that begin to send messages with a tag, or ask about receives of them, fail, on this thread.
#[cfg(test)]
pub(crate) fn fail_next(tag: i32, times: u32) {
    REFUSED.set((LAST_TAG - tag, times));
}

#[cfg(test)]
fn is_refused(tag: c_int) -> bool {
    let (refused, times) = REFUSED.get();
    let is_refused = times > 0 && tag == refused;
    REFUSED.set((refused, times - u32::from(is_refused)));
    is_refused
}

#[cfg(test)]
unsafe extern "C" fn failing_send(
    address: *mut c_void,
    count: c_int,
    of: Handle,
    peer: c_int,
    tag: c_int,
    world: Handle,
    request: *mut Handle,
) -> c_int {
    if is_refused(tag) {
        return 1;
    }
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe { send(address, count, of, peer, tag, world, request) }
}

#[cfg(test)]
unsafe extern "C" fn failing_test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let handle = unsafe { *request };
    let tag = networks().inboxes.values().flat_map(|inbox| &inbox.posted).find_map(|posted| {
        let is_asked_for = posted.request == handle;
        is_asked_for.then_some(posted.tag)
    });
    if tag.is_some_and(is_refused) {
        return 1;
    }
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe { test(request, flag, status) }
}

#[cfg(test)]
thread_local! {
    /// So many receives more are refused, on this thread.
    static REFUSED_RECEIVES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// So many of the next calls that begin to receive something fail, on this thread.
#[cfg(test)]
pub(crate) fn fail_next_receives(times: u32) {
    REFUSED_RECEIVES.set(times);
}

#[cfg(test)]
unsafe extern "C" fn failing_receive(
    address: *mut c_void,
    count: c_int,
    of: Handle,
    peer: c_int,
    tag: c_int,
    world: Handle,
    request: *mut Handle,
) -> c_int {
    if let Some(left) = REFUSED_RECEIVES.get().checked_sub(1) {
        REFUSED_RECEIVES.set(left);
        return 1;
    }
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe { receive(address, count, of, peer, tag, world, request) }
}

#[cfg(test)]
thread_local! {
    /// So many questions more about what is cancelled are answered before it ends, on this thread; and what was cancelled.
    static LINGERS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    static CANCELLED: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// What is cancelled on this thread ends when so many questions were asked about it or others.
#[cfg(test)]
pub(crate) fn linger(questions: u32) {
    LINGERS.set(questions);
}

#[cfg(test)]
unsafe extern "C" fn lingering_cancel(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    CANCELLED.with_borrow_mut(|cancelled| cancelled.push(unsafe { *request }));
    0
}

#[cfg(test)]
unsafe extern "C" fn lingering_test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    match LINGERS.get().checked_sub(1) {
        Some(left) => LINGERS.set(left),
        None => CANCELLED.take().into_iter().for_each(|mut cancelled| {
            // SAFETY: a word of this function's.
            unsafe { cancel(&raw mut cancelled) };
        }),
    }
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe { test(request, flag, status) }
}

/// The libraries of a new network in which what is cancelled [lingers](linger).
#[cfg(test)]
pub(crate) fn lingering_network(ranks: u32) -> impl Iterator<Item = Library> {
    network(ranks).map(|library| Library { cancel: lingering_cancel, test: lingering_test, ..library })
}

/// The libraries of a new [late network](late_network) in which calls can be told to [fail](fail_next).
#[cfg(test)]
pub(crate) fn failing_network(ranks: u32) -> impl Iterator<Item = Library> {
    late_network(ranks).map(|library| Library {
        send: failing_send,
        receive: failing_receive,
        test: failing_test,
        ..library
    })
}
