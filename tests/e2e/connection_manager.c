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
		CHECK(dlclose(cm.library) == 0);
	}
	puts("all as by the kernel");
	return 0;
}
