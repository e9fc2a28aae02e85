// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Times calls of a module's function on one device: `cargo xtask bench --latency` runs it on several in turns.
//
//   hal_latency --device=URI --module=FILE --function=NAME [--input=…] [--warm_up=N] [--calls=N] [--in_flight=N]
//
// Flags are those of iree-run-module. Inputs are on the device before the clock runs, and results stay there. First
// calls one after the other, each to its end: a line with the nanoseconds of each. Then as many at once as
// --in_flight says, where the function takes fences: a line with the nanoseconds of all of them together.

#include <stdio.h>
#include <string.h>

#include "iree/base/api.h"
#include "iree/base/tooling/flags.h"
#include "iree/hal/api.h"
#include "iree/tooling/context_util.h"
#include "iree/tooling/function_io.h"
#include "iree/tooling/function_util.h"
#include "iree/vm/api.h"

IREE_FLAG(string, function, "", "Name of the exported function to call.");
IREE_FLAG_LIST(string, input, "An input, as for iree-run-module.");
IREE_FLAG(int32_t, warm_up, 20, "Calls before the clock runs.");
IREE_FLAG(int32_t, calls, 200, "Calls that are timed.");
IREE_FLAG(int32_t, in_flight, 8, "Calls that are under way at once, for functions that take fences.");

enum { MOST_IN_FLIGHT = 256 };

// What is called, with its inputs on the device.
typedef struct {
  iree_vm_context_t* context;
  iree_hal_device_list_t* devices;
  iree_hal_allocator_t* allocator;
  iree_vm_function_t function;
  iree_vm_list_t* inputs;
} program_t;

// A call that may be under way: its results, and the fence of a function that takes fences.
typedef struct {
  iree_vm_list_t* outputs;
  iree_hal_fence_t* fence;
} call_t;

static iree_hal_device_t* device_of(const program_t* program) {
  return program->devices ? iree_hal_device_list_at(program->devices, 0) : NULL;
}

static void unload(program_t* program) {
  iree_vm_list_release(program->inputs);
  iree_vm_context_release(program->context);
  iree_hal_allocator_release(program->allocator);
  iree_hal_device_list_free(program->devices);
}

// Loads what the flags name. Whatever was loaded when something goes wrong is the caller's to unload.
static iree_status_t load(iree_vm_instance_t* instance, program_t* program) {
  iree_allocator_t host = iree_allocator_system();
  iree_tooling_module_list_t modules;
  iree_tooling_module_list_initialize(&modules);
  iree_status_t status = iree_tooling_load_modules_from_flags(instance, host, &modules);
  iree_vm_module_t* module = iree_tooling_module_list_back(&modules);
  if (iree_status_is_ok(status) && !module) {
    status = iree_make_status(IREE_STATUS_INVALID_ARGUMENT, "no module: name one with --module=FILE");
  }
  iree_hal_replay_recorder_t* recorder = NULL;
  if (iree_status_is_ok(status)) {
    status = iree_tooling_create_context_from_flags(instance, modules.count, modules.values,
                                                    /*default_device_uri=*/iree_string_view_empty(), host,
                                                    &program->context, &program->devices, &program->allocator,
                                                    &recorder);
  }
  if (iree_status_is_ok(status)) {
    status = iree_vm_module_lookup_function_by_name(module, IREE_VM_FUNCTION_LINKAGE_EXPORT,
                                                    iree_make_cstring_view(FLAG_function), &program->function);
  }
  iree_tooling_module_list_reset(&modules);
  if (!iree_status_is_ok(status)) return status;
  iree_string_view_t arguments, results;
  iree_vm_function_signature_t signature = iree_vm_function_signature(&program->function);
  IREE_RETURN_IF_ERROR(iree_vm_function_call_get_cconv_fragments(&signature, &arguments, &results));
  return iree_tooling_parse_variants(arguments, FLAG_input_list(), device_of(program), program->allocator, host,
                                     &program->inputs);
}

