// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The MPI library of the machine, loaded when it is needed: the unsafe code of this crate.
//!
//! # Two interfaces
//!
//! MPI standardises C source and not the content of a library. Open MPI's handles are pointers to objects that the
//! library exports; those of MPICH and its relatives are numbers of 32 bits. Here both are words: a number is passed
//! in the low half of a register, where its callee looks for it, and a word that was zero has a number in its low
//! half after MPI wrote it, on the 64-bit little-endian machines that this crate is for.
//!
//! # Communicators
//!
//! No message goes through a communicator of the program's. [`Library::create`] makes one of ours from the world, and
//! others from that ([why so](../../../docs/adr/0026-between-processes-by-mpis-collectives.md)).
//!
//! # Memory
//!
//! MPI reads and writes the memory of a [`Call`] from when it begins until it is over. The call holds that memory, and
//! leaks it if it is dropped between.
#![allow(
    unsafe_code,
    reason = "foreign functions, called with memory that is kept until they are done with it"
)]

use crate::launcher::{Launcher, launched, launcher};
use hal_backend::HostRange;
use hal_collectives::{Parts, Result, release};
use hal_semaphore::{Code, Failure};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::mpsc::channel;
use std::time::Duration;

#[cfg(any(test, feature = "loopback"))]
pub(crate) mod fake;
mod folds;

pub(crate) use folds::Fold;

/// A communicator, a datatype, an operation, a request: see the module.
pub(crate) type Handle = usize;

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type AskOne = unsafe extern "C" fn(*mut c_int) -> c_int;
type AskOf = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Transfer = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Broadcast = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, Handle, *mut Handle) -> c_int;
type Gather = unsafe extern "C" fn(
    *const c_void,
    c_int,
    Handle,
    *mut c_void,
    c_int,
    Handle,
    Handle,
    *mut Handle,
) -> c_int;
type GatherPlaces = unsafe extern "C" fn(
    *const c_void,
    c_int,
    Handle,
    *mut c_void,
    *const c_int,
    *const c_int,
    Handle,
    Handle,
    *mut Handle,
) -> c_int;
type ExchangePlaces = unsafe extern "C" fn(
    *const c_void,
    *const c_int,
    *const c_int,
    Handle,
    *mut c_void,
    *const c_int,
    *const c_int,
    Handle,
    Handle,
    *mut Handle,
) -> c_int;
type Reduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    c_int,
    Handle,
    Handle,
    c_int,
    Handle,
    *mut Handle,
) -> c_int;
type ReduceAll =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle) -> c_int;
type Test = unsafe extern "C" fn(*mut Handle, *mut c_int, *mut c_void) -> c_int;
type OfHandle = unsafe extern "C" fn(*mut Handle) -> c_int;
type SetHandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Plain = unsafe extern "C" fn() -> c_int;
type GroupOf = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
type Include = unsafe extern "C" fn(Handle, c_int, *const c_int, *mut Handle) -> c_int;
type CreateGroup = unsafe extern "C" fn(Handle, Handle, c_int, *mut Handle) -> c_int;
type CreateOp = unsafe extern "C" fn(folds::Function, c_int, *mut Handle) -> c_int;

/// Names that a library may have; the first that loads is taken. Without a version only if headers are installed too.
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so"];
const MPICH: &[&str] = &["libmpich.so.12", "libmpi.so.12", "libmpich.so"];

const THREAD_SERIALIZED: c_int = 2;
const THREAD_MULTIPLE: c_int = 3;

/// The tags of [`Library::create`], which no other message of the communicator can meet.
const CREATION_TAG: c_int = 0x6861;

/// As many bytes as the status of any MPI has, and more.
type Status = [u64; 16];

/// A type of elements that MPI moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Byte,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    /// Sixteen bytes: a complex number to MPI, into which only folds of ours look.
    Sixteen,
}

/// MPI's constants.
struct Constants {
    world: Handle,
    errors_return: Handle,
    any_source: c_int,
    /// `MPI_IN_PLACE`.
    in_place: usize,
    /// The handles of the numbers, in their order.
    numbers: [Handle; 12],
    /// Sum, product, minimum, maximum.
    folds: [Handle; 4],
}

