// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Three fully connected layers, the first two with a relu.
func.func private @layer(%x: tensor<32x256xf32>, %w: tensor<256x256xf32>) -> tensor<32x256xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x256xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x256xf32>) -> tensor<32x256xf32>
  %product = linalg.matmul ins(%x, %w : tensor<32x256xf32>, tensor<256x256xf32>)
                           outs(%zeros : tensor<32x256xf32>) -> tensor<32x256xf32>
  return %product : tensor<32x256xf32>
}

func.func private @relu(%x: tensor<32x256xf32>) -> tensor<32x256xf32> {
  %zero = arith.constant dense<0.0> : tensor<32x256xf32>
  %relu = arith.maximumf %x, %zero : tensor<32x256xf32>
  return %relu : tensor<32x256xf32>
}

func.func @main(%x: tensor<32x256xf32>, %w0: tensor<256x256xf32>, %w1: tensor<256x256xf32>,
                %w2: tensor<256x256xf32>) -> tensor<32x256xf32> {
  %a = call @layer(%x, %w0) : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32>
  %b = call @relu(%a) : (tensor<32x256xf32>) -> tensor<32x256xf32>
  %c = call @layer(%b, %w1) : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32>
  %d = call @relu(%c) : (tensor<32x256xf32>) -> tensor<32x256xf32>
  %e = call @layer(%d, %w2) : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32>
  return %e : tensor<32x256xf32>
}
