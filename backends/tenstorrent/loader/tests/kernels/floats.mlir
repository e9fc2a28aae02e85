// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Every dispatch is a kernel of its own; the tests know them by their order.
func.func @multiply_add(%a: tensor<1000xf32>, %b: tensor<1000xf32>) -> tensor<1000xf32> {
  %0 = arith.mulf %a, %b : tensor<1000xf32>
  %1 = arith.addf %0, %a : tensor<1000xf32>
  return %1 : tensor<1000xf32>
}

func.func @matmul(%a: tensor<32x32xf32>, %b: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x32xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32xf32>) -> tensor<32x32xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  return %0 : tensor<32x32xf32>
}

// Has divisions.
func.func @softmax(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %empty = tensor.empty() : tensor<8x16xf32>
  %0 = linalg.softmax dimension(1) ins(%x : tensor<8x16xf32>) outs(%empty : tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// Has divisions, roots, and conversions towards zero and downwards.
func.func @divide(%x: tensor<64xf32>, %y: tensor<64xf32>) -> tensor<64xf32> {
  %0 = arith.divf %x, %y : tensor<64xf32>
  return %0 : tensor<64xf32>
}

func.func @root(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = math.sqrt %x : tensor<64xf32>
  return %0 : tensor<64xf32>
}

func.func @floor(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = math.floor %x : tensor<64xf32>
  return %0 : tensor<64xf32>
}

func.func @truncate(%x: tensor<64xf32>) -> tensor<64xi32> {
  %0 = arith.fptosi %x : tensor<64xf32> to tensor<64xi32>
  return %0 : tensor<64xi32>
}
