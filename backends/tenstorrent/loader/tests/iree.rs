// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Kernels that IREE's compiler made for 32-bit RISC-V: loaded, asked what they are, and dispatched on an interpreted
//! core.
//!
//! The compiler is the one that `cargo xtask build` installs; `HAL_IREE_COMPILE` names another.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

#[path = "support/compiler.rs"]
mod compiler;
#[path = "support/memory.rs"]
mod memory;

use compiler::{FLOATS, INTEGERS, ONE_WORKGROUP, PLAIN_FLOATS, compile};
use emulator_riscv::{Bus, Class, Hart, Isa, RunOutcome, Width};
use hal_tenstorrent_loader::library::{
    Dispatch, ENVIRONMENT_LENGTH, Function, VERSION, WORKGROUP_STATE_LENGTH, Workgroup, functions,
};
use hal_tenstorrent_loader::{Cores, Image, LoadError, Target, load};
use memory::Memory;

const ENVIRONMENT: u32 = 0x1000;
const STATE: u32 = 0x2000;
const WORKGROUP: u32 = 0x3000;
/// An `ebreak`, where functions return to.
const RETURN: u32 = 0x3100;
const STACK_END: u32 = 0x1_0000;
const BASE: u32 = 0x1_0000;
const ROOM: u32 = 0x4_0000;
const BUFFERS: u32 = 0x10_0000;

struct Machine {
    ram: Memory,
    isa: Isa,
    image: Image,
    functions: Vec<Function>,
    counts: u64,
}

impl Machine {
    fn new(file: &[u8], cores: Cores) -> Self {
        let image = load(file, Target { cores, base: BASE, room: ROOM }).unwrap();
        let mut ram = Memory::new(0x18_0000);
        ram.get_mut(BASE, image.bytes().len() as u32).unwrap().copy_from_slice(image.bytes());
        ram.store(RETURN, Width::Word, 0x0010_0073).unwrap();
        ram.get_mut(ENVIRONMENT, ENVIRONMENT_LENGTH).unwrap().fill(0);
        let isa = match cores {
            Cores::Wormhole => Isa::Wormhole,
            Cores::Blackhole => Isa::Blackhole,
        };
        let mut machine = Self { ram, isa, image, functions: Vec::new(), counts: 0 };
        let library = machine.call(machine.image.query(), [VERSION, ENVIRONMENT, 0]);
        machine.functions = functions(machine.ram.get(BASE, ROOM).unwrap(), BASE, library).unwrap();
        machine
    }

    fn call(&mut self, function: u32, arguments: [u32; 3]) -> u32 {
        let mut hart = Hart::new(self.isa, function);
        hart.set_x(1, RETURN);
        hart.set_x(2, STACK_END);
        for (register, argument) in (10..).zip(arguments) {
            hart.set_x(register, argument);
        }
        assert_eq!(hart.run(&mut self.ram, 50_000_000), RunOutcome::Break);
        assert_eq!((hart.pc(), hart.x(2)), (RETURN + 4, STACK_END));
        self.counts += hart.counts().total();
        assert!(hart.counts().of(Class::Jump) > 0);
        hart.x(10)
    }

    /// Dispatches a kernel of one workgroup by its number; the last buffer, of so many words, is its result.
    fn dispatch(&mut self, number: usize, inputs: &[&[u32]], results: usize) -> Vec<u32> {
        let result = self.prepare(number, inputs, results, [1; 3]);
        self.workgroup(number, [0; 3]);
        self.words(result, results)
    }

    /// Writes what all workgroups of a dispatch are called with; where the result will be. It is filled with ones.
    fn prepare(
        &mut self,
        number: usize,
        inputs: &[&[u32]],
        results: usize,
        workgroup_count: [u32; 3],
    ) -> u32 {
        let function = self.functions[number].clone();
        assert_eq!(usize::from(function.bindings), inputs.len() + 1, "{}", function.name);
        assert_eq!((function.constants, function.local_memory), (0, 0));
        let mut at = BUFFERS;
        let mut bindings = Vec::new();
        let result = vec![0xffff_ffff; results];
        for words in inputs.iter().copied().chain([&result[..]]) {
            let length = 4 * words.len() as u32;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.ram.get_mut(at, length).unwrap().copy_from_slice(&bytes);
            bindings.push((at, length));
            at += length.next_multiple_of(64);
        }
        let dispatch =
            Dispatch { workgroup_count, concurrency: 1, bindings: &bindings, ..Dispatch::default() };
        let state = dispatch.encode(STATE).unwrap();
        self.ram.get_mut(STATE, state.len() as u32).unwrap().copy_from_slice(&state);
        bindings.last().unwrap().0
    }

