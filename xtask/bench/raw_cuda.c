// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// What CUDA's own functions cost on a card: `cargo xtask hw nvidia` runs it.
//
//   raw_cuda [LIBRARY] [CARD] [ROUNDS] [LAUNCHES...]
//
// A line for each case with the median of its rounds, in microseconds: what a program waits for that does by hand
// what the driver does. An empty kernel is launched so often, or as a graph of so many nodes, and waited for; a
// stream writes a word, which the host polls; a stream records an event, and another one waits for it. Graphs pay
// from the number on at which their line is the smaller one; to make one is a case, too.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef void* handle_t;

static const char* const KERNEL =
    ".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n";

enum { MOST_ROUNDS = 1000, GEQ = 0, NON_BLOCKING = 1, DISABLE_TIMING = 2, PORTABLE_MAPPED = 3 };

#define FUNCTIONS(F)                                                                                    \
  F(cuInit, (unsigned))                                                                                 \
  F(cuDriverGetVersion, (int*))                                                                         \
  F(cuDeviceGet, (int*, int))                                                                           \
  F(cuDeviceGetName, (char*, int, int))                                                                 \
  F(cuCtxCreate_v2, (handle_t*, unsigned, int))                                                         \
  F(cuStreamCreate, (handle_t*, unsigned))                                                              \
  F(cuStreamSynchronize, (handle_t))                                                                    \
  F(cuStreamWaitEvent, (handle_t, handle_t, unsigned))                                                  \
  F(cuStreamWriteValue64_v2, (handle_t, uint64_t, uint64_t, unsigned))                                  \
  F(cuEventCreate, (handle_t*, unsigned))                                                               \
  F(cuEventRecord, (handle_t, handle_t))                                                                \
  F(cuEventSynchronize, (handle_t))                                                                     \
  F(cuModuleLoadData, (handle_t*, const void*))                                                         \
  F(cuModuleGetFunction, (handle_t*, handle_t, const char*))                                            \
  F(cuLaunchKernel, (handle_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle_t, \
                     void**, void**))                                                                   \
  F(cuMemHostAlloc, (void**, size_t, unsigned))                                                         \
  F(cuMemFreeHost, (void*))                                                                             \
  F(cuMemcpyHtoDAsync_v2, (uint64_t, const void*, size_t, handle_t))                                    \
  F(cuMemcpyDtoHAsync_v2, (void*, uint64_t, size_t, handle_t))                                          \
  F(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, handle_t))                                       \
  F(cuMemAllocAsync, (uint64_t*, size_t, handle_t))                                                     \
  F(cuMemFreeAsync, (uint64_t, handle_t))                                                               \
  F(cuGraphCreate, (handle_t*, unsigned))                                                               \
  F(cuGraphAddKernelNode, (handle_t*, handle_t, const handle_t*, size_t, const void*))                  \
  F(cuGraphInstantiateWithFlags, (handle_t*, handle_t, unsigned long long))                             \
  F(cuGraphLaunch, (handle_t, handle_t))                                                                \
  F(cuGraphExecDestroy, (handle_t))                                                                     \
  F(cuGraphDestroy, (handle_t))

#define DECLARE(name, arguments) static int(*name) arguments;
FUNCTIONS(DECLARE)

static void check(int result, const char* what) {
  if (result == 0) return;
  fprintf(stderr, "raw_cuda: %s: error %d\n", what, result);
  exit(1);
}
#define CHECK(call) check((call), #call)

static void load(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  if (!library) {
    fprintf(stderr, "raw_cuda: %s; name CUDA's driver library, a file\n", dlerror());
    exit(1);
  }
#define FIND(name, arguments)                                                 \
  *(void**)&name = dlsym(library, #name);                                     \
  if (!name) {                                                                \
    fprintf(stderr, "raw_cuda: %s has no %s; it is too old\n", path, #name);  \
    exit(1);                                                                  \
  }
  FUNCTIONS(FIND)
}

static handle_t function, streams[2], event, executable;
static volatile uint64_t* word;
static uint64_t written;

typedef struct {
  handle_t function;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
} kernel_node_t;

static void launch(int count) {
  for (int i = 0; i < count; ++i) {
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, streams[0], NULL, NULL));
  }
}

// Until the host sees a word that the stream writes: how the driver learns of an end.
static void finish(int stream) {
  ++written;
  CHECK(cuStreamWriteValue64_v2(streams[stream], (uint64_t)(uintptr_t)word, written, 0));
  time_t begin = time(NULL);
  for (unsigned polls = 1; *word < written; ++polls) {
    if (polls % (1u << 20) == 0 && time(NULL) - begin > 10) {
      fprintf(stderr, "raw_cuda: a stream has written nothing for 10 s; the card has stopped, or has faulted\n");
      exit(1);
    }
  }
}

static void make_graph(int count) {
  handle_t graph = NULL, last = NULL;
  CHECK(cuGraphCreate(&graph, 0));
  kernel_node_t node = {function, {1, 1, 1}, {32, 1, 1}, 0, NULL, NULL};
  for (int i = 0; i < count; ++i) {
    handle_t before = last;
    CHECK(cuGraphAddKernelNode(&last, graph, &before, before ? 1 : 0, &node));
  }
  CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CHECK(cuGraphDestroy(graph));
}

