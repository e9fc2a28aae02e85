// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The MPI library of the machine, loaded when it is needed: the one place of this crate with unsafe code.
//!
//! # Two interfaces
//!
//! MPI standardises C source and not what is in a library. Open MPI's handles are pointers, to objects that
//! the library exports; MPICH's, and those of its relatives, are numbers of 32 bits. Here both are words: a
//! number is passed in the low half of a register, where its callee looks for it, and a word that is zero
//! before has a number in its low half after it was written, on the 64-bit little-endian machines that this
//! crate is for. Which library it is, its exports tell.
//!
//! # Tags
//!
//! Messages go between all processes of the job, in the communicator that the program's own may be in too:
//! one of ours would have to be made by all ranks together, and joining a group waits for no other rank. So
//! they have the highest tags that this MPI has, counted from the top.
//!
//! # Threads
//!
//! What the library promises about threads is asked for when it is initialised. Where the program has done
//! that before, it is taken as it is. One thread at a time makes calls, so that more than
//! `MPI_THREAD_SERIALIZED` is never needed.
#![allow(
    unsafe_code,
    reason = "foreign functions, called with memory that is kept until they are done with it"
)]

use crate::launcher::{Launcher, launched, launcher};
use hal_backend::HostRange;
use hal_collectives::Result;
use hal_semaphore::{Code, Failure};
use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

#[cfg(any(test, feature = "loopback"))]
pub(crate) mod loopback;
#[cfg(test)]
pub(crate) mod stepped;
#[cfg(test)]
pub(crate) mod world;

/// A communicator, a datatype, a request: see the module.
type Handle = usize;

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type AskOne = unsafe extern "C" fn(*mut c_int) -> c_int;
type Attribute = unsafe extern "C" fn(Handle, c_int, *mut c_void, *mut c_int) -> c_int;
type AskOf = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Transfer = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Test = unsafe extern "C" fn(*mut Handle, *mut c_int, *mut c_void) -> c_int;
type OfRequest = unsafe extern "C" fn(*mut Handle) -> c_int;
type OfStatus = unsafe extern "C" fn(*const c_void, *mut c_int) -> c_int;
type CountOf = unsafe extern "C" fn(*const c_void, Handle, *mut c_int) -> c_int;
type SetHandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Plain = unsafe extern "C" fn() -> c_int;

/// Names that a library may have, the first that loads is taken: without a version only where headers are
/// installed too.
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so"];
const MPICH: &[&str] = &["libmpich.so.12", "libmpi.so.12", "libmpich.so"];

const THREAD_SERIALIZED: c_int = 2;
const THREAD_MULTIPLE: c_int = 3;

/// MPICH's numbers.
const MPICH_WORLD: Handle = 0x4400_0000;
const MPICH_BYTE: Handle = 0x4c00_010d;
const MPICH_ERRORS_RETURN: Handle = 0x5400_0001;

/// `MPI_ANY_SOURCE` of each.
const OPEN_MPI_ANY_SOURCE: c_int = -1;
const MPICH_ANY_SOURCE: c_int = -2;

/// `MPI_TAG_UB` of each, and the highest tag that any MPI has at least.
const OPEN_MPI_TAGS: c_int = 0;
const MPICH_TAGS: c_int = 0x6440_0001;
const LEAST_TAGS: c_int = 32_767;

/// As many bytes as the status of any MPI has, and more.
type Status = [u64; 16];

