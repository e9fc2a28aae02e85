// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Every kind, type and reduction, on 1 to 8 ranks with odd sizes, against a plain model: lists of numbers that are
//! gathered, divided, and folded by joining neighbours.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]
#![allow(clippy::cast_possible_truncation, reason = "rounding to a type is what is tested")]

mod common;

use common::{LONG, Random, Started, bytes, group, memory, read, start};
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, Reduction};
use half::{bf16, f16};
use std::sync::{Arc, OnceLock};

const RANKS: [u32; 6] = [1, 2, 3, 4, 7, 8];
/// Odd sizes. The largest needs more than one block of memory, which once is enough for.
fn counts(ranks: u32) -> &'static [u64] {
    if ranks == 3 { &[0, 1, 3, 33, 4099] } else { &[0, 1, 3, 33, 257] }
}

/// The bits of an integer type, and whether it is signed; `None` for floating-point types.
fn integer(element: Element) -> Option<(u32, bool)> {
    Some(match element {
        Element::I8 => (8, true),
        Element::U8 => (8, false),
        Element::I16 => (16, true),
        Element::U16 => (16, false),
        Element::I32 => (32, true),
        Element::U32 => (32, false),
        Element::I64 => (64, true),
        Element::U64 => (64, false),
        Element::F16 | Element::F32 | Element::F64 | Element::Bf16 => return None,
    })
}

/// A number wrapped to the range of a type as hardware does it: the low bits count.
fn wrapped(value: i128, (bits, signed): (u32, bool)) -> i128 {
    let low = value.rem_euclid(1 << bits);
    if signed && low >= 1 << (bits - 1) { low - (1 << bits) } else { low }
}

fn fold_integers(reduction: Reduction, values: &[i128], kind: (u32, bool)) -> i128 {
    let count = values.len() as i128;
    let rest = values.iter().copied().skip(1);
    let product = |a: i128, b: i128| wrapped(wrapped(a, kind).wrapping_mul(wrapped(b, kind)), kind);
    match reduction {
        Reduction::Sum => wrapped(values.iter().sum(), kind),
        Reduction::Product => rest.fold(values[0], product),
        Reduction::Minimum => *values.iter().min().unwrap(),
        Reduction::Maximum => *values.iter().max().unwrap(),
        Reduction::Average => values.iter().sum::<i128>() / count,
    }
}

/// Joins neighbours until one is left. If their number is no power of two, the first pairs that make it one are
/// joined before.
fn join_neighbours(mut values: Vec<f64>, join: &dyn Fn(f64, f64) -> f64) -> f64 {
    let power = (1..).map(|bits| 1 << bits).find(|power| *power > values.len()).unwrap() / 2;
    let mut paired = 2 * (values.len() - power);
    while values.len() > 1 {
        if paired == 0 {
            paired = values.len();
        }
        let (front, back) = values.split_at(paired);
        values = front.chunks(2).map(|pair| join(pair[0], pair[1])).chain(back.iter().copied()).collect();
        paired = 0;
    }
    values[0]
}

/// The smaller one, -0 before +0, and not a number if one of them is not.
fn least(a: f64, b: f64) -> f64 {
    let smaller = if a.total_cmp(&b).is_lt() { a } else { b };
    if a.is_nan() || b.is_nan() { f64::NAN } else { smaller }
}

/// Each step is rounded by `round`.
fn fold_floats(reduction: Reduction, values: &[f64], round: fn(f64) -> f64) -> f64 {
    let count = values.len() as f64;
    let values = values.to_vec();
    match reduction {
        Reduction::Sum => join_neighbours(values, &|a, b| round(a + b)),
        Reduction::Product => join_neighbours(values, &|a, b| round(a * b)),
        Reduction::Minimum => join_neighbours(values, &least),
        Reduction::Maximum => join_neighbours(values, &|a, b| -least(-a, -b)),
        Reduction::Average => round(join_neighbours(values, &|a, b| round(a + b)) / count),
    }
}

