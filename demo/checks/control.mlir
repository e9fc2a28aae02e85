// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Control flow that depends on what a device computed.

// Doubles a number until it is above a hundred: each round waits for the one before.
func.func @loop_until_the_device_says_so() {
  %begin = util.unfoldable_constant dense<3> : tensor<i32>
  %end = scf.while (%x = %begin) : (tensor<i32>) -> tensor<i32> {
    %value = tensor.extract %x[] : tensor<i32>
    %hundred = arith.constant 100 : i32
    %goes_on = arith.cmpi slt, %value, %hundred : i32
    scf.condition(%goes_on) %x : tensor<i32>
  } do {
  ^bb0(%x: tensor<i32>):
    %doubled = arith.addi %x, %x : tensor<i32>
    scf.yield %doubled : tensor<i32>
  }
  check.expect_eq_const(%end, dense<192> : tensor<i32>) : tensor<i32>
  return
}

func.func @either_way() {
  %x = util.unfoldable_constant dense<[1.0, -1.0]> : tensor<2xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %first = tensor.extract %x[%c0] : tensor<2xf32>
  %second = tensor.extract %x[%c1] : tensor<2xf32>
  %is_positive = arith.cmpf ogt, %first, %zero : f32
  %taken = scf.if %is_positive -> (tensor<2xf32>) {
    %0 = arith.addf %x, %x : tensor<2xf32>
    scf.yield %0 : tensor<2xf32>
  } else {
    scf.yield %x : tensor<2xf32>
  }
  %is_negative = arith.cmpf olt, %second, %zero : f32
  %taken_too = scf.if %is_negative -> (tensor<2xf32>) {
    %0 = arith.mulf %taken, %taken : tensor<2xf32>
    scf.yield %0 : tensor<2xf32>
  } else {
    scf.yield %taken : tensor<2xf32>
  }
  check.expect_eq_const(%taken_too, dense<[4.0, 4.0]> : tensor<2xf32>) : tensor<2xf32>
  return
}
