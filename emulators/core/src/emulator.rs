// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An emulator: a machine of cards as the system of this process, of other processes, and of a driver.
//!
//! A card's crate implements [`EmulatedMachine`], [`SupervisedMachine`] if the machine can answer for other processes,
//! and [`HostedMachine`] if its cards run host programs. [`Emulator`] and [`Emulated`] then give the machine to
//! everything outside.

use crate::devices::ShownDevices;
use crate::file::{Identity, reopen_held};
use crate::options::check_card;
use crate::process::{OwnProcess, Process};
use crate::remote::{self, Remote};
use crate::threads::Running;
use crate::{DeviceRange, Errno, Linux, ProgramHost, System, accel};
use hal_backend::memory_file::{memory_file, no_memory_file};
use hal_backend::{Code, DeviceInfo, Failure, HostProgram, HostRange, Parameter, Parameters};
use hal_kernel::registry::Registry;
use hal_kernel::{EmulatedCard, Emulation, MappedRange};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Cards and the kernel driver in front of them. The process that makes a request is an argument.
pub trait EmulatedMachine: Send + Sync + Sized + 'static {
    /// Everything that makes one machine differ from another.
    type Options: Clone + PartialEq + Send + 'static;

    /// Every machine of this process, by the process and the options: a forked process has none of its parent's
    /// threads.
    fn machines() -> &'static Registry<(u32, Self::Options), Emulator<Self>>;

    /// Checks that this host has what a machine with these options needs.
    fn check_host(options: &Self::Options) -> Result<(), Failure> {
        let _ = options;
        Ok(())
    }

    /// Makes a machine and starts its threads.
    fn start(options: Self::Options) -> Result<Running<Self>, Failure>;

    /// The options that the machine was made with.
    fn options(&self) -> &Self::Options;

    /// Opens a node for a process. The descriptor is for the process alone: a copy of it keeps the file open.
    fn open_node(&self, process: &dyn Process, path: &Path) -> Result<OwnedFd, Errno>;

    /// Opens a node for one file alone, where the driver knows `O_EXCL`.
    fn open_node_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let _ = path;
        Err(Errno::OPNOTSUPP)
    }

    /// Closes a descriptor, and releases what the last one kept.
    fn close_file(&self, file: OwnedFd);

    /// Answers a request.
    fn answer(
        self: &Arc<Self>,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno>;

    /// Maps memory at an offset of a file into this process.
    fn map_memory(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<HostRange, Errno>;

    /// Maps registers or a window at an offset of a file into this process.
    fn map_window(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        Ok(Arc::new(MappedRange::new(self.map_memory(file, length, offset)?)))
    }

    /// The text of an attribute in the file system.
    fn attribute_text(&self, path: &Path) -> Result<String, Errno>;

    /// The names in a folder of the file system.
    fn folder_names(&self, path: &Path) -> Result<Vec<String>, Errno>;

    /// The number of the card that an open file belongs to.
    fn card_of(&self, file: BorrowedFd<'_>) -> Option<usize>;

    /// The process that has a node for itself, for people.
    fn holder_of(&self, path: &Path) -> Option<String> {
        let _ = path;
        None
    }

    /// Why no card answers any more, for people.
    fn failure_cause(&self) -> Option<String> {
        None
    }

    /// Why the card of a node has stopped, for people.
    fn stop_cause(&self, node: &Path) -> Option<String> {
        let _ = node;
        None
    }
}

/// How a process opens a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// For one file alone, where the driver knows `O_EXCL`.
    pub is_exclusive: bool,
    /// Without a wait (`O_NONBLOCK`).
    pub is_nonblocking: bool,
}

/// What a request copies from the process's memory and to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentShape {
    /// How many bytes are read.
    pub input: usize,
    /// How many bytes the argument has; those that are not read are written when the request has been answered.
    pub length: usize,
    /// True if bytes that were read are written back when they have changed, and others written.
    pub is_output: bool,
}

impl ArgumentShape {
    /// As the request's number says, which `_IOR`, `_IOW` and `_IOWR` made.
    pub fn of_number(request: u32) -> Self {
        const IN: u32 = 1 << 30;
        const OUT: u32 = 2 << 30;
        let length = (request >> 16 & 0x3fff) as usize;
        let input = if request & IN != 0 { length } else { 0 };
        Self { input, length, is_output: request & OUT != 0 }
    }
}

/// What a process maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedKind {
    /// Memory, which is in the file.
    Memory,
    /// Registers: the machine answers each [access](SupervisedMachine::access).
    Registers,
}

