// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bindings to IREE's runtime C API, generated from its headers when this crate is built.
//!
//! The repository contains nothing of IREE: the build script reads the headers of the release that the workspace
//! pins (or of `IREE_SOURCE_DIR`), with the defines of the linked libraries, and wraps the headers' inline
//! functions so that Rust can call them. The crate's test compares the layouts of structures that the driver fills
//! in with the C compiler's.
//!
//! There is no safe code here on purpose: `hal-driver` states what IREE promises and requires, in one place for
//! each kind of object.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    missing_docs,
    clippy::all,
    unsafe_op_in_unsafe_fn
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        static hal_sys_layout: [usize; 0];
    }

    /// Rust and the C compiler agree on every size and offset that the driver relies on.
    #[test]
    fn layouts_are_the_c_compilers() {
        let rows: &[(&str, usize)] = include!(concat!(env!("OUT_DIR"), "/layout.rs"));
        let table = &raw const hal_sys_layout as *const usize;
        for (at, (name, ours)) in rows.iter().enumerate() {
            // SAFETY: the C table has one entry for each row; both are made from the same list.
            let theirs = unsafe { table.add(at).read() };
            assert_eq!(*ours, theirs, "{name}");
        }
        assert!(rows.len() > 50);
    }
}
