/*
 * Fills gaps of librspreload before rdma-core 65, and is preloaded before it. That library puts
 * rsockets in place of sockets.
 *
 * - It has accept, and not accept4; sockets with flags in their type stay those of the kernel.
 * - A wait that times out leaves rpoll with a wrong count of its callers, and after the next timeout
 *   all calls of rpoll spin for ever. Such waits look at the sockets without waiting, and sleep.
 * - Its select takes an accepted socket for the descriptor below it, so select is made of poll.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

enum { NAP_NS = 50000 };

static void unblock(int socket, int flags) {
  if (socket >= 0 && (flags & SOCK_NONBLOCK)) fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
}

int socket(int domain, int type, int protocol) {
  static int (*next)(int, int, int);
  if (!next) next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
  int is_stream = (domain == AF_INET || domain == AF_INET6) && (type & 15) == SOCK_STREAM;
  int made = next(domain, is_stream ? SOCK_STREAM : type, protocol);
  if (is_stream) unblock(made, type);
  return made;
}

int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags) {
  int accepted = accept(listener, address, length);
  unblock(accepted, flags);
  return accepted;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void nap(void) {
  struct timespec time = {.tv_nsec = NAP_NS};
  nanosleep(&time, 0);
}

int poll(struct pollfd *polled, nfds_t count, int timeout) {
  static int (*next)(struct pollfd *, nfds_t, int);
  if (!next) next = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
  if (timeout <= 0) return next(polled, count, timeout);
  for (double end = now() + timeout / 1e3;; nap()) {
    int ready = next(polled, count, 0);
    if (ready != 0 || now() >= end) return ready;
  }
}

int select(int count, fd_set *read, fd_set *write, fd_set *error, struct timeval *timeout) {
  struct pollfd polled[FD_SETSIZE];
  nfds_t asked = 0;
  for (int fd = 0; fd < count; fd++) {
    short events = (short)((read && FD_ISSET(fd, read) ? POLLIN : 0) | (write && FD_ISSET(fd, write) ? POLLOUT : 0));
    if (events || (error && FD_ISSET(fd, error))) polled[asked++] = (struct pollfd){.fd = fd, .events = events};
  }
  int wait = timeout ? (int)(timeout->tv_sec * 1000 + timeout->tv_usec / 1000) : -1;
  if (poll(polled, asked, wait) < 0) return -1;
  int ready = 0;
  for (nfds_t i = 0; i < asked; i++) {
    int fd = polled[i].fd, seen = polled[i].revents;
    int is_read = (polled[i].events & POLLIN) && (seen & (POLLIN | POLLHUP | POLLERR));
    int is_written = (polled[i].events & POLLOUT) && (seen & (POLLOUT | POLLERR));
    if (read && !is_read) FD_CLR(fd, read);
    if (write && !is_written) FD_CLR(fd, write);
    if (error) FD_CLR(fd, error);
    ready += is_read + is_written;
  }
  return ready;
}
