/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connections by rdma_cm that outlive one of their ends:
 *
 *   stale serve ADDRESS PORT COUNT   accepts connections, until COUNT of them have ended
 *   stale hold ADDRESS PORT          connects, and waits until the connection ends
 *   stale ask ADDRESS PORT           connects, and disconnects
 *
 * Each connection begins with messages in both directions; their bytes are verified. The program
 * makes its queue pairs itself: after a refusal the next attempt has the same one, and so the same
 * number. SIGUSR1: a message on each connection, and the end of those on which it is not
 * acknowledged.
 *
 * It prints a line for each event: the connection, the event and its status.
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 5000
#define ROUNDS 8
#define BYTES 3000
/* Those of the rounds, and one of a probe. */
#define RECEIVES (ROUNDS + 1)
#define CONNECTIONS_MAX 4
/* Time in which an event that must not come would come. */
#define LINGER_MS 1500
/* Attempts of a client, and the time between two. */
#define ATTEMPTS_MAX 30
#define PAUSE_US 300000

struct connection {
	/* The number of its attempt, of all attempts of this program. */
	int number;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	/* Sent; and received, a place for each. */
	unsigned char (*messages)[BYTES];
	uint64_t seed;
	int is_open;
	uint64_t disconnect_ms;
};

static struct rdma_event_channel *channel;
static struct connection connections[CONNECTIONS_MAX];
static int attempts, ended;
static volatile sig_atomic_t is_signaled;

