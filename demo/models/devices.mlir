// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Work on three devices in turn: what one has made goes to the next, and back to the first.
func.func @main(%x: tensor<1024xf32> {iree.abi.affinity = #hal.device.promise<@first>},
                %y: tensor<1024xf32> {iree.abi.affinity = #hal.device.promise<@first>})
    -> (tensor<1024xf32> {iree.abi.affinity = #hal.device.promise<@first>}) {
  %sum = arith.addf %x, %y : tensor<1024xf32>
  %on_second = flow.tensor.transfer %sum : tensor<1024xf32> to #hal.device.promise<@second>
  %square = arith.mulf %on_second, %on_second : tensor<1024xf32>
  %on_third = flow.tensor.transfer %square : tensor<1024xf32> to #hal.device.promise<@third>
  %double = arith.addf %on_third, %on_third : tensor<1024xf32>
  %on_first = flow.tensor.transfer %double : tensor<1024xf32> to #hal.device.promise<@first>
  %result = arith.subf %on_first, %x : tensor<1024xf32>
  return %result : tensor<1024xf32>
}
