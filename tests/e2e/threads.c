/* Eight threads on two queue pairs, one completion queue and one shared receive queue of libibverbs: every message's bytes are looked at, and each
 * arrives once. Both ends are this process, so all threads post to both.
 *
 *   threads DEVICE GID_INDEX SECONDS
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 8, SLOTS = 64, RECEIVES = 256, BYTES = 2048, PARTS = 2 };

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

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

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid *gid, int gid_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = 1,
				   .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = gid_index, .hop_limit = 1 } } };
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

int main(int count, char **words)
{
	CHECK(count == 4);
	struct ibv_device **devices = ibv_get_device_list(NULL), *device = NULL;
	CHECK(devices != NULL);
	for (int i = 0; devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), words[1]))
			device = devices[i];
	CHECK(device != NULL);
	struct ibv_context *context = ibv_open_device(device);
	CHECK(context != NULL);
	union ibv_gid gid;
	int gid_index = atoi(words[2]);
	CHECK(ibv_query_gid(context, 1, gid_index, &gid) == 0);
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
	connect_to(qps[0], qps[1], &gid, gid_index);
	connect_to(qps[1], qps[0], &gid, gid_index);
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
	ibv_free_device_list(devices);
	return 0;
}
