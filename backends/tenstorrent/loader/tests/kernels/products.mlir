// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A product and a batch of products of each type that the matrix engine takes, and one that does not begin with zeros.

func.func @matmul_bf16_f32(%a: tensor<40x?xbf16>, %b: tensor<?x70xbf16>) -> tensor<40x70xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<40x70xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<40x70xf32>) -> tensor<40x70xf32>
  %c = linalg.matmul ins(%a, %b : tensor<40x?xbf16>, tensor<?x70xbf16>) outs(%zeros : tensor<40x70xf32>)
    -> tensor<40x70xf32>
  return %c : tensor<40x70xf32>
}
func.func @batch_matmul_bf16_f32(%a: tensor<3x40x33xbf16>, %b: tensor<3x33x70xbf16>) -> tensor<3x40x70xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<3x40x70xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<3x40x70xf32>) -> tensor<3x40x70xf32>
  %c = linalg.batch_matmul ins(%a, %b : tensor<3x40x33xbf16>, tensor<3x33x70xbf16>) outs(%zeros : tensor<3x40x70xf32>)
    -> tensor<3x40x70xf32>
  return %c : tensor<3x40x70xf32>
}

func.func @matmul_bf16_bf16(%a: tensor<40x?xbf16>, %b: tensor<?x70xbf16>) -> tensor<40x70xbf16> {
  %zero = arith.constant 0.0 : bf16
  %empty = tensor.empty() : tensor<40x70xbf16>
  %zeros = linalg.fill ins(%zero : bf16) outs(%empty : tensor<40x70xbf16>) -> tensor<40x70xbf16>
  %c = linalg.matmul ins(%a, %b : tensor<40x?xbf16>, tensor<?x70xbf16>) outs(%zeros : tensor<40x70xbf16>)
    -> tensor<40x70xbf16>
  return %c : tensor<40x70xbf16>
}
func.func @batch_matmul_bf16_bf16(%a: tensor<3x40x33xbf16>, %b: tensor<3x33x70xbf16>) -> tensor<3x40x70xbf16> {
  %zero = arith.constant 0.0 : bf16
  %empty = tensor.empty() : tensor<3x40x70xbf16>
  %zeros = linalg.fill ins(%zero : bf16) outs(%empty : tensor<3x40x70xbf16>) -> tensor<3x40x70xbf16>
  %c = linalg.batch_matmul ins(%a, %b : tensor<3x40x33xbf16>, tensor<3x33x70xbf16>) outs(%zeros : tensor<3x40x70xbf16>)
    -> tensor<3x40x70xbf16>
  return %c : tensor<3x40x70xbf16>
}

func.func @matmul_i8_i32(%a: tensor<40x?xi8>, %b: tensor<?x70xi8>) -> tensor<40x70xi32> {
  %zero = arith.constant 0 : i32
  %empty = tensor.empty() : tensor<40x70xi32>
  %zeros = linalg.fill ins(%zero : i32) outs(%empty : tensor<40x70xi32>) -> tensor<40x70xi32>
  %c = linalg.matmul ins(%a, %b : tensor<40x?xi8>, tensor<?x70xi8>) outs(%zeros : tensor<40x70xi32>)
    -> tensor<40x70xi32>
  return %c : tensor<40x70xi32>
}
func.func @batch_matmul_i8_i32(%a: tensor<3x40x33xi8>, %b: tensor<3x33x70xi8>) -> tensor<3x40x70xi32> {
  %zero = arith.constant 0 : i32
  %empty = tensor.empty() : tensor<3x40x70xi32>
  %zeros = linalg.fill ins(%zero : i32) outs(%empty : tensor<3x40x70xi32>) -> tensor<3x40x70xi32>
  %c = linalg.batch_matmul ins(%a, %b : tensor<3x40x33xi8>, tensor<3x33x70xi8>) outs(%zeros : tensor<3x40x70xi32>)
    -> tensor<3x40x70xi32>
  return %c : tensor<3x40x70xi32>
}

func.func @matmul_tf32_f32(%a: tensor<40x?xf32>, %b: tensor<?x70xf32>) -> tensor<40x70xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<40x70xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<40x70xf32>) -> tensor<40x70xf32>
  %c = linalg.matmul ins(%a, %b : tensor<40x?xf32>, tensor<?x70xf32>) outs(%zeros : tensor<40x70xf32>)
    -> tensor<40x70xf32>
  return %c : tensor<40x70xf32>
}
func.func @batch_matmul_tf32_f32(%a: tensor<3x40x33xf32>, %b: tensor<3x33x70xf32>) -> tensor<3x40x70xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<3x40x70xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<3x40x70xf32>) -> tensor<3x40x70xf32>
  %c = linalg.batch_matmul ins(%a, %b : tensor<3x40x33xf32>, tensor<3x33x70xf32>) outs(%zeros : tensor<3x40x70xf32>)
    -> tensor<3x40x70xf32>
  return %c : tensor<3x40x70xf32>
}

func.func @more(%a: tensor<40x33xbf16>, %b: tensor<33x70xbf16>, %c: tensor<40x70xf32>) -> tensor<40x70xf32> {
  %sum = linalg.matmul ins(%a, %b : tensor<40x33xbf16>, tensor<33x70xbf16>) outs(%c : tensor<40x70xf32>)
    -> tensor<40x70xf32>
  return %sum : tensor<40x70xf32>
}
