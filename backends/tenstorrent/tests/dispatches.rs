// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's kernels on the tiles of an emulated card: results, however the work is divided and wherever its memory is.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use hal_backend::{Code, Device, HostRange, MemoryRequest, Purpose};
use hal_tenstorrent::Executable;
use std::sync::{Arc, OnceLock};
use support::compiler::{INTEGERS, compile};
use support::{Bench, bytes_of, call, floats_of, host, numbers, span, whole};

/// `multiply_add`, a thousand elements: two inputs, one output.
const MULTIPLY_ADD: usize = 0;
const SOFTMAX: usize = 2;
const DIVIDE: usize = 3;

fn floats(bench: &Bench) -> Arc<Executable> {
    static KERNELS: OnceLock<Vec<u8>> = OnceLock::new();
    bench.load(KERNELS.get_or_init(|| compile("dispatches", "floats.mlir", bench.floats()))).unwrap()
}

/// A product of 128 by 64 and 64 by 128, in doubles.
fn product(a: &[f32], b: &[f32]) -> Vec<f64> {
    let entry = |row: usize, column: usize| -> f64 {
        (0..64).map(|k| f64::from(a[row * 64 + k]) * f64::from(b[k * 128 + column])).sum()
    };
    (0..128 * 128).map(|index| entry(index / 128, index % 128)).collect()
}

fn assert_near(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        // Not "is larger": a NaN is no result.
        assert!(error <= tolerance, "{index}: {found} instead of {expected}");
    }
}

#[test]
fn workgroups_are_shared_by_tiles_and_cores() {
    let file = compile("shared", "distributed.mlir", Bench::new(&[]).floats());
    let (a, b) = (numbers(128 * 64, 3), numbers(64 * 128, 9));
    let expected = product(&a, &b);
    for (tiles, cores, paging, l1) in [
        ("1", "1", "auto", "0"),
        ("1", "5", "auto", "0"),
        ("3", "2", "auto", "0"),
        ("200", "5", "auto", "0"),
        ("1", "1", "always", "0"),
        ("3", "1", "always", "0"),
        // Buffers are in tiles, also in those that run the function.
        ("3", "2", "auto", "256"),
        ("3", "1", "always", "256:block"),
    ] {
        let bench = Bench::new(&[("tiles", tiles), ("cores", cores), ("paging", paging), ("l1", l1)]);
        let executable = bench.load(&file).unwrap();
        let (left, right) = (bench.memory(&bytes_of(&a)), bench.memory(&bytes_of(&b)));
        let result = bench.memory(&vec![0xff; 128 * 128 * 4]);
        let bindings = [span(&left, 0, 32_768), span(&right, 0, 32_768), span(&result, 0, 65_536)];
        // Eight rows each.
        let outcome = bench.run(call(&executable, 0, [16, 1, 1], &bindings));
        assert!(outcome.is_ok(), "{tiles} tiles, {cores} cores, paging {paging}, l1={l1}: {outcome:?}");
        let found = floats_of(&bench.read(&result, 0, 65_536));
        assert_near(&found, &expected, 1e-3);
    }
}

/// Multiplies and adds in one buffer that is larger than a page for each tile.
fn one_buffer_has_everything(bench: &Bench, (x, y): (&[f32], &[f32]), expected: &[f64]) {
    let executable = floats(bench);
    let memory = bench.memory(&vec![0xaa; 2_000_000]);
    let [first, second, third] = [52, 330_032, 1_700_004];
    bench.write(&memory, first, &bytes_of(x));
    bench.write(&memory, second, &bytes_of(y));
    let bindings = [span(&memory, first, 4000), span(&memory, second, 4000), span(&memory, third, 4000)];
    bench.run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &bindings)).unwrap();
    let all = bench.read(&memory, 0, 2_000_000);
    assert_near(&floats_of(&all[1_700_004..1_704_004]), expected, 1e-5);
    let untouched = |range: std::ops::Range<usize>| all[range].iter().all(|&byte| byte == 0xaa);
    assert!(untouched(0..52) && untouched(4052..330_032) && untouched(1_704_004..2_000_000));
}

