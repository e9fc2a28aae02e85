// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is refused when a module is loaded.

use crate::support::kernel;
use emulator_cuda::ptx::Module;
use emulator_cuda::ptx::forms::FORMS;
use proptest::prelude::*;

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_is_not_known_is_refused_with_its_text() {
    for body in [
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "call.uni function, (%r1);",
        "add.rp.f32 %r1, %r2, %r3;",
        "add.ftz.s32 %r1, %r2, %r3;",
        "frobnicate.u32 %r1;",
        "tex.2d.v4.f32.s32 {%r1,%r2,%r3,%r4}, [texture, {%r1, %r2}];",
        "cp.async.cg.shared.global [%d1], [%d2], 16;",
        "ld.global.b128 %d1, [%at];",
        "ld.surface.u32 %r1, [%at];",
        "st.param.u32 [at], 1;",
        "st.const.u32 [%at], 1;",
        "ld.global.v2.u32 %r1, [%at];",
        "ld.param.u64 %d1, [other];",
        "ld.param.u64 %d1, [at+4];",
        "setp.lt.b8 %p1, %r1, %r2;",
        "setp.equ.s32 %p1, %r1, %r2;",
        "setp.lt.b32 %p1, %r1, %r2;",
        "setp.lo.s32 %p1, %r1, %r2;",
        "ld.global.f16 %h1, [%at];",
        "ld.global.v4.u64 {%d1, %d2, %d3, %d4}, [%at];",
        "ld.global.v8.u8 {%h1, %h2, %h3, %h4, %h5, %h6, %h7, %h8}, [%at];",
        ".reg .b32 %r<4>;",
        "{\n.reg .b32 %q<4>;\nmov.b32 %q1, 1;\n}\nmov.b32 %r1, %q1;",
        "{\n.shared .b32 x;\n}\nst.shared.u32 [x], 1;",
        ".shared .align 16 .b8 large[49153];\nst.shared.u8 [large], 0;",
        "setp.lt.u32 %p1, %r1, %r2, %p2;",
        "cvt.f32.s32 %r1, %r2;",
        "cvt.rn.s32.f32 %r1, %r2;",
        "cvt.rni.rni.s32.f32 %r1, %r2;",
        "cvt.f16.f32 %r1, %r2;",
        "cvt.u64.f32 %d1, %r2;",
        "bar.sync 0, 32;",
        "bar.sync %r1;",
        "bar.red.and.pred %p1, 0, %p2;",
        "barrier.sync 0;",
        "shfl.bfly.b32 %r1, %r2, 1, 31;",
        "shfl.sync.bfly.b32 %r1, %r2, 1, 31;",
        "vote.ballot.b32 %r1, %p1;",
        "atom.add.f32 %r1, [%at], %r2, %r3;",
        "atom.add.u16 %r1, [%at], %r2;",
        "red.exch.b32 [%at], %r2;",
        "add.s32 %r1, %r2;",
        "add.s32 %r1, %r2, %d3;",
        "add.s32 %r1, %r2, %r99;",
        "add.s32 5, %r2, %r3;",
        "add.s32 %r1, %r2, [%r3];",
        "mov.u32 %r1, %clock;",
        "mov.u64 %d1, %tid.x;",
        "mov.u64 %d1, at;",
        "mov.b32 {%h1, %h2, %h3}, %r1;",
        "bra $nowhere;",
        "bra.conv $nowhere;",
        "@%r1 bra $nowhere;",
        "lop3.b32 %r1, %r2, %r3, %r4, 256;",
        "cvta.texture.u64 %d1, %d2;",
        ".pragma \"other\";",
        ".reg .b128 %q<2>;",
        ".reg .b32 %many<100000>;",
        ".shared .align 16 .b8 large[300000];\nst.shared.u32 [large], 0;",
        ".local .align 16 .b8 large[1000000];",
        "$twice:\n$twice:",
    ] {
        let refusal = Module::parse(&kernel(body)).expect_err(body);
        let last = body.lines().last().expect("a line");
        assert!(refusal.source_line == last || last.contains("nowhere"), "{body}: {refusal}");
        assert!(refusal.to_string().contains(&refusal.source_line), "{refusal}");
    }
}

