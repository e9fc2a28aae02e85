// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Functions that call each other, and state that a module keeps between them.

util.global private mutable @count = dense<0> : tensor<i32>
util.global private @weights = dense<[2.0, 3.0]> : tensor<2xf32>

func.func private @next() -> tensor<i32> {
  %count = util.global.load @count : tensor<i32>
  %one = arith.constant dense<1> : tensor<i32>
  %sum = arith.addi %count, %one : tensor<i32>
  util.global.store %sum, @count : tensor<i32>
  return %sum : tensor<i32>
}

func.func @count_to_three() {
  %first = call @next() : () -> tensor<i32>
  %second = call @next() : () -> tensor<i32>
  %third = call @next() : () -> tensor<i32>
  check.expect_eq_const(%first, dense<1> : tensor<i32>) : tensor<i32>
  check.expect_eq_const(%second, dense<2> : tensor<i32>) : tensor<i32>
  check.expect_eq_const(%third, dense<3> : tensor<i32>) : tensor<i32>
  return
}

// Each function has a context of its own: the count begins anew.
func.func @count_once() {
  %first = call @next() : () -> tensor<i32>
  check.expect_eq_const(%first, dense<1> : tensor<i32>) : tensor<i32>
  return
}

func.func @weights_of_the_module() {
  %x = util.unfoldable_constant dense<[10.0, 100.0]> : tensor<2xf32>
  %weights = util.global.load @weights : tensor<2xf32>
  %product = arith.mulf %x, %weights : tensor<2xf32>
  check.expect_eq_const(%product, dense<[20.0, 300.0]> : tensor<2xf32>) : tensor<2xf32>
  return
}