/// An access of a process to registers that it has mapped.
#[derive(Debug)]
pub enum RegisterAccess<'a> {
    /// A read into these bytes.
    Read(&'a mut [u8]),
    /// A write of these bytes.
    Write(&'a [u8]),
}

/// A machine that also answers for other processes, as a supervisor does.
///
/// A process maps by itself: the memory behind an offset of an open file is in the file, so that the system maps it
/// without the emulator. Registers are mapped in the same way, but without rights, so that each access comes to the
/// emulator. Descriptors are the emulator's own duplicates of the process's.
pub trait SupervisedMachine: EmulatedMachine {
    /// Opens a node for a process.
    fn open_as(&self, process: &dyn Process, path: &Path, mode: OpenMode) -> Result<OwnedFd, Errno> {
        let _ = mode;
        self.open_node(process, path)
    }

    /// What a request of a process copies.
    fn argument_shape(
        &self,
        process: &dyn Process,
        request: u32,
        address: u64,
    ) -> Result<ArgumentShape, Errno> {
        let _ = (process, address);
        Ok(ArgumentShape::of_number(request))
    }

    /// Answers an access to registers that are mapped at an offset of a file. Fails if the mapping has been revoked:
    /// then the process gets the signal `SIGBUS`.
    fn access(&self, file: Identity, offset: u64, access: RegisterAccess<'_>) -> Result<(), Errno> {
        let _ = (file, offset, access);
        Err(Errno::FAULT)
    }

    /// True if registers are mapped, and programs may not unmap them anywhere: calls that unmap are intercepted.
    const MAPS_REGISTERS: bool = false;

    /// True if a mapping of registers may end or begin at an offset of a file, when part of it is unmapped.
    fn may_split(&self, file: Identity, offset: u64) -> bool {
        let _ = (file, offset);
        true
    }

    /// Checks that a process may map `length` bytes at an offset of an open file, and says what is there.
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<MappedKind, Errno>;

    /// Answers a write to a [live](ShownDevices::live) file. Returns how many bytes are taken.
    fn write_attribute(&self, path: &Path, bytes: &[u8]) -> Result<usize, Errno> {
        let _ = (path, bytes);
        Err(Errno::INVAL)
    }

    /// The numbers of the cards that are there.
    fn present_cards(&self) -> Vec<usize>;

    /// What the system shows of these cards, with numbers that the system gives to nodes.
    fn shown_devices(&self) -> ShownDevices;

    /// The node that an open file was opened by; nothing, if the file does not belong to this machine.
    fn node_of(&self, file: BorrowedFd<'_>) -> Option<PathBuf>;

    /// Releases closed files. Returns whether something is still open; the supervisor then calls it again later.
    fn release_closed_files(&self) -> bool;

    /// Waits until the closes are over that a program has made: a kernel's are when the call returns.
    fn end_closes(&self) {
        self.release_closed_files();
    }

    /// Wakes every request that sleeps, so that it checks whether it is [interrupted](crate::interrupt).
    fn wake_requests(&self);

    /// A line for each card with what it has done, for people.
    fn summary(&self) -> String;
}

/// A machine whose cards run host programs.
pub trait HostedMachine: SupervisedMachine {
    /// The driver that the machine is for, as URIs name it.
    const DRIVER: &'static str;

    /// The name that a list of devices shows.
    const DEVICE: &'static str;

    /// The parameters that [`read_options`](Self::read_options) takes.
    const PARAMETERS: &'static [Parameter];

    /// The driver's view of host programs.
    type Programs: Send + Sync + ?Sized;

    /// Takes the machine's options from the parameters of a URI.
    fn read_options(parameters: &mut Parameters<'_>) -> Result<Self::Options, Failure>;

    /// How many cards a machine has.
    fn cards(options: &Self::Options) -> usize;

    /// The driver's view of the programs that `keeper` keeps.
    fn card_programs(keeper: Arc<dyn ProgramHost>) -> Arc<Self::Programs>;

    /// The host programs of this machine.
    fn programs(&self) -> &dyn ProgramHost;
}

/// A machine with emulated cards. Its threads end when the last reference is dropped.
pub struct Emulator<M> {
    machine: Running<M>,
}

impl<M: EmulatedMachine> Emulator<M> {
    /// Returns the machine with these options, and starts it if there is none.
    pub fn get(options: &M::Options) -> Result<Arc<Self>, Failure> {
        // A machine that is ending is not returned: the next one starts beside it.
        M::machines()
            .open((std::process::id(), options.clone()), Instant::now(), |_| Self::start(options.clone()))
    }

    /// Starts a machine for the caller alone.
    pub fn new(options: M::Options) -> Result<Arc<Self>, Failure> {
        Self::start(options).map(|emulator| M::machines().private(emulator))
    }

    /// The machine that an open file belongs to.
    pub fn of(file: BorrowedFd<'_>) -> Option<Arc<Self>> {
        M::machines().find(|emulator| emulator.machine.card_of(file).is_some())
    }

    /// The options that the machine was made with.
    pub fn options(&self) -> &M::Options {
        self.machine.options()
    }

    fn start(options: M::Options) -> Result<Self, Failure> {
        Ok(Self { machine: M::start(options)? })
    }
}

impl<M> Deref for Emulator<M> {
    type Target = Arc<M>;

    fn deref(&self) -> &Arc<M> {
        &self.machine
    }
}

impl<M> fmt::Debug for Emulator<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulator").field("machine", &self.machine).finish()
    }
}

impl<M: EmulatedMachine> System for Emulator<M> {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open_node(&OwnProcess, path)
    }

    fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open_node_exclusive(path)
    }

    fn close(&self, file: OwnedFd) {
        self.machine.close_file(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.machine.answer(&OwnProcess, file, request, argument)
    }

    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        self.machine.map_memory(file, length, offset)
    }

    fn map_device(
        &self,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        self.machine.map_window(file, length, offset)
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        self.machine.attribute_text(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        self.machine.folder_names(path)
    }

    fn cause(&self) -> Option<String> {
        self.machine.failure_cause()
    }

    fn stopped(&self, node: &Path) -> Option<String> {
        self.machine.stop_cause(node)
    }

    fn holder(&self, path: &Path) -> Option<String> {
        self.machine.holder_of(path)
    }
}

