// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A program that runs one compiled module on several devices, each a rank of one group.
//
//   ranks MODULE.vmfb FUNCTION DEVICE[,DEVICE...] [INPUT...]
//
// The devices form a device group, so the channels that the module makes are ranks of it. Each rank has a session and a
// thread of its own, as a call returns when its shard is done, and a shard waits for the others. An input is written as
// for iree-run-module; `{rank}` in it stands for the number of the rank that it is for.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hal_drivers.h"
#include "iree/async/frontier_tracker.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/base/threading/numa.h"
#include "iree/modules/hal/module.h"
#include "iree/runtime/api.h"
#include "iree/tooling/function_io.h"
#include "iree/tooling/function_util.h"

enum { MAX_RANKS = 16, MAX_INPUTS = 16, MAX_ELEMENTS = 65536 };

// The call of one rank, and its outcome.
typedef struct {
  int number;
  const char* module;
  const char* function;
  int input_count;
  char** inputs;
  iree_runtime_instance_t* instance;
  iree_hal_device_t* device;
  pthread_t thread;
  iree_status_t status;
  iree_string_builder_t results;
} rank_t;

// A text with the rank's number in the place of `{rank}`, owned by the caller.
static char* expand(const char* text, int rank) {
  static const char kName[] = "{rank}";
  size_t capacity = strlen(text) + 16, length = 0;
  for (const char* at = text; (at = strstr(at, kName)); ++at) capacity += 16;
  char* expanded = malloc(capacity);
  if (!expanded) abort();
  for (const char* at = text; *at;) {
    if (strncmp(at, kName, sizeof(kName) - 1) == 0) {
      length += (size_t)snprintf(expanded + length, capacity - length, "%d", rank);
      at += sizeof(kName) - 1;
    } else {
      expanded[length++] = *at++;
    }
  }
  expanded[length] = 0;
  return expanded;
}

// Makes the arguments of a function, calls it, and formats what it returns.
static iree_status_t call(rank_t* rank, iree_runtime_session_t* session) {
  iree_allocator_t allocator = iree_allocator_system();
  IREE_RETURN_IF_ERROR(iree_runtime_session_append_bytecode_module_from_file(session, rank->module));
  iree_vm_function_t function;
  IREE_RETURN_IF_ERROR(iree_runtime_session_lookup_function(
      session, iree_make_cstring_view(rank->function), &function));
  iree_vm_function_signature_t signature = iree_vm_function_signature(&function);
  iree_string_view_t arguments, results;
  IREE_RETURN_IF_ERROR(iree_vm_function_call_get_cconv_fragments(&signature, &arguments, &results));

  char* texts[MAX_INPUTS];
  iree_string_view_t views[MAX_INPUTS];
  for (int i = 0; i < rank->input_count; ++i) {
    texts[i] = expand(rank->inputs[i], rank->number);
    views[i] = iree_make_cstring_view(texts[i]);
  }
  iree_string_view_list_t specs = {(iree_host_size_t)rank->input_count, views};
  iree_hal_allocator_t* device_allocator = iree_hal_device_allocator(rank->device);
  iree_vm_list_t *inputs = NULL, *outputs = NULL;
  iree_status_t status =
      iree_tooling_parse_variants(arguments, specs, rank->device, device_allocator, allocator, &inputs);
  for (int i = 0; i < rank->input_count; ++i) free(texts[i]);
  if (iree_status_is_ok(status)) {
    status = iree_vm_list_create(iree_vm_make_undefined_type_def(), 8, allocator, &outputs);
  }
  if (iree_status_is_ok(status)) status = iree_runtime_session_call(session, &function, inputs, outputs);
  if (iree_status_is_ok(status)) {
    iree_hal_buffer_params_t target = {
        .usage = IREE_HAL_BUFFER_USAGE_TRANSFER | IREE_HAL_BUFFER_USAGE_MAPPING,
        .type = IREE_HAL_MEMORY_TYPE_HOST_LOCAL | IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
    };
    status = iree_tooling_transfer_variants(outputs, rank->device, device_allocator, target, NULL, NULL);
  }
  if (iree_status_is_ok(status)) {
    status = iree_tooling_format_variants(IREE_SV("result"), outputs, MAX_ELEMENTS, &rank->results);
  }
  iree_vm_list_release(outputs);
  iree_vm_list_release(inputs);
  return status;
}

