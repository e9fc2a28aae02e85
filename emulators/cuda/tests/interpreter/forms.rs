// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Each arithmetic form, with operands and the result that PTX's manual gives for them.

use crate::support::{f, g, instruction};
use emulator_cuda::ptx::forms::FORMS;
use emulator_cuda::ptx::instruction::{B64, Op, Pred};
use std::collections::BTreeSet;

const NAN: u64 = 0x7fc0_0000;

/// A value of 16 bits twice.
fn twice(half: u64) -> u64 {
    half << 16 | half
}

// Floats of 16 bits: one, two, three, a half, minus one.
const H1: u64 = 0x3c00;
const H2: u64 = 0x4000;
const H3: u64 = 0x4200;
const HALF: u64 = 0x3800;
const HM1: u64 = 0xbc00;
const B1: u64 = 0x3f80;
const B2: u64 = 0x4000;
const B3: u64 = 0x4040;

/// A form, operands, result.
type Case = (&'static str, Vec<u64>, u64);

#[rustfmt::skip]
#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    let minus = |value: i32| u64::from(value.cast_unsigned());
    let minus64 = |value: i64| value.cast_unsigned();
    vec![
        ("neg.s32", vec![5], minus(-5)), ("not.b32", vec![0xff], 0xffff_ff00), ("cnot.b32", vec![0], 1),
        ("cnot.b32", vec![7], 0),
        ("abs.s32", vec![minus(-7)], 7), ("popc.b32", vec![0xf0f0], 8), ("clz.b32", vec![0xffff], 16),
        ("brev.b32", vec![1], 0x8000_0000),
        ("neg.s16", vec![1], 0xffff), ("not.b16", vec![0xff], 0xff00), ("abs.s16", vec![0xffff], 1),
        ("neg.f32", vec![f(1.5)], f(-1.5)), ("abs.f32", vec![f(-1.5)], f(1.5)),
        ("ex2.approx.f32", vec![f(3.0)], f(8.0)), ("lg2.approx.f32", vec![f(8.0)], f(3.0)),
        ("rcp.rn.f32", vec![f(4.0)], f(0.25)), ("rcp.approx.f32", vec![f(4.0)], f(0.25)),
        ("sqrt.rn.f32", vec![f(9.0)], f(3.0)), ("sqrt.approx.f32", vec![f(9.0)], f(3.0)),
        ("rsqrt.approx.f32", vec![f(16.0)], f(0.25)),
        ("sin.approx.f32", vec![f(0.0)], f(0.0)), ("cos.approx.f32", vec![f(0.0)], f(1.0)),
        ("tanh.approx.f32", vec![f(0.0)], f(0.0)),
        ("neg.f16", vec![H1], HM1), ("neg.bf16", vec![B1], 0xbf80), ("abs.f16", vec![HM1], H1),
        ("abs.bf16", vec![0xbf80], B1),
        ("ex2.approx.f16", vec![H1], H2), ("tanh.approx.f16", vec![0], 0),
        ("neg.f16x2", vec![twice(H1)], twice(HM1)), ("neg.bf16x2", vec![twice(B1)], twice(0xbf80)),
        ("abs.f16x2", vec![twice(HM1)], twice(H1)), ("abs.bf16x2", vec![twice(0xbf80)], twice(B1)),
        ("neg.s64", vec![5], minus64(-5)), ("not.b64", vec![0], u64::MAX), ("abs.s64", vec![minus64(-9)], 9),
        ("brev.b64", vec![1], 1 << 63),
        ("neg.f64", vec![g(2.5)], g(-2.5)), ("abs.f64", vec![g(-2.5)], g(2.5)), ("rcp.rn.f64", vec![g(4.0)], g(0.25)),
        ("rcp.approx.f64", vec![g(4.0)], g(0.25)), ("sqrt.rn.f64", vec![g(9.0)], g(3.0)),
        ("rsqrt.approx.f64", vec![g(4.0)], g(0.5)),
        ("popc.b64", vec![u64::MAX], 64), ("clz.b64", vec![1], 63),
        ("add.s32", vec![0xffff_ffff, 2], 1), ("add.u32", vec![3, 4], 7), ("sub.s32", vec![1, 2], minus(-1)),
        ("sub.u32", vec![9, 2], 7),
        ("mul.lo.s32", vec![minus(-3), 5], minus(-15)), ("mul.lo.u32", vec![1 << 31, 2], 0),
        ("mul.hi.u32", vec![1 << 31, 4], 2),
        ("mul.hi.s32", vec![minus(-1), 1], minus(-1)), ("div.u32", vec![7, 2], 3),
        ("div.u32", vec![7, 0], 0xffff_ffff),
        ("div.s32", vec![minus(-7), 2], minus(-3)), ("div.s32", vec![7, 0], 0xffff_ffff), ("rem.u32", vec![7, 4], 3),
        ("rem.s32", vec![minus(-7), 4], minus(-3)),
        ("min.u32", vec![1, minus(-1)], 1), ("min.s32", vec![1, minus(-1)], minus(-1)),
        ("max.u32", vec![1, minus(-1)], minus(-1)), ("max.s32", vec![1, minus(-1)], 1),
        ("and.b32", vec![12, 10], 8), ("and.b16", vec![12, 10], 8), ("or.b32", vec![12, 10], 14),
        ("or.b16", vec![12, 10], 14),
        ("xor.b32", vec![12, 10], 6), ("xor.b16", vec![12, 10], 6),
        ("shl.b32", vec![1, 4], 16), ("shl.b32", vec![1, 32], 0), ("shr.u32", vec![1 << 31, 31], 1),
        ("shr.b32", vec![4, 99], 0),
        ("shr.s32", vec![minus(-8), 1], minus(-4)), ("shr.s32", vec![minus(-8), 99], minus(-1)),
        ("add.s16", vec![0xffff, 2], 1), ("add.u16", vec![1, 2], 3), ("sub.s16", vec![0, 1], 0xffff),
        ("sub.u16", vec![3, 1], 2),
        ("mul.lo.s16", vec![0x100, 0x101], 0x100), ("mul.lo.u16", vec![3, 5], 15), ("mul.hi.u16", vec![0x8000, 4], 2),
        ("mul.hi.s16", vec![0xffff, 1], 0xffff),
        ("div.u16", vec![7, 2], 3), ("div.s16", vec![0xfff9, 2], 0xfffd), ("rem.u16", vec![7, 4], 3),
        ("rem.s16", vec![0xfff9, 4], 0xfffd),
        ("min.u16", vec![1, 0xffff], 1), ("min.s16", vec![1, 0xffff], 0xffff), ("max.u16", vec![1, 0xffff], 0xffff),
        ("max.s16", vec![1, 0xffff], 1),
        ("shl.b16", vec![0xffff, 4], 0xfff0), ("shl.b16", vec![1, 16], 0), ("shr.u16", vec![0x8000, 15], 1),
        ("shr.b16", vec![8, 1], 4), ("shr.s16", vec![0x8000, 99], 0xffff),
        ("mul.wide.u16", vec![0xffff, 0xffff], 0xfffe_0001), ("mul.wide.s16", vec![0xffff, 3], minus(-3)),
        ("add.f32", vec![f(1.5), f(2.0)], f(3.5)), ("add.rn.f32", vec![f(1.5), f(2.0)], f(3.5)),
        ("sub.f32", vec![f(1.0), f(3.0)], f(-2.0)),
        ("sub.rn.f32", vec![f(1.0), f(3.0)], f(-2.0)), ("mul.f32", vec![f(1.5), f(2.0)], f(3.0)),
        ("mul.rn.f32", vec![f(1.5), f(2.0)], f(3.0)),
        ("div.rn.f32", vec![f(1.0), f(4.0)], f(0.25)), ("div.full.f32", vec![f(1.0), f(0.0)], f(f32::INFINITY)),
        ("div.approx.f32", vec![f(1.0), f(4.0)], f(0.25)),
        ("min.f32", vec![f(1.0), NAN], f(1.0)), ("min.f32", vec![f(0.0), f(-0.0)], f(-0.0)),
        ("max.f32", vec![NAN, f(2.0)], f(2.0)), ("max.f32", vec![f(-0.0), f(0.0)], f(0.0)),
        ("min.NaN.f32", vec![f(1.0), NAN], 0x7fff_ffff), ("max.NaN.f32", vec![NAN, f(2.0)], 0x7fff_ffff),
        ("max.NaN.f32", vec![f(1.0), f(2.0)], f(2.0)),
        ("add.rz.f32", vec![f(1.0), f(1e-10)], f(1.0)), ("add.rz.f32", vec![f(1.0), f(-1e-10)], f(1.0) - 1),
        ("add.rz.f32", vec![f(1.0), f(f32::EPSILON * 0.75)], f(1.0)),
        ("add.rz.f32", vec![f(-1.0), f(f32::EPSILON * -0.75)], f(-1.0)),
        ("sub.rz.f32", vec![f(f32::MAX), f(-f32::MAX)], f(f32::MAX)), ("mul.rz.f32", vec![f(1.1), f(1.1)], f(1.21)),
        ("fma.rz.f32", vec![f(1.0), f(1.0), f(1e-30)], f(1.0)),
        ("fma.rz.f32", vec![f(-1.0), f(1.0), f(1e-30)], f(-1.0) - 1),
        ("copysign.f32", vec![f(-1.0), f(3.0)], f(-3.0)),
        ("add.f16", vec![H1, H2], H3), ("add.rn.f16", vec![H1, H2], H3), ("sub.f16", vec![H3, H2], H1),
        ("sub.rn.f16", vec![H3, H2], H1),
        ("mul.f16", vec![H2, HALF], H1), ("mul.rn.f16", vec![H2, HALF], H1), ("min.f16", vec![H1, H2], H1),
        ("max.f16", vec![H1, H2], H2),
        ("min.NaN.f16", vec![H1, 0x7e00], 0x7fff), ("max.NaN.f16", vec![H1, H2], H2),
        ("min.bf16", vec![B1, B2], B1),
        ("max.bf16", vec![B1, B2], B2),
        ("min.NaN.bf16", vec![B1, 0x7fc0], 0x7fff), ("max.NaN.bf16", vec![B1, B2], B2),
        ("add.f16x2", vec![twice(H1), twice(H2)], twice(H3)), ("add.rn.f16x2", vec![twice(H1), twice(H2)], twice(H3)),
        ("sub.f16x2", vec![twice(H3), twice(H2)], twice(H1)), ("sub.rn.f16x2", vec![twice(H3), twice(H2)], twice(H1)),
        ("mul.f16x2", vec![twice(H2), twice(HALF)], twice(H1)),
        ("mul.rn.f16x2", vec![twice(H2), twice(HALF)], twice(H1)),
        ("min.f16x2", vec![twice(H1), H2 << 16], H1 << 16), ("max.f16x2", vec![twice(H1), H2 << 16], H2 << 16 | H1),
        ("min.NaN.f16x2", vec![twice(H1), twice(H2)], twice(H1)),
        ("max.NaN.f16x2", vec![twice(0x7e00), twice(H2)], twice(0x7fff)),
        ("add.s64", vec![u64::MAX, 2], 1), ("add.u64", vec![3, 4], 7), ("sub.s64", vec![1, 2], u64::MAX),
        ("sub.u64", vec![9, 2], 7),
        ("mul.lo.s64", vec![minus64(-3), 5], minus64(-15)), ("mul.lo.u64", vec![3, 5], 15),
        ("mul.hi.u64", vec![1 << 63, 4], 2), ("mul.hi.s64", vec![u64::MAX, 1], u64::MAX),
        ("div.u64", vec![7, 2], 3), ("div.u64", vec![7, 0], u64::MAX), ("div.s64", vec![minus64(-7), 2], minus64(-3)),
        ("rem.u64", vec![7, 4], 3), ("rem.s64", vec![minus64(-7), 4], minus64(-3)),
        ("min.u64", vec![1, u64::MAX], 1), ("min.s64", vec![1, u64::MAX], u64::MAX),
        ("max.u64", vec![1, u64::MAX], u64::MAX), ("max.s64", vec![1, u64::MAX], 1),
        ("and.b64", vec![12, 10], 8), ("or.b64", vec![12, 10], 14), ("xor.b64", vec![12, 10], 6),
        ("shl.b64", vec![1, 40], 1 << 40), ("shl.b64", vec![1, 64], 0), ("shr.u64", vec![1 << 63, 63], 1),
        ("shr.b64", vec![8, 1], 4), ("shr.s64", vec![minus64(-8), 99], u64::MAX),
        ("add.f64", vec![g(1.5), g(2.0)], g(3.5)), ("add.rn.f64", vec![g(1.5), g(2.0)], g(3.5)),
        ("sub.f64", vec![g(1.0), g(3.0)], g(-2.0)), ("sub.rn.f64", vec![g(1.0), g(3.0)], g(-2.0)),
        ("mul.f64", vec![g(1.5), g(2.0)], g(3.0)), ("mul.rn.f64", vec![g(1.5), g(2.0)], g(3.0)),
        ("div.rn.f64", vec![g(1.0), g(4.0)], g(0.25)),
        ("min.f64", vec![g(1.0), g(f64::NAN)], g(1.0)), ("max.f64", vec![g(1.0), g(2.0)], g(2.0)),
        ("copysign.f64", vec![g(-1.0), g(3.0)], g(-3.0)),
        ("mul.wide.u32", vec![1 << 31, 4], 1 << 33), ("mul.wide.s32", vec![minus(-2), 3], minus64(-6)),
        ("mad.wide.u32", vec![1 << 31, 4, 1], (1 << 33) + 1), ("mad.wide.s32", vec![minus(-2), 3, 10], 4),
        ("mad.lo.s32", vec![2, 3, 4], 10), ("mad.lo.u32", vec![2, 3, 4], 10), ("mad.hi.u32", vec![1 << 31, 4, 5], 7),
        ("mad.hi.s32", vec![minus(-1), 1, 1], 0),
        ("mad.lo.s16", vec![0x100, 0x100, 7], 7), ("mad.lo.u16", vec![2, 3, 4], 10),
        ("mad.wide.u16", vec![0xffff, 2, 1], 0x1_ffff), ("mad.wide.s16", vec![0xffff, 2, 1], minus(-1)),
        ("fma.rn.f32", vec![f(2.0), f(3.0), f(4.0)], f(10.0)), ("fma.rn.f16", vec![H2, H1, H1], H3),
        ("fma.rn.bf16", vec![B2, B1, B1], B3),
        ("fma.rn.f16x2", vec![twice(H2), twice(H1), twice(H1)], twice(H3)),
        ("bfe.u32", vec![0xabcd, 4, 8], 0xbc), ("bfe.u32", vec![0xabcd, 40, 8], 0),
        ("bfe.s32", vec![0xf0, 4, 4], minus(-1)), ("bfe.s32", vec![5, 0, 0], 0),
        ("shf.l.wrap.b32", vec![0x8000_0000, 1, 1], 3), ("shf.l.clamp.b32", vec![7, 1, 40], 7),
        ("shf.r.wrap.b32", vec![0, 1, 1], 0x8000_0000), ("shf.r.clamp.b32", vec![7, 1, 40], 1),
        ("prmt.b32", vec![0x4433_2211, 0x8877_6655, 0x7250], 0x8833_6611), ("prmt.b32", vec![0x80, 0, 0x1118], 0xff),
        ("mad.lo.s64", vec![2, 3, 4], 10), ("mad.lo.u64", vec![2, 3, 4], 10),
        ("fma.rn.f64", vec![g(2.0), g(3.0), g(4.0)], g(10.0)),
        ("mov.pred", vec![1], 1), ("not.pred", vec![1], 0), ("and.pred", vec![1, 0], 0), ("or.pred", vec![1, 0], 1),
        ("xor.pred", vec![1, 1], 0),
        ("bfi.b32", vec![0xf, 0, 4, 4], 0xf0), ("bfi.b32", vec![0, 0xffff, 40, 4], 0xffff),
        ("selp.b16", vec![1, 2, 1], 1), ("selp.u16", vec![1, 2, 0], 2), ("selp.s16", vec![1, 2, 0], 2),
        ("selp.b32", vec![1, 2, 1], 1), ("selp.u32", vec![1, 2, 0], 2),
        ("selp.s32", vec![1, 2, 0], 2), ("selp.f32", vec![f(1.0), f(2.0), 0], f(2.0)), ("selp.b64", vec![1, 2, 1], 1),
        ("selp.u64", vec![1, 2, 0], 2),
        ("selp.s64", vec![1, 2, 0], 2), ("selp.f64", vec![g(1.0), g(2.0), 1], g(1.0)),
        ("mov.b32", vec![9], 9), ("mov.u32", vec![9], 9), ("mov.s32", vec![9], 9), ("mov.f32", vec![9], 9),
        ("mov.b16", vec![9], 9), ("mov.u16", vec![9], 9),
        ("mov.s16", vec![9], 9), ("mov.b64", vec![9], 9), ("mov.u64", vec![9], 9),
        ("mov.s64", vec![9], 9), ("mov.f64", vec![9], 9),
    ]
}