#[test]
fn modules_that_are_not_right_are_refused() {
    let right = kernel("");
    assert!(Module::parse(&right).is_ok());
    for (from, to) in [
        (".version 7.6", ".version 9.9"),
        (".version 7.6", ""),
        (".version 7.6", ".version 6.5"),
        ("sm_80", "sm_90"),
        (".visible", ".const .b8 x[60000];\n.const .b8 y[6000];\n.visible"),
        ("sm_80", "sm_20"),
        ("sm_80", "nonsense"),
        ("64", "32"),
        (".visible", ".visible .func"),
        (".visible", ".extern .global .b32 x;\n.visible"),
        (".visible", ".global .b32 x;\n.global .b32 x;\n.visible"),
        (".visible", ".global .b32 x[2] = {1, 2, 3};\n.visible"),
        (".visible", ".global .align 3 .b32 x;\n.visible"),
        (".visible", ".global .b32 x[4000000000];\n.visible"),
        (".visible", "/* without an end\n.visible"),
        (".visible", "\u{7}.visible"),
        (".param .u64 at", ".param .u64 at, .param .u64 at"),
        (".param .u64 at", ".param .texref at"),
        (".param .u64 at", ".param .align 8 .b8 at[40000]"),
        // More is for version 8.1 and `sm_70`.
        (".param .u64 at", ".param .u64 at, .param .align 8 .b8 more[4352]"),
        (")\n{", ")\n.maxntid 64, 1, 1\n.reqntid 64, 1, 1\n{"),
        (")\n{", ")\n.unknown 1\n{"),
        ("ret;\n}", "ret;\n"),
        ("ret;\n}", "ret\n}"),
    ] {
        let text = right.replacen(from, to, 1);
        assert_ne!(text, right, "{from}");
        assert!(Module::parse(&text).is_err(), "{to}");
    }
    let large = right.replace(".param .u64 at", ".param .u64 at, .param .align 8 .b8 more[32756]");
    assert!(Module::parse(&large).is_err());
    assert!(Module::parse(&large.replace(".version 7.6", ".version 8.1")).is_ok());
    let old = large.replace(".version 7.6", ".version 8.1").replace("sm_80", "sm_61");
    assert!(Module::parse(&old).is_err());
    let twice = format!("{right}{}", &right[right.find(".visible").expect("an entry")..]);
    assert!(Module::parse(&twice).is_err());
}

/// A kernel for another target.
fn for_target(body: &str, target: &str) -> String {
    kernel(body).replace("sm_80", target)
}

