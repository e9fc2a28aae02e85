// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Every way in which a program can be wrong, and that the core is as it was before.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

use emulator_riscv::{
    Bus, BusFault, Cause, Class, Hart, Isa, Op, Ram, Refusal, RunOutcome, Trap, Width, decode,
};
use proptest::prelude::*;

const CODE: u32 = 0x100;

/// Executes some words at [`CODE`], with addresses and values in registers 1 to 3.
fn run(isa: Isa, words: &[u32], registers: [u32; 3]) -> (Hart, RunOutcome, Ram) {
    let mut ram = Ram::new(0, 0x1000);
    for (index, word) in words.iter().enumerate() {
        let address = CODE + 4 * u32::try_from(index).unwrap();
        ram.store(address, Width::Word, *word).unwrap();
    }
    let mut hart = Hart::new(isa, CODE);
    for (register, value) in (1..).zip(registers) {
        hart.set_x(register, value);
    }
    let outcome = hart.run(&mut ram, 100);
    (hart, outcome, ram)
}

fn cause(isa: Isa, word: u32, registers: [u32; 3]) -> Cause {
    // One instruction that can be executed before the one that cannot.
    let (hart, outcome, ram) = run(isa, &[0x0000_0013, word], registers);
    let RunOutcome::Trap(Trap { pc, cause }) = outcome else { panic!("{word:#010x}: {outcome:?}") };
    assert_eq!((pc, hart.pc()), (CODE + 4, CODE + 4));
    assert_eq!(hart.counts().total(), 1);
    assert_eq!([hart.x(1), hart.x(2), hart.x(3)], registers, "{word:#010x}");
    assert!((4..32).all(|register| hart.x(register) == 0));
    assert!(ram.bytes()[CODE as usize + 8..].iter().all(|&byte| byte == 0));
    cause
}

fn refusal(isa: Isa, word: u32) -> Refusal {
    match cause(isa, word, [0x200, 4, 5]) {
        Cause::Instruction { word: named, refusal } if named == word => refusal,
        other => panic!("{word:#010x}: {other}"),
    }
}

#[test]
fn words_that_no_core_has_are_refused_by_name() {
    use Refusal::*;
    for (word, expected) in [
        (0xffff_ffff, Unknown),
        (0x0000_202b, Unknown),           // custom-1
        (0x0000_100f, Unknown),           // fence.i
        (0x0020_9063 | 2 << 12, Unknown), // a branch with function 3
        (0x0000_3003, Unknown),           // ld
        (0x0000_3023, Unknown),           // sd
        (0x0000_1067, Unknown),           // jalr with a function
        (0x3020_0073, Unknown),           // mret
        (0x4000_1013, Unknown),           // slli with srai's bit
        (0x6030_1013, Unknown),
        (0x6980_1013, Unknown),
        (0x4000_1033, Unknown),
        (0x0600_0033, Unknown),
    ] {
        for isa in [Isa::Wormhole, Isa::Blackhole] {
            assert_eq!(refusal(isa, word), expected, "{word:#010x} on {isa:?}");
        }
    }
}

#[test]
fn instruction_that_blackholes_float_unit_lacks_is_refused_by_name() {
    use Refusal::*;
    for (word, expected) in [
        (0x1820_8053, FloatDivision),
        (0x1820_f053, FloatDivision),
        (0x5800_f053, SquareRoot),
        (0xc000_9053, Rounding), // fcvt.w.s towards zero
        (0x0020_a053, Rounding), // fadd.s down
        (0x0020_8053, Rounding), // fadd.s, fsub.s, fmul.s, fmadd.s to the nearest even, said outright
        (0x0820_8053, Rounding),
        (0x1020_8053, Rounding),
        (0x1820_8043, Rounding),
        (0x0020_d053, Unknown),  // fadd.s with a rounding that does not exist
        (0x1820_9043, Rounding), // fmadd.s towards zero
        (0x0220_f053, OtherPrecision),
        (0x0420_f053, OtherPrecision),
        (0x0220_f043, OtherPrecision),
        (0x0000_b007, OtherPrecision), // fld
        (0x0000_9027, OtherPrecision), // fsh
        (0x0000_0057, Vector),
        (0x0000_0007, Vector),
        (0xc020_f053, Unknown), // fcvt.l.s
        (0x1000_202f, Reservation),
        (0x1800_202f, Reservation),
        (0x0000_302f, Unknown),
    ] {
        assert_eq!(refusal(Isa::Blackhole, word), expected, "{word:#010x}");
    }
}

