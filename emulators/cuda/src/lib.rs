// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! CUDA's driver interface in software, and strict: a library that takes the place of `libcuda.so`.
//!
//! ```text
//! cargo build -p emulator-cuda
//! mkdir l; ln -s $PWD/target/debug/libemulator_cuda.so l/libcuda.so
//! LD_LIBRARY_PATH=l iree-run-module --device=cuda …
//! ```
//!
//! Clients are unmodified: IREE's own CUDA driver is the first. Kernels are PTX, interpreted:
//!
//! * [`ptx`] reads and decodes a module. What it does not know is refused there, with the instruction's text:
//!   tensor cores, textures, calls, asynchronous copies to shared memory. Types of registers, qualifiers,
//!   and the target that an instruction needs are checked as PTX's manual says, and a refusal names its section.
//! * [`simt`] runs a grid, block after block, in warps of 32 lanes.
//! * [`driver`] has the objects: contexts, streams, events, memory, modules, graphs.
//! * [`ffi`] is the C interface, where pointers of a program are followed. Memory of a device is accessed in
//!   `simt/access.rs` and by the copies of `driver/stream.rs`.
//!
//! # Strict
//!
//! A stream is a thread. With a seed, it waits before an operation as long as its numbers say; blocks of a grid run
//! in another order, and so do nodes of a graph that no edge orders. Memory of a device is at addresses that the
//! host cannot access, is filled with nonsense, and an address that was freed is never used again. Handles are no
//! addresses.
//!
//! What CUDA leaves undefined, or allows although it bites, is refused or reported: each
//! [`Rule`](driver::report::Rule) has a name, a count, and at first a line on the standard error stream. The source of
//! a result is what NVIDIA's reference of the driver interface says of the function.
//!
//! The variable `EMULATOR_CUDA` has [`Options`](driver::options::Options), with commas between them, such as
//! `seed=7,pending=100,fault=illegal-address@3,counts`. A program changes them with `emulator_cuda_control(TEXT)`,
//! reads a rule's or a function's count with `emulator_cuda_count(NAME)`, and all with `emulator_cuda_counts`.
//!
//! # What is not modelled
//!
//! Races between threads of a block: its warps run one after the other, up to a barrier. Time: a kernel takes as
//! long as its interpretation. The default stream of each thread is the default stream. Capture of streams, arrays,
//! textures, handles for other processes and virtual memory management are not there: `cuGetProcAddress` does not
//! find them.
//!
//! Lanes are computed with AVX2 and FMA; a processor of x86-64 without them is refused.

pub mod driver;
pub mod ffi;
pub mod ptx;
pub mod random;
pub mod simt;
