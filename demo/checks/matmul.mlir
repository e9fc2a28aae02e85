// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Products of matrices.

func.func @small() {
  %x = util.unfoldable_constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %y = util.unfoldable_constant dense<[[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]> : tensor<3x2xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x2xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x2xf32>) -> tensor<2x2xf32>
  %product = linalg.matmul ins(%x, %y : tensor<2x3xf32>, tensor<3x2xf32>) outs(%zeros : tensor<2x2xf32>)
      -> tensor<2x2xf32>
  check.expect_almost_eq_const(%product, dense<[[-2.0, 7.0], [-2.0, 16.0]]> : tensor<2x2xf32>) : tensor<2x2xf32>
  return
}

// Sizes that are no multiple of a tile.
func.func @uneven() {
  %x = util.unfoldable_constant dense<0.5> : tensor<37x65xf32>
  %y = util.unfoldable_constant dense<2.0> : tensor<65x19xf32>
  %ones = util.unfoldable_constant dense<1.0> : tensor<37x19xf32>
  %product = linalg.matmul ins(%x, %y : tensor<37x65xf32>, tensor<65x19xf32>) outs(%ones : tensor<37x19xf32>)
      -> tensor<37x19xf32>
  check.expect_almost_eq_const(%product, dense<66.0> : tensor<37x19xf32>) : tensor<37x19xf32>
  return
}

func.func @bytes_into_words() {
  %x = util.unfoldable_constant dense<[[100, -100], [127, -128]]> : tensor<2x2xi8>
  %y = util.unfoldable_constant dense<[[100, 1], [-100, 2]]> : tensor<2x2xi8>
  %zeros = util.unfoldable_constant dense<0> : tensor<2x2xi32>
  %product = linalg.matmul ins(%x, %y : tensor<2x2xi8>, tensor<2x2xi8>) outs(%zeros : tensor<2x2xi32>)
      -> tensor<2x2xi32>
  check.expect_eq_const(%product, dense<[[20000, -100], [25500, -129]]> : tensor<2x2xi32>) : tensor<2x2xi32>
  return
}

func.func @several_at_once() {
  %x = util.unfoldable_constant dense<[[[1.0, 2.0]], [[3.0, 4.0]]]> : tensor<2x1x2xf32>
  %y = util.unfoldable_constant dense<[[[1.0], [1.0]], [[2.0], [-1.0]]]> : tensor<2x2x1xf32>
  %zeros = util.unfoldable_constant dense<0.0> : tensor<2x1x1xf32>
  %product = linalg.batch_matmul ins(%x, %y : tensor<2x1x2xf32>, tensor<2x2x1xf32>)
      outs(%zeros : tensor<2x1x1xf32>) -> tensor<2x1x1xf32>
  check.expect_almost_eq_const(%product, dense<[[[3.0]], [[2.0]]]> : tensor<2x1x1xf32>) : tensor<2x1x1xf32>
  return
}