#[test]
fn fence_is_refused_where_it_orders_nothing() {
    for fence in [0x0ff0_000f, 0x0330_000f, 0x0100_000f] {
        assert_eq!(refusal(Isa::Wormhole, fence), Refusal::Fence, "{fence:#010x}");
        assert!(decode(fence, Isa::Blackhole).is_ok());
    }
}

#[test]
fn conversion_may_name_the_nearest_even() {
    for word in [0xc000_8053, 0xc000_f053, 0xd000_8053, 0xd010_f053] {
        assert!(decode(word, Isa::Blackhole).is_ok(), "{word:#010x}");
    }
}

#[test]
fn wormhole_has_integers_alone() {
    for op in Op::ALL {
        let Some(word) = example(*op) else { continue };
        let found = decode(word, Isa::Wormhole);
        match op.class() {
            Class::Float => assert_eq!(found, Err(Refusal::NoFloats), "{op:?}"),
            Class::Atomic => assert_eq!(found, Err(Refusal::BlackholeOnly), "{op:?}"),
            _ => assert_eq!(found, Err(Refusal::BlackholeOnly), "{op:?}"),
        }
        assert_eq!(decode(word, Isa::Blackhole).unwrap().op, *op);
    }
}

/// A word for some operations that only Blackhole has.
fn example(op: Op) -> Option<u32> {
    Some(match op {
        Op::Sh1add => 0x2020_a1b3,
        Op::Andn => 0x4020_f1b3,
        Op::Maxu => 0x0a20_f1b3,
        Op::Ror => 0x6020_d1b3,
        Op::Rori => 0x6020_d193,
        Op::Pack => 0x0820_c1b3,
        Op::Clz => 0x6000_9193,
        Op::OrcB => 0x2870_d193,
        Op::Rev8 => 0x6980_d193,
        Op::Brev8 => 0x6870_d193,
        Op::AmoAdd => 0x0020_a1af,
        Op::Csrrs => 0x7c00_21f3,
        Op::Csrrwi => 0x7c00_d1f3,
        Op::Fadd => 0x0020_f1d3,
        Op::Fmadd => 0x1820_f1c3,
        Op::FmvW => 0xf000_81d3,
        _ => return None,
    })
}

#[test]
fn accesses_must_be_aligned_and_inside() {
    let load = |funct3: u32| 0x0000_8203 | funct3 << 12; // to register 4, from register 1
    let store = |funct3: u32| 0x0020_8023 | funct3 << 12; // register 2, to register 1
    for (funct3, width) in [(1, Width::Half), (5, Width::Half), (2, Width::Word)] {
        let address = 0x201;
        let expected = Cause::Unaligned { address, width };
        assert_eq!(cause(Isa::Wormhole, load(funct3), [address, 0, 0]), expected);
        if funct3 != 5 {
            assert_eq!(cause(Isa::Wormhole, store(funct3), [address, 0, 0]), expected);
        }
    }
    assert_eq!(
        cause(Isa::Blackhole, 0x0000_a207, [0x202, 0, 0]), // flw
        Cause::Unaligned { address: 0x202, width: Width::Word }
    );
    let (address, fault) = (0x1000, BusFault::Unmapped);
    for (funct3, width) in [(0, Width::Byte), (1, Width::Half), (2, Width::Word)] {
        assert_eq!(
            cause(Isa::Wormhole, load(funct3), [address, 0, 0]),
            Cause::Load { address, width, fault }
        );
        assert_eq!(
            cause(Isa::Wormhole, store(funct3), [address, 0, 0]),
            Cause::Store { address, width, fault }
        );
    }
    let add = 0x0020_a22f;
    assert_eq!(cause(Isa::Blackhole, add, [address, 0, 0]), Cause::Atomic { address, fault });
    let unaligned = Cause::Unaligned { address: 0x203, width: Width::Word };
    assert_eq!(cause(Isa::Blackhole, add, [0x203, 0, 0]), unaligned);
}

