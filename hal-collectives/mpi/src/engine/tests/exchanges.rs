// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The large all-reduce of two ranks, which exchange what they have.

use super::*;
use hal_collectives::reduce;

/// Memory with bytes that are all finite numbers of each type.
fn numbers(seed: u64, bytes: u64) -> HostRange {
    let range = HostRange::allocate(bytes, 64).unwrap();
    let mut random = Random(seed);
    let bytes: Vec<u8> = (0..bytes).map(|_| u8::try_from(random.below(0x40)).unwrap()).collect();
    assert!(range.write(0, &bytes));
    range
}

fn bytes(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}

#[test]
fn two_ranks_get_the_same_bits_whatever_they_reduce_and_in_place() {
    use Reduction::{Average, Maximum, Minimum, Product, Sum};
    let (ranks, groups) = pair();
    for element in [Element::F32, Element::F16, Element::Bf16, Element::I8, Element::U64] {
        for (how, length) in [(Sum, 4096), (Product, 40_000), (Minimum, 8), (Maximum, 4096), (Average, 4104)]
        {
            let sources = [1, 2].map(|seed| numbers(seed, length));
            let mut expected = vec![0; usize::try_from(length).unwrap()];
            reduce(element, how, &sources, (0, length), &mut |at, bytes| {
                expected[usize::try_from(at).unwrap()..][..bytes.len()].copy_from_slice(bytes);
            });
            let count = length / element.size();
            let operation = Operation { kind: Kind::AllReduce(how), element, count };
            // The second rank works in place.
            let results = [HostRange::allocate(length, 64).unwrap(), sources[1].clone()];
            let told = [0, 1].map(|rank: usize| {
                let (tell, told) = channel();
                let send = Some(sources[rank].clone());
                let buffers = Buffers { send, recv: Some(results[rank].clone()) };
                let done = Box::new(move |end| tell.send(outcome(end)).unwrap_or_default());
                assert!(groups[rank].enter(operation).unwrap().start(buffers, done).is_none());
                told
            });
            poll_all(&ranks);
            assert!(told.iter().all(|told| told.try_recv() == Ok(Ok(()))), "{operation}");
            assert!(results.iter().all(|result| bytes(result) == expected), "{operation}");
        }
    }
}

/// One rank never comes: the other one's receive is told of in its time.
#[test]
fn exchange_whose_other_rank_does_not_come_fails_in_its_time() {
    let ranks = job(2);
    let terms = Terms { check: Check::Off, ..Terms::from(Duration::from_millis(100)) };
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", terms));
    meet(&ranks, &groups);
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(memory(&[1; 2000])), recv: Some(memory(&[0; 2000])) };
    sum_with(&*groups[0], buffers, Box::new(move |end| tell.send(outcome(end)).unwrap_or_default()));
    let begin = Instant::now();
    let end = loop {
        ranks.iter().for_each(Rank::poll);
        match told.try_recv() {
            Ok(end) => break end,
            Err(_) => assert!(begin.elapsed() < LONG),
        }
    };
    assert_eq!(end, Err(Code::DeadlineExceeded));
}