/// MPI's functions.
#[derive(Clone, Copy)]
struct Functions {
    send: Transfer,
    receive: Transfer,
    broadcast: Broadcast,
    gather: Gather,
    exchange: Gather,
    gather_places: GatherPlaces,
    exchange_places: ExchangePlaces,
    reduce: Reduce,
    reduce_all: ReduceAll,
    reduce_parts: ReduceAll,
    test: Test,
    cancel: OfHandle,
    group_of: GroupOf,
    include: Include,
    free_group: OfHandle,
    create: CreateGroup,
    set_handler: SetHandler,
    create_op: CreateOp,
    error_string: ErrorString,
    rank: AskOf,
    size: AskOf,
    level: AskOne,
    finalize: Plain,
    finalized: AskOne,
}

/// A library that is initialised.
///
/// # Invariants
///
/// The functions and handles are those of one library that is never unloaded.
pub(crate) struct Library {
    constants: Constants,
    functions: Functions,
    folds: Vec<(Fold, Handle)>,
    /// True if it was initialised here, and is finalised here.
    pub(crate) owned: bool,
    /// The level of threads.
    pub(crate) level: c_int,
    /// True if a creation never blocks.
    pub(crate) creates_at_once: bool,
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

/// What a rank asks of MPI.
///
/// # Invariants
///
/// Memory is as long as its count of numbers, for each rank of the group if it has parts. MPI may use it, and read the
/// places, from when the call begins until it is over.
pub(crate) struct Call {
    what: What,
    /// What is sent, and what receives.
    memory: ManuallyDrop<[Option<HostRange>; 2]>,
    /// The numbers of one part.
    count: i32,
    number: Number,
    /// Where the parts of a piece are.
    places: ManuallyDrop<Option<PartPlaces>>,
    state: State,
    handle: Handle,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waits,
    Begun,
    /// MPI has refused it when it began or was tested, and does not say when it uses its memory no more.
    Failed,
    Over,
}

/// Where the parts of each rank begin in what is sent and received, as MPI counts: in numbers.
pub(crate) struct PartPlaces {
    /// The numbers of each part.
    counts: Box<[c_int]>,
    /// The places of what is sent, and of what is received.
    sides: [Box<[c_int]>; 2],
}

impl PartPlaces {
    /// The places of parts of so many numbers of this size.
    pub(crate) fn new(ranks: u32, count: i32, size: u64, sides: [Option<&Parts>; 2]) -> Result<Self> {
        let place = |rank: u32, parts: &Parts| {
            let stride = parts.stride().map_or(u64::from(count.unsigned_abs()), |stride| stride / size);
            c_int::try_from(u64::from(rank) * stride).map_err(|_| {
                let message = "the parts of all ranks are more than 2^31 elements, which MPI does not count; use wider \
                               elements, or several operations";
                Failure::new(Code::OutOfRange, message)
            })
        };
        let places = |side: Option<&Parts>| match side {
            Some(parts) => (0..ranks).map(|rank| place(rank, parts)).collect(),
            None => Ok(Box::default()),
        };
        let [sent, received] = sides;
        let counts = std::iter::repeat_n(count, ranks as usize).collect();
        Ok(Self { counts, sides: [places(sent)?, places(received)?] })
    }
}

/// The function of MPI that is called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    Send {
        to: u32,
        tag: i32,
    },
    /// From a rank, or from any.
    Receive {
        from: Option<u32>,
        tag: i32,
    },
    Broadcast {
        root: u32,
    },
    /// In place: a rank's own part is at that offset of what it receives, or is copied there when the call begins.
    Gather {
        own: u64,
    },
    Exchange,
    Reduce {
        fold: Fold,
        root: u32,
    },
    ReduceAll {
        fold: Fold,
    },
    ReduceParts {
        fold: Fold,
    },
}

impl Call {
    pub(crate) fn new(
        what: What,
        memory: [Option<HostRange>; 2],
        (count, number): (i32, Number),
        places: Option<PartPlaces>,
    ) -> Self {
        let (memory, places) = (ManuallyDrop::new(memory), ManuallyDrop::new(places));
        Self { what, memory, count, number, places, state: State::Waits, handle: 0 }
    }

    /// True if it has not begun.
    pub(crate) fn waits(&self) -> bool {
        self.state == State::Waits
    }