#[test]
fn jumps_go_to_instructions() {
    // jalr to register 1; its lowest bit is dropped.
    assert_eq!(cause(Isa::Wormhole, 0x0000_82e7, [0x203, 0, 0]), Cause::UnalignedTarget(0x202));
    assert_eq!(cause(Isa::Wormhole, 0x0020_02ef, [0; 3]), Cause::UnalignedTarget(CODE + 6));
    assert_eq!(cause(Isa::Wormhole, 0x0000_0163, [0; 3]), Cause::UnalignedTarget(CODE + 6));
    let (hart, outcome, _) = run(Isa::Wormhole, &[0x0000_8067], [0x2000, 0, 0]);
    assert_eq!(outcome, RunOutcome::Trap(Trap { pc: 0x2000, cause: Cause::Fetch(BusFault::Unmapped) }));
    assert_eq!(hart.counts().of(Class::Jump), 1);
}

#[test]
fn control_registers_that_are_not_modelled_are_refused() {
    let read = |number: u32| number << 20 | 0x0000_22f3; // csrrs x5, number, x0
    let write = |number: u32| number << 20 | 0x0000_90f3 | 3 << 7; // csrrw x3, number, x1
    for number in [0x001, 0x003, 0x008, 0x300, 0x301, 0x7c3, 0xb00, 0xc00, 0xc02, 0xc20, 0xf14, 0xfff] {
        assert_eq!(
            cause(Isa::Blackhole, read(u32::from(number)), [0; 3]),
            Cause::ControlRegister { number, written: false }
        );
    }
    for number in [0x7c4, 0xc00] {
        assert_eq!(
            cause(Isa::Blackhole, write(u32::from(number)), [0; 3]),
            Cause::ControlRegister { number, written: false }
        );
    }
}

#[test]
fn control_register_holds_what_is_written() {
    let words = [
        0x7c00_90f3, // csrrw x1, cfg0, x1
        0x7c01_61f3, // csrrsi x3, cfg0, 2
        0x7c00_f273, // csrrci x4, cfg0, 1
        0x7c00_22f3, // csrr x5, cfg0
        0x0010_0073, // ebreak
    ];
    let (hart, outcome, _) = run(Isa::Blackhole, &words, [0x55, 0, 0]);
    assert_eq!(outcome, RunOutcome::Break);
    let held: Vec<_> = (1..=5).map(|register| hart.x(register)).collect();
    assert_eq!(held, [16 << 13, 0, 0x55, 0x57, 0x56]);
    assert_eq!(hart.counts().of(Class::System), 5);
}

#[test]
fn calls_and_breaks_return_behind_themselves() {
    let (hart, outcome, _) = run(Isa::Wormhole, &[0x0000_0073], [0; 3]);
    assert_eq!((outcome, hart.pc()), (RunOutcome::Call, CODE + 4));
    let (hart, outcome, _) = run(Isa::Blackhole, &[0x0ff0_000f, 0x0010_0073], [0; 3]);
    assert_eq!((outcome, hart.pc()), (RunOutcome::Break, CODE + 8));
}

#[test]
fn code_that_changes_itself_is_seen_at_once() {
    // A loop that twice adds, and once what the store made of the addition: `addi x2, x2, 1` becomes `addi x2, x2, 2`.
    let words = [
        0x0011_0113, // addi x2, x2, 1
        0x0030_a023, // sw x3, 0(x1)
        0x0012_0213, // addi x4, x4, 1
        0xff62_1ae3, // bne x4, x22, -12
    ];
    let (mut hart, _, mut ram) = run(Isa::Wormhole, &words, [0x200, 0, 0]);
    hart = {
        let mut fresh = Hart::new(hart.isa(), CODE);
        fresh.set_x(1, CODE);
        fresh.set_x(3, 0x0021_0113);
        fresh.set_x(22, 3);
        fresh
    };
    let outcome = hart.run(&mut ram, 12);
    assert_eq!(outcome, RunOutcome::Budget);
    assert_eq!(hart.x(2), 1 + 2 + 2);
}

