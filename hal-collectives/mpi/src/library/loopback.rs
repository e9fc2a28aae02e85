// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An MPI between ranks of one process, for tests and for counting instructions: what a message costs here is
//! what this crate does for it. Messages arrive at once and in their order; nothing is ever late or lost.

#[cfg(test)]
use super::Transfer;
use super::{Handle, Library};
#[cfg(test)]
use crate::wire::LETTER;
use std::cell::OnceCell;
#[cfg(test)]
use std::cell::{Cell, RefCell};
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

/// Answers `MPI_Test` by what is said of a request: whether it has ended, whether that was by a message, and
/// of how many bytes; or the error of the call.
///
/// # Safety
///
/// The words are those of the call, and a status begins with two.
pub(super) unsafe fn tell(
    request: *mut Handle,
    flag: *mut c_int,
    status: *mut c_void,
    ended: impl FnOnce(Handle) -> Result<Option<Option<usize>>, c_int>,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        // What is none any more has ended.
        let ended = if *request == 0 { Ok(Some(Some(0))) } else { ended(*request) };
        let ended = match ended {
            Ok(ended) => ended,
            Err(code) => return code,
        };
        *flag = c_int::from(ended.is_some());
        if let Some(by_message) = ended {
            *request = 0;
            *status.cast::<[u64; 2]>() = [u64::from(by_message.is_none()), by_message.unwrap_or(0) as u64];
        }
    }
    0
}

unsafe extern "C" fn test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    // SAFETY: `Library` passes words of its own.
    unsafe { tell(request, flag, status, |handle| Ok(networks().ended.remove(&handle))) }
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

#[cfg(test)]
thread_local! {
    /// How often this thread has asked how long a message is.
    static COUNTED: Cell<usize> = const { Cell::new(0) };
}

/// How often this thread has asked how long a message is, which MPI says of one that has come.
#[cfg(test)]
pub(crate) fn counted() -> usize {
    COUNTED.get()
}

unsafe extern "C" fn count(status: *const c_void, _type: Handle, count: *mut c_int) -> c_int {
    #[cfg(test)]
    COUNTED.set(COUNTED.get() + 1);
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

/// What a network does beside what it has to, where messages and receives begin.
#[cfg(test)]
trait Twist {
    const BEGINS: Transfer = send;

    /// Whether it fails.
    fn fails(_tag: c_int) -> bool {
        false
    }

    fn has_begun(_request: Handle) {}
}

#[cfg(test)]
unsafe extern "C" fn twisted<T: Twist>(
    address: *mut c_void,
    count: c_int,
    of: Handle,
    peer: c_int,
    tag: c_int,
    world: Handle,
    request: *mut Handle,
) -> c_int {
    if T::fails(tag) {
        return 1;
    }
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    let code = unsafe { (T::BEGINS)(address, count, of, peer, tag, world, request) };
    // SAFETY: `Library` passes a word of its own.
    T::has_begun(unsafe { *request });
    code
}

/// The tag of a receive that waits for its message.
#[cfg(test)]
fn tag_of(request: Handle) -> Option<c_int> {
    let networks = networks();
    let mut posted = networks.inboxes.values().flat_map(|inbox| &inbox.posted);
    posted.find(|posted| posted.request == request).map(|posted| posted.tag)
}

/// What a letter has announced is on its way, and is not cancelled any more.
#[cfg(test)]
unsafe extern "C" fn cancel_letters(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    if tag_of(unsafe { *request }) == Some(LAST_TAG - LETTER) {
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
struct HeldMessages;

#[cfg(test)]
impl Twist for HeldMessages {
    fn fails(_tag: c_int) -> bool {
        Gate::pass();
        false
    }
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
    network(ranks).map(|library| Library { send: twisted::<HeldMessages>, test: held_test, ..library })
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
struct Stuck;

#[cfg(test)]
impl Twist for Stuck {
    fn has_begun(request: Handle) {
        networks().ended.remove(&request);
    }
}

/// The libraries of a new network in which nothing that is sent ever ends.
#[cfg(test)]
pub(crate) fn stuck_network(ranks: u32) -> impl Iterator<Item = Library> {
    network(ranks).map(|library| Library { send: twisted::<Stuck>, ..library })
}

#[cfg(test)]
thread_local! {
    /// Messages with this tag are refused so many times more, on this thread.
    static REFUSED: Cell<(c_int, u32)> = const { Cell::new((0, 0)) };
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
struct FailingSends;

#[cfg(test)]
impl Twist for FailingSends {
    fn fails(tag: c_int) -> bool {
        is_refused(tag)
    }
}

#[cfg(test)]
unsafe extern "C" fn failing_test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    if tag_of(unsafe { *request }).is_some_and(is_refused) {
        return 1;
    }
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    unsafe { test(request, flag, status) }
}

#[cfg(test)]
thread_local! {
    /// So many receives more are refused, on this thread.
    static REFUSED_RECEIVES: Cell<u32> = const { Cell::new(0) };
}

/// So many of the next calls that begin to receive something fail, on this thread.
#[cfg(test)]
pub(crate) fn fail_next_receives(times: u32) {
    REFUSED_RECEIVES.set(times);
}

#[cfg(test)]
struct FailingReceives;

#[cfg(test)]
impl Twist for FailingReceives {
    const BEGINS: Transfer = receive;

    fn fails(_tag: c_int) -> bool {
        let left = REFUSED_RECEIVES.get().checked_sub(1);
        left.inspect(|&left| REFUSED_RECEIVES.set(left)).is_some()
    }
}

#[cfg(test)]
thread_local! {
    /// So many questions more about what is cancelled are answered before it ends, on this thread; and what
    /// was cancelled.
    static LINGERS: Cell<u32> = const { Cell::new(0) };
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
        send: twisted::<FailingSends>,
        receive: twisted::<FailingReceives>,
        test: failing_test,
        ..library
    })
}

/// Something that happens once, behind a call about a receive with some tag: one to cancel it, or a question.
#[cfg(test)]
type Interruption = (Call, c_int, Box<dyn FnOnce()>);

#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Cancel,
    Test,
}

#[cfg(test)]
thread_local! {
    static BEHIND: RefCell<Option<Interruption>> = const { RefCell::new(None) };
}

/// Has something happen behind the next such call of this thread about a receive with a tag, in an
/// [interrupted network](interrupted_network).
#[cfg(test)]
pub(crate) fn behind(call: Call, tag: i32, work: impl FnOnce() + 'static) {
    BEHIND.set(Some((call, LAST_TAG - tag, Box::new(work))));
}

#[cfg(test)]
fn interrupt(call: Call, tag: Option<c_int>) {
    let is_due = |due: &mut Interruption| due.0 == call && Some(due.1) == tag;
    let due = BEHIND.with_borrow_mut(|due| due.take_if(is_due));
    due.into_iter().for_each(|(_, _, work)| work());
}

#[cfg(test)]
unsafe extern "C" fn interrupted_cancel(request: *mut Handle) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let tag = tag_of(unsafe { *request });
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    let code = unsafe { cancel(request) };
    interrupt(Call::Cancel, tag);
    code
}

