/*
 * A program whose functions of epoll stand before those of the C library, as do those of libraries
 * that replace sockets, which hold a lock while librdmacm asks for devices. Opening a device must
 * not call them.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

static int called(const char *name)
{
	fprintf(stderr, "%s of the program is called\n", name);
	exit(1);
}

int epoll_create(int size) { return called("epoll_create") + size; }
int epoll_create1(int flags) { return called("epoll_create1") + flags; }
int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
	return called("epoll_ctl") + epoll + operation + fd + (event != NULL);
}
int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout)
{
	return called("epoll_wait") + epoll + count + timeout + (events != NULL);
}

int main(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	if (!devices || !count)
		return 2;
	struct ibv_context *device = ibv_open_device(devices[0]);
	if (!device || ibv_close_device(device))
		return 3;
	ibv_free_device_list(devices);
	printf("opened without epoll of the program\n");
	return 0;
}