#[test]
fn code_changed_from_outside_is_seen_once_reported() {
    let words = [
        0x0011_0113, // addi x2, x2, 1
        0xffdf_f06f, // jal x0, -4
    ];
    let (mut hart, _, mut ram) = run(Isa::Wormhole, &words, [0; 3]);
    assert_eq!(hart.x(2), 50);
    ram.store(CODE, Width::Word, 0x0021_0113).unwrap();
    assert_eq!(hart.resume(&mut ram, 2), RunOutcome::Budget);
    assert_eq!(hart.x(2), 51, "the change was not reported");
    hart.changed(0x800, 4);
    assert_eq!(hart.resume(&mut ram, 2), RunOutcome::Budget);
    assert_eq!(hart.x(2), 52, "that is elsewhere");
    hart.changed(0, CODE + 1);
    assert_eq!(hart.resume(&mut ram, 2), RunOutcome::Budget);
    assert_eq!(hart.x(2), 54);
    ram.store(CODE, Width::Word, 0x0011_0113).unwrap();
    assert_eq!(hart.run(&mut ram, 2), RunOutcome::Budget);
    assert_eq!(hart.x(2), 55, "it may always be before a run");
}

/// An access by a table of pages, whole and one instruction at a time: with an offset and without, for each
/// kind of load and for a store, where the page is there, is not, and the entry is no address.
#[test]
fn lookup_has_the_effect_of_its_instructions() {
    // lw x6, lbu x6, lh x6, flw f6; sw x7, each of 0(x3); and one of 4(x3), which is no such access.
    for access in [0x0001_a303, 0x0001_c303, 0x0001_9303, 0x0001_a307, 0x0071_a023, 0x0041_a303] {
        for adds in [true, false] {
            for entry in [
                0_u32,
                (-0x1000_i32).cast_unsigned(),
                1,
                0x7fff_ffff,
                // Nothing is there, and what is there is not aligned.
                (-0x5000_i32).cast_unsigned(),
                (-0x1001_i32).cast_unsigned(),
            ] {
                access_by_a_table(access, adds, entry);
            }
        }
    }
}

/// `jal x0, distance`, of less than two kilobytes.
fn jump(distance: i32) -> u32 {
    let bits = distance.cast_unsigned();
    (bits >> 20 & 1) << 31
        | (bits >> 1 & 0x3ff) << 21
        | (bits >> 11 & 1) << 20
        | (bits >> 12 & 0xff) << 12
        | 0x6f
}

