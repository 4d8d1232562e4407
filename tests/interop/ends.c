/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * One program for both ends, an ordinary libibverbs program: over rdma_rxe in the guest, over
 * roced's library on the host.
 *
 *   ends [OPTIONS] QUESTION           waits, and answers the requests
 *   ends [OPTIONS] QUESTION ADDRESS   asks
 *
 * OPTIONS: -g GID-INDEX, -p PORT, -m MTU, and -t TRAFFIC-CLASS, with ECN in its low two bits.
 *
 * It prints the events, a fact a line: "request success", "receive local length error", "event QP
 * access error", "state ERR". Whether that is as it should be is for others to say; only errors
 * that would make the facts meaningless end it with an exit code.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BYTES_MAX (1u << 20)
/* Memory that the peer may reach; "out of bounds" ends one byte behind it. */
#define EXPOSED_BYTES (BYTES_MAX / 2)
#define RECEIVES 64
#define PATIENCE_S 20
#define BURST 16
/* Long enough for marks, and for notifications of them. */
#define MARKED_ROUNDS 4
#define MARKED_BYTES (EXPOSED_BYTES / 2)

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	/* Memory of ours alone; and memory that the peer reaches and receives land in. */
	struct ibv_mr *local_mr, *exposed_mr;
	unsigned char *local, *exposed;
	int access;
} end;

/* Message of an end to the other. */
struct introduction {
	uint32_t qpn, psn, rkey;
	uint64_t va;
	union ibv_gid gid;
};

static struct introduction theirs;
static int peer, gid_index = 1, mtu = 1024;
static uint32_t first_psn = 0x123456;
/* Ends of queue pairs: the timer is 67 ms. */
static uint8_t rnr_retry = 7, retry_cnt = 7, timeout = 14, traffic_class;

static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fprintf(stderr, "ends: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, ": %s\n", strerror(errno));
	exit(1);
}

static void nap(long ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

/* --- the other end, by TCP -------------------------------------------------------------------- */

static void say(const void *bytes, size_t size)
{
	if (send(peer, bytes, size, MSG_NOSIGNAL) != (ssize_t)size)
		die("the other end does not listen");
}

static void hear(void *bytes, size_t size)
{
	if (recv(peer, bytes, size, MSG_WAITALL) != (ssize_t)size)
		die("the other end has gone");
}

/* Both are here. */
static void meet(void)
{
	char word = '.';

	say(&word, 1);
	hear(&word, 1);
}

static int reach(const char *address, const char *port)
{
	struct addrinfo *found, hints = { .ai_socktype = SOCK_STREAM, .ai_flags = address ? 0 : AI_PASSIVE, .ai_family = AF_INET };
	int yes = 1;

	if (getaddrinfo(address, port, &hints, &found))
		die("address");
	int handle = socket(found->ai_family, SOCK_STREAM, 0);

	setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (address) {
		if (connect(handle, found->ai_addr, found->ai_addrlen))
			die("connect");
	} else {
		int listener = handle;

		if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, 1))
			die("listen");
		handle = accept(listener, NULL, NULL);
		close(listener);
	}
	setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	struct timeval patience = { .tv_sec = 2 * PATIENCE_S };

	setsockopt(handle, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return handle;
}

/* --- our own end ------------------------------------------------------------------------------ */

static void open_device(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);

	if (!devices || !count || !(end.context = ibv_open_device(devices[0])))
		die("no RDMA device");
	end.pd = ibv_alloc_pd(end.context);
	end.local = aligned_alloc(4096, 2 * BYTES_MAX);
	memset(end.local, 0, 2 * BYTES_MAX);
	end.exposed = end.local + BYTES_MAX;
	end.local_mr = ibv_reg_mr(end.pd, end.local, BYTES_MAX, IBV_ACCESS_LOCAL_WRITE);
	end.exposed_mr = ibv_reg_mr(end.pd, end.exposed, EXPOSED_BYTES, IBV_ACCESS_LOCAL_WRITE | end.access);
	end.cq = ibv_create_cq(end.context, 4 * RECEIVES, NULL, NULL, 0);

	struct ibv_qp_init_attr wanted = { .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = RECEIVES, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (!end.local_mr || !end.exposed_mr || !end.cq || !(end.qp = ibv_create_qp(end.pd, &wanted)))
		die("a region, completion queue or queue pair");
	fcntl(end.context->async_fd, F_SETFL, fcntl(end.context->async_fd, F_GETFL) | O_NONBLOCK);
}

static void post_receive(uint32_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)end.exposed, bytes, end.exposed_mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(end.qp, &wr, &bad))
		die("ibv_post_recv");
}

