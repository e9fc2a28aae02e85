// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Comparisons, conversions, and moves between one register and several.

use crate::support::{f, g, instruction, run_body};

const NAN: u64 = 0x7fc0_0000;

fn file(kind: &str) -> char {
    match kind {
        "u16" | "s16" | "f16" => 'h',
        _ if kind.ends_with("64") => 'd',
        _ => 'r',
    }
}

#[test]
fn comparisons_order_numbers_with_and_without_a_sign() {
    let below = u64::MAX;
    for (kind, a, b, order) in [
        ("s16", below & 0xffff, 1, -1),
        ("u16", below & 0xffff, 1, 1),
        ("s32", below & 0xffff_ffff, 1, -1),
        ("u32", below & 0xffff_ffff, 1, 1),
        ("b32", 3, 3, 0),
        ("s64", below, 1, -1),
        ("u64", below, 1, 1),
        ("b64", 3, 3, 0),
        ("f16", 0xbc00, 0x3c00, -1),
        ("f32", f(-1.0), f(1.0), -1),
        ("f32", f(-0.0), f(0.0), 0),
        ("f64", g(2.0), g(1.0), 1),
    ] {
        let holds = [("eq", order == 0), ("ne", order != 0), ("lt", order < 0), ("le", order <= 0)];
        let rest = [("gt", order > 0), ("ge", order >= 0)];
        // Bits have no order.
        let count = if matches!(kind, "b32" | "b64") { 2 } else { 6 };
        for (cmp, wanted) in holds.into_iter().chain(rest).take(count) {
            let found = instruction(&format!("setp.{cmp}.{kind}"), 'p', &[(file(kind), a), (file(kind), b)]);
            assert_eq!(found, u64::from(wanted), "setp.{cmp}.{kind} {a:x} {b:x}");
        }
    }
    for (cmp, wanted) in [("lo", 0), ("ls", 0), ("hi", 1), ("hs", 1)] {
        let found = instruction(&format!("setp.{cmp}.u32"), 'p', &[('r', 2), ('r', 1)]);
        assert_eq!(found, wanted, "{cmp}");
    }
}

#[test]
fn comparisons_with_what_is_no_number() {
    let cases = [
        ("eq", 0),
        ("ne", 0),
        ("lt", 0),
        ("le", 0),
        ("gt", 0),
        ("ge", 0),
        ("equ", 1),
        ("neu", 1),
        ("ltu", 1),
        ("leu", 1),
        ("gtu", 1),
        ("geu", 1),
        ("num", 0),
        ("nan", 1),
    ];
    for (cmp, wanted) in cases {
        let found = instruction(&format!("setp.{cmp}.f32"), 'p', &[('r', NAN), ('r', f(1.0))]);
        assert_eq!(found, wanted, "{cmp}");
    }
}

#[test]
fn comparisons_combine_with_a_predicate_and_give_both_results() {
    for (combine, third, wanted) in [("and", 0, 0), ("and", 1, 1), ("or", 0, 1), ("xor", 1, 0)] {
        let form = format!("setp.lt.{combine}.s32");
        assert_eq!(instruction(&form, 'p', &[('r', 1), ('r', 2), ('p', third)]), wanted, "{form} {third}");
    }
    let body = "setp.lt.s32 %p1|%p2, 1, 2;\nsetp.lt.and.s32 %p3, 1, 2, !%p2;\n\
                selp.u32 %r1, 1, 0, %p1;\nselp.u32 %r2, 1, 0, %p2;\nselp.u32 %r3, 1, 0, %p3;\n\
                st.u32 [%at], %r1;\nst.u32 [%at+8], %r2;\nst.u32 [%at+16], %r3;";
    assert_eq!(run_body(body, 1, &[9; 3]), [1, 0, 1]);
}

