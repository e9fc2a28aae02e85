// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Stores bytes, so that what is compared is bytes.
func.func @halve(%a: tensor<777xi8>) -> tensor<777xi8> {
  %two = arith.constant 2 : i8
  %twos = tensor.splat %two : tensor<777xi8>
  %0 = arith.divui %a, %twos : tensor<777xi8>
  return %0 : tensor<777xi8>
}
