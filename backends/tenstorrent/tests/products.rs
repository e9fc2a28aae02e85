// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Matrix products on the engines of an emulated card's tiles, against products of doubles.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use emulator_testbench::until_known;
use hal_backend::{Code, Command, Device, Dispatch, Failure, LoadRequest, MemoryRequest, Span, Workgroups};
use hal_tenstorrent::{Executable, FORMAT, TenstorrentDevice};
use proptest::prelude::*;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use support::compiler::{PLAIN_FLOATS, compile};
use support::rules::Rules;
use support::{Bench, COMPUTE, NoLoader, contents, floats_of, host, open, span, whole};

/// The functions that the compiler makes of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bf16ToF32,
    Bf16,
    Tf32,
    Integers,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bf16ToF32 => "tensix_matmul_bf16_f32",
            Self::Bf16 => "tensix_matmul_bf16_bf16",
            Self::Tf32 => "tensix_matmul_tf32_f32",
            Self::Integers => "tensix_matmul_i8_i32",
        }
    }

    fn bytes(self) -> (u64, u64) {
        match self {
            Self::Bf16ToF32 => (2, 4),
            Self::Bf16 => (2, 2),
            Self::Tf32 => (4, 4),
            Self::Integers => (1, 4),
        }
    }

    /// How large an error may be, as a part of the sum of the products' absolute values.
    ///
    /// A phase multiplies some bits of each operand: the upper five or the next five of the right one, and the upper
    /// seven or the next four of the left one. The phases are upper and upper, lower of the right, lower of the left,
    /// and lower of both, so what is left out is less than this.
    fn tolerance(self, phases: &str) -> f64 {
        let left_out = match phases {
            "1" => 0.0625 + 0.015_625,
            "2" => 0.015_625,
            "3" => 0.001,
            _ => 0.0,
        };
        // Bits that are lost when products are summed, and those of FP32 that TF32 does not have.
        let rounding = if self == Self::Tf32 { 0.004 } else { 0.0015 };
        left_out + rounding
    }

    /// How large the error of a result's format is, as a part of the result.
    fn precision(self) -> f64 {
        if self == Self::Bf16 { 0.004 } else { 0.0 }
    }
}

/// An executable with all of these functions, by the rules for the compiler.
struct Products {
    executable: Arc<Executable>,
    names: Vec<String>,
}

impl Products {
    fn load(bench: &Bench) -> Self {
        static FILE: OnceLock<Vec<u8>> = OnceLock::new();
        let data = FILE.get_or_init(|| {
            let rules = Rules::new("products", &["bf16", "int8", "tf32"]);
            compile("products", "products.mlir", &[&PLAIN_FLOATS[..], &[rules.flag()]].concat())
        });
        let request = LoadRequest { format: FORMAT, data, constants: &[] };
        let loaded = bench.device.load(&request, &NoLoader).unwrap();
        let names = loaded.functions.into_iter().map(|function| function.name).collect();
        Self { executable: Arc::new(loaded.executable), names }
    }

    fn call(
        &self,
        kind: Kind,
        constants: &[u32],
        bindings: &[Span<TenstorrentDevice>],
    ) -> Command<TenstorrentDevice> {
        let workgroups = match *constants {
            [batch, m, n, _] => [n.div_ceil(32), m, batch],
            _ => [1, 1, 1],
        };
        Command::Dispatch(Box::new(Dispatch {
            executable: self.executable.clone(),
            function: self.names.iter().position(|name| name == kind.name()).unwrap(),
            workgroup_size: [1; 3],
            workgroups: Workgroups::Count(workgroups),
            local_memory: 0,
            constants: constants.iter().copied().collect(),
            bindings: bindings.iter().cloned().collect(),
        }))
    }
}

/// Numbers between -2 and 2 without a pattern, as a product's operands have them.
fn numbers(kind: Kind, count: u32, seed: u32) -> Vec<f32> {
    let kept = if kind.bytes().0 == 4 { u32::MAX } else { 0xffff_0000 };
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let number = f32::from_bits(0x3f80_0000 | state >> 9) * 4.0 - 6.0;
        f32::from_bits(number.to_bits() & kept)
    };
    (0..count).map(|_| next()).collect()
}

fn encode(numbers: &[f32], bytes: u64) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()[(4 - bytes) as usize..].to_vec()).collect()
}

