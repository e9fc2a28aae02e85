// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Floats of 64 bits.

func.func @doubles() {
  %x = util.unfoldable_constant dense<[1.0e300, 0.1, 1.0]> : tensor<3xf64>
  %y = util.unfoldable_constant dense<[1.0e-300, 0.2, 1.0e-15]> : tensor<3xf64>
  %product = arith.mulf %x, %y : tensor<3xf64>
  %sum = arith.addf %x, %y : tensor<3xf64>
  check.expect_almost_eq_const(%product, dense<[1.0, 0.02, 1.0e-15]> : tensor<3xf64>, atol 1.0e-16) : tensor<3xf64>
  %less = util.unfoldable_constant dense<[-1.0e300, -0.3, -1.0]> : tensor<3xf64>
  %rest = arith.addf %sum, %less : tensor<3xf64>
  check.expect_almost_eq_const(%rest, dense<[0.0, 0.0, 1.0e-15]> : tensor<3xf64>, atol 3.0e-16) : tensor<3xf64>
  return
}