#[test]
fn bindings_are_anywhere_and_may_be_the_same() {
    let (x, y) = (numbers(1000, 5), numbers(1000, 7));
    let expected: Vec<f64> =
        x.iter().zip(&y).map(|(x, y)| f64::from(*x) * f64::from(*y) + f64::from(*x)).collect();
    let same: Vec<f64> = x.iter().map(|x| f64::from(*x) * f64::from(*x) + f64::from(*x)).collect();

    // One buffer has everything, at offsets that are not round, across pages, banks and shards, and is in DRAM or in
    // tiles.
    for l1 in
        ["0", "64:interleaved", "64:height", "64:height-columns", "64:width", "64:block", "64:block-columns"]
    {
        let bench = Bench::new(&[("l1", l1), ("tiles", "1")]);
        one_buffer_has_everything(&bench, (&x, &y), &expected);
    }
    let bench = Bench::new(&[]);
    let executable = floats(&bench);

    // The result replaces an operand, by a binding that overlaps another one.
    let memory = bench.memory(&bytes_of(&x));
    let all = span(&memory, 0, 4000);
    bench.run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap();
    assert_near(&floats_of(&bench.read(&memory, 0, 4000)), &same, 1e-4);

    // Memory of the host, and the same memory twice.
    let (left, right) = (host(&bytes_of(&x)), host(&bytes_of(&y)));
    let result = HostRange::allocate(4100, 64).unwrap();
    assert!(result.fill(&[0x55]));
    let target = result.slice(64, 4000).unwrap();
    bench
        .run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &[whole(&left), whole(&right), whole(&target)]))
        .unwrap();
    assert_near(&floats_of(&support::contents(&target)), &expected, 1e-5);
    assert_eq!(support::contents(&result)[..64], [0x55; 64]);
    assert_eq!(support::contents(&result)[4064..], [0x55; 36]);
    bench
        .run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &[whole(&left), whole(&left), whole(&left)]))
        .unwrap();
    assert_near(&floats_of(&support::contents(&left)), &same, 1e-4);
}

#[test]
fn operations_that_cores_lack_are_provided() {
    let bench = Bench::new(&[]);
    let executable = floats(&bench);
    let (x, y) = (numbers(64, 5), numbers(64, 7));
    let (left, right, result) =
        (bench.memory(&bytes_of(&x)), bench.memory(&bytes_of(&y)), bench.memory(&[0; 256]));
    let bindings = [span(&left, 0, 256), span(&right, 0, 256), span(&result, 0, 256)];
    bench.run(call(&executable, DIVIDE, [1, 1, 1], &bindings)).unwrap();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x / y).collect();
    assert_eq!(floats_of(&bench.read(&result, 0, 256)), expected);

    let x = numbers(128, 5);
    let (input, output) = (bench.memory(&bytes_of(&x)), bench.memory(&[0; 512]));
    bench.run(call(&executable, SOFTMAX, [8, 1, 1], &[span(&input, 0, 512), span(&output, 0, 512)])).unwrap();
    let rows = x.chunks_exact(16).flat_map(|row| {
        let exponentials: Vec<f64> = row.iter().map(|&value| f64::from(value).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials.into_iter().map(move |value| value / sum)
    });
    assert_near(&floats_of(&bench.read(&output, 0, 512)), &rows.collect::<Vec<f64>>(), 1e-6);
}