    /// True if it was seen to have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// True if MPI may use its memory.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Begun | State::Failed)
    }

    /// The bytes that it sends and receives.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.iter().flatten().map(HostRange::length).sum()
    }

    /// What it receives into.
    pub(crate) fn received(&self) -> Option<&HostRange> {
        let [_, received] = &*self.memory;
        received.as_ref()
    }
}

impl Drop for Call {
    /// Releases its memory, each range by itself, as its owner may panic; or leaks it, if MPI may use it.
    fn drop(&mut self) {
        if self.is_open() {
            return;
        }
        // SAFETY: taken and dropped once, here.
        let [send, recv] = unsafe {
            ManuallyDrop::drop(&mut self.places);
            ManuallyDrop::take(&mut self.memory)
        };
        release(send);
        release(recv);
    }
}

/// The first of some libraries that loads, or that is loaded already.
fn open(names: &[&str], only_loaded: bool) -> Option<*mut c_void> {
    let flags = if only_loaded { libc::RTLD_NOLOAD } else { 0 };
    names.iter().find_map(|name| {
        let name = CString::new(*name).ok()?;
        // SAFETY: a name; what a library does when it is loaded is its own. Its plug-ins look for its symbols, so they
        // are global.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL | flags) };
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
    /// Loads the library that the program has, or else that of whatever launched this process, and initialises it
    /// unless the program has.
    pub(crate) fn load() -> Result<Self> {
        let names = match launcher() {
            Some(Launcher::OpenMpi | Launcher::Pmix) => [OPEN_MPI, MPICH],
            Some(Launcher::Pmi) | None => [MPICH, OPEN_MPI],
        };
        let loaded = names.into_iter().find_map(|names| open(names, true));
        let library = loaded
            .or_else(|| names.into_iter().find_map(|names| open(names, false)))
            .ok_or_else(|| missing("no MPI library can be loaded"))?;
        // SAFETY: the types are those of the MPI standard, with handles as the module says.
        unsafe {
            let (constants, functions) = (constants(library)?, functions(library)?);
            let this = Self::new(constants, functions, begin(library)?);
            if let Err(failure) = this.check_job(launched()) {
                this.end(None);
                return Err(failure);
            }
            Ok(this)
        }
    }

    /// A library that is initialised, with operations of ours.
    ///
    /// # Safety
    ///
    /// The constants and functions are those of one library.
    unsafe fn new(constants: Constants, functions: Functions, owned: bool) -> Self {
        let fold = |(fold, function)| {
            let mut handle = 0;
            // SAFETY: as the caller promises; the order of two operands does not matter to any of them.
            unsafe { (functions.create_op)(function, 1, &raw mut handle) };
            (fold, handle)
        };
        let folds = folds::OWN.into_iter().map(fold).collect();
        let (mut rank, mut size, mut level) = (0, 0, 0);
        // SAFETY: as the caller promises.
        unsafe {
            (functions.rank)(constants.world, &raw mut rank);
            (functions.size)(constants.world, &raw mut size);
            (functions.level)(&raw mut level);
            if owned {
                // A failure ends the job otherwise. A program that has begun MPI has said what it does.
                (functions.set_handler)(constants.world, constants.errors_return);
            }
        }
        Self {
            constants,
            functions,
            folds,
            owned,
            level,
            creates_at_once: false,
            rank: rank.cast_unsigned(),
            size: size.cast_unsigned(),
        }
    }

    /// Refuses a library that takes this process for one that was started alone, as that of another MPI does; and one
    /// that was initialised here and wants one thread for all calls.
    fn check_job(&self, launched: Option<u32>) -> Result {
        let Self { size, level, .. } = self;
        if let Some(launched) = launched.filter(|launched| launched != size) {
            return Err(missing(&format!(
                "the library that is here is not its: it knows of {size} processes, and {launched} were started"
            )));
        }
        if self.owned && *level < THREAD_SERIALIZED {
            return Err(missing(&format!(
                "its library gives threads level {level}, and collectives need MPI_THREAD_SERIALIZED (2)"
            )));
        }
        Ok(())
    }

    /// True if other threads may make calls during a creation.
    pub(crate) fn is_multiple(&self) -> bool {
        self.level >= THREAD_MULTIPLE
    }

    /// The communicator of all processes, which is the program's.
    pub(crate) fn world(&self) -> Handle {
        self.constants.world
    }

    /// Makes a communicator of some ranks of another one. Returns when all of them have called it, so one process
    /// makes them in the same order as the others.
    pub(crate) fn create(&self, parent: Handle, members: &[u32]) -> Result<Handle> {
        let ranks: Vec<c_int> = members.iter().map(|rank| rank.cast_signed()).collect();
        let count = c_int::try_from(ranks.len()).unwrap_or(c_int::MAX);
        let Functions { group_of, include, free_group, create, set_handler, .. } = self.functions;
        let (mut all, mut some, mut made) = (0, 0, 0);
        // SAFETY: handles of this library, and as many ranks as are counted.
        unsafe {
            self.check(group_of(parent, &raw mut all))?;
            let outcome = self.check(include(all, count, ranks.as_ptr(), &raw mut some)).and_then(|()| {
                let outcome = self.check(create(parent, some, CREATION_TAG, &raw mut made));
                free_group(&raw mut some);
                outcome
            });
            free_group(&raw mut all);
            outcome?;
            self.check(set_handler(made, self.constants.errors_return))?;
        }
        Ok(made)
    }

    /// Begins a call on a communicator.
    #[expect(clippy::too_many_lines, reason = "a call for each function of MPI's")]
    pub(crate) fn begin(&self, communicator: Handle, call: &mut Call) -> Result {
        let Functions { broadcast, gather, exchange, gather_places, exchange_places, .. } = self.functions;
        let Functions { reduce, reduce_all, reduce_parts, .. } = self.functions;
        let address = |range: &Option<HostRange>| -> *mut c_void {
            range.as_ref().map_or(std::ptr::null_mut(), HostRange::address).cast()
        };
        if let (What::Gather { own }, [Some(send), Some(recv)]) = (call.what, &*call.memory) {
            let copied = recv.part(own, send.length()).is_some_and(|part| part.copy_from(send.whole()));
            debug_assert!(copied, "what is gathered has room for each rank's part");
        }
        let [from, into] = call.memory.each_ref().map(address);
        let (count, element) = (call.count, self.number(call.number));
        let in_place = self.constants.in_place as *const c_void;
        // MPI may have begun a part of it if it fails.
        call.state = State::Failed;
        let handle = &raw mut call.handle;
        // SAFETY: the memory is as long as the call says, and kept until it is over, as are the places; handles are
        // this library's.
        let code = unsafe {
            match (call.what, &*call.places) {
                (What::Send { to, tag }, _) => {
                    (self.functions.send)(from, count, element, to.cast_signed(), tag, communicator, handle)
                }
                (What::Receive { from, tag }, _) => {
                    let from = from.map_or(self.constants.any_source, u32::cast_signed);
                    (self.functions.receive)(into, count, element, from, tag, communicator, handle)
                }
                (What::Broadcast { root }, _) => {
                    let place = if from.is_null() { into } else { from };
                    broadcast(place, count, element, root.cast_signed(), communicator, handle)
                }
                (What::Gather { .. }, None) => {
                    gather(in_place, count, element, into, count, element, communicator, handle)
                }
                (What::Gather { .. }, Some(PartPlaces { counts, sides: [_, received] })) => {
                    let (counts, received) = (counts.as_ptr(), received.as_ptr());
                    gather_places(
                        in_place,
                        count,
                        element,
                        into,
                        counts,
                        received,
                        element,
                        communicator,
                        handle,
                    )
                }
                (What::Exchange, None) => {
                    exchange(from, count, element, into, count, element, communicator, handle)
                }
                (What::Exchange, Some(PartPlaces { counts, sides })) => {
                    let (counts, [sent, received]) =
                        (counts.as_ptr(), sides.each_ref().map(|side| side.as_ptr()));
                    exchange_places(
                        from,
                        counts,
                        sent,
                        element,
                        into,
                        counts,
                        received,
                        element,
                        communicator,
                        handle,
                    )
                }
                (What::Reduce { fold, root }, _) => {
                    let fold = self.fold(fold);
                    reduce(from, into, count, element, fold, root.cast_signed(), communicator, handle)
                }
                (What::ReduceAll { fold }, _) => {
                    reduce_all(from, into, count, element, self.fold(fold), communicator, handle)
                }
                (What::ReduceParts { fold }, _) => {
                    reduce_parts(from, into, count, element, self.fold(fold), communicator, handle)
                }
            }
        };
        self.check(code)?;
        call.state = State::Begun;
        Ok(())
    }

    fn number(&self, number: Number) -> Handle {
        self.constants.numbers.get(number as usize).copied().unwrap_or_default()
    }

    #[expect(clippy::expect_used, reason = "another operation would compute something else")]
    fn fold(&self, fold: Fold) -> Handle {
        if let Some(native) = fold.native() {
            return self.constants.folds.get(native).copied().unwrap_or_default();
        }
        let own = self.folds.iter().find(|(own, _)| *own == fold);
        own.expect("each operation that MPI has not is made with the library").1
    }

    /// True if a call has ended. Makes progress with all of them. If that fails MPI may still use its memory, and the
    /// call never ends.
    #[inline]
    pub(crate) fn has_ended(&self, call: &mut Call) -> Result<bool> {
        if call.state != State::Begun {
            return Ok(call.is_over());
        }
        let (mut flag, mut status) = (0, MaybeUninit::<Status>::uninit());
        // SAFETY: a request of this library's; a status is not larger.
        let code =
            unsafe { (self.functions.test)(&raw mut call.handle, &raw mut flag, status.as_mut_ptr().cast()) };
        self.check(code).inspect_err(|_| call.state = State::Failed)?;
        if flag != 0 {
            call.state = State::Over;
        }
        Ok(flag != 0)
    }

    /// Asks for a receive to end without a message, if none has come.
    pub(crate) fn cancel(&self, call: &mut Call) {
        if call.state == State::Begun {
            // SAFETY: a request of this library's, which has not ended. If that is refused, the receive ends as it
            // would have.
            let _ = unsafe { (self.functions.cancel)(&raw mut call.handle) };
        }
    }

    /// True if it has ended: nothing can be begun any more.
    pub(crate) fn has_ended_itself(&self) -> bool {
        let mut finalized = 0;
        // SAFETY: MPI answers this at any time.
        unsafe { (self.functions.finalized)(&raw mut finalized) };
        finalized != 0
    }

    /// Ends the library, if it is ours to end, on this thread: the standard wants the one that has begun it. It cannot
    /// be begun again. Some wait for all ranks: if one of those may be gone, another thread ends it, and this returns
    /// after `patience` at the latest.
    pub(crate) fn end(&self, patience: Option<Duration>) {
        let finalize = self.functions.finalize;
        if !self.owned || self.has_ended_itself() {
            return;
        }
        let Some(patience) = patience else {
            // SAFETY: no other thread calls the library any more.
            unsafe { finalize() };
            return;
        };
        let (tell, told) = channel();
        let thread = std::thread::Builder::new().spawn(move || {
            // SAFETY: as above.
            unsafe { finalize() };
            // The other thread may have gone on.
            let _ = tell.send(());
        });
        if thread.is_ok() {
            let _ = told.recv_timeout(patience);
        }
    }

    fn check(&self, code: c_int) -> Result {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = ([0; 1024], 0);
        // SAFETY: MPI writes at most as many characters as any of its implementations has room for.
        unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &raw mut length) };
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        let text = String::from_utf8_lossy(text.get(..end).unwrap_or(&[])).into_owned();
        Err(Failure::new(Code::Unavailable, format!("MPI says: {text}")))
    }
}