fn decode(bytes: &[u8], width: u64) -> Vec<f32> {
    if width == 4 {
        return floats_of(bytes);
    }
    let number = |half: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([half[0], half[1]])) << 16);
    bytes.chunks_exact(2).map(number).collect()
}

/// How many products, M, N and K.
type Shape = [u32; 4];

/// The products in doubles, and the sums of the absolute values of what is summed in them.
fn reference(shape: Shape, a: &[f32], b: &[f32]) -> Vec<(f64, f64)> {
    let [batch, m, n, k] = shape.map(|side| side as usize);
    let mut c = vec![(0.0, 0.0); batch * m * n];
    for row in 0..batch * m {
        for l in 0..k {
            let left = f64::from(a[row * k + l]);
            for column in 0..n {
                let product = left * f64::from(b[(row / m * k + l) * n + column]);
                let (sum, size) = &mut c[row * n + column];
                *sum += product;
                *size += product.abs();
            }
        }
    }
    c
}

/// What is around the result.
const CANARY: u8 = 0xa5;

/// A product's operands, and where they and the result begin in a buffer.
struct Case<'a> {
    kind: Kind,
    shape: Shape,
    a: &'a [f32],
    b: &'a [f32],
    offsets: [u64; 3],
}

impl Case<'_> {
    /// The result, of which nothing beside it was written.
    fn run(&self, bench: &Bench) -> Result<Vec<f32>, Failure> {
        let Self { kind, shape: [batch, m, n, _], .. } = *self;
        let (operand, result) = kind.bytes();
        let products = Products::load(bench);
        let (a, b) = (encode(self.a, operand), encode(self.b, operand));
        let length = u64::from(batch * m * n) * result;
        let with = |offset: u64, bytes: &[u8]| {
            let mut all = vec![CANARY; offset as usize];
            all.extend(bytes);
            all.extend([CANARY; 4096]);
            all
        };
        let [at_a, at_b, at_c] = self.offsets;
        let left = bench.memory(&with(at_a, &a));
        let right = bench.memory(&with(at_b, &b));
        let product = bench.memory(&with(at_c, &vec![0xff; length as usize]));
        let bindings = [
            span(&left, at_a, a.len() as u64),
            span(&right, at_b, b.len() as u64),
            span(&product, at_c, length),
        ];
        bench.run(products.call(kind, &self.shape, &bindings))?;
        let found = bench.read(&product, 0, at_c + length + 4096);
        let (before, rest) = found.split_at(at_c as usize);
        let (found, after) = rest.split_at(length as usize);
        assert!(before.iter().chain(after).all(|byte| *byte == CANARY), "{shape:?}", shape = self.shape);
        Ok(decode(found, result))
    }
}

/// The norm of all errors, as a part of that of what was expected.
fn norm_of_errors(found: &[f32], expected: &[(f64, f64)]) -> f64 {
    let differences =
        found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected.0).powi(2));
    let all: f64 = expected.iter().map(|number| number.0.powi(2)).sum();
    differences.sum::<f64>().sqrt() / all.sqrt().max(f64::MIN_POSITIVE)
}

fn check(bench: &Bench, kind: Kind, shape: Shape, phases: &str, offsets: [u64; 3]) {
    let [batch, m, n, k] = shape;
    let (a, b) = (numbers(kind, batch * m * k, m + 3), numbers(kind, batch * k * n, n + 7));
    let found = Case { kind, shape, a: &a, b: &b, offsets }.run(bench);
    let found = found.unwrap_or_else(|error| panic!("{kind:?} {shape:?}, {phases} phases: {error}"));
    let expected = reference(shape, &a, &b);
    assert_eq!(found.len(), expected.len());
    let (tolerance, precision) = (kind.tolerance(phases), kind.precision());
    for (index, (found, (sum, size))) in found.iter().zip(&expected).enumerate() {
        let error = (f64::from(*found) - sum).abs();
        // Not "is larger": a NaN is no result.
        let is_right = error <= tolerance * size + precision * sum.abs();
        assert!(is_right, "{kind:?} {shape:?}, {phases} phases, {index}: {found} instead of {sum}");
    }
    // To compare simulators by hand.
    let (sum, error) = (sum_of_bits(&found), norm_of_errors(&found, &expected));
    println!("{kind:?} {shape:?}, {phases} phases: {error:.1e}, bits {sum:016x}");
}

