// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An emulator of the qaic kernel driver and of Cloud AI 100 cards behind it, in this process.
//!
//! It answers as the driver does, by the driver's rules and with its errors, and executes queued work on
//! threads. It has no bandwidth, no firmware and none of the vendor's cores: it computes with IREE's host
//! executables, by [networks](programs) that no device understands. It shows whether a program keeps the rules,
//! and nothing about how fast or how sound a real card is.
//!
//! It shares no logic with a backend: it cannot name one. Each rule of the kernel names the function that it
//! was read in, and `emulators/qaic/rules.md` has them in a table.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `cards=N` | 1 | how many cards there are, 1 to 8 |
//! | `cores=N` | 16 | cores of each card, 1 to 64; a network takes one or more |
//! | `dram=SIZE` | 32g | memory of each card; it takes space when it is written |
//! | `segment=SIZE` | none | the device sees host memory in pieces of this size, an element each, as without an IOMMU |
//! | `counter=int\|size_t` | size_t | how the kernel counts an object's memory; before 6.14 `int`, wrong beyond 2 GiB |
//! | `crc=on\|off` | on | whether the device wants checksums on its control channel |
//! | `restarts=on\|off` | on | `off`: a kernel before 6.19, where a `crash` takes the whole card |
//! | `mitigation=on\|off` | on | `off`: a kernel that takes every interrupt, for comparison |
//! | `datapath_polling=on\|off` | off | of the kernel module: channels are polled and do not interrupt |
//! | `datapath_poll_interval_us=N` | 100 | of the kernel module: microseconds between two polls |
//! | `control_resp_timeout_s=N` | 60 | of the kernel module: seconds that the device has for an answer |
//! | `wait_exec_default_timeout_ms=N` | 5000 | of the kernel module: milliseconds of a wait that says none |
//! | `speed=N\|1/N` | 1 | how much faster the two timeouts above and resets (1 s) pass |
//! | `workers=N` | one for each processor | threads that execute, 1 to 64 |
//! | `schedule=parallel\|seeded` | parallel | `seeded` executes on one thread, in an order drawn by `seed` |
//! | `seed=N` | 0 | the seed of `schedule=seeded` and of random faults |
//! | `fault=FAULT` | none | a [fault](#faults) to inject; may be given several times |
//!
//! # Faults
//!
//! Each card counts by itself, from 1, for as long as the machine lives.
//!
//! | fault | what happens |
//! |---|---|
//! | `boot:K` | the first K opens find a device that has not booted: `ENODEV` |
//! | `alloc:N` | the N-th buffer object finds no memory: `ENOMEM` |
//! | `control-full:N` | the control channel has no room for the N-th message, and `EAGAIN` comes after 2 s |
//! | `control-lost:N` | the answer to the N-th message is lost: `ETIMEDOUT` |
//! | `control-crc:N` | the answer to the N-th message has a wrong checksum: `EPIPE`, if the device wants checksums |
//! | `control-wrong:N` | the N-th message gets the answer of another: `EINVAL`, although the device has obeyed it |
//! | `bad-channel:N` | the N-th activation is answered with channel 255: `ENODEV` |
//! | `deactivate:N` | the device refuses the N-th deactivation: `ECANCELED`, and the channel is the user's again |
//! | `lost-msi:N` | the N-th interrupt is lost: waits time out until another one comes |
//! | `status:N` | the N-th completion has an error, which the kernel logs: waits succeed |
//! | `eintr:N` | of the waits that would sleep, every N-th is interrupted, with `EINTR` |
//! | `hang:N` | the N-th call of a network never ends: waits time out |
//! | `deadlock:N` | the N-th call does not signal its outputs' semaphore: waits for them time out |
//! | `crash:N` | the cores crash at the N-th call and restart: only its channel is lost; with `restarts=off`, a reset |
//! | `reset:N` | the card is reset when the N-th call of a network is about to run |
//! | `unplug:N` | the card is pulled out at the N-th request: `ENODEV` from there on |
//!
//! # Files
//!
//! | file | what is there |
//! |---|---|
//! | `machine.rs` | the cards of a machine; resets |
//! | `bus.rs` | the kernel's and the device's shared part: host memory by bus addresses, registers |
//! | `kernel/` | the driver, a file for each kind of request, and its interrupts, restarts and events |
//! | `device/` | the device: control server, loaded images, DMA bridge, semaphores, networks, cores, crashes |
//! | `injection.rs`, `options.rs` | the parameters of a URI |
//! | `supervised.rs` | the machine for other processes and for the driver |
//!
//! # What is not modelled
//!
//! Memory of other devices (PRIME), partitions, crash dumps, the delivery of events to programs (they are kept
//! for [`Machine::uevents`]), the boot of a device (MHI, Sahara), time synchronisation, reports of reliability,
//! single-MSI mode, link errors, linked-list transfers, power states of networks, networks within resource groups,
//! and all that takes firmware.
//!
//! A network of the emulator has one memory. Consecutive calls wait for it, by a semaphore of the network's
//! own, so that the inputs and outputs of one do not overlap with the next.

mod bus;
mod device;
mod injection;
mod kernel;
mod machine;
mod options;
pub mod programs;
mod supervised;

pub use machine::{Counts, Machine};
pub use options::{MemoryCounter, Module, Options};

/// A machine with emulated cards. Its threads end when the last reference is dropped.
pub type Emulator = emulator_core::Emulator<Machine>;

/// Emulated Cloud AI 100 cards, to be injected into the driver.
pub type Emulated = emulator_core::Emulated<Machine>;

impl Machine {
    /// The counts of a card; zeros, if there is none of that number.
    pub fn counts(&self, card: usize) -> Counts {
        self.lock().cards.find(card).map(machine::Card::counted).unwrap_or_default()
    }

    /// The last events that the kernel has sent about a card, oldest first: `offline`, `online`, or `change`
    /// with a channel and its state.
    pub fn uevents(&self, card: usize) -> Vec<String> {
        self.lock().cards.find(card).map(|card| card.uevents.sent()).unwrap_or_default()
    }

    /// The last error of a card's user, for people.
    pub fn complaint(&self, card: usize) -> Option<String> {
        self.lock().cards.find(card)?.complaints.last().map(str::to_owned)
    }
}
