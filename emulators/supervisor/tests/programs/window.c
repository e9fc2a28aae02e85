// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A program for Tenstorrent cards over the kernel's requests alone, and nothing of this project: maps windows into the
// card's memory and accesses them by every kind of instruction that compilers make, from threads and children, and is
// told by signals what is not there any more.
//
//   window /dev/tenstorrent/0

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 2 << 20, ALLOCATE = 0xfa0b, FREE = 0xfa0c, CONFIGURE = 0xfa0d, RESET = 0xfa06 };

struct allocate {
  uint64_t size, reserved;
  uint32_t id, reserved0;
  uint64_t uncached, combining, reserved1;
};

struct configure {
  uint32_t id, reserved;
  uint64_t address;
  uint16_t x_end, y_end, x_start, y_start;
  uint8_t noc, multicast, ordering, linked, channel, pad[3];
  uint32_t reserved0[2];
  uint64_t out;
};

struct reset {
  uint32_t room, flags, size, result;
};

static int card;

static void expect(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static struct allocate allocate(void) {
  struct allocate window = {.size = SIZE};
  expect(ioctl(card, ALLOCATE, &window) == 0, "a window");
  return window;
}

static void show(uint32_t id, uint64_t address) {
  // A bank of memory, on every Blackhole.
  struct configure window = {.id = id, .address = address, .x_end = 17, .y_end = 12};
  expect(ioctl(card, CONFIGURE, &window) == 0, "the window's target");
}

static void *map(uint64_t offset) {
  void *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, card, offset);
  expect(mapped != MAP_FAILED, "a mapping");
  return mapped;
}

// Single accesses of each width, of constants and of values, with signs, and of bits.
static void scalars(volatile unsigned char *at) {
  *(volatile uint64_t *)at = 0x1122334455667788;
  expect(*(volatile uint32_t *)at == 0x55667788 && *(volatile uint16_t *)(at + 6) == 0x1122, "words");
  expect(at[7] == 0x11 && (signed char)at[0] == (signed char)0x88, "bytes");
  *(volatile int16_t *)at = -2;
  expect(*(volatile int16_t *)at == -2 && *(volatile int32_t *)at == 0x5566fffe, "a sign");
  at[1] = 7;
  *(volatile uint32_t *)(at + 4) |= 1 << 31;
  *(volatile uint32_t *)(at + 4) += 1;
  *(volatile uint64_t *)at ^= 1;
  expect(*(volatile uint64_t *)at == 0x91223345556607ff, "what is read, changed and written");
  expect(__sync_fetch_and_add((volatile uint32_t *)at, 2) == 0x556607ff, "an addition");
  expect(__sync_bool_compare_and_swap((volatile uint32_t *)at, 0x55660801, 5), "a swap");
  *(volatile double *)(at + 8) = 1.5;
  *(volatile double *)(at + 8) *= 2;
  *(volatile float *)(at + 16) = (float)*(volatile double *)(at + 8);
  expect(*(volatile double *)(at + 8) == 3.0 && *(volatile float *)(at + 16) == 3.0f, "numbers");
}

// Blocks of many lengths and places, as the library moves them.
static void blocks(unsigned char *at) {
  static unsigned char from[3 * 4096], to[3 * 4096];
  for (int i = 0; i < (int)sizeof from; i++) from[i] = (unsigned char)(i * 7 + i / 251);
  for (int length = 1; length < 9000; length = length * 5 / 4 + 3) {
    memcpy(at + length % 64, from + 5, length);
    memset(to, 0, sizeof to);
    memcpy(to + 3, at + length % 64, length);
    expect(memcmp(to + 3, from + 5, length) == 0 && to[3 + length] == 0, "a copy");
    expect(memcmp(at + length % 64, from + 5, length) == 0, "a comparison");
    memset(at, length, length);
    expect(at[0] == (unsigned char)length && at[length - 1] == (unsigned char)length, "a fill");
  }
}

static void *count(void *argument) {
  volatile uint32_t *words = argument;
  for (int i = 0; i < 500; i++) words[0] = words[0] + 1;
  return NULL;
}

static sigjmp_buf gone;
static volatile sig_atomic_t caught;

