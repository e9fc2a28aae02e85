// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

func.func @multiply_add(%a: tensor<1000xi32>, %b: tensor<1000xi32>) -> tensor<1000xi32> {
  %0 = arith.muli %a, %b : tensor<1000xi32>
  %1 = arith.addi %0, %a : tensor<1000xi32>
  return %1 : tensor<1000xi32>
}

func.func @divide(%a: tensor<64xi32>, %b: tensor<64xi32>) -> tensor<64xi32> {
  %0 = arith.divsi %a, %b : tensor<64xi32>
  return %0 : tensor<64xi32>
}