/// The same for the same bits.
fn sum_of_bits(found: &[f32]) -> u64 {
    found.iter().fold(0, |sum, number| sum.wrapping_mul(31).wrapping_add(number.to_bits().into()))
}

/// Without a phase, cores run the functions.
#[test]
fn products_of_cores_are_right() {
    for board in ["p150", "n150"] {
        let bench = Bench::new(&[("phases", "0"), ("board", board)]);
        for kind in [Kind::Bf16ToF32, Kind::Bf16, Kind::Tf32] {
            check(&bench, kind, [2, 5, 7, 9], "4", [0, 64, 128]);
        }
    }
}

/// Each tile multiplies a square, whose rows are all different: that says also which rows the packer reads. The page of
/// Blackhole's `PACR` can be read so that one interface reads the first of four rows for all of them.
#[test]
fn every_tile_multiplies_as_the_host() {
    let bench = Bench::new(&[("tiles", "256"), ("l1", "0")]);
    // The last tile runs no dispatches.
    let [tiles @ .., _] = bench.device.card().grid().tiles() else { panic!("a card without tiles") };
    let rows = 32 * tiles.len();
    #[expect(clippy::cast_precision_loss, reason = "one of 32 rows")]
    let row = |index: usize| (index % 32 + 1) as f32;
    let (a, b) = ((0..rows).map(row).collect::<Vec<_>>(), [1.0; 32]);
    let shape = [1, rows as u32, 32, 1];
    let found = Case { kind: Kind::Bf16ToF32, shape, a: &a, b: &b, offsets: [0; 3] }.run(&bench).unwrap();
    let squares = found.chunks_exact(32 * 32).zip(tiles);
    let have = |square: &[f32], of: fn(usize) -> usize| {
        square.chunks_exact(32).enumerate().all(|(at, found)| found.iter().all(|found| *found == row(of(at))))
    };
    let wrong: Vec<_> = squares.filter(|(square, _)| !have(square, |at| at)).collect();
    let fourth = wrong.iter().filter(|(square, _)| have(square, |at| at - at % 4)).count();
    let places: Vec<String> = wrong.iter().map(|(_, tile)| tile.to_string()).collect();
    assert!(
        wrong.is_empty(),
        "of {} tiles, {} have another square than the host, at {}. In {fourth} of them PACR reads the first of each \
         four rows of Dst, and not the row that is asked for: please report this output",
        tiles.len(),
        wrong.len(),
        places.join(", ")
    );
    println!("{} tiles multiply as the host; PACR reads the row of Dst that is asked for", tiles.len());
}

/// Engines have integers of a sign and a magnitude, so cores multiply these.
#[test]
fn products_of_integers_are_exact() {
    let bench = Bench::new(&[]);
    let products = Products::load(&bench);
    let a: Vec<u8> = (0..12_u8).map(|number| number.wrapping_mul(45)).collect();
    let b: Vec<u8> = (0..20_u8).map(|number| number.wrapping_mul(77)).collect();
    let (left, right, result) = (bench.memory(&a), bench.memory(&b), bench.memory(&[0; 60]));
    let bindings = [span(&left, 0, 12), span(&right, 0, 20), span(&result, 0, 60)];
    bench.run(products.call(Kind::Integers, &[1, 3, 5, 4], &bindings)).unwrap();
    let signed = |byte: u8| i32::from(byte.cast_signed());
    let entry = |index: usize| -> i32 {
        (0..4).map(|l| signed(a[index / 5 * 4 + l]) * signed(b[l * 5 + index % 5])).sum()
    };
    let expected: Vec<u8> = (0..15).flat_map(|index| entry(index).to_le_bytes()).collect();
    assert_eq!(bench.read(&result, 0, 60), expected);
}