/// What the manual does not have, although one could guess what it means; the reason says where the manual says so.
#[test]
#[rustfmt::skip]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_the_manual_does_not_have_is_refused_with_its_section() {
    for (body, reason) in [
        // Sizes and types of registers.
        ("add.s16 %r1, %r2, %r3;", "Type Checking Rules"),
        ("add.s32 %h1, %r2, %r3;", "Type Checking Rules"),
        ("add.s32 %r1, %h2, %r3;", "Type Checking Rules"),
        ("mov.b16 %r1, %r2;", "Type Checking Rules"),
        ("mov.b32 %r1, %h2;", "Type Checking Rules"),
        ("selp.b16 %h1, %r2, %h3, %p1;", "Type Checking Rules"),
        ("setp.eq.s16 %p1, %r1, %r2;", "Type Checking Rules"),
        ("shl.b32 %r1, %r2, %h3;", "Type Checking Rules"),
        ("shl.b16 %h1, %h2, %h3;", "Type Checking Rules"),
        ("mul.wide.u16 %h1, %h2, %h3;", "Type Checking Rules"),
        ("mul.wide.u16 %r1, %r2, %r3;", "Type Checking Rules"),
        ("mad.wide.u16 %r1, %h2, %h3, %h4;", "Type Checking Rules"),
        ("popc.b64 %h1, %d2;", "Type Checking Rules"),
        ("add.f16 %r1, %r2, %r3;", "Type Checking Rules"),
        ("atom.global.cas.b16 %r1, [%at], %h2, %h3;", "Type Checking Rules"),
        ("mov.b32 {%r1, %r2}, %r3;", "Type Checking Rules"),
        ("mov.b64 {%h1, %h2}, %d3;", "Type Checking Rules"),
        (".reg .f32 %f<4>;\nadd.s32 %f1, %r2, %r3;", "Type Checking Rules"),
        (".reg .s32 %s<4>;\nadd.f32 %r1, %s2, %r3;", "Type Checking Rules"),
        (".reg .f32 %f<4>;\nbfe.u32 %r1, %r2, %f3, %r3;", "Type Checking Rules"),
        (".reg .f32 %f<4>;\nshfl.sync.bfly.b32 %r1, %r2, %f1, 31, -1;", "Type Checking Rules"),
        (".reg .f64 %g<4>;\nld.global.u32 %r1, [%g1];", "Type Checking Rules"),
        (".reg .f32 %f<4>;\nmov.f32 %f1, %tid.x;", "Type Checking Rules"),
        ("add.s32 %r1, %r2, 0f3F800000;", "Type Checking Rules"),
        // Loads, stores and conversions take wider ones, and no narrower; floats are exact unless the register has
        // bits.
        ("ld.global.u32 %h1, [%at];", "Operand Size Exceeding"),
        ("st.global.u32 [%at], %h1;", "Operand Size Exceeding"),
        ("ld.global.v2.u32 {%r1, %h2}, [%at];", "Operand Size Exceeding"),
        ("cvt.u64.u32 %d1, %h2;", "Operand Size Exceeding"),
        ("cvt.u32.u16 %h1, %h2;", "Operand Size Exceeding"),
        (".reg .f64 %g<4>;\nld.global.f32 %g1, [%at];", "Operand Size Exceeding"),
        (".reg .u64 %u<4>;\nst.global.f32 [%at], %u1;", "Operand Size Exceeding"),
        (".reg .f32 %f<4>;\nld.global.u32 %f1, [%at];", "Operand Size Exceeding"),
        (".reg .f32 %f<4>;\ncvt.rn.f16.f32 %f1, %f2;", "Operand Size Exceeding"),
        // The order of memory.
        ("ld.relaxed.global.u32 %r1, [%at];", "scope"),
        ("ld.acquire.global.u32 %r1, [%at];", "scope"),
        ("st.release.global.u32 [%at], %r1;", "scope"),
        ("ld.gpu.global.u32 %r1, [%at];", "scope"),
        ("ld.weak.gpu.global.u32 %r1, [%at];", "scope"),
        ("ld.volatile.relaxed.gpu.global.u32 %r1, [%at];", "exclusive"),
        ("ld.relaxed.gpu.cta.global.u32 %r1, [%at];", "scope"),
        ("ld.release.gpu.global.u32 %r1, [%at];", "`release`"),
        ("st.acquire.gpu.global.u32 [%at], %r1;", "`acquire`"),
        ("ld.relaxed.gpu.const.u32 %r1, [%at];", "`global` and `shared`"),
        ("ld.volatile.local.u32 %r1, [%at];", "`global` and `shared`"),
        ("ld.relaxed.gpu.global.ca.u32 %r1, [%at];", "cache"),
        ("ld.mmio.global.u32 %r1, [%at];", "`mmio`"),
        ("ld.mmio.relaxed.gpu.global.u32 %r1, [%at];", "`mmio`"),
        ("ld.nc.u32 %r1, [%at];", "`nc`"),
        ("st.global.nc.u32 [%at], %r1;", "`nc`"),
        ("ld.global.wt.u32 %r1, [%at];", "`wt`"),
        ("st.global.ca.u32 [%at], %r1;", "`ca`"),
        ("ld.global.ca.cg.u32 %r1, [%at];", "cache"),
        ("ld.global.v4.u32 {%r1, %r2, _, %r4}, [%at];", "`_`"),
        ("add.s32 _, %r1, %r2;", "`_`"),
        // Conversions.
        ("cvt.sat.u32.u32 %r1, %r2;", "saturation"),
        ("cvt.sat.s32.s16 %r1, %h2;", "saturation"),
        ("cvt.sat.u64.u8 %d1, %h2;", "saturation"),
        ("cvt.sat.s32.u8 %r1, %h2;", "saturation"),
        ("cvt.rn.sat.bf16.f32 %h1, %r2;", "saturation"),
        ("cvt.sat.sat.u8.s32 %h1, %r2;", "not known"),
        // Types of atomic operations.
        ("atom.global.add.f16 %h1, [%at], %h2;", "noftz"),
        ("atom.global.add.noftz.f32 %r1, [%at], %r2;", "noftz"),
        ("atom.global.add.b32 %r1, [%at], %r2;", "section `atom`"),
        ("atom.global.add.s64 %d1, [%at], %d2;", "section `atom`"),
        ("atom.global.and.u32 %r1, [%at], %r2;", "section `atom`"),
        ("atom.global.and.f32 %r1, [%at], %r2;", "section `atom`"),
        ("atom.global.xor.s64 %d1, [%at], %d2;", "section `atom`"),
        ("atom.global.exch.u32 %r1, [%at], %r2;", "section `atom`"),
        ("atom.global.cas.u32 %r1, [%at], %r2, %r3;", "section `atom`"),
        ("atom.global.cas.u16 %h1, [%at], %h2, %h3;", "section `atom`"),
        ("atom.global.min.b32 %r1, [%at], %r2;", "section `atom`"),
        ("atom.global.min.f32 %r1, [%at], %r2;", "section `atom`"),
        ("atom.global.inc.s32 %r1, [%at], %r2;", "section `atom`"),
        ("atom.local.add.u32 %r1, [%at], %r2;", "`global` and `shared`"),
        ("red.const.add.u32 [%at], %r2;", "`global` and `shared`"),
        ("atom.relaxed.acquire.gpu.global.add.u32 %r1, [%at], %r2;", "exclusive"),
        // Denormal numbers.
        ("mov.ftz.f32 %r1, %r2;", "ftz"),
        ("selp.ftz.f32 %r1, %r2, %r3, %p1;", "ftz"),
        ("copysign.ftz.f32 %r1, %r2, %r3;", "ftz"),
        ("tanh.approx.ftz.f32 %r1, %r2;", "ftz"),
        ("add.ftz.f64 %d1, %d2, %d3;", "ftz"),
        ("add.ftz.ftz.f32 %r1, %r2, %r3;", "not known"),
        ("setp.lt.ftz.f64 %p1, %d2, %d3;", "ftz"),
        ("cvt.ftz.s32.s16 %r1, %h2;", "ftz"),
        // Targets.
        ("add.bf16 %h1, %h2, %h3;", "sm_90"),
        ("add.rn.bf16 %h1, %h2, %h3;", "sm_90"),
        ("mul.bf16x2 %r1, %r2, %r3;", "sm_90"),
        ("setp.lt.bf16 %p1, %h2, %h3;", "sm_90"),
        ("cvt.rzi.s32.bf16 %r1, %h2;", "sm_90"),
        ("cvt.rn.bf16.u32 %h1, %r2;", "sm_90"),
        ("atom.global.add.noftz.bf16 %h1, [%at], %h2;", "sm_90"),
        ("mov.f16 %h1, %h2;", "not known"),
    ] {
        let refusal = Module::parse(&kernel(body)).map(drop).expect_err(body);
        assert!(refusal.reason.contains(reason), "{body}: {refusal}");
    }
    for (body, target, least) in [
        ("fma.rn.bf16 %h1, %h2, %h3, %h4;", "sm_75", "sm_80"),
        ("cvt.rn.bf16.f32 %h1, %r2;", "sm_75", "sm_80"),
        ("min.f16 %h1, %h2, %h3;", "sm_75", "sm_80"),
        ("max.NaN.f32 %r1, %r2, %r3;", "sm_75", "sm_80"),
        ("tanh.approx.f32 %r1, %r2;", "sm_70", "sm_75"),
        ("ex2.approx.f16 %h1, %h2;", "sm_70", "sm_75"),
        ("ld.relaxed.gpu.global.u32 %r1, [%at];", "sm_60", "sm_70"),
        ("st.global.L1::no_allocate.u32 [%at], %r1;", "sm_60", "sm_70"),
        ("fence.acq_rel.gpu;", "sm_60", "sm_70"),
        ("atom.acquire.gpu.global.add.u32 %r1, [%at], %r2;", "sm_60", "sm_70"),
        ("atom.global.cas.b16 %h1, [%at], %h2, %h3;", "sm_60", "sm_70"),
        ("atom.global.add.noftz.f16 %h1, [%at], %h2;", "sm_60", "sm_70"),
        ("atom.global.gpu.add.u32 %r1, [%at], %r2;", "sm_52", "sm_60"),
        ("atom.global.add.f64 %d1, [%at], %d2;", "sm_52", "sm_60"),
        ("add.f16 %h1, %h2, %h3;", "sm_52", "sm_53"),
    ] {
        let refusal = Module::parse(&for_target(body, target)).map(drop).expect_err(body);
        assert!(refusal.reason.contains(least), "{body}: {refusal}");
        assert!(Module::parse(&for_target(body, least)).is_ok(), "{body} for {least}");
    }
}

