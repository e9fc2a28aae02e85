// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// What IREE's tools call with memory of their own.

// The result is written into the second input.
util.func public @into_an_output(%x: tensor<64xf32>, %output: tensor<64xf32> {iree.abi.output = 0 : index})
    -> tensor<64xf32> {
  %sum = arith.addf %x, %x : tensor<64xf32>
  util.return %sum : tensor<64xf32>
}

// The result is written over the input.
util.func public @over_the_input(%x: tensor<64xf32> {iree.abi.output = 0 : index}) -> tensor<64xf32> {
  %square = arith.mulf %x, %x : tensor<64xf32>
  util.return %square : tensor<64xf32>
}

// What lies between two dispatches is in memory of the caller, too.
util.func public @with_scratch_memory(%x: tensor<64xf32>, %output: tensor<64xf32> {iree.abi.output = 0 : index},
                                      %scratch: !hal.buffer {iree.abi.transients}) -> tensor<64xf32> {
  %double = flow.dispatch.region -> (tensor<64xf32>) {
    %0 = arith.addf %x, %x : tensor<64xf32>
    flow.return %0 : tensor<64xf32>
  }
  %product = flow.dispatch.region -> (tensor<64xf32>) {
    %0 = arith.mulf %double, %x : tensor<64xf32>
    flow.return %0 : tensor<64xf32>
  }
  %sum = flow.dispatch.region -> (tensor<64xf32>) {
    %0 = arith.addf %product, %double : tensor<64xf32>
    flow.return %0 : tensor<64xf32>
  }
  util.return %sum : tensor<64xf32>
}
