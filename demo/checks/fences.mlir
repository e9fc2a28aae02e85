// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Fences between calls, as functions that are compiled with async-external take and signal them.

func.func private @work(%x: !hal.buffer_view, %after: !hal.fence, %done: !hal.fence) -> !hal.buffer_view {
  %begin = hal.tensor.import wait(%after) => %x : !hal.buffer_view -> tensor<64xi32>
  %sum = flow.dispatch.region -> (tensor<64xi32>) {
    %0 = arith.addi %begin, %begin : tensor<64xi32>
    flow.return %0 : tensor<64xi32>
  }
  %ready = hal.tensor.barrier join(%sum : tensor<64xi32>) => %done : !hal.fence
  %result = hal.tensor.export %ready : tensor<64xi32> -> !hal.buffer_view
  return %result : !hal.buffer_view
}

// The second call begins before the first has ended, and waits for it on the device.
func.func @two_calls_in_flight() {
  %c0 = arith.constant 0 : index
  %device = hal.devices.get %c0 : !hal.device
  %x = util.unfoldable_constant dense<5> : tensor<64xi32>
  %view = hal.tensor.export %x : tensor<64xi32> -> !hal.buffer_view
  %ready = util.null : !hal.fence
  %first_done = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence
  %second_done = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence
  %first = func.call @work(%view, %ready, %first_done) : (!hal.buffer_view, !hal.fence, !hal.fence) -> !hal.buffer_view
  %second = func.call @work(%first, %first_done, %second_done)
      : (!hal.buffer_view, !hal.fence, !hal.fence) -> !hal.buffer_view
  %forever = arith.constant -1 : i32
  %status = hal.fence.await until([%second_done]) timeout_millis(%forever) flags("None") : i32
  check.expect_false(%status) : i32
  %result = hal.tensor.import %second : !hal.buffer_view -> tensor<64xi32>
  check.expect_eq_const(%result, dense<20> : tensor<64xi32>) : tensor<64xi32>
  return
}