#[expect(clippy::too_many_lines, reason = "one scenario, from its beginning to its end")]
fn access_by_a_table(access: u32, adds: bool, entry: u32) {
    let mut words = vec![
        0x00c0_006f, // jal x0, 12
        0x0010_0073, // ebreak
        0x0010_0073, // ebreak
    ];
    // addi x3, x1, 8, and the same by x3; or by x1 as it is.
    let tail = if adds {
        vec![0x0080_8193, 0x00c1_d213, 0x0032_1213, 0x0042_2203, 0x0040_4863, 0x0041_81b3]
    } else {
        // srli x4, x1, 12; slli x4, x4, 3; lw x4, 4(x4); blt x0, x4, 16; add x3, x1, x4
        vec![0x00c0_d213, 0x0032_1213, 0x0042_2203, 0x0040_4863, 0x0040_81b3]
    };
    words.extend(tail);
    words.push(access);
    // jal x0, back to the second word; then where the branch goes: addi x5, x0, 7; ebreak
    let back = 4 * i32::try_from(words.len() - 1).unwrap();
    words.push(jump(-back));
    words.extend([0x0070_0293, 0x0010_0073]);
    let start = if adds { 0x2000 } else { 0x2008 };
    let mut results = Vec::new();
    for budget in [100, 1, 3] {
        let mut ram = Ram::new(0, 0x3000);
        for (index, word) in (0..).zip(&words) {
            ram.store(CODE + 4 * index, Width::Word, *word).unwrap();
        }
        // The entry for stores of the third page; and what the access finds there, and a page below.
        for (address, value) in [(2 * 8 + 4, entry), (0x2008, 0x5555), (0x1008, 0x8666)] {
            ram.store(address, Width::Word, value).unwrap();
        }
        let mut hart = Hart::new(Isa::Blackhole, CODE);
        hart.set_x(1, start);
        hart.set_x(7, 0x1234);
        let outcome = loop {
            match hart.run(&mut ram, budget) {
                RunOutcome::Budget => {}
                outcome => break outcome,
            }
        };
        let registers: Vec<u32> = (0..32).flat_map(|number| [hart.x(number), hart.f(number)]).collect();
        results.push((outcome, hart.pc(), hart.counts(), hart.executed(), registers, ram.bytes().to_vec()));
    }
    let what = format!("{access:#x}, adds: {adds}, entry {entry:#x}");
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{what}");
    let (outcome, pc, counts, executed, registers, memory) = &results[0];
    assert_eq!(counts.total(), *executed);
    let found = match entry {
        0 => 0x5555_u32,
        0xffff_f000 => 0x8666,
        _ => {
            assert_eq!((registers[12], registers[13]), (0, 0), "{what}");
            return;
        }
    };
    assert_eq!((*outcome, *pc), (RunOutcome::Break, CODE + 8), "{what}");
    let stored = 0x2008_usize.wrapping_add_signed(entry.cast_signed() as isize);
    match access {
        0x0001_a303 => assert_eq!(registers[12], found, "{what}"),
        0x0001_c303 => assert_eq!(registers[12], found & 0xff, "{what}"),
        0x0001_9303 => {
            assert_eq!(registers[12], (found << 16).cast_signed().wrapping_shr(16).cast_unsigned(), "{what}")
        }
        0x0001_a307 => assert_eq!(registers[13], found, "{what}"),
        0x0071_a023 => assert_eq!(memory[stored..stored + 4], 0x1234_u32.to_le_bytes(), "{what}"),
        _ => assert_eq!(registers[12], 0, "{what}"),
    }
}

#[test]
fn zero_register_stays_zero() {
    let words = [
        0x0050_0013,           // addi x0, x0, 5
        0x0000_a003,           // lw x0, 0(x1)
        0x0000_006f | 8 << 20, // jal x0, +8
        0,
        0x0000_0093, // addi x1, x0, 0
        0x0010_0073,
    ];
    let (hart, outcome, _) = run(Isa::Wormhole, &words, [CODE, 0, 0]);
    assert_eq!((outcome, hart.x(0), hart.x(1)), (RunOutcome::Break, 0, 0));
}

