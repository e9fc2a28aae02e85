// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/* What a program tells the habanalabs driver, for systems that do not have the kernel's own header: written from the
 * documented layouts, with the names that the kernel's header has, so that a program is the same over both. */
#ifndef LAYOUTS_H_
#define LAYOUTS_H_

#include <linux/ioctl.h>
#include <linux/types.h>

struct hl_info_args {
  __u64 return_pointer;
  __u32 return_size;
  __u32 op;
  __u32 argument;
  __u32 pad;
};

struct hl_info_hw_ip_info {
  __u64 sram_base_address;
  __u64 dram_base_address;
  __u64 dram_size;
  __u32 sram_size;
  __u32 num_of_events;
  __u32 device_id;
  __u32 others[65];
};

#define HL_INFO_HW_IP_INFO 0

struct hl_cb_in {
  __u64 cb_handle;
  __u32 op;
  __u32 cb_size;
  __u32 ctx_id;
  __u32 flags;
};
struct hl_cb_out {
  __u64 cb_handle;
};
union hl_cb_args {
  struct hl_cb_in in;
  struct hl_cb_out out;
};

#define HL_CB_OP_CREATE 0
#define HL_CB_OP_DESTROY 1

struct hl_cs_chunk {
  __u64 cb_handle;
  __u32 queue_index;
  __u32 cb_size;
  __u32 cs_chunk_flags;
  __u32 others[11];
};

#define HL_CS_CHUNK_FLAGS_USER_ALLOC_CB 1

struct hl_cs_in {
  __u64 chunks_restore;
  __u64 chunks_execute;
  __u64 seq;
  __u32 num_chunks_restore;
  __u32 num_chunks_execute;
  __u32 timeout;
  __u32 cs_flags;
  __u32 ctx_id;
  __u32 pad;
};
struct hl_cs_out {
  __u64 seq;
  __u32 status;
  __u32 others[3];
};
union hl_cs_args {
  struct hl_cs_in in;
  struct hl_cs_out out;
};

struct hl_wait_cs_in {
  __u64 seq;
  __u64 timeout_us;
  __u32 ctx_id;
  __u32 flags;
  __u64 others[4];
};
struct hl_wait_cs_out {
  __u32 status;
  __u32 flags;
  __s64 timestamp_nsec;
  __u32 cs_completion_map;
  __u32 pad;
};
union hl_wait_cs_args {
  struct hl_wait_cs_in in;
  struct hl_wait_cs_out out;
};

#define HL_WAIT_CS_STATUS_COMPLETED 0

struct hl_mem_in {
  union {
    struct {
      __u64 mem_size;
      __u64 page_size;
    } alloc;
    struct {
      __u64 handle;
    } free;
    struct {
      __u64 hint_addr;
      __u64 handle;
    } map_device;
    struct {
      __u64 host_virt_addr;
      __u64 hint_addr;
      __u64 mem_size;
    } map_host;
    struct {
      __u64 device_virt_addr;
    } unmap;
    struct {
      __u64 addr;
      __u64 mem_size;
      __u64 offset;
    } export_dmabuf_fd;
  };
  __u32 op;
  __u32 flags;
  __u32 ctx_id;
  __u32 num_of_elements;
};
struct hl_mem_out {
  union {
    __u64 device_virt_addr;
    __u64 handle;
    __s32 fd;
  };
  __u64 other;
};
union hl_mem_args {
  struct hl_mem_in in;
  struct hl_mem_out out;
};

#define HL_MEM_OP_ALLOC 0
#define HL_MEM_OP_FREE 1
#define HL_MEM_OP_MAP 2
#define HL_MEM_OP_UNMAP 3
#define HL_MEM_OP_EXPORT_DMABUF_FD 5
#define HL_MEM_USERPTR 4

#define DRM_IOCTL_HL_INFO _IOWR('d', 0x40, struct hl_info_args)
#define DRM_IOCTL_HL_CB _IOWR('d', 0x41, union hl_cb_args)
#define DRM_IOCTL_HL_CS _IOWR('d', 0x42, union hl_cs_args)
#define DRM_IOCTL_HL_WAIT_CS _IOWR('d', 0x43, union hl_wait_cs_args)
#define DRM_IOCTL_HL_MEMORY _IOWR('d', 0x44, union hl_mem_args)

#endif
