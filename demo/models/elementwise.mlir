// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// relu(a * b + c) over matrices of any size.
func.func @main(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>, %c: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %product = arith.mulf %a, %b : tensor<?x?xf32>
  %sum = arith.addf %product, %c : tensor<?x?xf32>
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %a, %c0 : tensor<?x?xf32>
  %columns = tensor.dim %a, %c1 : tensor<?x?xf32>
  %empty = tensor.empty(%rows, %columns) : tensor<?x?xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x?xf32>) -> tensor<?x?xf32>
  %relu = arith.maximumf %sum, %zeros : tensor<?x?xf32>
  return %relu : tensor<?x?xf32>
}
