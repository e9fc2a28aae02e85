// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Containers of several variants, from files that IREE's compiler made, by the program that packs them, to a card
//! that runs one.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use hal_backend::{Code, Device, LoadRequest, Loaded};
use hal_tenstorrent::Executable;
use hal_tenstorrent::container::{Container, FORMAT, Variant};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};
use support::compiler::{FLOATS, INTEGERS, PLAIN_FLOATS, compile};
use support::{Bench, NoLoader, bytes_of, call, floats_of, numbers, span};

/// For Blackhole's cores, and for any.
fn files() -> &'static (Vec<u8>, Vec<u8>) {
    static FILES: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    FILES.get_or_init(|| {
        (compile("containers", "floats.mlir", &FLOATS), compile("containers", "bytes.mlir", &INTEGERS))
    })
}

/// A folder of a test's own, with both files.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let (floats, bytes) = files();
        std::fs::write(folder.join("floats.so"), floats).unwrap();
        std::fs::write(folder.join("bytes.so"), bytes).unwrap();
        Self(folder)
    }

    fn pack(&self, arguments: &[&str]) -> Output {
        let program = env!("CARGO_BIN_EXE_tenstorrent-pack");
        Command::new(program).args(arguments).current_dir(&self.0).output().unwrap()
    }

    fn container(&self) -> Vec<u8> {
        std::fs::read(self.0.join("out.htt")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn packed(output: &Output) -> &str {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn load(bench: &Bench, data: &[u8]) -> Result<(Arc<Executable>, Vec<String>), hal_backend::Failure> {
    let request = LoadRequest { format: FORMAT, data, constants: &[] };
    let Loaded { executable, functions } = bench.device.load(&request, &NoLoader)?;
    Ok((Arc::new(executable), functions.into_iter().map(|function| function.name).collect()))
}

#[test]
fn card_runs_the_variant_for_its_cores() {
    let folder = Folder::new("runs");
    let said = folder.pack(&["-o", "out.htt", "wormhole=bytes.so", "blackhole:+m,+f,+zba,+zbb=floats.so"]);
    let lines: Vec<&str> = packed(&said).lines().collect();
    assert!(lines[0].starts_with("variant 0: for Wormhole with m, zmmul, "), "{lines:?}");
    assert!(lines[1].starts_with("variant 1: for Blackhole with m, f, zba, zbb, "), "{lines:?}");
    let container = folder.container();
    assert_eq!(packed(&folder.pack(&["--list", "out.htt"])), text(&said.stdout));

    let bench = Bench::new(&[]);
    assert!(bench.device.supports(FORMAT, &NoLoader));
    let inferred = bench.device.infer_format(&container).unwrap();
    assert_eq!((inferred.format.as_str(), inferred.length), (FORMAT, container.len() as u64));
    let (executable, names) = load(&bench, &container).unwrap();
    let (_, alone) = {
        let request = LoadRequest { format: hal_tenstorrent::FORMAT, data: &files().0, constants: &[] };
        let loaded = bench.device.load(&request, &NoLoader).unwrap();
        ((), loaded.functions.into_iter().map(|function| function.name).collect::<Vec<_>>())
    };
    assert_eq!(names, alone);
    let x = numbers(1000, 3);
    let memory = bench.memory(&bytes_of(&x));
    let all = span(&memory, 0, 4000);
    bench.run(call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap();
    let found = floats_of(&bench.read(&memory, 0, 4000));
    assert!(found.iter().zip(&x).all(|(found, x)| (found - (x * x + x)).abs() < 1e-4));

    // A variant that any cores can run is chosen if it comes first.
    packed(&folder.pack(&["-o", "out.htt", "any=bytes.so", "blackhole=floats.so"]));
    let (_, names) = load(&bench, &folder.container()).unwrap();
    assert_ne!(names, alone);
}

#[test]
fn each_board_runs_its_own_variant_of_one_container() {
    let folder = Folder::new("boards");
    std::fs::write(folder.0.join("plain.so"), compile("plain", "floats.mlir", &PLAIN_FLOATS)).unwrap();
    // Neither is loaded where the other one is for: the order decides nothing.
    let said =
        folder.pack(&["-o", "out.htt", "wormhole:+m,+f=plain.so", "blackhole:+m,+f,+zba,+zbb=floats.so"]);
    assert!(packed(&said).starts_with("variant 0: for Wormhole with m, f, "), "{}", text(&said.stdout));
    let container = folder.container();
    let x = numbers(1000, 3);
    let [wormhole, blackhole, other] = ["n150", "p150", "p100a"].map(|board| {
        let bench = Bench::new(&[("board", board), ("tiles", "1")]);
        let (executable, _) = load(&bench, &container).unwrap();
        let memory = bench.memory(&bytes_of(&x));
        let all = span(&memory, 0, 4000);
        bench.run(call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap();
        bench.read(&memory, 0, 4000)
    });
    // Bit by bit: floats in software are the other cores' floats.
    assert_eq!(wormhole, blackhole);
    assert_eq!(other, blackhole);
    assert!(floats_of(&wormhole).iter().zip(&x).all(|(found, x)| (found - (x * x + x)).abs() < 1e-4));

    // Without its own, an n150 is told what there is, and runs what is for any cores.
    packed(&folder.pack(&["-o", "out.htt", "blackhole=floats.so"]));
    let bench = Bench::new(&[("board", "n150"), ("tiles", "1")]);
    let refused = load(&bench, &folder.container()).unwrap_err();
    assert_eq!(refused.code(), Code::Incompatible);
    for part in ["Wormhole, which have f, i, m, zicsr, zmmul", "one for Blackhole with"] {
        assert!(refused.message().contains(part), "{part:?} in {refused}");
    }
    packed(&folder.pack(&["-o", "out.htt", "any=floats.so", "any=plain.so"]));
    assert!(load(&bench, &folder.container()).is_ok(), "the second, since it lacks what the first takes");
}

#[test]
fn container_without_a_fitting_variant_is_refused_with_its_variants() {
    let bench = Bench::new(&[]);
    let (floats, bytes) = files();
    let variant = |cores, extensions: &[&str], elf| Variant {
        cores,
        extensions: extensions.iter().map(|&name| name.to_owned()).collect(),
        elf,
    };
    let wormhole = Some(hal_tenstorrent_loader::Cores::Wormhole);
    let container =
        Container { variants: vec![variant(wormhole, &["m"], bytes), variant(None, &["m", "c"], bytes)] };
    let refused = load(&bench, &container.write()).unwrap_err();
    assert_eq!(refused.code(), Code::Incompatible);
    for part in [
        "Blackhole, which have f, i, m,",
        "one for Wormhole with m",
        "they lack c, zca",
        "docs/tenstorrent.md",
    ] {
        assert!(refused.message().contains(part), "{part:?} in {refused}");
    }
    // One that says less of itself than its file does, although it would run.
    let container = Container { variants: vec![variant(None, &["m", "f"], floats)] };
    let refused = load(&bench, &container.write()).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("compiled with zba, zbb, and declared is m, f"), "{refused}");
    // One that is chosen, and then cannot be loaded.
    let mut broken = bytes.clone();
    broken[36] = 1;
    let container = Container { variants: vec![variant(None, &["m"], &broken)] };
    let refused = load(&bench, &container.write()).unwrap_err();
    assert_eq!(refused.code(), Code::Incompatible);
    for part in ["variant 0", "flags are 0x1"] {
        assert!(refused.message().contains(part), "{part:?} in {refused}");
    }
    let refused = load(&bench, bytes).unwrap_err();
    assert!(refused.message().contains("another kind of file"), "{refused}");
}

#[test]
fn files_that_cannot_be_packed_are_refused_and_nothing_is_written() {
    let folder = Folder::new("refuses");
    std::fs::write(folder.0.join("text.so"), "not an executable").unwrap();
    for (arguments, part) in [
        (&["-o", "out.htt", "blackhole:+m,+f=floats.so"][..], "compiled with zba, zbb, and declared is m, f"),
        (&["-o", "out.htt", "any:=bytes.so"], "compiled with m, zmmul, and declared is none"),
        (&["-o", "out.htt", "wormhole:+m,+f,+zba,+zbb=floats.so"], "floats.so: the cores of Wormhole lack "),
        (&["-o", "out.htt", "blackhole:+m,+d=bytes.so"], "the cores of Blackhole lack d"),
        (&["-o", "out.htt", "blackhole=text.so"], "text.so: it is not an ELF file"),
        (&["-o", "out.htt", "any:+m,+m=bytes.so"], "m is declared twice"),
        (&["-o", "out.htt", "any:m=bytes.so"], "an extension without a +"),
        (&["-o", "out.htt", "grayskull=bytes.so"], "blackhole, wormhole, any"),
        (&["-o", "out.htt", "blackhole"], "names no file"),
        (&["-o", "out.htt", "blackhole=nowhere.so"], "nowhere.so cannot be read"),
        (&["-o", "nowhere/out.htt", "any=bytes.so"], "nowhere/out.htt cannot be written"),
        (&["--list", "floats.so"], "floats.so: tenstorrent-htt1 executable: its "),
        (&["--list", "nowhere.htt"], "nowhere.htt cannot be read"),
    ] {
        let output = folder.pack(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
        assert!(!folder.0.join("out.htt").exists(), "{arguments:?}");
    }
    for arguments in [&[][..], &["-o", "out.htt"], &["blackhole=floats.so"]] {
        let output = folder.pack(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).starts_with("usage: tenstorrent-pack"), "{arguments:?}");
    }
    let help = folder.pack(&["--help"]);
    let help = packed(&help);
    assert!(help.starts_with("usage:"));
    // Its example is the documentation's.
    let example = help.lines().last().unwrap().trim();
    assert!(include_str!("../../../docs/tenstorrent.md").contains(&format!("\n{example}\n")), "{example}");
}