// Begins a call, and ends it too where the function takes no fences.
static iree_status_t begin(const program_t* program, call_t* call) {
  iree_allocator_t host = iree_allocator_system();
  iree_vm_list_t* inputs = NULL;
  IREE_RETURN_IF_ERROR(iree_vm_list_clone(program->inputs, host, &inputs));
  iree_status_t status = iree_tooling_append_async_fences(inputs, program->function, device_of(program),
                                                          /*wait_fence=*/NULL, &call->fence);
  if (iree_status_is_ok(status)) {
    status = iree_vm_invoke(program->context, program->function, IREE_VM_INVOCATION_FLAG_NONE, /*policy=*/NULL, inputs,
                            call->outputs, host);
  }
  iree_vm_list_release(inputs);
  return status;
}

// Waits for a call, and lets go of its results.
static iree_status_t finish(call_t* call) {
  iree_status_t status = iree_ok_status();
  if (call->fence) {
    status = iree_hal_fence_wait(call->fence, iree_infinite_timeout(), IREE_ASYNC_WAIT_FLAG_NONE);
    if (!iree_status_is_ok(status)) {
      // A wait for a fence answers with the code alone; a query says why.
      iree_status_free(status);
      status = iree_hal_fence_query(call->fence);
    }
    iree_hal_fence_release(call->fence);
    call->fence = NULL;
  }
  iree_vm_list_clear(call->outputs);
  return status;
}

// One call after the other.
static iree_status_t in_turn(const program_t* program, call_t* call) {
  for (int i = 0; i < FLAG_warm_up; ++i) {
    IREE_RETURN_IF_ERROR(begin(program, call));
    IREE_RETURN_IF_ERROR(finish(call));
  }
  printf("latencies");
  for (int i = 0; i < FLAG_calls; ++i) {
    iree_time_t start = iree_time_now();
    IREE_RETURN_IF_ERROR(begin(program, call));
    IREE_RETURN_IF_ERROR(finish(call));
    printf(" %lld", (long long)(iree_time_now() - start));
  }
  printf("\n");
  return iree_ok_status();
}

// Several at once, each place taken again as soon as its call has ended.
static iree_status_t at_once(const program_t* program, call_t* calls, int count) {
  iree_time_t start = iree_time_now();
  for (int i = 0; i < FLAG_calls; ++i) {
    call_t* call = &calls[i % count];
    if (i >= count) {
      IREE_RETURN_IF_ERROR(finish(call));
    }
    IREE_RETURN_IF_ERROR(begin(program, call));
  }
  for (int i = 0; i < count; ++i) {
    IREE_RETURN_IF_ERROR(finish(&calls[i]));
  }
  printf("at once %d %lld\n", FLAG_calls, (long long)(iree_time_now() - start));
  return iree_ok_status();
}

static iree_status_t run(iree_vm_instance_t* instance) {
  if (FLAG_calls < 1 || FLAG_in_flight < 1 || FLAG_in_flight > MOST_IN_FLIGHT) {
    return iree_make_status(IREE_STATUS_OUT_OF_RANGE, "--calls is at least 1, and --in_flight 1 to %d",
                            (int)MOST_IN_FLIGHT);
  }
  program_t program = {0};
  static call_t calls[MOST_IN_FLIGHT];
  iree_status_t status = load(instance, &program);
  for (int i = 0; iree_status_is_ok(status) && i < FLAG_in_flight; ++i) {
    status = iree_vm_list_create(iree_vm_make_undefined_type_def(), 4, iree_allocator_system(), &calls[i].outputs);
  }
  if (iree_status_is_ok(status)) status = in_turn(&program, &calls[0]);
  int in_flight = FLAG_in_flight < FLAG_calls ? FLAG_in_flight : FLAG_calls;
  if (iree_status_is_ok(status)) status = at_once(&program, calls, in_flight);
  for (int i = 0; i < FLAG_in_flight; ++i) {
    iree_hal_fence_release(calls[i].fence);
    iree_vm_list_release(calls[i].outputs);
  }
  unload(&program);
  return status;
}

int main(int argc, char** argv) {
  iree_flags_parse_checked(IREE_FLAGS_PARSE_MODE_DEFAULT, &argc, &argv);
  iree_vm_instance_t* instance = NULL;
  iree_status_t status = iree_tooling_create_instance(iree_allocator_system(), &instance);
  if (iree_status_is_ok(status)) status = run(instance);
  iree_vm_instance_release(instance);
  if (iree_status_is_ok(status)) return 0;
  iree_status_fprint(stderr, status);
  iree_status_free(status);
  return 1;
}
