// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Shapes that are known when the module runs.

func.func @add() {
  %x = flow.tensor.dynamic_constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32> -> tensor<?xf32>
  %y = flow.tensor.dynamic_constant dense<[0.5, 0.5, -3.0]> : tensor<3xf32> -> tensor<?xf32>
  %sum = arith.addf %x, %y : tensor<?xf32>
  %expected = flow.tensor.dynamic_constant dense<[1.5, 2.5, 0.0]> : tensor<3xf32> -> tensor<?xf32>
  check.expect_eq(%sum, %expected) : tensor<?xf32>
  return
}

func.func @product_of_matrices() {
  %x = flow.tensor.dynamic_constant dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]> : tensor<3x2xf32> -> tensor<?x?xf32>
  %y = flow.tensor.dynamic_constant dense<[[1.0, -1.0], [0.0, 1.0]]> : tensor<2x2xf32> -> tensor<?x?xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %x, %c0 : tensor<?x?xf32>
  %columns = tensor.dim %y, %c1 : tensor<?x?xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%rows, %columns) : tensor<?x?xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x?xf32>) -> tensor<?x?xf32>
  %product = linalg.matmul ins(%x, %y : tensor<?x?xf32>, tensor<?x?xf32>) outs(%zeros : tensor<?x?xf32>)
      -> tensor<?x?xf32>
  %expected = flow.tensor.dynamic_constant dense<[[1.0, 1.0], [3.0, 1.0], [5.0, 1.0]]> : tensor<3x2xf32>
      -> tensor<?x?xf32>
  check.expect_almost_eq(%product, %expected) : tensor<?x?xf32>
  return
}

// Memory for a size that is read from a tensor.
func.func @size_from_a_tensor() {
  %sizes = util.unfoldable_constant dense<[2, 6]> : tensor<2xi32>
  %c1 = arith.constant 1 : index
  %size = tensor.extract %sizes[%c1] : tensor<2xi32>
  %length = arith.index_cast %size : i32 to index
  %seven = arith.constant 7 : i32
  %empty = tensor.empty(%length) : tensor<?xi32>
  %sevens = linalg.fill ins(%seven : i32) outs(%empty : tensor<?xi32>) -> tensor<?xi32>
  %expected = flow.tensor.dynamic_constant dense<7> : tensor<6xi32> -> tensor<?xi32>
  check.expect_eq(%sevens, %expected) : tensor<?xi32>
  return
}
