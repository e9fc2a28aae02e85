// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// What the MPI library's own non-blocking collectives cost, each tested until it has ended, in the words of
// benches/collectives.rs: one rank of a job.
//
//   mpirun -n 2 plain_mpi WAY

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FEWEST = 7, MOST = 100, WARM = 20000 };

static int compare(const void* a, const void* b) {
  double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

static long limit(long value, long least, long most) {
  return value < least ? least : value > most ? most : value;
}

// Without memory that is sent, in place.
static void once(bool gathers, const float* sent, float* recv, int count) {
  const void* send = sent ? sent : MPI_IN_PLACE;
  MPI_Request request;
  if (gathers) {
    MPI_Iallgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD, &request);
  } else {
    MPI_Iallreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  }
  for (int over = 0; !over;) MPI_Test(&request, &over, MPI_STATUS_IGNORE);
}

// Memory as a device's: large memory begins in the middle of a page, and is of huge pages as far as it fills some.
enum { PLACED = 64 << 10, PAGE = 4 << 10, HUGE = 2 << 20 };

static char* allocate(size_t bytes) {
  if (bytes < PLACED) return malloc(bytes);
  void* memory = NULL;
  size_t length = bytes + PAGE / 2;
  if (posix_memalign(&memory, bytes < HUGE ? PAGE : HUGE, length)) return NULL;
  if (length >= HUGE) madvise(memory, length - length % HUGE, MADV_HUGEPAGE);
  return (char*)memory + PAGE / 2;
}

static void let_go(char* memory, size_t bytes) { free(bytes < PLACED ? memory : memory - PAGE / 2); }

int main(int argc, char** argv) {
  static const long sizes[] = {8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20};
  int rank = 0, ranks = 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char* way = argc > 1 ? argv[1] : "mpi";
  // Until the system has each rank on a processor of its own, if there are as many, and otherwise has as many on each.
  float one = 0, all = 0;
  for (int i = 0; i < WARM; ++i) {
    MPI_Allreduce(&one, &all, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (i % 100 == 0) usleep(1000);
  }
  double settles = MPI_Wtime();
  for (int i = 0; i < 100; ++i) once(false, &one, &all, 1);
  long left = (long)(0.5 / ((MPI_Wtime() - settles) / 100 + 1e-9));
  MPI_Bcast(&left, 1, MPI_LONG, 0, MPI_COMM_WORLD);
  while (left-- > 0) once(false, &one, &all, 1);
  for (int kind = 0; kind < 4; ++kind) {
    bool gathers = kind % 2 == 1, in_place = kind >= 2;
    for (size_t size = 0; size < sizeof(sizes) / sizeof(sizes[0]); ++size) {
      long bytes = gathers ? (sizes[size] / ranks + 3) / 4 * 4 : sizes[size];
      long all = gathers ? bytes * ranks : bytes;
      float* send = in_place ? NULL : (float*)allocate(bytes);
      float* recv = (float*)allocate(all);
      if ((!send && !in_place) || !recv) MPI_Abort(MPI_COMM_WORLD, 1);
      if (send) memset(send, 0, bytes);
      memset(recv, 0, all);
      once(gathers, send, recv, (int)(bytes / 4));
      double warm = MPI_Wtime();
      for (int i = 0; i < 3; ++i) once(gathers, send, recv, (int)(bytes / 4));
      // A round takes about 1 ms, and all of them 100, and all ranks do as many as the first would.
      double each = (MPI_Wtime() - warm) / 3 + 1e-9;
      long count = limit((long)(1e-3 / each), 1, 500);
      long counts[] = {count, limit((long)(0.1 / each / count), FEWEST, MOST)};
      MPI_Bcast(counts, 2, MPI_LONG, 0, MPI_COMM_WORLD);
      count = counts[0];
      double rounds[MOST];
      for (int round = -1; round < counts[1]; ++round) {
        double begin = MPI_Wtime();
        for (long i = 0; i < count; ++i) once(gathers, send, recv, (int)(bytes / 4));
        if (round >= 0) rounds[round] = (MPI_Wtime() - begin) * 1e6 / count;
      }
      qsort(rounds, counts[1], sizeof(double), compare);
      if (rank == 0) {
        const char* name = gathers ? "all_gather" : "all_reduce";
        const char* where = in_place ? "_in_place" : "";
        printf("%s %s%s %d %ld %.3f\n", way, name, where, ranks, bytes, rounds[counts[1] / 2]);
      }
      if (send) let_go((char*)send, bytes);
      let_go((char*)recv, all);
    }
  }
  MPI_Finalize();
  return 0;
}
