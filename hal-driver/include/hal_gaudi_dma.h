// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Asynchronous transfers between a program and a Gaudi card.
//
// A transfer is submitted at once and polled later, so that a program can compute while bytes move. Any number of
// transfers may be pending; those for which the kernel has no room are submitted later, in order. Transfers in the same
// direction end in the order of their submission; others may overtake each other. Any thread may call any function. The
// functions use only submissions and waits of the upstream kernel's interface.
//
// Functions that return int return 0 or a descriptor, or the negative of an error number; hal_gaudi_last_error() has
// the message of the last error on the same thread:
//
//   -EINPROGRESS  the transfer has not ended (only from hlthunk_dma_poll)
//   -EINVAL       an argument is wrong; nothing has begun
//   -ENOMEM       no memory, or no more that may be pinned
//   -ETIMEDOUT    the card did not end the transfer in time, and is being reset
//   -EIO          the card was reset during the transfer
//   -ENODEV       the card is being reset, or gone
//
// After -ETIMEDOUT, -EIO or -ENODEV the card's memory is lost: release it, close it, and open it again.

#ifndef HAL_GAUDI_DMA_H_
#define HAL_GAUDI_DMA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif  // __cplusplus

// A submitted transfer. Free it when it is no longer polled.
typedef struct hlthunk_dma_request hlthunk_dma_request_t;

// Copies |size| bytes from |device_addr| to |host_addr|, which must stay valid until the transfer has ended. |fd| is a
// card that this process has open, however it was opened. |request_p| gets the request.
int hlthunk_dma_device_to_host_async(int fd, void* host_addr,
                                     uint64_t device_addr, uint64_t size,
                                     hlthunk_dma_request_t** request_p);

// Copies |size| bytes from |host_addr| to |device_addr|. The source must stay valid and unchanged until the transfer
// has ended. Read-only memory cannot be pinned, and is refused.
int hlthunk_dma_host_to_device_async(int fd, uint64_t device_addr,
                                     const void* host_addr, uint64_t size,
                                     hlthunk_dma_request_t** request_p);

// Copies |size| bytes within the device.
int hlthunk_dma_device_to_device_async(int fd, uint64_t target_addr,
                                       uint64_t source_addr, uint64_t size,
                                       hlthunk_dma_request_t** request_p);

// Fills |size| bytes of device memory, a multiple of four, with |pattern|.
int hlthunk_dma_memset_async(int fd, uint64_t device_addr, uint32_t pattern,
                             uint64_t size, hlthunk_dma_request_t** request_p);

// Polls a transfer: 0 if it has ended, -EINPROGRESS if not, or its error. Does not wait, and may be called again.
int hlthunk_dma_poll(int fd, hlthunk_dma_request_t* request);

// Frees a request. A transfer that has not ended continues.
void hlthunk_dma_request_free(hlthunk_dma_request_t* request);

// Waits for all transfers of a card and releases it. Call it before closing the descriptor: until then the card stays
// open here. A card that is closed during its work is reset.
int hlthunk_dma_release(int fd);

// Opens a card by a URI such as "gaudi://0" or "gaudi://emulated". Returns a descriptor for hal_gaudi_close().
int hal_gaudi_open(const char* uri);

// Releases and closes a card.
int hal_gaudi_close(int fd);

// Allocates device memory of a card, in whole pages of 4096 bytes.
int hal_gaudi_memory_alloc(int fd, uint64_t size, uint64_t* out_address);

// Frees device memory.
int hal_gaudi_memory_free(int fd, uint64_t address);

// The message of the last failure on this thread, valid until the next failure.
const char* hal_gaudi_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  // HAL_GAUDI_DMA_H_