/// The constants of a library.
///
/// # Safety
///
/// The library is an MPI.
unsafe fn constants(library: *mut c_void) -> Result<Constants> {
    // SAFETY: as the caller promises.
    let is_open_mpi = unsafe { !libc::dlsym(library, c"ompi_mpi_comm_world".as_ptr()).is_null() };
    if !is_open_mpi {
        return Ok(Constants {
            world: 0x4400_0000,
            errors_return: 0x5400_0001,
            any_source: -2,
            in_place: usize::MAX,
            numbers: [
                0x4c00_010d,
                0x4c00_0137,
                0x4c00_013b,
                0x4c00_0238,
                0x4c00_023c,
                0x4c00_0439,
                0x4c00_043d,
                0x4c00_083a,
                0x4c00_083e,
                0x4c00_040a,
                0x4c00_080b,
                0x4c00_1041,
            ],
            folds: [0x5800_0003, 0x5800_0004, 0x5800_0002, 0x5800_0001],
        });
    }
    let of = |name: &CStr| -> Result<Handle> {
        // SAFETY: an object that the library exports, whose address is the handle.
        unsafe { symbol(library, name) }
    };
    Ok(Constants {
        world: of(c"ompi_mpi_comm_world")?,
        errors_return: of(c"ompi_mpi_errors_return")?,
        any_source: -1,
        in_place: 1,
        numbers: [
            of(c"ompi_mpi_byte")?,
            of(c"ompi_mpi_int8_t")?,
            of(c"ompi_mpi_uint8_t")?,
            of(c"ompi_mpi_int16_t")?,
            of(c"ompi_mpi_uint16_t")?,
            of(c"ompi_mpi_int32_t")?,
            of(c"ompi_mpi_uint32_t")?,
            of(c"ompi_mpi_int64_t")?,
            of(c"ompi_mpi_uint64_t")?,
            of(c"ompi_mpi_float")?,
            of(c"ompi_mpi_double")?,
            of(c"ompi_mpi_c_double_complex")?,
        ],
        folds: [
            of(c"ompi_mpi_op_sum")?,
            of(c"ompi_mpi_op_prod")?,
            of(c"ompi_mpi_op_min")?,
            of(c"ompi_mpi_op_max")?,
        ],
    })
}

