// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A small convolutional network: two 3x3 convolutions with relu, 2x2 max pooling, a dense layer.
func.func @main(%image: tensor<1x16x16x3xf32>, %w1: tensor<3x3x3x8xf32>, %b1: tensor<8xf32>,
                %w2: tensor<3x3x8x16xf32>, %b2: tensor<16xf32>, %w3: tensor<1024x10xf32>) -> tensor<1x10xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %conv1 = stablehlo.convolution(%image, %w1)
    dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x16x16x3xf32>, tensor<3x3x3x8xf32>) -> tensor<1x16x16x8xf32>
  %bias1 = stablehlo.broadcast_in_dim %b1, dims = [3] : (tensor<8xf32>) -> tensor<1x16x16x8xf32>
  %sum1 = stablehlo.add %conv1, %bias1 : tensor<1x16x16x8xf32>
  %zero1 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<1x16x16x8xf32>
  %relu1 = stablehlo.maximum %sum1, %zero1 : tensor<1x16x16x8xf32>
  %conv2 = stablehlo.convolution(%relu1, %w2)
    dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x16x16x8xf32>, tensor<3x3x8x16xf32>) -> tensor<1x16x16x16xf32>
  %bias2 = stablehlo.broadcast_in_dim %b2, dims = [3] : (tensor<16xf32>) -> tensor<1x16x16x16xf32>
  %sum2 = stablehlo.add %conv2, %bias2 : tensor<1x16x16x16xf32>
  %zero2 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<1x16x16x16xf32>
  %relu2 = stablehlo.maximum %sum2, %zero2 : tensor<1x16x16x16xf32>
  %pooled = "stablehlo.reduce_window"(%relu2, %least) ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %max = stablehlo.maximum %x, %y : tensor<f32>
      stablehlo.return %max : tensor<f32>
  }) {window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}
    : (tensor<1x16x16x16xf32>, tensor<f32>) -> tensor<1x8x8x16xf32>
  %flat = stablehlo.reshape %pooled : (tensor<1x8x8x16xf32>) -> tensor<1x1024xf32>
  %dense = stablehlo.dot_general %flat, %w3, contracting_dims = [1] x [0]
    : (tensor<1x1024xf32>, tensor<1024x10xf32>) -> tensor<1x10xf32>
  return %dense : tensor<1x10xf32>
}
