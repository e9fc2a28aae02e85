// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The arithmetic instructions that are known, by their exact form. `.ftz` is not part of a form.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::instruction::{B32, B64, Narrow, Op, Pred, T32, T64, U32, U64, Wide};

macro_rules! forms {
    ($($kind:ident { $($($form:literal)|+ => $op:ident),* $(,)? })*) => {
        /// Each form with what it does.
        pub const FORMS: &[(&str, Op)] = &[$($($(($form, forms!(@op $kind $op)),)+)*)*];
    };
    (@op MulWide $op:ident) => { Op::MulWide(Wide::$op) };
    (@op MadWide $op:ident) => { Op::MadWide(Wide::$op) };
    (@op Plain $op:ident) => { Op::$op };
    (@op $kind:ident $op:ident) => { Op::$kind($kind::$op) };
}

forms! {
    U32 {
        "mov.b32" | "mov.u32" | "mov.s32" | "mov.f32" | "mov.b16" | "mov.u16" | "mov.s16" => Mov,
        "neg.s32" => Neg, "not.b32" => Not, "cnot.b32" => Cnot, "abs.s32" => Abs,
        "popc.b32" => Popc, "clz.b32" => Clz, "brev.b32" => Brev,
        "neg.s16" => Neg16, "not.b16" => Not16, "abs.s16" => Abs16,
        "neg.f32" => NegF, "abs.f32" => AbsF,
        "ex2.approx.f32" => Ex2, "lg2.approx.f32" => Lg2,
        "rcp.rn.f32" | "rcp.approx.f32" => Rcp,
        "sqrt.rn.f32" | "sqrt.approx.f32" => Sqrt, "rsqrt.approx.f32" => Rsqrt,
        "sin.approx.f32" => Sin, "cos.approx.f32" => Cos, "tanh.approx.f32" => Tanh,
        "neg.f16" | "neg.bf16" => NegH, "abs.f16" | "abs.bf16" => AbsH,
        "ex2.approx.f16" => Ex2H, "tanh.approx.f16" => TanhH,
        "neg.f16x2" | "neg.bf16x2" => NegH2, "abs.f16x2" | "abs.bf16x2" => AbsH2,
    }
    U64 {
        "mov.b64" | "mov.u64" | "mov.s64" | "mov.f64" => Mov,
        "neg.s64" => Neg, "not.b64" => Not, "abs.s64" => Abs, "brev.b64" => Brev,
        "neg.f64" => NegF, "abs.f64" => AbsF, "rcp.rn.f64" | "rcp.approx.f64" => Rcp,
        "sqrt.rn.f64" => Sqrt, "rsqrt.approx.f64" => Rsqrt,
    }
    Narrow { "popc.b64" => Popc, "clz.b64" => Clz }
    B32 {
        "add.s32" | "add.u32" => Add, "sub.s32" | "sub.u32" => Sub,
        "mul.lo.s32" | "mul.lo.u32" => Mul, "mul.hi.u32" => MulHiU, "mul.hi.s32" => MulHiS,
        "div.u32" => DivU, "div.s32" => DivS, "rem.u32" => RemU, "rem.s32" => RemS,
        "min.u32" => MinU, "min.s32" => MinS, "max.u32" => MaxU, "max.s32" => MaxS,
        "and.b32" | "and.b16" => And, "or.b32" | "or.b16" => Or, "xor.b32" | "xor.b16" => Xor,
        "shl.b32" => Shl, "shr.u32" | "shr.b32" => ShrU, "shr.s32" => ShrS,
        "add.s16" | "add.u16" => Add16, "sub.s16" | "sub.u16" => Sub16,
        "mul.lo.s16" | "mul.lo.u16" => Mul16, "mul.hi.u16" => MulHiU16, "mul.hi.s16" => MulHiS16,
        "div.u16" => DivU16, "div.s16" => DivS16, "rem.u16" => RemU16, "rem.s16" => RemS16,
        "min.u16" => MinU16, "min.s16" => MinS16, "max.u16" => MaxU16, "max.s16" => MaxS16,
        "shl.b16" => Shl16, "shr.u16" | "shr.b16" => ShrU16, "shr.s16" => ShrS16,
        "mul.wide.u16" => MulWideU16, "mul.wide.s16" => MulWideS16,
        "add.f32" | "add.rn.f32" => AddF, "sub.f32" | "sub.rn.f32" => SubF, "mul.f32" | "mul.rn.f32" => MulF,
        "div.rn.f32" | "div.full.f32" | "div.approx.f32" => DivF,
        "min.f32" => MinF, "max.f32" => MaxF, "min.NaN.f32" => MinNanF, "max.NaN.f32" => MaxNanF,
        "copysign.f32" => CopysignF,
        "add.rz.f32" => AddRzF, "sub.rz.f32" => SubRzF, "mul.rz.f32" => MulRzF,
        "add.f16" | "add.rn.f16" => AddH, "sub.f16" | "sub.rn.f16" => SubH, "mul.f16" | "mul.rn.f16" => MulH,
        "min.f16" => MinH, "max.f16" => MaxH, "min.NaN.f16" => MinNanH, "max.NaN.f16" => MaxNanH,
        "min.bf16" => MinB, "max.bf16" => MaxB, "min.NaN.bf16" => MinNanB, "max.NaN.bf16" => MaxNanB,
        "add.f16x2" | "add.rn.f16x2" => AddH2, "sub.f16x2" | "sub.rn.f16x2" => SubH2,
        "mul.f16x2" | "mul.rn.f16x2" => MulH2, "min.f16x2" => MinH2, "max.f16x2" => MaxH2,
        "min.NaN.f16x2" => MinNanH2, "max.NaN.f16x2" => MaxNanH2,
    }
    B64 {
        "add.s64" | "add.u64" => Add, "sub.s64" | "sub.u64" => Sub,
        "mul.lo.s64" | "mul.lo.u64" => Mul, "mul.hi.u64" => MulHiU, "mul.hi.s64" => MulHiS,
        "div.u64" => DivU, "div.s64" => DivS, "rem.u64" => RemU, "rem.s64" => RemS,
        "min.u64" => MinU, "min.s64" => MinS, "max.u64" => MaxU, "max.s64" => MaxS,
        "and.b64" => And, "or.b64" => Or, "xor.b64" => Xor,
        "shl.b64" => Shl, "shr.u64" | "shr.b64" => ShrU, "shr.s64" => ShrS,
        "add.f64" | "add.rn.f64" => AddF, "sub.f64" | "sub.rn.f64" => SubF, "mul.f64" | "mul.rn.f64" => MulF,
        "div.rn.f64" => DivF, "min.f64" => MinF, "max.f64" => MaxF, "copysign.f64" => CopysignF,
    }
    MulWide { "mul.wide.u32" => U, "mul.wide.s32" => S }
    MadWide { "mad.wide.u32" => U, "mad.wide.s32" => S }
    T32 {
        "mad.lo.s32" | "mad.lo.u32" => Mad, "mad.hi.u32" => MadHiU, "mad.hi.s32" => MadHiS,
        "mad.lo.s16" | "mad.lo.u16" => Mad16, "mad.wide.u16" => MadWideU16, "mad.wide.s16" => MadWideS16,
        "fma.rn.f32" => FmaF, "fma.rz.f32" => FmaRzF, "fma.rn.f16" => FmaH, "fma.rn.bf16" => FmaB,
        "fma.rn.f16x2" => FmaH2,
        "bfe.u32" => BfeU, "bfe.s32" => BfeS,
        "shf.l.wrap.b32" => ShlWrap, "shf.l.clamp.b32" => ShlClamp,
        "shf.r.wrap.b32" => ShrWrap, "shf.r.clamp.b32" => ShrClamp,
        "prmt.b32" => Prmt,
    }
    T64 { "mad.lo.s64" | "mad.lo.u64" => Mad, "fma.rn.f64" => FmaF }
    Pred { "mov.pred" => Mov, "not.pred" => Not, "and.pred" => And, "or.pred" => Or, "xor.pred" => Xor }
    Plain {
        "bfi.b32" => Bfi,
        "selp.b16" | "selp.u16" | "selp.s16" | "selp.b32" | "selp.u32" | "selp.s32" | "selp.f32" => Select32,
        "selp.b64" | "selp.u64" | "selp.s64" | "selp.f64" => Select64,
        "activemask.b32" => ActiveMask,
        "bar.warp.sync" => WarpBarrier,
        "membar.cta" | "membar.gl" | "membar.sys" | "fence.acq_rel.cta" | "fence.acq_rel.gpu"
            | "fence.acq_rel.sys" | "fence.sc.cta" | "fence.sc.gpu" | "fence.sc.sys" => Fence,
        "bra" | "bra.uni" => Branch,
        "ret" | "exit" => Return,
        "trap" => Trap,
    }
}

/// What an instruction of an exact form does.
pub(super) fn lookup(form: &str) -> Option<Op> {
    static BY_NAME: LazyLock<HashMap<&str, Op>> = LazyLock::new(|| FORMS.iter().copied().collect());
    BY_NAME.get(form).copied()
}
