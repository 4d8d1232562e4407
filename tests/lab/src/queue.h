/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Facts common to the programs of the switch's queues and roced-lab; src/queue.rs has the same.
 * The queue of a port is a leaky bucket of its rate: it holds the bytes that a port of that rate
 * would not have sent yet. A port with traffic classes has a queue for each. The rate of these
 * varies, so that they hold the bytes that have not come out at the other end of the port's wire.
 */
#ifndef ROCED_LAB_QUEUE_H
#define ROCED_LAB_QUEUE_H

#include <linux/bpf.h>

/* Most ports at a time: 26 hosts with 10 devices each. */
#define PORTS_MAX 260

/* Traffic classes 0 to 7, and a class for frames that are neither IP nor RoCE. */
#define CLASS_OTHER 8
#define CLASSES_MAX 9

/* Number of the port's HTB; its class 1:1 is for the traffic class 0, and so on (scripts/lab). */
#define HTB_MAJOR 1

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
	/* Otherwise all frames are of the class 0. */
	__u64 has_classes;
	__u8 class_of_priority[8];
};

/* Key of a queue. */
struct place {
	/* Index of the interface. */
	__u32 port;
	__u32 class;
};

/* Of one port, or of one of its classes. */
struct queue {
	struct bpf_spin_lock lock;
	/* Position of the last byte that was accepted, modulo 2^32. */
	__u32 accepted;
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
	/* With classes: position of the last byte that has left. */
	__u32 left;
	__u32 reserved;
};

/* One of the interfaces between a port with classes and its host: the other end of the port's wire,
 * or the one toward the host. */
struct wire {
	/* Index of the port that the frames have left; zero for those of the host. */
	__u32 port;
	/* Next interface, and flags of bpf_redirect(). */
	__u32 next;
	__u64 flags;
};

#endif