#[cfg(test)]
unsafe extern "C" fn interrupted_test(request: *mut Handle, flag: *mut c_int, status: *mut c_void) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    let tag = tag_of(unsafe { *request });
    // SAFETY: what is passed on is what MPI's function of that name takes, which `Library` calls this as.
    let code = unsafe { test(request, flag, status) };
    interrupt(Call::Test, tag);
    code
}

/// The libraries of a new network in which things happen [while receives are cancelled](behind).
#[cfg(test)]
pub(crate) fn interrupted_network(ranks: u32) -> impl Iterator<Item = Library> {
    network(ranks).map(|library| Library { cancel: interrupted_cancel, ..library })
}

/// Those of a new [late network](late_network) in which they happen while it is asked for receives.
#[cfg(test)]
pub(crate) fn interrupted_late_network(ranks: u32) -> impl Iterator<Item = Library> {
    late_network(ranks).map(|library| Library { test: interrupted_test, ..library })
}

/// Held for as long as no MPI is to end; and whether one has been told to.
#[cfg(test)]
static ENDING: Mutex<()> = Mutex::new(());
#[cfg(test)]
static HAS_BEGUN_TO_END: AtomicBool = AtomicBool::new(false);

/// MPIs of [ending networks](ending_network) do not end as long as what this returns is there.
#[cfg(test)]
pub(crate) fn hold_up_ends() -> Closed<'static> {
    HAS_BEGUN_TO_END.store(false, Ordering::SeqCst);
    ENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether one has been told to end since.
#[cfg(test)]
pub(crate) fn has_begun_to_end() -> bool {
    HAS_BEGUN_TO_END.load(Ordering::SeqCst)
}

#[cfg(test)]
unsafe extern "C" fn held_finalize() -> c_int {
    HAS_BEGUN_TO_END.store(true, Ordering::SeqCst);
    drop(ENDING.lock());
    0
}

#[cfg(test)]
unsafe extern "C" fn not_finalized(flag: *mut c_int) -> c_int {
    // SAFETY: `Library` passes a word of its own.
    unsafe { *flag = 0 };
    0
}

/// The libraries of a new network whose MPI is to be ended, and [takes its time](hold_up_ends). They are for one test.
#[cfg(test)]
pub(crate) fn ending_network(ranks: u32) -> impl Iterator<Item = Library> {
    let ending = |library| Library { finalize: held_finalize, finalized: not_finalized, ..library };
    network(ranks).map(ending)
}