static void* run(void* argument) {
  rank_t* rank = argument;
  iree_runtime_session_options_t options;
  iree_runtime_session_options_initialize(&options);
  iree_runtime_session_t* session = NULL;
  rank->status = iree_runtime_session_create_with_device(rank->instance, &options, rank->device,
                                                         iree_allocator_system(), &session);
  if (iree_status_is_ok(rank->status)) rank->status = call(rank, session);
  iree_runtime_session_release(session);
  return NULL;
}

static iree_status_t open_devices(char* uris, rank_t* ranks, int* out_count, iree_hal_device_group_t** out_group) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_async_proactor_pool_t* pool = NULL;
  IREE_RETURN_IF_ERROR(iree_async_proactor_pool_create(iree_numa_node_count(), /*node_ids=*/NULL,
                                                       iree_async_proactor_pool_options_default(), allocator, &pool));
  iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
  params.proactor_pool = pool;
  iree_async_frontier_tracker_t* tracker = NULL;
  iree_status_t status =
      iree_async_frontier_tracker_create(iree_async_frontier_tracker_options_default(), allocator, &tracker);
  iree_hal_device_group_builder_t builder;
  if (iree_status_is_ok(status)) iree_hal_device_group_builder_initialize(&builder, tracker);
  for (char* uri = strtok(uris, ","); uri && iree_status_is_ok(status); uri = strtok(NULL, ",")) {
    if (*out_count == MAX_RANKS) {
      status = iree_make_status(IREE_STATUS_OUT_OF_RANGE, "more than %d devices", MAX_RANKS);
      break;
    }
    rank_t* rank = &ranks[(*out_count)++];
    status = iree_hal_create_device(iree_hal_driver_registry_default(), iree_make_cstring_view(uri), &params,
                                    allocator, &rank->device);
    if (iree_status_is_ok(status)) status = iree_hal_device_group_builder_add_device(&builder, rank->device);
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_device_group_builder_finalize(&builder, allocator, out_group);
  }
  iree_async_frontier_tracker_release(tracker);
  iree_async_proactor_pool_release(pool);
  return status;
}

int main(int argc, char** argv) {
  if (argc < 4 || argc - 4 > MAX_INPUTS) {
    fprintf(stderr, "usage: %s MODULE.vmfb FUNCTION DEVICE[,DEVICE...] [INPUT...]\n", argv[0]);
    return 2;
  }
  static rank_t ranks[MAX_RANKS];
  int count = 0;
  iree_hal_device_group_t* group = NULL;
  iree_runtime_instance_options_t options;
  iree_runtime_instance_options_initialize(&options);
  options.driver_registry = iree_hal_driver_registry_default();
  iree_runtime_instance_t* instance = NULL;
  iree_status_t status = iree_runtime_instance_create(&options, iree_allocator_system(), &instance);
  if (iree_status_is_ok(status)) status = iree_hal_mock_driver_module_register(options.driver_registry);
  if (iree_status_is_ok(status)) status = iree_hal_gaudi_driver_module_register(options.driver_registry);
  if (iree_status_is_ok(status)) status = iree_hal_qaic_driver_module_register(options.driver_registry);
  if (iree_status_is_ok(status)) status = open_devices(argv[3], ranks, &count, &group);

  int started = 0;
  for (; iree_status_is_ok(status) && started < count; ++started) {
    rank_t* rank = &ranks[started];
    rank->number = started;
    rank->module = argv[1];
    rank->function = argv[2];
    rank->input_count = argc - 4;
    rank->inputs = argv + 4;
    rank->instance = instance;
    iree_string_builder_initialize(iree_allocator_system(), &rank->results);
    if (pthread_create(&rank->thread, NULL, run, rank) != 0) {
      status = iree_make_status(IREE_STATUS_RESOURCE_EXHAUSTED, "no thread for rank %d", started);
      break;
    }
  }
  int failed = !iree_status_is_ok(status);
  for (int i = 0; i < started; ++i) {
    rank_t* rank = &ranks[i];
    pthread_join(rank->thread, NULL);
    if (iree_status_is_ok(rank->status)) {
      printf("rank %d:\n%.*s", i, (int)iree_string_builder_size(&rank->results),
             iree_string_builder_buffer(&rank->results));
    } else {
      failed = 1;
      fprintf(stderr, "rank %d: ", i);
      iree_status_fprint(stderr, rank->status);
      iree_status_free(rank->status);
    }
    iree_string_builder_deinitialize(&rank->results);
  }
  for (int i = 0; i < count; ++i) iree_hal_device_release(ranks[i].device);
  iree_hal_device_group_release(group);
  iree_runtime_instance_release(instance);
  if (!iree_status_is_ok(status)) {
    iree_status_fprint(stderr, status);
    iree_status_free(status);
  }
  return failed;
}
