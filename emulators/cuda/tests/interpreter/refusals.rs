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
        (")\n{", ")\n.unknown 1\n{"),
        ("ret;\n}", "ret;\n"),
        ("ret;\n}", "ret\n}"),
    ] {
        let text = right.replacen(from, to, 1);
        assert_ne!(text, right, "{from}");
        assert!(Module::parse(&text).is_err(), "{to}");
    }
    let twice = format!("{right}{}", &right[right.find(".visible").expect("an entry")..]);
    assert!(Module::parse(&twice).is_err());
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
