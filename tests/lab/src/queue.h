/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Facts common to the program of the switch's queues and roced-lab; src/queue.rs has the same.
 * A queue is a leaky bucket of the port's rate: it holds the bytes that a port of that rate would
 * not have sent yet.
 */
#ifndef ROCED_LAB_QUEUE_H
#define ROCED_LAB_QUEUE_H

#include <linux/bpf.h>

/* Most ports at a time: 26 hosts with 10 devices each. */
#define PORTS_MAX 260

/* Of all queues. */
struct settings {
	__u64 bytes_per_s;
	/* A frame that does not fit is dropped. */
	__u64 buffer_bytes;
	/* WRED: no marks up to the one, all above the other. */
	__u64 min_bytes;
	__u64 max_bytes;
	/* Chance of a mark just below max_bytes, in 2^-32. */
	__u64 max_chance;
	/* PFC: a frame of one of these priorities that makes a queue longer than pause_bytes has its
	 * sender paused. */
	__u64 paused_priorities;
	__u64 pause_bytes;
	/* CLOCK_MONOTONIC of the last reset. A queue that has another one starts to count anew. */
	__u64 reset_ns;
};

/* Of one port. */
struct queue {
	struct bpf_spin_lock lock;
	__u32 reserved;
	/* When all that was accepted will have been sent; the depth is the rate times the time left. */
	__u64 empty_ns;
	/* That of the settings that the counters are for. */
	__u64 reset_ns;
	/* Accepted. */
	__u64 frames;
	__u64 bytes;
	__u64 marked;
	__u64 dropped;
	__u64 peak_bytes;
	/* When the host behind the port was paused last, and how often. */
	__u64 paused_ns;
	__u64 pauses;
};

#endif