/// Which registers the manual's tables allow.
#[test]
fn registers_that_agree_or_are_wider_are_taken() {
    let registers = ".reg .f32 %f<4>;\n.reg .f64 %g<4>;\n.reg .u32 %u<4>;\n.reg .s64 %s<4>;\n.reg .f16 %e<4>;\n\
                     .reg .f16x2 %x<4>;\n.reg .b8 %b<4>;\n";
    for instruction in [
        "add.s32 %u1, %r1, %u2;",
        "xor.b32 %f1, %f2, %r1;",
        "add.f32 %f1, %r1, %f2;",
        "add.f16 %e1, %h1, %e2;",
        "neg.f16x2 %x1, %r1;",
        "mov.b32 %r1, 0f3F800000;",
        "mov.b32 %x1, {%h1, %e1};",
        "ld.global.u8 %h1, [%at];",
        "ld.global.u8 %b1, [%at];",
        "ld.global.b8 %d1, [%at];",
        "ld.global.b32 %g1, [%at];",
        "ld.global.f32 %d1, [%at];",
        "ld.global.v2.u16 {%h1, %r1}, [%at];",
        "ld.shared.u32 %r1, [%u1];",
        "st.global.b16 [%at], %f1;",
        "cvt.s64.s8 %s1, %h1;",
        "cvt.rn.f16.f32 %r1, %d1;",
        "cvt.sat.s8.u8 %h1, %h2;",
        "cvt.sat.u32.s32 %r1, %r2;",
        "cvt.rzi.sat.s32.f32 %r1, %f1;",
        "cvt.rn.sat.f32.s32 %f1, %r1;",
        "ld.mmio.relaxed.sys.global.u32 %r1, [%at];",
        "ld.volatile.u32 %r1, [%at];",
        "st.release.sys.shared.u32 [%at], %r1;",
        "atom.add.u32 _, [%at], 1;",
        "setp.lt.s32 _|%p1, %r1, %r2;",
    ] {
        let body = format!("{registers}{instruction}");
        assert!(Module::parse(&kernel(&body)).is_ok(), "{:?}", Module::parse(&kernel(&body)).map(drop));
    }
}

