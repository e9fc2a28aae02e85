// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Tensors that go from one device to another and back.

func.func @there_and_back() {
  %x = util.unfoldable_constant dense<3> : tensor<1000xi32>
  %here = flow.tensor.transfer %x : tensor<1000xi32> to #hal.device.promise<@first>
  %sum = arith.addi %here, %here : tensor<1000xi32>
  %there = flow.tensor.transfer %sum : tensor<1000xi32> to #hal.device.promise<@second>
  %product = arith.muli %there, %there : tensor<1000xi32>
  %back = flow.tensor.transfer %product : tensor<1000xi32> to #hal.device.promise<@first>
  %less = arith.subi %back, %here : tensor<1000xi32>
  check.expect_eq_const(%less, dense<33> : tensor<1000xi32>) : tensor<1000xi32>
  return
}

// Work that the second device does beside the first, and both results in one.
func.func @side_by_side() {
  %x = util.unfoldable_constant dense<[1.0, 2.0, 4.0]> : tensor<3xf32>
  %here = flow.tensor.transfer %x : tensor<3xf32> to #hal.device.promise<@first>
  %there = flow.tensor.transfer %x : tensor<3xf32> to #hal.device.promise<@second>
  %sum = arith.addf %here, %here : tensor<3xf32>
  %product = arith.mulf %there, %there : tensor<3xf32>
  %brought = flow.tensor.transfer %product : tensor<3xf32> to #hal.device.promise<@first>
  %both = arith.addf %sum, %brought : tensor<3xf32>
  check.expect_eq_const(%both, dense<[3.0, 8.0, 24.0]> : tensor<3xf32>) : tensor<3xf32>
  return
}
