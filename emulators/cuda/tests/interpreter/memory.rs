// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Loads, stores, atomic operations, and what is refused of them.

use crate::support::{BASE, f, fault, kernel, launch, run_body};
use emulator_cuda::simt::Fault;

#[test]
fn loads_extend_and_stores_truncate() {
    let value = 0x8877_6655_4433_2280;
    for (load, wanted) in [
        ("ld.global.u8 %r1", 0x80),
        ("ld.global.nc.b8 %h1", 0x80),
        ("ld.global.s8 %r1", 0xffff_ff80),
        ("ld.volatile.global.u16 %r1", 0x2280),
        ("ld.global.s16 %r1", 0x2280),
        ("ld.b32 %r1", 0x4433_2280),
        ("ld.global.L1::no_allocate.b32 %r1", 0x4433_2280),
        ("ld.global.f32 %r1", 0x4433_2280),
        ("ld.relaxed.gpu.global.b32 %r1", 0x4433_2280),
        ("ld.global.b64 %d1", value),
        ("ld.global.s32 %d1", 0x4433_2280),
        ("ld.global.s8 %d1", 0xffff_ffff_ffff_ff80),
    ] {
        let register = load.split_once(' ').expect("a register").1;
        let body = format!(
            "{load}, [%at];\nst.b64 [%at+8], 0;\n{}",
            match register {
                "%d1" => "st.global.u64 [%at+8], %d1;".to_owned(),
                "%h1" => "cvt.u64.u16 %d2, %h1;\nst.b64 [%at+8], %d2;".to_owned(),
                other => format!("cvt.u64.u32 %d2, {other};\nst.b64 [%at+8], %d2;"),
            }
        );
        assert_eq!(run_body(&body, 1, &[value, 1])[1], wanted, "{load}");
    }
    let body = "mov.u64 %d1, -1;\nmov.u32 %r1, -1;\nst.global.b8 [%at], %d1;\nst.b16 [%at+2], %h0;\n\
                st.b8 [%at+8], %r1;\n\
                st.global.b32 [%at+12], 7;";
    assert_eq!(run_body(body, 1, &[0x5555, 0]), [0x55ff, 0x7_0000_00ff]);
}

#[test]
fn vectors_are_loaded_and_stored() {
    let body = "ld.global.v2.b32 {%r1, %r2}, [%at];\nst.global.v2.b32 [%at+8], {%r2, %r1};\n\
                ld.global.nc.v4.b32 {%r3, %r4, %r5, %r6}, [%at];\nst.v4.b32 [%at+16], {%r6, %r4, %r4, %r3};\n\
                ld.v2.u64 {%d1, %d2}, [%at];\nst.v2.b64 [%at+32], {%d2, %d1};\n\
                ld.v4.u8 {%h1, %h2, %h3, %h4}, [%at];\nst.v4.b8 [%at+48], {%h4, %h3, %h2, %h1};\n\
                ld.v4.b16 {%h5, %h6, %h7, %h8}, [%at];\nst.v4.b16 [%at+56], {%h8, %h7, %h6, %h5};";
    let found = run_body(body, 1, &[0x0022_0011_0044_0033, 0, 0, 0, 0, 0, 0, 0]);
    let swapped = 0x0044_0033_0022_0011;
    assert_eq!(found[1], swapped);
    assert_eq!(found[2..4], [0x0022_0011_0044_0033, swapped]);
    assert_eq!(found[4..6], [swapped, 0x0022_0011_0044_0033]);
    assert_eq!(found[6], 0x3300_4400);
    assert_eq!(found[7], 0x0033_0044_0011_0022);
}

