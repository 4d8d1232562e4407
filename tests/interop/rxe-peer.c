/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The other end, inside the guest: an ordinary libibverbs program over Linux's rdma_rxe.
 *
 *   rxe-peer [PORT [TRAFFIC-CLASS]]
 *
 * Waits on a TCP port; each connection is one queue pair, and its lines are commands, each answered
 * by "ok" or "failed WHY":
 *
 *   connect GID QPN PSN MTU [VA RKEY]     the peer; answered by our own "GID QPN PSN MTU VA RKEY"
 *   send SIZE SEED [IMM]                  the request of that name, to its completion; bytes are
 *   write SIZE SEED [IMM]                 pattern(SEED); IMM is a number
 *   read SIZE SEED                        read from the peer and compare
 *   receive SIZE SEED [IMM]               a receive has completed, or does: compare
 *   notice SIZE IMM                       a WRITE with immediate has completed a receive
 *   fill SIZE SEED, check SIZE SEED       our memory that the peer reaches
 *   badwrite, badread                     a wrong key: "ok" for a remote access error
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BYTES_MAX (1u << 20)
#define RECEIVES 16
#define PATIENCE_S 30

/* Two buffers, one after the other: requests use the first, peers and receives reach the second. */
static struct {
	struct ibv_context *context;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *local, *exposed;
	uint64_t peer_va;
	uint32_t peer_rkey, psn;
	/* Receives that completed and no command asked for yet. */
	struct ibv_wc received[RECEIVES];
	int first, last;
} end;

static uint8_t traffic_class;
static char failure[200];

static int fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(failure, sizeof(failure), format, arguments);
	va_end(arguments);
	return -1;
}

static unsigned char pattern(uint32_t seed, uint32_t at)
{
	return (unsigned char)(seed * 29 + at * 7 + (at >> 8) * 3 + 1);
}

static void fill(unsigned char *bytes, uint32_t size, uint32_t seed)
{
	for (uint32_t at = 0; at < size; at++)
		bytes[at] = pattern(seed, at);
}

static int compare(const unsigned char *bytes, uint32_t size, uint32_t seed)
{
	for (uint32_t at = 0; at < size; at++)
		if (bytes[at] != pattern(seed, at))
			return fail("byte %u of %u is 0x%02x, not 0x%02x", at, size, bytes[at], pattern(seed, at));
	return 0;
}

static int post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)end.exposed, BYTES_MAX, end.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(end.qp, &wr, &bad) ? fail("ibv_post_recv") : 0;
}

/* The next completion of that kind; receives that come in between are kept. */
static int completion(int want_receive, struct ibv_wc *wc)
{
	time_t deadline = time(NULL) + PATIENCE_S;

	if (want_receive && end.first != end.last) {
		*wc = end.received[end.first++ % RECEIVES];
		return 0;
	}
	while (time(NULL) < deadline) {
		int count = ibv_poll_cq(end.cq, 1, wc);

		if (count < 0)
			return fail("ibv_poll_cq");
		if (count == 0)
			continue;
		if (!!(wc->opcode & IBV_WC_RECV) == want_receive || wc->status != IBV_WC_SUCCESS)
			return 0;
		end.received[end.last++ % RECEIVES] = *wc;
	}
	return fail("nothing completed within %d s", PATIENCE_S);
}

