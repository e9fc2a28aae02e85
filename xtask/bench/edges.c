// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// What an edge between two operations costs on several devices: the submission of it, and from the first submission
// until the host sees the last signal.
//
//   edges OUT.json ROUNDS TESTDATA DEVICE...
//
// An edge is an operation that waits for the operation before it. The rows ask what IREE's benchmark of its amdgpu
// queues asks: edges within a queue and between two, waits that are reached, semaphores that one producer signals on
// the device alone and semaphores of the default kind, barriers, copies, fills and dispatches behind waits, fan-out and
// fan-in, the first use and all later ones.
//
// In each round every row runs on every device in turn. Output is one JSON object for each row and device, in
// nanoseconds for each operation: medians of the rounds but the first, and the first round.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "iree/async/frontier_tracker.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/base/threading/numa.h"
#include "iree/hal/api.h"
#include "iree/hal/drivers/init.h"

#define CHECK(expr)                         \
  do {                                      \
    iree_status_t check_status = (expr);    \
    if (!iree_status_is_ok(check_status)) { \
      iree_status_abort(check_status);      \
    }                                       \
  } while (0)

enum { MAX_DEVICES = 8, MAX_ROUNDS = 64, FAN = 16 };

typedef struct {
  iree_hal_semaphore_t* semaphore;
  uint64_t value;  // The last one that is to be signalled.
} timeline_t;

typedef struct {
  const char* uri;
  iree_hal_device_t* device;
  iree_hal_device_group_t* group;
  timeline_t own[2], shared[2], fan[FAN], last;
  iree_hal_buffer_t* buffers[2];
  iree_hal_executable_cache_t* cache;
  iree_hal_executable_t* executable;  // NULL if the device runs no code of the host's.
} target_t;

typedef struct {
  double submit, total;  // Nanoseconds.
} cost_t;

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

// Semaphores that an operation waits for or signals.
typedef struct {
  iree_host_size_t count;
  iree_hal_semaphore_t* semaphores[FAN + 1];
  uint64_t values[FAN + 1];
} list_t;

static void add(list_t* list, const timeline_t* timeline, uint64_t value) {
  list->semaphores[list->count] = timeline->semaphore;
  list->values[list->count++] = value;
}

static void add_next(list_t* list, timeline_t* timeline) { add(list, timeline, ++timeline->value); }

static iree_hal_semaphore_list_t view(list_t* list) {
  return (iree_hal_semaphore_list_t){list->count, list->semaphores, list->values};
}

// ===-------------------------------------------------------------------------------------------------------------===//
// Operations
// ===-------------------------------------------------------------------------------------------------------------===//

typedef enum { BARRIER, COPY, FILL, DISPATCH } work_t;

enum { BYTES = 4096 };

