// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Bindings that are larger than the memory of a tile.
func.func @multiply(%a: tensor<2000000xf32>, %b: tensor<2000000xf32>) -> tensor<2000000xf32> {
  %0 = arith.mulf %a, %b : tensor<2000000xf32>
  return %0 : tensor<2000000xf32>
}
