// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Operations on each element, alone and in a chain.

func.func @add_floats() {
  %x = util.unfoldable_constant dense<[1.5, -2.0, 0.25, 1024.0, 3.0]> : tensor<5xf32>
  %y = util.unfoldable_constant dense<[0.5, 2.0, 0.25, -1.0, 4.0]> : tensor<5xf32>
  %sum = arith.addf %x, %y : tensor<5xf32>
  check.expect_eq_const(%sum, dense<[2.0, 0.0, 0.5, 1023.0, 7.0]> : tensor<5xf32>) : tensor<5xf32>
  return
}

func.func @divide_and_take_remainders() {
  %x = util.unfoldable_constant dense<[7, -7, 100, 5]> : tensor<4xi32>
  %y = util.unfoldable_constant dense<[2, 2, -9, 5]> : tensor<4xi32>
  %quotients = arith.divsi %x, %y : tensor<4xi32>
  %remainders = arith.remsi %x, %y : tensor<4xi32>
  check.expect_eq_const(%quotients, dense<[3, -3, -11, 1]> : tensor<4xi32>) : tensor<4xi32>
  check.expect_eq_const(%remainders, dense<[1, -1, 1, 0]> : tensor<4xi32>) : tensor<4xi32>
  return
}

func.func @choose() {
  %x = util.unfoldable_constant dense<[[1.0, 5.0], [-3.0, 2.0]]> : tensor<2x2xf32>
  %y = util.unfoldable_constant dense<[[4.0, 0.0], [-4.0, 2.0]]> : tensor<2x2xf32>
  %is_less = arith.cmpf olt, %x, %y : tensor<2x2xf32>
  %least = arith.select %is_less, %x, %y : tensor<2x2xi1>, tensor<2x2xf32>
  check.expect_eq_const(%least, dense<[[1.0, 0.0], [-4.0, 2.0]]> : tensor<2x2xf32>) : tensor<2x2xf32>
  return
}

// Three dispatches, each of which reads what the one before wrote.
func.func @chain() {
  %x = util.unfoldable_constant dense<2.0> : tensor<3x1000xf32>
  %y = util.unfoldable_constant dense<3.0> : tensor<3x1000xf32>
  %product = flow.dispatch.region -> (tensor<3x1000xf32>) {
    %0 = arith.mulf %x, %y : tensor<3x1000xf32>
    flow.return %0 : tensor<3x1000xf32>
  }
  %less = flow.dispatch.region -> (tensor<3x1000xf32>) {
    %0 = arith.subf %product, %y : tensor<3x1000xf32>
    flow.return %0 : tensor<3x1000xf32>
  }
  %square = flow.dispatch.region -> (tensor<3x1000xf32>) {
    %0 = arith.mulf %less, %less : tensor<3x1000xf32>
    flow.return %0 : tensor<3x1000xf32>
  }
  check.expect_eq_const(%square, dense<9.0> : tensor<3x1000xf32>) : tensor<3x1000xf32>
  return
}

func.func @functions_of_one_value() {
  %x = util.unfoldable_constant dense<[0.0, 1.0, -1.0, 0.5]> : tensor<4xf32>
  %exponential = math.exp %x : tensor<4xf32>
  %tangent = math.tanh %x : tensor<4xf32>
  check.expect_almost_eq_const(%exponential, dense<[1.0, 2.7182818, 0.36787944, 1.6487213]> : tensor<4xf32>)
      : tensor<4xf32>
  check.expect_almost_eq_const(%tangent, dense<[0.0, 0.76159416, -0.76159416, 0.46211716]> : tensor<4xf32>)
      : tensor<4xf32>
  return
}

// No element at all, and one without a dimension.
func.func @least_shapes() {
  %none = util.unfoldable_constant dense<1.0> : tensor<0xf32>
  %doubled = arith.addf %none, %none : tensor<0xf32>
  check.expect_eq(%doubled, %none) : tensor<0xf32>
  %one = util.unfoldable_constant dense<21> : tensor<i32>
  %sum = arith.addi %one, %one : tensor<i32>
  check.expect_eq_const(%sum, dense<42> : tensor<i32>) : tensor<i32>
  return
}
