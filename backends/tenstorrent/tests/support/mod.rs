// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device below the engine that orders work for it, and IREE's kernels for it.

#![allow(dead_code, reason = "each test program uses some of it")]

#[path = "../../loader/tests/support/compiler.rs"]
pub(crate) mod compiler;
pub(crate) mod rules;

use emulator_tenstorrent::{Emulator, Options};
use emulator_testbench::Testbench;
use hal_backend::{
    Command, Device, Dispatch, Driver, Failure, HostLoader, HostProgram, HostRange, LoadRequest,
    MemoryRequest, Parameters, Place, Span, Workgroups,
};
use hal_semaphore::Semaphore;
use hal_tenstorrent::{Executable, FORMAT, Memory, TenstorrentDevice};
use std::path::PathBuf;
use std::process::Command as Program;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Tenstorrent = hal_tenstorrent::Tenstorrent<emulator_tenstorrent::Emulated>;

/// Executables of the host's, of which a card runs none.
pub(crate) struct NoLoader;

impl HostLoader for NoLoader {
    fn supports(&self, _: &str) -> bool {
        false
    }

    fn load(&self, _: &LoadRequest<'_>, _: usize) -> Result<Arc<dyn HostProgram>, Failure> {
        panic!("a card runs its own executables")
    }
}

/// The queues.
pub(crate) const COMPUTE: usize = 0;
pub(crate) const TRANSFER: usize = 1;

pub(crate) struct Bench {
    pub(crate) device: Arc<TenstorrentDevice>,
    engine: Testbench<TenstorrentDevice>,
}

/// A card whose chip is in a simulator's library.
pub(crate) const LIBRARY: &str = "ttsim";

/// Our own library, which was built with the tests, beside them.
pub(crate) fn our_library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libemulator_ttsim.so");
    assert!(library.exists(), "there is no {}", library.display());
    library
}

/// The program that loads libraries, which is built with the tests as an example.
fn server() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let server = program.ancestors().nth(2).unwrap().join("examples/ttsim_server");
    assert!(server.exists(), "there is no {}: `cargo test -p hal-tenstorrent` builds it", server.display());
    server
}

/// This program again, for some of its tests, on the chip of a library: the one that `LIBTTSIM` names, or else our own.
pub(crate) fn on_a_library(filters: &[&str]) -> Program {
    let mut command = Program::new(std::env::current_exe().unwrap());
    let library = std::env::var_os("LIBTTSIM").map_or_else(our_library, PathBuf::from);
    command.args(filters).env("HAL_TENSTORRENT_CARD", LIBRARY).env("LIBTTSIM", library);
    command.env("HAL_TTSIM_SERVER", server());
    command
}

/// This program again, for some of its tests, on another board than a p150.
pub(crate) fn on_a_board(mut command: Program, board: &str) -> Program {
    command.env(BOARD, board);
    command
}

/// This program again, for some of its tests, on the same card.
pub(crate) fn again(filters: &[&str]) -> Program {
    let mut command = Program::new(std::env::current_exe().unwrap());
    command.args(filters);
    command
}

/// All tests of a program but those that run it again, which are named after what they say.
const OTHERS: [&str; 2] = ["--skip", "gives_the_same"];

/// The other tests of this program, or those that are named, succeed on the library of a simulator, of which nothing
/// is known beforehand: the one that `LIBTTSIM` names, or else our own of this whole chip, whose controller does not
/// report what is there.
pub(crate) fn the_same_on_a_library(chip: &str, named: &[&str]) {
    let filters = if named.is_empty() { &OTHERS } else { named };
    succeed(on_a_library(filters).env("TENSTORRENT_SIM", chip).env(OWN_BOARD, ""));
}

/// The other tests of this program succeed on an n150.
pub(crate) fn the_same_on_an_n150() {
    succeed(&mut on_a_board(again(&OTHERS), "n150"));
}

/// Names the board that tests use which name none.
const BOARD: &str = "HAL_TENSTORRENT_BOARD";

/// The board that tests use which name none, if it is known before a card is open.
fn named_board() -> Option<String> {
    std::env::var(BOARD).ok()
}

/// The board that tests of emulated cards use which name none.
pub(crate) fn board() -> String {
    named_board().unwrap_or_else(|| "p150".to_owned())
}

/// How kernels with floats are compiled for a board: as much as its cores can do.
pub(crate) fn floats_for(board: &str) -> &'static [&'static str] {
    if board == "n150" { &compiler::PLAIN_FLOATS } else { &compiler::FLOATS }
}

/// Runs tests that must succeed.
pub(crate) fn succeed(command: &mut Program) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(!text(&output.stdout).contains("running 0 tests"), "{}", text(&output.stdout));
}

/// Set where tests that name a board get that of the library.
const OWN_BOARD: &str = "HAL_TENSTORRENT_OWN_BOARD";

/// Parameters of an emulated card that say which board it is.
const BOARDS: [&str; 4] = ["board", "columns", "rows", "banks"];

/// Parameters that every card takes.
const COMMON: [&str; 6] = ["tiles", "cores", "l1", "paging", "phases", "open_timeout"];

