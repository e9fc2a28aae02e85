// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A program that says where a module's results, workspaces and work are, and that never blocks in a call.
//
//   placement PLACEMENT.vmfb DEVICES.vmfb [DEVICE [SECOND THIRD]]
//
// The modules are python/tests/placement.mlir, for one device with two queues, and demo/models/devices.mlir, for three
// devices; both compiled with --iree-execution-model=async-external. Each call is made before its input is ready. It
// waits for a fence of another device than its own, which the program signals after the call, and signals a fence of
// the program's.

#include <stdio.h>
#include <stdlib.h>

#include "hal_drivers.h"
#include "iree/async/frontier_tracker.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/modules/hal/module.h"
#include "iree/vm/api.h"
#include "iree/vm/bytecode/module.h"

enum { DEVICES = 3 };

// Devices, and a module that may use all of them.
typedef struct {
  iree_vm_context_t* context;
  iree_hal_device_t* devices[DEVICES];
  iree_host_size_t device_count;
} program_t;

// A call that is under way: its results, and the fence that it signals.
typedef struct {
  iree_vm_list_t* outputs;
  iree_hal_semaphore_t* ready;
  iree_hal_semaphore_t* done;
} pending_t;

static iree_status_t read_file(const char* path, iree_const_byte_span_t* out_bytes) {
  FILE* file = fopen(path, "rb");
  if (!file) return iree_make_status(IREE_STATUS_NOT_FOUND, "%s cannot be opened", path);
  fseek(file, 0, SEEK_END);
  const long length = ftell(file);
  rewind(file);
  uint8_t* bytes = NULL;
  iree_status_t status = iree_allocator_malloc(iree_allocator_system(), (iree_host_size_t)length, (void**)&bytes);
  if (iree_status_is_ok(status) && fread(bytes, 1, (size_t)length, file) != (size_t)length) {
    iree_allocator_free(iree_allocator_system(), bytes);
    status = iree_make_status(IREE_STATUS_DATA_LOSS, "%s cannot be read", path);
  }
  fclose(file);
  if (iree_status_is_ok(status)) *out_bytes = iree_make_const_byte_span(bytes, (iree_host_size_t)length);
  return status;
}

// A group of the program's devices, in the order of the module's.
static iree_status_t make_group(const program_t* program, iree_hal_device_group_t** out_group) {
  iree_async_frontier_tracker_t* tracker = NULL;
  IREE_RETURN_IF_ERROR(iree_async_frontier_tracker_create(iree_async_frontier_tracker_options_default(),
                                                          iree_allocator_system(), &tracker));
  iree_hal_device_group_builder_t builder;
  iree_hal_device_group_builder_initialize(&builder, tracker);
  iree_status_t status = iree_ok_status();
  for (iree_host_size_t i = 0; i < program->device_count && iree_status_is_ok(status); ++i) {
    status = iree_hal_device_group_builder_add_device(&builder, program->devices[i]);
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_device_group_builder_finalize(&builder, iree_allocator_system(), out_group);
  } else {
    iree_hal_device_group_builder_deinitialize(&builder);
  }
  iree_async_frontier_tracker_release(tracker);
  return status;
}

// Loads a module for the program's devices.
static iree_status_t load(iree_vm_instance_t* instance, const char* path, program_t* program) {
  iree_const_byte_span_t bytes = iree_const_byte_span_empty();
  IREE_RETURN_IF_ERROR(read_file(path, &bytes));
  iree_vm_module_t* modules[2] = {NULL, NULL};
  // The module frees the bytes from here on.
  iree_status_t status = iree_vm_bytecode_module_create(instance, IREE_VM_BYTECODE_MODULE_FLAG_NONE, bytes,
                                                        iree_allocator_system(), iree_allocator_system(), &modules[1]);
  if (!iree_status_is_ok(status)) iree_allocator_free(iree_allocator_system(), (void*)bytes.data);
  iree_hal_device_group_t* group = NULL;
  if (iree_status_is_ok(status)) status = make_group(program, &group);
  if (iree_status_is_ok(status)) {
    status = iree_hal_module_create(instance, iree_hal_module_device_policy_default(), group, IREE_HAL_MODULE_FLAG_NONE,
                                    iree_hal_module_debug_sink_stdio(stderr), iree_allocator_system(), &modules[0]);
  }
  iree_hal_device_group_release(group);
  if (iree_status_is_ok(status)) {
    status = iree_vm_context_create_with_modules(instance, IREE_VM_CONTEXT_FLAG_NONE, 2, modules,
                                                 iree_allocator_system(), &program->context);
  }
  iree_vm_module_release(modules[0]);
  iree_vm_module_release(modules[1]);
  return status;
}