#[test]
fn products_that_disagree_with_their_bindings_are_refused() {
    let bench = Bench::new(&[]);
    let products = Products::load(&bench);
    let (left, right, result) = (bench.memory(&[0; 256]), bench.memory(&[0; 256]), bench.memory(&[0; 256]));
    let all = |lengths: [u64; 3]| {
        [span(&left, 2, lengths[0]), span(&right, 0, lengths[1]), span(&result, 0, lengths[2])]
    };
    let refused = |kind, constants: &[u32], lengths| {
        let refused = bench.run(products.call(kind, constants, &all(lengths))).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        refused.message().to_owned()
    };
    let message = refused(Kind::Bf16ToF32, &[1, 4, 8, 5], [40, 80, 124]);
    for part in ["M=4, N=8 and K=5", "40, 80 and 128", "40, 80 and 124"] {
        assert!(message.contains(part), "{message}");
    }
    refused(Kind::Bf16ToF32, &[1, 4, 8, 5], [38, 80, 128]);
    refused(Kind::Bf16ToF32, &[2, 4, 8, 5], [40, 80, 128]);
    refused(Kind::Bf16ToF32, &[u32::MAX; 4], [40, 80, 128]);
    let message = refused(Kind::Bf16ToF32, &[0; 5], [40, 80, 128]);
    assert!(message.contains("4 constants"), "{message}");
    let message = refused(Kind::Tf32, &[1, 2, 2, 2], [16, 16, 16]);
    assert!(message.contains("elements of 4 bytes begins 2 bytes"), "{message}");
}

const FLOATS: [Kind; 3] = [Kind::Bf16ToF32, Kind::Bf16, Kind::Tf32];

#[test]
fn products_of_all_shapes_are_right() {
    for (tiles, phases) in [("1", "4"), ("2", "1"), ("2", "2"), ("1", "3")] {
        let bench = Bench::new(&[("tiles", tiles), ("phases", phases), ("l1", "0")]);
        for shape in [
            [1, 1, 1, 1],
            [1, 31, 33, 64],
            [1, 32, 128, 100],
            [3, 33, 160, 33],
            [1, 64, 100, 31],
            [2, 100, 64, 300],
            [1, 5, 300, 1000],
            [7, 3, 5, 7],
        ] {
            for kind in FLOATS {
                check(&bench, kind, shape, phases, [64, 4036, 124]);
            }
        }
    }
}

/// Sides that are as long as a row of blocks, chunks that are used more than once, and chunks that have no place of
/// their own.
#[test]
fn products_with_long_sides_are_right() {
    let bench = Bench::new(&[("tiles", "2"), ("l1", "0")]);
    for shape in [[1, 1, 1, 4096], [1, 4096, 3, 33], [1, 3, 4096, 40], [1, 40, 300, 3000], [1, 200, 520, 600]]
    {
        check(&bench, Kind::Bf16ToF32, shape, "4", [2, 66, 4]);
    }
    check(&bench, Kind::Tf32, [1, 40, 300, 2000], "4", [4, 68, 4]);
}

/// Matrices of a batch begin at other addresses modulo 64, and chunks of two are in a tile at once.
#[test]
fn products_of_a_batch_do_not_reach_into_each_other() {
    let bench = Bench::new(&[("tiles", "1"), ("l1", "0")]);
    check(&bench, Kind::Tf32, [2, 63, 513, 7], "4", [0, 8, 10_024]);
    check(&bench, Kind::Bf16, [5, 33, 35, 37], "4", [2, 6, 10]);
    // Rows of results that the network cannot write from where they are, by two tiles.
    let bench = Bench::new(&[("tiles", "2"), ("l1", "0")]);
    check(&bench, Kind::Bf16, [7, 100, 63, 1], "4", [0, 0, 0]);
    // Rows of the right operand that are shorter than a square, and are read to its end, of more blocks than one.
    let bench = Bench::new(&[("tiles", "1"), ("l1", "0")]);
    check(&bench, Kind::Bf16ToF32, [1, 512, 1, 31], "4", [0, 0, 0]);
    check(&bench, Kind::Tf32, [1, 512, 13, 64], "4", [0, 0, 0]);
}

/// What the vendor's simulators of both chips have left, which is the same.
#[test]
fn products_have_the_bits_of_the_vendors_simulators() {
    for (phases, sums) in [
        ("1", [0x5bdf_e0a9_1b1c_0a42, 0x5f85_1b4d_1f3e_0000, 0x5bdf_e0a9_1b1c_0a42]),
        ("4", [0x5d71_a4cf_f16f_833c, 0xee24_a207_a9e5_0000, 0x68d3_79f3_cfa4_5a2c]),
    ] {
        for board in ["p150", "n150"] {
            let bench = Bench::new(&[("board", board), ("tiles", "1"), ("phases", phases), ("l1", "0")]);
            let found = FLOATS.map(|kind| {
                let (a, b) = (numbers(kind, 3 * 33 * 33, 36), numbers(kind, 3 * 33 * 160, 167));
                let case = Case { kind, shape: [3, 33, 160, 33], a: &a, b: &b, offsets: [64, 4036, 124] };
                sum_of_bits(&case.run(&bench).unwrap())
            });
            assert_eq!(found, sums, "{board}, {phases} phases");
        }
    }
}

