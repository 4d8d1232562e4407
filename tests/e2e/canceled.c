/*
 * Threads that are canceled while they make, use and destroy objects of libibverbs. With adapters
 * these calls are no cancellation points: a thread ends between them, and others go on.
 *
 *   canceled DEVICE ROUNDS
 */
#include <pthread.h>
#include <unistd.h>

#include "loopback.h"

enum { THREADS = 3, BYTES = 1 << 16 };

static struct ibv_context *context;
static char memory[THREADS][BYTES];

static void objects(char *bytes)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd != NULL);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(mr != NULL && cq != NULL);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp != NULL && ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void *work(void *bytes)
{
	for (;;) {
		pthread_testcancel();
		objects(bytes);
	}
	return NULL;
}

int main(int count, char **words)
{
	CHECK(count == 3);
	context = open_device(words[1]);
	for (int round = 0; round < atoi(words[2]); round++) {
		pthread_t threads[THREADS];
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_create(&threads[i], NULL, work, memory[i]) == 0);
		for (int i = 0; i < THREADS; i++) {
			usleep(500 + round * 37 % 2000);
			CHECK(pthread_cancel(threads[i]) == 0);
			CHECK(pthread_join(threads[i], NULL) == 0);
		}
		objects(memory[0]);
	}
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
