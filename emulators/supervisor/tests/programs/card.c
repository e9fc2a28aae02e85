// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A program for Gaudi cards over the kernel's header alone, and nothing of this project: takes device memory, moves
// bytes down to it and up again by command submissions, waits, exports a dma-buf, passes it to a child over a socket,
// and gives everything back.
//
//   card --abi          says which request numbers it was built for: drm or old
//   card /dev/accel/accel0
//
// Where the system has no such header, or OWN_LAYOUTS is defined, the layouts beside this file stand for it.

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef OWN_LAYOUTS
#include "layouts.h"
#define ABI "drm"
#elif __has_include(<drm/habanalabs_accel.h>)
#include <drm/habanalabs_accel.h>
#define ABI "drm"
#elif __has_include(<misc/habanalabs.h>)
#include <misc/habanalabs.h>
#define ABI "old"
#define DRM_IOCTL_HL_INFO HL_IOCTL_INFO
#define DRM_IOCTL_HL_CB HL_IOCTL_CB
#define DRM_IOCTL_HL_CS HL_IOCTL_CS
#define DRM_IOCTL_HL_WAIT_CS HL_IOCTL_WAIT_CS
#define DRM_IOCTL_HL_MEMORY HL_IOCTL_MEMORY
#else
#include "layouts.h"
#define ABI "drm"
#endif

enum { SIZE = 1 << 20, PAGE = 4096 };

static int card;
static int second_generation;

static void expect(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static void request(unsigned long number, void *argument, const char *what) {
  expect(ioctl(card, number, argument) == 0, what);
}

static uint64_t map_host(void *memory, uint64_t size) {
  union hl_mem_args args;
  memset(&args, 0, sizeof args);
  args.in.op = HL_MEM_OP_MAP;
  args.in.flags = HL_MEM_USERPTR;
  args.in.map_host.host_virt_addr = (uintptr_t)memory;
  args.in.map_host.mem_size = size;
  request(DRM_IOCTL_HL_MEMORY, &args, "mapping host memory");
  return args.out.device_virt_addr;
}

static void unmap(uint64_t address) {
  union hl_mem_args args;
  memset(&args, 0, sizeof args);
  args.in.op = HL_MEM_OP_UNMAP;
  args.in.unmap.device_virt_addr = address;
  request(DRM_IOCTL_HL_MEMORY, &args, "unmapping");
}

// Moves bytes on a queue, and waits until they have arrived. The commands are in a buffer of the kernel on the first
// generation, which copies them from there, and in host memory that the device sees on the second.
static void move_bytes(uint32_t queue, uint64_t source, uint64_t target) {
  uint32_t control = second_generation ? 0x89000000u : 0xC9000008u;
  uint64_t packet[3] = {SIZE | (uint64_t)control << 32, source, target};
  union hl_cb_args buffer;
  memset(&buffer, 0, sizeof buffer);
  void *commands;
  uint64_t where;
  if (second_generation) {
    commands = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(commands != MAP_FAILED, "taking a page");
    where = map_host(commands, PAGE);
  } else {
    buffer.in.op = HL_CB_OP_CREATE;
    buffer.in.cb_size = PAGE;
    request(DRM_IOCTL_HL_CB, &buffer, "creating a command buffer");
    where = buffer.out.cb_handle;
    expect(mmap(NULL, PAGE / 2 + PAGE, PROT_READ, MAP_SHARED, card, (off_t)where) == MAP_FAILED && errno == EINVAL,
           "a command buffer was mapped with another length");
    commands = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, card, (off_t)where);
    expect(commands != MAP_FAILED, "mapping a command buffer");
    expect(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, card, (off_t)where) == MAP_FAILED && errno == EINVAL,
           "a command buffer was mapped twice");
  }
  memcpy(commands, packet, sizeof packet);

  struct hl_cs_chunk chunk;
  memset(&chunk, 0, sizeof chunk);
  chunk.cb_handle = where;
  chunk.queue_index = queue;
  chunk.cb_size = sizeof packet;
  chunk.cs_chunk_flags = second_generation ? HL_CS_CHUNK_FLAGS_USER_ALLOC_CB : 0;
  union hl_cs_args submission;
  memset(&submission, 0, sizeof submission);
  submission.in.chunks_execute = (uintptr_t)&chunk;
  submission.in.num_chunks_execute = 1;
  request(DRM_IOCTL_HL_CS, &submission, "submitting");

  union hl_wait_cs_args wait;
  memset(&wait, 0, sizeof wait);
  wait.in.seq = submission.out.seq;
  wait.in.timeout_us = 10 * 1000 * 1000;
  request(DRM_IOCTL_HL_WAIT_CS, &wait, "waiting");
  expect(wait.out.status == HL_WAIT_CS_STATUS_COMPLETED, "a submission did not complete");

  if (second_generation) {
    unmap(where);
  } else {
    memset(&buffer, 0, sizeof buffer);
    buffer.in.op = HL_CB_OP_DESTROY;
    buffer.in.cb_handle = where;
    request(DRM_IOCTL_HL_CB, &buffer, "destroying a command buffer");
    expect(((uint64_t *)commands)[1] == source, "a command buffer was taken away while it was mapped");
  }
  munmap(commands, PAGE);
}