static void introduce(void)
{
	struct introduction ours = { end.qp->qp_num, first_psn, end.exposed_mr->rkey, (uintptr_t)end.exposed, { { 0 } } };

	if (ibv_query_gid(end.context, 1, gid_index, &ours.gid))
		die("GID %d", gid_index);
	say(&ours, sizeof(ours));
	hear(&theirs, sizeof(theirs));
}

static void change(struct ibv_qp_attr attributes, int mask)
{
	if (ibv_modify_qp(end.qp, &attributes, mask))
		die("to state %d", attributes.qp_state);
}

static void connect_ends(void)
{
	enum ibv_mtu code = IBV_MTU_256;

	while (code < IBV_MTU_4096 && (128 << code) < mtu)
		code++;
	change((struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC },
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	change((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = code, .dest_qp_num = theirs.qpn, .rq_psn = theirs.psn,
			.max_dest_rd_atomic = 8, .min_rnr_timer = 12,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = theirs.gid,
				.sgid_index = (uint8_t)gid_index, .hop_limit = 64, .traffic_class = traffic_class } } },
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	       IBV_QP_MIN_RNR_TIMER);
	change((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = retry_cnt, .rnr_retry = rnr_retry,
			.sq_psn = first_psn, .max_rd_atomic = 8 },
	       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* --- facts ------------------------------------------------------------------------------------ */

static void tell_completion(const struct ibv_wc *wc)
{
	/* Only its wr_id tells the operation of a failed completion. */
	if (wc->wr_id)
		printf("request %s\n", ibv_wc_status_str(wc->status));
	else
		printf("receive %s\n", ibv_wc_status_str(wc->status));
}

/* The next completion; 0 when none comes within that time. */
static int completion(struct ibv_wc *wc, int ms)
{
	struct timespec now, until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000;
	do {
		int count = ibv_poll_cq(end.cq, 1, wc);

		if (count < 0)
			die("ibv_poll_cq");
		if (count)
			return 1;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec));
	return 0;
}

static void tell_completions(int count)
{
	struct ibv_wc wc;

	for (; count; count--) {
		if (!completion(&wc, PATIENCE_S * 1000))
			die("nothing completes within %d s", PATIENCE_S);
		tell_completion(&wc);
	}
}

static const char *state(void)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr unused;

	if (ibv_query_qp(end.qp, &attributes, IBV_QP_STATE, &unused))
		die("ibv_query_qp");
	return attributes.qp_state < 7 ? names[attributes.qp_state] : "unknown";
}

/* Final report of an end: remaining completions, events, its state. */
static void tell_end(void)
{
	struct ibv_async_event event;
	struct ibv_wc wc;

	while (completion(&wc, 200))
		tell_completion(&wc);
	while (!ibv_get_async_event(end.context, &event)) {
		if (event.event_type == IBV_EVENT_QP_ACCESS_ERR || event.event_type == IBV_EVENT_QP_REQ_ERR ||
		    event.event_type == IBV_EVENT_QP_FATAL)
			printf("event %s\n", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	}
	printf("state %s\n", state());
}

/* --- requests --------------------------------------------------------------------------------- */

static unsigned char pattern(uint32_t seed, uint32_t at)
{
	return (unsigned char)(seed * 29 + at * 7 + (at >> 8) * 3 + 1);
}

static void fill(unsigned char *bytes, uint32_t size, uint32_t seed)
{
	for (uint32_t at = 0; at < size; at++)
		bytes[at] = pattern(seed, at);
}

static void compare(const char *what, const unsigned char *bytes, uint32_t size, uint32_t seed)
{
	for (uint32_t at = 0; at < size; at++)
		if (bytes[at] != pattern(seed, at)) {
			printf("%s of %u bytes: byte %u is wrong\n", what, size, at);
			return;
		}
}

static void post(enum ibv_wr_opcode opcode, uint32_t size, int flags, uint64_t va, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)end.local, size, end.local_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.send_flags = (unsigned int)flags | IBV_SEND_SIGNALED, .imm_data = htonl(0xabcd0000 + size) }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = va;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.swap = 77;
	} else {
		wr.wr.rdma.remote_addr = va;
		wr.wr.rdma.rkey = rkey;
	}
	if (ibv_post_send(end.qp, &wr, &bad))
		die("ibv_post_send");
}

static void succeed(const char *what)
{
	struct ibv_wc wc;

	if (!completion(&wc, PATIENCE_S * 1000))
		die("%s: nothing completes within %d s", what, PATIENCE_S);
	if (wc.status != IBV_WC_SUCCESS)
		die("%s: completes with %s", what, ibv_wc_status_str(wc.status));
}

