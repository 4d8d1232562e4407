/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * RDMA WRITE between two hosts with plain libibverbs: nothing here knows of roced.
 *
 * Both programs make a reliable connection, after an exchange of addresses, queue pair numbers and
 * keys over TCP. The one with an address writes, the other verifies every byte. GID_INDEX names the
 * address of the device (`ibv_devinfo -v`): on the lab's hosts that of IPv4 is 1.
 *
 *   cc -O1 -Wall -o /tmp/rc_write verbs/examples/rc_write.c -libverbs && scripts/lab up
 *   scripts/lab exec b -- roce-run /tmp/rc_write 1 &
 *   scripts/lab exec a -- roce-run /tmp/rc_write 1 10.10.0.2
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 18601, BYTES = 1 << 20, CONNECT_TRIES = 50 };

/* The message of one program to the other. Both hosts have the same byte order. */
struct introduction {
	union ibv_gid gid;
	uint64_t address;
	uint32_t rkey, qpn, psn, mtu;
};

static void fail(const char *what)
{
	fprintf(stderr, "rc_write: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
	exit(1);
}

/* Verbs give an error number, or -1 and errno. */
static void check(int result, const char *what)
{
	if (result == 0)
		return;
	if (result > 0)
		errno = result;
	fail(what);
}

/* Connects to the other program, or waits for it where there is no address. */
static int meet(const char *address)
{
	struct sockaddr_in where = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct timeval limit = { .tv_sec = 30 };
	int connection, yes = 1;

	if (address) {
		if (inet_pton(AF_INET, address, &where.sin_addr) != 1)
			fail("the other host's address must be one of IPv4");
		for (int tries = 0;; tries++) {
			connection = socket(AF_INET, SOCK_STREAM, 0);
			if (connect(connection, (struct sockaddr *)&where, sizeof(where)) == 0)
				break;
			/* It may only just have been started. */
			if (errno != ECONNREFUSED || tries == CONNECT_TRIES)
				fail("connecting: is the other program started, without an address?");
			close(connection);
			usleep(100000);
		}
	} else {
		int listener = socket(AF_INET, SOCK_STREAM, 0);

		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
		if (bind(listener, (struct sockaddr *)&where, sizeof(where)) || listen(listener, 1))
			fail("listening: does another program use the TCP port?");
		if ((connection = accept(listener, NULL, NULL)) < 0)
			fail("waiting for the other program");
		close(listener);
	}
	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return connection;
}

/* Sends bytes and receives as many: neither program goes on before the other is here. */
static void exchange(int connection, const void *ours, void *theirs, size_t bytes)
{
	errno = 0;
	if (send(connection, ours, bytes, MSG_NOSIGNAL) != (ssize_t)bytes ||
	    recv(connection, theirs, bytes, MSG_WAITALL) != (ssize_t)bytes)
		fail("the other program has ended early");
}

/* From RESET to RTS, by way of INIT and RTR. */
static void connect_qp(struct ibv_qp *qp, const struct introduction *ours, const struct introduction *theirs,
		       int gid_index)
{
	/* The largest path MTU that both links carry. */
	enum ibv_mtu mtu = ours->mtu < theirs->mtu ? ours->mtu : theirs->mtu;
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = theirs->qpn,
				   .rq_psn = theirs->psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1, .port_num = 1,
						.grh = { .dgid = theirs->gid, .sgid_index = gid_index, .hop_limit = 64 } } };
	/* An ACK within 67 ms, or again, at most seven times. */
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = ours->psn, .timeout = 14, .retry_cnt = 7,
				   .rnr_retry = 7, .max_rd_atomic = 1 };

	check(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	check(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	check(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* Bytes that both programs know. */
static unsigned char pattern(size_t at)
{
	return (unsigned char)(at * 31 + at / 251);
}

/* Writes all of `memory` to the peer's, and waits until it is there. */
static void write_all(struct ibv_qp *qp, struct ibv_mr *memory, const struct introduction *theirs)
{
	struct ibv_sge data = { .addr = (uintptr_t)memory->addr, .length = BYTES, .lkey = memory->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = theirs->address, .rkey = theirs->rkey } }, *bad;
	struct ibv_wc done;
	int count;

	check(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	/* A peer that is not there ends this, after the retries. */
	while ((count = ibv_poll_cq(qp->send_cq, 1, &done)) == 0)
		;
	errno = 0;
	if (count < 0)
		fail("ibv_poll_cq");
	if (done.status != IBV_WC_SUCCESS)
		fail(ibv_wc_status_str(done.status));
}

int main(int count, char **words)
{
	if (count < 2 || count > 3) {
		fprintf(stderr, "usage: rc_write GID_INDEX [ADDRESS]\n");
		return 2;
	}
	const char *address = count == 3 ? words[2] : NULL;
	int gid_index = atoi(words[1]), connection = meet(address);

	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (!devices || !devices[0])
		fail("no RDMA device (IBV_SHOW_WARNINGS=1 says why)");
	struct ibv_context *context = ibv_open_device(devices[0]);
	if (!context)
		fail("ibv_open_device");
	ibv_free_device_list(devices);
	struct ibv_port_attr port;
	check(ibv_query_port(context, 1, &port), "ibv_query_port");

	/* Memory of this program's own, which the peer may write. */
	unsigned char *bytes = calloc(BYTES, 1);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	if (!bytes || !pd || !cq)
		fail("memory, protection domain and completion queue");
	struct ibv_mr *memory = ibv_reg_mr(pd, bytes, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr attributes = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					       .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
							.max_recv_sge = 1 } };
	struct ibv_qp *qp = memory ? ibv_create_qp(pd, &attributes) : NULL;
	if (!qp)
		fail(memory ? "ibv_create_qp" : "ibv_reg_mr");

	struct introduction ours = { .address = (uintptr_t)bytes, .rkey = memory->rkey, .qpn = qp->qp_num,
				     .psn = (uint32_t)getpid() & 0xffffff, .mtu = port.active_mtu }, theirs;
	check(ibv_query_gid(context, 1, gid_index, &ours.gid), "ibv_query_gid");
	exchange(connection, &ours, &theirs, sizeof(ours));
	connect_qp(qp, &ours, &theirs, gid_index);
	char ready = 'c', peer_ready;
	exchange(connection, &ready, &peer_ready, 1);

	if (address) {
		for (size_t at = 0; at < BYTES; at++)
			bytes[at] = pattern(at);
		write_all(qp, memory, &theirs);
		printf("wrote %d bytes to queue pair 0x%06x\n", BYTES, theirs.qpn);
		exchange(connection, &ready, &peer_ready, 1);
		printf("the peer verified them\n");
	} else {
		errno = 0;
		if (recv(connection, &peer_ready, 1, MSG_WAITALL) != 1)
			fail("the other program has ended early");
		for (size_t at = 0; at < BYTES; at++)
			if (bytes[at] != pattern(at)) {
				fprintf(stderr, "rc_write: byte %zu is 0x%02x, not as written\n", at, bytes[at]);
				return 1;
			}
		printf("verified %d bytes written by queue pair 0x%06x\n", BYTES, theirs.qpn);
		send(connection, &ready, 1, MSG_NOSIGNAL);
	}
	/* In the reverse order of their making. */
	check(ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(ibv_dereg_mr(memory), "ibv_dereg_mr");
	check(ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(ibv_close_device(context), "ibv_close_device");
	free(bytes);
	close(connection);
	return 0;
}
