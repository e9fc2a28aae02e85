// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// The program says where results, work and workspaces are.

func.func @into(%x: tensor<4xf32>, %out: tensor<4xf32> {iree.abi.output = 0 : index}) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// The first step is the first queue's, the second one the second queue's.
func.func @on_queues(%x: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_0, [0]>})
    -> (tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_0, [1]>}) {
  %y = arith.addf %x, %x : tensor<4xf32>
  %there = flow.tensor.transfer %y : tensor<4xf32> to #hal.device.promise<@__device_0, [1]>
  %z = arith.mulf %there, %there : tensor<4xf32>
  return %z : tensor<4xf32>
}

func.func @cube(%x: tensor<64x64xf32>, %workspace: !hal.buffer_view {iree.abi.transients}) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %square = linalg.matmul ins(%x, %x : tensor<64x64xf32>, tensor<64x64xf32>) outs(%f : tensor<64x64xf32>)
      -> tensor<64x64xf32>
  %cube = linalg.matmul ins(%square, %x : tensor<64x64xf32>, tensor<64x64xf32>) outs(%f : tensor<64x64xf32>)
      -> tensor<64x64xf32>
  %all = linalg.matmul ins(%cube, %square : tensor<64x64xf32>, tensor<64x64xf32>) outs(%f : tensor<64x64xf32>)
      -> tensor<64x64xf32>
  return %all : tensor<64x64xf32>
}
