// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The link options of the crate's own programs. Each contains the engine, every backend and IREE's runtime, and
//! more than half of it would be line tables for backtraces: these are compressed. Dependent crates choose their
//! own options.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        // Not zstd: the standard library's backtraces do not read it.
        println!("cargo::rustc-link-arg=-Wl,--compress-debug-sections=zlib");
    }
}
