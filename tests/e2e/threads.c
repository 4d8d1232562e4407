/*
 * Eight threads on two queue pairs, one completion queue and one shared receive queue of
 * libibverbs: every message's bytes are looked at, and each arrives once. Both ends are this
 * process, so all threads post to both.
 *
 *   threads DEVICE GID_INDEX SECONDS
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "loopback.h"

enum { THREADS = 8, SLOTS = 64, RECEIVES = 256, BYTES = 2048, PARTS = 2 };

static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qps[2];
static struct ibv_mr *sends, *receives;
static unsigned char (*send_slots)[BYTES], (*receive_slots)[BYTES];
static atomic_int slot_is_free[THREADS][SLOTS];
static atomic_ulong sent, arrived;
static atomic_int receivers_done;
static double end_time;

static double now(void)
{
	struct timespec it;
	clock_gettime(CLOCK_MONOTONIC, &it);
	return it.tv_sec + it.tv_nsec / 1e9;
}

/* Bytes of a message: its first four are a number, the others follow from it. */
static void fill(unsigned char *bytes, unsigned length, unsigned number)
{
	memcpy(bytes, &number, 4);
	for (unsigned i = 4; i < length; i++)
		bytes[i] = (unsigned char)(number * 31 + i * 7 + (i >> 8));
}

static void check(const unsigned char *bytes, unsigned length)
{
	unsigned number;
	memcpy(&number, bytes, 4);
	CHECK(length == 64 + number % (BYTES - 64));
	for (unsigned i = 4; i < length; i++)
		CHECK(bytes[i] == (unsigned char)(number * 31 + i * 7 + (i >> 8)));
}

static void post_receive(unsigned slot)
{
	struct ibv_sge sge = { (uintptr_t)receive_slots[slot], BYTES, receives->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1ul << 32 | slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static void reap(void)
{
	struct ibv_wc done[16];
	int count = ibv_poll_cq(cq, 16, done);
	CHECK(count >= 0);
	for (int i = 0; i < count; i++) {
		CHECK(done[i].status == IBV_WC_SUCCESS);
		unsigned number = (unsigned)done[i].wr_id;
		if (done[i].wr_id >> 32) {
			CHECK(done[i].opcode == IBV_WC_RECV);
			check(receive_slots[number], done[i].byte_len);
			atomic_fetch_add(&arrived, 1);
			post_receive(number);
		} else {
			CHECK(done[i].opcode == IBV_WC_SEND);
			atomic_store(&slot_is_free[number / SLOTS][number % SLOTS], 1);
		}
	}
}

static void *work(void *which)
{
	unsigned thread = (unsigned)(uintptr_t)which, number = thread * 0x01000000u;
	while (now() < end_time) {
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			int one = 1;
			if (!atomic_compare_exchange_strong(&slot_is_free[thread][slot], &one, 0))
				continue;
			unsigned index = thread * SLOTS + slot, length = 64 + ++number % (BYTES - 64), first = length / 3;
			fill(send_slots[index], length, number);
			struct ibv_sge pieces[PARTS] = {
				{ (uintptr_t)send_slots[index], first, sends->lkey },
				{ (uintptr_t)send_slots[index] + first, length - first, sends->lkey },
			};
			struct ibv_send_wr wr = { .wr_id = index, .sg_list = pieces, .num_sge = PARTS,
						  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
			CHECK(ibv_post_send(qps[number & 1], &wr, &bad) == 0);
			atomic_fetch_add(&sent, 1);
		}
		reap();
	}
	atomic_fetch_add(&receivers_done, 1);
	return NULL;
}

int main(int count, char **words)
{
	CHECK(count == 4);
	struct ibv_context *context = open_device(words[1]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd != NULL);
	CHECK((cq = ibv_create_cq(context, THREADS * SLOTS + RECEIVES, NULL, NULL, 0)) != NULL);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	CHECK((srq = ibv_create_srq(pd, &srq_attr)) != NULL);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = THREADS * SLOTS, .max_send_sge = PARTS } };
		CHECK((qps[i] = ibv_create_qp(pd, &attr)) != NULL);
	}
	CHECK((send_slots = malloc((size_t)THREADS * SLOTS * BYTES)) != NULL);
	CHECK((receive_slots = malloc((size_t)RECEIVES * BYTES)) != NULL);
	CHECK((sends = ibv_reg_mr(pd, send_slots, (size_t)THREADS * SLOTS * BYTES, 0)) != NULL);
	CHECK((receives = ibv_reg_mr(pd, receive_slots, (size_t)RECEIVES * BYTES, IBV_ACCESS_LOCAL_WRITE)) != NULL);
	connect_both(qps, atoi(words[2]), 0, 1);
	for (unsigned slot = 0; slot < RECEIVES; slot++)
		post_receive(slot);
	for (int i = 0; i < THREADS; i++)
		for (int slot = 0; slot < SLOTS; slot++)
			slot_is_free[i][slot] = 1;
	pthread_t threads[THREADS];
	end_time = now() + atof(words[3]);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	double limit = now() + 10;
	while (arrived < sent && now() < limit)
		reap();
	printf("%lu sent, %lu arrived\n", sent, arrived);
	CHECK(sent == arrived && sent > 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qps[i]) == 0);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(sends) == 0 && ibv_dereg_mr(receives) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
