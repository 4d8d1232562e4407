/* The connection manager by the distribution's librdmacm, opened in each way that programs do: its
 * calls end at the daemon, and its descriptors behave as those of the kernel.
 *
 *   connection_manager ADDRESS
 *
 * ADDRESS is an IPv4 address of a device. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(it)                                                                                                                                    \
	do {                                                                                                                                         \
		if (!(it)) {                                                                                                                         \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #it, strerror(errno));                                                       \
			exit(1);                                                                                                                     \
		}                                                                                                                                    \
	} while (0)

static const char *address;

/* librdmacm's functions. */
static struct {
	void *library;
	struct rdma_event_channel *(*create_channel)(void);
	void (*destroy_channel)(struct rdma_event_channel *);
	int (*create_id)(struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space);
	int (*destroy_id)(struct rdma_cm_id *);
	int (*bind)(struct rdma_cm_id *, struct sockaddr *);
	int (*listen)(struct rdma_cm_id *, int);
	int (*resolve)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);
	int (*get_event)(struct rdma_event_channel *, struct rdma_cm_event **);
	int (*ack_event)(struct rdma_cm_event *);
	int (*migrate)(struct rdma_cm_id *, struct rdma_event_channel *);
	uint16_t (*port)(struct rdma_cm_id *);
	int (*route)(struct rdma_cm_id *, int);
	int (*create_qp)(struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *);
	void (*destroy_qp)(struct rdma_cm_id *);
	int (*connect)(struct rdma_cm_id *, struct rdma_conn_param *);
	int (*accept)(struct rdma_cm_id *, struct rdma_conn_param *);
	int (*reject)(struct rdma_cm_id *, const void *, uint8_t);
} cm;

static void *function(const char *name)
{
	void *found = dlsym(cm.library, name);
	CHECK(found);
	return found;
}

static void open_library(int flags)
{
	cm.library = dlopen("librdmacm.so.1", flags);
	CHECK(cm.library || !fprintf(stderr, "%s\n", dlerror()));
	cm.create_channel = function("rdma_create_event_channel");
	cm.destroy_channel = function("rdma_destroy_event_channel");
	cm.create_id = function("rdma_create_id");
	cm.destroy_id = function("rdma_destroy_id");
	cm.bind = function("rdma_bind_addr");
	cm.listen = function("rdma_listen");
	cm.resolve = function("rdma_resolve_addr");
	cm.get_event = function("rdma_get_cm_event");
	cm.ack_event = function("rdma_ack_cm_event");
	cm.migrate = function("rdma_migrate_id");
	cm.port = function("rdma_get_src_port");
	cm.route = function("rdma_resolve_route");
	cm.create_qp = function("rdma_create_qp");
	cm.destroy_qp = function("rdma_destroy_qp");
	cm.connect = function("rdma_connect");
	cm.accept = function("rdma_accept");
	cm.reject = function("rdma_reject");
}

static struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *channel = cm.create_channel();
	CHECK(channel);
	return channel;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = NULL;
	CHECK(cm.create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && id);
	return id;
}

static struct sockaddr_in at(const char *text, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK(inet_pton(AF_INET, text, &address.sin_addr) == 1);
	return address;
}

static int readable(struct rdma_event_channel *channel, int milliseconds)
{
	struct pollfd one = { .fd = channel->fd, .events = POLLIN };
	return poll(&one, 1, milliseconds);
}

/* A listener has a port and a device, and no event. */
static void listener(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel), *other = new_id(channel);
	struct sockaddr_in own = at(address, 0), elsewhere = at("192.0.2.1", 0);
	CHECK(cm.bind(other, (struct sockaddr *)&elsewhere) == -1 && errno == EADDRNOTAVAIL);
	CHECK(cm.bind(id, (struct sockaddr *)&own) == 0);
	CHECK(cm.port(id) && id->verbs && id->port_num == 1);
	CHECK(cm.listen(id, 1) == 0);
	own.sin_port = cm.port(id);
	CHECK(cm.bind(other, (struct sockaddr *)&own) == -1 && errno == EADDRINUSE);
	CHECK(cm.destroy_id(other) == 0 && cm.destroy_id(id) == 0);
}