/// Opens the emulated card of a machine with these parameters, or the card that `HAL_TENSTORRENT_CARD` names with
/// those that it takes.
pub(crate) fn open(pairs: &[(&str, &str)]) -> Result<TenstorrentDevice, Failure> {
    let card = std::env::var("HAL_TENSTORRENT_CARD").unwrap_or_else(|_| "emulated".to_owned());
    let (path, given) = card.split_once('?').unwrap_or((&card, ""));
    // One that is only rehearsed with takes what a card takes.
    let is_emulated = path == LIBRARY || std::env::var_os("HAL_TENSTORRENT_CARD").is_none();
    let board = named_board();
    let named = pairs.iter().any(|(name, _)| *name == "board");
    let other = board.as_deref().filter(|_| !named).map(|board| ("board", board));
    let pairs = pairs.iter().copied().chain(other);
    let has_own_board = std::env::var_os(OWN_BOARD).is_some();
    let taken = pairs.filter(|(name, _)| {
        (is_emulated || COMMON.contains(name)) && !(has_own_board && BOARDS.contains(name))
    });
    let taken = taken.chain(given.split('&').filter_map(|pair| pair.split_once('=')));
    let mut parameters = Parameters::new("tenstorrent", taken);
    let device = Tenstorrent::create().open(path, &mut parameters)?;
    parameters.finish()?;
    Ok(device)
}

/// The machine that a card is opened on with these parameters, which are all of its own but the board.
pub(crate) fn emulator(pairs: &[(&str, &str)]) -> Arc<Emulator> {
    let board = board();
    let pairs = pairs.iter().copied().chain([("board", board.as_str())]);
    let options = Options::read(&mut Parameters::new("tenstorrent", pairs)).unwrap();
    Emulator::get(&options).unwrap()
}

/// Waits until this is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "not so for minutes: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The seed of a machine that no other test has.
fn seed() -> String {
    static MACHINES: AtomicU64 = AtomicU64::new(1);
    MACHINES.fetch_add(1, Ordering::Relaxed).to_string()
}

impl Bench {
    /// Of a machine that no other test has.
    pub(crate) fn new(pairs: &[(&str, &str)]) -> Self {
        Self::of(open(&[pairs, &[("seed", &seed())]].concat()).unwrap())
    }

    /// Two devices of the card of such a machine. The second stops what never ends after a second, so only such work
    /// may be given to it: a busy machine may take longer for any other.
    pub(crate) fn with_impatient(pairs: &[(&str, &str)]) -> (Self, Self) {
        let seed = seed();
        let patient = [pairs, &[("seed", &seed)]].concat();
        let impatient = [&patient[..], &[("timeout", "1")]].concat();
        (Self::of(open(&patient).unwrap()), Self::of(open(&impatient).unwrap()))
    }

    /// Of a device.
    pub(crate) fn of(device: TenstorrentDevice) -> Self {
        let device = Arc::new(device);
        let engine = Testbench::new(device.clone());
        Self { device, engine }
    }

    /// How kernels with floats are compiled for it.
    pub(crate) fn floats(&self) -> &'static [&'static str] {
        floats_for(self.device.card().board())
    }

    /// Submits a command to a queue; its timeline reaches 1.
    pub(crate) fn submit(&self, queue: usize, command: Command<TenstorrentDevice>) -> Semaphore {
        self.engine.submit(queue, command)
    }

    /// The outcome of a command.
    pub(crate) fn run(&self, command: Command<TenstorrentDevice>) -> Result<(), Failure> {
        self.engine.run(COMPUTE, command)
    }

    pub(crate) fn load(&self, file: &[u8]) -> Result<Arc<Executable>, Failure> {
        let request = LoadRequest { format: FORMAT, data: file, constants: &[] };
        self.device.load(&request, &NoLoader).map(|loaded| Arc::new(loaded.executable))
    }

    /// Memory of the card, with these bytes.
    pub(crate) fn memory(&self, bytes: &[u8]) -> Arc<Memory> {
        let memory = Arc::new(self.device.allocate(&MemoryRequest::new(0, bytes.len() as u64)).unwrap());
        self.write(&memory, 0, bytes);
        memory
    }

    pub(crate) fn write(&self, memory: &Arc<Memory>, offset: u64, bytes: &[u8]) {
        let source = host(bytes);
        let target = span(memory, offset, bytes.len() as u64);
        self.run(Command::Update { source, target }).unwrap();
    }

    pub(crate) fn read(&self, memory: &Arc<Memory>, offset: u64, length: u64) -> Vec<u8> {
        let range = HostRange::allocate(length, 64).unwrap();
        let target = Span { place: Place::Host(range.clone()), length };
        self.run(Command::Copy { source: span(memory, offset, length), target }).unwrap();
        contents(&range)
    }
}

/// Memory of the host with these bytes.
pub(crate) fn host(bytes: &[u8]) -> HostRange {
    let range = HostRange::allocate(bytes.len() as u64, 64).unwrap();
    assert!(range.write(0, bytes));
    range
}

pub(crate) fn contents(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}

pub(crate) fn span(memory: &Arc<Memory>, offset: u64, length: u64) -> Span<TenstorrentDevice> {
    Span { place: Place::Device(memory.clone(), offset), length }
}

pub(crate) fn whole(range: &HostRange) -> Span<TenstorrentDevice> {
    Span { place: Place::Host(range.clone()), length: range.length() }
}

/// A call of a function.
pub(crate) fn call(
    executable: &Arc<Executable>,
    function: usize,
    workgroups: [u32; 3],
    bindings: &[Span<TenstorrentDevice>],
) -> Command<TenstorrentDevice> {
    Command::Dispatch(Box::new(Dispatch {
        executable: executable.clone(),
        function,
        workgroup_size: [1; 3],
        workgroups: Workgroups::Count(workgroups),
        local_memory: 0,
        constants: Default::default(),
        bindings: bindings.iter().cloned().collect(),
    }))
}

pub(crate) fn bytes_of(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Numbers between -4 and 4 that are not round.
pub(crate) fn numbers(count: usize, seed: u16) -> Vec<f32> {
    let number = |index: usize| {
        let index = u16::try_from(index % 65_536).unwrap();
        f32::from(index.wrapping_mul(40_503).wrapping_add(seed)) / 8192.0 - 4.0
    };
    (0..count).map(number).collect()
}