static void check(int failed, const char *what)
{
	if (failed) {
		printf("%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

static void on_signal(int number)
{
	(void)number;
	is_signaled = 1;
}

/* The bytes of a message of a connection. */
static void fill(unsigned char *message, uint64_t seed, int is_of_client, int round)
{
	uint64_t state = seed ^ (is_of_client ? 0x5555555555555555ull : 0) ^ ((uint64_t)round << 32);

	for (int at = 0; at < BYTES; at++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		message[at] = state >> 56;
	}
}

static struct connection *slot_of(struct rdma_cm_id *id)
{
	for (int at = 0; at < CONNECTIONS_MAX; at++)
		if (connections[at].id == id)
			return &connections[at];
	return NULL;
}

/* A place with a queue pair: that of a connection that was refused, or another. */
static struct connection *take(struct rdma_cm_id *id)
{
	struct connection *place = NULL;

	for (int at = CONNECTIONS_MAX - 1; at >= 0; at--)
		if (!connections[at].id && (!place || connections[at].qp))
			place = &connections[at];
	if (!place) {
		printf("no room for another connection\n");
		exit(1);
	}
	place->id = id;
	place->number = ++attempts;
	place->is_open = 0;
	if (place->qp)
		return place;

	size_t bytes = (1 + RECEIVES) * BYTES;

	place->messages = calloc(1, bytes);
	check(!place->messages, "calloc");
	place->pd = ibv_alloc_pd(id->verbs);
	check(!place->pd, "ibv_alloc_pd");
	place->cq = ibv_create_cq(id->verbs, 1 + RECEIVES, NULL, NULL, 0);
	check(!place->cq, "ibv_create_cq");
	place->mr = ibv_reg_mr(place->pd, place->messages, bytes, IBV_ACCESS_LOCAL_WRITE);
	check(!place->mr, "ibv_reg_mr");

	struct ibv_qp_init_attr attributes = {
		.send_cq = place->cq,
		.recv_cq = place->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	place->qp = ibv_create_qp(place->pd, &attributes);
	check(!place->qp, "ibv_create_qp");
	return place;
}

static void move_to(struct connection *of, enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = { .qp_state = state };
	int mask = IBV_QP_STATE;

	if (state != IBV_QPS_RESET)
		check(rdma_init_qp_attr(of->id, &attributes, &mask), "rdma_init_qp_attr");
	if (state == IBV_QPS_RTR)
		printf("%d queue pairs %u %u\n", of->number, of->qp->qp_num, attributes.dest_qp_num);
	check(errno = ibv_modify_qp(of->qp, &attributes, mask), "ibv_modify_qp");
}

static void post_receive(struct connection *of, int round)
{
	struct ibv_sge place = {
		.addr = (uintptr_t)of->messages[1 + round],
		.length = BYTES,
		.lkey = of->mr->lkey,
	};
	struct ibv_recv_wr receive = { .wr_id = round, .sg_list = &place, .num_sge = 1 }, *bad;

	check(errno = ibv_post_recv(of->qp, &receive, &bad), "ibv_post_recv");
}

/* To RTS, with receives. */
static void prepare(struct connection *of)
{
	move_to(of, IBV_QPS_INIT);
	for (int round = 0; round < RECEIVES; round++)
		post_receive(of, round);
	move_to(of, IBV_QPS_RTR);
	move_to(of, IBV_QPS_RTS);
}

static void post_send(struct connection *of)
{
	struct ibv_sge place = { .addr = (uintptr_t)of->messages[0], .length = BYTES, .lkey = of->mr->lkey };
	struct ibv_send_wr send = {
		.sg_list = &place,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	check(errno = ibv_post_send(of->qp, &send, &bad), "ibv_post_send");
}

static struct ibv_wc completion(struct connection *of, int limit_ms)
{
	uint64_t deadline = now_ms() + limit_ms;
	struct ibv_wc wc = { 0 };
	int count;

	while (!(count = ibv_poll_cq(of->cq, 1, &wc)) && now_ms() < deadline)
		usleep(500);
	if (count != 1) {
		printf("%d no completion\n", of->number);
		exit(1);
	}
	return wc;
}

/* A completion of an exchange. */
static void take_one(struct connection *of, int is_client, int *sent, int *received)
{
	static unsigned char expected[BYTES];
	struct ibv_wc wc = completion(of, 4 * WAIT_MS);

	if (wc.status != IBV_WC_SUCCESS) {
		printf("%d %s\n", of->number, ibv_wc_status_str(wc.status));
		exit(1);
	}
	if (wc.opcode != IBV_WC_RECV) {
		++*sent;
		return;
	}
	fill(expected, of->seed, !is_client, *received);
	if (wc.wr_id != (uint64_t)*received || wc.byte_len != BYTES ||
	    memcmp(of->messages[1 + *received], expected, BYTES)) {
		printf("%d wrong data in round %d\n", of->number, *received);
		exit(1);
	}
	++*received;
}

/* The client's message of each round, and then the server's. */
static void exchange(struct connection *of, int is_client)
{
	int sent = 0, received = 0;

	for (int round = 0; round < ROUNDS; round++) {
		while (!is_client && received <= round)
			take_one(of, is_client, &sent, &received);
		fill(of->messages[0], of->seed, is_client, round);
		post_send(of);
		/* The next message of a client may come before the acknowledgment. */
		while (sent <= round || (is_client && received <= round))
			take_one(of, is_client, &sent, &received);
	}
	of->is_open = 1;
	printf("%d right data\n", of->number);
}

static void disconnect(struct connection *of)
{
	of->disconnect_ms = now_ms();
	check(rdma_disconnect(of->id), "rdma_disconnect");
}

/* One more message. Without an acknowledgment the connection ends. */
static void probe(struct connection *of)
{
	struct ibv_wc wc;

	post_send(of);
	do
		wc = completion(of, 12 * WAIT_MS);
	while (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	printf("%d probe: %s\n", of->number, ibv_wc_status_str(wc.status));
	if (wc.status != IBV_WC_SUCCESS)
		disconnect(of);
}

static struct rdma_conn_param parameters(struct connection *of)
{
	return (struct rdma_conn_param){
		.private_data = &of->seed,
		.private_data_len = sizeof of->seed,
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 3,
		.rnr_retry_count = 7,
		.qp_num = of->qp->qp_num,
	};
}

/* The identifier goes, the queue pair stays for the next attempt. */
static void forget(struct connection *of)
{
	move_to(of, IBV_QPS_RESET);
	check(rdma_destroy_id(of->id), "rdma_destroy_id");
	of->id = NULL;
}

static void on_request(struct rdma_cm_event *event)
{
	struct connection *of = take(event->id);

	if (event->param.conn.private_data_len < sizeof of->seed) {
		printf("%d no private data\n", of->number);
		exit(1);
	}
	memcpy(&of->seed, event->param.conn.private_data, sizeof of->seed);
	rdma_ack_cm_event(event);
	prepare(of);

	struct rdma_conn_param accepted = parameters(of);

	check(rdma_accept(of->id, &accepted), "rdma_accept");
}

/* Takes the next event, if one comes in time. */
static struct rdma_cm_event *next_event(int limit_ms)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int count = poll(&readable, 1, limit_ms);

	if (count <= 0) {
		check(count && errno != EINTR, "poll");
		return NULL;
	}
	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");

	struct connection *of = slot_of(event->id);

	if (of && of->disconnect_ms && event->event == RDMA_CM_EVENT_DISCONNECTED)
		printf("%d answered after %d ms\n", of->number, (int)(now_ms() - of->disconnect_ms));
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		printf("%d %s %d\n", of ? of->number : 0, rdma_event_str(event->event), event->status);
	return event;
}

/* Events of established connections, until so many connections have ended. */
static void follow(int count)
{
	uint64_t deadline = 0;

	while (!deadline || now_ms() < deadline) {
		if (is_signaled) {
			is_signaled = 0;
			for (int at = 0; at < CONNECTIONS_MAX; at++)
				if (connections[at].is_open)
					probe(&connections[at]);
		}

		struct rdma_cm_event *event = next_event(100);

		if (!event)
			continue;

		struct connection *of = slot_of(event->id);
		enum rdma_cm_event_type type = event->event;

		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			on_request(event);
			continue;
		}
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_DEVICE_REMOVAL)
			exit(3);
		if (!of)
			continue;
		if (type == RDMA_CM_EVENT_ESTABLISHED) {
			exchange(of, 0);
		} else if (type == RDMA_CM_EVENT_REJECTED) {
			forget(of);
		} else if (type == RDMA_CM_EVENT_DISCONNECTED && of->is_open) {
			of->is_open = 0;
			if (++ended == count)
				deadline = now_ms() + LINGER_MS;
			/* Ends the other side's wait, if it disconnected. */
			if (!of->disconnect_ms)
				rdma_disconnect(of->id);
		}
	}
}

static void expect(enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event = next_event(2 * WAIT_MS);

	if (!event || event->event != expected) {
		printf("no %s\n", rdma_event_str(expected));
		exit(1);
	}
	rdma_ack_cm_event(event);
}

/* An attempt, and whether it was accepted. */
static struct connection *connect_once(struct sockaddr *address)
{
	struct rdma_cm_id *id;

	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, address, WAIT_MS), "rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, WAIT_MS), "rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);

	struct connection *of = take(id);

	check(getrandom(&of->seed, sizeof of->seed, 0) != sizeof of->seed, "getrandom");

	struct rdma_conn_param wanted = parameters(of);

	check(rdma_connect(id, &wanted), "rdma_connect");

	/* As long as the connection manager repeats its request. */
	struct rdma_cm_event *event = next_event(20 * WAIT_MS);
	int is_accepted = event && event->event == RDMA_CM_EVENT_CONNECT_RESPONSE;

	if (event)
		rdma_ack_cm_event(event);
	if (!is_accepted) {
		forget(of);
		return NULL;
	}
	prepare(of);
	check(rdma_establish(id), "rdma_establish");
	return of;
}

static void be_client(struct sockaddr *address, int is_short)
{
	struct connection *of = NULL;

	while (!of && attempts < ATTEMPTS_MAX) {
		of = connect_once(address);
		if (!of)
			usleep(PAUSE_US);
	}
	if (!of)
		exit(1);
	exchange(of, 1);
	if (is_short)
		disconnect(of);
	follow(1);
}

static void be_server(struct sockaddr *address, int count)
{
	struct rdma_cm_id *listener;

	check(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(listener, address), "rdma_bind_addr");
	check(rdma_listen(listener, CONNECTIONS_MAX), "rdma_listen");
	printf("listens\n");
	follow(count);
	rdma_destroy_id(listener);
}

int main(int count, char **arguments)
{
	const char *role = count > 1 ? arguments[1] : "";
	struct addrinfo *address;

	if (count != (strcmp(role, "serve") ? 4 : 5)) {
		fprintf(stderr, "usage: stale serve ADDRESS PORT COUNT, hold ADDRESS PORT, ask ADDRESS PORT\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGUSR1, on_signal);
	channel = rdma_create_event_channel();
	check(!channel, "rdma_create_event_channel");
	check(getaddrinfo(arguments[2], arguments[3], NULL, &address), "getaddrinfo");
	if (strcmp(role, "serve"))
		be_client(address->ai_addr, !strcmp(role, "ask"));
	else
		be_server(address->ai_addr, atoi(arguments[4]));
	for (int at = 0; at < CONNECTIONS_MAX; at++) {
		struct connection *of = &connections[at];

		if (of->id)
			rdma_destroy_id(of->id);
		if (!of->qp)
			continue;
		check(errno = ibv_destroy_qp(of->qp), "ibv_destroy_qp");
		check(errno = ibv_dereg_mr(of->mr), "ibv_dereg_mr");
		check(errno = ibv_destroy_cq(of->cq), "ibv_destroy_cq");
		check(errno = ibv_dealloc_pd(of->pd), "ibv_dealloc_pd");
	}
	return 0;
}
