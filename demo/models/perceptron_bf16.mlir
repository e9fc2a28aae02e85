// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Two layers with weights in bf16: products of bf16 that are summed up in f32.
func.func @main(%x: tensor<128x256xbf16>, %w1: tensor<256x512xbf16>, %b1: tensor<512xf32>,
                %w2: tensor<512x100xbf16>) -> tensor<128x100xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<128x512xf32>
  %product = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0]
    : (tensor<128x256xbf16>, tensor<256x512xbf16>) -> tensor<128x512xf32>
  %bias = stablehlo.broadcast_in_dim %b1, dims = [1] : (tensor<512xf32>) -> tensor<128x512xf32>
  %sum = stablehlo.add %product, %bias : tensor<128x512xf32>
  %positive = stablehlo.maximum %sum, %zero : tensor<128x512xf32>
  %hidden = stablehlo.convert %positive : (tensor<128x512xf32>) -> tensor<128x512xbf16>
  %out = stablehlo.dot_general %hidden, %w2, contracting_dims = [1] x [0]
    : (tensor<128x512xbf16>, tensor<512x100xbf16>) -> tensor<128x100xf32>
  return %out : tensor<128x100xf32>
}
