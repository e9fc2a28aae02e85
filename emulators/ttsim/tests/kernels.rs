// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Kernels that IREE's compiler made, on a core of the board that the vendor's user-space driver opened.
//!
//! This is the way that a driver goes: load the image, let a core ask it what functions it has, and dispatch one with
//! buffers in the tile's memory. `LIBTTSIM` lets the vendor's simulator execute the same bytes.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

#[path = "../../../backends/tenstorrent/loader/tests/support/compiler.rs"]
#[expect(dead_code, reason = "the loader's tests use the rest")]
mod compiler;
mod support;

use compiler::{FLOATS, ONE_WORKGROUP, PLAIN_FLOATS, compile};
use emulator_chip::{Board, Grid, Model};
use hal_tenstorrent_loader::encode::{Assembler, Reg, addi, jalr, sw};
use hal_tenstorrent_loader::library::{
    Dispatch, ENVIRONMENT_LENGTH, Function, VERSION, Workgroup, functions,
};
use hal_tenstorrent_loader::{Cores, Target, load};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use support::{our_library, prepare, python, succeed};

const SOFT_RESET: u32 = 0xffb1_21b0;
const ALL_HELD: u32 = 0x4_7800;
const ONLY_B: u32 = 0x4_7000;

const ENVIRONMENT: u32 = 0x1000;
const STATE: u32 = 0x2000;
const WORKGROUP: u32 = 0x3000;
/// The function's result, and whether it has returned.
const RESULT: u32 = 0x3100;
const DONE: u32 = 0x3104;
const STACK_END: u32 = 0x3_0000;
const BASE: u32 = 0x4_0000;
const BUFFERS: u32 = 0x8_0000;

/// Calls a function with three arguments, stores what it returns, and says so.
fn call(function: u32, arguments: [u32; 3]) -> Vec<u32> {
    const T0: Reg = Reg::T[0];
    const T1: Reg = Reg::T[1];
    let mut asm = Assembler::new();
    asm.constant(Reg::SP, STACK_END);
    for (register, argument) in Reg::A.into_iter().zip(arguments) {
        asm.constant(register, argument);
    }
    asm.constant(T0, function);
    asm.emit(jalr(Reg::RA, T0, 0));
    asm.constant(T0, RESULT);
    asm.emit_all([sw(Reg::A[0], 0, T0), addi(T1, Reg::ZERO, 1), sw(T1, 4, T0)]);
    let here = asm.here();
    asm.jump(Reg::ZERO, here);
    asm.finish()
}

/// Steps for the driver, as text, on the first tile of a board.
struct Steps {
    model: Model,
    tile: (u8, u8),
    steps: Vec<String>,
}

impl Steps {
    fn new(model: Model) -> Self {
        let tile = Grid::new(&Board::new(model)).tensix(0, 0).unwrap();
        Self { model, tile, steps: Vec::new() }
    }

