// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's own CUDA driver runs unmodified modules on the library, and gives what `local-sync` gives.
//!
//! `iree-run-module` comes from PyPI, into a folder under `target`, the first time; the compiler is the project's,
//! which `cargo xtask setup` installs.

#![expect(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use emulator_cuda::random::Random;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn target() -> PathBuf {
    // Tests are run from a folder in it.
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// A folder of the tests' own.
fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("iree-on-cuda");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must succeed.
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    output
}

/// IREE's `iree-run-module`, installed by whichever test needs it first.
fn runner() -> &'static Path {
    static RUNNER: OnceLock<PathBuf> = OnceLock::new();
    RUNNER.get_or_init(|| {
        let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("requirements.txt");
        let folder = target().join("iree-runtime");
        let wanted = std::fs::read_to_string(&requirements).unwrap();
        let stamp = folder.join("requirements.txt");
        if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
            succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
            // The programs need nothing of Python's.
            let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--requirement"];
            succeed(Command::new(folder.join("bin/python")).args(install).arg(&requirements));
            std::fs::write(stamp, wanted).unwrap();
        }
        let versions = std::fs::read_dir(folder.join("lib")).unwrap();
        let programs = versions
            .map(|version| version.unwrap().path().join("site-packages/iree/_runtime_libs/iree-run-module"));
        programs.into_iter().find(|program| program.is_file()).expect("the package has iree-run-module")
    })
}

/// Compiles a program for CUDA or the host, unless that was done.
fn compile(source: &Path, device: &str) -> PathBuf {
    let compiler = target().join("python/bin/iree-compile");
    assert!(compiler.exists(), "`cargo xtask setup` installs {}", compiler.display());
    let name = source.file_stem().unwrap().to_str().unwrap();
    let module = scratch().join(format!("{name}.{device}.vmfb"));
    let stamp = module.with_extension("mlir");
    let wanted = std::fs::read_to_string(source).unwrap();
    if !module.exists() || std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        let flags = match device {
            "cuda" => ["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"].as_slice(),
            _ => &[
                "--iree-hal-target-device=local",
                "--iree-hal-local-target-device-backends=llvm-cpu",
                "--iree-llvmcpu-target-cpu=host",
            ],
        };
        succeed(Command::new(compiler).args(flags).arg(source).arg("-o").arg(&module));
        std::fs::write(stamp, wanted).unwrap();
    }
    module
}

/// Which floats a function gets.
#[derive(Clone, Copy)]
enum Range {
    /// From -0.5 to 0.5.
    Small,
    /// From -2 to 2.
    Wide,
    /// From 0.1 to 4.1.
    Positive,
}

/// Numbers for an argument of this type, such as `4x8xf32`; the second of whole numbers is from 1 to 7.
fn values(kind: &str, position: usize, random: &mut Random, range: Range) -> String {
    let (shape, element) = kind.rsplit_once('x').unwrap();
    let count: usize = shape.split('x').map(|size| size.parse::<usize>().unwrap()).product();
    let mut text = format!("--input={kind}=");
    for _ in 0..count {
        let value = i32::try_from(random.below(401)).unwrap() - 200;
        match (element.starts_with('f'), range, position) {
            (true, Range::Small, _) => write!(text, "{} ", f64::from(value / 4) / 100.0),
            (true, Range::Wide, _) => write!(text, "{} ", f64::from(value) / 100.0),
            (true, Range::Positive, _) => write!(text, "{} ", f64::from(value + 210) / 100.0),
            (false, _, 0) => write!(text, "{} ", value / 2),
            (false, ..) => write!(text, "{} ", 1 + value.rem_euclid(7)),
        }
        .unwrap();
    }
    text
}

/// The functions of a program, with the types of their arguments.
fn functions(source: &str) -> Vec<(String, Vec<String>)> {
    let heads = source.split("func.func @").skip(1);
    heads
        .map(|head| {
            let (name, rest) = head.split_once('(').unwrap();
            let (arguments, _) = rest.split_once("->").unwrap();
            let types = arguments.split("tensor<").skip(1).map(|it| it.split_once('>').unwrap().0.to_owned());
            // Matrices of any size get one.
            (name.to_owned(), types.map(|it| it.replace("?x?", "7x33")).collect())
        })
        .collect()
}

/// Which rules IREE's driver breaks: it records the last signal's event twice, frees results while the event of their
/// end is pending, and copies between memory of the host on a stream.
const KNOWN: [&str; 3] = ["event-recorded-again", "free-blocks", "host-copy"];

/// The counts that the library prints at the end of the process.
fn counts(output: &Output) -> BTreeMap<String, u64> {
    let text = text(&output.stderr);
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let kind = words.next().filter(|kind| matches!(*kind, "call" | "broken"))?;
        Some((format!("{kind} {}", words.next()?), words.next()?.parse().ok()?))
    });
    lines.collect()
}