#[test]
#[rustfmt::skip]
fn conversions_round_and_saturate() {
    let m = |value: i32| u64::from(value.cast_unsigned());
    let cases: &[(&str, u64, u64)] = &[
        ("u64.u32", m(-1), 0xffff_ffff), ("s64.s32", m(-1), u64::MAX), ("u32.u64", 0x1_0000_0002, 2),
        ("s32.s64", u64::MAX, m(-1)),
        ("u16.u32", 0x12345, 0x2345), ("u32.u16", 0x12345, 0x2345), ("s32.s16", 0xffff, m(-1)),
        ("s32.s8", 0x80, m(-128)), ("u32.u8", 0x180, 0x80),
        ("s64.s8", 0xff, u64::MAX), ("s16.s8", 0xff, m(-1)), ("u8.u32", 0x1ff, 0xff), ("sat.u8.s32", m(-3), 0),
        ("sat.s8.s32", 300, 127),
        ("rn.f32.s32", m(-3), f(-3.0)), ("rn.f32.u32", m(-1), f(4_294_967_300.0)), ("rn.f32.s64", u64::MAX, f(-1.0)),
        ("rn.f32.u64", 1 << 40, f(1_099_511_600_000.0)),
        ("rz.f32.u32", 0x1ff_ffff, f(33_554_430.0)), ("rp.f32.u32", 0x1ff_fffd, f(33_554_430.0)),
        ("rm.f32.s32", m(-0x1ff_ffff), f(-33_554_432.0)),
        ("rn.f64.s32", m(-3), g(-3.0)), ("rn.f64.u64", 7, g(7.0)), ("rn.f16.s32", 3, 0x4200),
        ("rn.f32.u8", 255, f(255.0)), ("rn.f32.s16", 0xfffe, f(-2.0)),
        ("rzi.s32.f32", f(-2.7), m(-2)), ("rni.s32.f32", f(2.5), 2), ("rmi.s32.f32", f(-2.1), m(-3)),
        ("rpi.s32.f32", f(2.1), 3), ("rzi.s32.f32", NAN, 0),
        ("rzi.s32.f32", f(1e20), 0x7fff_ffff), ("rzi.u32.f32", f(-1.0), 0), ("rzi.u8.f32", f(300.0), 255),
        ("rzi.s64.f32", f(-1e10), (-10_000_000_000_i64).cast_unsigned()),
        ("rzi.s64.f64", g(1e10), 10_000_000_000), ("rzi.u16.f16", 0x4200, 3),
        ("rni.f32.f32", f(2.5), f(2.0)), ("rmi.f32.f32", f(-2.1), f(-3.0)), ("rpi.f32.f32", f(2.1), f(3.0)),
        ("rzi.f32.f32", f(-2.9), f(-2.0)), ("sat.f32.f32", f(-2.0), f(0.0)), ("sat.f32.f32", f(7.0), f(1.0)),
        ("f32.f16", 0x3c00, f(1.0)), ("f32.bf16", 0x3f80, f(1.0)), ("f64.f32", f(1.5), g(1.5)),
        ("rn.f32.f64", g(1.5), f(1.5)), ("rz.f32.f64", g(0.1), f(0.099_999_994)), ("rp.f32.f64", g(0.1), f(0.1)),
        ("rn.f16.f32", f(1.0), 0x3c00), ("rn.bf16.f32", f(1.0), 0x3f80), ("rz.f16.f32", f(2049.0), 0x6800),
        ("rn.f16.f64", g(1.0), 0x3c00),
        // A tie that is none, because of its last bit.
        ("rn.f16.f64", g(1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -50)), 0x3c01),
        ("rn.sat.f32.s32", 7, f(1.0)), ("rn.sat.f64.s32", m(-3), g(0.0)), ("rn.ftz.f32.f64", g(1e-40), f(0.0)),
        ("rn.bf16.f32", 0x3f80_8001, 0x3f81), ("rn.bf16.f32", 0x3f80_8000, 0x3f80),
        ("rn.ftz.f16.f32", 1, 0),
    ];
    for (form, value, wanted) in cases {
        let parts: Vec<_> = form.split('.').collect();
        let [.., to, from] = parts.as_slice() else { panic!("{form}") };
        // Registers of 32 bits for all that is shorter: wider ones are taken.
        let wide = |kind: &str| if kind.ends_with("64") { 'd' } else { 'r' };
        let found = instruction(&format!("cvt.{form}"), wide(to), &[(wide(from), *value)]);
        let wanted = if wide(to) == 'r' { wanted & 0xffff_ffff } else { *wanted };
        assert_eq!(found, wanted, "cvt.{form} {value:x} gives {found:x}");
    }
}

#[test]
fn conversions_take_registers_that_are_wider() {
    let body = "ld.u64 %d1, [%at];\ncvt.u32.u8 %r1, %d1;\ncvt.s64.s8 %d2, %d1;\ncvt.u16.u32 %d3, %r1;\n\
                st.u32 [%at+8], %r1;\nst.u64 [%at+16], %d2;\nst.u64 [%at+24], %d3;";
    let found = run_body(body, 1, &[0x1_0000_00fe, 0, 0, 9]);
    assert_eq!(found[1..], [0xfe, (-2_i64).cast_unsigned(), 0xfe]);
}

#[test]
fn registers_are_packed_and_unpacked() {
    let body = "ld.u32 %r1, [%at];\nmov.b32 {%h1, %h2}, %r1;\nmov.b32 %r2, {%h2, %h1};\nst.u32 [%at], %r2;\n\
                ld.u64 %d1, [%at+8];\nmov.b64 {%r3, %r4}, %d1;\nmov.b64 %d2, {%r4, %r3};\nst.u64 [%at+8], %d2;\n\
                mov.b64 {%h3, %h4, %h5, %h6}, %d1;\nmov.b64 %d3, {%h6, %h5, %h4, %h3};\nst.u64 [%at+16], %d3;\n\
                mov.b64 {_, %r5}, %d1;\nst.u32 [%at+24], %r5;";
    let found = run_body(body, 1, &[0x1111_2222, 0x1111_2222_3333_4444, 0, 0]);
    assert_eq!(found, [0x2222_1111, 0x3333_4444_1111_2222, 0x4444_3333_2222_1111, 0x1111_2222]);
}

#[test]
fn tables_of_three_bits_and_the_clock() {
    // The majority of three.
    let body = "mov.u32 %r1, 12;\nmov.u32 %r2, 10;\nmov.u32 %r3, 9;\nlop3.b32 %r4, %r1, %r2, %r3, 232;\n\
                st.u32 [%at], %r4;\nmov.u64 %d1, %globaltimer;\nmov.u64 %d2, %globaltimer;\n\
                setp.le.u64 %p1, %d1, %d2;\nselp.u32 %r5, 1, 0, %p1;\nst.u32 [%at+8], %r5;";
    assert_eq!(run_body(body, 1, &[0, 0]), [8, 1]);
}