/// Wormhole's engine has a sum that is minus one in the last of its bits as one that is 134,217,728 times as large,
/// where Blackhole's has it right.
#[test]
fn sum_of_minus_one_in_its_last_bit_is_what_each_chip_has() {
    for (board, expected) in [("p150", -1.0 / 8_388_608.0), ("n150", -16.0)] {
        let bench = Bench::new(&[("board", board), ("tiles", "1"), ("l1", "0")]);
        let mut a = [0.0; 17];
        // The first sixteen are summed before the last.
        (a[0], a[8], a[16]) = (-1.0, -1.0 / 8_388_608.0, 1.0);
        let case =
            Case { kind: Kind::Bf16ToF32, shape: [1, 1, 1, 17], a: &a, b: &[1.0; 17], offsets: [0; 3] };
        assert_eq!(case.run(&bench).unwrap(), [expected], "{board}");
    }
}

/// Sides around those of squares, groups and pages, and any others.
fn sides() -> impl Strategy<Value = u32> {
    prop_oneof![prop::sample::select(vec![1, 31, 32, 33, 63, 64, 65, 100, 127, 129, 512, 4096]), 1..200_u32]
}

/// A shape of so few elements and products that it takes no time.
fn shapes() -> impl Strategy<Value = Shape> {
    let depths = prop_oneof![Just(0), Just(1), sides()];
    (1..8_u32, sides(), sides(), depths).prop_map(|(batch, m, n, k)| {
        let mut shape = [batch, m, n, k];
        let product = |shape: &Shape| shape.iter().map(|side| u64::from(*side).max(1)).product::<u64>();
        let places = |shape: &Shape| u64::from(shape[0]) * u64::from(shape[1]) * u64::from(shape[2]);
        // The batch goes first, and then sides in turns.
        for side in [0, 2, 1, 3, 2, 1, 3].into_iter().cycle().take(14) {
            if product(&shape) > 1 << 21 || places(&shape) > 1 << 16 {
                shape[side] = (shape[side] / 8).max(u32::from(side != 3 || k != 0));
            }
        }
        shape
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Buffers are in DRAM, or in tiles, also in those that multiply.
    #[test]
    fn products_of_any_shape_are_right_wherever_they_are(
        shape in shapes(),
        kind in prop::sample::select(&FLOATS[..]),
        tiles in 1..10_u32,
        phases in 1..5_u32,
        l1 in prop::sample::select(vec!["0", "64", "256:block", "256:interleaved"]),
        offsets in prop::array::uniform3((0..2000_u64).prop_map(|place| 4 * place)),
    ) {
        let (tiles, phases) = (tiles.to_string(), phases.to_string());
        let bench = Bench::new(&[("tiles", &tiles), ("phases", &phases), ("l1", l1)]);
        check(&bench, kind, shape, &phases, offsets);
    }
}

#[test]
fn products_of_memory_of_the_host_are_right() {
    let bench = Bench::new(&[]);
    let products = Products::load(&bench);
    let (a, b) = (numbers(Kind::Tf32, 40 * 50, 1), numbers(Kind::Tf32, 50 * 60, 2));
    let (left, right) = (host(&encode(&a, 4)), host(&encode(&b, 4)));
    let result = host(&[CANARY; 40 * 60 * 4 + 128]);
    let target = result.slice(64, 40 * 60 * 4).unwrap();
    let bindings = [whole(&left), whole(&right), whole(&target)];
    bench.run(products.call(Kind::Tf32, &[1, 40, 60, 50], &bindings)).unwrap();
    let found = norm_of_errors(&floats_of(&contents(&target)), &reference([1, 40, 60, 50], &a, &b));
    assert!(found < 2e-3, "{found}");
    let all = contents(&result);
    assert!(all[..64].iter().chain(&all[all.len() - 64..]).all(|byte| *byte == CANARY));
}

/// Without anything in common, results are zeros; without rows, columns or products, there are none.
#[test]
fn products_without_numbers_are_empty_or_zeros() {
    let bench = Bench::new(&[]);
    for kind in FLOATS {
        let found =
            Case { kind, shape: [2, 33, 40, 0], a: &[], b: &[], offsets: [0, 4, 8] }.run(&bench).unwrap();
        assert!(found.iter().all(|number| number.to_bits() == 0));
    }
    let b = numbers(Kind::Bf16, 12, 1);
    for shape in [[1, 0, 4, 3], [1, 4, 0, 3], [0, 4, 4, 3]] {
        let found = Case { kind: Kind::Bf16, shape, a: &b, b: &b, offsets: [0; 3] }.run(&bench);
        assert_eq!(found.unwrap(), []);
    }
}

/// Engines know no infinity and no NaN: such operands are large numbers, and results infinite, or wrong where two of
/// them meet. Denormals are zeros. None of them reaches other rows and columns.
#[test]
fn numbers_that_are_none_stay_in_their_rows_and_columns() {
    let bench = Bench::new(&[("tiles", "1")]);
    for kind in FLOATS {
        let mut a = vec![1.0; 40 * 33];
        let mut b = vec![1.0; 33 * 40];
        (a[33], a[2 * 33 + 32], a[3 * 33 + 5]) = (f32::INFINITY, f32::NAN, f32::from_bits(0x0040_0000));
        (b[1], b[31 * 40 + 35]) = (f32::NEG_INFINITY, f32::from_bits(0x8040_0000));
        let found = Case { kind, shape: [1, 40, 40, 33], a: &a, b: &b, offsets: [0; 3] }.run(&bench).unwrap();
        for (index, number) in found.iter().enumerate() {
            let (row, column) = (index / 40, index % 40);
            let expected = match (row, column) {
                // Two of them meet.
                (1 | 2, 1) => continue,
                (_, 1) => f32::NEG_INFINITY,
                (1 | 2, _) => f32::INFINITY,
                (3, 35) => 31.0,
                (3, _) | (_, 35) => 32.0,
                _ => 33.0,
            };
            assert_eq!(*number, expected, "{kind:?} {row} {column}");
        }
    }
}

/// A tile whose engine was stopped in the middle has no part in products from then on, but in all else.
#[test]
fn products_go_on_without_a_tile_that_was_stopped() {
    // The first call is the question for functions.
    let (bench, impatient) = Bench::with_impatient(&[("fault", "hang:2"), ("tiles", "1"), ("l1", "0")]);
    let products = Products::load(&bench);
    let memory = bench.memory(&[0; 4096]);
    let all = [(); 3].map(|()| span(&memory, 0, 4096));
    let stopped = impatient.run(products.call(Kind::Bf16, &[1, 8, 8, 8], &all)).unwrap_err();
    assert_eq!(stopped.code(), Code::DeadlineExceeded, "{stopped}");
    check(&bench, Kind::Bf16, [1, 8, 8, 8], "4", [0; 3]);
}

#[test]
fn products_are_refused_where_all_engines_were_stopped() {
    let (bench, impatient) = Bench::with_impatient(&[("fault", "hang:2"), ("tiles", "200"), ("l1", "0")]);
    let products = Products::load(&bench);
    // A square for each tile; the last tile runs no dispatches.
    let rows = 32 * (bench.device.card().grid().tiles().len() as u32 - 1);
    let memory = |bytes: u32| bench.memory(&vec![0; bytes as usize]);
    let (a, b, c) = (memory(2 * rows), memory(64), memory(64 * rows));
    let bindings = [span(&a, 0, u64::from(2 * rows)), span(&b, 0, 64), span(&c, 0, u64::from(64 * rows))];
    let product = || products.call(Kind::Bf16, &[1, rows, 32, 1], &bindings);
    assert_eq!(impatient.run(product()).unwrap_err().code(), Code::DeadlineExceeded);
    let refused = bench.run(product()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(
        refused.message().contains("reset the card") && refused.message().contains("phases=0"),
        "{refused}"
    );
    // Cores go on.
    let integers = [span(&a, 0, 1), span(&b, 0, 1), span(&c, 0, 4)];
    bench.run(products.call(Kind::Integers, &[1, 1, 1, 1], &integers)).unwrap();
}

/// A card is opened again after a product was stopped in the middle: the engine says so, also to a driver that does not
/// know it, and no result is wrong.
#[test]
fn engine_that_was_stopped_is_found_when_the_card_is_opened_again() {
    let machine = [("seed", "86101"), ("workers", "1")];
    let emulator = support::emulator(&machine);
    let device = || Bench::of(open(&[&machine[..], &[("tiles", "1"), ("l1", "0")]].concat()).unwrap());
    let bench = device();
    // Minutes of work for the fastest machine.
    let memory = Arc::new(bench.device.allocate(&MemoryRequest::new(0, 128 << 20)).unwrap());
    let all = [(); 3].map(|()| span(&memory, 0, 128 << 20));
    let product = Products::load(&bench).call(Kind::Bf16, &[1, 8192, 8192, 8192], &all);
    let stopped = bench.submit(COMPUTE, product);
    support::until("the engine multiplies", || emulator.counts(0).chip.engine.matrix > 1000);
    drop((bench, memory, all));
    until_known(&stopped).unwrap_err();
    drop(stopped);
    // The thread that completed the product may be the one that lets go of the card.
    support::until("the card is closed", || emulator.counts(0).files == 0);

    let bench = device();
    let memory = bench.memory(&[0; 4096]);
    let all = [(); 3].map(|()| span(&memory, 0, 4096));
    let refused = bench.run(Products::load(&bench).call(Kind::Bf16, &[1, 8, 8, 8], &all)).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("in the middle of a product"), "{refused}");
    check(&bench, Kind::Bf16, [1, 8, 8, 8], "4", [0; 3]);
}

/// What does not fit into a tile, not even one square at a time, is refused before anything is done.
#[test]
fn product_whose_pages_do_not_fit_is_refused_with_numbers() {
    let bench = Bench::new(&[("l1", "512")]);
    let products = Products::load(&bench);
    let memory = |bytes| Arc::new(bench.device.allocate(&MemoryRequest::new(0, bytes)).unwrap());
    let (a, b, c) = (memory(600 << 20), memory(64), memory(600 << 20));
    let bindings = [span(&a, 0, 600 << 20), span(&b, 0, 4), span(&c, 0, 600 << 20)];
    let refused = bench.run(products.call(Kind::Bf16, &[1, 300 << 20, 1, 1], &bindings)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    for part in ["M=314572800", "table of the pages", "(2457", "l1="] {
        assert!(refused.message().contains(part), "{part:?} in {refused}");
    }
}

/// Wormhole's engine has the same results, to the bit.
#[test]
fn n150_gives_the_same() {
    let of = |output: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(output).into_owned();
        text.lines().filter(|line| line.contains(", bits ")).map(str::to_owned).collect()
    };
    let names = ["products_of_a_batch", "products_without", "numbers_that_are_none", "stopped"];
    let run = |board: &str| {
        let mut command = support::on_a_board(support::again(&names), board);
        let output = command.args(["--nocapture", "--test-threads=1"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        of(&output.stdout)
    };
    let found = run("n150");
    assert!(found.len() > 3, "{found:?}");
    assert_eq!(found, run("p150"));
}

#[test]
fn simulators_library_gives_the_same() {
    support::the_same_on_a_library("blackhole", &["products_of_all_shapes_are_right"]);
}

/// The result of a product, and what tiles did for it, beside what they do to load its function: the numbers of the
/// card's report.
fn costs(board: &str, tiles: &str, case: &Case<'_>) -> (Vec<f32>, Vec<u64>) {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("products-{}-{tiles}", std::process::id()));
    let report = |run: &mut dyn FnMut(&Bench)| -> Vec<u64> {
        let report = ("report", path.to_str().unwrap());
        let bench = Bench::new(&[("board", board), ("tiles", tiles), ("l1", "0"), report]);
        run(&bench);
        drop(bench);
        let report = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let numbers = report.split(|character: char| !character.is_ascii_digit());
        numbers.filter_map(|number| number.parse().ok()).collect()
    };
    let before = report(&mut |bench| drop(Products::load(bench)));
    let mut found = Vec::new();
    let after = report(&mut |bench| found = case.run(bench).unwrap());
    (found, after.iter().zip(&before).map(|(after, before)| after - before).collect())
}

/// A number as people read it.
fn grouped(number: u64) -> String {
    match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{},{:03}", grouped(thousands), number % 1000),
    }
}

/// How a product of two square matrices is divided over tiles, and what it then costs.
struct Divided {
    tiles: u64,
    /// The rows and columns of a block of results.
    block: [u64; 2],
    words: u64,
    packets_read: u64,
    packets_written: u64,
    /// How many nanoseconds a tile unpacks and the banks are busy, on paper.
    nanoseconds: [u64; 2],
}

impl Divided {
    /// Compares what was counted with what the division says, and prints a row of the table.
    fn check(&self, side: u64, megahertz: u64, bandwidth: u64, costs: &[u64]) {
        let &[_, _, _, launches, _, words, packets_read, bytes_read, packets_written, bytes_written, ..] =
            costs
        else {
            panic!("{costs:?}")
        };
        let Self { tiles, block: [down, across], .. } = *self;
        let blocks = (side / down) * (side / across);
        // Each square of 32 by 32 of the left operand is unpacked for up to four of the right one.
        let squares = blocks * (down / 32) * ((across / 32).div_ceil(4) + across / 32) * (side / 32);
        // A square is unpacked in 128 cycles.
        let unpack = squares / tiles * 128 * 1000 / megahertz;
        let memory = (bytes_read + bytes_written) / bandwidth;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let [unpacked, moved, rate] = [
            unpack as f64 / 1e3,
            memory as f64 / 1e3,
            (2 * side.pow(3)) as f64 / unpack.max(memory) as f64 / 1e3,
        ];
        println!(
            "| {tiles} | {down} by {across} | {} | {}, {} | {}, {} | {unpacked:.1} µs | {moved:.1} µs | {rate:.1} |",
            grouped(words),
            grouped(bytes_read),
            grouped(packets_read),
            grouped(bytes_written),
            grouped(packets_written),
        );
        assert_eq!((launches, words), (tiles, self.words));
        assert_eq!((packets_read, bytes_read), (self.packets_read, blocks * (down + across) * side * 2));
        assert_eq!((packets_written, bytes_written), (self.packets_written, side * side * 4));
        assert_eq!([unpack, memory], self.nanoseconds);
        // A square is unpacked by 64 instructions, and multiplied by 64 in four phases; few others are needed.
        let least = 64 * (squares + (side / 32).pow(3));
        assert!((least..least * 115 / 100).contains(&words), "{words} for {least}");
    }
}

/// A tile reads the rows and the columns of each of its blocks once, and results do not depend on how many there are.
/// The table for a p150 is that of `docs/tenstorrent.md`.
#[test]
fn products_cost_what_their_division_says() {
    let divided = |tiles, block, words, packets_read, packets_written, nanoseconds| Divided {
        tiles,
        block,
        words,
        packets_read,
        packets_written,
        nanoseconds,
    };
    let p150 = [
        divided(1, [512, 256], 638_750, 8448, 2048, [485_451, 5120]),
        divided(8, [128, 256], 638_960, 12_288, 2048, [60_681, 8192]),
        divided(64, [64, 64], 730_496, 49_152, 4096, [9102, 18_432]),
    ];
    let n150 = [
        divided(1, [256, 256], 82_015, 1056, 512, [81_920, 1820]),
        divided(8, [64, 128], 82_232, 4096, 512, [10_240, 3640]),
    ];
    // The clock in MHz and the GB/s of all banks are public figures.
    for (board, megahertz, bandwidth, side, rows) in
        [("p150", 1350, 512, 512, &p150[..]), ("n150", 1000, 288, 256, &n150)]
    {
        let (a, b) = (numbers(Kind::Bf16ToF32, side * side, 3), numbers(Kind::Bf16ToF32, side * side, 7));
        let shape = [1, side, side, side];
        let case = Case { kind: Kind::Bf16ToF32, shape, a: &a, b: &b, offsets: [0; 3] };
        let expected = reference(shape, &a, &b);
        println!("{board}, {side} by {side} by {side}, BF16 to FP32, in four phases");
        println!(
            "| tiles | a block | engine's instructions | bytes read, packets | written | unpack | DRAM | TFLOP/s |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        let mut first = None;
        for row in rows {
            let (found, costs) = costs(board, &row.tiles.to_string(), &case);
            let error = norm_of_errors(&found, &expected);
            assert!(error < 2e-4, "{board}, {} tiles: {error}", row.tiles);
            assert_eq!(*first.get_or_insert(sum_of_bits(&found)), sum_of_bits(&found), "{board}");
            row.check(side.into(), megahertz, bandwidth, &costs);
        }
    }
}
