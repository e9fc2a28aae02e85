// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Operations whose kernels differ: each function is compiled for CUDA and for the host, and the results are compared.

func.func @unary_f32(%a0: tensor<257xf32>) -> tensor<257xf32> {
  %v0 = stablehlo.exponential %a0 : tensor<257xf32>
  %v1 = stablehlo.tanh %a0 : tensor<257xf32>
  %s1 = stablehlo.add %v0, %v1 : tensor<257xf32>
  %v2 = stablehlo.logistic %a0 : tensor<257xf32>
  %s2 = stablehlo.add %s1, %v2 : tensor<257xf32>
  %v3 = stablehlo.sine %a0 : tensor<257xf32>
  %s3 = stablehlo.add %s2, %v3 : tensor<257xf32>
  %v4 = stablehlo.cosine %a0 : tensor<257xf32>
  %s4 = stablehlo.add %s3, %v4 : tensor<257xf32>
  %v5 = stablehlo.floor %a0 : tensor<257xf32>
  %s5 = stablehlo.add %s4, %v5 : tensor<257xf32>
  %v6 = stablehlo.ceil %a0 : tensor<257xf32>
  %s6 = stablehlo.add %s5, %v6 : tensor<257xf32>
  %v7 = stablehlo.abs %a0 : tensor<257xf32>
  %s7 = stablehlo.add %s6, %v7 : tensor<257xf32>
  %v8 = stablehlo.negate %a0 : tensor<257xf32>
  %s8 = stablehlo.add %s7, %v8 : tensor<257xf32>
  %v9 = stablehlo.cbrt %a0 : tensor<257xf32>
  %s9 = stablehlo.add %s8, %v9 : tensor<257xf32>
  %v10 = stablehlo.sign %a0 : tensor<257xf32>
  %s10 = stablehlo.add %s9, %v10 : tensor<257xf32>
  %v11 = stablehlo.round_nearest_even %a0 : tensor<257xf32>
  %s11 = stablehlo.add %s10, %v11 : tensor<257xf32>
  %v12 = stablehlo.exponential_minus_one %a0 : tensor<257xf32>
  %s12 = stablehlo.add %s11, %v12 : tensor<257xf32>
  return %s12 : tensor<257xf32>
}

func.func @positive_f32(%a0: tensor<257xf32>) -> tensor<257xf32> {
  %v0 = stablehlo.log %a0 : tensor<257xf32>
  %v1 = stablehlo.sqrt %a0 : tensor<257xf32>
  %s1 = stablehlo.add %v0, %v1 : tensor<257xf32>
  %v2 = stablehlo.rsqrt %a0 : tensor<257xf32>
  %s2 = stablehlo.add %s1, %v2 : tensor<257xf32>
  %v3 = stablehlo.log_plus_one %a0 : tensor<257xf32>
  %s3 = stablehlo.add %s2, %v3 : tensor<257xf32>
  return %s3 : tensor<257xf32>
}

func.func @binary_f32(%a0: tensor<100xf32>, %a1: tensor<100xf32>) -> tensor<100xf32> {
  %v0 = stablehlo.add %a0, %a1 : tensor<100xf32>
  %v1 = stablehlo.subtract %a0, %a1 : tensor<100xf32>
  %s1 = stablehlo.add %v0, %v1 : tensor<100xf32>
  %v2 = stablehlo.multiply %a0, %a1 : tensor<100xf32>
  %s2 = stablehlo.add %s1, %v2 : tensor<100xf32>
  %v3 = stablehlo.divide %a0, %a1 : tensor<100xf32>
  %s3 = stablehlo.add %s2, %v3 : tensor<100xf32>
  %v4 = stablehlo.maximum %a0, %a1 : tensor<100xf32>
  %s4 = stablehlo.add %s3, %v4 : tensor<100xf32>
  %v5 = stablehlo.minimum %a0, %a1 : tensor<100xf32>
  %s5 = stablehlo.add %s4, %v5 : tensor<100xf32>
  %v6 = stablehlo.remainder %a0, %a1 : tensor<100xf32>
  %s6 = stablehlo.add %s5, %v6 : tensor<100xf32>
  %v7 = stablehlo.atan2 %a0, %a1 : tensor<100xf32>
  %s7 = stablehlo.add %s6, %v7 : tensor<100xf32>
  return %s7 : tensor<100xf32>
}