/// A library that is initialised.
///
/// # Invariants
///
/// The functions and handles are those of one library that is never unloaded.
pub(crate) struct Library {
    world: Handle,
    byte: Handle,
    any_source: c_int,
    /// The highest tag, from which ours are counted down.
    last_tag: c_int,
    send: Transfer,
    receive: Transfer,
    test: Test,
    cancel: OfRequest,
    was_cancelled: OfStatus,
    count: CountOf,
    error_string: ErrorString,
    finalize: Plain,
    finalized: AskOne,
    /// How it failed first with something that had begun. What is sent and received from then on may be
    /// something else than it should be.
    failure: OnceCell<Failure>,
    /// Whether it was initialised here, and is to be finalised here.
    pub(crate) owned: bool,
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

/// A transfer that has begun, or a place for one. Its memory is kept until it has ended.
pub(crate) struct Request {
    handle: Box<Handle>,
    memory: HostRange,
    /// It receives, has not ended, and was not cancelled: MPI cancels nothing else.
    is_expected: bool,
    /// From whom it receives, with which tag, if that is one rank.
    source: Option<(u32, i32)>,
    /// It was to be cancelled; and it has ended without its message.
    is_cancelled: bool,
    has_missed: bool,
    /// It has ended: MPI knows it no more.
    is_over: bool,
    /// How many bytes are expected, and how many have come.
    wanted: u32,
    came: u32,
}

/// Memory for messages and letters.
pub(crate) fn allocate(length: u64) -> Result<HostRange> {
    #[cfg(test)]
    if IS_WITHOUT_MEMORY.get() || is_failing_allocation() {
        return Err(Failure::new(Code::ResourceExhausted, "there is no memory in this test"));
    }
    HostRange::allocate(length, 64)
}

#[cfg(test)]
thread_local! {
    /// This thread gets no more memory.
    static IS_WITHOUT_MEMORY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(test)]
thread_local! {
    /// So many allocations of this thread from now one fails.
    static FAILING: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// There is no memory for the one that comes so many allocations from now, on this thread. Returns whether
/// there was none so far.
#[cfg(test)]
pub(crate) fn fail_allocation(after: Option<usize>) -> bool {
    FAILING.replace(after).is_some()
}

#[cfg(test)]
fn is_failing_allocation() -> bool {
    let left = FAILING.get();
    FAILING.set(left.and_then(|left| left.checked_sub(1)));
    left == Some(0)
}

/// Does something on this thread with no memory left.
#[cfg(test)]
pub(crate) fn without_memory<T>(work: impl FnOnce() -> T) -> T {
    IS_WITHOUT_MEMORY.set(true);
    let result = work();
    IS_WITHOUT_MEMORY.set(false);
    result
}

fn open(names: &[&str]) -> Option<*mut c_void> {
    names.iter().find_map(|name| {
        let name = CString::new(*name).ok()?;
        // SAFETY: a name; what a library does when it is loaded is its own. Its plug-ins look for its
        // symbols, so they are global.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        (!library.is_null()).then_some(library)
    })
}

fn missing(what: &str) -> Failure {
    let (which, package, launcher) = match launcher() {
        Some(Launcher::OpenMpi) => {
            ("the MPI that started it", "libopenmpi3", "was started by Open MPI's mpirun")
        }
        Some(Launcher::Pmi) => {
            ("the MPI that started it", "libmpich12", "was started by MPICH's or Slurm's launcher")
        }
        Some(Launcher::Pmix) => {
            ("an MPI that knows Slurm's PMIx", "libopenmpi3", "was started by Slurm's launcher with PMIx")
        }
        None => ("an MPI", "openmpi-bin", "was started by no launcher of MPI's"),
    };
    let message = format!(
        "this process {launcher}, and {what}; install {which} (on Debian and Ubuntu: apt-get install {package}), or \
         put the folder of its library into LD_LIBRARY_PATH"
    );
    Failure::new(Code::Unavailable, message)
}

/// A symbol of a library.
///
/// # Safety
///
/// `T` is a pointer, and to what the library has under that name.
unsafe fn symbol<T: Copy>(library: *mut c_void, name: &CStr) -> Result<T> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: the library is loaded and stays so.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return Err(missing(&format!("its library has no {}", name.to_string_lossy())));
    }
    // SAFETY: as wide, and of that type, as the caller promises.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

impl Library {
    /// Loads the library of whatever launched this process, and initialises it unless the program has.
    pub(crate) fn load() -> Result<Self> {
        let names = match launcher() {
            Some(Launcher::OpenMpi | Launcher::Pmix) => [OPEN_MPI, MPICH],
            Some(Launcher::Pmi) | None => [MPICH, OPEN_MPI],
        };
        let library =
            names.into_iter().find_map(open).ok_or_else(|| missing("no MPI library can be loaded"))?;
        // SAFETY: the types are those of the MPI standard, with handles as the module says.
        unsafe {
            let by_pointers = !libc::dlsym(library, c"ompi_mpi_comm_world".as_ptr()).is_null();
            let (world, byte, handler, any_source, tags) = if by_pointers {
                (
                    symbol(library, c"ompi_mpi_comm_world")?,
                    symbol(library, c"ompi_mpi_byte")?,
                    symbol(library, c"ompi_mpi_errors_return")?,
                    OPEN_MPI_ANY_SOURCE,
                    OPEN_MPI_TAGS,
                )
            } else {
                (MPICH_WORLD, MPICH_BYTE, MPICH_ERRORS_RETURN, MPICH_ANY_SOURCE, MPICH_TAGS)
            };
            let owned = begin(library)?;
            let set_handler: SetHandler = symbol(library, c"MPI_Comm_set_errhandler")?;
            set_handler(world, handler);
            let ask = |name| -> Result<u32> {
                let ask: AskOf = symbol(library, name)?;
                let mut number = 0;
                ask(world, &raw mut number);
                u32::try_from(number).map_err(|_| missing("its library knows of no ranks"))
            };
            let (rank, size) = (ask(c"MPI_Comm_rank")?, ask(c"MPI_Comm_size")?);
            // The library of another MPI takes each process for one that was started alone.
            if let Some(launched) = launched().filter(|&launched| launched != size) {
                return Err(missing(&format!(
                    "the library that is here is not its: it knows of {size} processes, and {launched} were started"
                )));
            }
            Ok(Self {
                world,
                byte,
                any_source,
                last_tag: last_tag(symbol(library, c"MPI_Comm_get_attr")?, world, tags),
                send: symbol(library, c"MPI_Isend")?,
                receive: symbol(library, c"MPI_Irecv")?,
                test: symbol(library, c"MPI_Test")?,
                cancel: symbol(library, c"MPI_Cancel")?,
                was_cancelled: symbol(library, c"MPI_Test_cancelled")?,
                count: symbol(library, c"MPI_Get_count")?,
                error_string: symbol(library, c"MPI_Error_string")?,
                finalize: symbol(library, c"MPI_Finalize")?,
                finalized: symbol(library, c"MPI_Finalized")?,
                failure: OnceCell::new(),
                owned,
                rank,
                size,
            })
        }
    }

