// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An emulator of tt-kmd, Tenstorrent's kernel driver, with simulated Blackhole or Wormhole cards behind it, in
//! this process.
//!
//! It answers as the driver does, by the driver's rules and with its errors (module 2.0 to 2.10). Behind its
//! windows is a [simulated chip](emulator_chip), whose tiles execute on threads of this process. It shares no
//! logic with a backend: it cannot name one. It shows whether a program keeps the rules, and nothing about how
//! fast or how sound a real card is.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `cards=N` | 1 | how many cards there are, 1 to 8 |
//! | `board=p100a\|p150\|n150\|blackhole\|wormhole` | p150 | the kind of the cards |
//! | `columns=MASK` | the first 12 of 14 | the physical columns of tiles that a p100a or p150 has, a bit each |
//! | `rows=MASK` | the first 9 of 10 | the physical rows of tiles that an n150 has, a bit each |
//! | `banks=MASK` | all of the board's | the DRAM banks, a bit each |
//! | `module=2.MINOR` | 2.10 | the version of the kernel module, from 2.0; older ones lack calls |
//! | `report=FILE` | none | a file that gets a line for each card when the machine ends: what was done, how often |
//! | `workers=N` | one for each processor | threads that execute, 1 to 64 |
//! | `schedule=parallel\|seeded` | parallel | `seeded` executes on one thread, in an order drawn by `seed` |
//! | `seed=N` | 0 | the seed of `schedule=seeded` and of random faults |
//! | `fault=FAULT` | none | a [fault](#faults) to inject; may be given several times |
//!
//! `blackhole` and `wormhole` are whole chips whose controllers do not report what is there, as in the vendor's
//! simulators. A card of a simulator's library is what that says, unless a board is named.
//!
//! # Faults
//!
//! Each card counts by itself, from 1, for as long as the machine lives.
//!
//! | fault | what happens |
//! |---|---|
//! | `windows:N` | another program has all of the smallest windows (2 MiB; of an n150, 1 MiB) but N: `ENOMEM` |
//! | `no-large-windows` | no windows of 4 GiB: `EINVAL`; of an n150, others have all but the smallest: `ENOMEM` |
//! | `reset:N` | another program resets the card when the N-th tile starts: files and mappings are dead |
//! | `hang:N` | the N-th tile that starts never executes anything |
//! | `stuck:N` | the N-th tile that starts cannot be put into reset again: writes to its reset register are lost |
//! | `harvested:N` | the N-th configured window shows a tile that is fused off: an access loses the device |
//! | `flip:N` | the last bit of the N-th read of more than four bytes is wrong |
//! | `unplug:N` | the card is pulled out at the N-th request: `ENODEV` from there on |
//!
//! # A simulator's library
//!
//! The chip of `tenstorrent://ttsim` is in a simulator's library, which the variable `LIBTTSIM` names. Such a library
//! ends its process where a rule is broken. So another program loads it, `tenstorrent-ttsim` of this crate: it is found
//! beside the program that opens the device, where programs are looked for, or where `HAL_TTSIM_SERVER` says. When it
//! ends, the device is lost, and the library's last words are the reason. Its tiles execute when the host looks for
//! their end, on one thread, and nothing is counted.
//!
//! # Files
//!
//! | file | what is there |
//! |---|---|
//! | `machine.rs` | the cards of a machine; files; resets; the workers that execute tiles |
//! | `request.rs` | the driver's entry points, and its requests |
//! | `emulated.rs` | the cards as they are injected into the driver |
//! | `window.rs` | windows and regions, mapped |
//! | `host_memory.rs` | memory of the host that a card may reach |
//! | `sysfs.rs` | the cards in the file system |
//! | `supervised.rs` | the machine for other processes |
//! | `silicon.rs` | the chip behind the driver: in this process, or in a library |
//! | `library.rs`, `protocol.rs`, `server.rs` | a chip in a simulator's library, which another process has loaded |
//! | `injection.rs`, `options.rs` | the parameters of a URI |
//!
//! # What is not modelled
//!
//! Accesses of the chip to memory of the host: buffers and pinned pages have addresses for it, and a transfer to one is
//! refused by name. Nor power, and start-up times. Only emulated devices of the same process import a window's dma-buf.
//! In this process an exclusive open does not wait, but fails with `EAGAIN` at once, and an access to a mapping that
//! was revoked fails with `ENODEV`; another process gets `SIGBUS`.

mod emulated;
mod host_memory;
mod injection;
mod library;
mod machine;
mod options;
pub mod protocol;
mod request;
mod server;
mod silicon;
mod supervised;
mod sysfs;
mod window;

pub use emulated::Emulated;
pub use library::{SERVER, SERVER_VARIABLE};
pub use machine::{Counts, Machine};
pub use options::Options;
pub use server::serve;

/// A machine with emulated cards. Its threads end when the last reference is dropped.
pub type Emulator = emulator_core::Emulator<Machine>;
