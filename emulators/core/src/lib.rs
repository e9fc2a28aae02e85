// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parts that emulators of kernel drivers and their cards share.
//!
//! An emulator implements [`System`] with the bytes of a kernel driver: it validates as the kernel does, and
//! shares no logic with the driver above. Its crate depends on the ABI crate of its device and on this one, and
//! cannot name the driver.
//!
//! # What an emulator is made of
//!
//! | module | what it gives an emulator |
//! |---|---|
//! | [`drm`] | the rules that the kernel's core has for every request, before a driver sees it |
//! | [`accel`] | the paths where accelerators are listed and opened |
//! | [`devices`] | what the system shows of devices: on the bus, in their class |
//! | [`file`](mod@file) | open files, and when the last descriptor and mapping of one is gone |
//! | [`view`] | memory behind the offsets of open files, which processes map by themselves |
//! | [`process`] | the process that asks: its memory and descriptors, reached as a kernel reaches them |
//! | [`claim`] | what another process sees of a device that is in use |
//! | [`dmabuf`] | memory that goes to other devices and processes |
//! | [`backing`] | whether memory of this process is part of a file or another process's memory |
//! | [`remote`] | host executables that a device runs in another process |
//! | [`emulator`] | the machine as a system, as a supervisor's machine, and injected into a driver |
//! | [`interrupt`] | ending a request for a signal that its process gets |
//! | [`machine`] | one lock, workers that execute, a clock, places to sleep |
//! | [`share`] | host executables: how workers share a dispatch |
//! | [`threads`] | the threads of a machine |
//! | [`complaints`] | what went wrong on a card, for people |
//! | [`options`], [`injection`] | the parameters of a URI: how to execute, and which faults to inject |
//!
//! # What an emulator is called where
//!
//! | name | what it is | who implements it |
//! |---|---|---|
//! | [`EmulatedMachine`] | a machine with cards, and the kernel driver in front of them | each emulator's crate |
//! | [`SupervisedMachine`] | the same, for other processes as well | each emulator's crate |
//! | [`HostedMachine`] | a machine whose cards run host programs | Gaudi's, Cloud AI 100's |
//! | [`Emulator`] | a running machine: the [`System`] on which a driver opens cards | this crate |
//! | [`Emulation`](hal_kernel::Emulation) | a driver's view: finds the machine that a URI describes | below |
//! | [`Emulated`] | the `Emulation` of machines with host programs, which `hal-driver` gives to a driver | this crate |
//!
//! The emulator itself adds its device: states, requests, memory, queues, and the rules of its kernel driver.
//! Each such rule cites the kernel's function; an emulator has no rule that is not in the kernel's source.

pub mod accel;
pub mod backing;
mod card_memory;
pub mod claim;
pub mod complaints;
pub mod devices;
pub mod dmabuf;
pub mod drm;
pub mod emulator;
pub mod file;
pub mod injection;
pub mod interrupt;
pub mod machine;
pub mod options;
pub mod process;
pub mod remote;
pub mod share;
pub mod threads;
pub mod view;

pub use emulator::{
    ArgumentShape, Emulated, EmulatedMachine, Emulator, HostedMachine, MappedKind, OpenMode, RegisterAccess,
    SupervisedMachine,
};
pub use hal_kernel::{DeviceRange, Errno, Linux, ProgramHost, System, borrow, clock, identity, map_shared};
pub use process::{OwnProcess, PAGE, Process, zeroed};