/// A folder with the library under the name that IREE opens.
fn library() -> PathBuf {
    let folder = scratch().join("library");
    std::fs::create_dir_all(&folder).unwrap();
    let built = std::env::current_exe().unwrap().with_file_name("libemulator_cuda.so");
    let link = folder.join("libcuda.so");
    if std::fs::read_link(&link).ok().as_ref() != Some(&built) {
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(built, link).unwrap();
    }
    folder
}

fn on_cuda(module: &Path, function: &str, options: &str) -> Command {
    let mut command = Command::new(runner());
    command.arg("--device=cuda").arg(format!("--module={}", module.display()));
    command.arg(format!("--function={function}"));
    command.env("LD_LIBRARY_PATH", library()).env("EMULATOR_CUDA", format!("quiet,counts,{options}"));
    command
}

/// The type of the numbers in a file of numpy's, and their bytes.
fn read(file: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(file).unwrap();
    let (head, rest) = bytes.split_at(10);
    let length = usize::from(u16::from_le_bytes(head[8..].try_into().unwrap()));
    let (header, data) = rest.split_at(length);
    let kind = text(header).split('\'').nth(3).unwrap().to_owned();
    (kind, data.to_vec())
}

/// Compares two files of numbers: floats nearly, others exactly.
fn difference(wanted: &Path, found: &Path, tolerance: f32) -> Option<String> {
    let ((kind, wanted), (found_kind, found)) = (read(wanted), read(found));
    if kind != found_kind || wanted.len() != found.len() {
        return Some(format!("{} bytes of {kind}, {} of {found_kind}", wanted.len(), found.len()));
    }
    if kind != "<f4" {
        return (wanted != found).then(|| format!("{wanted:?}\n{found:?}"));
    }
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let (wanted, found) = (floats(&wanted), floats(&found));
    let is_near = |a: f32, b: f32| (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + a.abs());
    let far = wanted.iter().zip(&found).position(|(a, b)| !is_near(*a, *b))?;
    Some(format!("number {far} of {}: {} and {}", wanted.len(), wanted[far], found[far]))
}

/// Runs each function of a program on the host and on the library, and compares.
fn compare(source: &Path) {
    let (host, cuda) = (compile(source, "host"), compile(source, "cuda"));
    let name = source.file_stem().unwrap().to_str().unwrap();
    for (function, kinds) in functions(&std::fs::read_to_string(source).unwrap()) {
        let range = match function.as_str() {
            "main" => Range::Small,
            name if name.starts_with("positive") => Range::Positive,
            _ => Range::Wide,
        };
        let mut random = Random::new(7);
        let inputs: Vec<String> =
            kinds.iter().enumerate().map(|(at, kind)| values(kind, at, &mut random, range)).collect();
        let file = |device: &str| scratch().join(format!("{name}.{function}.{device}.npy"));
        let mut command = Command::new(runner());
        command.arg("--device=local-sync").arg(format!("--module={}", host.display()));
        command.arg(format!("--function={function}")).args(&inputs);
        succeed(command.arg(format!("--output=@{}", file("host").display())));
        for (options, flag) in [
            ("seed=0", None),
            ("seed=1", None),
            ("seed=2,delay=1000", None),
            ("seed=3", Some("--cuda_use_streams=false")),
        ] {
            let mut command = on_cuda(&cuda, &function, options);
            command.args(flag);
            command.args(&inputs).arg(format!("--output=@{}", file("cuda").display()));
            let output = succeed(&mut command);
            // The host keeps more bits between operations on short floats.
            let tolerance = if function.contains("f16") { 2e-2 } else { 1e-4 };
            let difference = difference(&file("host"), &file("cuda"), tolerance);
            assert!(difference.is_none(), "{name}, {function}, {options}: {difference:?}");
            let counts = counts(&output);
            let launches = ["call cuLaunchKernel", "call cuGraphAddKernelNode"].map(|name| counts.get(name));
            assert!(launches.iter().flatten().any(|count| **count > 0), "{counts:?}");
            let mut broken = counts.keys().filter_map(|key| key.strip_prefix("broken "));
            let unknown = broken.find(|rule| !KNOWN.contains(rule));
            assert!(unknown.is_none(), "{name}, {function}, {options}: {}", text(&output.stderr));
        }
    }
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn operations_give_what_the_host_gives() {
    compare(&folder().join("tests/iree/operations.mlir"));
}

#[test]
fn models_give_what_the_host_gives() {
    for model in ["elementwise", "convolution", "transformer"] {
        compare(&folder().join("../../demo/models").join(format!("{model}.mlir")));
    }
}

// After an error that stays, IREE's driver waits for ever; after a launch that fails, its worker may crash.
#[test]
fn memory_that_runs_out_is_reported_to_the_program() {
    let module = compile(&folder().join("../../demo/models/elementwise.mlir"), "cuda");
    let mut command = on_cuda(&module, "main", "fault=out-of-memory@1");
    let output = command.args(["--input=2x3xf32=1", "--input=2x3xf32=2", "--input=2x3xf32=3"]).output();
    let output = output.unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{said}");
}
