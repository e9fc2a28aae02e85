// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The rules by which IREE's compiler leaves products to the matrix engine, from the program that writes them, by the
//! compiler, to a card that loads what was compiled.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use hal_backend::{Device, LoadRequest};
use support::compiler::{command, compile};
use support::rules::{Rules, write};
use support::{Bench, NoLoader};

/// The functions that the compiler makes of all products by rules for these types, but for the one that is left.
fn functions(bench: &Bench, types: &[&str]) -> Vec<String> {
    let rules = Rules::new("rules", types);
    let name = format!("rules-{}", types.join("-"));
    let executable = compile(&name, "products.mlir", &[bench.floats(), &[rules.flag()]].concat());
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
    let rules = Rules::new("sides", &["tf32"]);
    let output =
        command("several_products.mlir", &[rules.flag(), "--compile-to=executable-sources", "-o", "-"]);
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
        let output = write(types);
        assert_eq!(output.status.code(), Some(2), "{types:?}");
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("usage: tenstorrent-products") && said.contains("bf16   "), "{said}");
    }
    assert!(write(&["--help"]).status.success());
}