/// The 16-bit number nearest to a value, ties to even, found by trying all: `numbers` has the non-negative ones in
/// the order of their bits, up to infinity.
fn nearest(value: f64, numbers: &[f64]) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let above = numbers.partition_point(|number| *number < value.abs());
    let Some(below) = above.checked_sub(1) else { return sign };
    let last = numbers.len() - 1;
    // In place of infinity, the next finite number.
    let next = if above >= last { 2.0 * numbers[last - 1] - numbers[last - 2] } else { numbers[above] };
    let (down, up) = (value.abs() - numbers[below.min(last)], next - value.abs());
    let even = if below.is_multiple_of(2) { below } else { above };
    let bits = if down < up {
        below
    } else if up < down {
        above
    } else {
        even
    };
    sign | u16::try_from(bits.min(last)).unwrap()
}

/// The non-negative numbers of a 16-bit type, with infinity.
fn numbers_of(element: Element) -> &'static [f64] {
    static NUMBERS: [OnceLock<Vec<f64>>; 2] = [OnceLock::new(), OnceLock::new()];
    let decode = |bits| match element {
        Element::F16 => f16::from_bits(bits).to_f64(),
        _ => bf16::from_bits(bits).to_f64(),
    };
    let all = || (0..0x8000).map(decode).take_while(|number| !number.is_nan()).collect();
    NUMBERS[usize::from(element == Element::F16)].get_or_init(all)
}

