// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Packs executables that IREE's compiler made for Tenstorrent's cores into one container, of which each card runs
//! what it can.

use hal_tenstorrent::container::{Container, Variant};
use hal_tenstorrent_loader::{Cores, Extensions, extensions};
use std::fmt::Write as _;
use std::process::ExitCode;

const USAGE: &str = "\
usage: tenstorrent-pack -o FILE CORES[:EXTENSIONS]=EXECUTABLE...
       tenstorrent-pack --list FILE

Packs executables (embedded-elf-riscv_32, as iree-compile dumps them with --iree-hal-dump-executable-binaries-to)
into one container (tenstorrent-htt1). A card runs the first one that it can. All must have the same functions.

  CORES        blackhole, wormhole, or any
  EXTENSIONS   what it was compiled with, as in --iree-llvmcpu-target-cpu-features: +m,+f,+zba,+zbb.
               If they are left out, the executable's own attributes say it

  tenstorrent-pack -o model.htt blackhole:+m,+f,+zba,+zbb=blackhole.so wormhole:+m,+f=wormhole.so";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["--help" | "-h"] => Ok(format!("{USAGE}\n")),
        ["--list", file] => list(file),
        ["-o", file, variants @ ..] if !variants.is_empty() => pack(file, variants),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("tenstorrent-pack: {message}");
            ExitCode::FAILURE
        }
    }
}

fn read(file: &str) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{file} cannot be read: {error}"))
}

/// A line for each variant of a container.
fn list(file: &str) -> Result<String, String> {
    let bytes = read(file)?;
    Container::read(&bytes)
        .map(|container| lines(&container))
        .map_err(|failure| format!("{file}: {}", failure.message()))
}

fn lines(container: &Container<'_>) -> String {
    let mut text = String::new();
    for (number, variant) in container.variants.iter().enumerate() {
        // A string takes everything.
        let _ = writeln!(text, "variant {number}: {variant}, {} bytes", variant.elf.len());
    }
    text
}

/// An executable of the command line.
struct NamedExecutable<'a> {
    cores: Option<Cores>,
    extensions: Option<Vec<String>>,
    file: &'a str,
}

impl<'a> NamedExecutable<'a> {
    fn read(argument: &'a str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("{argument:?} {why}; it takes CORES[:EXTENSIONS]=EXECUTABLE (--help says more)")
        };
        let (kind, file) = argument.split_once('=').ok_or_else(|| wrong("names no file"))?;
        let (cores, extensions) =
            kind.split_once(':').map_or((kind, None), |(cores, names)| (cores, Some(names)));
        let cores = match cores {
            "any" => None,
            "wormhole" => Some(Cores::Wormhole),
            "blackhole" => Some(Cores::Blackhole),
            _ => return Err(wrong("is for cores that are not known (blackhole, wormhole, any)")),
        };
        let name = |name: &str| name.strip_prefix('+').map(str::to_owned);
        let names = |text: &str| -> Option<Vec<String>> {
            if text.is_empty() { Some(Vec::new()) } else { text.split(',').map(name).collect() }
        };
        let extensions =
            extensions.map(|text| names(text).ok_or_else(|| wrong("has an extension without a +")));
        Ok(Self { cores, extensions: extensions.transpose()?, file })
    }
}

/// Packs executables, and says what was packed.
fn pack(file: &str, arguments: &[&str]) -> Result<String, String> {
    let said =
        arguments.iter().map(|argument| NamedExecutable::read(argument)).collect::<Result<Vec<_>, _>>()?;
    let files = said.iter().map(|said| read(said.file)).collect::<Result<Vec<_>, _>>()?;
    let variants = said.iter().zip(&files).map(|(said, elf)| {
        let of = |why: String| format!("{}: {why}", said.file);
        let extensions = match &said.extensions {
            Some(declared) => declared.clone(),
            None => noted(elf).map_err(of)?,
        };
        let set = Extensions::of(extensions.iter().map(String::as_str));
        if let Some(cores) = said.cores {
            let there = cores.extensions();
            let missing = set.beyond(&there);
            if !missing.is_empty() {
                let missing = missing.join(", ");
                return Err(of(format!(
                    "the cores of {cores} lack {missing}; compile it without, or for other cores"
                )));
            }
        }
        Ok(Variant { cores: said.cores, extensions, elf })
    });
    let container = Container { variants: variants.collect::<Result<_, String>>()? };
    let bytes = container.write();
    // A file that a card would refuse is not written.
    Container::read(&bytes).map_err(|failure| failure.message().to_owned())?;
    std::fs::write(file, &bytes).map_err(|error| format!("{file} cannot be written: {error}"))?;
    Ok(lines(&container))
}

/// The extensions that an executable was compiled with, by its own attributes.
fn noted(elf: &[u8]) -> Result<Vec<String>, String> {
    let noted = extensions(elf).map_err(|error| error.to_string())?;
    let noted = noted.ok_or(
        "it has no attributes that say what it was compiled with; say it yourself, as blackhole:+m,+f",
    )?;
    Ok(noted.names().into_iter().filter(|name| *name != "i").map(str::to_owned).collect())
}
