/* Allreduce of 16 MiB, some times, over MPI: every number of the result is looked at.
 *
 *   allreduce ROUNDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBERS = 4 << 20 };

/* Small whole numbers: their sum in any order is exact. */
static float number(int place, int rank, int round)
{
	return (float)(place % 1000 * (rank + 1) + round);
}

int main(int count, char **words)
{
	int rank, ranks, wrong = 0, rounds = count > 1 ? atoi(words[1]) : 1;
	float *ours = malloc(NUMBERS * sizeof *ours), *sum = malloc(NUMBERS * sizeof *sum);

	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int round = 0; round < rounds; round++) {
		for (int place = 0; place < NUMBERS; place++)
			ours[place] = number(place, rank, round);
		MPI_Allreduce(ours, sum, NUMBERS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		for (int place = 0; place < NUMBERS; place++) {
			float wanted = 0;
			for (int other = 0; other < ranks; other++)
				wanted += number(place, other, round);
			wrong += sum[place] != wanted;
		}
	}
	printf("rank %d of %d: %d wrong\n", rank, ranks, wrong);
	MPI_Finalize();
	return wrong != 0;
}
