// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A chip in a simulator's library (`libttsim.so`), which another process has loaded.
//!
//! Such a library ends its process when a rule is broken. So another program, [`SERVER`], loads it and answers
//! over a socket. When that process ends, its last output is the reason why nothing answers any more.
//!
//! The chip's time passes only on request. A host that waits for it reads a word again and again: each such
//! read lets more clocks pass than the one before.

use crate::protocol::{LONGEST, Regions, Request};
use emulator_chip::{BLACKHOLE, BarAddress, Board, Family, WORMHOLE};
use hal_backend::{Code, Failure};
use hal_tenstorrent_abi::uapi::VENDOR;
use parking_lot::Mutex;
use rustix::net::SendFlags;
use std::io::{Error, ErrorKind, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::thread::JoinHandle;

/// The program that loads a library.
pub const SERVER: &str = "tenstorrent-ttsim";
/// The variable with the path of that program, if it is neither beside this one nor in `PATH`.
pub const SERVER_VARIABLE: &str = "HAL_TTSIM_SERVER";

/// How many clocks pass at the first read of a word, and at most at a repeated one.
const CLOCKS: (u32, u32) = (256, 1 << 20);
/// How much of a process's output is kept.
const KEPT: usize = 4096;

/// A process with a library.
#[derive(Debug)]
pub(crate) struct SimulatorProcess {
    path: PathBuf,
    family: &'static Family,
    state: Mutex<SimulatorState>,
    /// The reason why it ended.
    ended: OnceLock<String>,
}

#[derive(Debug)]
struct SimulatorState {
    stream: UnixStream,
    process: Child,
    /// Joined at the end, when it has read the whole output.
    output: Option<JoinHandle<String>>,
    regions: Regions,
    /// The word that was read last, and how many clocks pass when it is read again.
    watched: Option<BarAddress>,
    clocks: u32,
}

/// The end of a process's output.
fn listen(mut pipe: PipeReader) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}

/// A board, as `TENSTORRENT_SIM` names it.
fn described(board: &Board) -> String {
    let (model, lines) = (board.model().name(), board.family().lines.name);
    format!("{model},{lines}={:#x},banks={:#x}", board.lines(), board.banks())
}

/// The path of the program that loads libraries.
fn server() -> PathBuf {
    let named = std::env::var_os(SERVER_VARIABLE).map(PathBuf::from);
    let beside = || {
        let program = std::env::current_exe().ok()?;
        Some(program.with_file_name(SERVER)).filter(|path| path.is_file())
    };
    named.or_else(beside).unwrap_or_else(|| PathBuf::from(SERVER))
}

impl SimulatorProcess {
    /// Starts a process with a library. `board` is what it is asked for, if anything.
    pub(crate) fn start(library: &Path, board: Option<Board>) -> Result<Self, Failure> {
        let path = library.to_owned();
        let server = server();
        let wrong = |error: Error| {
            let advice = match error.kind() {
                ErrorKind::NotFound => format!(
                    "build it with cargo build --release --package hal-tenstorrent, and name it by {SERVER_VARIABLE}"
                ),
                _ => format!("{SERVER_VARIABLE} names another"),
            };
            let message = format!("{} cannot be started: {error}; {advice}", server.display());
            Failure::new(Code::FailedPrecondition, message)
        };
        let (stream, theirs) = UnixStream::pair().map_err(wrong)?;
        let (reader, writer) = std::io::pipe().map_err(wrong)?;
        let mut command = Command::new(&server);
        command.arg(&path).stdin(OwnedFd::from(theirs));
        command.stdout(writer.try_clone().map_err(wrong)?).stderr(writer);
        // For a library of ours: the board, and that a broken rule ends the process, as with the vendor's.
        command.env("TENSTORRENT_SIM_VIOLATIONS", "exit");
        if let Some(board) = &board {
            command.env("TENSTORRENT_SIM", described(board));
        }
        let process = command.spawn().map_err(wrong)?;
        // The command has the other ends of the socket and the pipe, which must be the process's alone.
        drop(command);
        let output = Some(std::thread::spawn(move || listen(reader)));
        let regions = Regions::default();
        let state = SimulatorState { stream, process, output, regions, watched: None, clocks: CLOCKS.0 };
        let mut simulator =
            Self { path, family: &BLACKHOLE, state: Mutex::new(state), ended: OnceLock::new() };
        let answered = simulator.request(|state| {
            state.regions = Regions::receive(&mut state.stream)?;
            Ok(state.regions.identity)
        });
        let unusable = |why| Failure::new(Code::FailedPrecondition, why);
        let found = answered.map_err(unusable)?;
        let path = simulator.path.display();
        let family = identified(found).ok_or_else(|| {
            unusable(format!(
                "{path} simulates {found:#010x}, which is no chip that is known: name a library for Blackhole or \
                 Wormhole"
            ))
        })?;
        if let Some(board) = board.filter(|board| board.family() != family) {
            return Err(unusable(format!(
                "{path} simulates a {}, and a {} has a {}: leave board= out, or name one with such a chip",
                family.name,
                board.model().name(),
                board.family().name
            )));
        }
        simulator.family = family;
        Ok(simulator)
    }