static int request(enum ibv_wr_opcode opcode, uint32_t size, const char *imm, uint32_t rkey, enum ibv_wc_status wanted)
{
	struct ibv_sge sge = { (uintptr_t)end.local, size, end.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	if (imm) {
		wr.opcode = opcode == IBV_WR_SEND ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htonl((uint32_t)strtoul(imm, NULL, 0));
	}
	wr.wr.rdma.remote_addr = end.peer_va;
	wr.wr.rdma.rkey = rkey;
	if (ibv_post_send(end.qp, &wr, &bad))
		return fail("ibv_post_send");
	if (completion(0, &wc))
		return -1;
	if (wc.status != wanted)
		return fail("completed with '%s', not '%s'", ibv_wc_status_str(wc.status), ibv_wc_status_str(wanted));
	return 0;
}

static int received(uint32_t size, const char *imm)
{
	struct ibv_wc wc;

	if (completion(1, &wc))
		return -1;
	if (wc.status != IBV_WC_SUCCESS)
		return fail("a receive completed with '%s'", ibv_wc_status_str(wc.status));
	if (wc.byte_len != size)
		return fail("%u bytes were received, not %u", wc.byte_len, size);
	if (!!(wc.wc_flags & IBV_WC_WITH_IMM) != !!imm)
		return fail(imm ? "no immediate data came" : "immediate data came");
	if (imm && ntohl(wc.imm_data) != (uint32_t)strtoul(imm, NULL, 0))
		return fail("immediate data is 0x%x, not %s", ntohl(wc.imm_data), imm);
	return 0;
}

static int open_end(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);

	if (!devices || !count)
		return fail("no RDMA device");
	end.context = ibv_open_device(devices[0]);
	struct ibv_pd *pd = ibv_alloc_pd(end.context);

	end.local = aligned_alloc(4096, 2 * BYTES_MAX);
	memset(end.local, 0, 2 * BYTES_MAX);
	end.exposed = end.local + BYTES_MAX;
	end.mr = ibv_reg_mr(pd, end.local, 2 * BYTES_MAX,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	end.cq = ibv_create_cq(end.context, 64, NULL, NULL, 0);

	struct ibv_qp_init_attr attributes = { .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };

	end.qp = ibv_create_qp(pd, &attributes);
	end.psn = (uint32_t)getpid() * 7919 & 0xffffff;
	return end.mr && end.cq && end.qp ? 0 : fail("the device gives no memory region, completion queue or queue pair");
}

static int find_gid(const union ibv_gid *like, union ibv_gid *gid, uint32_t *index)
{
	struct ibv_gid_entry entry;

	for (*index = 0; *index < 16; ++*index) {
		if (ibv_query_gid_ex(end.context, 1, *index, &entry, 0) || entry.gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		/* The same network: the first 8 bytes of IPv6, the first 15 of a mapped IPv4 address. */
		if (!memcmp(entry.gid.raw, like->raw, like->raw[0] ? 8 : 15)) {
			*gid = entry.gid;
			return 0;
		}
	}
	return fail("no GID in the peer's network");
}

static enum ibv_mtu mtu_code(uint32_t bytes)
{
	enum ibv_mtu code = IBV_MTU_256;

	while (code < IBV_MTU_4096 && (128u << code) < bytes)
		code++;
	return code;
}

static int connect_end(FILE *answers, const char *gid_text, uint32_t qpn, uint32_t psn, uint32_t mtu)
{
	union ibv_gid theirs, ours;
	uint32_t index;
	char text[INET6_ADDRSTRLEN];

	if (inet_pton(AF_INET6, gid_text, theirs.raw) != 1)
		return fail("'%s' is no GID", gid_text);
	if (open_end() || find_gid(&theirs, &ours, &index))
		return -1;

	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu_code(mtu), .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = theirs, .sgid_index = (uint8_t)index, .hop_limit = 64,
				      .traffic_class = traffic_class } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7,
		.sq_psn = end.psn, .max_rd_atomic = 16 };

	if (ibv_modify_qp(end.qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return fail("to INIT");
	for (int receive = 0; receive < RECEIVES; receive++)
		if (post_receive())
			return -1;
	if (ibv_modify_qp(end.qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return fail("to RTR");
	if (ibv_modify_qp(end.qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		return fail("to RTS");
	fprintf(answers, "%s %u %u %u %" PRIu64 " %u\n", inet_ntop(AF_INET6, ours.raw, text, sizeof(text)), end.qp->qp_num,
		end.psn, mtu, (uint64_t)(uintptr_t)end.exposed, end.mr->rkey);
	return 0;
}

/* One line; 0 when it was answered by "ok" or by something else that says so. */
static int obey(FILE *answers, char *line)
{
	char *words[8] = { 0 };
	int count = 0;

	for (char *word = strtok(line, " \n"); word && count < 8; word = strtok(NULL, " \n"))
		words[count++] = word;
	if (!count)
		return fail("an empty line");

	const char *what = words[0];
	uint32_t size = words[1] ? (uint32_t)strtoul(words[1], NULL, 0) : 0;
	uint32_t seed = words[2] ? (uint32_t)strtoul(words[2], NULL, 0) : 0;

	if (!strcmp(what, "connect") && count >= 5) {
		if (count >= 7) {
			end.peer_va = strtoull(words[5], NULL, 0);
			end.peer_rkey = (uint32_t)strtoul(words[6], NULL, 0);
		}
		return connect_end(answers, words[1], (uint32_t)strtoul(words[2], NULL, 0),
				   (uint32_t)strtoul(words[3], NULL, 0), (uint32_t)strtoul(words[4], NULL, 0));
	}
	if (size > BYTES_MAX)
		return fail("at most %u bytes", BYTES_MAX);

	int failed;

	if (!strcmp(what, "send") || !strcmp(what, "write")) {
		fill(end.local, size, seed);
		failed = request(what[0] == 's' ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, size, words[3], end.peer_rkey, IBV_WC_SUCCESS);
	} else if (!strcmp(what, "read")) {
		memset(end.local, 0, size);
		failed = request(IBV_WR_RDMA_READ, size, NULL, end.peer_rkey, IBV_WC_SUCCESS) || compare(end.local, size, seed);
	} else if (!strcmp(what, "receive")) {
		failed = received(size, words[3]) || compare(end.exposed, size, seed) || post_receive();
	} else if (!strcmp(what, "notice")) {
		failed = received(size, words[2]) || post_receive();
	} else if (!strcmp(what, "fill")) {
		fill(end.exposed, size, seed);
		failed = 0;
	} else if (!strcmp(what, "check")) {
		failed = compare(end.exposed, size, seed);
	} else if (!strcmp(what, "badwrite")) {
		failed = request(IBV_WR_RDMA_WRITE, 64, NULL, end.peer_rkey ^ 0x100, IBV_WC_REM_ACCESS_ERR);
	} else if (!strcmp(what, "badread")) {
		failed = request(IBV_WR_RDMA_READ, 64, NULL, end.peer_rkey ^ 0x100, IBV_WC_REM_ACCESS_ERR);
	} else {
		failed = fail("'%s' is not known", what);
	}
	if (!failed)
		fputs("ok\n", answers);
	return failed;
}

/* A process for each connection: its end gives everything back. */
static void serve(int connection)
{
	FILE *lines = fdopen(connection, "r"), *answers = fdopen(dup(connection), "w");
	char line[256];

	while (fgets(line, sizeof(line), lines)) {
		if (obey(answers, line))
			fprintf(answers, "failed %s\n", failure);
		fflush(answers);
	}
	exit(0);
}

int main(int count, char **words)
{
	int listener = socket(AF_INET6, SOCK_STREAM, 0), yes = 1;
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(count > 1 ? (uint16_t)atoi(words[1]) : 7471) };

	if (count > 2)
		traffic_class = (uint8_t)atoi(words[2]);
	signal(SIGCHLD, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 4)) {
		perror("rxe-peer");
		return 1;
	}
	for (;;) {
		int connection = accept(listener, NULL, NULL);

		if (connection < 0)
			continue;
		if (!fork())
			serve(connection);
		close(connection);
	}
}
