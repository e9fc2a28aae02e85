// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Writes what makes IREE's compiler leave matrix products to the matrix engine: a module for
//! `--iree-preprocessing-transform-spec-filename`.
//!
//! Each product that begins with zeros (`linalg.matmul` and `linalg.batch_matmul`) becomes a dispatch of a function
//! whose name the driver knows. The function has code of its own, so the compiled program runs on any device.

use std::process::ExitCode;

const USAGE: &str = "\
usage: tenstorrent-products TYPE... > products.mlir

Writes rules by which iree-compile leaves the products of these types to the matrix engine of Tenstorrent's tiles:

  bf16   bf16 by bf16, with results in f32 or bf16
  int8   int8 by int8, with results in int32
  tf32   f32 by f32; the engine takes 10 of the operands' 23 bits of fraction

  iree-compile --iree-preprocessing-transform-spec-filename=products.mlir ...";

const FUNCTION: &str = include_str!("../products/function.mlir");
const RULE: &str = include_str!("../products/rule.mlir");
const BEGIN: &str = "\
#layout = #hal.pipeline.layout<constants = 4, bindings = [
  #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>,
  #hal.pipeline.binding<storage_buffer>]>

module attributes {transform.with_named_sequence} {
";
const END: &str = "
  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %functions = transform.structured.match ops{[\"util.func\"]} in %module : (!transform.any_op) -> !transform.any_op
    transform.foreach %functions : !transform.any_op {
    ^bb0(%function: !transform.any_op):
      transform.foreach_match in %function
        $rules
        : (!transform.any_op) -> !transform.any_op
    }
    %inlined = transform.apply_registered_pass \"inline\" to %module : (!transform.any_op) -> !transform.any_op
    transform.apply_dce to %inlined : !transform.any_op
    transform.yield
  }
}
";

/// An operation of linalg's that is a product.
struct Operation {
    name: &'static str,
    shape: &'static str,
    /// Which dimensions of the first operand M and K are.
    dimensions: [&'static str; 2],
    /// How many products it has, and that as its operands' outermost dimension.
    batch: &'static str,
    outer: &'static str,
}

const OPERATIONS: [Operation; 2] = [
    Operation {
        name: "matmul",
        shape: "?x?",
        dimensions: ["0", "1"],
        batch: "%batch = arith.constant 1 : index",
        outer: "",
    },
    Operation {
        name: "batch_matmul",
        shape: "?x?x?",
        dimensions: ["1", "2"],
        batch: "%first = arith.constant 0 : index
    %batch = tensor.dim %a, %first : tensor<?x?x?x$in>",
        outer: "%batch, ",
    },
];

impl Operation {
    /// A text with this operation in it.
    fn fill(&self, text: &str) -> String {
        let [m, k] = self.dimensions;
        fill(
            text,
            &[
                ("$operation", self.name),
                ("$shape", self.shape),
                ("$batch", self.batch),
                ("$outer", self.outer),
                ("$m ", &format!("{m} ")),
                ("$k ", &format!("{k} ")),
            ],
        )
    }
}

/// A text with something in each of these places.
fn fill(text: &str, places: &[(&str, &str)]) -> String {
    places.iter().fold(text.to_owned(), |text, (place, with)| text.replace(place, with))
}

/// The types of a product.
struct Types {
    /// How the command line names it.
    argument: &'static str,
    /// How the function's name does.
    name: &'static str,
    operand: &'static str,
    sum: &'static str,
    result: &'static str,
}

const TYPES: [Types; 4] = [
    Types { argument: "bf16", name: "bf16_f32", operand: "bf16", sum: "f32", result: "f32" },
    Types { argument: "bf16", name: "bf16_bf16", operand: "bf16", sum: "f32", result: "bf16" },
    Types { argument: "int8", name: "i8_i32", operand: "i8", sum: "i32", result: "i32" },
    Types { argument: "tf32", name: "tf32_f32", operand: "f32", sum: "f32", result: "f32" },
];

impl Types {
    /// A text with these types in it.
    fn fill(&self, text: &str) -> String {
        let Self { operand, sum, result, .. } = self;
        let integers = self.sum == "i32";
        let [widen, multiply, add, zero] = if integers {
            ["arith.extsi", "arith.muli", "arith.addi", "0"]
        } else {
            ["arith.extf", "arith.mulf", "arith.addf", "0.0"]
        };
        let (x, y, widened) = if operand == sum {
            ("%x", "%y", String::new())
        } else {
            let wider =
                |name: &str| format!("\n            %wide_{name} = {widen} %{name} : {operand} to {sum}");
            ("%wide_x", "%wide_y", wider("x") + &wider("y"))
        };
        let (value, narrowed) = if sum == result {
            ("%sum", String::new())
        } else {
            ("%value", format!("\n          %value = arith.truncf %sum : {sum} to {result}"))
        };
        fill(
            text,
            &[
                ("$widen", &widened),
                ("$narrow", &narrowed),
                ("$multiply", multiply),
                ("$add", add),
                ("$zero", zero),
                ("$value", value),
                ("$name", self.name),
                ("$in", operand),
                ("$out", result),
                ("$sum", sum),
                ("$x", x),
                ("$y", y),
            ],
        )
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let known = |argument: &String| TYPES.iter().any(|types| types.argument == argument);
    if arguments.is_empty() || !arguments.iter().all(known) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let wanted = |types: &&Types| arguments.iter().any(|argument| argument == types.argument);
    print!("{}", module(&TYPES.iter().filter(wanted).collect::<Vec<_>>()));
    ExitCode::SUCCESS
}

/// The module for products of these types.
fn module(wanted: &[&Types]) -> String {
    let [function, rule] =
        [FUNCTION, RULE].map(|text| text.split_once("\n\n").map_or(text, |(_licence, it)| it));
    let mut module = BEGIN.to_owned();
    let mut rules = Vec::new();
    for types in wanted {
        module.push_str(&types.fill(function));
        for operation in &OPERATIONS {
            module.push_str(&types.fill(&operation.fill(rule)));
            rules.push(types.fill(&operation.fill("@is_$operation_$name -> @call_$operation_$name")));
        }
    }
    module + &END.replace("$rules", &rules.join(",\n        "))
}
