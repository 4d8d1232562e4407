/*
 * Wrong calls, and calls in a wrong order, as a program of verbs makes them by mistake or on
 * purpose: each fails by the error that manual pages and drivers have for it (or by ours, where
 * they leave it open or crash), changes nothing, and the objects work afterward.
 *
 *   misuse DEVICE GID_INDEX
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loopback.h"

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, SOON_MS = 5000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_device_attr limits;
static int gid_index;

/* A pair of connected queue pairs, with memory. */
struct pair {
	struct ibv_cq *cq;
	struct ibv_qp *qps[2];
	struct ibv_mr *mr;
	char *memory;
};

static int readable(int fd, int milliseconds)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	return poll(&one, 1, milliseconds);
}

static struct ibv_qp *make_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { 4, 4, 2, 2, 32 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static struct pair make_pair(struct ibv_comp_channel *channel)
{
	struct pair pair = { .cq = ibv_create_cq(context, 32, NULL, channel, 0), .memory = aligned_alloc(4096, 8192) };
	CHECK(pair.cq && pair.memory);
	for (int i = 0; i < 2; i++)
		pair.qps[i] = make_qp(pair.cq, NULL);
	connect_both(pair.qps, gid_index, ALL, 1);
	pair.mr = ibv_reg_mr(pd, pair.memory, 8192, ALL);
	CHECK(pair.mr);
	return pair;
}

static int write_to(struct pair *pair, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)pair->memory, 8, pair->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)pair->memory + 4096, rkey } }, *bad = NULL;
	return ibv_post_send(pair->qps[0], &wr, &bad);
}

static enum ibv_wc_status reap(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (;;) {
		int found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found >= 0);
		if (found)
			return wc.status;
	}
}

static void works(struct pair *pair)
{
	CHECK(write_to(pair, pair->mr->rkey) == 0 && reap(pair->cq) == IBV_WC_SUCCESS);
}

static void end_pair(struct pair *pair)
{
	CHECK(ibv_destroy_qp(pair->qps[0]) == 0 && ibv_destroy_qp(pair->qps[1]) == 0);
	CHECK(ibv_destroy_cq(pair->cq) == 0 && ibv_dereg_mr(pair->mr) == 0);
	free(pair->memory);
}

static void devices_and_ports(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;
	CHECK(ibv_query_port(context, 0, &port) == EINVAL && ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1 && ibv_query_gid(context, 2, 0, &gid) == -1);
	CHECK(ibv_query_gid(context, 1, -1, &gid) == -1);
	CHECK(ibv_query_pkey(context, 1, port.pkey_tbl_len, &pkey) == -1 && ibv_query_pkey(context, 1, 0, &pkey) == 0);
	/* Only the kernel's devices have one, which programs ask the kernel about. */
	CHECK(ibv_get_device_index(context->device) == -1);
}

static void memory(void)
{
	char *page = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && munmap(page + 4096, 4096) == 0 && mprotect(page + 8192, 4096, PROT_READ) == 0);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_ATOMIC) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, page, 4096, 1 << 10) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, page, 8192, ALL) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, page + 8192, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, page, SIZE_MAX, ALL) && (errno == EINVAL || errno == EFAULT || errno == ENOMEM));
	CHECK(!ibv_reg_mr(pd, NULL, 4096, ALL) && errno == EFAULT);
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096, ALL);
	CHECK(mr);
	/* Optional rights may be ignored. */
	struct ibv_mr *relaxed = ibv_reg_mr(pd, page, 4096, ALL | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(relaxed && ibv_dereg_mr(relaxed) == 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) != 0);
	CHECK(ibv_rereg_mr(mr, 1 << 7, NULL, NULL, 0, 0) != 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0 && munmap(page, 3 * 4096) == 0);
}