    /// Begins to send all of some memory.
    pub(crate) fn send(&self, memory: HostRange, to: u32, tag: i32) -> Result<Request> {
        let mut request = Request::idle(memory);
        let length = request.memory.length();
        self.send_by(&mut request, length, to, tag)?;
        Ok(request)
    }

    /// Begins to send the first bytes of the memory of a request that is idle.
    pub(crate) fn send_by(&self, request: &mut Request, length: u64, to: u32, tag: i32) -> Result {
        self.transfer(self.send, request, length, to.cast_signed(), tag)
    }

    /// Begins to send no bytes, which takes no memory of any size.
    pub(crate) fn send_nothing(&self, to: u32, tag: i32) -> Result<Request> {
        // SAFETY: no bytes are at any address.
        self.send(unsafe { HostRange::from_raw(std::ptr::null_mut(), 0, None) }, to, tag)
    }

    /// Begins to receive into all of some memory.
    pub(crate) fn receive(&self, memory: HostRange, from: u32, tag: i32) -> Result<Request> {
        let mut request = Request::idle(memory);
        let length = request.memory.length();
        (request.is_expected, request.source) = (true, Some((from, tag)));
        request.expect(length);
        self.transfer(self.receive, &mut request, length, from.cast_signed(), tag)?;
        Ok(request)
    }

    /// Begins to receive at most as much as the memory of a request has that is idle, from any rank.
    pub(crate) fn receive_from_any_source(&self, request: &mut Request, tag: i32) -> Result {
        let length = request.memory.length();
        self.transfer(self.receive, request, length, self.any_source, tag)?;
        request.is_expected = true;
        Ok(())
    }

    fn transfer(
        &self,
        transfer: Transfer,
        request: &mut Request,
        length: u64,
        peer: c_int,
        tag: i32,
    ) -> Result {
        debug_assert!(length <= request.memory.length(), "a message is inside of its memory");
        let count = c_int::try_from(length).map_err(|_| {
            let message = format!(
                "a message of {length} bytes is longer than MPI counts; give a smaller collective_piece"
            );
            Failure::new(Code::OutOfRange, message)
        })?;
        let (address, handle) = (request.memory.address().cast(), &raw mut *request.handle);
        let tag = self.last_tag - tag;
        // Also of a place whose receive was cancelled before.
        (request.is_over, request.has_missed) = (false, false);
        // SAFETY: the memory and the handle stay where they are until the request has ended, which its owner sees to.
        self.check(unsafe { transfer(address, count, self.byte, peer, tag, self.world, handle) })
    }

