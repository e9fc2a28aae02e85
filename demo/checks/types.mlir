// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Types of 8 to 64 bits.

func.func @words_of_64_bits() {
  %x = util.unfoldable_constant dense<[4294967296, -1, 9223372036854775807]> : tensor<3xi64>
  %y = util.unfoldable_constant dense<[4294967297, 1, -9223372036854775807]> : tensor<3xi64>
  %sum = arith.addi %x, %y : tensor<3xi64>
  %product = arith.muli %x, %y : tensor<3xi64>
  check.expect_eq_const(%sum, dense<[8589934593, 0, 0]> : tensor<3xi64>) : tensor<3xi64>
  check.expect_eq_const(%product, dense<[4294967296, -1, -1]> : tensor<3xi64>) : tensor<3xi64>
  return
}

func.func @bytes_and_words_of_16_bits() {
  %bytes = util.unfoldable_constant dense<[127, -128, 5, 6, 7]> : tensor<5xi8>
  %wrapped = arith.addi %bytes, %bytes : tensor<5xi8>
  check.expect_eq_const(%wrapped, dense<[-2, 0, 10, 12, 14]> : tensor<5xi8>) : tensor<5xi8>
  %words = arith.extsi %bytes : tensor<5xi8> to tensor<5xi16>
  %sum = arith.addi %words, %words : tensor<5xi16>
  check.expect_eq_const(%sum, dense<[254, -256, 10, 12, 14]> : tensor<5xi16>) : tensor<5xi16>
  return
}

// IREE's bytecode rounds to the nearest, other code towards zero.
func.func @conversions() {
  %x = util.unfoldable_constant dense<[1.25, -1.25, 300.0]> : tensor<3xf32>
  %whole = arith.fptosi %x : tensor<3xf32> to tensor<3xi32>
  check.expect_eq_const(%whole, dense<[1, -1, 300]> : tensor<3xi32>) : tensor<3xi32>
  %back = arith.sitofp %whole : tensor<3xi32> to tensor<3xf32>
  check.expect_eq_const(%back, dense<[1.0, -1.0, 300.0]> : tensor<3xf32>) : tensor<3xf32>
  return
}
