// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// The same work on several devices, side by side: what each operation costs.
//
//   bench OUT.json ROUNDS SCALE TESTDATA MODULES DEVICE...
//
// Each round runs every case on every device in turn, so that what disturbs the machine disturbs all of them. The
// median of the rounds is what counts. After them each case runs once more while heap allocations are counted:
// everything is warm by then, so what is counted is what an operation costs for good. Output is one JSON object for
// each case and device.
//
// HAL_BENCH_ONLY=TEXT picks the cases with TEXT in their name. HAL_BENCH_COMPANY=NAME measures only the small cases,
// and appends "@NAME" to their names; HAL_BENCH_PROCESSORS=N then pins the process to its first N processors, and
// HAL_BENCH_NEIGHBOURS=N starts N processes that spin on those processors for as long as the cases run.

#define _GNU_SOURCE

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "iree/async/frontier_tracker.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/base/threading/notification.h"
#include "iree/base/threading/numa.h"
#include "iree/hal/api.h"
#include "iree/hal/drivers/init.h"
#include "iree/hal/memory/cpu_slab_provider.h"
#include "iree/hal/memory/tlsf_pool.h"
#include "iree/runtime/api.h"

#define CHECK(expr)                          \
  do {                                       \
    iree_status_t check_status = (expr);     \
    if (!iree_status_is_ok(check_status)) {  \
      iree_status_abort(check_status);       \
    }                                        \
  } while (0)

enum { MAX_DEVICES = 8, MAX_ROUNDS = 64, MAX_CASES = 64 };

// ===-------------------------------------------------------------------------------------------------------------===//
// The heap, counted: everybody's calls come through here
// ===-------------------------------------------------------------------------------------------------------------===//

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* pointer, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* pointer);

static bool counting = false;
static bool cold = false;  // What was kept for later is given back before bytes are counted.
static atomic_size_t allocations;
static atomic_llong live;

static void* counted(void* pointer) {
  if (counting && pointer) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&live, (long long)malloc_usable_size(pointer), memory_order_relaxed);
  }
  return pointer;
}

static void uncounted(void* pointer) {
  if (counting && pointer) {
    atomic_fetch_sub_explicit(&live, (long long)malloc_usable_size(pointer), memory_order_relaxed);
  }
}

void* malloc(size_t size) { return counted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }
void* realloc(void* pointer, size_t size) {
  uncounted(pointer);
  return counted(__libc_realloc(pointer, size));
}
void* memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out ? 0 : 12;  // ENOMEM
}
void free(void* pointer) {
  uncounted(pointer);
  __libc_free(pointer);
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

typedef struct {
  const char* uri;
  iree_hal_device_t* device;
  iree_hal_device_group_t* group;
  iree_runtime_session_t* session;
  iree_hal_executable_cache_t* cache;
  iree_hal_executable_t* executable;
  bool defers;  // Whether work may wait for a signal that comes later.
} target_t;

static iree_runtime_instance_t* instance = NULL;
static const char* testdata = NULL;
static const char* modules = NULL;
static double scale = 1.0;

static iree_host_size_t operations = 1;  // How many the last case did.
static double held_bytes = 0;            // The heap that each of its operations held while all of them waited.

static double per_operation(double begin, iree_host_size_t count) {
  operations = count;
  return (now_ns() - begin) / (double)count;
}

static iree_host_size_t scaled(iree_host_size_t count) {
  double value = (double)count * scale;
  return value < 16 ? 16 : (iree_host_size_t)value;
}

// ===-------------------------------------------------------------------------------------------------------------===//
// Small helpers
// ===-------------------------------------------------------------------------------------------------------------===//

static iree_hal_semaphore_t* semaphore(target_t* target) {
  iree_hal_semaphore_t* result = NULL;
  CHECK(iree_hal_semaphore_create(target->device, IREE_HAL_QUEUE_AFFINITY_ANY, 0, IREE_HAL_SEMAPHORE_FLAG_DEFAULT,
                                  &result));
  return result;
}

static void wait_for(iree_hal_semaphore_t* semaphore, uint64_t value) {
  CHECK(iree_hal_semaphore_wait(semaphore, value, iree_infinite_timeout(), IREE_ASYNC_WAIT_FLAG_NONE));
}

static iree_hal_semaphore_list_t one(iree_hal_semaphore_t** semaphore, uint64_t* value) {
  return (iree_hal_semaphore_list_t){1, semaphore, value};
}

static iree_hal_buffer_params_t device_params(void) {
  return (iree_hal_buffer_params_t){
      .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
  };
}

static iree_hal_buffer_t* buffer(target_t* target, iree_device_size_t length) {
  iree_hal_buffer_t* result = NULL;
  CHECK(iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(target->device), device_params(), length,
                                           &result));
  return result;
}

// ===-------------------------------------------------------------------------------------------------------------===//
// Cases: each returns nanoseconds for one operation, or a negative number where the device cannot do it
// ===-------------------------------------------------------------------------------------------------------------===//

typedef double (*case_fn_t)(target_t* target);

static double submit_ns = 0;  // What of the last chain was spent in its submissions.

static double chain(target_t* target, iree_hal_queue_affinity_t even, iree_hal_queue_affinity_t odd) {
  const iree_host_size_t count = scaled(10000);
  iree_hal_semaphore_t* timeline = semaphore(target);
  double begin = now_ns();
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t wait = i, signal = i + 1;
    iree_hal_semaphore_list_t waits = one(&timeline, &wait), signals = one(&timeline, &signal);
    if (i == 0) waits.count = 0;
    CHECK(iree_hal_device_queue_barrier(target->device, i % 2 ? odd : even, waits, signals,
                                        IREE_HAL_EXECUTE_FLAG_NONE));
  }
  submit_ns = (now_ns() - begin) / (double)count;
  wait_for(timeline, count);
  double total = per_operation(begin, count);
  iree_hal_semaphore_release(timeline);
  return total;
}

static double chain_same_queue(target_t* target) { return chain(target, 1, 1); }
static double chain_same_queue_submit(target_t* target) {
  chain(target, 1, 1);
  return submit_ns;
}
static double chain_cross_queue(target_t* target) { return chain(target, 1, 2); }

static double held(target_t* target, iree_host_size_t count) {
  if (!target->defers) return -1;
  iree_hal_semaphore_t* timeline = semaphore(target);
  if (cold) CHECK(iree_hal_device_trim(target->device));
  const long long before = atomic_load(&live);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t wait = i + 1, signal = i + 2;
    CHECK(iree_hal_device_queue_barrier(target->device, 1, one(&timeline, &wait), one(&timeline, &signal),
                                        IREE_HAL_EXECUTE_FLAG_NONE));
  }
  held_bytes = (double)(atomic_load(&live) - before) / (double)count;
  double begin = now_ns();
  CHECK(iree_hal_semaphore_signal(timeline, 1, NULL));
  wait_for(timeline, count + 1);
  double total = per_operation(begin, count);
  iree_hal_semaphore_release(timeline);
  return total;
}