/// The files of a form's result and operands: those of an operation on 16 bits, which the interpreter has in registers
/// of 32, have 16; but not the number of bits of a shift, and not a product of twice the width.
fn files(form: &str, op: Op) -> Option<(char, String)> {
    let (to, from) = files_of(op)?;
    if !form.rsplit('.').next().is_some_and(|kind| kind.ends_with("16")) {
        return Some((to, from.to_owned()));
    }
    let is_wide = form.contains(".wide.");
    let is_shift = form.starts_with("sh");
    let narrow = |(at, file): (usize, char)| match file {
        'r' if !(is_shift && at == 1 || is_wide && at == 2) => 'h',
        other => other,
    };
    Some((if is_wide { to } else { 'h' }, from.chars().enumerate().map(narrow).collect()))
}

fn files_of(op: Op) -> Option<(char, &'static str)> {
    Some(match op {
        Op::U32(_) => ('r', "r"),
        Op::U64(_) => ('d', "d"),
        Op::Narrow(_) => ('r', "d"),
        Op::B32(_) => ('r', "rr"),
        Op::B64(B64::Shl | B64::ShrU | B64::ShrS) => ('d', "dr"),
        Op::B64(_) => ('d', "dd"),
        Op::MulWide(_) => ('d', "rr"),
        Op::MadWide(_) => ('d', "rrd"),
        Op::T32(_) => ('r', "rrr"),
        Op::T64(_) => ('d', "ddd"),
        Op::Bfi => ('r', "rrrr"),
        Op::Select32 => ('r', "rrp"),
        Op::Select64 => ('d', "ddp"),
        Op::Pred(Pred::Mov | Pred::Not) => ('p', "p"),
        Op::Pred(_) => ('p', "pp"),
        // Other tests have these.
        _ => return None,
    })
}