func.func @binary_i8(%a0: tensor<96xi8>, %a1: tensor<96xi8>) -> tensor<96xi8> {
  %v0 = stablehlo.multiply %a0, %a1 : tensor<96xi8>
  %v1 = stablehlo.divide %a0, %a1 : tensor<96xi8>
  %s1 = stablehlo.add %v0, %v1 : tensor<96xi8>
  %v2 = stablehlo.remainder %a0, %a1 : tensor<96xi8>
  %s2 = stablehlo.add %s1, %v2 : tensor<96xi8>
  %v3 = stablehlo.maximum %a0, %a1 : tensor<96xi8>
  %s3 = stablehlo.add %s2, %v3 : tensor<96xi8>
  %v4 = stablehlo.minimum %a0, %a1 : tensor<96xi8>
  %s4 = stablehlo.add %s3, %v4 : tensor<96xi8>
  %v5 = stablehlo.and %a0, %a1 : tensor<96xi8>
  %s5 = stablehlo.add %s4, %v5 : tensor<96xi8>
  %v6 = stablehlo.xor %a0, %a1 : tensor<96xi8>
  %s6 = stablehlo.add %s5, %v6 : tensor<96xi8>
  %v7 = stablehlo.shift_left %a0, %a1 : tensor<96xi8>
  %s7 = stablehlo.add %s6, %v7 : tensor<96xi8>
  %v8 = stablehlo.shift_right_arithmetic %a0, %a1 : tensor<96xi8>
  %s8 = stablehlo.add %s7, %v8 : tensor<96xi8>
  %v9 = stablehlo.shift_right_logical %a0, %a1 : tensor<96xi8>
  %s9 = stablehlo.add %s8, %v9 : tensor<96xi8>
  return %s9 : tensor<96xi8>
}

func.func @binary_i16(%a0: tensor<96xi16>, %a1: tensor<96xi16>) -> tensor<96xi16> {
  %v0 = stablehlo.multiply %a0, %a1 : tensor<96xi16>
  %v1 = stablehlo.divide %a0, %a1 : tensor<96xi16>
  %s1 = stablehlo.add %v0, %v1 : tensor<96xi16>
  %v2 = stablehlo.remainder %a0, %a1 : tensor<96xi16>
  %s2 = stablehlo.add %s1, %v2 : tensor<96xi16>
  %v3 = stablehlo.maximum %a0, %a1 : tensor<96xi16>
  %s3 = stablehlo.add %s2, %v3 : tensor<96xi16>
  %v4 = stablehlo.minimum %a0, %a1 : tensor<96xi16>
  %s4 = stablehlo.add %s3, %v4 : tensor<96xi16>
  %v5 = stablehlo.and %a0, %a1 : tensor<96xi16>
  %s5 = stablehlo.add %s4, %v5 : tensor<96xi16>
  %v6 = stablehlo.xor %a0, %a1 : tensor<96xi16>
  %s6 = stablehlo.add %s5, %v6 : tensor<96xi16>
  %v7 = stablehlo.shift_left %a0, %a1 : tensor<96xi16>
  %s7 = stablehlo.add %s6, %v7 : tensor<96xi16>
  %v8 = stablehlo.shift_right_arithmetic %a0, %a1 : tensor<96xi16>
  %s8 = stablehlo.add %s7, %v8 : tensor<96xi16>
  %v9 = stablehlo.shift_right_logical %a0, %a1 : tensor<96xi16>
  %s9 = stablehlo.add %s8, %v9 : tensor<96xi16>
  return %s9 : tensor<96xi16>
}

