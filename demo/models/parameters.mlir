// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A dense layer whose weights lie in a file and are read by the device's queue.
util.global private @weights = #flow.parameter.named<"model"::"weights"> : tensor<256x128xf32>
util.global private @bias = #flow.parameter.named<"model"::"bias"> : tensor<128xf32>
func.func @main(%x: tensor<8x256xf32>) -> tensor<8x128xf32> {
  %weights = util.global.load @weights : tensor<256x128xf32>
  %bias = util.global.load @bias : tensor<128xf32>
  %product = stablehlo.dot_general %x, %weights, contracting_dims = [1] x [0]
    : (tensor<8x256xf32>, tensor<256x128xf32>) -> tensor<8x128xf32>
  %biases = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<128xf32>) -> tensor<8x128xf32>
  %sum = stablehlo.add %product, %biases : tensor<8x128xf32>
  return %sum : tensor<8x128xf32>
}
