// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Six small programs that hang, and the report that says why (docs/programs.md, "When a program hangs").
//
//   hangs [NUMBER]
//
// Each does what programs do by mistake, waits for a moment for what never comes, and prints the report. Read that
// first, and then the program. All of them end, since a device that is released cancels what has not begun. The exit
// status says whether each report names the cause.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hal_drivers.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/base/threading/numa.h"
#include "iree/hal/api.h"

// What a program has: two devices, and semaphores.
typedef struct program_t {
  iree_hal_device_t* devices[2];
  iree_hal_buffer_t* buffers[2];
  iree_hal_semaphore_t* semaphores[3];
} program_t;

static iree_status_t fill(program_t* program, int device, iree_hal_queue_affinity_t queue,
                          iree_hal_semaphore_list_t waits, iree_hal_semaphore_list_t signals) {
  uint32_t pattern = 7;
  return iree_hal_device_queue_fill(program->devices[device], queue, waits, signals, program->buffers[device], 0, 64,
                                    &pattern, sizeof(pattern), IREE_HAL_FILL_FLAG_NONE);
}

#define LIST(semaphore, value) \
  ((iree_hal_semaphore_list_t){1, &program->semaphores[semaphore], (uint64_t[]){value}})
#define NOTHING ((iree_hal_semaphore_list_t){0, NULL, NULL})

// 1. The program signals 2, and the fill waits for 3.
static iree_status_t forgotten_signal(program_t* program) {
  IREE_RETURN_IF_ERROR(fill(program, 0, 1, LIST(0, 3), LIST(1, 1)));
  return iree_hal_semaphore_signal(program->semaphores[0], 2, NULL);
}

