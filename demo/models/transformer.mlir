// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// One transformer block: self-attention with four heads, and a two-layer perceptron, each with a residual.
func.func @main(%x: tensor<32x64xf32>, %wq: tensor<64x64xf32>, %wk: tensor<64x64xf32>, %wv: tensor<64x64xf32>,
                %wo: tensor<64x64xf32>, %w1: tensor<64x256xf32>, %w2: tensor<256x64xf32>) -> tensor<32x64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %scale = stablehlo.constant dense<0.25> : tensor<4x32x32xf32>
  %q = stablehlo.dot_general %x, %wq, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %k = stablehlo.dot_general %x, %wk, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %v = stablehlo.dot_general %x, %wv, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %qh = stablehlo.reshape %q : (tensor<32x64xf32>) -> tensor<32x4x16xf32>
  %kh = stablehlo.reshape %k : (tensor<32x64xf32>) -> tensor<32x4x16xf32>
  %vh = stablehlo.reshape %v : (tensor<32x64xf32>) -> tensor<32x4x16xf32>
  %scores = stablehlo.dot_general %qh, %kh, batching_dims = [1] x [1], contracting_dims = [2] x [2]
    : (tensor<32x4x16xf32>, tensor<32x4x16xf32>) -> tensor<4x32x32xf32>
  %scaled = stablehlo.multiply %scores, %scale : tensor<4x32x32xf32>
  %max = stablehlo.reduce(%scaled init: %least) applies stablehlo.maximum across dimensions = [2]
    : (tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0, 1] : (tensor<4x32xf32>) -> tensor<4x32x32xf32>
  %shifted = stablehlo.subtract %scaled, %maxes : tensor<4x32x32xf32>
  %exp = stablehlo.exponential %shifted : tensor<4x32x32xf32>
  %sum = stablehlo.reduce(%exp init: %zero) applies stablehlo.add across dimensions = [2]
    : (tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1] : (tensor<4x32xf32>) -> tensor<4x32x32xf32>
  %weights = stablehlo.divide %exp, %sums : tensor<4x32x32xf32>
  %heads = stablehlo.dot_general %weights, %vh, batching_dims = [0] x [1], contracting_dims = [2] x [0]
    : (tensor<4x32x32xf32>, tensor<32x4x16xf32>) -> tensor<4x32x16xf32>
  %rows = stablehlo.transpose %heads, dims = [1, 0, 2] : (tensor<4x32x16xf32>) -> tensor<32x4x16xf32>
  %joined = stablehlo.reshape %rows : (tensor<32x4x16xf32>) -> tensor<32x64xf32>
  %attention = stablehlo.dot_general %joined, %wo, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %y = stablehlo.add %x, %attention : tensor<32x64xf32>
  %hidden = stablehlo.dot_general %y, %w1, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x256xf32>) -> tensor<32x256xf32>
  %gate = stablehlo.tanh %hidden : tensor<32x256xf32>
  %perceptron = stablehlo.dot_general %gate, %w2, contracting_dims = [1] x [0] : (tensor<32x256xf32>, tensor<256x64xf32>) -> tensor<32x64xf32>
  %out = stablehlo.add %y, %perceptron : tensor<32x64xf32>
  return %out : tensor<32x64xf32>
}
