// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs, against what other implementations made of them.
//!
//! `golden/wormhole-unicorn.txt` has Unicorn's results (QEMU's RISC-V), `golden/blackhole-ttsim.txt` those of
//! the vendor's simulator. `golden/README.md` says how they were made.

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use emulator_riscv::{Class, Hart, Isa, Ram, RunOutcome};
use support::{DATA, DATA_LENGTH, DONE, hash, program};

fn run(seed: u64, isa: Isa) -> (u64, Hart) {
    let words = program(seed, isa == Isa::Blackhole);
    let mut ram = Ram::new(0, 0x1_0000);
    for (place, word) in ram.bytes_mut().chunks_exact_mut(4).zip(&words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let mut hart = Hart::new(isa, 0);
    // It ends with a jump to itself.
    let outcome = hart.run(&mut ram, words.len() as u64);
    assert_eq!(outcome, RunOutcome::Idle, "program {seed}");
    assert_eq!(ram.get(DONE, 4), Some(&[1, 0, 0, 0][..]), "program {seed} did not come to its end");
    (hash(ram.get(DATA, DATA_LENGTH).expect("inside")), hart)
}

fn compare(golden: &str, isa: Isa) {
    let mut counts = CLASSES.map(|class| (class, 0));
    let mut programs = 0;
    for (seed, line) in golden.lines().enumerate() {
        let (hash, hart) = run(seed as u64, isa);
        assert_eq!(format!("{hash:016x}"), line, "program {seed}");
        programs += 1;
        for (class, count) in &mut counts {
            *count += hart.counts().of(*class);
        }
    }
    assert_eq!(programs, 400);
    for (class, count) in counts {
        let absent = match class {
            Class::System => true,
            Class::Float | Class::Atomic => isa == Isa::Wormhole,
            _ => false,
        };
        assert_eq!(count == 0, absent, "{class:?}");
    }
}

const CLASSES: [Class; Class::COUNT] = [
    Class::Integer,
    Class::Multiply,
    Class::Divide,
    Class::Jump,
    Class::Load,
    Class::Store,
    Class::Atomic,
    Class::System,
    Class::Float,
];

#[test]
fn integer_programs_end_as_in_unicorn() {
    compare(include_str!("golden/wormhole-unicorn.txt"), Isa::Wormhole);
}

#[test]
fn programs_with_floats_atomics_and_bit_operations_end_as_in_the_vendors_simulator() {
    compare(include_str!("golden/blackhole-ttsim.txt"), Isa::Blackhole);
}

#[test]
fn program_in_pieces_ends_as_in_one() {
    for seed in 0..20 {
        let words = program(seed, true);
        let mut ends = Vec::new();
        for budget in [u64::MAX, 1, 7] {
            let mut ram = Ram::new(0, 0x1_0000);
            for (place, word) in ram.bytes_mut().chunks_exact_mut(4).zip(&words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            let mut hart = Hart::new(Isa::Blackhole, 0);
            let mut outcome = RunOutcome::Budget;
            while outcome == RunOutcome::Budget && hart.executed() < 300 {
                let left = 300 - hart.executed();
                outcome = hart.run(&mut ram, budget.min(left));
            }
            assert!(matches!(outcome, RunOutcome::Budget | RunOutcome::Idle), "{outcome:?}");
            ends.push((hart.pc(), hart.counts(), ram.bytes().to_vec()));
        }
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "program {seed}");
    }
}
