// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ranks whose program uses MPI itself.

use crate::{SUM, kinds, run};
use hal_collectives::Kind;
use std::ffi::{CStr, CString, c_int, c_void};
use std::time::Duration;

type Handle = usize;
type Init = extern "C" fn(*mut c_int, *mut c_void) -> c_int;
type InitThread = extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;
type Transfer = extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Wait = extern "C" fn(*mut Handle, *mut c_void) -> c_int;

const THREAD_MULTIPLE: c_int = 3;

/// What a scenario does that begins MPI itself.
pub(crate) fn part(scenario: &str) -> Option<fn()> {
    match scenario {
        "program" => Some(program),
        "tags" => Some(tags),
        "beside" => Some(beside),
        "apart" => Some(apart),
        "over" => Some(over),
        "loaded" => Some(loaded),
        "any" => Some(any),
        _ => None,
    }
}

fn is_open_mpi() -> bool {
    std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some()
}

/// What the MPI that launched this process has under a name, as a program that is linked with it finds it.
fn address(name: &CStr) -> *mut c_void {
    let library = if is_open_mpi() { c"libmpi.so.40" } else { c"libmpich.so.12" };
    // SAFETY: a name; what a library does when it is loaded is its own.
    address_of(unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }, name)
}

fn address_of(library: *mut c_void, name: &CStr) -> *mut c_void {
    assert!(!library.is_null());
    // SAFETY: a library that stays loaded, and a name.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null());
    address
}

/// A function of that MPI.
///
/// # Safety
///
/// `F` is the type of the function with that name.
unsafe fn function<F: Copy>(name: &CStr) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: as wide, and of that type, as the caller promises.
    unsafe { std::mem::transmute_copy(&address(name)) }
}

/// A function of a library.
///
/// # Safety
///
/// `F` is the type of the function with that name.
unsafe fn function_of<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: as wide, and of that type, as the caller promises.
    unsafe { std::mem::transmute_copy(&address_of(library, name)) }
}

/// As a program begins MPI that has no threads.
pub(crate) fn begin() {
    // SAFETY: `int MPI_Init(int*, char***)`, which takes nothing for both; an alarm ends this process where it hangs.
    let begun = unsafe {
        libc::alarm(60);
        function::<Init>(c"MPI_Init")(std::ptr::null_mut(), std::ptr::null_mut())
    };
    assert_eq!(begun, 0);
}

/// As one that has threads.
pub(crate) fn begin_with_threads() {
    let mut given = 0;
    // SAFETY: `int MPI_Init_thread(int*, char***, int, int*)`; an alarm ends this process where it hangs.
    let begun = unsafe {
        libc::alarm(90);
        let begin: InitThread = function(c"MPI_Init_thread");
        begin(std::ptr::null_mut(), std::ptr::null_mut(), THREAD_MULTIPLE, &raw mut given)
    };
    assert_eq!((begun, given), (0, THREAD_MULTIPLE));
}

/// Ends MPI, when the program has let go of its groups.
pub(crate) fn end() {
    hal_collectives_mpi::wait_until_idle();
    finalize();
}

fn finalize() {
    // SAFETY: `int MPI_Finalize(void)`.
    let ended = unsafe { function::<extern "C" fn() -> c_int>(c"MPI_Finalize")() };
    assert_eq!(ended, 0);
}

