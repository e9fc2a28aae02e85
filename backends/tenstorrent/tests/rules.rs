// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The rules by which IREE's compiler leaves products to the matrix engine, from the program that writes them, by the
//! compiler, to a card that loads what was compiled.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use hal_backend::{Device, LoadRequest};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::compiler::{command, compile};
use support::{Bench, NoLoader};

fn write_rules(types: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenstorrent-products")).args(types).output().unwrap()
}

/// Rules in a file, and the flag by which the compiler keeps them.
struct Rules(PathBuf, String);

impl Rules {
    fn new(types: &[&str]) -> Self {
        let rules = write_rules(types);
        assert!(rules.status.success());
        let name = format!("rules-{}-{}.mlir", types.join("-"), std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&file, rules.stdout).unwrap();
        let flag = format!("--iree-preprocessing-transform-spec-filename={}", file.display());
        Self(file, flag)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The functions that the compiler makes of all products by rules for these types, but for the one that is left.
fn functions(bench: &Bench, types: &[&str]) -> Vec<String> {
    let rules = Rules::new(types);
    let name = format!("rules-{}", types.join("-"));
    let executable = compile(&name, "products.mlir", &[bench.floats(), &[rules.1.as_str()]].concat());
    let request = LoadRequest { format: hal_tenstorrent::FORMAT, data: &executable, constants: &[] };
    let loaded = bench.device.load(&request, &NoLoader).unwrap();
    let mut names: Vec<String> = loaded.functions.into_iter().map(|function| function.name).collect();
    let is_left = |name: &String| name.starts_with("more_");
    assert!(names.iter().any(is_left), "it begins with a sum: {names:?}");
    names.retain(|name| !is_left(name));
    names.sort();
    names
}

#[test]
fn each_product_becomes_a_call_of_a_function_of_its_types() {
    let names = functions(&Bench::new(&[]), &["bf16", "int8", "tf32"]);
    let expected =
        ["bf16_bf16", "bf16_f32", "i8_i32", "tf32_f32"].map(|types| format!("tensix_matmul_{types}"));
    assert_eq!(names, expected);
}

#[test]
fn products_of_other_types_stay() {
    let names = functions(&Bench::new(&[]), &["int8"]);
    let (engine, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.starts_with("tensix_"));
    assert_eq!(engine, ["tensix_matmul_i8_i32"]);
    assert!(others.len() >= 6, "two each of three types: {others:?}");
}

/// Each call has its own product's sides, whatever other products the module has.
#[test]
fn products_of_one_type_keep_their_own_sides() {
    let rules = Rules::new(&["tf32"]);
    let output = command("several_products.mlir", &[&rules.1, "--compile-to=executable-sources", "-o", "-"]);
    let output = { output }.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let calls = text.lines().filter(|line| line.contains("dispatch @") && line.contains("@tensix_matmul_"));
    let sides = calls.map(|line| {
        let (_, constants) = line.split_once("](").unwrap();
        let (names, _) = constants.split_once(" : ").unwrap();
        names.replace(['%', 'c'], "").replace("_i32", "")
    });
    let sides: Vec<String> = sides.collect();
    assert_eq!(
        sides,
        ["1, 8, 24, 16", "1, 5, 9, 5", "1, 40, 40, 24", "1, 40, 40, 40", "1, 7, 7, 7"],
        "{text}"
    );
}

#[test]
fn wrong_usage_is_answered_with_what_is_right() {
    for types in [&[][..], &["f64"], &["bf16", "f32"]] {
        let output = write_rules(types);
        assert_eq!(output.status.code(), Some(2), "{types:?}");
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("usage: tenstorrent-products") && said.contains("bf16   "), "{said}");
    }
    assert!(write_rules(&["--help"]).status.success());
}