static void empty(int count) { (void)count, finish(0); }
static void launches(int count) { launch(count), finish(0); }
static void launches_synchronized(int count) {
  launch(count);
  CHECK(cuStreamSynchronize(streams[0]));
}
static void graph(int count) {
  (void)count;
  CHECK(cuGraphLaunch(executable, streams[0]));
  finish(0);
}
static void instantiate(int count) {
  make_graph(count);
  CHECK(cuGraphExecDestroy(executable));
}
static void edge(int count) {
  launch(count);
  CHECK(cuEventRecord(event, streams[0]));
  CHECK(cuStreamWaitEvent(streams[1], event, 0));
  finish(1);
}
static void allocate(int count) {
  (void)count;
  uint64_t address = 0;
  CHECK(cuMemAllocAsync(&address, 1 << 20, streams[0]));
  CHECK(cuMemFreeAsync(address, streams[0]));
  finish(0);
}

static int compare(const void* a, const void* b) {
  double difference = *(const double*)a - *(const double*)b;
  return difference < 0 ? -1 : difference > 0;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void measure(const char* name, void (*act)(int), int count, int rounds) {
  static double times[MOST_ROUNDS];
  for (int i = 0; i < 5; ++i) act(count);
  for (int i = 0; i < rounds; ++i) {
    double begin = now();
    act(count);
    times[i] = now() - begin;
  }
  qsort(times, rounds, sizeof(times[0]), compare);
  printf("%-28s%10d%12.2f us%12.2f to %.2f\n", name, count, times[rounds / 2], times[rounds / 10],
         times[rounds * 9 / 10]);
}

static uint64_t card_memory[2];
static void* host_memory;

static void to_card(int length) {
  CHECK(cuMemcpyHtoDAsync_v2(card_memory[0], host_memory, length, streams[0]));
  finish(0);
}
static void from_card(int length) {
  CHECK(cuMemcpyDtoHAsync_v2(host_memory, card_memory[0], length, streams[0]));
  finish(0);
}
static void on_card(int length) {
  CHECK(cuMemcpyDtoDAsync_v2(card_memory[1], card_memory[0], length, streams[0]));
  finish(0);
}

static void copies(int length, int rounds) {
  CHECK(cuMemHostAlloc(&host_memory, length, PORTABLE_MAPPED));
  for (int i = 0; i < 2; ++i) CHECK(cuMemAllocAsync(&card_memory[i], length, streams[0]));
  finish(0);
  measure("to the card, bytes", to_card, length, rounds);
  measure("from the card, bytes", from_card, length, rounds);
  measure("on the card, bytes", on_card, length, rounds);
  for (int i = 0; i < 2; ++i) CHECK(cuMemFreeAsync(card_memory[i], streams[0]));
  finish(0);
  CHECK(cuMemFreeHost(host_memory));
}

int main(int argc, char** argv) {
  load(argc > 1 ? argv[1] : "libcuda.so.1");
  int rounds = argc > 3 ? atoi(argv[3]) : 200;
  if (rounds < 1 || rounds > MOST_ROUNDS) rounds = MOST_ROUNDS;
  int card = 0, version = 0;
  char name[128] = "";
  handle_t context, module;
  void* memory = NULL;
  CHECK(cuInit(0));
  CHECK(cuDriverGetVersion(&version));
  CHECK(cuDeviceGet(&card, argc > 2 ? atoi(argv[2]) : 0));
  CHECK(cuDeviceGetName(name, sizeof(name), card));
  CHECK(cuCtxCreate_v2(&context, 0, card));
  CHECK(cuStreamCreate(&streams[0], NON_BLOCKING));
  CHECK(cuStreamCreate(&streams[1], NON_BLOCKING));
  CHECK(cuEventCreate(&event, DISABLE_TIMING));
  CHECK(cuModuleLoadData(&module, KERNEL));
  CHECK(cuModuleGetFunction(&function, module, "nothing"));
  CHECK(cuMemHostAlloc(&memory, 64, PORTABLE_MAPPED));
  word = memory;
  *word = 0;
  printf("%s, CUDA %d.%d, %d rounds: median, and from the 10th to the 90th percentile\n", name, version / 1000,
         version % 1000 / 10, rounds);
  measure("a word", empty, 0, rounds);
  measure("allocate, free, a word", allocate, 1, rounds);
  measure("launches, an edge, a word", edge, 1, rounds);
  for (int i = 4; i < argc; ++i) measure("launches, a word", launches, atoi(argv[i]), rounds);
  static const int sizes[] = {64 << 10, 1 << 20, 16 << 20, 256 << 20};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) copies(sizes[i], rounds < 20 ? rounds : 20);
  static const int counts[] = {1, 2, 4, 8, 16, 32, 100};
  for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i) {
    measure("launches, a word", launches, counts[i], rounds);
    measure("launches, synchronize", launches_synchronized, counts[i], rounds);
    measure("make a graph", instantiate, counts[i], rounds);
    make_graph(counts[i]);
    measure("a graph, a word", graph, counts[i], rounds);
    CHECK(cuGraphExecDestroy(executable));
  }
  return 0;
}