/// The functions of a library.
///
/// # Safety
///
/// The library is an MPI.
unsafe fn functions(library: *mut c_void) -> Result<Functions> {
    // SAFETY: the types are those of the MPI standard.
    unsafe {
        Ok(Functions {
            send: symbol(library, c"MPI_Isend")?,
            receive: symbol(library, c"MPI_Irecv")?,
            broadcast: symbol(library, c"MPI_Ibcast")?,
            gather: symbol(library, c"MPI_Iallgather")?,
            exchange: symbol(library, c"MPI_Ialltoall")?,
            gather_places: symbol(library, c"MPI_Iallgatherv")?,
            exchange_places: symbol(library, c"MPI_Ialltoallv")?,
            reduce: symbol(library, c"MPI_Ireduce")?,
            reduce_all: symbol(library, c"MPI_Iallreduce")?,
            reduce_parts: symbol(library, c"MPI_Ireduce_scatter_block")?,
            test: symbol(library, c"MPI_Test")?,
            cancel: symbol(library, c"MPI_Cancel")?,
            group_of: symbol(library, c"MPI_Comm_group")?,
            include: symbol(library, c"MPI_Group_incl")?,
            free_group: symbol(library, c"MPI_Group_free")?,
            create: symbol(library, c"MPI_Comm_create_group")?,
            set_handler: symbol(library, c"MPI_Comm_set_errhandler")?,
            create_op: symbol(library, c"MPI_Op_create")?,
            error_string: symbol(library, c"MPI_Error_string")?,
            rank: symbol(library, c"MPI_Comm_rank")?,
            size: symbol(library, c"MPI_Comm_size")?,
            level: symbol(library, c"MPI_Query_thread")?,
            finalize: symbol(library, c"MPI_Finalize")?,
            finalized: symbol(library, c"MPI_Finalized")?,
        })
    }
}