    /// The kind of chip that it simulates.
    pub(crate) fn family(&self) -> &'static Family {
        self.family
    }

    /// Makes a request; fails with the reason if the process has ended.
    fn request<T>(
        &self,
        request: impl FnOnce(&mut SimulatorState) -> std::io::Result<T>,
    ) -> Result<T, String> {
        let mut state = self.state.lock();
        if let Some(why) = self.ended.get() {
            return Err(why.clone());
        }
        request(&mut state).map_err(|error| {
            let why = state.end(&self.path, &error);
            self.ended.get_or_init(|| why).clone()
        })
    }

    /// The reason why it ended, if it has.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    pub(crate) fn read(&self, from: BarAddress, bytes: &mut [u8]) -> Result<(), String> {
        self.request(|state| {
            state.pass(from, bytes.len())?;
            let start = state.bus(from);
            for (at, piece) in (start..).step_by(LONGEST).zip(bytes.chunks_mut(LONGEST)) {
                state.send(&Request::Read(at, length(piece)).encode())?;
                state.stream.read_exact(piece)?;
            }
            Ok(())
        })
    }

    pub(crate) fn write(&self, to: BarAddress, bytes: &[u8]) -> Result<(), String> {
        self.request(|state| {
            state.watched = None;
            let start = state.bus(to);
            for (at, piece) in (start..).step_by(LONGEST).zip(bytes.chunks(LONGEST)) {
                let header = Request::Write(at, length(piece)).encode();
                state.send(&[&header, piece].concat())?;
            }
            Ok(())
        })
    }
}

/// The kind of chip that has this identification, which is its first word on the bus.
fn identified(identity: u32) -> Option<&'static Family> {
    let known = |family: &&Family| u32::from(family.device) << 16 | u32::from(VENDOR) == identity;
    [&BLACKHOLE, &WORMHOLE].into_iter().find(known)
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

impl SimulatorState {
    /// The address on the bus.
    fn bus(&self, place: BarAddress) -> u64 {
        let [first, second, third] = self.regions.starts;
        let base = match place.bar {
            0 => first,
            2 => second,
            _ => third,
        };
        base.saturating_add(place.offset)
    }

    /// Sends all of some bytes. A closed connection is an error, and no signal to this program.
    fn send(&self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Lets time pass before a word is read: the more often it is read, the more.
    fn pass(&mut self, from: BarAddress, length: usize) -> std::io::Result<()> {
        if length != 4 {
            self.watched = None;
            return Ok(());
        }
        let again = self.watched.replace(from) == Some(from);
        self.clocks = if again { (self.clocks * 2).min(CLOCKS.1) } else { CLOCKS.0 };
        self.send(&Request::Clock(self.clocks).encode())
    }

    /// The reason why nothing answers: how the process ended, and its last output.
    fn end(&mut self, path: &Path, error: &Error) -> String {
        // After any error of the stream, no request can be made any more.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        // Does nothing to a process that has ended by itself; without it, the wait for another one would not
        // end.
        let _ = self.process.kill();
        let status = self.process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let output = self.output.take().and_then(|output| output.join().ok()).unwrap_or_default();
        let output = if output.is_empty() {
            format!("it said nothing ({error})")
        } else {
            format!("it said: {output}")
        };
        format!("the process with the simulator {} ended ({status}); {output}", path.display())
    }
}

impl Drop for SimulatorState {
    fn drop(&mut self) {
        // The process is not needed any more, whatever it does.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(output) = self.output.take() {
            let _ = output.join();
        }
    }
}
