// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An emulator of the habanalabs kernel driver and of cards behind it, in this process.
//!
//! It answers as the driver does, by the driver's rules and with its errors, and executes submissions on
//! threads. It has no bandwidth, no firmware and none of the vendor's engines: it computes with IREE's host
//! executables, by a packet that no hardware has. It shows whether a program keeps the rules, and nothing about
//! how fast or how sound a real card is.
//!
//! It shares no logic with the backend: the rules are written a second time, from the kernel's side.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `cards=N` | 2 | how many cards there are, 1 to 8 |
//! | `generation=gaudi1\|gaudi2` | gaudi2 | the kind of the cards |
//! | `dram=SIZE` | 95.25g; 31.5g on Gaudi | memory of each card, such as `1536m`; it takes space when it is written |
//! | `register=on\|off` | off | the vendor's operation 99, which no upstream kernel has |
//! | `abi=drm\|old` | drm | the request numbers: of kernels since 6.7, or those of type `'H'` |
//! | `hz=N` | 250 | ticks of the kernel's clock in a second, 100 to 1000; a wait ends at a tick |
//! | `speed=N\|1/N` | 1 | how much faster timeouts (30 s, 600 s), watchdogs (30 s) and resets (1 s) pass |
//! | `workers=N` | one for each processor | threads that execute, 1 to 64 |
//! | `schedule=parallel\|seeded` | parallel | `seeded` executes on one thread, in an order drawn by `seed` |
//! | `seed=N` | 0 | the seed of `schedule=seeded` and of random faults |
//! | `machine=NAME` | none | the name under which this user's other processes see which cards are in use |
//! | `fault=FAULT` | none | a [fault](#faults) to inject; may be given several times |
//!
//! # Faults
//!
//! Each card counts by itself, from 1, for as long as the machine lives.
//!
//! | fault | what happens |
//! |---|---|
//! | `open:ERRNO:K` | the first K opens fail, with `EBUSY`, `EAGAIN` or `EPERM` |
//! | `alloc:N` | the N-th allocation of device memory fails with `ENOMEM` |
//! | `map:N` | the N-th mapping, of device or host memory, fails with `ENOMEM` |
//! | `submit:ERRNO:N`, `submit:ERRNO:N:K` | the N-th submission, or K from there, is refused |
//! | `hang:N` | the N-th submission that is accepted never ends, and times out |
//! | `reset:N` | the card is reset when the N-th submission is about to run: it, and all others, end with `EIO` |
//! | `partial:N` | the N-th transfer writes its first half, then the card is reset |
//! | `eintr:N` | of the waits that would sleep, every N-th is interrupted, with `EINTR` |
//! | `gone:N` | the outcome of a submission is forgotten after N more |
//! | `no-multi` | there is no wait for the first of several: `EPERM` |
//! | `no-signals` | the driver has no signals and waits of its own: `EINVAL` |
//! | `jitter` | each item of a queue ends up to 500 µs late, so that queues overtake each other |
//! | `malfunction:N` | two fatal errors come when the N-th submission is about to run; the card stays useless |
//! | `unplug:N` | the card is pulled out at the N-th request of its compute node: `ENODEV` from there on |
//! | `no-p2p` | devices cannot reach each other: what one exports cannot be mapped by another, `EPERM` |
//! | `short-info` | the kernel is older, and its description of the hardware ends before the page size |
//! | `fragmented` | no two free pages are adjacent: contiguous allocations get `ENOMEM` (`alloc_device_memory`) |
//!
//! A submission is refused with `EAGAIN`, `EBUSY`, `EINVAL` or `ENOMEM`.
//!
//! # Files
//!
//! | file | what is there |
//! |---|---|
//! | `machine.rs` | the cards of a machine: timeouts, watchdogs, resets |
//! | `card.rs` | a card's states, its queues, and the context of the file that has it open |
//! | `hardware.rs` | the numbers of each generation |
//! | `injection.rs`, `options.rs` | the parameters of a URI |
//! | `file.rs` | open and close |
//! | `request.rs` | the driver's entry points, and its requests |
//! | `info.rs`, `buffers.rs`, `submit.rs`, `signals.rs`, `wait.rs`, `interrupt.rs`, `memory.rs` | the requests |
//! | `sync.rs`, `completions.rs` | sync objects, monitors, fences and completion queues |
//! | `blocks.rs` | blocks of registers that a process may see |
//! | `space.rs`, `dmabuf.rs` | device addresses, and memory that is shared with other devices |
//! | `engine.rs` | the workers |
//! | `packets.rs`, `packets/transfers.rs`, `parser.rs` | packets, their transfers, and the checks before |
//! | `sysfs.rs`, `debugfs.rs` | the file system |
//! | `programs.rs` | host programs, and the packet that calls one |
//! | `supervised.rs` | the machine for other processes and for the driver |
//!
//! # Rules
//!
//! Every rule of the driver has a name, such as `rule(cs-sequence)`, by which the source cites it.
//! `emulators/gaudi/rules.md` lists the function of the kernel that each was read in, the kernel's versions,
//! and the test of the emulator.
//!
//! # What is not modelled
//!
//! Networks, which no driver of the kernel's own enables, and so collective waits; attestation and the rest of
//! the firmware; the page sizes of the host's memory; the state of a device in creation. Requests for these are
//! refused. So are, when they run, packets that write to the registers of engines that compute, and repetition and
//! waits of the queue itself (`REPEAT`, `WAIT`), as no public source says what they do.
//!
//! A supervisor (`emulators/supervisor`) shows one machine to many processes. Without one, processes that share
//! a machine's name see that a card is taken, and nothing else of each other: not a reset, and not that a
//! dma-buf holds a card whose process has ended.

mod arbiter;
mod blocks;
mod buffers;
mod card;
mod completions;
mod debugfs;
mod dmabuf;
mod engine;
mod file;
mod hardware;
mod info;
mod injection;
mod interrupt;
mod machine;
mod memory;
mod opener;
mod options;
mod packets;
mod parser;
pub mod programs;
mod request;
mod signals;
mod space;
mod strides;
mod submit;
mod supervised;
mod sync;
mod sysfs;
mod wait;

pub use card::Counts;
pub use machine::Machine;
pub use options::Options;

use hal_gaudi_abi::uapi::event;

/// A machine with emulated cards. Its threads end when the last reference is dropped.
pub type Emulator = emulator_core::Emulator<Machine>;

/// Emulated Gaudi cards, to be injected into the driver.
pub type Emulated = emulator_core::Emulated<Machine>;

impl Machine {
    /// The counts of a card; zeros, if there is none of that number.
    pub fn counts(&self, card: usize) -> Counts {
        self.lock().cards.find(card).map(card::Card::counted).unwrap_or_default()
    }

    /// The last error in a card's commands, for people.
    pub fn complaint(&self, card: usize) -> Option<String> {
        self.lock().cards.find(card)?.complaints.last().map(str::to_owned)
    }

    /// A card's firmware reports an error that only a reset mends; nothing, if there is none of that number.
    pub fn report_error(&self, card: usize) {
        let mut state = self.lock();
        if state.cards.find(card).is_some() {
            self.fail(
                &mut state,
                card,
                event::USER_ENGINE_ERROR | event::DEVICE_RESET,
                ("error-events", "an error that a test asked for"),
            );
        }
    }

    /// Pulls a card out; nothing, if there is none of that number.
    pub fn pull_out(&self, card: usize) {
        let mut state = self.lock();
        if state.cards.find(card).is_some() {
            self.unplug(&mut state, card);
        }
    }
}
