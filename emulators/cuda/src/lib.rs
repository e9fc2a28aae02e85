// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! CUDA in software.

pub mod driver;
pub mod ffi;
pub mod ptx;
pub mod random;
pub mod simt;