    /// Executes one workgroup of the dispatch that was prepared.
    fn workgroup(&mut self, number: usize, id: [u32; 3]) {
        let workgroup = Workgroup { id, ..Workgroup::default() }.encode().unwrap();
        self.ram.get_mut(WORKGROUP, WORKGROUP_STATE_LENGTH).unwrap().copy_from_slice(&workgroup);
        let function = self.functions[number].address;
        assert_eq!(self.call(function, [ENVIRONMENT, STATE, WORKGROUP]), 0);
    }

    fn words(&self, address: u32, count: usize) -> Vec<u32> {
        let bytes = self.ram.get(address, 4 * count as u32).unwrap();
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

fn alone<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [flags, &[ONE_WORKGROUP]].concat()
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|float| float.to_bits()).collect()
}

/// Numbers that are neither small nor round.
fn floats(count: usize, seed: u32) -> Vec<f32> {
    let step = |index: usize| (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(seed) >> 8;
    (0..count).map(|index| step(index) as f32 / (1 << 21) as f32 - 4.0).collect()
}

fn assert_near(found: &[u32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(f32::from_bits(*found)) - expected).abs();
        // Not "greater than": what is not a number must not pass.
        let near = error <= tolerance * expected.abs().max(1.0);
        assert!(near, "{index}: {} instead of {expected}", f32::from_bits(*found));
    }
}

#[test]
fn kernels_with_floats_compute_on_blackhole() {
    kernels_with_floats(&compile("iree-blackhole", "floats.mlir", &alone(&FLOATS)), Cores::Blackhole);
}

/// The same bits, with many times the instructions.
#[test]
fn kernels_with_floats_compute_the_same_on_wormhole() {
    let file = compile("iree-wormhole", "floats.mlir", &alone(&PLAIN_FLOATS));
    let [(theirs, least), (ours, most)] =
        [Cores::Blackhole, Cores::Wormhole].map(|cores| kernels_with_floats(&file, cores));
    assert_eq!(ours, theirs);
    println!("{least} instructions on Blackhole, {most} on Wormhole");
    assert!(most > 5 * least && most < 50 * least, "{least} and {most}");
}

/// The results of some kernels, each checked, and the number of instructions.
fn kernels_with_floats(file: &[u8], cores: Cores) -> (Vec<Vec<u32>>, u64) {
    let mut results = Vec::new();
    let mut machine = Machine::new(file, cores);
    assert!(machine.image.replaced() > 10, "{} instructions were replaced", machine.image.replaced());
    let names: Vec<_> = machine.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    assert!(names[0].starts_with("multiply_add_dispatch_0"), "{names:?}");
    let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();

    let (a, b) = (floats(1000, 1), floats(1000, 2));
    let found = machine.dispatch(0, &[&bits(&a), &bits(&b)], 1000);
    results.push(found.clone());
    let expected: Vec<_> = wide(&a).iter().zip(wide(&b)).map(|(a, b)| a * b + a).collect();
    assert_near(&found, &expected, 1e-6);

    let (a, b) = (floats(1024, 3), floats(1024, 4));
    let found = machine.dispatch(1, &[&bits(&a), &bits(&b)], 1024);
    results.push(found.clone());
    let (a, b) = (wide(&a), wide(&b));
    let element = |row: usize, column: usize| (0..32).map(|k| a[32 * row + k] * b[32 * k + column]).sum();
    let expected: Vec<f64> = (0..1024).map(|index| element(index / 32, index % 32)).collect();
    assert_near(&found, &expected, 1e-5);

    let x = floats(128, 5);
    let found = machine.dispatch(2, &[&bits(&x)], 128);
    results.push(found.clone());
    let expected: Vec<f64> = wide(&x)
        .chunks_exact(16)
        .flat_map(|row| {
            let sum: f64 = row.iter().map(|value| value.exp()).sum();
            row.iter().map(move |value| value.exp() / sum).collect::<Vec<_>>()
        })
        .collect();
    assert_near(&found, &expected, 1e-6);

    // One rounding each: as IEEE has it, to the bit.
    let (x, y) = (floats(64, 6), floats(64, 7));
    let found = machine.dispatch(3, &[&bits(&x), &bits(&y)], 64);
    results.push(found.clone());
    assert_eq!(found, x.iter().zip(&y).map(|(x, y)| (x / y).to_bits()).collect::<Vec<_>>());
    let positive: Vec<f32> = x.iter().map(|x| x.abs()).collect();
    let found = machine.dispatch(4, &[&bits(&positive)], 64);
    results.push(found.clone());
    assert_eq!(found, positive.iter().map(|x| x.sqrt().to_bits()).collect::<Vec<_>>());
    let found = machine.dispatch(5, &[&bits(&x)], 64);
    results.push(found.clone());
    assert_eq!(found, x.iter().map(|x| x.floor().to_bits()).collect::<Vec<_>>());
    let found = machine.dispatch(6, &[&bits(&x)], 64);
    results.push(found.clone());
    assert_eq!(found, x.iter().map(|&x| (x as i32).cast_unsigned()).collect::<Vec<_>>());
    (results, machine.counts)
}

