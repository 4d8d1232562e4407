/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * before-rtu ADDRESS PORT: connects by rdma_cm, and is killed when the peer's acceptance is there
 * and the confirmation (RTU) has not been sent: librdmacm sends it when the event is read.
 */
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define WAIT_MS 5000

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;

	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != expected) {
		fprintf(stderr, "event %s, status %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	rdma_ack_cm_event(event);
}

int main(int count, char **arguments)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7 };
	struct addrinfo *address;
	struct rdma_cm_id *id;

	if (count != 3) {
		fprintf(stderr, "usage: before-rtu ADDRESS PORT\n");
		return 2;
	}
	struct rdma_event_channel *channel = rdma_create_event_channel();

	check(!channel, "rdma_create_event_channel");
	check(getaddrinfo(arguments[1], arguments[2], NULL, &address), "getaddrinfo");
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, address->ai_addr, WAIT_MS), "rdma_resolve_addr");
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, WAIT_MS), "rdma_resolve_route");
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	check(rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
	check(rdma_connect(id, &parameters), "rdma_connect");

	struct pollfd acceptance = { .fd = channel->fd, .events = POLLIN };

	check(poll(&acceptance, 1, WAIT_MS) != 1, "no acceptance");
	printf("accepted\n");
	fflush(stdout);
	return raise(SIGKILL);
}