// A fence of one semaphore and value, pushed as an argument.
static iree_status_t push_fence(iree_vm_list_t* inputs, iree_hal_semaphore_t* semaphore) {
  iree_hal_fence_t* fence = NULL;
  IREE_RETURN_IF_ERROR(iree_hal_fence_create_at(semaphore, 1, iree_allocator_system(), &fence));
  iree_vm_ref_t ref = iree_hal_fence_move_ref(fence);
  iree_status_t status = iree_vm_list_push_ref_move(inputs, &ref);
  iree_vm_ref_release(&ref);
  return status;
}

// Calls a function whose first `count` arguments are tensors, and whose last two are fences. The call has returned and
// nothing of it has run: `ready` is a semaphore of `other`, and still 0.
static iree_status_t begin(const program_t* program, iree_hal_device_t* other, const char* name,
                           iree_hal_buffer_view_t* const* views, int count, pending_t* out) {
  iree_vm_list_t* inputs = NULL;
  iree_vm_function_t function;
  IREE_RETURN_IF_ERROR(iree_vm_context_resolve_function(program->context, iree_make_cstring_view(name), &function));
  iree_status_t status = iree_hal_semaphore_create(other, IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                                   IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &out->ready);
  if (iree_status_is_ok(status)) {
    status = iree_hal_semaphore_create(program->devices[0], IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                       IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &out->done);
  }
  const iree_vm_type_def_t any = iree_vm_make_undefined_type_def();
  if (iree_status_is_ok(status)) status = iree_vm_list_create(any, 4, iree_allocator_system(), &inputs);
  if (iree_status_is_ok(status)) status = iree_vm_list_create(any, 1, iree_allocator_system(), &out->outputs);
  for (int i = 0; i < count && iree_status_is_ok(status); ++i) {
    iree_vm_ref_t ref = iree_hal_buffer_view_retain_ref(views[i]);
    status = iree_vm_list_push_ref_move(inputs, &ref);
    iree_vm_ref_release(&ref);
  }
  if (iree_status_is_ok(status)) status = push_fence(inputs, out->ready);
  if (iree_status_is_ok(status)) status = push_fence(inputs, out->done);
  if (iree_status_is_ok(status)) {
    status = iree_vm_invoke(program->context, function, IREE_VM_INVOCATION_FLAG_NONE, /*policy=*/NULL, inputs,
                            out->outputs, iree_allocator_system());
  }
  iree_vm_list_release(inputs);
  return status;
}

// Lets the work of a call begin, waits for it, and reads its result, whose view the caller gets as well.
static iree_status_t finish(const program_t* program, const char* name, pending_t* pending, float* values, int count,
                            iree_hal_buffer_view_t** out_view, int* wrong) {
  uint64_t value = 0;
  IREE_RETURN_IF_ERROR(iree_hal_semaphore_query(pending->done, &value));
  if (value != 0) {
    fprintf(stderr, "%s has ended before its input was ready\n", name);
    ++*wrong;
  }
  IREE_RETURN_IF_ERROR(iree_hal_semaphore_signal(pending->ready, 1, /*frontier=*/NULL));
  IREE_RETURN_IF_ERROR(
      iree_hal_semaphore_wait(pending->done, 1, iree_make_timeout_ms(60000), IREE_ASYNC_WAIT_FLAG_NONE));
  iree_hal_buffer_view_t* view = iree_vm_list_get_buffer_view_assign(pending->outputs, 0);
  if (!view) return iree_make_status(IREE_STATUS_INTERNAL, "%s has no result", name);
  IREE_RETURN_IF_ERROR(iree_hal_device_transfer_d2h(
      program->devices[0], iree_hal_buffer_view_buffer(view), 0, values, (iree_device_size_t)count * sizeof(float),
      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout()));
  *out_view = view;
  return iree_ok_status();
}