    fn write(&mut self, address: u32, bytes: &[u8]) {
        let mut hex = String::new();
        for byte in bytes {
            write!(hex, "{byte:02x}").unwrap();
        }
        self.steps.push(format!(r#"["write", {}, {}, {address}, "{hex}"]"#, self.tile.0, self.tile.1));
    }

    fn words(&mut self, address: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(address, &bytes);
    }

    fn read(&mut self, address: u32, length: u32) {
        self.steps.push(format!(r#"["read", {}, {}, {address}, {length}]"#, self.tile.0, self.tile.1));
    }

    /// Lets the first core call a function, and holds it again.
    fn call(&mut self, function: u32, arguments: [u32; 3]) {
        self.words(SOFT_RESET, &[ALL_HELD]);
        self.words(0, &call(function, arguments));
        self.words(RESULT, &[0xdead, 0]);
        self.words(SOFT_RESET, &[ONLY_B]);
        self.steps.push(format!(r#"["run", {}, {}, {DONE}]"#, self.tile.0, self.tile.1));
        self.words(SOFT_RESET, &[ALL_HELD]);
    }

    /// The bytes that were read, in order.
    fn run(self, library: &Path, name: &str) -> Vec<Vec<u8>> {
        let library = prepare(library, name, self.model.family());
        let file = library.with_file_name("steps.json");
        std::fs::write(&file, format!("[{}]", self.steps.join(",\n"))).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/steps.py");
        let mut command = Command::new(python());
        let output =
            succeed(command.arg(script).arg(library).arg(file).env("TENSTORRENT_SIM", self.model.name()));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!errors.contains("emulator-ttsim:"), "{errors}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes = |line: &str| line.as_bytes().chunks_exact(2).map(byte).collect();
        text.lines().filter_map(|line| line.strip_prefix("read ")).map(bytes).collect()
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Numbers between -4 and 4 that are not round.
fn floats(count: u16, seed: u16) -> Vec<f32> {
    let number = |index: u16| f32::from(index.wrapping_mul(40_503).wrapping_add(seed)) / 8192.0 - 4.0;
    (0..count).map(number).collect()
}

/// The expected results: softmax within a millionth, all else to the bit.
fn check(results: &[Vec<u32>], (x, y, magnitudes): (&[f32], &[f32], &[f32])) {
    let [softmax, quotients, roots, floors] = results else { panic!("{results:?}") };
    let short = &x[..64];
    for (row, found) in x.chunks_exact(16).zip(softmax.chunks_exact(16)) {
        let exponentials: Vec<f64> = row.iter().map(|&value| f64::from(value).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        for (found, exponential) in found.iter().zip(exponentials) {
            let error = (f64::from(f32::from_bits(*found)) - exponential / sum).abs();
            assert!(error <= 1e-6, "{} instead of {}", f32::from_bits(*found), exponential / sum);
        }
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(*quotients, bits(short.iter().zip(y).map(|(x, y)| x / y).collect()));
    assert_eq!(*roots, bits(magnitudes.iter().map(|value| value.sqrt()).collect()));
    assert_eq!(*floors, bits(short.iter().map(|value| value.floor()).collect()));
}

fn kernels(library: &Path, name: &str, model: Model) {
    let (flags, cores) = match model {
        Model::N150 => (PLAIN_FLOATS, Cores::Wormhole),
        _ => (FLOATS, Cores::Blackhole),
    };
    let file = compile(name, "floats.mlir", &[&flags[..], &[ONE_WORKGROUP]].concat());
    let image = load(&file, Target { cores, base: BASE, room: 0x4_0000 }).unwrap();
    let length = u32::try_from(image.bytes().len()).unwrap();
    let environment = vec![0; ENVIRONMENT_LENGTH as usize];

    let mut steps = Steps::new(model);
    steps.write(BASE, image.bytes());
    steps.write(ENVIRONMENT, &environment);
    steps.call(image.query(), [VERSION, ENVIRONMENT, 0]);
    steps.read(RESULT, 4);
    steps.read(BASE, length);
    let answers = steps.run(library, &format!("{name}-query"));
    let [result, memory] = &answers[..] else { panic!("{answers:?}") };
    let functions: Vec<Function> = functions(memory, BASE, words(result)[0]).unwrap();
    assert_eq!(functions.len(), 7);

    // Softmax of 8 rows of 16, quotients, roots, floors: what has replaced instructions in it.
    let (x, y) = (floats(128, 5), floats(64, 7));
    let magnitudes: Vec<f32> = y.iter().map(|value| value.abs()).collect();
    let short = &x[..64];
    let cases: [(usize, Vec<&[f32]>, u32); 4] =
        [(2, vec![&x], 128), (3, vec![short, &y], 64), (4, vec![&magnitudes], 64), (5, vec![short], 64)];
    let mut steps = Steps::new(model);
    steps.write(BASE, image.bytes());
    steps.write(ENVIRONMENT, &environment);
    steps.write(WORKGROUP, &Workgroup::default().encode().unwrap());
    for (number, inputs, results) in &cases {
        let mut bindings = Vec::new();
        for (address, input) in (BUFFERS..).step_by(0x1000).zip(inputs) {
            let bits: Vec<u32> = input.iter().map(|value| value.to_bits()).collect();
            steps.words(address, &bits);
            bindings.push((address, 4 * u32::try_from(input.len()).unwrap()));
        }
        let output = BUFFERS + 0x8000;
        bindings.push((output, 4 * results));
        let dispatch =
            Dispatch { workgroup_count: [1; 3], concurrency: 1, bindings: &bindings, ..Dispatch::default() };
        steps.write(STATE, &dispatch.encode(STATE).unwrap());
        steps.call(functions[*number].address, [ENVIRONMENT, STATE, WORKGROUP]);
        steps.read(RESULT, 4);
        steps.read(output, 4 * results);
    }
    let answers = steps.run(library, &format!("{name}-dispatch"));
    let results: Vec<Vec<u32>> = answers
        .chunks_exact(2)
        .map(|pair| {
            assert_eq!(words(&pair[0]), [0]);
            words(&pair[1])
        })
        .collect();
    check(&results, (&x, &y, &magnitudes));
}

#[test]
fn kernels_run_on_the_simulated_board() {
    for (name, model) in [("kernels", Model::P150), ("kernels-n150", Model::N150)] {
        kernels(&our_library(), name, model);
    }
}

#[test]
#[ignore = "LIBTTSIM must name a simulator of the vendor's"]
fn kernels_run_on_the_vendors_simulator() {
    let library = std::env::var_os("LIBTTSIM").expect("LIBTTSIM names a libttsim.so for Blackhole");
    kernels(Path::new(&library), "kernels-vendor", Model::P150);
}