static void windows(void)
{
	struct pair pair = make_pair(NULL);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(mw);
	CHECK(!ibv_alloc_mw(pd, 7) && errno == EINVAL);
	struct ibv_mr *plain = ibv_reg_mr(pd, pair.memory, 4096, ALL), *mr = ibv_reg_mr(pd, pair.memory, 4096, ALL | IBV_ACCESS_MW_BIND);
	CHECK(plain && mr);
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { plain, (uintptr_t)pair.memory, 4096, IBV_ACCESS_REMOTE_WRITE } };
	/* A region without the right: refused at once, or by a completion. */
	int answer = ibv_bind_mw(pair.qps[0], mw, &bind);
	if (answer == 0) {
		CHECK(reap(pair.cq) == IBV_WC_MW_BIND_ERR);
		CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(plain) == 0 && ibv_dereg_mr(mr) == 0);
		end_pair(&pair);
		return;
	}
	CHECK(answer == EINVAL || answer == EPERM || answer == EACCES);
	bind.bind_info.mr = mr;
	CHECK(ibv_bind_mw(pair.qps[0], mw, &bind) == 0 && reap(pair.cq) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) != 0);
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(plain) == 0 && ibv_dereg_mr(mr) == 0);
	works(&pair);
	end_pair(&pair);
}

static void completion_queues(void)
{
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, limits.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 8, NULL, NULL, -1) && errno == EINVAL);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(cq && cq->cqe >= 8);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL && ibv_resize_cq(cq, limits.max_cqe + 1) == EINVAL && ibv_resize_cq(cq, 16) == 0);
	struct ibv_qp *qp = make_qp(cq, NULL);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* Events end with their queue, and those of others stay. */
static void channels(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel);
	struct ibv_cq *found;
	void *own;
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &found, &own) == -1 && errno == EAGAIN);
	for (int destroyed = 0; destroyed < 4; destroyed++) {
		struct pair pairs[2] = { make_pair(channel), make_pair(channel) };
		CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
		int left = 0;
		for (int i = 0; i < 2; i++) {
			CHECK(ibv_req_notify_cq(pairs[i].cq, 0) == 0);
			works(&pairs[i]);
			CHECK(readable(channel->fd, SOON_MS) == 1);
		}
		for (int i = 0; i < 2; i++) {
			if (destroyed >> i & 1)
				end_pair(&pairs[i]);
			else
				left++;
		}
		for (int i = 0; i < left; i++) {
			CHECK(readable(channel->fd, SOON_MS) == 1);
			CHECK(ibv_get_cq_event(channel, &found, &own) == 0);
			ibv_ack_cq_events(found, 1);
		}
		CHECK(readable(channel->fd, 0) == 0 && ibv_get_cq_event(channel, &found, &own) == -1 && errno == EAGAIN);
		for (int i = 0; i < 2; i++)
			if (!(destroyed >> i & 1))
				end_pair(&pairs[i]);
	}
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