// 2. A fill past the end of its buffer is refused, and the program goes on without looking at the status.
static iree_status_t refused_submission(program_t* program) {
  uint32_t pattern = 7;
  iree_status_ignore(iree_hal_device_queue_fill(program->devices[0], 1, NOTHING, LIST(0, 1), program->buffers[0], 0,
                                                1 << 20, &pattern, sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
  return fill(program, 0, 1, LIST(0, 1), LIST(1, 1));
}

// 3. Two queues wait for each other.
static iree_status_t cycle(program_t* program) {
  IREE_RETURN_IF_ERROR(fill(program, 0, 1, LIST(0, 1), LIST(1, 1)));
  return fill(program, 0, 2, LIST(1, 1), LIST(0, 1));
}

// 4. Two devices do.
static iree_status_t cycle_of_devices(program_t* program) {
  IREE_RETURN_IF_ERROR(fill(program, 0, 1, LIST(2, 1), LIST(1, 1)));
  return fill(program, 1, 1, LIST(1, 1), LIST(2, 1));
}

// 5. The device takes its time: the second one has a latency of five seconds.
static iree_status_t slow_device(program_t* program) {
  IREE_RETURN_IF_ERROR(fill(program, 1, 1, NOTHING, LIST(2, 1)));
  return fill(program, 0, 1, LIST(2, 1), LIST(1, 1));
}

static iree_status_t blocks(void* user_data, const uint64_t arguments[4], iree_hal_host_call_context_t* context) {
  // It waits for what comes behind it until the program ends that, with a reference of its own: the program may release
  // its semaphores meanwhile.
  iree_hal_semaphore_t* semaphore = (iree_hal_semaphore_t*)user_data;
  iree_status_t status =
      iree_hal_semaphore_wait(semaphore, 1, iree_make_timeout_ms(60000), IREE_ASYNC_WAIT_FLAG_NONE);
  iree_hal_semaphore_release(semaphore);
  return status;
}

// 6. A host call waits for the operation that waits for it.
static iree_status_t host_call(program_t* program) {
  uint64_t arguments[4] = {0};
  iree_hal_host_call_t call = {blocks, program->semaphores[1]};
  iree_hal_semaphore_retain(program->semaphores[1]);
  iree_status_t status = iree_hal_device_queue_host_call(program->devices[0], 1, NOTHING, LIST(0, 1), call, arguments,
                                                         IREE_HAL_HOST_CALL_FLAG_NONE);
  if (!iree_status_is_ok(status)) iree_hal_semaphore_release(program->semaphores[1]);
  IREE_RETURN_IF_ERROR(status);
  return fill(program, 0, 1, LIST(0, 1), LIST(1, 1));
}

static const struct {
  const char* name;
  iree_status_t (*run)(program_t*);
  const char* cause;
} kPrograms[] = {
    {"a forgotten signal", forgotten_signal, "nobody has promised 3"},
    {"a refused submission", refused_submission, "nobody has promised 1"},
    {"a cycle", cycle, "a cycle"},
    {"a cycle of two devices", cycle_of_devices, "a cycle"},
    {"a device that does not answer", slow_device, "the device has had epoch 1"},
    {"a host call that waits for what waits for it", host_call, "the host has been at"},
};

static iree_status_t open(program_t* program) {
  static const char* kUris[] = {"mock://0?queues=2", "mock://1?queues=2&latency=5s"};
  iree_async_proactor_pool_t* pool = NULL;
  IREE_RETURN_IF_ERROR(iree_async_proactor_pool_create(iree_numa_node_count(), /*node_ids=*/NULL,
                                                       iree_async_proactor_pool_options_default(),
                                                       iree_allocator_system(), &pool));
  iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
  params.proactor_pool = pool;
  iree_status_t status = iree_ok_status();
  for (int i = 0; i < 2 && iree_status_is_ok(status); ++i) {
    status = iree_hal_create_device(iree_hal_driver_registry_default(), iree_make_cstring_view(kUris[i]), &params,
                                    iree_allocator_system(), &program->devices[i]);
    const iree_hal_buffer_params_t of_buffer = {
        .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
    };
    if (iree_status_is_ok(status)) {
      status = iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(program->devices[i]), of_buffer, 64,
                                                  &program->buffers[i]);
    }
  }
  // The third one is of the second device.
  for (int i = 0; i < 3 && iree_status_is_ok(status); ++i) {
    status = iree_hal_semaphore_create(program->devices[i / 2], IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                       IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &program->semaphores[i]);
  }
  iree_async_proactor_pool_release(pool);
  return status;
}

static void release(program_t* program) {
  for (int i = 0; i < 3; ++i) iree_hal_semaphore_release(program->semaphores[i]);
  for (int i = 0; i < 2; ++i) iree_hal_buffer_release(program->buffers[i]);
  for (int i = 0; i < 2; ++i) iree_hal_device_release(program->devices[i]);
}

static iree_status_t explain(const char* cause) {
  iree_string_builder_t builder;
  iree_string_builder_initialize(iree_allocator_system(), &builder);
  iree_status_t status = hal_drivers_stall_report(HAL_STALL_FORMAT_TEXT, &builder);
  if (iree_status_is_ok(status)) {
    fputs(iree_string_builder_buffer(&builder), stdout);
    if (!strstr(iree_string_builder_buffer(&builder), cause)) {
      status = iree_make_status(IREE_STATUS_INTERNAL, "the report does not say: %s", cause);
    }
  }
  iree_string_builder_deinitialize(&builder);
  return status;
}

static iree_status_t run(int number) {
  printf("%d. %s\n", number + 1, kPrograms[number].name);
  program_t program = {0};
  iree_status_t status = open(&program);
  if (iree_status_is_ok(status)) status = kPrograms[number].run(&program);
  if (iree_status_is_ok(status)) {
    status = iree_hal_semaphore_wait(program.semaphores[1], 1, iree_make_timeout_ms(200), IREE_ASYNC_WAIT_FLAG_NONE);
    // It did not come.
    if (iree_status_is_deadline_exceeded(status)) {
      iree_status_ignore(status);
      status = explain(kPrograms[number].cause);
    }
  }
  if (program.semaphores[1]) {
    iree_hal_semaphore_fail(program.semaphores[1], iree_make_status(IREE_STATUS_CANCELLED, "it hangs"));
  }
  release(&program);
  return status;
}

int main(int argc, char** argv) {
  const int count = (int)IREE_ARRAYSIZE(kPrograms), only = argc > 1 ? atoi(argv[1]) : 0;
  if (argc > 2 || only < 0 || only > count) {
    fprintf(stderr, "hangs [NUMBER], from 1 to %d\n", count);
    return EXIT_FAILURE;
  }
  iree_status_t status = hal_drivers_register_all(iree_hal_driver_registry_default());
  for (int number = 0; number < count && iree_status_is_ok(status); ++number) {
    if (only == 0 || number == only - 1) status = run(number);
  }
  if (!iree_status_is_ok(status)) iree_status_fprint(stderr, status);
  iree_status_ignore(status);
  return iree_status_is_ok(status) ? EXIT_SUCCESS : EXIT_FAILURE;
}