/* An operation in lock step: the server makes ready, the client asks, the server looks. */
static void operation(int client, enum ibv_wr_opcode opcode, const char *what, uint32_t size, uint32_t seed, int flags)
{
	int receives = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	if (!client) {
		if (receives)
			post_receive(EXPOSED_BYTES);
		if (opcode == IBV_WR_RDMA_READ)
			fill(end.exposed, size, seed);
		meet();
		if (receives)
			succeed(what);
		meet();
		if (opcode != IBV_WR_RDMA_READ)
			compare(what, end.exposed, size, seed);
		meet();
		return;
	}
	if (opcode == IBV_WR_RDMA_READ)
		memset(end.local, 0, size);
	else
		fill(end.local, size, seed);
	meet();
	post(opcode, size, flags, theirs.va, theirs.rkey);
	succeed(what);
	meet();
	if (opcode == IBV_WR_RDMA_READ)
		compare(what, end.local, size, seed);
	meet();
}

static void atomic(int client, enum ibv_wr_opcode opcode, uint64_t before, uint64_t after)
{
	uint64_t word;

	if (!client)
		memcpy(end.exposed, &before, sizeof(before));
	meet();
	if (client) {
		post(opcode, sizeof(word), 0, theirs.va, theirs.rkey);
		succeed("atomic");
		memcpy(&word, end.local, sizeof(word));
		if (word != before)
			printf("atomic found %" PRIu64 ", not %" PRIu64 "\n", word, before);
	}
	meet();
	memcpy(&word, end.exposed, sizeof(word));
	if (!client && word != after)
		printf("atomic left %" PRIu64 ", not %" PRIu64 "\n", word, after);
	meet();
}

/* Many at once, so that ACKs can be coalesced. */
static void burst(int client, enum ibv_wr_opcode opcode, uint32_t size)
{
	if (!client && opcode == IBV_WR_SEND)
		for (int at = 0; at < BURST; at++)
			post_receive(EXPOSED_BYTES);
	fill(client ? end.local : end.exposed, size, 9);
	meet();
	for (int at = 0; client && at < BURST; at++)
		post(opcode, size, 0, theirs.va, theirs.rkey);
	for (int at = 0; at < BURST && (client || opcode == IBV_WR_SEND); at++)
		succeed("burst");
	compare("burst", client ? end.local : end.exposed, size, 9);
	meet();
}

static void operations(int client)
{
	uint32_t bytes = (uint32_t)mtu, sizes[] = { 0, 1, 61, 62, 63, bytes, bytes + 1, 3 * bytes, 20 * bytes + 5 };

	for (uint32_t at = 0; at < sizeof(sizes) / sizeof(*sizes); at++) {
		operation(client, IBV_WR_SEND, "SEND", sizes[at], at, 0);
		operation(client, IBV_WR_SEND, "solicited SEND", sizes[at], at + 1, IBV_SEND_SOLICITED);
		operation(client, IBV_WR_SEND_WITH_IMM, "SEND with immediate", sizes[at], at + 2, 0);
		operation(client, IBV_WR_RDMA_WRITE, "WRITE", sizes[at], at + 3, 0);
		operation(client, IBV_WR_RDMA_WRITE_WITH_IMM, "WRITE with immediate", sizes[at], at + 4, 0);
		operation(client, IBV_WR_RDMA_READ, "READ", sizes[at], at + 5, 0);
	}
	atomic(client, IBV_WR_ATOMIC_FETCH_AND_ADD, 100, 105);
	atomic(client, IBV_WR_ATOMIC_CMP_AND_SWP, 5, 77);
	atomic(client, IBV_WR_ATOMIC_CMP_AND_SWP, 6, 6);
	burst(client, IBV_WR_SEND, 3 * bytes);
	burst(client, IBV_WR_RDMA_WRITE, 3 * bytes);
	burst(client, IBV_WR_RDMA_READ, 3 * bytes);
	printf("all operations done\n");
}

/* Long transfers of each kind, every byte compared, through a switch that marks packets. */
static void marked(int client)
{
	for (uint32_t round = 0; round < MARKED_ROUNDS; round++) {
		operation(client, IBV_WR_RDMA_WRITE, "WRITE", MARKED_BYTES, 3 * round, 0);
		operation(client, IBV_WR_SEND, "SEND", MARKED_BYTES, 3 * round + 1, 0);
		operation(client, IBV_WR_RDMA_READ, "READ", MARKED_BYTES, 3 * round + 2, 0);
	}
	printf("all transfers done\n");
	tell_end();
}