#[test]
fn shared_and_local_memory_have_addresses_of_their_own_and_generic_ones() {
    let body = ".shared .align 16 .b8 block[64];\n.local .align 8 .b8 mine[16];\n\
                mov.u32 %r1, %tid.x;\nmul.wide.u32 %d1, %r1, 4;\nmov.u64 %d2, block;\nadd.s64 %d2, %d2, %d1;\n\
                st.shared.u32 [%d2], %r1;\nst.local.u32 [mine+4], %r1;\nbar.sync 0;\n\
                xor.b32 %r2, %r1, 1;\nmul.wide.u32 %d3, %r2, 4;\nmov.u64 %d4, block;\ncvta.shared.u64 %d5, %d4;\n\
                add.s64 %d5, %d5, %d3;\nld.u32 %r3, [%d5];\nmov.u64 %d6, mine;\ncvta.local.u64 %d7, %d6;\n\
                ld.u32 %r4, [%d7+4];\ncvta.to.local.u64 %d8, %d7;\nld.local.u32 %r6, [%d8+4];\n\
                mad.lo.s32 %r5, %r4, 100, %r3;\nadd.s64 %d9, %at, %d1;\ncvta.to.global.u64 %d9, %d9;\n\
                st.global.u32 [%d9], %r5;\nld.shared.u32 %r7, [block];\nst.shared.u32 [block+60], %r7;\n\
                cvt.u32.u64 %r8, %d4;\nld.shared.u32 %r9, [%r8+60];";
    assert_eq!(run_body(body, 4, &[0, 0]), [100 << 32 | 1, 302 << 32 | 203]);
}

#[test]
fn dynamic_shared_memory_lies_behind_the_kernel_s_own() {
    let text = kernel(
        "mov.u64 %d1, more;\nst.shared.u32 [%d1+252], 7;\nld.shared.u32 %r1, [more+252];\nst.u32 [%at], %r1;",
    );
    let text = text.replace(".visible", ".extern .shared .align 16 .b8 more[];\n.visible");
    let mut words = vec![0];
    launch(&text, 1, 1, &mut words).expect("it fits");
    assert_eq!(words, [7]);
    let trap = launch(&text.replace("+252", "+256"), 1, 1, &mut words).expect_err("it does not");
    assert!(matches!(trap.fault, Fault::Outside { bytes: 4, .. }), "{trap}");
}

#[test]
#[rustfmt::skip]
fn atomic_operations_return_what_was_there() {
    let minus = 0xffff_ffff;
    let cases: &[(&str, u64, &str, u64)] = &[
        ("add.u32", 5, "3", 8), ("add.s32", minus, "3", 2), ("min.s32", minus, "3", minus),
        ("min.u32", minus, "3", 3), ("max.s32", minus, "3", 3), ("max.u32", minus, "3", minus),
        ("and.b32", 12, "10", 8), ("or.b32", 12, "10", 14), ("xor.b32", 12, "10", 6), ("exch.b32", 1, "2", 2),
        ("cas.b32", 1, "1, 9", 9), ("cas.b32", 2, "1, 9", 2),
        ("inc.u32", 3, "3", 0), ("inc.u32", 2, "3", 3), ("dec.u32", 0, "3", 3), ("dec.u32", 2, "3", 1),
        ("add.f32", f(1.5), "0f40000000", f(3.5)),
    ];
    for (op, before, operands, after) in cases {
        for space in ["", ".global", ".relaxed.gpu.global"] {
            let body = format!("atom{space}.{op} %r1, [%at], {operands};\nst.u32 [%at+8], %r1;");
            assert_eq!(run_body(&body, 1, &[*before, 0]), [*after, *before], "atom{space}.{op}");
        }
    }
    let cases: &[(&str, u64, &str, u64)] = &[
        ("add.u64", 5, "3", 8), ("min.s64", u64::MAX, "3", u64::MAX), ("max.u64", 5, "3", 5), ("exch.b64", 1, "2", 2),
        ("cas.b64", 1, "1, 9", 9),
        ("and.b64", 12, "10", 8), ("or.b64", 12, "10", 14), ("xor.b64", 12, "10", 6),
        ("add.f64", 1.5_f64.to_bits(), "0d4000000000000000", 3.5_f64.to_bits()),
    ];
    for (op, before, operands, after) in cases {
        let body = format!("atom.{op} %d1, [%at], {operands};\nst.u64 [%at+8], %d1;");
        assert_eq!(run_body(&body, 1, &[*before, 0]), [*after, *before], "atom.{op}");
    }
    let body = "mov.b16 %h2, 0x4000;\natom.add.noftz.f16 %h1, [%at], %h2;\nst.u16 [%at+8], %h1;\n\
                atom.cas.b16 %h3, [%at+16], 1, 9;\nst.u16 [%at+24], %h3;";
    assert_eq!(run_body(body, 1, &[0x3c00, 0, 1, 0]), [0x4200, 0x3c00, 9, 1]);
    // All lanes add, also to shared memory.
    assert_eq!(run_body("red.global.add.u32 [%at], 2;", 40, &[1]), [81]);
    let body = ".shared .align 4 .b8 sum[4];\nst.shared.u32 [sum], 0;\nbar.sync 0;\n\
                red.shared.add.u32 [sum], 1;\nbar.sync 0;\n\
                ld.shared.u32 %r1, [sum];\nst.u32 [%at], %r1;";
    assert_eq!(run_body(body, 40, &[0]), [40]);
}