// A million operations that wait, in chains of 64, since one chain of that length takes local-task hours.
static double held_1m_in_chains(target_t* target) {
  if (!target->defers || scale < 1) return -1;
  enum { LENGTH = 64, CHAINS = 1000000 / LENGTH };
  iree_hal_semaphore_t** chains = (iree_hal_semaphore_t**)malloc(CHAINS * sizeof(*chains));
  iree_hal_semaphore_t* go = semaphore(target);
  for (int c = 0; c < CHAINS; ++c) chains[c] = semaphore(target);
  if (cold) CHECK(iree_hal_device_trim(target->device));
  const long long before = atomic_load(&live);
  double begin = now_ns();
  for (int c = 0; c < CHAINS; ++c) {
    for (uint64_t i = 0; i < LENGTH; ++i) {
      uint64_t wait = i == 0 ? 1 : i, signal = i + 1;
      CHECK(iree_hal_device_queue_barrier(target->device, 1, one(i == 0 ? &go : &chains[c], &wait),
                                          one(&chains[c], &signal), IREE_HAL_EXECUTE_FLAG_NONE));
    }
  }
  held_bytes = (double)(atomic_load(&live) - before) / (double)(CHAINS * LENGTH);
  CHECK(iree_hal_semaphore_signal(go, 1, NULL));
  for (int c = 0; c < CHAINS; ++c) wait_for(chains[c], LENGTH);
  double total = per_operation(begin, CHAINS * LENGTH);
  for (int c = 0; c < CHAINS; ++c) iree_hal_semaphore_release(chains[c]);
  iree_hal_semaphore_release(go);
  free(chains);
  return total;
}

// Ten thousand semaphores alive at once, each with an operation that waits for it.
static double semaphores_10k(target_t* target) {
  if (!target->defers) return -1;
  enum { COUNT = 10000 };
  static iree_hal_semaphore_t* all[COUNT];
  for (int i = 0; i < COUNT; ++i) all[i] = semaphore(target);
  uint64_t first = 1, second = 2;
  double begin = now_ns();
  for (int i = 0; i < COUNT; ++i) {
    CHECK(iree_hal_device_queue_barrier(target->device, IREE_HAL_QUEUE_AFFINITY_ANY, one(&all[i], &first),
                                        one(&all[i], &second), IREE_HAL_EXECUTE_FLAG_NONE));
  }
  for (int i = COUNT; i-- > 0;) CHECK(iree_hal_semaphore_signal(all[i], 1, NULL));
  for (int i = 0; i < COUNT; ++i) wait_for(all[i], 2);
  double total = per_operation(begin, COUNT);
  for (int i = 0; i < COUNT; ++i) iree_hal_semaphore_release(all[i]);
  return total;
}

static double held_1k(target_t* target) { return held(target, 1000); }
static double held_4k(target_t* target) { return held(target, 4000); }
// From here on a list that is searched from end to end takes minutes.
static bool searches(target_t* target) { return strncmp(target->uri, "local-", 6) == 0; }
static double held_100k(target_t* target) { return searches(target) ? -1 : held(target, 100000); }
static double held_1m(target_t* target) { return searches(target) || scale < 1 ? -1 : held(target, 1000000); }

static double fan_out_in(target_t* target) {
  if (!target->defers) return -1;
  const iree_host_size_t count = 1000;
  iree_hal_semaphore_t* go = semaphore(target);
  iree_hal_semaphore_t* done = semaphore(target);
  iree_hal_semaphore_t** all = (iree_hal_semaphore_t**)malloc(count * sizeof(*all));
  uint64_t* values = (uint64_t*)malloc(count * sizeof(*values));
  for (iree_host_size_t i = 0; i < count; ++i) {
    all[i] = semaphore(target);
    values[i] = 1;
  }
  double begin = now_ns();
  uint64_t value = 1;
  for (iree_host_size_t i = 0; i < count; ++i) {
    CHECK(iree_hal_device_queue_barrier(target->device, IREE_HAL_QUEUE_AFFINITY_ANY, one(&go, &value),
                                        one(&all[i], &value), IREE_HAL_EXECUTE_FLAG_NONE));
  }
  iree_hal_semaphore_list_t list = {count, all, values};
  CHECK(iree_hal_device_queue_barrier(target->device, IREE_HAL_QUEUE_AFFINITY_ANY, list, one(&done, &value),
                                      IREE_HAL_EXECUTE_FLAG_NONE));
  CHECK(iree_hal_semaphore_signal(go, 1, NULL));
  wait_for(done, 1);
  double total = per_operation(begin, count + 1);
  for (iree_host_size_t i = 0; i < count; ++i) iree_hal_semaphore_release(all[i]);
  free(all);
  free(values);
  iree_hal_semaphore_release(go);
  iree_hal_semaphore_release(done);
  return total;
}