static void discard(pending_t* pending) {
  iree_vm_list_release(pending->outputs);
  iree_hal_semaphore_release(pending->ready);
  iree_hal_semaphore_release(pending->done);
}

// A tensor on a device, of numbers or, without any, of bytes that are zero.
static iree_status_t tensor(iree_hal_device_t* device, int rank, const iree_hal_dim_t* shape, const float* values,
                            iree_hal_buffer_view_t** out) {
  const iree_hal_buffer_params_t params = {
      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
      .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
  };
  iree_device_size_t length = values ? sizeof(float) : 1;
  for (int i = 0; i < rank; ++i) length *= (iree_device_size_t)shape[i];
  void* zeros = NULL;
  if (!values) {
    IREE_RETURN_IF_ERROR(iree_allocator_malloc(iree_allocator_system(), length, &zeros));
  }
  iree_status_t status = iree_hal_buffer_view_allocate_buffer_copy(
      device, iree_hal_device_allocator(device), (iree_host_size_t)rank, shape,
      values ? IREE_HAL_ELEMENT_TYPE_FLOAT_32 : IREE_HAL_ELEMENT_TYPE_INT_8, IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
      params, iree_make_const_byte_span(values ? values : zeros, length), out);
  iree_allocator_free(iree_allocator_system(), zeros);
  return status;
}

static bool is_same_memory(iree_hal_buffer_view_t* one, iree_hal_buffer_view_t* other) {
  iree_hal_buffer_t* first = iree_hal_buffer_view_buffer(one);
  iree_hal_buffer_t* second = iree_hal_buffer_view_buffer(other);
  return iree_hal_buffer_allocated_buffer(first) == iree_hal_buffer_allocated_buffer(second) &&
         iree_hal_buffer_byte_offset(first) == iree_hal_buffer_byte_offset(second);
}

// The result of `into` is in the memory that the program gives, and not only a copy of it.
static iree_status_t result_in_memory_of_the_program(const program_t* program, iree_hal_device_t* other, int* wrong) {
  const iree_hal_dim_t shape[1] = {4};
  const float x[4] = {1, 2, 3, 4};
  const float nothing[4] = {0};
  iree_hal_buffer_view_t* views[2] = {NULL, NULL};
  pending_t pending = {0};
  float values[4] = {0};
  iree_hal_buffer_view_t* result = NULL;
  iree_status_t status = tensor(program->devices[0], 1, shape, x, &views[0]);
  if (iree_status_is_ok(status)) status = tensor(program->devices[0], 1, shape, nothing, &views[1]);
  if (iree_status_is_ok(status)) status = begin(program, other, "module.into", views, 2, &pending);
  if (iree_status_is_ok(status)) status = finish(program, "into", &pending, values, 4, &result, wrong);
  if (iree_status_is_ok(status)) {
    for (int i = 0; i < 4; ++i) *wrong += values[i] != 2 * x[i];
    const bool is_given = is_same_memory(result, views[1]);
    *wrong += !is_given;
    printf("the result is %s the memory that was given\n", is_given ? "in" : "not in");
  }
  discard(&pending);
  iree_hal_buffer_view_release(views[0]);
  iree_hal_buffer_view_release(views[1]);
  return status;
}

// The steps of `on_queues` are on two queues of one device.
static iree_status_t work_on_two_queues(const program_t* program, iree_hal_device_t* other, int* wrong) {
  const iree_hal_dim_t shape[1] = {4};
  const float x[4] = {0, 1, 2, 3};
  iree_hal_buffer_view_t* view = NULL;
  pending_t pending = {0};
  float values[4] = {0};
  iree_hal_buffer_view_t* result = NULL;
  iree_status_t status = tensor(program->devices[0], 1, shape, x, &view);
  if (iree_status_is_ok(status)) status = begin(program, other, "module.on_queues", &view, 1, &pending);
  if (iree_status_is_ok(status)) status = finish(program, "on_queues", &pending, values, 4, &result, wrong);
  if (iree_status_is_ok(status)) {
    for (int i = 0; i < 4; ++i) *wrong += values[i] != 4 * x[i] * x[i];
    printf("one call worked on two queues\n");
  }
  discard(&pending);
  iree_hal_buffer_view_release(view);
  return status;
}

