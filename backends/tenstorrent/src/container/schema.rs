// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Containers as FlatBuffers: `executable.fbs`, field by field.

use super::{Container, IDENTIFIER, VERSION, Variant};
use flatbuffers::FlatBufferBuilder;
use hal_backend::container::{ParseError, Table, required, slot};
use hal_tenstorrent_loader::Cores;

// The fields' numbers, which are their order in the schema.
const EXECUTABLE_VERSION: u16 = 0;
const EXECUTABLE_VARIANTS: u16 = 1;
const VARIANT_CORES: u16 = 0;
const VARIANT_EXTENSIONS: u16 = 1;
const VARIANT_ELF: u16 = 2;

pub(super) fn write(container: &Container<'_>) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let variants: Vec<_> = container
        .variants
        .iter()
        .map(|variant| {
            let elf = builder.create_vector(variant.elf);
            let names: Vec<_> = variant.extensions.iter().map(|name| builder.create_string(name)).collect();
            let extensions = builder.create_vector(&names);
            let cores = match variant.cores {
                None => 0_u8,
                Some(Cores::Wormhole) => 1,
                Some(Cores::Blackhole) => 2,
            };
            let table = builder.start_table();
            builder.push_slot_always(slot(VARIANT_ELF), elf);
            builder.push_slot_always(slot(VARIANT_EXTENSIONS), extensions);
            builder.push_slot(slot(VARIANT_CORES), cores, 0);
            builder.end_table(table)
        })
        .collect();
    let variants = builder.create_vector(&variants);
    let table = builder.start_table();
    builder.push_slot_always(slot(EXECUTABLE_VARIANTS), variants);
    builder.push_slot(slot(EXECUTABLE_VERSION), VERSION, 0);
    let root = builder.end_table(table);
    builder.finish(root, Some(IDENTIFIER));
    builder.finished_data().to_vec()
}

/// Everything but what the variants mean.
pub(super) fn read(bytes: &[u8]) -> Result<Container<'_>, ParseError> {
    hal_backend::container::read(bytes, Some(IDENTIFIER), |executable| {
        let version = executable.u16(EXECUTABLE_VERSION, 0)?;
        if version != VERSION {
            return Err(ParseError::incompatible(format!(
                "version {version}, and this driver reads version {VERSION}; pack it with this driver's \
                 tenstorrent-pack"
            )));
        }
        let variants = executable.tables(EXECUTABLE_VARIANTS, "variant", read_variant)?;
        Ok(Container { variants: required(variants, "variants")? })
    })
}

fn read_variant<'b>(variant: &mut Table<'_, '_, 'b>) -> Result<Variant<'b>, ParseError> {
    let cores = match variant.u8(VARIANT_CORES, 0)? {
        0 => None,
        1 => Some(Cores::Wormhole),
        2 => Some(Cores::Blackhole),
        number => {
            let text = format!("cores {number}; there are 0 (any), 1 (Wormhole) and 2 (Blackhole)");
            return Err(ParseError::incompatible(text));
        }
    };
    let extensions = variant.texts(VARIANT_EXTENSIONS, "extensions")?.unwrap_or_default();
    let elf = required(variant.bytes(VARIANT_ELF, "elf")?, "elf")?;
    Ok(Variant { cores, extensions, elf })
}