/// The program begins MPI as one does that has no threads, and ends it when it has let go of its groups.
fn program() {
    begin();
    let group = hal_collectives_mpi::join(b"program", "program", Duration::from_secs(30)).unwrap();
    kinds(&*group);
    let (rank, ranks) = group.place().unwrap();
    let part = group.split(Some(rank % 2), 0).unwrap().unwrap();
    let members = part.place().unwrap().1;
    assert_eq!(run(&*part, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [members]);
    drop((part, group));
    hal_collectives_mpi::wait_until_idle();
    // And once more, before it ends.
    let group = hal_collectives_mpi::join(b"program", "program", Duration::from_secs(30)).unwrap();
    assert_eq!(run(&*group, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [ranks]);
    drop(group);
    end();
    is_refused();
}

/// The program has begun MPI and ended it before it joins its first group.
fn over() {
    begin();
    finalize();
    is_refused();
}

/// The program is linked with a library that the environment does not tell, and has begun it.
fn loaded() {
    let own = CString::new(std::env::args().nth(2).unwrap()).unwrap();
    // SAFETY: a name; what a library does when it is loaded is its own.
    let library = unsafe { libc::dlopen(own.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: `int MPI_Init(int*, char***)`, which takes nothing for both.
    let begun =
        unsafe { function_of::<Init>(library, c"MPI_Init")(std::ptr::null_mut(), std::ptr::null_mut()) };
    assert_eq!(begun, 0);
    let group = hal_collectives_mpi::join(b"loaded", "loaded", Duration::from_secs(30)).unwrap();
    kinds(&*group);
    let others = [c"libmpi.so.40", c"libmpich.so.12"].into_iter().filter(|name| **name != *own);
    for other in others {
        // SAFETY: as above, and nothing is loaded by it.
        let is_loaded =
            unsafe { !libc::dlopen(other.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD).is_null() };
        assert!(!is_loaded, "{other:?} is loaded beside {own:?}");
    }
    drop(group);
    hal_collectives_mpi::wait_until_idle();
    // SAFETY: `int MPI_Finalize(void)`.
    assert_eq!(unsafe { function_of::<extern "C" fn() -> c_int>(library, c"MPI_Finalize")() }, 0);
}

/// Whether a library that is loaded was begun and has ended.
pub(crate) fn has_ended(name: &CStr) -> bool {
    let mut flag = 0;
    // SAFETY: a name, and `int MPI_Finalized(int*)`.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        function_of::<extern "C" fn(*mut c_int) -> c_int>(library, c"MPI_Finalized")(&raw mut flag);
    }
    flag != 0
}

fn is_refused() {
    let refused = hal_collectives_mpi::join(b"refused", "refused", Duration::from_secs(30)).err().unwrap();
    assert!(refused.message().contains("finalised MPI"), "{refused}");
}

/// One rank is in no part of a group, and ends MPI as soon as it has said so; the others have parts.
fn apart() {
    begin();
    let who: u32 = std::env::args().nth(2).unwrap().parse().unwrap();
    let group = hal_collectives_mpi::join(b"apart", "apart", Duration::from_secs(30)).unwrap();
    let (rank, ranks) = group.place().unwrap();
    let color = (rank != who).then_some(u32::from(rank == (who + 1) % ranks));
    if let Some(part) = group.split(color, 0).unwrap() {
        let members = part.place().unwrap().1;
        assert_eq!(run(&*part, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [members]);
        let parts = part.split(Some(0), 0).unwrap().unwrap();
        assert_eq!(run(&*parts, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [members]);
    }
    drop(group);
    end();
}

/// The program's own collectives on `MPI_COMM_WORLD`, on a thread of its own, while groups get their communicators.
fn beside() {
    begin_with_threads();
    // SAFETY: `int MPI_Barrier(MPI_Comm)`.
    let barrier: extern "C" fn(Handle) -> c_int = unsafe { function(c"MPI_Barrier") };
    let world = if is_open_mpi() { address(c"ompi_mpi_comm_world") as Handle } else { 0x4400_0000 };
    let own = std::thread::spawn(move || (0..3_000).for_each(|_| assert_eq!(barrier(world), 0)));
    for number in 0..30_u32 {
        let id = number.to_le_bytes();
        let group = hal_collectives_mpi::join(&id, "beside", Duration::from_secs(30)).unwrap();
        let (rank, ranks) = group.place().unwrap();
        let sum = run(&*group, Kind::AllReduce(SUM), 1, &[rank + number], 1).unwrap();
        assert_eq!(sum, [ranks * number + ranks * (ranks - 1) / 2]);
        let part = group.split(Some(0), 0).unwrap().unwrap();
        assert_eq!(run(&*part, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [ranks]);
    }
    own.join().unwrap();
    end();
}

/// The program's own messages between the ranks: as many as there are tags.
struct Messages {
    words: Vec<u64>,
    requests: Vec<Handle>,
}

impl Messages {
    /// Begins to send or to receive, with a word and a request for each tag.
    fn begin(transfer: &CStr, peer: u32, tags: &[c_int], words: Vec<u64>) -> Self {
        let (world, byte) = if is_open_mpi() {
            (address(c"ompi_mpi_comm_world") as Handle, address(c"ompi_mpi_byte") as Handle)
        } else {
            (0x4400_0000, 0x4c00_010d)
        };
        // SAFETY: `MPI_Isend` and `MPI_Irecv` as the standard has them, with handles as words.
        let transfer: Transfer = unsafe { function(transfer) };
        let mut this = Self { requests: vec![0; tags.len()], words };
        for ((word, request), &tag) in this.words.iter_mut().zip(&mut this.requests).zip(tags) {
            let begun = transfer((&raw mut *word).cast(), 8, byte, peer.cast_signed(), tag, world, request);
            assert_eq!(begun, 0);
        }
        this
    }

    /// What they were, when all of them have ended.
    fn end(mut self) -> Vec<u64> {
        // SAFETY: `int MPI_Wait(MPI_Request*, MPI_Status*)`, with room for the status of any MPI.
        let wait: Wait = unsafe { function(c"MPI_Wait") };
        for request in &mut self.requests {
            let mut status = [0_u64; 16];
            assert_eq!(wait(request, (&raw mut status).cast()), 0);
        }
        self.words
    }
}

/// The program receives from any rank and with any tag, while groups are made and split after a first collective.
fn any() {
    begin_with_threads();
    let join = |id: &[u8]| hal_collectives_mpi::join(id, "any", Duration::from_secs(30)).unwrap();
    let first = join(b"first");
    let (rank, ranks) = first.place().unwrap();
    assert_eq!(run(&*first, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [ranks]);
    // `MPI_ANY_SOURCE`, which is `MPI_ANY_TAG` in Open MPI too.
    let from = if is_open_mpi() { u32::MAX } else { u32::MAX - 1 };
    let received = Messages::begin(c"MPI_Irecv", from, &[-1], vec![0]);
    for number in 0..5_u32 {
        let group = join(&number.to_le_bytes());
        assert_eq!(run(&*group, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [ranks]);
        let part = group.split(Some(0), 0).unwrap().unwrap();
        assert_eq!(run(&*part, Kind::AllReduce(SUM), 1, &[1], 1).unwrap(), [ranks]);
    }
    let sent = Messages::begin(c"MPI_Isend", (rank + 1) % ranks, &[3], vec![7]);
    assert_eq!((sent.end(), received.end()), (vec![7], vec![7]));
    drop(first);
    end();
}

/// The program sends messages with tags of all kinds while collectives go on: everybody gets their own.
fn tags() {
    begin_with_threads();
    let group = hal_collectives_mpi::join(b"tags", "tags", Duration::from_secs(30)).unwrap();
    let (rank, ranks) = group.place().unwrap();
    let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let tags: Vec<c_int> = (0..20).chain([100, 500, 700]).collect();
    for turn in 0..20_u32 {
        let word = |from: u32, tag: usize| u64::from(from) << 40 | u64::from(turn) << 20 | tag as u64;
        let words = |from| (0..tags.len()).map(|tag| word(from, tag)).collect::<Vec<u64>>();
        let sent = Messages::begin(c"MPI_Isend", to, &tags, words(rank));
        for words in [3, 20_000_usize] {
            let sum = run(&*group, Kind::AllReduce(SUM), words as u64, &vec![turn + rank; words], words);
            assert!(sum.unwrap() == vec![turn * ranks + ranks * (ranks - 1) / 2; words], "turn {turn}");
        }
        let got = Messages::begin(c"MPI_Irecv", from, &tags, vec![0; tags.len()]);
        assert_eq!(got.end(), words(from), "turn {turn}");
        sent.end();
    }
    drop(group);
    end();
}