/// A number of a type as it is in memory. Not-a-number has one form.
fn encode(element: Element, value: f64) -> Vec<u8> {
    match element {
        Element::F16 | Element::Bf16 => {
            let bits = if value.is_nan() { u16::MAX } else { nearest(value, numbers_of(element)) };
            bits.to_le_bytes().to_vec()
        }
        Element::F32 => (value as f32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

fn decode(element: Element, bytes: &[u8]) -> f64 {
    match element {
        Element::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        Element::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        Element::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    }
}

fn single(value: f64) -> f64 {
    f64::from(value as f32)
}

/// Folds the elements of several ranks, as bytes.
fn folded(element: Element, reduction: Reduction, ranks: &[&[u8]]) -> Vec<u8> {
    let size = usize::try_from(element.size()).unwrap();
    let column = |at: usize| ranks.iter().map(move |rank| &rank[at * size..(at + 1) * size]);
    let one = |at: usize| -> Vec<u8> {
        if let Some(kind) = integer(element) {
            let value = |bytes: &[u8]| {
                let mut wide = [0; 16];
                wide[..size].copy_from_slice(bytes);
                wrapped(i128::from_le_bytes(wide), kind)
            };
            let values: Vec<i128> = column(at).map(value).collect();
            return fold_integers(reduction, &values, kind).to_le_bytes()[..size].to_vec();
        }
        let values: Vec<f64> = column(at).map(|bytes| decode(element, bytes)).collect();
        let round = if element == Element::F64 { |value| value } else { single };
        encode(element, fold_floats(reduction, &values, round))
    };
    (0..ranks.first().map_or(0, |first| first.len() / size)).flat_map(one).collect()
}

/// Elements that can be reduced: any integers, and floating-point numbers of a middling size with all of their
/// digits.
fn numbers(random: &mut Random, element: Element, count: u64) -> Vec<u8> {
    if integer(element).is_some() {
        return bytes(random, element, count);
    }
    let mut number = || random.below(1 << 52) as f64 / (1_u64 << 48) as f64 - 8.0;
    (0..count)
        .flat_map(|_| match element {
            Element::F16 => f16::from_f64(number()).to_le_bytes().to_vec(),
            Element::Bf16 => bf16::from_f64(number()).to_le_bytes().to_vec(),
            Element::F32 => (number() as f32).to_le_bytes().to_vec(),
            _ => number().to_le_bytes().to_vec(),
        })
        .collect()
}

/// The elements that each rank sends, and those that it must get.
struct Case {
    operations: Vec<Operation>,
    send: Vec<Vec<u8>>,
    expected: Vec<Option<Vec<u8>>>,
}

fn case(random: &mut Random, element: Element, count: u64, ranks: u32, kind: Kind) -> Case {
    let size = usize::try_from(element.size()).unwrap();
    let all = 0..ranks as usize;
    let one = usize::try_from(count).unwrap() * size;
    let sends = if matches!(kind, Kind::ReduceScatter(_)) { count * u64::from(ranks) } else { count };
    let send: Vec<Vec<u8>> = all.clone().map(|_| numbers(random, element, sends)).collect();
    let borrowed: Vec<&[u8]> = send.iter().map(Vec::as_slice).collect();
    let expected: Vec<Option<Vec<u8>>> = match kind {
        Kind::AllGather => all.clone().map(|_| Some(send.concat())).collect(),
        Kind::AllReduce(reduction) => {
            all.clone().map(|_| Some(folded(element, reduction, &borrowed))).collect()
        }
        Kind::AllToAll => {
            let part = one / ranks as usize;
            let row =
                |to: usize| send.iter().flat_map(move |from| &from[to * part..(to + 1) * part]).copied();
            all.clone().map(|to| Some(row(to).collect())).collect()
        }
        Kind::Broadcast { root } => {
            let root = root as usize;
            all.clone().map(|rank| (rank != root).then(|| send[root].clone())).collect()
        }
        Kind::Reduce { reduction, root } => {
            let root = root as usize;
            all.clone().map(|rank| (rank == root).then(|| folded(element, reduction, &borrowed))).collect()
        }
        Kind::ReduceScatter(reduction) => {
            let whole = folded(element, reduction, &borrowed);
            all.clone().map(|rank| Some(whole[rank * one..(rank + 1) * one].to_vec())).collect()
        }
        Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. } => {
            unreachable!("these have tests of their own")
        }
    };
    let operations = all.map(|_| Operation { kind, element, count }).collect();
    Case { operations, send, expected }
}

fn run(random: &mut Random, members: &[Arc<dyn Communicator>], case: &Case) {
    let ranks = u32::try_from(members.len()).unwrap();
    let mut order: Vec<usize> = (0..members.len()).collect();
    random.shuffle(&mut order);
    let untouched = 0xA5;
    let receivers: Vec<_> = (0..ranks)
        .zip(&case.operations)
        .map(|(rank, operation)| {
            let bytes = operation.places(rank, ranks).recv.unwrap_or(8);
            memory(&vec![untouched; usize::try_from(bytes).unwrap()])
        })
        .collect();
    let started: Vec<Started> = order
        .iter()
        .map(|&rank| {
            let send = Some(memory(&case.send[rank]));
            let recv = Some(receivers[rank].clone());
            start(&members[rank], case.operations[rank], Buffers { send, recv }).unwrap()
        })
        .collect();
    for started in started {
        started.outcome().unwrap();
    }
    for (rank, (got, expected)) in receivers.iter().zip(&case.expected).enumerate() {
        let expected = expected.clone().unwrap_or_else(|| vec![untouched; 8]);
        let got = read(got);
        let differs = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        let what = case.operations[rank];
        assert_eq!(differs, None, "{what}: rank {rank} of {ranks} has another byte there");
        assert_eq!(got.len(), expected.len());
    }
}

#[test]
fn reductions_are_right_for_every_type_and_number_of_ranks() {
    let mut random = Random::new(1);
    for ranks in RANKS {
        let members = group(ranks, LONG);
        for element in Element::ALL {
            for reduction in Reduction::ALL {
                for &count in counts(ranks) {
                    let root = u32::try_from(random.below(u64::from(ranks))).unwrap();
                    for kind in [
                        Kind::AllReduce(reduction),
                        Kind::Reduce { reduction, root },
                        Kind::ReduceScatter(reduction),
                    ] {
                        let case = case(&mut random, element, count, ranks, kind);
                        run(&mut random, &members, &case);
                    }
                }
            }
        }
    }
}

/// Boundary numbers of a type, and anything that its bits can encode: subnormal numbers, infinities and
/// not-a-numbers.
fn edges(random: &mut Random, element: Element, count: u64) -> Vec<u8> {
    let any = |random: &mut Random| match element {
        // One in six is not a number, and as many are infinite.
        Element::F16 => f64::from(f16::from_bits(random.below(1 << 16) as u16)),
        Element::Bf16 => f64::from(bf16::from_bits(random.below(1 << 16) as u16)),
        Element::F32 => f64::from(f32::from_bits(random.below(1 << 32) as u32)),
        _ => f64::from_bits(random.below(1 << 53) << 11 | random.below(1 << 11)),
    };
    let (largest, smallest) = match element {
        Element::F16 => (f16::MAX.to_f64(), 2_f64.powi(-24)),
        Element::Bf16 => (bf16::MAX.to_f64(), 2_f64.powi(-133)),
        Element::F32 => (f64::from(f32::MAX), 2_f64.powi(-149)),
        _ => (f64::MAX, f64::from_bits(1)),
    };
    let known = [largest, smallest, 0.0, f64::INFINITY, 1.0, f64::NAN];
    (0..count)
        .flat_map(|_| {
            let value = match known.get(usize::try_from(random.below(12)).unwrap()) {
                Some(&value) => value.copysign(random.below(2) as f64 - 0.5),
                None => any(random),
            };
            encode(element, value)
        })
        .collect()
}

#[test]
fn reductions_are_right_where_numbers_end() {
    let mut random = Random::new(4);
    for ranks in [1, 2, 3, 8] {
        let members = group(ranks, LONG);
        for element in [Element::F16, Element::Bf16, Element::F32, Element::F64] {
            for reduction in Reduction::ALL {
                let send: Vec<Vec<u8>> = (0..ranks).map(|_| edges(&mut random, element, 4099)).collect();
                let operation = Operation { kind: Kind::AllReduce(reduction), element, count: 4099 };
                let recv: Vec<_> = send.iter().map(|bytes| memory(&vec![0; bytes.len()])).collect();
                let started: Vec<Started> = members
                    .iter()
                    .zip(send.iter().zip(&recv))
                    .map(|(member, (send, recv))| {
                        let buffers = Buffers { send: Some(memory(send)), recv: Some(recv.clone()) };
                        start(member, operation, buffers).unwrap()
                    })
                    .collect();
                started.iter().for_each(|started| started.outcome().unwrap());
                let got: Vec<Vec<u8>> = recv.iter().map(read).collect();
                assert!(got.iter().all(|other| *other == got[0]), "{operation} differs among {ranks} ranks");
                let size = usize::try_from(element.size()).unwrap();
                let borrowed: Vec<&[u8]> = send.iter().map(Vec::as_slice).collect();
                let expected = folded(element, reduction, &borrowed);
                for (at, (got, expected)) in got[0].chunks(size).zip(expected.chunks(size)).enumerate() {
                    let [number, right] = [got, expected].map(|bytes| decode(element, bytes));
                    let folded: Vec<f64> =
                        send.iter().map(|bytes| decode(element, &bytes[at * size..][..size])).collect();
                    let is_right = got == expected || number.is_nan() && right.is_nan();
                    assert!(is_right, "{operation}: {folded:?} came to {number} and not {right}");
                }
            }
        }
    }
}

#[test]
fn averages_of_integers_are_those_of_the_exact_sum() {
    let average = |element: Element, values: [i128; 3]| {
        let members = group(3, LONG);
        let size = usize::try_from(element.size()).unwrap();
        let recv: Vec<_> = (0..3).map(|_| memory(&vec![0; size])).collect();
        let operation = Operation { kind: Kind::AllReduce(Reduction::Average), element, count: 1 };
        let started: Vec<Started> = members
            .iter()
            .zip(values.iter().zip(&recv))
            .map(|(member, (value, recv))| {
                let send = Some(memory(&value.to_le_bytes()[..size]));
                start(member, operation, Buffers { send, recv: Some(recv.clone()) }).unwrap()
            })
            .collect();
        started.iter().for_each(|started| started.outcome().unwrap());
        let mut wide = [0; 16];
        wide[..size].copy_from_slice(&read(&recv[2]));
        wrapped(i128::from_le_bytes(wide), integer(element).unwrap())
    };
    for element in Element::ALL {
        let Some((bits, signed)) = integer(element) else { continue };
        let (least, most) =
            if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        assert_eq!(average(element, [most; 3]), most, "{element}");
        assert_eq!(average(element, [least; 3]), least, "{element}");
        assert_eq!(average(element, [most, most, most - 1]), most - 1, "{element}");
        if signed {
            assert_eq!(average(element, [-1, -1, 0]), 0, "{element}");
            assert_eq!(average(element, [-3, -3, 1]), -1, "{element}");
            assert_eq!(average(element, [least, most, 0]), 0, "{element}");
        }
    }
}

#[test]
fn bytes_go_where_each_kind_says_for_every_type_and_number_of_ranks() {
    let mut random = Random::new(2);
    for ranks in RANKS {
        let members = group(ranks, LONG);
        for element in Element::ALL {
            for &count in counts(ranks) {
                let root = u32::try_from(random.below(u64::from(ranks))).unwrap();
                for (kind, count) in [
                    (Kind::AllGather, count),
                    (Kind::AllToAll, count * u64::from(ranks)),
                    (Kind::Broadcast { root }, count),
                ] {
                    let case = case(&mut random, element, count, ranks, kind);
                    run(&mut random, &members, &case);
                }
            }
        }
    }
}

/// Lengths around those at which threads divide a part.
#[test]
fn parts_that_threads_share_are_moved_whole() {
    let mut random = Random::new(3);
    for ranks in [2, 3, 8] {
        let members = group(ranks, LONG);
        for count in [4097, 8192, 8193, 16_383, 37_501, 131_071] {
            for kind in [Kind::AllGather, Kind::AllReduce(Reduction::Maximum)] {
                let case = case(&mut random, Element::U64, count, ranks, kind);
                run(&mut random, &members, &case);
            }
        }
    }
}

#[test]
fn transfers_go_from_each_rank_to_each() {
    let mut random = Random::new(3);
    for ranks in RANKS {
        let members = group(ranks, LONG);
        for shift in 0..ranks {
            for &count in counts(ranks) {
                let element = Element::ALL[usize::try_from(random.below(12)).unwrap()];
                let sent: Vec<Vec<u8>> = (0..ranks).map(|_| bytes(&mut random, element, count)).collect();
                let length = sent[0].len();
                let (mut started, mut got) = (Vec::new(), Vec::new());
                for rank in 0..ranks {
                    let (to, from) = ((rank + shift) % ranks, (rank + ranks - shift) % ranks);
                    let recv = memory(&vec![0xA5; length]);
                    let member = &members[rank as usize];
                    let send = Some(memory(&sent[rank as usize]));
                    if rank.is_multiple_of(2) {
                        let kind = Kind::SendRecv { to: Some(to), from: Some(from) };
                        let buffers = Buffers { send, recv: Some(recv.clone()) };
                        started.push(start(member, Operation { kind, element, count }, buffers).unwrap());
                    } else {
                        let kind = Kind::Send { to };
                        let buffers = Buffers { send, recv: None };
                        started.push(start(member, Operation { kind, element, count }, buffers).unwrap());
                        let kind = Kind::Recv { from };
                        let buffers = Buffers { send: None, recv: Some(recv.clone()) };
                        started.push(start(member, Operation { kind, element, count }, buffers).unwrap());
                    }
                    got.push((from, recv));
                }
                started.iter().for_each(|started| started.outcome().unwrap());
                for (from, recv) in got {
                    assert_eq!(
                        read(&recv),
                        sent[from as usize],
                        "{ranks} ranks, {count} {element} by {shift}"
                    );
                }
            }
        }
    }
}

#[test]
fn rank_with_none_to_receive_from_gets_zeros() {
    let members = group(3, LONG);
    let element = Element::F32;
    let recv: Vec<_> = (0..3).map(|_| memory(&[0xA5; 20])).collect();
    // Rank 0 sends to rank 1, which sends to none; rank 2 neither sends nor receives.
    let peers = [(Some(1), None), (None, Some(0)), (None, None)];
    let started: Vec<Started> = peers
        .into_iter()
        .enumerate()
        .map(|(rank, (to, from))| {
            let operation = Operation { kind: Kind::SendRecv { to, from }, element, count: 5 };
            let send = to.map(|_| memory(&[7; 20]));
            start(&members[rank], operation, Buffers { send, recv: Some(recv[rank].clone()) }).unwrap()
        })
        .collect();
    started.iter().for_each(|started| started.outcome().unwrap());
    assert_eq!(recv.iter().map(read).collect::<Vec<_>>(), [vec![0; 20], vec![7; 20], vec![0; 20]]);
}

#[test]
fn sent_memory_may_be_received_in_where_the_kind_allows_it() {
    for ranks in RANKS {
        let members = group(ranks, LONG);
        let count = 1000_u64;
        let whole = |rank: u32| -> Vec<u8> {
            (0..count * u64::from(ranks)).flat_map(|at| (at + u64::from(rank)).to_le_bytes()).collect()
        };
        let element = Element::U64;
        let memories: Vec<_> = (0..ranks).map(|rank| memory(&whole(rank))).collect();
        let go = |kind: Kind, of: &dyn Fn(u64) -> [(u64, u64); 2]| {
            let started: Vec<Started> = (0..ranks)
                .map(|rank| {
                    let memory = &memories[rank as usize];
                    let [send, recv] = of(u64::from(rank)).map(|(at, count)| memory.slice(at * 8, count * 8));
                    start(&members[rank as usize], Operation { kind, element, count }, Buffers { send, recv })
                        .unwrap()
                })
                .collect();
            started.iter().for_each(|started| started.outcome().unwrap());
        };
        let all = count * u64::from(ranks);
        // Each rank has its part of the sum, in its place, and then all ranks have all of it.
        go(Kind::ReduceScatter(Reduction::Sum), &|rank| [(0, all), (rank * count, count)]);
        go(Kind::AllGather, &|rank| [(rank * count, count), (0, all)]);
        let others: u64 = (0..u64::from(ranks)).sum();
        let sums: Vec<u8> = (0..all).flat_map(|at| (at * u64::from(ranks) + others).to_le_bytes()).collect();
        for memory in &memories {
            assert!(read(memory) == sums, "{ranks} ranks");
        }
        go(Kind::AllReduce(Reduction::Maximum), &|_| [(0, count), (0, count)]);
        assert!(read(&memories[0]) == sums);
    }
}

#[test]
fn half_precision_is_rounded_once() {
    // 2048 + 1 + 1 is 2050 in f16 only if the steps are not rounded to f16: 2048 + 1 would be 2048 again.
    let element = Element::F16;
    let members = group(3, LONG);
    let recv: Vec<_> = (0..3).map(|_| memory(&[0; 2])).collect();
    let started: Vec<Started> = [2048.0, 1.0, 1.0]
        .into_iter()
        .enumerate()
        .map(|(rank, value)| {
            let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element, count: 1 };
            let send = Some(memory(&f16::from_f32(value).to_le_bytes()));
            start(&members[rank], operation, Buffers { send, recv: Some(recv[rank].clone()) }).unwrap()
        })
        .collect();
    started.iter().for_each(|started| started.outcome().unwrap());
    for recv in &recv {
        assert_eq!(read(recv), f16::from_f32(2050.0).to_le_bytes());
    }
}

#[test]
fn extremes_keep_what_is_not_a_number_and_the_sign_of_zero() {
    let extreme = |reduction, values: [f32; 2]| {
        let members = group(2, LONG);
        let recv = memory(&[0; 4]);
        let mut started = Vec::new();
        for (member, value) in members.iter().zip(values) {
            let operation =
                Operation { kind: Kind::Reduce { reduction, root: 0 }, element: Element::F32, count: 1 };
            let buffers = Buffers { send: Some(memory(&value.to_le_bytes())), recv: Some(recv.clone()) };
            started.push(start(member, operation, buffers).unwrap());
        }
        started.iter().for_each(|started| started.outcome().unwrap());
        f32::from_le_bytes(read(&recv).try_into().unwrap())
    };
    for reduction in [Reduction::Minimum, Reduction::Maximum] {
        assert!(extreme(reduction, [f32::NAN, 1.0]).is_nan());
        assert!(extreme(reduction, [1.0, f32::NAN]).is_nan());
    }
    assert!(extreme(Reduction::Minimum, [0.0, -0.0]).is_sign_negative());
    assert!(extreme(Reduction::Minimum, [-0.0, 0.0]).is_sign_negative());
    assert!(extreme(Reduction::Maximum, [0.0, -0.0]).is_sign_positive());
    assert!(extreme(Reduction::Maximum, [-0.0, 0.0]).is_sign_positive());
}
