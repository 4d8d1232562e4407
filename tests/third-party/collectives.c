/*
 * MPI between two hosts: Allreduce, Alltoall, messages and one-sided operations of 8 bytes to
 * 1 MiB. Each rank looks at every number that it receives.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBERS_MAX = 1 << 17, ROUNDS = 3 };

static int64_t number(int rank, size_t index, int round) {
  return (int64_t)rank * 1000003 + (int64_t)index * 7919 + round;
}

int main(int argc, char **argv) {
  int rank, ranks, length;
  char host[MPI_MAX_PROCESSOR_NAME];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Get_processor_name(host, &length);
  size_t most = (size_t)NUMBERS_MAX * (size_t)ranks;
  int64_t *sent = malloc(most * sizeof *sent);
  int64_t *received = malloc(most * sizeof *received);
  int64_t *memory;
  MPI_Win window;
  MPI_Win_allocate((MPI_Aint)(most * sizeof *memory), sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &memory, &window);
  long wrong = 0;
  int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  for (int round = 0; round < ROUNDS; round++) {
    for (size_t count = 1; count <= NUMBERS_MAX; count *= 8) {
      for (size_t i = 0; i < count; i++) sent[i] = number(rank, i, round);
      MPI_Allreduce(sent, received, (int)count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
      for (size_t i = 0; i < count; i++) {
        int64_t sum = 0;
        for (int from = 0; from < ranks; from++) sum += number(from, i, round);
        wrong += received[i] != sum;
      }
      for (int to = 0; to < ranks; to++) {
        for (size_t i = 0; i < count; i++)
          sent[(size_t)to * count + i] = number(rank, i, round + 10 * to);
      }
      MPI_Alltoall(sent, (int)count, MPI_INT64_T, received, (int)count, MPI_INT64_T, MPI_COMM_WORLD);
      for (int from = 0; from < ranks; from++) {
        for (size_t i = 0; i < count; i++)
          wrong += received[(size_t)from * count + i] != number(from, i, round + 10 * rank);
      }
      MPI_Sendrecv(sent, (int)count, MPI_INT64_T, next, 0, received, (int)count, MPI_INT64_T, last, 0,
                   MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      for (size_t i = 0; i < count; i++) wrong += received[i] != number(last, i, round);
      MPI_Win_fence(0, window);
      MPI_Put(sent, (int)count, MPI_INT64_T, next, 0, (int)count, MPI_INT64_T, window);
      MPI_Win_fence(0, window);
      for (size_t i = 0; i < count; i++) wrong += memory[i] != number(last, i, round);
      MPI_Win_fence(0, window);
      MPI_Accumulate(sent, (int)count, MPI_INT64_T, next, 0, (int)count, MPI_INT64_T, MPI_SUM, window);
      MPI_Win_fence(0, window);
      MPI_Get(received, (int)count, MPI_INT64_T, next, 0, (int)count, MPI_INT64_T, window);
      MPI_Win_fence(0, window);
      for (size_t i = 0; i < count; i++) wrong += received[i] != 2 * number(rank, i, round);
      MPI_Win_fence(0, window);
    }
  }
  printf("rank %d of %d on %s: %ld wrong\n", rank, ranks, host, wrong);
  fflush(stdout);
  MPI_Win_free(&window);
  MPI_Finalize();
  return wrong != 0;
}