#[test]
fn kernels_with_integers_compute_on_both() {
    let file = compile("iree-both", "integers.mlir", &alone(&INTEGERS));
    let mut counts = Vec::new();
    for cores in [Cores::Wormhole, Cores::Blackhole] {
        let mut machine = Machine::new(&file, cores);
        assert_eq!(machine.image.replaced(), 0);
        let a: Vec<u32> = (0..1000_u32).map(|index| index.wrapping_mul(0x0123_4567)).collect();
        let b: Vec<u32> = (0..1000_u32).map(|index| index.wrapping_mul(0x89ab_cdef) | 1).collect();
        let found = machine.dispatch(0, &[&a, &b], 1000);
        assert_eq!(
            found,
            a.iter().zip(&b).map(|(a, b)| a.wrapping_mul(*b).wrapping_add(*a)).collect::<Vec<_>>()
        );
        let divide = |(a, b): (&u32, &u32)| (a.cast_signed() / (b >> 20 | 1).cast_signed()).cast_unsigned();
        let divisors: Vec<_> = b[..64].iter().map(|b| b >> 20 | 1).collect();
        let found = machine.dispatch(1, &[&a[..64], &divisors], 64);
        assert_eq!(found, a[..64].iter().zip(&b).map(divide).collect::<Vec<_>>());
        counts.push(machine.counts);
    }
    assert_eq!(counts[0], counts[1]);
}

/// Each workgroup does its own part: how many there are is known to a program's module alone, so they run until all
/// is done.
#[test]
fn workgroups_do_a_part_each() {
    const UNTOUCHED: u32 = 0xffff_ffff;
    let mut machine =
        Machine::new(&compile("iree-distributed", "distributed.mlir", &FLOATS), Cores::Blackhole);
    let (a, b) = (floats(128 * 64, 8), floats(64 * 128, 9));
    let at = machine.prepare(0, &[&bits(&a), &bits(&b)], 128 * 128, [1024, 1, 1]);
    let mut left = 128 * 128;
    let mut workgroups = 0;
    while left > 0 {
        machine.workgroup(0, [workgroups, 0, 0]);
        workgroups += 1;
        let now = machine.words(at, 128 * 128).iter().filter(|&&word| word == UNTOUCHED).count();
        assert!(now < left, "workgroup {} did nothing new", workgroups - 1);
        left = now;
    }
    assert!(workgroups > 1, "there was one workgroup");
    let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
    let (a, b) = (wide(&a), wide(&b));
    let element = |row: usize, column: usize| (0..64).map(|k| a[64 * row + k] * b[128 * k + column]).sum();
    let expected: Vec<f64> = (0..128 * 128).map(|index| element(index / 128, index % 128)).collect();
    assert_near(&machine.words(at, 128 * 128), &expected, 1e-4);
}

#[test]
fn kernels_with_bit_operations_are_refused_for_wormhole() {
    let file = compile("iree-refused", "distributed.mlir", &FLOATS);
    match load(&file, Target { cores: Cores::Wormhole, base: BASE, room: ROOM }) {
        Err(LoadError::Code(unfit)) => {
            assert!(unfit.to_string().contains("compile with +m and +f alone"), "{unfit}")
        }
        other => panic!("{other:?}"),
    }
}