static void asynchronous_events(void)
{
	struct pair pair = make_pair(NULL);
	struct ibv_async_event event;
	CHECK(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	CHECK(write_to(&pair, pair.mr->rkey ^ 0x100) == 0 && reap(pair.cq) == IBV_WC_REM_ACCESS_ERR);
	CHECK(readable(context->async_fd, SOON_MS) == 1);
	end_pair(&pair);
	CHECK(readable(context->async_fd, 0) == 0 && ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
}

static int refuses(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	int answer = ibv_modify_qp(qp, &attr, mask);
	if (answer != EINVAL)
		fprintf(stderr, "answer %d\n", answer);
	return answer == EINVAL;
}

static void queue_pairs(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 2, 2, 32 }, .qp_type = IBV_QPT_RC }, wrong;
	wrong = init, wrong.send_cq = NULL;
	CHECK(!ibv_create_qp(pd, &wrong) && errno == EINVAL);
	wrong = init, wrong.qp_type = 99;
	CHECK(!ibv_create_qp(pd, &wrong) && (errno == EINVAL || errno == EOPNOTSUPP));
	wrong = init, wrong.cap.max_send_wr = limits.max_qp_wr + 1;
	CHECK(!ibv_create_qp(pd, &wrong) && errno == EINVAL);
	wrong = init, wrong.cap.max_recv_sge = limits.max_sge + 1;
	CHECK(!ibv_create_qp(pd, &wrong) && errno == EINVAL);
	wrong = init, wrong.cap.max_inline_data = UINT32_MAX;
	CHECK(!ibv_create_qp(pd, &wrong) && errno == EINVAL);

	struct pair pair = make_pair(NULL);
	struct ibv_qp *qp = make_qp(cq, NULL);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv = NULL;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send = NULL;
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);

	int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL }, other;
	CHECK(refuses(qp, attr, init_mask & ~IBV_QP_PORT) && refuses(qp, attr, init_mask | IBV_QP_PATH_MTU));
	other = attr, other.qp_state = IBV_QPS_RTR;
	CHECK(refuses(qp, other, init_mask));
	other = attr, other.port_num = 2;
	CHECK(refuses(qp, other, init_mask));
	other = attr, other.pkey_index = 100;
	CHECK(refuses(qp, other, init_mask));
	other = attr, other.qp_access_flags = 1 << 20 | 1 << 19;
	CHECK(refuses(qp, other, init_mask));
	CHECK(ibv_modify_qp(qp, &attr, init_mask) == 0);
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && ibv_post_recv(qp, &recv, &bad_recv) == 0);

	union ibv_gid gid;
	CHECK(ibv_query_gid(context, 1, gid_index, &gid) == 0);
	int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1,
								     .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } } };
	CHECK(refuses(qp, rtr, rtr_mask & ~IBV_QP_AV));
	other = rtr, other.ah_attr.is_global = 0;
	CHECK(refuses(qp, other, rtr_mask));
	other = rtr, other.ah_attr.port_num = 2;
	CHECK(refuses(qp, other, rtr_mask));
	other = rtr, other.ah_attr.grh.sgid_index = 255;
	CHECK(refuses(qp, other, rtr_mask));
	other = rtr, other.path_mtu = 9;
	CHECK(refuses(qp, other, rtr_mask));
	other = rtr, other.path_mtu = 0;
	CHECK(refuses(qp, other, rtr_mask));
	other = rtr, other.max_dest_rd_atomic = 255;
	CHECK(refuses(qp, other, rtr_mask));
	other = rtr, other.min_rnr_timer = 32;
	CHECK(refuses(qp, other, rtr_mask));
	CHECK(ibv_modify_qp(qp, &rtr, rtr_mask) == 0);
	int rts_mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	other = rts, other.timeout = 32;
	CHECK(refuses(qp, other, rts_mask));
	other = rts, other.retry_cnt = 8;
	CHECK(refuses(qp, other, rts_mask));
	other = rts, other.rnr_retry = 8;
	CHECK(refuses(qp, other, rts_mask));
	other = rts, other.max_rd_atomic = 255;
	CHECK(refuses(qp, other, rts_mask));
	CHECK(ibv_modify_qp(qp, &rts, rts_mask) == 0);
	/* Of another queue pair's number after it has ended. */
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	works(&pair);
	end_pair(&pair);
}