static int ascending(const void* a, const void* b) {
  double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

static double quantile_of(double* times, iree_host_size_t count, double quantile) {
  qsort(times, count, sizeof(*times), ascending);
  return times[(iree_host_size_t)((double)(count - 1) * quantile)];
}

static double pingpong(target_t* target, double quantile) {
  if (!target->defers) return -1;
  const iree_host_size_t count = scaled(2000);
  double* times = (double*)malloc(count * sizeof(*times));
  iree_hal_semaphore_t* ping = semaphore(target);
  iree_hal_semaphore_t* pong = semaphore(target);
  iree_hal_buffer_t* word = buffer(target, 64);
  const uint32_t pattern = 1;
  for (uint64_t i = 1; i <= count; ++i) {
    CHECK(iree_hal_device_queue_fill(target->device, 1, one(&ping, &i), one(&pong, &i), word, 0, 64, &pattern,
                                     sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
    double begin = now_ns();
    CHECK(iree_hal_semaphore_signal(ping, i, NULL));
    wait_for(pong, i);
    times[i - 1] = now_ns() - begin;
  }
  operations = count;
  double result = quantile_of(times, count, quantile);
  free(times);
  iree_hal_buffer_release(word);
  iree_hal_semaphore_release(ping);
  iree_hal_semaphore_release(pong);
  return result;
}

static double pingpong_p50(target_t* target) { return pingpong(target, 0.50); }
static double pingpong_p99(target_t* target) { return pingpong(target, 0.99); }

// Two threads that submit chains to one queue as fast as they can, and how long a third takes to hand a barrier to
// the same queue.
typedef struct {
  target_t* target;
  atomic_bool* stop;
} flood_t;

static void* flood(void* argument) {
  flood_t* flood = (flood_t*)argument;
  enum { LENGTH = 1000 };  // So much may be under way: a driver that is slower than who submits would take all memory.
  iree_hal_semaphore_t* timeline = semaphore(flood->target);
  uint64_t signal = 1;
  while (!atomic_load_explicit(flood->stop, memory_order_relaxed)) {
    for (int i = 0; i < LENGTH; ++i, ++signal) {
      uint64_t wait = signal - 1;
      iree_hal_semaphore_list_t waits = one(&timeline, &wait);
      if (wait == 0) waits.count = 0;
      CHECK(iree_hal_device_queue_barrier(flood->target->device, 1, waits, one(&timeline, &signal),
                                          IREE_HAL_EXECUTE_FLAG_NONE));
    }
    wait_for(timeline, signal - 1);
  }
  iree_hal_semaphore_release(timeline);
  return NULL;
}

static double beside(target_t* target, double quantile) {
  enum { FLOODS = 2, SPIN_NS = 5000 };
  const iree_host_size_t count = scaled(10000);
  double* times = (double*)malloc(count * sizeof(*times));
  iree_hal_semaphore_t* timeline = semaphore(target);
  atomic_bool stop = false;
  flood_t floods = {target, &stop};
  pthread_t threads[FLOODS];
  for (int i = 0; i < FLOODS; ++i) pthread_create(&threads[i], NULL, flood, &floods);
  for (uint64_t value = 1; value <= count; ++value) {
    for (double begin = now_ns(); now_ns() - begin < SPIN_NS;) {
    }
    // No driver but ours promises that a queue is in order.
    uint64_t wait = value - 1;
    iree_hal_semaphore_list_t waits = one(&timeline, &wait);
    if (wait == 0) waits.count = 0;
    double begin = now_ns();
    CHECK(iree_hal_device_queue_barrier(target->device, 1, waits, one(&timeline, &value), IREE_HAL_EXECUTE_FLAG_NONE));
    times[value - 1] = now_ns() - begin;
  }
  atomic_store(&stop, true);
  for (int i = 0; i < FLOODS; ++i) pthread_join(threads[i], NULL);
  wait_for(timeline, count);
  operations = count;
  double result = quantile_of(times, count, quantile);
  free(times);
  iree_hal_semaphore_release(timeline);
  return result;
}

static double beside_p50(target_t* target) { return beside(target, 0.50); }
static double beside_p99(target_t* target) { return beside(target, 0.99); }

typedef enum { FILL, COPY, UPDATE } transfer_t;

static double transfers(target_t* target, transfer_t kind, iree_device_size_t length, iree_host_size_t count) {
  iree_hal_buffer_t* source = buffer(target, length);
  iree_hal_buffer_t* result = buffer(target, length);
  iree_hal_semaphore_t* timeline = semaphore(target);
  const uint32_t pattern = 0x5A5A1234u;
  uint8_t bytes[4096] = {1};
  // Memory that was never touched is made when it is: that is not what is measured.
  iree_hal_semaphore_t* touched = semaphore(target);
  uint64_t first = 1, second = 2;
  CHECK(iree_hal_device_queue_fill(target->device, 1, iree_hal_semaphore_list_empty(), one(&touched, &first), source, 0,
                                   length, &pattern, sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
  CHECK(iree_hal_device_queue_fill(target->device, 1, one(&touched, &first), one(&touched, &second), result, 0, length,
                                   &pattern, sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
  wait_for(touched, 2);
  iree_hal_semaphore_release(touched);
  double begin = now_ns();
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t wait = i, signal = i + 1;
    iree_hal_semaphore_list_t waits = one(&timeline, &wait), signals = one(&timeline, &signal);
    if (i == 0) waits.count = 0;
    switch (kind) {
      case FILL:
        CHECK(iree_hal_device_queue_fill(target->device, 1, waits, signals, result, 0, length, &pattern,
                                         sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
        break;
      case COPY:
        CHECK(iree_hal_device_queue_copy(target->device, 1, waits, signals, source, 0, result, 0, length,
                                         IREE_HAL_COPY_FLAG_NONE));
        break;
      case UPDATE:
        CHECK(iree_hal_device_queue_update(target->device, 1, waits, signals, bytes, 0, result, 0, length,
                                           IREE_HAL_UPDATE_FLAG_NONE));
        break;
    }
  }
  wait_for(timeline, count);
  double total = per_operation(begin, count);
  iree_hal_semaphore_release(timeline);
  iree_hal_buffer_release(result);
  iree_hal_buffer_release(source);
  return total;
}

static double fill_4k_chain(target_t* target) { return transfers(target, FILL, 4096, scaled(10000)); }
static double copy_4k_chain(target_t* target) { return transfers(target, COPY, 4096, scaled(10000)); }
static double update_1k_chain(target_t* target) { return transfers(target, UPDATE, 1024, scaled(10000)); }
static double fill_256m(target_t* target) { return transfers(target, FILL, 256 << 20, 3); }
static double copy_256m(target_t* target) { return transfers(target, COPY, 256 << 20, 3); }

static double alloca_dealloca(target_t* target) {
  const iree_host_size_t count = scaled(3000);
  iree_hal_semaphore_t* timeline = semaphore(target);
  const uint32_t pattern = 7;
  double begin = now_ns();
  uint64_t at = 0;
  for (iree_host_size_t i = 0; i < count; ++i) {
    uint64_t before = at, allocated = at + 1, filled = at + 2, freed = at + 3;
    iree_hal_semaphore_list_t waits = one(&timeline, &before);
    if (i == 0) waits.count = 0;
    iree_hal_buffer_t* transient = NULL;
    CHECK(iree_hal_device_queue_alloca(target->device, 1, waits, one(&timeline, &allocated), NULL, device_params(),
                                       1 << 20, IREE_HAL_ALLOCA_FLAG_NONE, &transient));
    CHECK(iree_hal_device_queue_fill(target->device, 1, one(&timeline, &allocated), one(&timeline, &filled), transient,
                                     0, 4096, &pattern, sizeof(pattern), IREE_HAL_FILL_FLAG_NONE));
    CHECK(iree_hal_device_queue_dealloca(target->device, 1, one(&timeline, &filled), one(&timeline, &freed), transient,
                                         IREE_HAL_DEALLOCA_FLAG_NONE));
    iree_hal_buffer_release(transient);
    at = freed;
  }
  wait_for(timeline, at);
  double total = per_operation(begin, count);
  iree_hal_semaphore_release(timeline);
  return total;
}

static iree_hal_executable_t* executable(target_t* target) {
  if (target->executable) return target->executable;
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
  CHECK(iree_hal_executable_cache_create(target->device, iree_make_cstring_view("bench"), &target->cache));
  iree_hal_executable_params_t params;
  iree_hal_executable_params_initialize(&params);
  params.caching_mode = IREE_HAL_EXECUTABLE_CACHING_MODE_ALIAS_PROVIDED_DATA;
  params.executable_format = iree_make_cstring_view("embedded-elf-" IREE_ARCH);
  params.executable_data = iree_make_const_byte_span(data, length);
  CHECK(iree_hal_executable_cache_prepare_executable(target->cache, &params, &target->executable));
  return target->executable;
}

static double command_buffer_100(target_t* target) {
  const iree_host_size_t count = scaled(300);
  iree_hal_buffer_t* input = buffer(target, 64);
  iree_hal_buffer_t* output = buffer(target, 64);
  iree_hal_command_buffer_t* commands = NULL;
  CHECK(iree_hal_command_buffer_create(target->device, IREE_HAL_COMMAND_BUFFER_MODE_DEFAULT,
                                       IREE_HAL_COMMAND_CATEGORY_DISPATCH, 1, 0, &commands));
  CHECK(iree_hal_command_buffer_begin(commands));
  iree_hal_buffer_ref_t refs[2] = {iree_hal_make_buffer_ref(input, 0, 16), iree_hal_make_buffer_ref(output, 0, 16)};
  iree_hal_buffer_ref_list_t bindings = {2, refs};
  for (int i = 0; i < 100; ++i) {
    CHECK(iree_hal_command_buffer_dispatch(commands, executable(target), iree_hal_executable_function_from_index(0),
                                           iree_hal_make_static_dispatch_config(1, 1, 1), iree_const_byte_span_empty(),
                                           bindings, IREE_HAL_DISPATCH_FLAG_NONE));
    CHECK(iree_hal_command_buffer_execution_barrier(
        commands, IREE_HAL_EXECUTION_STAGE_DISPATCH, IREE_HAL_EXECUTION_STAGE_DISPATCH,
        IREE_HAL_EXECUTION_BARRIER_FLAG_NONE, 0, NULL, 0, NULL));
  }
  CHECK(iree_hal_command_buffer_end(commands));
  iree_hal_semaphore_t* timeline = semaphore(target);
  double begin = now_ns();
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t wait = i, signal = i + 1;
    iree_hal_semaphore_list_t waits = one(&timeline, &wait);
    if (i == 0) waits.count = 0;
    CHECK(iree_hal_device_queue_execute(target->device, 1, waits, one(&timeline, &signal), commands,
                                        iree_hal_buffer_binding_table_empty(), IREE_HAL_EXECUTE_FLAG_NONE));
  }
  wait_for(timeline, count);
  double total = per_operation(begin, count);
  iree_hal_semaphore_release(timeline);
  iree_hal_command_buffer_release(commands);
  iree_hal_buffer_release(input);
  iree_hal_buffer_release(output);
  return total;
}

// ===-------------------------------------------------------------------------------------------------------------===//
// Whole invocations of compiled modules
// ===-------------------------------------------------------------------------------------------------------------===//

typedef struct {
  int rank;
  iree_hal_dim_t shape[4];
} shape_t;

// The mean of all invocations if the quantile is negative, and else that quantile.
static double invoke(target_t* target, const char* name, const shape_t* shapes, int shape_count, iree_host_size_t count,
                     double quantile) {
  char path[4096], function[256];
  snprintf(path, sizeof(path), "%s/%s.vmfb", modules, name);
  iree_runtime_session_options_t options;
  iree_runtime_session_options_initialize(&options);
  iree_runtime_session_t* session = NULL;
  CHECK(iree_runtime_session_create_with_device(instance, &options, target->device, iree_allocator_system(), &session));
  CHECK(iree_runtime_session_append_bytecode_module_from_file(session, path));
  snprintf(function, sizeof(function), "module.main");
  iree_runtime_call_t call;
  CHECK(iree_runtime_call_initialize_by_name(session, iree_make_cstring_view(function), &call));
  iree_hal_buffer_view_t* inputs[8] = {0};
  for (int i = 0; i < shape_count; ++i) {
    iree_host_size_t elements = 1;
    for (int d = 0; d < shapes[i].rank; ++d) elements *= shapes[i].shape[d];
    float* values = (float*)malloc(elements * sizeof(float));
    for (iree_host_size_t e = 0; e < elements; ++e) values[e] = 0.01f * (float)(e % 100);
    CHECK(iree_hal_buffer_view_allocate_buffer_copy(
        target->device, iree_hal_device_allocator(target->device), shapes[i].rank, shapes[i].shape,
        IREE_HAL_ELEMENT_TYPE_FLOAT_32, IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, device_params(),
        iree_make_const_byte_span(values, elements * sizeof(float)), &inputs[i]));
    free(values);
  }
  double begin = 0;
  double* times = quantile < 0 ? NULL : (double*)malloc((count + 1) * sizeof(*times));
  for (iree_host_size_t round = 0; round <= count; ++round) {
    if (round == 1) begin = now_ns();  // The first one is for warming up.
    if (times) times[round] = now_ns();
    iree_runtime_call_reset(&call);
    for (int i = 0; i < shape_count; ++i) CHECK(iree_runtime_call_inputs_push_back_buffer_view(&call, inputs[i]));
    CHECK(iree_runtime_call_invoke(&call, 0));
    if (times) times[round] = now_ns() - times[round];
  }
  double total = per_operation(begin, count);
  if (times) total = quantile_of(times + 1, count, quantile);
  free(times);
  for (int i = 0; i < shape_count; ++i) iree_hal_buffer_view_release(inputs[i]);
  iree_runtime_call_deinitialize(&call);
  iree_runtime_session_release(session);
  return total;
}

static double tiny(target_t* target, double quantile) {
  const shape_t shapes[] = {{2, {2, 2}}, {2, {2, 2}}, {2, {2, 2}}};
  return invoke(target, "elementwise", shapes, 3, scaled(2000), quantile);
}

static double invoke_tiny(target_t* target) { return tiny(target, -1); }
static double invoke_tiny_p50(target_t* target) { return tiny(target, 0.50); }
static double invoke_tiny_p99(target_t* target) { return tiny(target, 0.99); }

static double invoke_mlp(target_t* target) {
  const shape_t shapes[] = {{2, {32, 256}}, {2, {256, 256}}, {2, {256, 256}}, {2, {256, 256}}};
  return invoke(target, "mlp", shapes, 4, scaled(500), -1);
}

static double invoke_conv(target_t* target) {
  const shape_t shapes[] = {{4, {1, 16, 16, 3}}, {4, {3, 3, 3, 8}}, {1, {8}},
                            {4, {3, 3, 8, 16}},  {1, {16}},         {2, {1024, 10}}};
  return invoke(target, "convolution", shapes, 6, scaled(200), -1);
}

static double invoke_transformer(target_t* target) {
  const shape_t shapes[] = {{2, {32, 64}}, {2, {64, 64}},  {2, {64, 64}}, {2, {64, 64}},
                            {2, {64, 64}}, {2, {64, 256}}, {2, {256, 64}}};
  return invoke(target, "transformer", shapes, 7, scaled(500), -1);
}

// ===-------------------------------------------------------------------------------------------------------------===//
// Many producers, many semaphores
// ===-------------------------------------------------------------------------------------------------------------===//

enum { PRODUCERS = 4, LANES = 16 };

typedef struct {
  target_t* target;
  int number;
  iree_host_size_t count;
} producer_t;

static void* produce(void* argument) {
  producer_t* producer = (producer_t*)argument;
  iree_hal_semaphore_t* lanes[LANES];
  for (int lane = 0; lane < LANES; ++lane) lanes[lane] = semaphore(producer->target);
  for (uint64_t i = 0; i < producer->count; ++i) {
    for (int lane = 0; lane < LANES; ++lane) {
      uint64_t wait = i, signal = i + 1;
      iree_hal_semaphore_list_t waits = one(&lanes[lane], &wait);
      if (i == 0) waits.count = 0;
      CHECK(iree_hal_device_queue_barrier(producer->target->device, 1ull << (lane % 2), waits,
                                          one(&lanes[lane], &signal), IREE_HAL_EXECUTE_FLAG_NONE));
    }
  }
  for (int lane = 0; lane < LANES; ++lane) {
    wait_for(lanes[lane], producer->count);
    iree_hal_semaphore_release(lanes[lane]);
  }
  return NULL;
}

static double many(target_t* target) {
  const iree_host_size_t count = scaled(500);
  pthread_t threads[PRODUCERS];
  producer_t producers[PRODUCERS];
  double begin = now_ns();
  for (int i = 0; i < PRODUCERS; ++i) {
    producers[i] = (producer_t){target, i, count};
    pthread_create(&threads[i], NULL, produce, &producers[i]);
  }
  for (int i = 0; i < PRODUCERS; ++i) pthread_join(threads[i], NULL);
  return per_operation(begin, count * PRODUCERS * LANES);
}

// What the process burns while it is idle: processor time in thousandths of a second of rest. All devices
// are open, so it is one figure for all of them.
static double idle(void) {
  struct rusage before, after;
  struct timespec settle = {0, 200000000}, rest = {1, 0};
  nanosleep(&settle, NULL);
  getrusage(RUSAGE_SELF, &before);
  nanosleep(&rest, NULL);
  getrusage(RUSAGE_SELF, &after);
  double seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec +
                            after.ru_stime.tv_sec - before.ru_stime.tv_sec);
  double micros = (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
                           before.ru_stime.tv_usec);
  return seconds * 1e3 + micros / 1e3;
}

// A plain copy and fill of 256 MiB by as many threads as there are processors: what the memory gives.
typedef struct {
  uint8_t* target;
  const uint8_t* source;
  size_t length;
} plain_t;

static void* plain(void* argument) {
  plain_t* part = (plain_t*)argument;
  if (part->source) {
    memcpy(part->target, part->source, part->length);
  } else {
    memset(part->target, 0x5A, part->length);
  }
  return NULL;
}

static double plain_256m(bool copies) {
  const size_t length = 256 << 20;
  long threads = sysconf(_SC_NPROCESSORS_ONLN);
  uint8_t* source = (uint8_t*)malloc(length);
  uint8_t* target = (uint8_t*)malloc(length);
  memset(source, 1, length);
  memset(target, 2, length);
  pthread_t handles[64];
  plain_t parts[64];
  double begin = now_ns();
  for (int round = 0; round < 3; ++round) {
    size_t part = length / (size_t)threads;
    for (long i = 0; i < threads && i < 64; ++i) {
      parts[i] = (plain_t){target + part * (size_t)i, copies ? source + part * (size_t)i : NULL, part};
      pthread_create(&handles[i], NULL, plain, &parts[i]);
    }
    for (long i = 0; i < threads && i < 64; ++i) pthread_join(handles[i], NULL);
  }
  double total = (now_ns() - begin) / 3;
  free(source);
  free(target);
  return total;
}

static double plain_fill_256m(void) { return plain_256m(false); }
static double plain_copy_256m(void) { return plain_256m(true); }

typedef struct {
  const char* name;
  case_fn_t run;
  bool small;  // Also measured in company.
  // The same without any driver, where that is a matter of the machine's mood: measured between the rounds of the
  // others.
  double (*plain)(void);
} case_t;

static const case_t cases[] = {
    {"chain_same_queue", chain_same_queue, true},
    {"chain_same_queue_submit", chain_same_queue_submit},
    {"chain_cross_queue", chain_cross_queue, true},
    {"held_1k", held_1k},
    {"held_4k", held_4k},
    {"held_100k", held_100k},
    {"held_1m", held_1m},
    {"held_1m_in_chains", held_1m_in_chains},
    {"fan_out_in", fan_out_in, true},
    {"host_pingpong_p50", pingpong_p50, true},
    {"host_pingpong_p99", pingpong_p99, true},
    {"beside_floods_p50", beside_p50},
    {"beside_floods_p99", beside_p99},
    {"fill_4k_chain", fill_4k_chain, true},
    {"copy_4k_chain", copy_4k_chain, true},
    {"update_1k_chain", update_1k_chain, true},
    {"fill_256m", fill_256m, false, plain_fill_256m},
    {"copy_256m", copy_256m, false, plain_copy_256m},
    {"alloca_dealloca", alloca_dealloca, true},
    {"command_buffer_100", command_buffer_100, true},
    {"invoke_tiny", invoke_tiny, true},
    {"invoke_tiny_p50", invoke_tiny_p50, true},
    {"invoke_tiny_p99", invoke_tiny_p99, true},
    {"invoke_mlp", invoke_mlp, true},
    {"invoke_conv", invoke_conv, true},
    {"invoke_transformer", invoke_transformer, true},
    {"many", many},
    {"semaphores_10k", semaphores_10k},
};

// What lies between two threads, whatever the driver: a sleeping thread that another wakes, and a lock-protected list
// of copies that one thread fills while another does them.
typedef struct {
  iree_notification_t notification;
  atomic_int asked, answered;
} wake_t;

enum { WAKE_WORK_NS = 5000 };

static bool is_answered(void* argument) {
  wake_t* wake = (wake_t*)argument;
  return atomic_load(&wake->answered) == atomic_load(&wake->asked);
}

static void* answer(void* argument) {
  wake_t* wake = (wake_t*)argument;
  for (int done = 0; done >= 0;) {
    int asked = atomic_load(&wake->asked);
    if (asked == done) continue;
    if (asked < 0) break;
    done = asked;
    // By then the thread that asked sleeps.
    for (double begin = now_ns(); now_ns() - begin < WAKE_WORK_NS;) {
    }
    atomic_store(&wake->answered, done);
    iree_notification_post(&wake->notification, IREE_ALL_WAITERS);
  }
  return NULL;
}

static double plain_wake(void) {
  wake_t wake = {.asked = 0, .answered = 0};
  iree_notification_initialize(&wake.notification);
  pthread_t thread;
  pthread_create(&thread, NULL, answer, &wake);
  const int count = 1000;
  double begin = now_ns();
  for (int i = 1; i <= count; ++i) {
    atomic_store(&wake.asked, i);
    iree_notification_await(&wake.notification, is_answered, &wake, iree_infinite_timeout());
  }
  double total = (now_ns() - begin) / count - WAKE_WORK_NS;
  atomic_store(&wake.asked, -1);
  pthread_join(thread, NULL);
  iree_notification_deinitialize(&wake.notification);
  return total;
}

enum { HANDOVERS = 10000, HANDOVER_BYTES = 4096 };

typedef struct {
  pthread_mutex_t lock;
  int pushed, popped;
  plain_t list[HANDOVERS];
  atomic_int done;
} handover_t;

static void* take_over(void* argument) {
  handover_t* handover = (handover_t*)argument;
  while (atomic_load(&handover->done) < HANDOVERS) {
    pthread_mutex_lock(&handover->lock);
    plain_t part = {0};
    if (handover->popped < handover->pushed) part = handover->list[handover->popped++];
    pthread_mutex_unlock(&handover->lock);
    if (!part.target) continue;
    plain(&part);
    atomic_fetch_add(&handover->done, 1);
  }
  return NULL;
}

static double plain_handover(void) {
  static handover_t handover;
  static uint8_t source[HANDOVER_BYTES], target[HANDOVER_BYTES];
  pthread_mutex_init(&handover.lock, NULL);
  handover.pushed = handover.popped = 0;
  atomic_store(&handover.done, 0);
  pthread_t thread;
  double begin = now_ns();
  pthread_create(&thread, NULL, take_over, &handover);
  for (int i = 0; i < HANDOVERS; ++i) {
    pthread_mutex_lock(&handover.lock);
    handover.list[handover.pushed++] = (plain_t){target, source, HANDOVER_BYTES};
    pthread_mutex_unlock(&handover.lock);
  }
  while (atomic_load(&handover.done) < HANDOVERS) {
  }
  double total = (now_ns() - begin) / HANDOVERS;
  pthread_join(thread, NULL);
  pthread_mutex_destroy(&handover.lock);
  return total;
}

// The same with what IREE asks of any driver that works on a thread of its own: an operation keeps its semaphore and
// its two buffers, knows whether it has to wait, and raises the semaphore when it is done. No queues that wait for
// each other, no failures, no work that is held, and one value published for all that the other thread takes at once.
typedef struct {
  iree_async_semaphore_t* semaphore;
  uint64_t wait, signal;
  iree_hal_buffer_t *source, *target;
} owned_t;

enum { TAKEN_AT_ONCE = 16 };

typedef struct {
  pthread_mutex_t lock;
  int pushed, popped;
  owned_t list[HANDOVERS];
} owners_t;

static void* serve_owners(void* argument) {
  owners_t* owners = (owners_t*)argument;
  uint8_t* contents[2] = {NULL, NULL};
  for (int done = 0; done < HANDOVERS;) {
    owned_t taken[TAKEN_AT_ONCE];
    int count = 0;
    pthread_mutex_lock(&owners->lock);
    while (count < TAKEN_AT_ONCE && owners->popped < owners->pushed) taken[count++] = owners->list[owners->popped++];
    pthread_mutex_unlock(&owners->lock);
    if (!count) continue;
    for (int i = 0; i < count; ++i) {
      iree_hal_buffer_t* buffers[2] = {taken[i].source, taken[i].target};
      for (int side = 0; side < 2; ++side) {
        iree_hal_buffer_mapping_t mapping;
        CHECK(iree_hal_buffer_map_range(buffers[side], IREE_HAL_MAPPING_MODE_SCOPED, IREE_HAL_MEMORY_ACCESS_READ, 0,
                                        HANDOVER_BYTES, &mapping));
        contents[side] = mapping.contents.data;
        CHECK(iree_hal_buffer_unmap_range(&mapping));
      }
      memcpy(contents[1], contents[0], HANDOVER_BYTES);
    }
    CHECK(iree_async_semaphore_publish_untainted(taken[count - 1].semaphore, taken[count - 1].signal, NULL));
    for (int i = 0; i < count; ++i) {
      iree_hal_buffer_release(taken[i].source);
      iree_hal_buffer_release(taken[i].target);
      iree_async_semaphore_release(taken[i].semaphore);
    }
    done += count;
  }
  return NULL;
}

static double plain_ownership(void) {
  static owners_t owners;
  static iree_alignas(64) uint8_t bytes[2][HANDOVER_BYTES];
  iree_hal_buffer_t* buffers[2];
  for (int i = 0; i < 2; ++i) {
    CHECK(iree_hal_heap_buffer_wrap(iree_hal_buffer_placement_undefined(), IREE_HAL_MEMORY_TYPE_HOST_LOCAL,
                                    IREE_HAL_MEMORY_ACCESS_ALL, IREE_HAL_BUFFER_USAGE_DEFAULT, HANDOVER_BYTES,
                                    iree_make_byte_span(bytes[i], HANDOVER_BYTES),
                                    iree_hal_buffer_release_callback_null(), iree_allocator_system(), &buffers[i]));
  }
  iree_async_semaphore_t* semaphore = NULL;
  CHECK(iree_async_semaphore_create(NULL, 0, 4, iree_allocator_system(), &semaphore));
  pthread_mutex_init(&owners.lock, NULL);
  owners.pushed = owners.popped = 0;
  pthread_t thread;
  double begin = now_ns();
  pthread_create(&thread, NULL, serve_owners, &owners);
  for (int i = 0; i < HANDOVERS; ++i) {
    iree_async_semaphore_retain(semaphore);
    iree_hal_buffer_retain(buffers[0]);
    iree_hal_buffer_retain(buffers[1]);
    // Order takes care of a wait that is not reached.
    bool reached = iree_async_semaphore_query(semaphore) >= (uint64_t)i;
    pthread_mutex_lock(&owners.lock);
    owned_t owned = {semaphore, reached ? 0 : (uint64_t)i, (uint64_t)i + 1, buffers[0], buffers[1]};
    owners.list[owners.pushed++] = owned;
    pthread_mutex_unlock(&owners.lock);
  }
  uint64_t last = HANDOVERS;
  CHECK(iree_async_semaphore_multi_wait(IREE_ASYNC_WAIT_MODE_ALL, &semaphore, &last, 1, iree_infinite_timeout(),
                                        IREE_ASYNC_WAIT_FLAG_NONE, iree_allocator_system()));
  double total = (now_ns() - begin) / HANDOVERS;
  pthread_join(thread, NULL);
  pthread_mutex_destroy(&owners.lock);
  iree_async_semaphore_release(semaphore);
  iree_hal_buffer_release(buffers[0]);
  iree_hal_buffer_release(buffers[1]);
  return total;
}

// What a stream-ordered allocation is at least: each round's three steps, handed over one by one, and another thread
// that gets the memory from IREE's pool, fills 4 KiB of it, and gives it back. One buffer object for each, as in any
// driver.
typedef struct {
  pthread_mutex_t lock;
  atomic_int pushed;
  int popped;
  uint8_t list[3 * HANDOVERS];
  iree_hal_pool_t* pool;
  atomic_int done;
} pooled_t;

static void* serve_pool(void* argument) {
  pooled_t* pooled = (pooled_t*)argument;
  iree_hal_pool_reservation_t reservation;
  iree_hal_buffer_t* memory = NULL;
  for (int done = 0; done < 3 * HANDOVERS;) {
    int step = -1;
    pthread_mutex_lock(&pooled->lock);
    if (pooled->popped < atomic_load(&pooled->pushed)) step = pooled->list[pooled->popped++];
    pthread_mutex_unlock(&pooled->lock);
    if (step < 0) continue;
    if (step == 0) {
      iree_hal_pool_acquire_info_t info;
      iree_hal_pool_acquire_result_t result;
      CHECK(iree_hal_pool_acquire_reservation(pooled->pool, 1 << 20, 64, NULL, IREE_HAL_POOL_RESERVE_FLAG_NONE,
                                              &reservation, &info, &result));
      CHECK(iree_hal_pool_materialize_reservation(pooled->pool, device_params(), &reservation,
                                                  IREE_HAL_POOL_MATERIALIZE_FLAG_NONE, &memory));
    } else if (step == 1) {
      iree_hal_buffer_mapping_t mapping;
      CHECK(iree_hal_buffer_map_range(memory, IREE_HAL_MAPPING_MODE_SCOPED, IREE_HAL_MEMORY_ACCESS_DISCARD_WRITE, 0,
                                      HANDOVER_BYTES, &mapping));
      memset(mapping.contents.data, 7, HANDOVER_BYTES);
      CHECK(iree_hal_buffer_unmap_range(&mapping));
    } else {
      iree_hal_buffer_release(memory);
      iree_hal_pool_release_reservation(pooled->pool, &reservation, NULL);
    }
    atomic_store(&pooled->done, ++done);
  }
  return NULL;
}

static double plain_pool(void) {
  iree_async_proactor_pool_t* proactors = NULL;
  CHECK(iree_async_proactor_pool_create(iree_numa_node_count(), NULL, iree_async_proactor_pool_options_default(),
                                        iree_allocator_system(), &proactors));
  iree_async_proactor_t* proactor = NULL;
  CHECK(iree_async_proactor_pool_get(proactors, 0, &proactor));
  iree_async_notification_t* notification = NULL;
  CHECK(iree_async_notification_create(proactor, IREE_ASYNC_NOTIFICATION_FLAG_NONE, &notification));
  iree_hal_slab_provider_t* provider = NULL;
  CHECK(iree_hal_cpu_slab_provider_create(iree_allocator_system(), &provider));
  iree_hal_tlsf_pool_options_t options = {
      .tlsf_options = {.range_length = 64 << 20, .alignment = 64, .frontier_capacity = 4}};
  static pooled_t pooled;
  CHECK(iree_hal_tlsf_pool_create(options, provider, notification, iree_hal_pool_epoch_query_null(),
                                  iree_allocator_system(), &pooled.pool));
  pthread_mutex_init(&pooled.lock, NULL);
  pooled.popped = 0;
  atomic_store(&pooled.pushed, 0);
  atomic_store(&pooled.done, 0);
  pthread_t thread;
  double begin = now_ns();
  pthread_create(&thread, NULL, serve_pool, &pooled);
  for (int i = 0; i < 3 * HANDOVERS; ++i) {
    pthread_mutex_lock(&pooled.lock);
    pooled.list[atomic_load(&pooled.pushed)] = (uint8_t)(i % 3);
    atomic_fetch_add(&pooled.pushed, 1);
    pthread_mutex_unlock(&pooled.lock);
  }
  while (atomic_load(&pooled.done) < 3 * HANDOVERS) {
  }
  double total = (now_ns() - begin) / HANDOVERS;
  pthread_join(thread, NULL);
  pthread_mutex_destroy(&pooled.lock);
  iree_hal_pool_release(pooled.pool);
  iree_hal_slab_provider_release(provider);
  iree_async_notification_release(notification);
  iree_async_proactor_pool_release(proactors);
  return total;
}

// ===-------------------------------------------------------------------------------------------------------------===//
// Company: processes that spin on the same processors
// ===-------------------------------------------------------------------------------------------------------------===//

enum { MAX_NEIGHBOURS = 64 };
static pid_t neighbours[MAX_NEIGHBOURS];
static int neighbour_count = 0;

static int setting(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

// Keeps the process, and what it starts, to its first processors.
static void pin_to(int count) {
  cpu_set_t allowed, chosen;
  CPU_ZERO(&chosen);
  if (sched_getaffinity(0, sizeof(allowed), &allowed)) abort();
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&chosen) < count; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &chosen);
  }
  if (sched_setaffinity(0, sizeof(chosen), &chosen)) abort();
}

static void start_neighbours(int count) {
  for (; neighbour_count < count && neighbour_count < MAX_NEIGHBOURS; ++neighbour_count) {
    const pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
      // None outlives the benchmark, however that ends.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(0);
      for (volatile unsigned long turns = 0;; ++turns) {
      }
    }
    neighbours[neighbour_count] = pid;
  }
}

static void stop_neighbours(void) {
  for (int i = 0; i < neighbour_count; ++i) {
    kill(neighbours[i], SIGKILL);
    waitpid(neighbours[i], NULL, 0);
  }
}

static const char* company = NULL;

// The beginning of a line of output.
static void report(FILE* out, const char* base_name, const char* device, const double* sorted, int rounds) {
  char name[128];
  snprintf(name, sizeof(name), "%s%s%s", base_name, company ? "@" : "", company ? company : "");
  fprintf(out, "{\"case\":\"%s\",\"device\":\"%s\",\"median\":%.3f,\"least\":%.3f,\"most\":%.3f,\"rounds\":%d", name,
          device, sorted[rounds / 2], sorted[0], sorted[rounds - 1], rounds);
}

static void open_target(target_t* target, const char* uri) {
  target->uri = uri;
  target->defers = strcmp(uri, "local-sync") != 0;
  iree_async_proactor_pool_t* pool = NULL;
  CHECK(iree_async_proactor_pool_create(iree_numa_node_count(), NULL, iree_async_proactor_pool_options_default(),
                                        iree_allocator_system(), &pool));
  iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
  params.proactor_pool = pool;
  CHECK(iree_hal_create_device(iree_hal_driver_registry_default(), iree_make_cstring_view(uri), &params,
                               iree_allocator_system(), &target->device));
  iree_async_proactor_pool_release(pool);
  iree_async_frontier_tracker_options_t options = iree_async_frontier_tracker_options_default();
  iree_async_frontier_tracker_t* own = NULL;
  CHECK(iree_async_frontier_tracker_create(options, iree_allocator_system(), &own));
  CHECK(iree_hal_device_group_create_from_device(target->device, own, iree_allocator_system(), &target->group));
  iree_async_frontier_tracker_release(own);
}

int main(int argc, char** argv) {
  if (argc < 7) {
    fprintf(stderr, "usage: %s OUT.json ROUNDS SCALE TESTDATA MODULES DEVICE...\n", argv[0]);
    return 2;
  }
  FILE* out = fopen(argv[1], "w");
  if (!out) {
    fprintf(stderr, "cannot write %s\n", argv[1]);
    return 1;
  }
  const int rounds = atoi(argv[2]) < MAX_ROUNDS ? atoi(argv[2]) : MAX_ROUNDS;
  scale = atof(argv[3]);
  testdata = argv[4];
  modules = argv[5];
  const char* only = getenv("HAL_BENCH_ONLY");
  company = getenv("HAL_BENCH_COMPANY");
  // Before any thread exists, and before a device looks how many processors there are.
  if (setting("HAL_BENCH_PROCESSORS", 0) > 0) pin_to(setting("HAL_BENCH_PROCESSORS", 0));
  start_neighbours(setting("HAL_BENCH_NEIGHBOURS", 0));
  const int device_count = argc - 6 < MAX_DEVICES ? argc - 6 : MAX_DEVICES;
  iree_runtime_instance_options_t options;
  iree_runtime_instance_options_initialize(&options);
  CHECK(iree_runtime_instance_create(&options, iree_allocator_system(), &instance));
  CHECK(iree_hal_register_all_available_drivers(iree_hal_driver_registry_default()));
  static target_t targets[MAX_DEVICES];
  for (int i = 0; i < device_count; ++i) open_target(&targets[i], argv[6 + i]);

  for (iree_host_size_t c = 0; c < IREE_ARRAYSIZE(cases); ++c) {
    if (only && !strstr(cases[c].name, only)) continue;
    if (company && !cases[c].small) continue;
    fprintf(stderr, "\r%-40s", cases[c].name);
    fflush(stderr);
    double samples[MAX_DEVICES][MAX_ROUNDS];
    double plain[MAX_ROUNDS];
    double bytes[MAX_DEVICES];
    for (int round = 0; round < rounds; ++round) {
      for (int d = 0; d < device_count; ++d) {
        counting = cold = round == 0;
        held_bytes = 0;
        samples[d][round] = cases[c].run(&targets[d]);
        if (cold) bytes[d] = held_bytes;
        counting = cold = false;
      }
      if (cases[c].plain) plain[round] = cases[c].plain();
    }
    for (int d = 0; d < device_count; ++d) {
      if (samples[d][0] < 0) continue;
      qsort(samples[d], rounds, sizeof(double), ascending);
      atomic_store(&allocations, 0);
      counting = true;
      cases[c].run(&targets[d]);
      counting = false;
      report(out, cases[c].name, targets[d].uri, samples[d], rounds);
      fprintf(out, ",\"allocations\":%.4f,\"held_bytes\":%.1f}\n",
              (double)atomic_load(&allocations) / (double)operations,
              bytes[d]);
    }
    if (cases[c].plain) {
      qsort(plain, rounds, sizeof(double), ascending);
      report(out, cases[c].name, "plain", plain, rounds);
      fprintf(out, "}\n");
    }
    fflush(out);
  }
  const struct {
    const char* name;
    double (*run)(void);
  } floors[] = {{"wake", plain_wake},
                {"handover", plain_handover},
                {"ownership", plain_ownership},
                {"pool", plain_pool}};
  for (iree_host_size_t f = 0; f < IREE_ARRAYSIZE(floors); ++f) {
    if (company || (only && !strstr(floors[f].name, only))) continue;
    double samples[MAX_ROUNDS];
    for (int round = 0; round < rounds; ++round) samples[round] = floors[f].run();
    qsort(samples, rounds, sizeof(double), ascending);
    report(out, floors[f].name, "plain", samples, rounds);
    fprintf(out, "}\n");
  }
  if (!only && !company) {
    double rest = idle();
    report(out, "idle", "all", &rest, 1);
    fprintf(out, "}\n");
  }
  fprintf(stderr, "\r%-40s\r", "");
  fclose(out);
  stop_neighbours();
  for (int i = 0; i < device_count; ++i) {
    iree_hal_executable_release(targets[i].executable);
    iree_hal_executable_cache_release(targets[i].cache);
    iree_hal_device_release(targets[i].device);
    iree_hal_device_group_release(targets[i].group);
  }
  iree_runtime_instance_release(instance);
  return 0;
}