static void bus_error(int number) {
  caught = number;
  siglongjmp(gone, 1);
}

int main(int argc, char **argv) {
  expect(argc == 2, "usage: window NODE");
  card = open(argv[1], O_RDWR | O_CLOEXEC);
  expect(card >= 0, argv[1]);
  struct allocate one = allocate(), other = allocate();
  show(one.id, 0);
  show(other.id, 0);
  unsigned char *first = map(one.uncached), *second = map(other.combining);
  scalars(first);
  blocks(first);
  memcpy(first + 100, "seen by both", 13);
  expect(strcmp((char *)second + 100, "seen by both") == 0, "the other window");
  expect(ioctl(card, FREE, &one.id) == -1 && errno == EBUSY, "a window that is mapped");
  // Another target, under the same mapping.
  show(other.id, SIZE);
  memset(second, 9, 4096);
  expect(first[0] != 9, "another target");
  expect(read(card, first, 0) == 0, "a call with an address of a window");

  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    *(volatile uint32_t *)(first + 256 * i) = 0;
    expect(pthread_create(&threads[i], NULL, count, first + 256 * i) == 0, "a thread");
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    expect(*(volatile uint32_t *)(first + 256 * i) == 500, "a thread's count");
  }
  pid_t child = fork();
  if (child == 0) {
    first[4000] = 77;
    _exit(first[256] == (500 & 255) ? 0 : 1);
  }
  int status;
  expect(waitpid(child, &status, 0) == child && status == 0 && first[4000] == 77, "a child");
  // A child that runs another program is none of the card's.
  expect(system("exit 3") == 3 << 8, "another program");

  // A window is unmapped and moved as a whole, also beside the next one.
  for (int at = 0; at < SIZE; at += SIZE / 4) {
    expect(munmap(second + at, 4096) == -1 && errno == EINVAL, "a part is unmapped");
  }
  expect(munmap(second - 4096, 8192) == -1 && errno == EINVAL, "a part and memory in front");
  expect(mremap(second, SIZE, 4096, 0) == MAP_FAILED && errno == EINVAL, "a part stays");
  struct allocate pair[] = {allocate(), allocate()};
  unsigned char *room = mmap(NULL, 2 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < 2; i++) {
    void *place = room + i * SIZE;
    void *mapped = mmap(place, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, card, pair[i].uncached);
    expect(mapped == place, "two windows side by side");
  }
  for (int i = 0; i < 2; i++) {
    expect(munmap(room + i * SIZE, SIZE) == 0 && ioctl(card, FREE, &pair[i].id) == 0, "one of two windows");
  }

  expect(munmap(second, SIZE) == 0 && ioctl(card, FREE, &other.id) == 0, "a window that is not mapped");
  other = allocate();
  show(other.id, 0);
  second = map(other.uncached);
  expect(second[4000] == 77, "a window again");

  // Another file resets the card: what was mapped is gone, and the rest of the program goes on.
  struct sigaction action = {.sa_handler = bus_error};
  sigaction(SIGBUS, &action, NULL);
  int resetting = open(argv[1], O_RDWR | O_CLOEXEC);
  struct reset reset = {.room = 8, .flags = 4};
  expect(ioctl(resetting, RESET, &reset) == 0 && reset.size == 8 && reset.result == 0, "a reset");
  if (sigsetjmp(gone, 1) == 0) printf("%d after a reset\n", *(volatile unsigned char *)first);
  expect(caught == SIGBUS, "a signal for an access after a reset");
  expect(ioctl(card, ALLOCATE, &one) == -1 && errno == ENODEV, "a file from before the reset");
  expect(ioctl(resetting, ALLOCATE, &one) == -1 && errno == ENODEV, "a reset that is not over");
  reset.flags = 6;
  expect(ioctl(resetting, RESET, &reset) == 0, "the end of a reset");
  close(card);
  card = resetting;
  one = allocate();
  show(one.id, 0);
  unsigned char *again = map(one.uncached);
  expect(again[4000] == 0, "memory after a reset");
  again[0] = 1;
  printf("windows ok\n");
  fflush(stdout);
  // Killed with a mapping, it leaves nothing behind.
  kill(getpid(), SIGKILL);
}