/* Of a list, work before the wrong one is done, and bad_wr names that one. */
static void posting(void)
{
	struct pair pair = make_pair(NULL);
	struct ibv_qp_attr queried;
	struct ibv_qp_init_attr made;
	CHECK(ibv_query_qp(pair.qps[0], &queried, IBV_QP_CAP, &made) == 0);
	struct ibv_sge sges[128];
	CHECK(made.cap.max_send_sge < 128 && made.cap.max_recv_sge < 128);
	for (int i = 0; i < 128; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)pair.memory, 8, pair.mr->lkey };
	struct ibv_send_wr good = { .wr_id = 1, .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				    .wr.rdma = { (uintptr_t)pair.memory + 4096, pair.mr->rkey } };
	struct ibv_send_wr wrong = good, *bad = NULL;
	good.next = &wrong;
	wrong.num_sge = made.cap.max_send_sge + 1;
	CHECK(ibv_post_send(pair.qps[0], &good, &bad) == EINVAL && bad == &wrong && reap(pair.cq) == IBV_WC_SUCCESS);
	wrong.num_sge = -1;
	CHECK(ibv_post_send(pair.qps[0], &good, &bad) == EINVAL && bad == &wrong && reap(pair.cq) == IBV_WC_SUCCESS);
	wrong.num_sge = 1, wrong.opcode = 77;
	int unknown = ibv_post_send(pair.qps[0], &good, &bad);
	CHECK((unknown == EINVAL || unknown == EOPNOTSUPP) && bad == &wrong && reap(pair.cq) == IBV_WC_SUCCESS);
	sges[0].length = made.cap.max_inline_data + 1;
	wrong.opcode = IBV_WR_RDMA_WRITE, wrong.send_flags |= IBV_SEND_INLINE;
	CHECK(sges[0].length <= 4096);
	int answer = ibv_post_send(pair.qps[0], &wrong, &bad);
	CHECK((answer == EINVAL || answer == ENOMEM) && bad == &wrong);
	sges[0].length = 8;
	/* More than there is room for. */
	struct ibv_send_wr many[4096];
	unsigned room = made.cap.max_send_wr;
	CHECK(room < 4095);
	good.next = NULL;
	for (unsigned i = 0; i < room + 2; i++)
		many[i] = good, many[i].next = &many[i + 1];
	many[room + 1].next = NULL;
	answer = ibv_post_send(pair.qps[0], many, &bad);
	for (struct ibv_send_wr *done = many; done != bad && (answer || done < &many[room + 2]); done++)
		CHECK(reap(pair.cq) == IBV_WC_SUCCESS);
	CHECK(answer == 0 || (answer == ENOMEM && bad >= &many[room]));
	struct ibv_recv_wr recv = { .sg_list = sges, .num_sge = made.cap.max_recv_sge + 1 }, *bad_recv = NULL;
	CHECK(ibv_post_recv(pair.qps[1], &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	/* A wrong local key fails the queue pair, by a completion. */
	sges[0].lkey ^= 0x100;
	CHECK(ibv_post_send(pair.qps[0], &good, &bad) == 0 && reap(pair.cq) == IBV_WC_LOC_PROT_ERR);
	end_pair(&pair);
}

static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } }, wrong = init;
	wrong.attr.max_wr = limits.max_srq_wr + 1;
	CHECK(!ibv_create_srq(pd, &wrong) && errno == EINVAL);
	wrong = init, wrong.attr.max_sge = limits.max_srq_sge + 1;
	CHECK(!ibv_create_srq(pd, &wrong) && errno == EINVAL);
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	CHECK(srq);
	struct ibv_srq_attr attr = { .srq_limit = 1 << 20 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(cq, srq);
	CHECK(ibv_destroy_srq(srq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad = NULL;
	CHECK(ibv_post_recv(qp, &recv, &bad) == EINVAL && ibv_post_srq_recv(srq, &recv, &bad) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
}

static void address_handles(void)
{
	union ibv_gid gid;
	CHECK(ibv_query_gid(context, 1, gid_index, &gid) == 0);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } }, wrong;
	wrong = attr, wrong.port_num = 2;
	CHECK(!ibv_create_ah(pd, &wrong) && errno == EINVAL);
	wrong = attr, wrong.grh.sgid_index = 255;
	CHECK(!ibv_create_ah(pd, &wrong) && errno == EINVAL);
	wrong = attr, wrong.is_global = 0;
	CHECK(!ibv_create_ah(pd, &wrong) && errno == EINVAL);
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah && ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_ah(ah) == 0);
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(cq, NULL);
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };
	CHECK(ibv_attach_mcast(qp, &group, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int count, char **arguments)
{
	static const struct { const char *name; void (*run)(void); } groups[] = {
		{ "devices and ports", devices_and_ports }, { "memory", memory }, { "windows", windows },
		{ "completion queues", completion_queues }, { "channels", channels }, { "asynchronous events", asynchronous_events },
		{ "queue pairs", queue_pairs }, { "posting", posting }, { "shared receive queues", shared_receive_queues },
		{ "address handles", address_handles },
	};
	CHECK(count == 3);
	context = open_device(arguments[1]);
	gid_index = atoi(arguments[2]);
	pd = ibv_alloc_pd(context);
	CHECK(pd && ibv_query_device(context, &limits) == 0);
	for (unsigned i = 0; i < sizeof groups / sizeof *groups; i++) {
		printf("%s\n", groups[i].name);
		fflush(stdout);
		groups[i].run();
	}
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	printf("all refused\n");
	return 0;
}