// Passes a descriptor to a child over a socket. The child checks that it is the same file.
static void pass(int descriptor) {
  int pair[2];
  expect(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "making sockets");
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
  } control;
  memset(&control, 0, sizeof control);
  char byte = 'f';
  struct iovec piece = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  pid_t child = fork();
  expect(child >= 0, "forking");
  if (child == 0) {
    struct stat here;
    if (close(card) || recvmsg(pair[1], &message, 0) != 1) _exit(1);
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    _exit(fstat(received, &here) == 0 && here.st_size > 0 ? 0 : 2);
  }
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  expect(sendmsg(pair[0], &message, 0) == 1, "passing a descriptor");
  int status = 1;
  expect(waitpid(child, &status, 0) == child && status == 0, "the child did not get the dma-buf");
  close(pair[0]);
  close(pair[1]);
}

int main(int count, char **words) {
  if (count == 2 && strcmp(words[1], "--abi") == 0) return puts(ABI) < 0;
  card = open(count > 1 ? words[1] : "/dev/accel/accel0", O_RDWR | O_CLOEXEC);
  expect(card >= 0, "opening the card");
  struct stat status;
  expect(fstat(card, &status) == 0 && S_ISCHR(status.st_mode), "the card is no character device");

  struct hl_info_hw_ip_info hardware;
  memset(&hardware, 0, sizeof hardware);
  struct hl_info_args info;
  memset(&info, 0, sizeof info);
  info.op = HL_INFO_HW_IP_INFO;
  info.return_pointer = (uintptr_t)&hardware;
  info.return_size = sizeof hardware;
  request(DRM_IOCTL_HL_INFO, &info, "asking what the card is");
  second_generation = hardware.device_id >= 0x1020;
  errno = 0;
  expect(ioctl(card, _IO('d', 0xff), 0) < 0 && errno != 0, "a request that does not exist was answered");

  union hl_mem_args memory;
  memset(&memory, 0, sizeof memory);
  memory.in.op = HL_MEM_OP_ALLOC;
  memory.in.alloc.mem_size = SIZE;
  request(DRM_IOCTL_HL_MEMORY, &memory, "taking device memory");
  uint64_t handle = memory.out.handle;
  uint64_t device = hardware.dram_base_address;
  if (second_generation) {
    memset(&memory, 0, sizeof memory);
    memory.in.op = HL_MEM_OP_MAP;
    memory.in.map_device.handle = handle;
    request(DRM_IOCTL_HL_MEMORY, &memory, "mapping device memory");
    device = memory.out.device_virt_addr;
  }

  // Neither begins at a page, nor ends at one.
  uint32_t *down = (uint32_t *)(calloc(1, SIZE + 64) + 16);
  uint32_t *up = (uint32_t *)(calloc(1, SIZE + 64) + 32);
  expect(down && up, "taking memory");
  for (uint32_t i = 0; i < SIZE / 4; ++i) down[i] = i * 2654435761u;
  uint64_t from = map_host(down, SIZE), to = map_host(up, SIZE);
  // What is written after it was mapped counts as well.
  down[7] = 7;
  move_bytes(0, from, device);
  move_bytes(4, device, to);
  expect(memcmp(down, up, SIZE) == 0, "other bytes came up than went down");
  expect(up[-1] == 0 && up[SIZE / 4] == 0, "bytes beside the target were written");

  memset(&memory, 0, sizeof memory);
  memory.in.op = HL_MEM_OP_EXPORT_DMABUF_FD;
  memory.in.flags = O_RDWR | O_CLOEXEC;
  // The first field is the address to export in every kernel since 6.4, whatever it is called.
  memcpy(&memory.in, &device, sizeof device);
  memory.in.export_dmabuf_fd.mem_size = SIZE;
  request(DRM_IOCTL_HL_MEMORY, &memory, "exporting device memory");
  int buffer = memory.out.fd;
  expect(fcntl(buffer, F_GETFD) == FD_CLOEXEC, "the dma-buf is open across exec");
  pass(buffer);
  expect(close(buffer) == 0, "closing the dma-buf");

  unmap(from);
  unmap(to);
  if (second_generation) unmap(device);
  memset(&memory, 0, sizeof memory);
  memory.in.op = HL_MEM_OP_FREE;
  // Where memory has no handles, its size is given back.
  memory.in.free.handle = second_generation ? handle : SIZE;
  request(DRM_IOCTL_HL_MEMORY, &memory, "giving device memory back");
  expect(close(card) == 0, "closing the card");
  printf("device %#x: %d bytes went down and up, and a dma-buf to another process\n", hardware.device_id, SIZE);
  return 0;
}