/* The refused request, and the one behind it. */
static void refused(int client, enum ibv_wr_opcode opcode, uint32_t size, uint64_t offset, uint32_t key)
{
	if (!client)
		post_receive(EXPOSED_BYTES);
	meet();
	if (client) {
		post(opcode, size, 0, theirs.va + offset, theirs.rkey ^ key);
		post(IBV_WR_RDMA_WRITE, 8, 0, theirs.va, theirs.rkey);
		tell_completions(2);
	}
	meet();
	tell_end();
	meet();
}

static void no_receive(int client, int late)
{
	meet();
	if (client) {
		post(IBV_WR_SEND, 100, 0, 0, 0);
		tell_completions(1);
	} else if (late) {
		nap(200);
		post_receive(EXPOSED_BYTES);
		tell_completions(1);
	}
	meet();
	tell_end();
	meet();
}

static void too_long(int client)
{
	if (!client)
		post_receive(100);
	meet();
	if (client) {
		post(IBV_WR_SEND, 3 * (uint32_t)mtu, 0, 0, 0);
		tell_completions(1);
	}
	meet();
	tell_end();
	meet();
}

static void absent_peer(int client)
{
	meet();
	if (client) {
		post(IBV_WR_RDMA_WRITE, 100, 0, theirs.va, theirs.rkey);
		tell_completions(1);
	}
	meet();
	tell_end();
	meet();
}

static void reuse(int client)
{
	struct ibv_wc wc;

	refused(client, IBV_WR_RDMA_WRITE, 64, 0, 0x5500);
	change((struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE);
	while (completion(&wc, 0))
		;
	first_psn = 0x654321;
	introduce();
	connect_ends();
	meet();
	operations(client);
	tell_end();
}

static int is(const char *what, const char *name)
{
	return !strcmp(what, name);
}

static void run(const char *what, int client)
{
	if (is(what, "operations") || is(what, "psn-wrap"))
		operations(client);
	else if (is(what, "marked"))
		marked(client);
	else if (is(what, "reuse"))
		reuse(client);
	else if (is(what, "rnr"))
		no_receive(client, 1);
	else if (is(what, "rnr-exceeded"))
		no_receive(client, 0);
	else if (is(what, "retry-exceeded"))
		absent_peer(client);
	else if (is(what, "send-too-long"))
		too_long(client);
	else if (is(what, "wrong-key-write") || is(what, "no-right-write"))
		refused(client, IBV_WR_RDMA_WRITE, 64, 0, is(what, "no-right-write") ? 0 : 0x5500);
	else if (is(what, "wrong-key-read") || is(what, "no-right-read"))
		refused(client, IBV_WR_RDMA_READ, 64, 0, is(what, "no-right-read") ? 0 : 0x5500);
	else if (is(what, "wrong-key-atomic"))
		refused(client, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0x5500);
	else if (is(what, "out-of-bounds-write"))
		refused(client, IBV_WR_RDMA_WRITE, 64, EXPOSED_BYTES - 63, 0);
	else if (is(what, "out-of-bounds-read"))
		refused(client, IBV_WR_RDMA_READ, 3 * (uint32_t)mtu, EXPOSED_BYTES - 3 * (uint64_t)mtu + 1, 0);
	else
		die("'%s' is unknown", what);
}

int main(int count, char **words)
{
	const char *port = "7472";

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int option; (option = getopt(count, words, "g:p:m:t:")) != -1;) {
		if (option == 'g')
			gid_index = atoi(optarg);
		else if (option == 'p')
			port = optarg;
		else if (option == 'm')
			mtu = atoi(optarg);
		else if (option == 't')
			traffic_class = (uint8_t)atoi(optarg);
		else
			return 2;
	}
	if (optind == count)
		return 2;
	const char *what = words[optind];
	int client = optind + 1 < count;

	if (is(what, "psn-wrap"))
		first_psn = 0xffffe0;
	if (is(what, "rnr-exceeded"))
		rnr_retry = 2;
	if (is(what, "retry-exceeded"))
		retry_cnt = 3;
	end.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	if (is(what, "no-right-write"))
		end.access = IBV_ACCESS_REMOTE_READ;
	if (is(what, "no-right-read"))
		end.access = IBV_ACCESS_REMOTE_WRITE;
	open_device();
	peer = reach(words[optind + 1], port);
	introduce();
	/* No queue pair has that number, nor will. */
	if (client && is(what, "retry-exceeded"))
		theirs.qpn ^= 0x10000;
	connect_ends();
	meet();
	run(what, client);
	return 0;
}
