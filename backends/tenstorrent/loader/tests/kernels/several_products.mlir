// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Products of one type with other sides: some with equal ones, some in a loop.
func.func @wide(%a: tensor<8x16xf32>, %b: tensor<16x24xf32>) -> tensor<8x24xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x24xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x24xf32>) -> tensor<8x24xf32>
  %c = linalg.matmul ins(%a, %b : tensor<8x16xf32>, tensor<16x24xf32>) outs(%zeros : tensor<8x24xf32>)
    -> tensor<8x24xf32>
  return %c : tensor<8x24xf32>
}
func.func @narrow(%a: tensor<5x5xf32>, %b: tensor<5x9xf32>) -> tensor<5x9xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<5x9xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<5x9xf32>) -> tensor<5x9xf32>
  %c = linalg.matmul ins(%a, %b : tensor<5x5xf32>, tensor<5x9xf32>) outs(%zeros : tensor<5x9xf32>) -> tensor<5x9xf32>
  return %c : tensor<5x9xf32>
}
func.func @squares(%a: tensor<40x24xf32>, %b: tensor<24x40xf32>) -> tensor<40x40xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<40x40xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<40x40xf32>) -> tensor<40x40xf32>
  %c = linalg.matmul ins(%a, %b : tensor<40x24xf32>, tensor<24x40xf32>) outs(%zeros : tensor<40x40xf32>)
    -> tensor<40x40xf32>
  %d = linalg.matmul ins(%c, %c : tensor<40x40xf32>, tensor<40x40xf32>) outs(%zeros : tensor<40x40xf32>)
    -> tensor<40x40xf32>
  return %d : tensor<40x40xf32>
}
func.func @powers(%a: tensor<7x7xf32>, %count: index) -> tensor<7x7xf32> {
  %zero = arith.constant 0.0 : f32
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %power = scf.for %i = %first to %count step %one iter_args(%x = %a) -> (tensor<7x7xf32>) {
    %empty = tensor.empty() : tensor<7x7xf32>
    %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<7x7xf32>) -> tensor<7x7xf32>
    %c = linalg.matmul ins(%x, %a : tensor<7x7xf32>, tensor<7x7xf32>) outs(%zeros : tensor<7x7xf32>) -> tensor<7x7xf32>
    scf.yield %c : tensor<7x7xf32>
  }
  return %power : tensor<7x7xf32>
}
// A name as the rules could have chosen.
func.func @tensix_matmul_tf32_f32(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  return %a : tensor<8x16xf32>
}
