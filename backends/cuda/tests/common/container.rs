// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables for CUDA, written as IREE's compiler writes them.

use flatbuffers::{FlatBufferBuilder, Push};
use hal_backend::container::slot;

/// A function to write.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) module: u32,
    pub(crate) kernel: String,
    pub(crate) name: Option<String>,
    pub(crate) block: Option<[u32; 3]>,
    pub(crate) shared: u32,
    pub(crate) constants: u32,
    pub(crate) bindings: usize,
}

impl Export {
    /// A function with blocks of so many threads.
    pub(crate) fn new(kernel: &str, threads: u32, bindings: usize, constants: u32) -> Self {
        Self {
            module: 0,
            kernel: kernel.to_owned(),
            name: None,
            block: Some([threads, 1, 1]),
            shared: 0,
            constants,
            bindings,
        }
    }
}

/// A structure of three words.
struct Block([u32; 3]);

impl Push for Block {
    type Output = Self;

    unsafe fn push(&self, to: &mut [u8], _: usize) {
        for (to, word) in to.chunks_mut(4).zip(self.0) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn size() -> usize {
        12
    }

    fn alignment() -> flatbuffers::PushAlignment {
        flatbuffers::PushAlignment::new(4)
    }
}

/// An executable.
pub(crate) fn build(modules: &[&str], exports: &[Export]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let exports: Vec<_> = exports
        .iter()
        .map(|export| {
            let kernel = builder.create_string(&export.kernel);
            let name = export.name.as_ref().map(|name| builder.create_string(name));
            let bindings = builder.create_vector(&vec![0_u64; export.bindings]);
            let table = builder.start_table();
            builder.push_slot_always(slot(1), kernel);
            builder.push_slot_always(slot(5), bindings);
            if let Some(name) = name {
                builder.push_slot_always(slot(7), name);
            }
            if let Some(block) = export.block {
                builder.push_slot_always(slot(2), Block(block));
            }
            builder.push_slot(slot(0), export.module, 0);
            builder.push_slot(slot(3), export.shared, 0);
            builder.push_slot(slot(4), export.constants, 0);
            builder.end_table(table)
        })
        .collect();
    let exports = builder.create_vector(&exports);
    let modules: Vec<_> = modules
        .iter()
        .map(|text| {
            let text = builder.create_string(text);
            let table = builder.start_table();
            builder.push_slot_always(slot(0), text);
            builder.end_table(table)
        })
        .collect();
    let modules = builder.create_vector(&modules);
    let table = builder.start_table();
    builder.push_slot_always(slot(0), exports);
    builder.push_slot_always(slot(1), modules);
    let root = builder.end_table(table);
    builder.finish(root, Some("CDA1"));
    with_header(builder.finished_data())
}

/// A FlatBuffer behind the header of IREE's executables.
pub(crate) fn with_header(flatbuffer: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"CDA1");
    bytes[8..16].copy_from_slice(&(flatbuffer.len() as u64).to_le_bytes());
    bytes.extend_from_slice(flatbuffer);
    bytes
}