func.func @binary_i32(%a0: tensor<96xi32>, %a1: tensor<96xi32>) -> tensor<96xi32> {
  %v0 = stablehlo.multiply %a0, %a1 : tensor<96xi32>
  %v1 = stablehlo.divide %a0, %a1 : tensor<96xi32>
  %s1 = stablehlo.add %v0, %v1 : tensor<96xi32>
  %v2 = stablehlo.remainder %a0, %a1 : tensor<96xi32>
  %s2 = stablehlo.add %s1, %v2 : tensor<96xi32>
  %v3 = stablehlo.maximum %a0, %a1 : tensor<96xi32>
  %s3 = stablehlo.add %s2, %v3 : tensor<96xi32>
  %v4 = stablehlo.minimum %a0, %a1 : tensor<96xi32>
  %s4 = stablehlo.add %s3, %v4 : tensor<96xi32>
  %v5 = stablehlo.and %a0, %a1 : tensor<96xi32>
  %s5 = stablehlo.add %s4, %v5 : tensor<96xi32>
  %v6 = stablehlo.xor %a0, %a1 : tensor<96xi32>
  %s6 = stablehlo.add %s5, %v6 : tensor<96xi32>
  %v7 = stablehlo.shift_left %a0, %a1 : tensor<96xi32>
  %s7 = stablehlo.add %s6, %v7 : tensor<96xi32>
  %v8 = stablehlo.shift_right_arithmetic %a0, %a1 : tensor<96xi32>
  %s8 = stablehlo.add %s7, %v8 : tensor<96xi32>
  %v9 = stablehlo.shift_right_logical %a0, %a1 : tensor<96xi32>
  %s9 = stablehlo.add %s8, %v9 : tensor<96xi32>
  return %s9 : tensor<96xi32>
}

func.func @binary_i64(%a0: tensor<96xi64>, %a1: tensor<96xi64>) -> tensor<96xi64> {
  %v0 = stablehlo.multiply %a0, %a1 : tensor<96xi64>
  %v1 = stablehlo.divide %a0, %a1 : tensor<96xi64>
  %s1 = stablehlo.add %v0, %v1 : tensor<96xi64>
  %v2 = stablehlo.remainder %a0, %a1 : tensor<96xi64>
  %s2 = stablehlo.add %s1, %v2 : tensor<96xi64>
  %v3 = stablehlo.maximum %a0, %a1 : tensor<96xi64>
  %s3 = stablehlo.add %s2, %v3 : tensor<96xi64>
  %v4 = stablehlo.minimum %a0, %a1 : tensor<96xi64>
  %s4 = stablehlo.add %s3, %v4 : tensor<96xi64>
  %v5 = stablehlo.and %a0, %a1 : tensor<96xi64>
  %s5 = stablehlo.add %s4, %v5 : tensor<96xi64>
  %v6 = stablehlo.xor %a0, %a1 : tensor<96xi64>
  %s6 = stablehlo.add %s5, %v6 : tensor<96xi64>
  %v7 = stablehlo.shift_left %a0, %a1 : tensor<96xi64>
  %s7 = stablehlo.add %s6, %v7 : tensor<96xi64>
  %v8 = stablehlo.shift_right_arithmetic %a0, %a1 : tensor<96xi64>
  %s8 = stablehlo.add %s7, %v8 : tensor<96xi64>
  %v9 = stablehlo.shift_right_logical %a0, %a1 : tensor<96xi64>
  %s9 = stablehlo.add %s8, %v9 : tensor<96xi64>
  return %s9 : tensor<96xi64>
}

func.func @binary_f16(%a0: tensor<64xf32>, %a1: tensor<64xf32>) -> tensor<64xf32> {
  %b0 = stablehlo.convert %a0 : (tensor<64xf32>) -> tensor<64xf16>
  %b1 = stablehlo.convert %a1 : (tensor<64xf32>) -> tensor<64xf16>
  %v0 = stablehlo.add %b0, %b1 : tensor<64xf16>
  %v1 = stablehlo.multiply %b0, %b1 : tensor<64xf16>
  %s1 = stablehlo.add %v0, %v1 : tensor<64xf16>
  %v2 = stablehlo.divide %b0, %b1 : tensor<64xf16>
  %s2 = stablehlo.add %s1, %v2 : tensor<64xf16>
  %v3 = stablehlo.maximum %b0, %b1 : tensor<64xf16>
  %s3 = stablehlo.add %s2, %v3 : tensor<64xf16>
  %r = stablehlo.convert %s3 : (tensor<64xf16>) -> tensor<64xf32>
  return %r : tensor<64xf32>
}

