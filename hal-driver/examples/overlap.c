// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Computes while bytes move: the progress loop of a communication library, over asynchronous transfers of a card.
//
//   overlap [URI]
//
// A transport submits a transfer and goes on. The library calls the transport's progress function whenever it has time,
// and the function polls the pending transfers and notifies their waiters. This program does that with transfers from a
// card's memory to the host in pieces: it computes a checksum of the pieces that have arrived while others are moving.

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hal_gaudi_dma.h"

enum { kPieces = 64, kPieceSize = 256 * 1024 };

// One transfer that a user of the transport waits for.
typedef struct pending_t {
  hlthunk_dma_request_t* request;
  uint8_t* data;
  bool arrived;
} pending_t;

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, hal_gaudi_last_error());
  return EXIT_FAILURE;
}

// Polls the pending transfers and records those that have ended. Returns their number, or an error.
static int progress(int card, pending_t* pending) {
  int arrived = 0;
  for (int i = 0; i < kPieces; ++i) {
    if (!pending[i].request) continue;
    int result = hlthunk_dma_poll(card, pending[i].request);
    if (result == -EINPROGRESS) continue;
    if (result < 0) return result;
    hlthunk_dma_request_free(pending[i].request);
    pending[i].request = NULL;
    pending[i].arrived = true;
    ++arrived;
  }
  return arrived;
}

// Some work for the processor.
static uint64_t checksum(const uint8_t* data, size_t length) {
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0; i < length; ++i) sum = (sum ^ data[i]) * 1099511628211u;
  return sum;
}

static int run(int card) {
  uint64_t memory = 0;
  if (hal_gaudi_memory_alloc(card, kPieces * kPieceSize, &memory) < 0) {
    return fail("no device memory");
  }
  uint8_t* source = malloc(kPieces * kPieceSize);
  uint8_t* target = calloc(kPieces, kPieceSize);
  if (!source || !target) {
    free(source);
    free(target);
    fprintf(stderr, "no host memory\n");
    return EXIT_FAILURE;
  }
  for (size_t i = 0; i < kPieces * kPieceSize; ++i) {
    source[i] = (uint8_t)((i * 2654435761u) >> 13);
  }

  // Data to read: sent in one transfer, and waited for in the simplest way.
  int status = EXIT_SUCCESS;
  hlthunk_dma_request_t* sent = NULL;
  if (hlthunk_dma_host_to_device_async(card, memory, source,
                                       kPieces * kPieceSize, &sent) < 0) {
    status = fail("nothing could be sent");
  } else {
    int result;
    while ((result = hlthunk_dma_poll(card, sent)) == -EINPROGRESS) {
    }
    if (result < 0) status = fail("sending failed");
    hlthunk_dma_request_free(sent);
  }

  // All pieces at once: submitting does not wait, however many there are.
  pending_t pending[kPieces] = {0};
  for (int i = 0; i < kPieces && status == EXIT_SUCCESS; ++i) {
    pending[i].data = target + (size_t)i * kPieceSize;
    if (hlthunk_dma_device_to_host_async(
            card, pending[i].data, memory + (uint64_t)i * kPieceSize,
            kPieceSize, &pending[i].request) < 0) {
      status = fail("a piece could not be asked for");
    }
  }

  // The loop: works on the pieces that have arrived while the others are moving.
  int done = 0, polls = 0, overlapped = 0;
  uint64_t sum = 0;
  while (status == EXIT_SUCCESS && done < kPieces) {
    if (progress(card, pending) < 0) {
      status = fail("a piece did not arrive");
      break;
    }
    ++polls;
    int on_their_way = 0;
    for (int i = 0; i < kPieces; ++i) on_their_way += pending[i].request != NULL;
    for (int i = 0; i < kPieces; ++i) {
      if (!pending[i].arrived) continue;
      pending[i].arrived = false;
      sum ^= checksum(pending[i].data, kPieceSize);
      overlapped += on_their_way > 0;
      ++done;
      break;
    }
  }

  if (status == EXIT_SUCCESS) {
    uint64_t expected = 0;
    for (int i = 0; i < kPieces; ++i) {
      expected ^= checksum(source + (size_t)i * kPieceSize, kPieceSize);
    }
    if (sum != expected || memcmp(source, target, kPieces * kPieceSize) != 0) {
      fprintf(stderr, "what arrived is not what was sent\n");
      status = EXIT_FAILURE;
    } else {
      printf("%d pieces arrived; %d were worked on while others were on their way; %d polls\n",
             done, overlapped, polls);
    }
  }
  // Pending transfers write to memory that is about to be freed.
  hlthunk_dma_release(card);
  for (int i = 0; i < kPieces; ++i) hlthunk_dma_request_free(pending[i].request);
  free(source);
  free(target);
  return status;
}

// Wrong arguments are refused with an error number and a sentence, and nothing happens.
static int refusals(int card) {
  hlthunk_dma_request_t* request = NULL;
  uint8_t byte = 0;
  if (hlthunk_dma_device_to_host_async(card, NULL, 0, 1, &request) != -EINVAL ||
      hlthunk_dma_device_to_host_async(card, &byte, 0, 0, &request) != -EINVAL ||
      hlthunk_dma_device_to_host_async(card, &byte, 0, 1, NULL) != -EINVAL ||
      hlthunk_dma_device_to_host_async(-1, &byte, 0, 1, &request) != -EINVAL ||
      hlthunk_dma_poll(card, NULL) != -EINVAL ||
      hal_gaudi_memory_free(card, 1) != -EINVAL || request != NULL ||
      strlen(hal_gaudi_last_error()) == 0) {
    fprintf(stderr, "something that makes no sense was not refused\n");
    return EXIT_FAILURE;
  }
  hlthunk_dma_request_free(NULL);
  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  const char* uri = argc > 1 ? argv[1] : "gaudi://emulated";
  int card = hal_gaudi_open(uri);
  if (card < 0) return fail(uri);
  int status = refusals(card);
  if (status == EXIT_SUCCESS) status = run(card);
  hal_gaudi_close(card);
  return status;
}