static void submit(target_t* target, iree_hal_queue_affinity_t queue, work_t work, list_t* waits, list_t* signals) {
  iree_hal_semaphore_list_t before = view(waits), after = view(signals);
  const uint32_t pattern = 7;
  iree_hal_buffer_ref_t refs[2] = {iree_hal_make_buffer_ref(target->buffers[0], 0, 16),
                                   iree_hal_make_buffer_ref(target->buffers[1], 0, 16)};
  switch (work) {
    case BARRIER:
      CHECK(iree_hal_device_queue_barrier(target->device, queue, before, after, IREE_HAL_EXECUTE_FLAG_NONE));
      break;
    case COPY:
      CHECK(iree_hal_device_queue_copy(target->device, queue, before, after, target->buffers[0], 0, target->buffers[1],
                                       0, BYTES, IREE_HAL_COPY_FLAG_NONE));
      break;
    case FILL:
      CHECK(iree_hal_device_queue_fill(target->device, queue, before, after, target->buffers[1], 0, BYTES, &pattern,
                                       sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
      break;
    case DISPATCH:
      CHECK(iree_hal_device_queue_dispatch(target->device, queue, before, after, target->executable,
                                           iree_hal_executable_function_from_index(0),
                                           iree_hal_make_static_dispatch_config(1, 1, 1), iree_const_byte_span_empty(),
                                           (iree_hal_buffer_ref_list_t){2, refs}, IREE_HAL_DISPATCH_FLAG_NONE));
      break;
  }
}

static cost_t finish(target_t* target, double begin) {
  cost_t cost;
  cost.submit = now_ns() - begin;
  CHECK(iree_hal_semaphore_wait(target->last.semaphore, target->last.value, iree_infinite_timeout(),
                                IREE_ASYNC_WAIT_FLAG_NONE));
  cost.total = now_ns() - begin;
  return cost;
}

// ===-------------------------------------------------------------------------------------------------------------===//
// Rows: each does `count` operations
// ===-------------------------------------------------------------------------------------------------------------===//

// Operations without waits; the last one signals.
static cost_t independent(target_t* target, int count) {
  double begin = now_ns();
  for (int i = 0; i < count; ++i) {
    list_t waits = {0}, signals = {0};
    if (i == count - 1) add_next(&signals, &target->last);
    submit(target, 1, BARRIER, &waits, &signals);
  }
  return finish(target, begin);
}

// Each operation waits for the one before it, on the queues in turn. The last one also signals what the host waits for.
static cost_t chain(target_t* target, int count, work_t work, timeline_t* streams, bool alternates) {
  double begin = now_ns();
  for (int i = 0; i < count; ++i) {
    int here = alternates ? i % 2 : 0, before = alternates ? 1 - here : 0;
    list_t waits = {0}, signals = {0};
    if (i > 0) add(&waits, &streams[before], streams[before].value);
    add_next(&signals, &streams[here]);
    if (i == count - 1) add_next(&signals, &target->last);
    submit(target, here ? 2 : 1, work, &waits, &signals);
  }
  return finish(target, begin);
}

static cost_t one_queue(target_t* target, int count) { return chain(target, count, BARRIER, target->own, false); }
static cost_t two_queues(target_t* target, int count) { return chain(target, count, BARRIER, target->own, true); }
static cost_t two_shared(target_t* target, int count) { return chain(target, count, BARRIER, target->shared, true); }
static cost_t copies(target_t* target, int count) { return chain(target, count, COPY, target->own, true); }
static cost_t fills(target_t* target, int count) { return chain(target, count, FILL, target->own, true); }
static cost_t dispatches(target_t* target, int count) { return chain(target, count, DISPATCH, target->own, true); }

// Pairs: one queue makes a value that the other waits for, and goes on to the next one without waiting for the other.
static cost_t handoffs(target_t* target, int count) {
  double begin = now_ns();
  for (int i = 0; i < count; i += 2) {
    list_t before = {0}, value = {0}, signals = {0};
    // Not every driver keeps a queue in order by itself.
    if (i > 0) add(&before, &target->own[1], target->own[1].value);
    add_next(&value, &target->own[1]);
    submit(target, 2, BARRIER, &before, &value);
    if (i + 2 >= count) add_next(&signals, &target->last);
    submit(target, 1, BARRIER, &value, &signals);
  }
  return finish(target, begin);
}

// Waits for values of the other queue that are there.
static cost_t reached(target_t* target, int count) {
  list_t none = {0}, value = {0};
  add_next(&value, &target->own[1]);
  submit(target, 2, BARRIER, &none, &value);
  CHECK(iree_hal_semaphore_wait(target->own[1].semaphore, target->own[1].value, iree_infinite_timeout(),
                                IREE_ASYNC_WAIT_FLAG_NONE));
  double begin = now_ns();
  for (int i = 0; i < count; ++i) {
    list_t signals = {0};
    if (i == count - 1) add_next(&signals, &target->last);
    submit(target, 1, BARRIER, &value, &signals);
  }
  return finish(target, begin);
}

// One operation, then as many as there are in between that wait for it on the queues in turn, then one that waits for
// all of those.
static cost_t fan(target_t* target, int count) {
  double begin = now_ns();
  list_t none = {0}, first = {0}, all = {0}, last = {0};
  add_next(&first, &target->own[0]);
  submit(target, 1, BARRIER, &none, &first);
  for (int i = 0; i < count - 2; ++i) {
    list_t signals = {0};
    add_next(&signals, &target->fan[i]);
    add(&all, &target->fan[i], target->fan[i].value);
    submit(target, i % 2 ? 2 : 1, BARRIER, &first, &signals);
  }
  add_next(&last, &target->last);
  submit(target, 1, BARRIER, &all, &last);
  return finish(target, begin);
}

// A chain on two queues whose first value the host signals after everything is submitted.
static cost_t blocked(target_t* target, int count) {
  double begin = now_ns();
  uint64_t go = ++target->shared[1].value;
  for (int i = 0; i < count; ++i) {
    int here = i % 2;
    list_t waits = {0}, signals = {0};
    if (i == 0) add(&waits, &target->shared[1], go);
    if (i > 0) add(&waits, &target->own[1 - here], target->own[1 - here].value);
    add_next(&signals, &target->own[here]);
    if (i == count - 1) add_next(&signals, &target->last);
    submit(target, here ? 2 : 1, BARRIER, &waits, &signals);
  }
  double submitted = now_ns() - begin;
  CHECK(iree_hal_semaphore_signal(target->shared[1].semaphore, go, NULL));
  cost_t cost = finish(target, begin);
  cost.submit = submitted;
  return cost;
}

static const struct {
  const char* name;
  cost_t (*run)(target_t* target, int count);
  int count;
  bool needs_code;
} rows[] = {
    {"one barrier", independent, 1},
    {"barriers without waits", independent, 1000},
    {"edges, one queue", one_queue, 20},
    {"edges, one queue", one_queue, 1000},
    {"reached waits", reached, 20},
    {"one edge, two queues", two_queues, 2},
    {"edges, two queues", two_queues, 20},
    {"edges, two queues", two_queues, 1000},
    {"edges, two queues, shared semaphores", two_shared, 1000},
    {"edges, two queues, blocked at first", blocked, 1000},
    {"pairs of two queues", handoffs, 1000},
    {"fan-out and fan-in", fan, FAN + 2},
    {"copies of 4 KiB, two queues", copies, 32},
    {"fills of 4 KiB, two queues", fills, 32},
    {"dispatches, two queues", dispatches, 32, true},
};

enum { ROWS = IREE_ARRAYSIZE(rows) };

// ===-------------------------------------------------------------------------------------------------------------===//
// Devices
// ===-------------------------------------------------------------------------------------------------------------===//

static timeline_t timeline(target_t* target, iree_hal_queue_affinity_t queues, iree_hal_semaphore_flags_t flags) {
  timeline_t result = {0};
  CHECK(iree_hal_semaphore_create(target->device, queues, 0, flags, &result.semaphore));
  return result;
}

static void make_timelines(target_t* target) {
  const iree_hal_queue_affinity_t queues = 3;
  const iree_hal_semaphore_flags_t own = IREE_HAL_SEMAPHORE_FLAG_DEVICE_LOCAL | IREE_HAL_SEMAPHORE_FLAG_SINGLE_PRODUCER;
  for (int i = 0; i < 2; ++i) {
    target->own[i] = timeline(target, queues, own);
    target->shared[i] = timeline(target, IREE_HAL_QUEUE_AFFINITY_ANY, IREE_HAL_SEMAPHORE_FLAG_DEFAULT);
  }
  for (int i = 0; i < FAN; ++i) target->fan[i] = timeline(target, queues, own);
  target->last = timeline(target, IREE_HAL_QUEUE_AFFINITY_ANY, IREE_HAL_SEMAPHORE_FLAG_DEFAULT);
}

static void load(target_t* target, const char* testdata) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/llvm_cpu/command_buffer_dispatch_test.bin", testdata);
  FILE* file = fopen(path, "rb");
  if (!file) {
    fprintf(stderr, "there is no %s\n", path);
    exit(1);
  }
  static uint8_t data[1 << 20];
  iree_host_size_t length = fread(data, 1, sizeof(data), file);
  fclose(file);
  CHECK(iree_hal_executable_cache_create(target->device, iree_make_cstring_view("edges"), &target->cache));
  iree_hal_executable_params_t params;
  iree_hal_executable_params_initialize(&params);
  params.caching_mode = IREE_HAL_EXECUTABLE_CACHING_MODE_ALIAS_PROVIDED_DATA;
  params.executable_format = iree_make_cstring_view("embedded-elf-" IREE_ARCH);
  params.executable_data = iree_make_const_byte_span(data, length);
  const iree_hal_executable_caching_mode_t mode = params.caching_mode;
  if (!iree_hal_executable_cache_can_prepare_format(target->cache, mode, params.executable_format)) return;
  CHECK(iree_hal_executable_cache_prepare_executable(target->cache, &params, &target->executable));
}

static void open_target(target_t* target, const char* uri, const char* testdata) {
  target->uri = uri;
  iree_async_proactor_pool_t* pool = NULL;
  CHECK(iree_async_proactor_pool_create(iree_numa_node_count(), NULL, iree_async_proactor_pool_options_default(),
                                        iree_allocator_system(), &pool));
  iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
  params.proactor_pool = pool;
  CHECK(iree_hal_create_device(iree_hal_driver_registry_default(), iree_make_cstring_view(uri), &params,
                               iree_allocator_system(), &target->device));
  iree_async_proactor_pool_release(pool);
  iree_async_frontier_tracker_t* tracker = NULL;
  CHECK(iree_async_frontier_tracker_create(iree_async_frontier_tracker_options_default(), iree_allocator_system(),
                                           &tracker));
  CHECK(iree_hal_device_group_create_from_device(target->device, tracker, iree_allocator_system(), &target->group));
  iree_async_frontier_tracker_release(tracker);
  iree_hal_buffer_params_t memory = {
      .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
  };
  for (int i = 0; i < 2; ++i) {
    CHECK(iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(target->device), memory, BYTES,
                                             &target->buffers[i]));
  }
  load(target, testdata);
}