// The bytes of the workspace that `cube` needs, which its module knows.
static iree_status_t workspace_size(const program_t* program, iree_hal_buffer_view_t* x, int64_t* out_size) {
  const iree_hal_dim_t one[1] = {1};
  iree_hal_buffer_view_t* views[2] = {x, NULL};
  IREE_RETURN_IF_ERROR(tensor(program->devices[0], 1, one, NULL, &views[1]));
  pending_t pending = {0};
  iree_status_t status = begin(program, program->devices[0], "module.cube_transients_size", views, 2, &pending);
  iree_vm_value_t value = iree_vm_value_make_i64(0);
  if (iree_status_is_ok(status)) {
    status = iree_vm_list_get_value_as(pending.outputs, 0, IREE_VM_VALUE_TYPE_I64, &value);
  }
  *out_size = value.i64;
  discard(&pending);
  iree_hal_buffer_view_release(views[1]);
  return status;
}

// What `cube` keeps between its steps is in memory of the program's.
static iree_status_t workspace_of_the_program(const program_t* program, iree_hal_device_t* other, int* wrong) {
  enum { SIDE = 64 };
  static float values[SIDE * SIDE];
  const iree_hal_dim_t shape[2] = {SIDE, SIDE};
  for (int i = 0; i < SIDE; ++i) values[i * SIDE + i] = 2;
  iree_hal_buffer_view_t* views[2] = {NULL, NULL};
  pending_t pending = {0};
  iree_hal_buffer_view_t* result = NULL;
  int64_t size = 0;
  uint8_t* used = NULL;
  iree_status_t status = tensor(program->devices[0], 2, shape, values, &views[0]);
  if (iree_status_is_ok(status)) status = workspace_size(program, views[0], &size);
  const iree_hal_dim_t bytes[1] = {(iree_hal_dim_t)size};
  if (iree_status_is_ok(status)) status = tensor(program->devices[0], 1, bytes, NULL, &views[1]);
  if (iree_status_is_ok(status)) status = begin(program, other, "module.cube", views, 2, &pending);
  if (iree_status_is_ok(status)) {
    status = finish(program, "cube", &pending, values, SIDE * SIDE, &result, wrong);
  }
  if (iree_status_is_ok(status)) {
    for (int i = 0; i < SIDE * SIDE; ++i) *wrong += values[i] != (i % (SIDE + 1) == 0 ? 32 : 0);
    status = iree_allocator_malloc(iree_allocator_system(), (iree_host_size_t)size, (void**)&used);
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_device_transfer_d2h(program->devices[0], iree_hal_buffer_view_buffer(views[1]), 0, used,
                                          (iree_device_size_t)size, IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT,
                                          iree_infinite_timeout());
  }
  if (iree_status_is_ok(status)) {
    bool is_used = false;
    for (int64_t i = 0; i < size; ++i) is_used |= used[i] != 0;
    *wrong += !is_used;
    printf("the steps between are %s the workspace of %d bytes\n", is_used ? "in" : "not in", (int)size);
  }
  iree_allocator_free(iree_allocator_system(), used);
  discard(&pending);
  iree_hal_buffer_view_release(views[0]);
  iree_hal_buffer_view_release(views[1]);
  return status;
}

