// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables: what IREE's compiler makes for 32-bit RISC-V, as it will be in a tile's memory.

use crate::container::{self, Container};
use crate::generation::Generation;
use crate::kmd::Error;
use crate::product::Kind;
use crate::stub::{ENVIRONMENT, IMAGE, STACK, Stub, common};
use crate::tile::{Common, Patience, Tile, wait};
use hal_backend::{Code, Failure, Function, Inferred, LoadRequest, zeros};
use hal_tenstorrent_loader::library::{self, VERSION};
use hal_tenstorrent_loader::{Image, LoadError, Target, load};
use std::sync::OnceLock;

/// The format that a card runs.
pub const FORMAT: &str = "embedded-elf-riscv_32";

/// The least of a tile's memory that is left for everything else.
const REST: u32 = 512 << 10;

/// A loaded executable.
#[derive(Debug)]
pub struct Executable {
    generation: &'static Generation,
    image: Image,
    functions: Vec<LoadedFunction>,
}

/// A function, and the image for it.
#[derive(Debug)]
struct LoadedFunction {
    function: library::Function,
    /// The matrix product that it computes, if an engine can do that in its place.
    product: Option<Kind>,
    /// The image with which it works on more memory than a tile has, or why there is no such; made when it is needed
    /// first.
    paged: OnceLock<Result<Vec<u8>, Failure>>,
}

impl Executable {
    /// Loads one, and has a tile ask it what functions it has.
    pub(crate) fn load(
        request: &LoadRequest<'_>,
        tile: &Tile,
        epoch: u32,
        patience: Patience<'_>,
    ) -> Result<Self, Error> {
        let generation = tile.generation();
        let cores = generation.cores;
        let target = Target { cores, base: IMAGE, room: generation.l1 - IMAGE - REST };
        let image = match request.format {
            container::FORMAT => {
                let container = Container::read(request.data)?;
                let (number, variant) = container.choose(cores)?;
                load(variant.elf, target).map_err(|error| {
                    let failure = unfit(&error);
                    Failure::new(
                        failure.code(),
                        format!("variant {number}, {variant}: {}", failure.message()),
                    )
                })?
            }
            _ => load(request.data, target).map_err(|error| unfit(&error))?,
        };
        let library = query(tile, image.query(), image.bytes(), epoch, patience)?;
        // The tables of a library may be written by its own code: they are read where that ran.
        let mut memory = zeros(image.bytes().len())?;
        tile.read(IMAGE, &mut memory)?;
        let functions = library::functions(&memory, IMAGE, library)
            .map_err(|error| Failure::new(Code::Incompatible, error.to_string()))?;
        let entry = |function: library::Function| {
            let product = Kind::of(&function.name);
            LoadedFunction { function, product, paged: OnceLock::new() }
        };
        Ok(Self { generation, image, functions: functions.into_iter().map(entry).collect() })
    }

    /// Its functions, as a program sees them.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let describe = |LoadedFunction { function, .. }: &LoadedFunction| Function {
            name: function.name.clone(),
            bindings: function.bindings.into(),
            constants: function.constants.into(),
            workgroup_size: function.workgroup_size,
        };
        self.functions.iter().map(describe).collect()
    }

    /// The generation of its chip.
    pub(crate) fn generation(&self) -> &'static Generation {
        self.generation
    }

    fn entry(&self, number: usize) -> Result<&LoadedFunction, Failure> {
        self.functions.get(number).ok_or_else(|| {
            let message =
                format!("an executable with {} functions has no number {number}", self.functions.len());
            Failure::new(Code::OutOfRange, message)
        })
    }

    /// A function by its number.
    pub(crate) fn function(&self, number: usize) -> Result<&library::Function, Failure> {
        Ok(&self.entry(number)?.function)
    }

    /// The matrix product that a function computes, if an engine can do that in its place.
    pub(crate) fn product(&self, number: usize) -> Result<Option<Kind>, Failure> {
        Ok(self.entry(number)?.product)
    }

    /// The bytes for a tile's memory, from [`IMAGE`] on.
    pub(crate) fn image(&self) -> &[u8] {
        self.image.bytes()
    }

    /// The same for a function that works on more memory than a tile has.
    pub(crate) fn paged(&self, number: usize) -> Result<&[u8], Failure> {
        let LoadedFunction { function, paged, .. } = self.entry(number)?;
        let paged = paged.get_or_init(|| {
            let (bringers, room) = (Stub::new(self.generation).bringers, self.generation.l1 - IMAGE - REST);
            let paged = self.image.paged(function.address, bringers, room);
            paged.map(|paged| paged.bytes().to_vec()).map_err(|error| unfit(&error))
        });
        paged.as_deref().map_err(Clone::clone)
    }

    /// True if it stores less than whole words.
    pub(crate) fn has_narrow_stores(&self) -> bool {
        self.image.has_narrow_stores()
    }
}