#[test]
fn jump_to_itself_is_not_counted_and_ends_when_memory_changes() {
    let mut ram = Ram::new(0, 0x100);
    // addi x5, x5, 1; jal x0, 0; ebreak
    for (address, word) in [(0, 0x0012_8293), (4, 0x6f), (8, 0x0010_0073)] {
        ram.store(address, Width::Word, word).unwrap();
    }
    let mut hart = Hart::new(Isa::Blackhole, 0);
    for _ in 0..2 {
        assert_eq!(hart.run(&mut ram, 1000), RunOutcome::Idle);
        assert_eq!((hart.pc(), hart.executed(), hart.x(5)), (4, 1, 1));
    }
    ram.store(4, Width::Word, 0x0012_8293).unwrap();
    assert_eq!(hart.run(&mut ram, 1000), RunOutcome::Break);
    assert_eq!((hart.executed(), hart.x(5)), (3, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever is executed, the core counts what it executed, stays in its memory and stops where it cannot go on.
    #[test]
    fn noise_is_executed_or_trapped(
        words in proptest::collection::vec((any::<u32>(), 0..32_u32, any::<bool>()), 64),
        registers in any::<[u32; 3]>(),
        small in any::<[u8; 3]>(),
    ) {
        // Most words have an opcode, and some registers an address that is there.
        let words: Vec<u32> = words
            .into_iter()
            .map(|(word, opcode, known)| if known { word & 0xffff_ff80 | opcode << 2 | 3 } else { word })
            .collect();
        for registers in [registers, small.map(|value| u32::from(value) * 8)] {
            for isa in [Isa::Wormhole, Isa::Blackhole] {
                let (hart, outcome, mut ram) = run(isa, &words, registers);
                let executed = hart.counts().total();
                prop_assert!(executed <= 100);
                match outcome {
                    RunOutcome::Budget => prop_assert_eq!(executed, 100),
                    RunOutcome::Trap(trap) => prop_assert_eq!(trap.pc, hart.pc()),
                    RunOutcome::Idle => prop_assert_eq!(ram.fetch(hart.pc()), Ok(0x6f)),
                    RunOutcome::Pause | RunOutcome::Wait => prop_assert!(false, "plain memory does neither"),
                    RunOutcome::Call | RunOutcome::Break => prop_assert!(hart.counts().of(Class::System) > 0),
                }
                prop_assert_eq!(hart.x(0), 0);
            }
        }
    }
}

/// Takes a few instructions for a matrix engine, and then lets the core wait.
struct EngineBus {
    ram: Ram,
    room: usize,
    taken: Vec<u32>,
}

impl Bus for EngineBus {
    fn fetch(&mut self, address: u32) -> Result<u32, BusFault> {
        self.ram.fetch(address)
    }

    fn load(&mut self, address: u32, width: Width) -> Result<u32, BusFault> {
        match address {
            0xffe8_0004 if self.room == 0 => Err(BusFault::Wait),
            0xffe8_0004 => Ok(7),
            _ => self.ram.load(address, width),
        }
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<(), BusFault> {
        assert_eq!((address, width), (0xffe4_0000, Width::Word));
        if self.room == 0 {
            return Err(BusFault::Wait);
        }
        self.room -= 1;
        self.taken.push(value);
        Ok(())
    }

    fn update(&mut self, _: u32, _: impl FnOnce(u32) -> u32) -> Result<u32, BusFault> {
        Err(BusFault::Unmapped)
    }
}

/// Words whose two lowest bits are not both set are stores of themselves, rotated right by two.
#[test]
fn instructions_for_the_matrix_engine_are_stored_and_wait_for_room() {
    let mut ram = Ram::new(CODE, 64);
    let load = 0x0040_a103; // lw x2, 4(x1)
    for (address, word) in (CODE..).step_by(4).zip([0x0000_0000, 0x9800_0002, 0x4501, load, 0x0000_006f]) {
        ram.store(address, Width::Word, word).unwrap();
    }
    let mut bus = EngineBus { ram, room: 2, taken: Vec::new() };
    let mut hart = Hart::new(Isa::Wormhole, CODE);
    hart.set_x(1, 0xffe8_0000);
    for _ in 0..2 {
        assert_eq!(hart.run(&mut bus, 100), RunOutcome::Wait);
        assert_eq!((hart.pc(), hart.executed()), (CODE + 8, 2));
    }
    bus.room = 1;
    for _ in 0..2 {
        assert_eq!(hart.run(&mut bus, 100), RunOutcome::Wait);
        assert_eq!((hart.pc(), hart.executed(), hart.x(2)), (CODE + 12, 3, 0));
    }
    bus.room = 1;
    assert_eq!(hart.run(&mut bus, 100), RunOutcome::Idle);
    assert_eq!((hart.x(2), hart.counts().of(Class::Store)), (7, 3));
    assert_eq!(bus.taken, [0, 0xa600_0000, 0x4000_1140]);
}

#[test]
fn trap_has_the_program_counter_and_the_cause() {
    let trap = Trap {
        pc: 0x1234,
        cause: Cause::Load { address: 0xffb0_2000, width: Width::Word, fault: BusFault::Unmapped },
    };
    assert_eq!(trap.to_string(), "at 0x00001234: a load of 4 bytes from 0xffb02000: nothing is mapped there");
    let cause = Cause::Instruction { word: 0x1820_f053, refusal: Refusal::FloatDivision };
    assert_eq!(cause.to_string(), "0x1820f053: this core cannot divide floats");
    let cause = Cause::ControlRegister { number: 3, written: false };
    assert_eq!(cause.to_string(), "control register 0x003 cannot be read");
}
