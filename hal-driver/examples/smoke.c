// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A program that uses a device of this repository through IREE's HAL alone: no module, no compiler.
//
//   smoke [DEVICE] [abandon]
//
// It submits work whose wait is signalled last, across all queues, and checks every byte. With `abandon` it never
// signals, and releases everything while the work still waits. REGISTER names the function that adds the driver, so the
// same program serves a driver of your own.

#include <stdio.h>
#include <string.h>

#include "iree/async/util/proactor_pool.h"
#include "iree/base/threading/numa.h"
#include "iree/hal/api.h"

#ifndef REGISTER
#define REGISTER iree_hal_mock_driver_module_register
#endif  // REGISTER

iree_status_t REGISTER(iree_hal_driver_registry_t* registry);

enum { LENGTH = 1 << 20, STEPS = 64 };

static iree_status_t open_device(const char* uri, iree_hal_device_t** out_device) {
  IREE_RETURN_IF_ERROR(REGISTER(iree_hal_driver_registry_default()));
  iree_async_proactor_pool_t* pool = NULL;
  IREE_RETURN_IF_ERROR(iree_async_proactor_pool_create(iree_numa_node_count(), /*node_ids=*/NULL,
                                                       iree_async_proactor_pool_options_default(),
                                                       iree_allocator_system(), &pool));
  iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
  params.proactor_pool = pool;
  iree_status_t status = iree_hal_create_device(iree_hal_driver_registry_default(), iree_make_cstring_view(uri),
                                                &params, iree_allocator_system(), out_device);
  iree_async_proactor_pool_release(pool);
  return status;
}

static iree_status_t allocate(iree_hal_device_t* device, iree_hal_buffer_t** out_buffer) {
  const iree_hal_buffer_params_t params = {
      .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | IREE_HAL_MEMORY_TYPE_HOST_VISIBLE,
      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT | IREE_HAL_BUFFER_USAGE_MAPPING,
  };
  return iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(device), params, LENGTH, out_buffer);
}

// Fills one buffer and copies it to another, again and again, each step behind the one before it.
static iree_status_t chain(iree_hal_device_t* device, iree_hal_buffer_t* source, iree_hal_buffer_t* target,
                           iree_hal_semaphore_t* timeline) {
  for (uint64_t step = 1; step <= STEPS; ++step) {
    uint64_t wait = 2 * step - 1, filled = 2 * step, copied = 2 * step + 1;
    uint32_t pattern = 0x01010101u * (uint32_t)step;
    iree_hal_semaphore_list_t waits = {1, &timeline, &wait}, fills = {1, &timeline, &filled},
                              copies = {1, &timeline, &copied};
    IREE_RETURN_IF_ERROR(iree_hal_device_queue_fill(device, IREE_HAL_QUEUE_AFFINITY_ANY, waits, fills, source, 0,
                                                    LENGTH, &pattern, sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
    IREE_RETURN_IF_ERROR(iree_hal_device_queue_copy(device, IREE_HAL_QUEUE_AFFINITY_ANY, fills, copies, source, 0,
                                                    target, 0, LENGTH, IREE_HAL_COPY_FLAG_NONE));
  }
  return iree_ok_status();
}

static iree_status_t verify(iree_hal_buffer_t* buffer, uint8_t expected, int* out_wrong) {
  static uint8_t bytes[LENGTH];
  IREE_RETURN_IF_ERROR(iree_hal_buffer_map_read(buffer, 0, bytes, sizeof(bytes)));
  for (int i = 0; i < LENGTH; ++i) *out_wrong += bytes[i] != expected;
  return iree_ok_status();
}

int main(int argc, char** argv) {
  const char* uri = argc > 1 ? argv[1] : "mock";
  iree_hal_device_t* device = NULL;
  iree_hal_buffer_t* source = NULL;
  iree_hal_buffer_t* target = NULL;
  iree_hal_semaphore_t* timeline = NULL;
  const bool abandon = argc > 2 && strcmp(argv[2], "abandon") == 0;
  int wrong = 0;
  iree_status_t status = open_device(uri, &device);
  if (iree_status_is_ok(status)) status = allocate(device, &source);
  if (iree_status_is_ok(status)) status = allocate(device, &target);
  if (iree_status_is_ok(status)) {
    status = iree_hal_semaphore_create(device, IREE_HAL_QUEUE_AFFINITY_ANY, 0, IREE_HAL_SEMAPHORE_FLAG_DEFAULT,
                                       &timeline);
  }
  if (iree_status_is_ok(status)) status = chain(device, source, target, timeline);
  // Everything is submitted and nothing can have begun; now it may.
  if (iree_status_is_ok(status) && !abandon) status = iree_hal_semaphore_signal(timeline, 1, /*frontier=*/NULL);
  if (iree_status_is_ok(status) && !abandon) {
    status = iree_hal_semaphore_wait(timeline, 2 * STEPS + 1, iree_make_timeout_ms(10000), IREE_ASYNC_WAIT_FLAG_NONE);
  }
  if (iree_status_is_ok(status) && !abandon) status = verify(target, STEPS, &wrong);
  iree_hal_semaphore_release(timeline);
  iree_hal_buffer_release(target);
  iree_hal_buffer_release(source);
  iree_hal_device_release(device);
  if (!iree_status_is_ok(status)) {
    iree_status_fprint(stderr, status);
    iree_status_free(status);
    return 1;
  }
  if (abandon) {
    printf("%s: %d steps abandoned\n", uri, 2 * STEPS);
    return 0;
  }
  printf("%s: %d steps of %d bytes, %d bytes wrong\n", uri, 2 * STEPS, LENGTH, wrong);
  return wrong == 0 ? 0 : 1;
}