impl<M: HostedMachine> ProgramHost for Emulator<M> {
    fn load(&self, program: Arc<dyn HostProgram>) -> u64 {
        self.machine.programs().load(program)
    }

    fn unload(&self, program: u64) {
        self.machine.programs().unload(program);
    }

    fn workers(&self) -> usize {
        self.machine.programs().workers()
    }
}

/// Checks that there is the folder of this process's descriptors, by which files of a machine are opened again.
fn check_descriptors(folder: &Path) -> Result<(), Failure> {
    std::fs::metadata(folder).map(drop).map_err(|error| {
        let message = format!(
            "emulated cards need {}, which is not there ({error}): mount /proc, in a container too",
            folder.display()
        );
        Failure::new(Code::FailedPrecondition, message)
    })
}

/// Checks that this process may make the calls that emulated cards are built on, which a sandbox may refuse.
pub fn check_calls() -> Result<(), Failure> {
    check_descriptors(Path::new("/proc/self/fd"))?;
    let file = memory_file("probe", 1).map_err(|errno| no_memory_file(1, errno))?;
    reopen_held(file.as_fd()).map_err(|errno| refused("flock and open", errno))?;
    let mut word = [7_u8; 8];
    let place = word.as_mut_ptr().expose_provenance() as u64;
    let moved = OwnProcess.read(place, &mut [0; 8]).and_then(|()| OwnProcess.write(place, &[7; 8]));
    moved.map_err(|errno| refused("process_vm_readv and process_vm_writev", errno))
}

/// The refusal of calls that emulated cards need.
fn refused(calls: &str, errno: Errno) -> Failure {
    let message = format!(
        "emulated cards need {calls}, which fail in this process: {errno}; let the sandbox (seccomp) allow them, and \
         see that neither descriptors nor memory are at their limit (ulimit -n, ulimit -v, ulimit -l)"
    );
    Failure::new(Code::FailedPrecondition, message)
}

/// Injects the machines `M` into a driver: cards under `emulated`, and cards that a supervisor emulates.
pub struct Emulated<M>(PhantomData<fn() -> M>);

impl<M: HostedMachine> Emulated<M> {
    fn card(emulator: Arc<Emulator<M>>, number: usize) -> EmulatedCard<M::Programs> {
        EmulatedCard {
            node: accel::path(number),
            programs: Some(M::card_programs(emulator.clone())),
            workers: emulator.workers(),
            system: emulator,
        }
    }
}

impl<M: HostedMachine> Emulation<M::Programs> for Emulated<M> {
    const PARAMETERS: &'static [Parameter] = M::PARAMETERS;

    fn devices() -> Vec<DeviceInfo> {
        let name =
            format!("emulated {}: software behind the kernel driver's interface, no hardware", M::DEVICE);
        vec![DeviceInfo { path: "emulated".to_owned(), name }]
    }

    fn find(
        _: &str,
        number: usize,
        parameters: &mut Parameters<'_>,
    ) -> Result<EmulatedCard<M::Programs>, Failure> {
        let options = M::read_options(parameters)?;
        check_card(M::DRIVER, number, M::cards(&options))?;
        check_calls()?;
        M::check_host(&options)?;
        Ok(Self::card(Emulator::get(&options)?, number))
    }

    fn of_file(file: BorrowedFd<'_>) -> Option<EmulatedCard<M::Programs>> {
        let emulator = Emulator::<M>::of(file)?;
        let number = emulator.card_of(file)?;
        Some(Self::card(emulator, number))
    }

    fn is_supervised() -> bool {
        remote::is_supervised()
    }

    fn supervisor() -> Result<Option<Arc<M::Programs>>, Failure> {
        let remote = Remote::connect(&Linux)?;
        Ok(remote.map(|remote| M::card_programs(remote)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_proc_is_told_what_is_missing() {
        assert!(check_descriptors(Path::new("/proc/self/fd")).is_ok());
        let refused = check_descriptors(Path::new("/absent/self/fd")).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("mount /proc"), "{refused}");
    }
}