/// The failure of a process whose program has finalised MPI.
pub(crate) fn finalized() -> Failure {
    let message = "the program has finalised MPI, which cannot be begun again; release all channels and devices before \
                   MPI_Finalize, and make none afterwards";
    Failure::new(Code::FailedPrecondition, message)
}

/// Initialises a library unless that was done. Whether it is ours then.
///
/// # Safety
///
/// The library is an MPI.
unsafe fn begin(library: *mut c_void) -> Result<bool> {
    // SAFETY: the types are those of the MPI standard, and MPI answers both questions at any time.
    unsafe {
        let ask = |name| -> Result<bool> {
            let ask: AskOne = symbol(library, name)?;
            let mut flag = 0;
            ask(&raw mut flag);
            Ok(flag != 0)
        };
        // An MPI that has ended was initialised too, and takes most calls for a reason to abort the job.
        if ask(c"MPI_Finalized")? {
            return Err(finalized());
        }
        if ask(c"MPI_Initialized")? {
            return Ok(false);
        }
        let init: Init = symbol(library, c"MPI_Init_thread")?;
        let mut given = 0;
        let code = init(std::ptr::null_mut(), std::ptr::null_mut(), THREAD_MULTIPLE, &raw mut given);
        if code != 0 {
            return Err(missing(&format!("its library could not be initialised (MPI_Init_thread: {code})")));
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