proptest! {
    #[test]
    fn fuzz_any_text(text in "\\PC{0,200}") {
        let _ = Module::parse(&text);
        let _ = Module::parse(&format!(".version 7.6 .target sm_80 .address_size 64 {text}"));
        let _ = Module::parse(&kernel(&text));
    }

    #[test]
    fn fuzz_words_of_the_language(words in prop::collection::vec(word(), 0..40)) {
        let _ = Module::parse(&kernel(&words.join(" ")));
    }
}

fn word() -> impl Strategy<Value = String> {
    let signs = [
        ";",
        ",",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "@",
        "!",
        "+",
        "-",
        "|",
        ":",
        "<",
        ">",
        "=",
        "_",
        "0",
        "1",
        "-1",
        "0f3F800000",
        "%r1",
        "%d1",
        "%p1",
        "%h1",
        "%tid.x",
        "$label",
        "at",
        ".reg",
        ".b32",
        ".shared",
        ".local",
        ".align",
        ".param",
        "ld.param.u64",
        "ld.global.v2.b32",
        "st.shared.b32",
        "setp.lt.s32",
        "cvt.rn.f32.s32",
        "shfl.sync.bfly.b32",
        "atom.add.u32",
        "mov.b64",
    ];
    let forms = FORMS.iter().map(|(form, _)| *form);
    prop::sample::select(signs.into_iter().chain(forms).map(str::to_owned).collect::<Vec<_>>())
}
