// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

func.func @numbers(%a: i32, %b: i64, %c: f32, %d: f64) -> (i32, i64, f32, f64) {
  %x = arith.addi %a, %a : i32
  %y = arith.addi %b, %b : i64
  %z = arith.addf %c, %c : f32
  %w = arith.addf %d, %d : f64
  return %x, %y, %z, %w : i32, i64, f32, f64
}
func.func @nothing() { return }
func.func @scale(%x: tensor<?xf32>, %by: f32) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  %s = linalg.fill ins(%by : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %y = arith.mulf %x, %s : tensor<?xf32>
  return %y : tensor<?xf32>
}
func.func @two(%x: tensor<2xi32>) -> (tensor<2xi32>, tensor<i64>) {
  %y = arith.addi %x, %x : tensor<2xi32>
  %c = arith.constant dense<7> : tensor<i64>
  return %y, %c : tensor<2xi32>, tensor<i64>
}
func.func @swap(%list: !util.list<?>) -> !util.list<?> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %a = util.list.get %list[%c0] : !util.list<?> -> !hal.buffer_view
  %n = util.list.get %list[%c1] : !util.list<?> -> i32
  %inner = util.list.create %c2 : !util.list<?>
  util.list.resize %inner, %c2 : !util.list<?>
  util.list.set %inner[%c0], %a : !hal.buffer_view -> !util.list<?>
  util.list.set %inner[%c1], %n : i32 -> !util.list<?>
  %outer = util.list.create %c2 : !util.list<?>
  util.list.resize %outer, %c2 : !util.list<?>
  util.list.set %outer[%c0], %n : i32 -> !util.list<?>
  util.list.set %outer[%c1], %inner : !util.list<?> -> !util.list<?>
  return %outer : !util.list<?>
}