#[test]
fn call_with_less_than_its_function_takes_is_refused() {
    let bench = Bench::new(&[]);
    let executable = floats(&bench);
    let memory = bench.memory(&[0; 4000]);
    let refused =
        bench.run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &[span(&memory, 0, 4000)])).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("takes 3 bindings"), "{refused}");
    let bindings = [span(&memory, 0, 4000), span(&memory, 0, 4000), span(&memory, 0, 4000)];
    let refused = bench.run(call(&executable, 99, [1, 1, 1], &bindings)).unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange);
    let refused = bench.run(call(&executable, MULTIPLY_ADD, [1, 1, 70_000], &bindings)).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("65535"), "{refused}");
    bench.run(call(&executable, MULTIPLY_ADD, [0, 7, 1], &bindings)).unwrap();
    let refused = bench.load(b"not an executable").unwrap_err();
    assert_eq!(refused.code(), Code::Incompatible);
    assert_eq!(bench.device.properties().queues.queues, 2);
}

#[test]
fn tiles_that_store_bytes_do_not_undo_each_others() {
    // The bytes that each tile stores are not whole words, and not on its own pages.
    let input: Vec<u8> = (0..777_u32).map(|at| u8::try_from(at % 256).unwrap()).collect();
    let expected: Vec<u8> = input.iter().map(|byte| byte / 2).collect();
    let file = compile("bytes", "bytes.mlir", &INTEGERS);
    for paging in ["auto", "always"] {
        let bench = Bench::new(&[("tiles", "7"), ("paging", paging)]);
        let executable = bench.load(&file).unwrap();
        let (source, target) = (bench.memory(&input), bench.memory(&[0xee; 777]));
        let bindings = [span(&source, 0, 777), span(&target, 0, 777)];
        bench.run(call(&executable, 0, [1, 1, 1], &bindings)).unwrap();
        assert_eq!(bench.read(&target, 0, 777), expected);
    }
}

#[test]
fn bindings_that_do_not_fit_into_a_tile_are_brought_page_by_page() {
    // Three times 8 MB.
    const COUNT: usize = 2_000_000;
    let bench = Bench::new(&[("tiles", "2")]);
    let executable = bench.load(&compile("large", "large.mlir", bench.floats())).unwrap();
    let (x, y) = (numbers(COUNT, 5), numbers(COUNT, 7));
    let (left, right) = (bench.memory(&bytes_of(&x)), bench.memory(&bytes_of(&y)));
    let length = 4 * COUNT as u64;
    let result = bench.memory(&vec![0xff; 4 * COUNT]);
    let bindings = [span(&left, 0, length), span(&right, 0, length), span(&result, 0, length)];
    bench.run(call(&executable, 0, [1, 1, 1], &bindings)).unwrap();
    let found = floats_of(&bench.read(&result, 0, length));
    // One workgroup does some of it, from the beginning on, and nothing else is written.
    let done = found.iter().position(|value| value.is_nan()).unwrap_or(COUNT);
    assert!(done > 0 && found[done..].iter().all(|value| value.to_bits() == u32::MAX), "{done} elements");
    let expected: Vec<f64> = x.iter().zip(&y).map(|(x, y)| f64::from(*x) * f64::from(*y)).collect();
    assert_near(&found[..done], &expected[..done], 1e-5);
}

#[test]
fn binding_whose_pages_alone_do_not_fit_is_refused_with_numbers() {
    const LENGTH: u64 = 512 << 20;
    let bench = Bench::new(&[("tiles", "1")]);
    let executable = floats(&bench);
    let large = Arc::new(bench.device.allocate(&MemoryRequest::new(0, LENGTH)).unwrap());
    let all = span(&large, 0, LENGTH);
    let refused =
        bench.run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let l1: u32 = if bench.device.card().board() == "n150" { 1464 << 10 } else { 1536 << 10 };
    // Pages of 4 KiB, of which each takes 16 bytes of a tile's memory.
    for part in [
        format!("{} bytes", l1 - 65536).as_str(),
        "l1= has the other 65536",
        "131072 pages",
        "(2097152)",
        "its stack (32768)",
        "bind less",
    ] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    // The queue goes on.
    let small = bench.memory(&bytes_of(&numbers(1000, 5)));
    let all = span(&small, 0, 4000);
    bench.run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap();
}

