// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Floats of 16 bits.

func.func @halves() {
  %x = util.unfoldable_constant dense<[1.5, -2.0, 100.0]> : tensor<3xf16>
  %y = util.unfoldable_constant dense<[2.0, 0.5, 10.0]> : tensor<3xf16>
  %product = arith.mulf %x, %y : tensor<3xf16>
  check.expect_almost_eq_const(%product, dense<[3.0, -1.0, 1000.0]> : tensor<3xf16>) : tensor<3xf16>
  return
}

func.func @brain_floats() {
  %x = util.unfoldable_constant dense<[1.5, -2.0, 1.0e30]> : tensor<3xbf16>
  %y = util.unfoldable_constant dense<[2.0, 0.5, 0.0]> : tensor<3xbf16>
  %product = arith.mulf %x, %y : tensor<3xbf16>
  check.expect_almost_eq_const(%product, dense<[3.0, -1.0, 0.0]> : tensor<3xbf16>) : tensor<3xbf16>
  %wide = arith.extf %product : tensor<3xbf16> to tensor<3xf32>
  check.expect_eq_const(%wide, dense<[3.0, -1.0, 0.0]> : tensor<3xf32>) : tensor<3xf32>
  return
}
