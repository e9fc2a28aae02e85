// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Sums, maxima and the place of a maximum.

func.func @sum_of_rows() {
  %x = util.unfoldable_constant dense<[[1, 2, 3], [4, 5, 6], [-7, 8, -9]]> : tensor<3x3xi32>
  %zeros = util.unfoldable_constant dense<0> : tensor<3xi32>
  %sums = linalg.reduce { arith.addi } ins(%x : tensor<3x3xi32>) outs(%zeros : tensor<3xi32>) dimensions = [1]
  check.expect_eq_const(%sums, dense<[6, 15, -8]> : tensor<3xi32>) : tensor<3xi32>
  return
}

func.func @maximum_of_columns() {
  %x = util.unfoldable_constant dense<[[1.0, 9.0], [5.0, -3.0], [2.0, 8.0]]> : tensor<3x2xf32>
  %least = util.unfoldable_constant dense<-3.0e38> : tensor<2xf32>
  %maxima = linalg.reduce { arith.maximumf } ins(%x : tensor<3x2xf32>) outs(%least : tensor<2xf32>) dimensions = [0]
  check.expect_eq_const(%maxima, dense<[5.0, 9.0]> : tensor<2xf32>) : tensor<2xf32>
  return
}

func.func @everything_into_one() {
  %x = util.unfoldable_constant dense<3> : tensor<17x61xi32>
  %zero = util.unfoldable_constant dense<0> : tensor<i32>
  %sum = linalg.reduce { arith.addi } ins(%x : tensor<17x61xi32>) outs(%zero : tensor<i32>) dimensions = [0, 1]
  check.expect_eq_const(%sum, dense<3111> : tensor<i32>) : tensor<i32>
  return
}

func.func @place_of_the_maximum() {
  %x = util.unfoldable_constant dense<[3.0, -1.0, 12.0, 4.0, 11.0]> : tensor<5xf32>
  %value = util.unfoldable_constant dense<-3.0e38> : tensor<f32>
  %place = util.unfoldable_constant dense<-1> : tensor<i32>
  %found:2 = linalg.generic {
    indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>, affine_map<(i) -> ()>],
    iterator_types = ["reduction"]
  } ins(%x : tensor<5xf32>) outs(%value, %place : tensor<f32>, tensor<i32>) {
  ^bb0(%element: f32, %best: f32, %at: i32):
    %index = linalg.index 0 : index
    %here = arith.index_cast %index : index to i32
    %is_better = arith.cmpf ogt, %element, %best : f32
    %0 = arith.select %is_better, %element, %best : f32
    %1 = arith.select %is_better, %here, %at : i32
    linalg.yield %0, %1 : f32, i32
  } -> (tensor<f32>, tensor<i32>)
  check.expect_eq_const(%found#0, dense<12.0> : tensor<f32>) : tensor<f32>
  check.expect_eq_const(%found#1, dense<2> : tensor<i32>) : tensor<i32>
  return
}
