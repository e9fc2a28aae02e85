// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Expects what is wrong: a run of this has to fail.

func.func @one_and_one_are_three() {
  %one = util.unfoldable_constant dense<1> : tensor<2xi32>
  %sum = arith.addi %one, %one : tensor<2xi32>
  check.expect_eq_const(%sum, dense<[2, 3]> : tensor<2xi32>) : tensor<2xi32>
  return
}