    /// How a transfer has ended, if it has: true if a message came or went, and false if it was cancelled.
    pub(crate) fn outcome(&self, request: &mut Request) -> Result<Option<bool>> {
        Ok(self.has_ended(request)?.then_some(!request.has_missed))
    }

    /// The same, asked again and again until `end` where it has not ended.
    pub(crate) fn outcome_by(&self, request: &mut Request, end: Instant) -> Result<Option<bool>> {
        loop {
            match self.outcome(request) {
                Ok(None) if Instant::now() < end => {}
                outcome => return outcome,
            }
        }
    }

    /// How MPI has failed with something that had begun, if it has: nothing that it says is believed any more.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Believes nothing that MPI says from now on.
    pub(crate) fn distrust(&self, failure: &Failure) {
        self.failure.get_or_init(|| failure.clone());
    }

    /// Whether a transfer has ended. Makes progress with all of them. Where that fails MPI may still use its
    /// memory, and is [distrusted](Self::failure).
    pub(crate) fn has_ended(&self, request: &mut Request) -> Result<bool> {
        if request.is_over {
            return Ok(true);
        }
        let outcome = self.ask_for_end(request);
        if let Err(failure) = &outcome {
            self.distrust(failure);
        }
        outcome
    }

    #[inline]
    fn ask_for_end(&self, request: &mut Request) -> Result<bool> {
        // MPI writes a status where something has ended, which is read where that was to be cancelled, or has
        // come from one rank.
        let (mut flag, mut status) = (0, MaybeUninit::<Status>::uninit());
        // SAFETY: the request is one of this library's; a status is not larger.
        self.check(unsafe {
            (self.test)(&raw mut *request.handle, &raw mut flag, status.as_mut_ptr().cast())
        })?;
        request.is_expected &= flag == 0;
        request.is_over = flag != 0;
        if flag != 0 && std::mem::take(&mut request.is_cancelled) {
            let mut cancelled = 0;
            // SAFETY: the status is one that this library has written, as the request has ended.
            self.check(unsafe { (self.was_cancelled)(status.as_ptr().cast(), &raw mut cancelled) })?;
            request.has_missed = cancelled != 0;
        }
        if flag != 0 && !request.has_missed && request.source.is_some() {
            let mut count = 0;
            // SAFETY: as above.
            self.check(unsafe { (self.count)(status.as_ptr().cast(), self.byte, &raw mut count) })?;
            request.came = u32::try_from(count).unwrap_or(u32::MAX);
        }
        Ok(flag != 0)
    }

    /// Asks for a receive to end without a message, if none has come.
    pub(crate) fn cancel(&self, request: &mut Request) {
        if std::mem::take(&mut request.is_expected) {
            request.is_cancelled = true;
            // SAFETY: the request is one of this library's, which has not ended and was not cancelled. Where
            // that is refused, the receive ends as it would have.
            let _ = unsafe { (self.cancel)(&raw mut *request.handle) };
        }
    }

    /// Ends the library, if it is ours to end. It cannot be begun again. Some wait for all ranks: where one
    /// of those may be gone, this returns after `patience` at the latest.
    pub(crate) fn end(&self, patience: Option<Duration>) {
        let (mut finalized, finalize) = (0, self.finalize);
        // SAFETY: what is asked is answered at any time.
        unsafe { (self.finalized)(&raw mut finalized) };
        if !self.owned || finalized != 0 {
            return;
        }
        let (tell, told) = channel();
        let thread = std::thread::Builder::new().spawn(move || {
            // SAFETY: no other thread calls the library any more.
            unsafe { finalize() };
            // The other thread may have gone on.
            let _ = tell.send(());
        });
        if thread.is_ok() {
            // Whether it has ended or not, there is nothing more to do.
            let _ = match patience {
                Some(patience) => told.recv_timeout(patience).ok(),
                None => told.recv().ok(),
            };
        }
    }

