// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A small ELF file such as IREE's compiler makes, with every part where a test can change it.

#[allow(dead_code, reason = "some tests execute nothing")]
pub(crate) mod machine;
#[allow(dead_code, reason = "some tests execute nothing")]
pub(crate) mod memory;

/// The file's parts: one segment each to be read, executed and written.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) code: Vec<u32>,
    pub(crate) data: Vec<u32>,
    /// Place, information, addend.
    pub(crate) relocations: Vec<[u32; 3]>,
    pub(crate) dynamic: Vec<[u32; 2]>,
    /// Section numbers of symbols, with names; the second is where they are.
    pub(crate) symbols: Vec<(&'static str, u32, u16)>,
    /// More program headers, of this type, empty.
    pub(crate) headers: Vec<u32>,
}

pub(crate) const CODE: u32 = 0x1000;
pub(crate) const DATA: u32 = 0x2000;
pub(crate) const DYNAMIC: u32 = 0x3000;
pub(crate) const QUERY: &str = "iree_hal_executable_library_query";

const READ: u32 = 4;
const EXECUTE: u32 = 5;
const WRITE: u32 = 6;

impl Parts {
    pub(crate) fn new(code: &[u32]) -> Self {
        Self {
            code: code.to_vec(),
            data: vec![0; 4],
            relocations: Vec::new(),
            dynamic: Vec::new(),
            symbols: vec![(QUERY, CODE, 1)],
            headers: Vec::new(),
        }
    }

    /// The file.
    #[expect(clippy::too_many_lines, reason = "a file, field after field")]
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut names = vec![0];
        let mut symbols = vec![0; 16];
        for &(name, value, section) in &self.symbols {
            symbols.extend((names.len() as u32).to_le_bytes());
            symbols.extend([value, 0].map(u32::to_le_bytes).as_flattened());
            symbols.extend([0x12, 0]);
            symbols.extend(section.to_le_bytes());
            names.extend(name.as_bytes());
            names.push(0);
        }
        names.resize(names.len().next_multiple_of(4), 0);
        // The first segment: headers, hash table, symbols, names, relocations.
        let headers = 4 + self.headers.len();
        let hash_at = 52 + 32 * headers as u32;
        let symbols_at = hash_at + 8;
        let names_at = symbols_at + symbols.len() as u32;
        let relocations_at = names_at + names.len() as u32;
        let relocations_length = 12 * self.relocations.len() as u32;
        let read_end = relocations_at + relocations_length;
        let mut dynamic = vec![
            [4, hash_at],
            [5, names_at],
            [10, names.len() as u32],
            [6, symbols_at],
            [11, 16],
            [30, 8],
            [0x6fff_fffb, 1],
        ];
        if relocations_length > 0 {
            dynamic.extend([[7, relocations_at], [8, relocations_length], [9, 12]]);
        }
        dynamic.extend(&self.dynamic);
        dynamic.push([0, 0]);
        let code_length = 4 * self.code.len() as u32;
        let data_length = 4 * self.data.len() as u32;
        let dynamic_length = 8 * dynamic.len() as u32;
        let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut words = |values: &[u32]| file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        words(&[3 | 243 << 16, 1, 0, 52, 0, 2, 52 | 32 << 16, headers as u32, 0]);
        // Type, place in the file, address twice, length in the file and in memory, flags, alignment.
        let load = |at: u32, address: u32, length: u32, memory: u32, flags: u32| {
            [1, at, address, address, length, memory, flags, 0x1000]
        };
        words(&load(0, 0, read_end, read_end, READ));
        words(&load(read_end, CODE, code_length, code_length, EXECUTE));
        // Zeros behind the data, up to where the dynamic section is, which is in the same segment.
        let data_at = read_end + code_length;
        let gap = DYNAMIC - DATA - data_length;
        let length = data_length + gap + dynamic_length;
        words(&load(data_at, DATA, length, length + 0x100, WRITE));
        let dynamic_at = data_at + data_length + gap;
        words(&[2, dynamic_at, DYNAMIC, DYNAMIC, dynamic_length, dynamic_length, WRITE, 4]);
        for kind in &self.headers {
            words(&[*kind, 0, 0, 0, 0, 0, READ, 1]);
        }
        words(&[1, 1 + self.symbols.len() as u32]);
        file.extend(symbols);
        file.extend(names);
        let mut words = |values: &[u32]| file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        words(self.relocations.as_flattened());
        words(&self.code);
        words(&self.data);
        words(&vec![0; gap as usize / 4]);
        words(dynamic.as_flattened());
        file
    }
}
