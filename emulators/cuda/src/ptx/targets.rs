// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which target an instruction needs: "Target ISA Notes" of its section in PTX's manual.

/// The first target that has an instruction, by the parts of its form; 0 if all that can be named have it.
pub(super) fn least(parts: &[&str]) -> u32 {
    let Some((name, rest)) = parts.split_first() else { return 0 };
    let has = |part: &str| rest.contains(&part);
    let orders = ["relaxed", "acquire", "release", "acq_rel", "mmio"].into_iter().any(has);
    let hints = rest.iter().any(|part| part.starts_with("L1::"));
    match *name {
        "fence" => 70,
        "ld" | "st" if orders || hints => 70,
        "atom" | "red" => of_atomic(orders, &has),
        "cvt" if rest.ends_with(&["bf16", "f32"]) || rest.ends_with(&["f32", "bf16"]) => 80,
        "fma" | "min" | "max" | "neg" | "abs" if has("bf16") || has("bf16x2") => 80,
        _ if has("bf16") || has("bf16x2") => 90,
        "min" | "max" if has("f16") || has("f16x2") || has("NaN") => 80,
        "tanh" => 75,
        "ex2" if has("f16") || has("f16x2") => 75,
        "cvt" => 0,
        _ if has("f16") || has("f16x2") => 53,
        _ => 0,
    }
}

fn of_atomic(orders: bool, has: &impl Fn(&str) -> bool) -> u32 {
    if has("bf16") || has("bf16x2") {
        90
    } else if orders || has("f16") || has("cas") && has("b16") {
        70
    } else if has("f64") || ["cta", "gpu", "sys"].into_iter().any(has) {
        60
    } else {
        0
    }
}
