/*
 * Rates of queue pairs and of addresses, by the calls of verbs: each is told back, and kept.
 *
 *   rates DEVICE GID_INDEX
 */
#include <time.h>

#include "loopback.h"

enum { SIZE = 1 << 24, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Seconds that a WRITE of so many bytes takes. */
static double time_of(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, bytes, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { (uintptr_t)mr->addr + SIZE, mr->rkey } };
	double begin = now();
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(qp->send_cq, 1, &wc)) == 0)
		;
	CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
	return now() - begin;
}

static void expect(const char *what, double time, double least, double most)
{
	printf("%s: %.5f s\n", what, time);
	if (time < least || time > most) {
		fprintf(stderr, "%s took %.5f s, not %.5f to %.5f\n", what, time, least, most);
		exit(1);
	}
}

static void told(struct ibv_qp *qp, uint32_t kbit, uint8_t static_rate)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT | IBV_QP_AV, &init) == 0);
	CHECK(attr.rate_limit == kbit && attr.ah_attr.static_rate == static_rate);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	struct ibv_context *context = open_device(argv[1]);
	struct ibv_device_attr_ex device;
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	struct ibv_packet_pacing_caps caps = device.packet_pacing_caps;
	CHECK(caps.qp_rate_limit_min == 1 && caps.qp_rate_limit_max == UINT32_MAX);
	CHECK(caps.supported_qpts == (1u << IBV_QPT_RC | 1u << IBV_QPT_UC | 1u << IBV_QPT_UD));

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	void *memory = aligned_alloc(4096, 2 * SIZE);
	CHECK(pd && cq && memory);
	memset(memory, 0, 2 * SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * SIZE, ACCESS);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qps[2] = { ibv_create_qp(pd, &init), ibv_create_qp(pd, &init) };
	CHECK(mr && qps[0] && qps[1]);

	/* Not before it may send, and not with unknown fields. */
	struct ibv_qp_rate_limit_attr limit = { .rate_limit = 8000 };
	CHECK(ibv_modify_qp_rate_limit(qps[0], &limit) == EINVAL);
	connect_both(qps, atoi(argv[2]), ACCESS, 1);
	limit.comp_mask = 1;
	CHECK(ibv_modify_qp_rate_limit(qps[0], &limit) == EINVAL);
	limit.comp_mask = 0;
	told(qps[0], 0, 0);

	/* 200 kB at 1 MB/s. */
	CHECK(ibv_modify_qp_rate_limit(qps[0], &limit) == 0);
	told(qps[0], 8000, 0);
	expect("a limit of 8 Mbit/s", time_of(qps[0], mr, 200000), 0.19, 0.5);

	/* A burst of 150 kB leaves at once. */
	limit.max_burst_sz = 150000;
	limit.typical_pkt_sz = 1024;
	CHECK(ibv_modify_qp_rate_limit(qps[0], &limit) == 0);
	expect("with a burst", time_of(qps[0], mr, 200000), 0.04, 0.18);

	struct ibv_qp_attr attr = { .rate_limit = 16000 };
	CHECK(ibv_modify_qp(qps[0], &attr, IBV_QP_RATE_LIMIT) == 0);
	told(qps[0], 16000, 0);
	limit.rate_limit = limit.max_burst_sz = 0;
	CHECK(ibv_modify_qp_rate_limit(qps[0], &limit) == 0);
	told(qps[0], 0, 0);
	expect("without a limit", time_of(qps[0], mr, 200000), 0, 0.15);

	/* The rate of an address comes back; a code that is none is refused. */
	struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD }, ready = { .qp_state = IBV_QPS_RTS }, path;
	CHECK(ibv_query_qp(qps[0], &path, IBV_QP_AV, &init) == 0);
	CHECK(ibv_modify_qp(qps[0], &drain, IBV_QP_STATE) == 0);
	path.ah_attr.static_rate = IBV_RATE_10_GBPS;
	CHECK(ibv_modify_qp(qps[0], &path, IBV_QP_AV) == 0);
	told(qps[0], 0, IBV_RATE_10_GBPS);
	path.ah_attr.static_rate = 1;
	CHECK(ibv_modify_qp(qps[0], &path, IBV_QP_AV) == EINVAL);
	CHECK(!ibv_create_ah(pd, &path.ah_attr) && errno == EINVAL);
	path.ah_attr.static_rate = IBV_RATE_2_5_GBPS;
	struct ibv_ah *ah = ibv_create_ah(pd, &path.ah_attr);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_modify_qp(qps[0], &ready, IBV_QP_STATE) == 0);
	/* 13.4 ms, less the 50 us by which a sender may catch up and the last frame, which waits for none. */
	expect("at 10 Gbit/s", time_of(qps[0], mr, SIZE), SIZE * 8 / 10e9 - 60e-6, 0.2);

	CHECK(ibv_destroy_qp(qps[0]) == 0 && ibv_destroy_qp(qps[1]) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