func.func @binary_bf16(%a0: tensor<64xf32>, %a1: tensor<64xf32>) -> tensor<64xf32> {
  %b0 = stablehlo.convert %a0 : (tensor<64xf32>) -> tensor<64xbf16>
  %b1 = stablehlo.convert %a1 : (tensor<64xf32>) -> tensor<64xbf16>
  %v0 = stablehlo.add %b0, %b1 : tensor<64xbf16>
  %v1 = stablehlo.multiply %b0, %b1 : tensor<64xbf16>
  %s1 = stablehlo.add %v0, %v1 : tensor<64xbf16>
  %v2 = stablehlo.divide %b0, %b1 : tensor<64xbf16>
  %s2 = stablehlo.add %s1, %v2 : tensor<64xbf16>
  %v3 = stablehlo.maximum %b0, %b1 : tensor<64xbf16>
  %s3 = stablehlo.add %s2, %v3 : tensor<64xbf16>
  %r = stablehlo.convert %s3 : (tensor<64xbf16>) -> tensor<64xf32>
  return %r : tensor<64xf32>
}

func.func @conversions(%a0: tensor<50xf32>) -> tensor<50xf32> {
  %0 = stablehlo.convert %a0 : (tensor<50xf32>) -> tensor<50xi8>
  %1 = stablehlo.convert %0 : (tensor<50xi8>) -> tensor<50xf16>
  %2 = stablehlo.convert %1 : (tensor<50xf16>) -> tensor<50xi64>
  %3 = stablehlo.convert %2 : (tensor<50xi64>) -> tensor<50xbf16>
  %4 = stablehlo.convert %3 : (tensor<50xbf16>) -> tensor<50xi32>
  %5 = stablehlo.convert %4 : (tensor<50xi32>) -> tensor<50xf32>
  return %5 : tensor<50xf32>
}

func.func @matmul_64(%a0: tensor<64x64xf32>, %a1: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %r = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}

func.func @matmul_7(%a0: tensor<7x13xf32>, %a1: tensor<13x5xf32>) -> tensor<7x5xf32> {
  %r = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0]
    : (tensor<7x13xf32>, tensor<13x5xf32>) -> tensor<7x5xf32>
  return %r : tensor<7x5xf32>
}

func.func @matmul_i8(%a0: tensor<32x64xi8>, %a1: tensor<64x32xi8>) -> tensor<32x32xi32> {
  %r = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0]
    : (tensor<32x64xi8>, tensor<64x32xi8>) -> tensor<32x32xi32>
  return %r : tensor<32x32xi32>
}

func.func @sum_f32(%a0: tensor<33x77xf32>) -> tensor<33xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%a0 init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<33x77xf32>, tensor<f32>) -> tensor<33xf32>
  return %r : tensor<33xf32>
}

func.func @sum_i32(%a0: tensor<33x77xi32>) -> tensor<33xi32> {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %r = stablehlo.reduce(%a0 init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<33x77xi32>, tensor<i32>) -> tensor<33xi32>
  return %r : tensor<33xi32>
}

func.func @largest(%a0: tensor<8x1000xf32>) -> tensor<f32> {
  %z = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %r = stablehlo.reduce(%a0 init: %z) applies stablehlo.maximum across dimensions = [0, 1]
    : (tensor<8x1000xf32>, tensor<f32>) -> tensor<f32>
  return %r : tensor<f32>
}

func.func @softmax(%a0: tensor<16x100xf32>) -> tensor<16x100xf32> {
  %e = tensor.empty() : tensor<16x100xf32>
  %r = linalg.softmax dimension(1) ins(%a0 : tensor<16x100xf32>) outs(%e : tensor<16x100xf32>) -> tensor<16x100xf32>
  return %r : tensor<16x100xf32>
}

func.func @sort(%a0: tensor<4x37xf32>) -> tensor<4x37xf32> {
  %r = "stablehlo.sort"(%a0) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<4x37xf32>) -> tensor<4x37xf32>
  return %r : tensor<4x37xf32>
}

func.func @choose(%a0: tensor<64xf32>, %a1: tensor<64xf32>) -> tensor<64xf32> {
  %c = stablehlo.compare GT, %a0, %a1 : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
  %d = stablehlo.not %c : tensor<64xi1>
  %r = stablehlo.select %d, %a0, %a1 : tensor<64xi1>, tensor<64xf32>
  return %r : tensor<64xf32>
}

func.func @rows(%a0: tensor<50x8xf32>, %a1: tensor<20x1xi32>) -> tensor<20x8xf32> {
  %r = "stablehlo.gather"(%a0, %a1) {
    dimension_numbers = #stablehlo.gather<
      offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 8>
  } : (tensor<50x8xf32>, tensor<20x1xi32>) -> tensor<20x8xf32>
  return %r : tensor<20x8xf32>
}
