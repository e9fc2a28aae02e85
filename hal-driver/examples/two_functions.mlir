// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Two functions with nothing in common, for a program that has both in flight at once.
func.func @square(%x: tensor<1024xf32>) -> tensor<1024xf32> {
  %y = arith.mulf %x, %x : tensor<1024xf32>
  return %y : tensor<1024xf32>
}

func.func @twice(%x: tensor<1024xf32>) -> tensor<1024xf32> {
  %y = arith.addf %x, %x : tensor<1024xf32>
  return %y : tensor<1024xf32>
}