/* An event comes once, on the channel to which its identifier has moved. */
static void events(struct rdma_event_channel *channel)
{
	struct rdma_event_channel *second = new_channel();
	struct rdma_cm_id *id = new_id(channel);
	struct sockaddr_in own = at(address, 7471);
	struct rdma_cm_event *event;

	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(readable(channel, 0) == 0 && cm.get_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(cm.resolve(id, NULL, (struct sockaddr *)&own, 2000) == 0);
	CHECK(readable(channel, 5000) == 1);
	CHECK(cm.migrate(id, second) == 0);
	CHECK(readable(channel, 0) == 0 && readable(second, 5000) == 1);
	CHECK(cm.get_event(second, &event) == 0);
	CHECK(event->id == id && event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->status == 0);
	CHECK(cm.ack_event(event) == 0 && id->verbs);
	CHECK(readable(second, 0) == 0);
	CHECK(cm.destroy_id(id) == 0);

	/* An event that is not taken goes with its identifier. */
	id = new_id(second);
	CHECK(cm.resolve(id, NULL, (struct sockaddr *)&own, 2000) == 0);
	CHECK(readable(second, 5000) == 1);
	CHECK(cm.destroy_id(id) == 0 && readable(second, 0) == 0);
	cm.destroy_channel(second);
}

static void *wait_for_event(void *channel)
{
	struct rdma_cm_event *event;
	cm.get_event(channel, &event);
	return NULL;
}

/* A canceled thread holds no lock. */
static void canceled_thread(void)
{
	struct rdma_event_channel *channel = new_channel();
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, wait_for_event, channel) == 0);
	usleep(20000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	events(channel);
	cm.destroy_channel(channel);
}

/* A channel that is destroyed while a thread waits on it: the wait goes on, as on a device. */
static void destroyed_under_a_waiting_thread(void)
{
	struct rdma_event_channel *channel = new_channel();
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, wait_for_event, channel) == 0);
	usleep(20000);
	cm.destroy_channel(channel);
	/* Of the same descriptor; its events are not for that thread. */
	channel = new_channel();
	events(channel);
	CHECK(pthread_tryjoin_np(thread, &result) == EBUSY);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	cm.destroy_channel(channel);
}

/* A descriptor that the program closed by itself; its number is that of another file meanwhile. */
static void closed_by_the_program(void)
{
	struct rdma_event_channel *channel = new_channel();
	int number = channel->fd, ends[2];
	CHECK(close(number) == 0 && pipe(ends) == 0);
	CHECK(dup2(ends[1], number) == number && (close(ends[1]) == 0 || ends[1] == number));
	struct rdma_event_channel *second = new_channel();
	listener(second);
	cm.destroy_channel(second);
	/* Closes the pipe, as any descriptor. */
	cm.destroy_channel(channel);
	CHECK(fcntl(number, F_GETFD) == -1 && errno == EBADF);
	close(ends[0]);
	if (ends[1] != number)
		close(ends[1]);
}

/* A child leaves its parent's channels alone and opens its own. */
static void forked_child(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel);
	struct sockaddr_in own = at(address, 0);
	int status;
	CHECK(cm.bind(id, (struct sockaddr *)&own) == 0);
	pid_t child = fork();
	if (child == 0) {
		struct rdma_cm_id *none;
		CHECK(cm.create_id(channel, &none, NULL, RDMA_PS_TCP) == -1 && errno == ENODEV);
		cm.destroy_channel(channel);
		struct rdma_event_channel *of_child = new_channel();
		listener(of_child);
		cm.destroy_channel(of_child);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(cm.listen(id, 1) == 0 && readable(channel, 0) == 0);
	CHECK(cm.destroy_id(id) == 0);
	cm.destroy_channel(channel);
}

/* Longest private data of each call, and how the client hears of a refusal. */
struct service {
	enum rdma_port_space space;
	enum ibv_qp_type type;
	uint8_t connect, accept, reject;
	enum rdma_cm_event_type refused;
	int status;
};

static const struct service services[] = {
	{ RDMA_PS_TCP, IBV_QPT_RC, 56, 196, 148, RDMA_CM_EVENT_REJECTED, 28 },
	{ RDMA_PS_UDP, IBV_QPT_UD, 180, 136, 136, RDMA_CM_EVENT_UNREACHABLE, 2 },
};

static uint8_t data[255];

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = NULL;
	CHECK(readable(channel, 5000) == 1 && cm.get_event(channel, &event) == 0);
	CHECK(event->event == kind || !fprintf(stderr, "event %d, not %d, status %d\n", event->event, kind, event->status));
	return event;
}

/* The event has all private data, of that length. */
static void acknowledge(struct rdma_cm_event *event, const struct service *of, uint8_t length)
{
	uint8_t of_event = of->type == IBV_QPT_UD ? event->param.ud.private_data_len : event->param.conn.private_data_len;
	const void *its = of->type == IBV_QPT_UD ? event->param.ud.private_data : event->param.conn.private_data;
	CHECK(of_event == length && memcmp(its, data, length) == 0);
	CHECK(cm.ack_event(event) == 0);
}

static void new_qp(struct rdma_cm_id *id, const struct service *of)
{
	struct ibv_qp_init_attr attributes = { .qp_type = of->type, .cap = { 1, 1, 1, 1, 0 } };
	CHECK(cm.create_qp(id, NULL, &attributes) == 0);
}