#[test]
fn small_buffers_are_in_tiles_while_there_is_room_and_others_in_dram() {
    // Two rows of a page in each of its tiles but the one that asks executables.
    let parameters = [("l1", "8"), ("seed", "860003")];
    let bench = Bench::of(support::open(&parameters).unwrap());
    let row = 4096 * (bench.device.card().grid().tiles().len() as u64 - 1);
    let place = |length: u64| {
        let memory = Arc::new(bench.device.allocate(&MemoryRequest::new(0, length)).unwrap());
        let is_near = format!("{memory:?}").contains("L1");
        (memory, is_near)
    };
    let (first, is_near) = place(row);
    assert!(is_near, "{first:?}");
    let (larger, is_near) = place(row + 1);
    assert!(!is_near, "{larger:?}");
    let (second, is_near) = place(1);
    assert!(is_near, "{second:?}");
    let (third, is_near) = place(1);
    assert!(!is_near, "{third:?}");
    // The same row of two pools is not the same memory.
    for (byte, memory) in (1..).zip([&first, &larger, &second, &third]) {
        bench.write(memory, 0, &[byte]);
    }
    for (byte, memory) in (1..).zip([&first, &larger, &second, &third]) {
        assert_eq!(bench.read(memory, 0, 1), [byte]);
    }
    drop(first);
    let (again, is_near) = place(4096);
    assert!(is_near, "{again:?}");
    // All devices of a card have it in common.
    let refused = support::open(&[("l1", "12"), ("seed", "860003"), ("open_timeout", "0")]).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("l1=8") && refused.message().contains("12"), "{refused}");
    assert!(support::open(&parameters).is_ok());
}

/// Rows are counted in each pool by itself: what bindings have in common is not found out by the row alone.
#[test]
fn buffers_at_the_same_place_of_dram_and_of_tiles_are_two() {
    let bench = Bench::new(&[("l1", "64"), ("tiles", "1")]);
    let executable = floats(&bench);
    let rows = |purpose| -> Vec<_> {
        let request = MemoryRequest::new(0, 4000).with_purpose(purpose);
        (0..16).map(|_| Arc::new(bench.device.allocate(&request).unwrap())).collect()
    };
    let (near, far) = (rows(Purpose::Dispatch), rows(Purpose::Transfer));
    let row = |memory: &Arc<hal_tenstorrent::Memory>| {
        let text = format!("{memory:?}");
        text.split_once("row ").unwrap().1.split(' ').next().unwrap().to_owned()
    };
    let both = near.iter().flat_map(|one| far.iter().map(move |other| (one, other)));
    let (one, other) = both.into_iter().find(|(one, other)| row(one) == row(other)).unwrap();
    assert!(format!("{one:?}").contains("L1") && format!("{other:?}").contains("DRAM"));
    let (x, y) = (numbers(1000, 5), numbers(1000, 7));
    let result = bench.memory(&[0; 4000]);
    bench.write(one, 0, &bytes_of(&x));
    bench.write(other, 0, &bytes_of(&y));
    let bindings = [span(one, 0, 4000), span(other, 0, 4000), span(&result, 0, 4000)];
    bench.run(call(&executable, MULTIPLY_ADD, [1, 1, 1], &bindings)).unwrap();
    let expected: Vec<f64> =
        x.iter().zip(&y).map(|(x, y)| f64::from(*x) * f64::from(*y) + f64::from(*x)).collect();
    assert_near(&floats_of(&bench.read(&result, 0, 4000)), &expected, 1e-5);
}

#[test]
fn simulators_library_gives_the_same() {
    support::the_same_on_a_library("blackhole", &[]);
    // Floats take their time there.
    support::the_same_on_a_library("wormhole", &["workgroups_are_shared_by_tiles_and_cores"]);
}

#[test]
fn n150_gives_the_same() {
    support::the_same_on_an_n150();
}
