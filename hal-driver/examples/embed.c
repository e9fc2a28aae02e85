// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A program that embeds the IREE runtime and runs two functions at once on a device of this repository.
//
//   embed MODULE.vmfb [DEVICE]
//
// Both functions are called before their input exists: each waits for a fence that the program signals afterwards, and
// signals a fence of its own. Nothing blocks until the program asks for the results.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "hal_drivers.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/base/threading/numa.h"
#include "iree/modules/hal/module.h"
#include "iree/runtime/api.h"

enum { COUNT = 1024 };

// A call that is under way.
typedef struct {
  iree_runtime_call_t call;
  iree_hal_semaphore_t* done;
} pending_t;

// A fence of one semaphore and value, pushed as an argument.
static iree_status_t push_fence(iree_runtime_call_t* call, iree_hal_semaphore_t* semaphore, uint64_t value) {
  iree_hal_fence_t* fence = NULL;
  IREE_RETURN_IF_ERROR(iree_hal_fence_create_at(semaphore, value, iree_allocator_system(), &fence));
  iree_vm_ref_t ref = iree_hal_fence_move_ref(fence);
  iree_status_t status = iree_vm_list_push_ref_move(iree_runtime_call_inputs(call), &ref);
  iree_vm_ref_release(&ref);
  return status;
}

// Calls a function that will begin when `ready` reaches 1.
static iree_status_t begin(iree_runtime_session_t* session, const char* name, iree_hal_buffer_view_t* input,
                           iree_hal_semaphore_t* ready, pending_t* out) {
  iree_hal_device_t* device = iree_runtime_session_device(session);
  IREE_RETURN_IF_ERROR(
      iree_runtime_call_initialize_by_name(session, iree_make_cstring_view(name), &out->call));
  IREE_RETURN_IF_ERROR(iree_hal_semaphore_create(device, IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                                 IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &out->done));
  IREE_RETURN_IF_ERROR(iree_runtime_call_inputs_push_back_buffer_view(&out->call, input));
  IREE_RETURN_IF_ERROR(push_fence(&out->call, ready, 1));
  IREE_RETURN_IF_ERROR(push_fence(&out->call, out->done, 1));
  return iree_runtime_call_invoke(&out->call, /*flags=*/0);
}

// Waits for a call and reads its result.
static iree_status_t finish(iree_runtime_session_t* session, pending_t* pending, float* values) {
  IREE_RETURN_IF_ERROR(
      iree_hal_semaphore_wait(pending->done, 1, iree_make_timeout_ms(10000), IREE_ASYNC_WAIT_FLAG_NONE));
  iree_hal_buffer_view_t* view = NULL;
  IREE_RETURN_IF_ERROR(iree_runtime_call_outputs_pop_front_buffer_view(&pending->call, &view));
  iree_status_t status = iree_hal_device_transfer_d2h(
      iree_runtime_session_device(session), iree_hal_buffer_view_buffer(view), 0, values, COUNT * sizeof(float),
      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout());
  iree_hal_buffer_view_release(view);
  return status;
}

static void discard(pending_t* pending) {
  if (pending->call.session) iree_runtime_call_deinitialize(&pending->call);
  iree_hal_semaphore_release(pending->done);
}

static iree_status_t run(iree_runtime_session_t* session, const char* module, int* out_wrong) {
  IREE_RETURN_IF_ERROR(iree_runtime_session_append_bytecode_module_from_file(session, module));
  iree_hal_device_t* device = iree_runtime_session_device(session);

  float input[COUNT];
  for (int i = 0; i < COUNT; ++i) input[i] = 0.25f * (float)i - 100.0f;
  const iree_hal_dim_t shape[1] = {COUNT};
  iree_hal_buffer_view_t* view = NULL;
  IREE_RETURN_IF_ERROR(iree_hal_buffer_view_allocate_buffer_copy(
      device, iree_hal_device_allocator(device), IREE_ARRAYSIZE(shape), shape, IREE_HAL_ELEMENT_TYPE_FLOAT_32,
      IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
      (iree_hal_buffer_params_t){
          .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
          .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
      },
      iree_make_const_byte_span(input, sizeof(input)), &view));

  iree_hal_semaphore_t* ready = NULL;
  pending_t square = {0}, twice = {0};
  iree_status_t status = iree_hal_semaphore_create(device, IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                                   IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &ready);
  if (iree_status_is_ok(status)) status = begin(session, "module.square", view, ready, &square);
  if (iree_status_is_ok(status)) status = begin(session, "module.twice", view, ready, &twice);
  if (iree_status_is_ok(status)) {
    // Both are in flight and neither can have ended.
    uint64_t first = 0, second = 0;
    status = iree_hal_semaphore_query(square.done, &first);
    if (iree_status_is_ok(status)) status = iree_hal_semaphore_query(twice.done, &second);
    printf("two calls in flight: square at %d, twice at %d\n", (int)first, (int)second);
    if (first != 0 || second != 0) ++*out_wrong;
  }
  if (iree_status_is_ok(status)) status = iree_hal_semaphore_signal(ready, 1, /*frontier=*/NULL);
  float squares[COUNT], doubles[COUNT];
  if (iree_status_is_ok(status)) status = finish(session, &square, squares);
  if (iree_status_is_ok(status)) status = finish(session, &twice, doubles);
  if (iree_status_is_ok(status)) {
    for (int i = 0; i < COUNT; ++i) {
      if (squares[i] != input[i] * input[i] || doubles[i] != input[i] + input[i]) ++*out_wrong;
    }
    printf("both ended; %d of %d values are wrong\n", *out_wrong, 2 * COUNT);
  }
  discard(&square);
  discard(&twice);
  iree_hal_semaphore_release(ready);
  iree_hal_buffer_view_release(view);
  return status;
}

// A device by its URI. The proactor pool is kept by the device as long as it needs it.
static iree_status_t open_device(const char* uri, iree_hal_device_t** out_device) {
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

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s MODULE.vmfb [DEVICE]\n", argv[0]);
    return 2;
  }
  const char* uri = argc > 2 ? argv[2] : "mock";
  iree_runtime_instance_options_t options;
  iree_runtime_instance_options_initialize(&options);
  options.driver_registry = iree_hal_driver_registry_default();
  iree_runtime_instance_t* instance = NULL;
  iree_runtime_session_t* session = NULL;
  iree_hal_device_t* device = NULL;
  int wrong = 0;

  iree_status_t status = iree_runtime_instance_create(&options, iree_allocator_system(), &instance);
  if (iree_status_is_ok(status)) {
    status = hal_drivers_register_all(options.driver_registry);
  }
  if (iree_status_is_ok(status)) {
    status = open_device(uri, &device);
  }
  if (iree_status_is_ok(status)) {
    iree_runtime_session_options_t session_options;
    iree_runtime_session_options_initialize(&session_options);
    status = iree_runtime_session_create_with_device(instance, &session_options, device,
                                                     iree_allocator_system(), &session);
  }
  if (iree_status_is_ok(status)) status = run(session, argv[1], &wrong);

  iree_runtime_session_release(session);
  iree_hal_device_release(device);
  iree_runtime_instance_release(instance);
  if (!iree_status_is_ok(status)) {
    iree_status_fprint(stderr, status);
    iree_status_free(status);
    return 1;
  }
  return wrong == 0 ? 0 : 1;
}