#[test]
fn accesses_outside_and_between_are_faults() {
    for (body, wanted) in [
        ("ld.global.u32 %r1, [%at+16];", Fault::Outside { address: BASE + 16, bytes: 4, write: false }),
        (
            "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%at+16];",
            Fault::Outside { address: BASE + 16, bytes: 16, write: false },
        ),
        ("st.global.u64 [%at+12], 1;", Fault::Misaligned { address: BASE + 12, bytes: 8 }),
        ("st.global.v2.b32 [%at+4], {%r1, %r2};", Fault::Misaligned { address: BASE + 4, bytes: 8 }),
        ("st.u8 [%at+-1], 1;", Fault::Outside { address: BASE - 1, bytes: 1, write: true }),
        ("ld.u8 %r1, [0];", Fault::Outside { address: 0, bytes: 1, write: false }),
        ("red.add.u32 [%at+64], 1;", Fault::Outside { address: BASE + 64, bytes: 4, write: true }),
        (
            ".local .b8 mine[8];\nld.local.u32 %r1, [mine+8];",
            Fault::Outside { address: 8, bytes: 4, write: false },
        ),
    ] {
        let trap = fault(body, 1, &[0, 0]);
        assert_eq!(trap.fault, wanted, "{body}");
        assert_eq!((trap.kernel.as_str(), trap.block, trap.thread), ("test", [0; 3], [0; 3]));
        assert!(body.contains(&trap.source_line) && trap.source_line.len() > 5, "{trap}");
    }
}

#[test]
fn variables_of_the_module_have_their_values_and_addresses() {
    let text = kernel(
        "ld.global.u32 %r1, [table+4];\nst.u32 [%at+8], %r1;\nmov.u64 %d1, table;\nst.u64 [%at+16], %d1;",
    );
    let text = text.replace(
        ".visible",
        ".visible .global .align 8 .u32 table[3] = {1, 0xffffffff, 0f3F800000};\n.visible",
    );
    let module = emulator_cuda::ptx::Module::parse(&text).expect("it is right");
    assert_eq!(module.globals[0].bytes, [1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0x80, 0x3f]);
    let mut words = vec![5 << 32, 0, 0];
    launch(&text, 1, 1, &mut words).expect("it runs");
    assert_eq!(words[1..], [5, BASE]);
}

#[test]
fn registers_of_a_block_hide_those_around_it_up_to_its_end() {
    let body =
        "mov.u32 %r1, 5;\n{\n.reg .b64 %r<2>;\nmov.u64 %r1, 7;\nst.u64 [%at+8], %r1;\n}\nst.u32 [%at], %r1;";
    assert_eq!(run_body(body, 1, &[0, 0]), [5, 7]);
}