    fn check(&self, code: c_int) -> Result {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = ([0; 1024], 0);
        // SAFETY: MPI writes at most as many characters as any of its implementations has room for.
        unsafe { (self.error_string)(code, text.as_mut_ptr().cast(), &raw mut length) };
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        let text = String::from_utf8_lossy(text.get(..end).unwrap_or(&[])).into_owned();
        Err(Failure::new(Code::Unavailable, format!("MPI says: {text}")))
    }
}

/// The highest tag that messages of a communicator may have.
///
/// # Safety
///
/// The function is `MPI_Comm_get_attr`, and what it is asked for the highest tag.
unsafe fn last_tag(attribute: Attribute, world: Handle, which: c_int) -> c_int {
    let (mut place, mut flag): (*const c_int, c_int) = (std::ptr::null(), 0);
    // SAFETY: MPI sets the pointer to a number of its own, which stays where it is.
    unsafe {
        let code = attribute(world, which, (&raw mut place).cast(), &raw mut flag);
        match place.as_ref() {
            Some(&last) if code == 0 && flag != 0 => last.max(LEAST_TAGS),
            _ => LEAST_TAGS,
        }
    }
}

/// Initialises a library unless that was done. Whether it is ours then.
///
/// # Safety
///
/// The library is an MPI.
unsafe fn begin(library: *mut c_void) -> Result<bool> {
    // SAFETY: the types are those of the MPI standard.
    unsafe {
        let initialized: AskOne = symbol(library, c"MPI_Initialized")?;
        let mut is_begun = 0;
        initialized(&raw mut is_begun);
        if is_begun != 0 {
            return Ok(false);
        }
        let init: Init = symbol(library, c"MPI_Init_thread")?;
        let mut given = 0;
        let code = init(std::ptr::null_mut(), std::ptr::null_mut(), THREAD_MULTIPLE, &raw mut given);
        if code != 0 {
            return Err(missing(&format!("its library could not be initialised (MPI_Init_thread: {code})")));
        }
        if given < THREAD_SERIALIZED {
            return Err(missing(&format!(
                "its library gives threads level {given}, and collectives need MPI_THREAD_SERIALIZED (2)"
            )));
        }
        Ok(true)
    }
}

/// Has a function called at the end of the process.
pub(crate) fn at_exit(call: extern "C" fn()) {
    // SAFETY: a function of the program's, which is never unloaded.
    unsafe { libc::atexit(call) };
}

/// Has a function called in each process that is forked from this one.
pub(crate) fn in_forks(call: extern "C" fn()) {
    // SAFETY: a function of the program's, which is never unloaded, and does what a process may that was forked.
    unsafe { libc::pthread_atfork(None, None, Some(call)) };
}

#[cfg(test)]
thread_local! {
    /// How many requests this thread has let go of that had begun and not ended.
    static DROPPED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(crate) fn dropped_under_way() -> usize {
    DROPPED.get()
}

#[cfg(test)]
impl Drop for Request {
    fn drop(&mut self) {
        if *self.handle != 0 {
            DROPPED.set(DROPPED.get() + 1);
        }
    }
}

impl Request {
    /// A place for transfers of some memory.
    pub(crate) fn idle(memory: HostRange) -> Self {
        let handle = Box::new(0);
        let (is_expected, is_cancelled, has_missed, is_over) = (false, false, false, false);
        Self {
            handle,
            memory,
            is_expected,
            source: None,
            is_cancelled,
            has_missed,
            is_over,
            wanted: 0,
            came: 0,
        }
    }

    /// Where a receive of a message that is at most as long as its memory was begun before it was known how
    /// long it is: so many bytes are expected.
    pub(crate) fn expect(&mut self, length: u64) {
        // MPI counts no more.
        self.wanted = u32::try_from(length).unwrap_or(u32::MAX);
    }

    /// Whether less has come than was expected, now that it has ended: the sender has given up.
    pub(crate) fn is_short(&self) -> bool {
        self.came < self.wanted
    }

    /// The message that it has missed, as it was cancelled: of whom, with which tag.
    pub(crate) fn missed(&self) -> Option<(u32, i32)> {
        self.source.filter(|_| self.has_missed)
    }

    /// From whom it receives, and with which tag, if that is one rank.
    pub(crate) fn source(&self) -> Option<(u32, i32)> {
        self.source
    }

    /// It is not cancelled any more, as later receives may get what it would miss.
    pub(crate) fn stay(&mut self) {
        self.is_expected = false;
    }

    /// Whether it was to be cancelled and has not ended so far.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Where it sends from or receives into.
    pub(crate) fn memory(&self) -> &HostRange {
        &self.memory
    }
}
