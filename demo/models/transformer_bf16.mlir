// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// One transformer block with weights and activations in bf16: self-attention with four heads, and a two-layer
// perceptron, each with a residual. Products are summed up in f32.
func.func @main(%x: tensor<64x128xf32>, %wq: tensor<128x128xbf16>, %wk: tensor<128x128xbf16>,
                %wv: tensor<128x128xbf16>, %wo: tensor<128x128xbf16>, %w1: tensor<128x512xbf16>,
                %w2: tensor<512x128xbf16>) -> tensor<64x128xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %scale = stablehlo.constant dense<0.25> : tensor<4x64x64xf32>
  %xb = stablehlo.convert %x : (tensor<64x128xf32>) -> tensor<64x128xbf16>
  %q = stablehlo.dot_general %xb, %wq, contracting_dims = [1] x [0]
    : (tensor<64x128xbf16>, tensor<128x128xbf16>) -> tensor<64x128xbf16>
  %k = stablehlo.dot_general %xb, %wk, contracting_dims = [1] x [0]
    : (tensor<64x128xbf16>, tensor<128x128xbf16>) -> tensor<64x128xbf16>
  %v = stablehlo.dot_general %xb, %wv, contracting_dims = [1] x [0]
    : (tensor<64x128xbf16>, tensor<128x128xbf16>) -> tensor<64x128xbf16>
  %qh = stablehlo.reshape %q : (tensor<64x128xbf16>) -> tensor<64x4x32xbf16>
  %kh = stablehlo.reshape %k : (tensor<64x128xbf16>) -> tensor<64x4x32xbf16>
  %vh = stablehlo.reshape %v : (tensor<64x128xbf16>) -> tensor<64x4x32xbf16>
  %scores = stablehlo.dot_general %qh, %kh, batching_dims = [1] x [1], contracting_dims = [2] x [2]
    : (tensor<64x4x32xbf16>, tensor<64x4x32xbf16>) -> tensor<4x64x64xf32>
  %scaled = stablehlo.multiply %scores, %scale : tensor<4x64x64xf32>
  %max = stablehlo.reduce(%scaled init: %least) applies stablehlo.maximum across dimensions = [2]
    : (tensor<4x64x64xf32>, tensor<f32>) -> tensor<4x64xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0, 1] : (tensor<4x64xf32>) -> tensor<4x64x64xf32>
  %shifted = stablehlo.subtract %scaled, %maxes : tensor<4x64x64xf32>
  %exp = stablehlo.exponential %shifted : tensor<4x64x64xf32>
  %sum = stablehlo.reduce(%exp init: %zero) applies stablehlo.add across dimensions = [2]
    : (tensor<4x64x64xf32>, tensor<f32>) -> tensor<4x64xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1] : (tensor<4x64xf32>) -> tensor<4x64x64xf32>
  %quotients = stablehlo.divide %exp, %sums : tensor<4x64x64xf32>
  %weights = stablehlo.convert %quotients : (tensor<4x64x64xf32>) -> tensor<4x64x64xbf16>
  %heads = stablehlo.dot_general %weights, %vh, batching_dims = [0] x [1], contracting_dims = [2] x [0]
    : (tensor<4x64x64xbf16>, tensor<64x4x32xbf16>) -> tensor<4x64x32xbf16>
  %rows = stablehlo.transpose %heads, dims = [1, 0, 2] : (tensor<4x64x32xbf16>) -> tensor<64x4x32xbf16>
  %joined = stablehlo.reshape %rows : (tensor<64x4x32xbf16>) -> tensor<64x128xbf16>
  %attention = stablehlo.dot_general %joined, %wo, contracting_dims = [1] x [0]
    : (tensor<64x128xbf16>, tensor<128x128xbf16>) -> tensor<64x128xf32>
  %y = stablehlo.add %x, %attention : tensor<64x128xf32>
  %yb = stablehlo.convert %y : (tensor<64x128xf32>) -> tensor<64x128xbf16>
  %hidden = stablehlo.dot_general %yb, %w1, contracting_dims = [1] x [0]
    : (tensor<64x128xbf16>, tensor<128x512xbf16>) -> tensor<64x512xf32>
  %gate = stablehlo.tanh %hidden : tensor<64x512xf32>
  %gateb = stablehlo.convert %gate : (tensor<64x512xf32>) -> tensor<64x512xbf16>
  %perceptron = stablehlo.dot_general %gateb, %w2, contracting_dims = [1] x [0]
    : (tensor<64x512xbf16>, tensor<512x128xbf16>) -> tensor<64x128xf32>
  %out = stablehlo.add %y, %perceptron : tensor<64x128xf32>
  return %out : tensor<64x128xf32>
}