static struct rdma_conn_param with_data(struct rdma_cm_id *id, uint8_t length)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = length, .qp_num = id->qp->qp_num };
}

/* A client that has asked, with as much private data as there may be, and its request. */
static struct rdma_cm_id *ask(struct rdma_event_channel *channel, const struct service *of, uint16_t port, struct rdma_cm_id **request)
{
	struct rdma_cm_id *client = NULL;
	struct sockaddr_in own = at(address, ntohs(port));
	CHECK(cm.create_id(channel, &client, NULL, of->space) == 0);
	CHECK(cm.resolve(client, NULL, (struct sockaddr *)&own, 2000) == 0);
	CHECK(cm.ack_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0 && cm.route(client, 2000) == 0);
	CHECK(cm.ack_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
	new_qp(client, of);
	/* One that is too long changes nothing. */
	struct rdma_conn_param parameters = with_data(client, of->connect + 1);
	CHECK(cm.connect(client, &parameters) == -1 && errno == EINVAL);
	parameters.private_data_len = of->connect;
	CHECK(cm.connect(client, &parameters) == 0);
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	*request = event->id;
	acknowledge(event, of, of->connect);
	return client;
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		cm.destroy_qp(id);
	CHECK(cm.destroy_id(id) == 0);
}

/* Private data of each length that is just possible, and just not. As with Linux, a refusal that is
 * too long changes nothing, and an acceptance that is too long refuses the client. */
static void private_data(const struct service *of)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *listener = NULL, *client, *request;
	struct sockaddr_in own = at(address, 0);
	for (size_t at = 0; at < sizeof data; at++)
		data[at] = at + 1;
	CHECK(cm.create_id(channel, &listener, NULL, of->space) == 0);
	CHECK(cm.bind(listener, (struct sockaddr *)&own) == 0 && cm.listen(listener, 1) == 0);
	uint16_t port = cm.port(listener);

	const uint8_t lengths[] = { of->accept, of->accept + 1, 255 };
	for (size_t at = 0; at < sizeof lengths; at++) {
		uint8_t length = lengths[at];
		client = ask(channel, of, port, &request);
		CHECK(cm.reject(request, data, of->reject + 1) == -1 && errno == EINVAL);
		CHECK(cm.reject(request, data, 255) == -1 && errno == EINVAL && readable(channel, 0) == 0);
		new_qp(request, of);
		struct rdma_conn_param parameters = with_data(request, length);
		if (length == of->accept) {
			CHECK(cm.accept(request, &parameters) == 0);
			struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
			CHECK(event->id == client);
			acknowledge(event, of, of->accept);
			/* The server of a connection hears of it as well. */
			if (of->type == IBV_QPT_RC)
				CHECK(cm.ack_event(next(channel, RDMA_CM_EVENT_ESTABLISHED)) == 0);
		} else {
			/* The queue pair fails behind that: errno may be of that call. */
			CHECK(cm.accept(request, &parameters) == -1);
			struct rdma_cm_event *event = next(channel, of->refused);
			CHECK(event->id == client && event->status == of->status);
			CHECK(cm.ack_event(event) == 0);
		}
		destroy(client);
		if (of->type == IBV_QPT_RC && length == of->accept)
			CHECK(cm.ack_event(next(channel, RDMA_CM_EVENT_DISCONNECTED)) == 0);
		destroy(request);
	}

	client = ask(channel, of, port, &request);
	CHECK(cm.reject(request, data, of->reject) == 0);
	struct rdma_cm_event *event = next(channel, of->refused);
	CHECK(event->id == client && event->status == of->status);
	acknowledge(event, of, of->reject);
	destroy(client);
	destroy(request);
	destroy(listener);
	cm.destroy_channel(channel);
}

int main(int count, char **arguments)
{
	static const int ways[] = { RTLD_LOCAL | RTLD_LAZY, RTLD_LOCAL | RTLD_NOW, RTLD_GLOBAL | RTLD_LAZY, RTLD_GLOBAL | RTLD_NOW };
	if (count != 2)
		return 2;
	address = arguments[1];
	for (size_t at = 0; at < 2 * sizeof ways / sizeof *ways; at++) {
		open_library(ways[at / 2]);
		struct rdma_event_channel *channel = new_channel();
		listener(channel);
		events(channel);
		cm.destroy_channel(channel);
		canceled_thread();
		destroyed_under_a_waiting_thread();
		closed_by_the_program();
		forked_child();
		for (size_t of = 0; of < sizeof services / sizeof *services; of++)
			private_data(&services[of]);
		CHECK(dlclose(cm.library) == 0);
	}
	puts("all as by the kernel");
	return 0;
}
