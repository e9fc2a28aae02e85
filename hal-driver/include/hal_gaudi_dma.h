// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Asynchronous transfers between a program and a Gaudi card.
//
// A transfer is submitted at once and polled later, so that a program can compute, or look after other things, while bytes
// move. Any number of transfers may be on their way; what the kernel has no room for goes later, in order. Transfers in the
// same direction end in the order in which they were submitted; others may overtake each other. Any thread may call any
// of this. Only submissions and waits of the kernel's own interface are used, on upstream kernels too.
//
// Functions that return int return 0, or a descriptor where they say so, or the negative of an error number;
// hal_gaudi_last_error() says more about the last one on the same thread:
//
//   -EINPROGRESS  the transfer has not ended (hlthunk_dma_poll alone)
//   -EINVAL       an argument makes no sense; nothing has begun
//   -ENOMEM       no memory, or no more that may be pinned
//   -ETIMEDOUT    the card did not do it in time, and is being reset
//   -EIO          the card was reset while it did it
//   -ENODEV       the card is being reset, or gone
//
// After -ETIMEDOUT, -EIO or -ENODEV the card's memory is lost: release it, close it, and open it again.

#ifndef HAL_GAUDI_DMA_H_
#define HAL_GAUDI_DMA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif  // __cplusplus

// A transfer that was asked for. Free it when it is no longer polled.
typedef struct hlthunk_dma_request hlthunk_dma_request_t;

// Copies |size| bytes from |device_addr| to |host_addr|, which must stay valid until the transfer has ended. |fd| is a
// card that this process has open, however it was opened. |request_p| gets the request.
int hlthunk_dma_device_to_host_async(int fd, void* host_addr,
                                     uint64_t device_addr, uint64_t size,
                                     hlthunk_dma_request_t** request_p);

// Copies |size| bytes from |host_addr|, which must stay valid and unchanged until the transfer has ended, to |device_addr|.
// Memory that cannot be written cannot be pinned, and is refused.
int hlthunk_dma_host_to_device_async(int fd, uint64_t device_addr,
                                     const void* host_addr, uint64_t size,
                                     hlthunk_dma_request_t** request_p);

// Copies |size| bytes within the device.
int hlthunk_dma_device_to_device_async(int fd, uint64_t target_addr,
                                       uint64_t source_addr, uint64_t size,
                                       hlthunk_dma_request_t** request_p);

// Repeats |pattern| over |size| bytes of device memory, a multiple of four.
int hlthunk_dma_memset_async(int fd, uint64_t device_addr, uint32_t pattern,
                             uint64_t size, hlthunk_dma_request_t** request_p);

// Whether a transfer has ended: 0 if it has, -EINPROGRESS if not, or how it failed. Does not wait, and may be asked again.
int hlthunk_dma_poll(int fd, hlthunk_dma_request_t* request);

// Lets go of a request. A transfer that has not ended runs on.
void hlthunk_dma_request_free(hlthunk_dma_request_t* request);

// Waits for all transfers of a card and forgets it. Call it before the descriptor is closed: until then the card is
// kept open here. A card that is closed in the middle of its work is reset.
int hlthunk_dma_release(int fd);

// Opens a card by a URI such as "gaudi://0" or "gaudi://emulated": its descriptor, for hal_gaudi_close() alone to close.
int hal_gaudi_open(const char* uri);

// Releases and closes a card.
int hal_gaudi_close(int fd);

// Takes device memory of a card, in whole pages of 4096 bytes, and gives its address.
int hal_gaudi_memory_alloc(int fd, uint64_t size, uint64_t* out_address);

// Gives device memory back.
int hal_gaudi_memory_free(int fd, uint64_t address);

// What the last failure on this thread says: a string that is valid until the next one.
const char* hal_gaudi_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  // HAL_GAUDI_DMA_H_