#[test]
fn each_form_computes_what_the_manual_says() {
    let cases = cases();
    for (form, op) in FORMS {
        let Some((to, from)) = files(form, *op) else { continue };
        let mut of_form = cases.iter().filter(|(name, ..)| name == form).peekable();
        assert!(of_form.peek().is_some(), "{form} has no case");
        for (_, operands, wanted) in of_form {
            assert_eq!(operands.len(), from.len(), "{form}");
            let from: Vec<_> = from.chars().zip(operands.iter().copied()).collect();
            let found = instruction(form, to, &from);
            assert_eq!(found, *wanted, "{form} {operands:x?} gives {found:#x}, not {wanted:#x}");
        }
    }
    let known: BTreeSet<_> = FORMS.iter().map(|(form, _)| *form).collect();
    let unknown: Vec<_> = cases.iter().filter(|(form, ..)| !known.contains(form)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn denormal_numbers_are_zero_with_ftz_only() {
    let small = f(f32::from_bits(1));
    assert_eq!(instruction("add.rn.f32", 'r', &[('r', small), ('r', small)]), 2);
    assert_eq!(instruction("add.rn.ftz.f32", 'r', &[('r', small), ('r', f(1.0))]), f(1.0));
    assert_eq!(instruction("mul.rn.ftz.f32", 'r', &[('r', f(1e-30)), ('r', f(-1e-10))]), f(-0.0));
    assert_eq!(instruction("setp.eq.ftz.f32", 'p', &[('r', small), ('r', 0)]), 1);
    assert_eq!(instruction("setp.eq.f32", 'p', &[('r', small), ('r', 0)]), 0);
}

/// How far approximations may be off: what the manual allows a device. These are the host's library's.
#[test]
fn approximations_are_near() {
    type Approximation = (&'static str, fn(f64) -> f64, f64);
    let cases: [Approximation; 8] = [
        ("ex2.approx.f32", f64::exp2, 3e-7),
        ("lg2.approx.f32", f64::log2, 3e-7),
        ("rcp.approx.f32", f64::recip, 1.2e-7),
        ("sqrt.approx.f32", f64::sqrt, 1.2e-7),
        ("rsqrt.approx.f32", |x| x.sqrt().recip(), 2.4e-7),
        ("sin.approx.f32", f64::sin, 5e-7),
        ("cos.approx.f32", f64::cos, 5e-7),
        ("tanh.approx.f32", f64::tanh, 4.9e-4),
    ];
    for (form, exact, tolerance) in cases {
        for x in [0.1_f32, 0.7, 1.3, 2.9] {
            let bits = u32::try_from(instruction(form, 'r', &[('r', f(x))])).expect("32 bits");
            let (found, wanted) = (f64::from(f32::from_bits(bits)), exact(f64::from(x)));
            assert!(
                (found - wanted).abs() <= tolerance * wanted.abs().max(1.0),
                "{form} {x}: {found} {wanted}"
            );
        }
    }
}
