// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Functions that write into memory that exists already.

func.func @part_of_a_tensor() {
  %whole = util.unfoldable_constant dense<0> : tensor<4x4xi32>
  %part = util.unfoldable_constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>
  %result = tensor.insert_slice %part into %whole[1, 2] [2, 2] [1, 1] : tensor<2x2xi32> into tensor<4x4xi32>
  check.expect_eq_const(%result, dense<[[0, 0, 0, 0], [0, 0, 1, 2], [0, 0, 3, 4], [0, 0, 0, 0]]> : tensor<4x4xi32>)
      : tensor<4x4xi32>
  check.expect_eq_const(%whole, dense<0> : tensor<4x4xi32>) : tensor<4x4xi32>
  return
}

// The result is written into the buffer that the caller passes.
func.func private @double_into(%x: !hal.buffer_view, %storage: !hal.buffer_view) -> !hal.buffer_view {
  %value = hal.tensor.import %x : !hal.buffer_view -> tensor<16xf32>
  %sum = arith.addf %value, %value : tensor<16xf32>
  %aliased = hal.tensor.alias %sum : tensor<16xf32> to %storage : !hal.buffer_view
  %result = hal.tensor.export %aliased : tensor<16xf32> -> !hal.buffer_view
  return %result : !hal.buffer_view
}

func.func @storage_of_the_caller() {
  %x = util.unfoldable_constant dense<1.25> : tensor<16xf32>
  %zeros = util.unfoldable_constant dense<0.0> : tensor<16xf32>
  %view = hal.tensor.export %x : tensor<16xf32> -> !hal.buffer_view
  %storage = hal.tensor.export %zeros : tensor<16xf32> -> !hal.buffer_view
  %result = func.call @double_into(%view, %storage) : (!hal.buffer_view, !hal.buffer_view) -> !hal.buffer_view
  %written = hal.tensor.import %storage : !hal.buffer_view -> tensor<16xf32>
  check.expect_eq_const(%written, dense<2.5> : tensor<16xf32>) : tensor<16xf32>
  %returned = hal.tensor.import %result : !hal.buffer_view -> tensor<16xf32>
  check.expect_eq_const(%returned, dense<2.5> : tensor<16xf32>) : tensor<16xf32>
  return
}