static void close_target(target_t* target) {
  iree_hal_executable_release(target->executable);
  iree_hal_executable_cache_release(target->cache);
  for (int i = 0; i < 2; ++i) iree_hal_buffer_release(target->buffers[i]);
  iree_hal_device_release(target->device);
  iree_hal_device_group_release(target->group);
}

static void release_timelines(target_t* target) {
  for (int i = 0; i < 2; ++i) {
    iree_hal_semaphore_release(target->own[i].semaphore);
    iree_hal_semaphore_release(target->shared[i].semaphore);
  }
  for (int i = 0; i < FAN; ++i) iree_hal_semaphore_release(target->fan[i].semaphore);
  iree_hal_semaphore_release(target->last.semaphore);
}

static int ascending(const void* a, const void* b) {
  double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

static double median(double* values, int count) {
  qsort(values, (size_t)count, sizeof(*values), ascending);
  return values[count / 2];
}

static bool can(target_t* target, int row) { return !rows[row].needs_code || target->executable; }

// Short rows are repeated, so that a round is more than a few readings of the clock. The first round has one.
static cost_t measure(target_t* target, int row, int round) {
  const int repeats = round == 0 || rows[row].count >= 200 ? 1 : 200 / rows[row].count;
  cost_t sum = {0, 0};
  for (int i = 0; i < repeats; ++i) {
    cost_t cost = rows[row].run(target, rows[row].count);
    sum.submit += cost.submit;
    sum.total += cost.total;
  }
  const double operations = (double)repeats * rows[row].count;
  return (cost_t){sum.submit / operations, sum.total / operations};
}

int main(int argc, char** argv) {
  const int rounds = argc < 5 ? 0 : atoi(argv[2]);
  if (rounds < 2 || rounds > MAX_ROUNDS) {
    fprintf(stderr, "usage: %s OUT.json ROUNDS TESTDATA DEVICE...; 2 to %d rounds\n", argv[0], MAX_ROUNDS);
    return 2;
  }
  FILE* out = fopen(argv[1], "w");
  if (!out) {
    fprintf(stderr, "cannot write %s\n", argv[1]);
    return 1;
  }
  CHECK(iree_hal_register_all_available_drivers(iree_hal_driver_registry_default()));
  static target_t targets[MAX_DEVICES];
  const int devices = argc - 4 < MAX_DEVICES ? argc - 4 : MAX_DEVICES;
  for (int d = 0; d < devices; ++d) open_target(&targets[d], argv[4 + d], argv[3]);
  for (int row = 0; row < ROWS; ++row) {
    static cost_t costs[MAX_DEVICES][MAX_ROUNDS];
    // The first round is the first use of these.
    for (int d = 0; d < devices; ++d) make_timelines(&targets[d]);
    for (int round = 0; round < rounds; ++round) {
      for (int d = 0; d < devices; ++d) {
        if (can(&targets[d], row)) costs[d][round] = measure(&targets[d], row, round);
      }
    }
    for (int d = 0; d < devices; ++d) {
      release_timelines(&targets[d]);
      if (!can(&targets[d], row)) continue;
      double submits[MAX_ROUNDS], totals[MAX_ROUNDS];
      for (int round = 1; round < rounds; ++round) {
        submits[round - 1] = costs[d][round].submit;
        totals[round - 1] = costs[d][round].total;
      }
      fprintf(out, "{\"row\":\"%s\",\"count\":%d,\"device\":\"%s\",\"submit\":%.1f,\"total\":%.1f,\"first\":%.1f}\n",
              rows[row].name, rows[row].count, targets[d].uri, median(submits, rounds - 1), median(totals, rounds - 1),
              costs[d][0].total);
    }
    fflush(out);
  }
  fclose(out);
  for (int d = 0; d < devices; ++d) close_target(&targets[d]);
  return 0;
}