fn unfit(error: &LoadError) -> Failure {
    let code = match error {
        LoadError::File(_) | LoadError::Code(_) => Code::Incompatible,
        _ => Code::ResourceExhausted,
    };
    Failure::new(code, error.to_string())
}

/// Has a tile call an executable's query function, and says what that returned.
fn query(tile: &Tile, function: u32, image: &[u8], epoch: u32, patience: Patience<'_>) -> Result<u32, Error> {
    tile.prepare()?;
    tile.write(IMAGE, image)?;
    tile.write_words(crate::stub::core_block(0), &[tile.generation().l1, 0, 0, 0, 0, 0])?;
    const { assert!(STACK < REST, "a stack at the end of memory is not in an executable's image") };
    let mut words = Common::default();
    words
        .set(common::FUNCTION, function)
        .set(common::ARGUMENTS, VERSION)
        .set(common::ARGUMENTS + 4, ENVIRONMENT);
    let launched = tile.launch(words, 1, epoch);
    launched.and_then(|()| wait(&[tile], epoch, patience))?;
    tile.result(1)
}

/// The format of some bytes: a container, which has no length of its own, or an ELF file of 32 bits for RISC-V,
/// which ends with the last of its tables and sections.
pub(crate) fn infer(data: &[u8]) -> Option<Inferred> {
    if data.get(4..8) == Some(container::IDENTIFIER.as_bytes()) {
        return Some(Inferred { format: container::FORMAT.to_owned(), length: data.len() as u64 });
    }
    const IDENTITY: &[u8] = b"\x7fELF\x01\x01\x01";
    const RISC_V: u32 = 243;
    let half = |at: usize| Some(u32::from(u16::from_le_bytes(*data.get(at..)?.first_chunk()?)));
    let word = |at: usize| Some(u64::from(u32::from_le_bytes(*data.get(at..)?.first_chunk()?)));
    if !data.starts_with(IDENTITY) || half(18)? != RISC_V {
        return None;
    }
    let (segments, sections) = (word(28)?, word(32)?);
    let (segment_count, section_count) = (u64::from(half(44)?), u64::from(half(48)?));
    let mut end = (segments + 32 * segment_count).max(sections + 40 * section_count);
    for index in 0..segment_count {
        let at = usize::try_from(segments + 32 * index).ok()?;
        end = end.max(word(at + 4)? + word(at + 16)?);
    }
    (end <= data.len() as u64).then(|| Inferred { format: FORMAT.to_owned(), length: end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_recognised_up_to_their_end() {
        let mut file = vec![0; 200];
        file[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        file[18] = 243;
        file[28] = 52;
        file[44] = 1;
        // One segment of 20 bytes at 90.
        file[56] = 90;
        file[68] = 20;
        assert_eq!(infer(&file), Some(Inferred { format: FORMAT.to_owned(), length: 110 }));
        assert_eq!(infer(&file[..100]), None, "cut off");
        assert_eq!(infer(&[]), None);
        file[4] = 2;
        assert_eq!(infer(&file), None, "of 64 bits");
    }
}