// `main` of the other module works on three devices in turn.
static iree_status_t work_on_three_devices(const program_t* program, int* wrong) {
  enum { COUNT = 1024 };
  static float x[COUNT], y[COUNT], values[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    x[i] = 0.25f * (float)i;
    y[i] = (float)(i % 7);
  }
  const iree_hal_dim_t shape[1] = {COUNT};
  iree_hal_buffer_view_t* views[2] = {NULL, NULL};
  pending_t pending = {0};
  iree_hal_buffer_view_t* result = NULL;
  iree_status_t status = tensor(program->devices[0], 1, shape, x, &views[0]);
  if (iree_status_is_ok(status)) status = tensor(program->devices[0], 1, shape, y, &views[1]);
  if (iree_status_is_ok(status)) {
    status = begin(program, program->devices[program->device_count - 1], "module.main", views, 2, &pending);
  }
  if (iree_status_is_ok(status)) status = finish(program, "main", &pending, values, COUNT, &result, wrong);
  if (iree_status_is_ok(status)) {
    for (int i = 0; i < COUNT; ++i) {
      const float sum = x[i] + y[i];
      *wrong += values[i] != 2 * (sum * sum) - x[i];
    }
    printf("one call worked on three devices\n");
  }
  discard(&pending);
  iree_hal_buffer_view_release(views[0]);
  iree_hal_buffer_view_release(views[1]);
  return status;
}

static iree_status_t open_device(iree_async_proactor_pool_t* pool, const char* uri, iree_hal_device_t** out_device) {
  iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
  params.proactor_pool = pool;
  return iree_hal_create_device(iree_hal_driver_registry_default(), iree_make_cstring_view(uri), &params,
                                iree_allocator_system(), out_device);
}

static iree_status_t run(iree_vm_instance_t* instance, char** modules, const char* const* uris, int* wrong) {
  program_t single = {.device_count = 1}, several = {.device_count = DEVICES};
  iree_async_proactor_pool_t* pool = NULL;
  IREE_RETURN_IF_ERROR(iree_async_proactor_pool_create(1, /*node_ids=*/NULL, iree_async_proactor_pool_options_default(),
                                                       iree_allocator_system(), &pool));
  iree_status_t status = open_device(pool, uris[0], &single.devices[0]);
  for (int i = 0; i < DEVICES && iree_status_is_ok(status); ++i) {
    status = open_device(pool, uris[i], &several.devices[i]);
  }
  iree_async_proactor_pool_release(pool);
  iree_hal_device_t* other = several.devices[DEVICES - 1];
  if (iree_status_is_ok(status)) status = load(instance, modules[0], &single);
  if (iree_status_is_ok(status)) status = load(instance, modules[1], &several);
  if (iree_status_is_ok(status)) status = result_in_memory_of_the_program(&single, other, wrong);
  if (iree_status_is_ok(status)) status = work_on_two_queues(&single, other, wrong);
  if (iree_status_is_ok(status)) status = workspace_of_the_program(&single, other, wrong);
  if (iree_status_is_ok(status)) status = work_on_three_devices(&several, wrong);
  iree_vm_context_release(single.context);
  iree_vm_context_release(several.context);
  iree_hal_device_release(single.devices[0]);
  for (int i = 0; i < DEVICES; ++i) iree_hal_device_release(several.devices[i]);
  return status;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s PLACEMENT.vmfb DEVICES.vmfb [DEVICE [SECOND THIRD]]\n", argv[0]);
    return 2;
  }
  const char* uris[DEVICES] = {"mock://0?queues=2", "mock://1", "mock://0"};
  for (int i = 0; i < DEVICES && i + 3 < argc; ++i) uris[i] = argv[i + 3];
  int wrong = 0;
  iree_vm_instance_t* instance = NULL;
  iree_status_t status = hal_drivers_register_all(iree_hal_driver_registry_default());
  if (iree_status_is_ok(status)) {
    status = iree_vm_instance_create(IREE_VM_TYPE_CAPACITY_DEFAULT, iree_allocator_system(), &instance);
  }
  if (iree_status_is_ok(status)) status = iree_hal_module_register_all_types(instance);
  if (iree_status_is_ok(status)) status = run(instance, argv + 1, uris, &wrong);
  iree_vm_instance_release(instance);
  if (!iree_status_is_ok(status)) {
    iree_status_fprint(stderr, status);
    iree_status_free(status);
    return 1;
  }
  printf("%d values or answers are wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
