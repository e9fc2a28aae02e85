// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How the crate's own programs are linked. Each has the engine, every backend and IREE's runtime, and more than
//! half of it would be lines for backtraces: those are compressed. Crates that depend on this one are linked as
//! they like.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        // Not zstd: the standard library's backtraces do not read it.
        println!("cargo::rustc-link-arg=-Wl,--compress-debug-sections=zlib");
    }
}
