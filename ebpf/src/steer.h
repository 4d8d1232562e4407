/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Facts common to the XDP program and the daemon. The same facts stand in
 * shared/steering/src/lib.rs; a test of tests/xdp reads both and fails when they differ.
 */
#ifndef ROCED_STEER_H
#define ROCED_STEER_H

/* UDP destination port of RoCEv2. */
#define ROCE_UDP_PORT 4791

/* Most addresses of one device, and multicast groups. */
#define ADDRESSES_MAX 5120

/* Most RX queues of one device. */
#define QUEUES_MAX 256

/* An address: IPv6, or IPv4 as ::ffff:a.b.c.d, in network byte order. */
struct address_key {
	unsigned long long halves[2];
};

/* By which RoCE an address of ours is spoken to. */
enum roce {
	ROCE_V2 = 1,
	ROCE_V1 = 2,
};

/* Verdicts on frames and their reasons; the index into the map `verdicts`. */
enum verdict {
	REDIRECTED = 0,
	PASS_NO_SOCKET = 1,
	PASS_NOT_IP = 2,
	PASS_NOT_ROCE = 3,
	PASS_NOT_OURS = 4,
	PASS_FRAGMENT = 5,
	PASS_MALFORMED = 6,
	DROP_PAUSE = 7,
	VERDICTS = 8,
};

/* Priorities of IEEE 802.1Q. */
#define PRIORITIES 8

/* Bit of `pauses.honored` above those of priorities: PAUSE frames, which pause all of them. */
#define HONOR_GLOBAL_PAUSE 256

/* Pauses of one priority. */
struct priority_pauses {
	/* Of the last pause, CLOCK_MONOTONIC. No end: a frame has ended it. */
	unsigned long long begin_ns;
	unsigned long long until_ns;
	/* Frames that concern it. */
	unsigned long long frames;
	/* Pauses before the last one that have ended, and all of them that a frame has ended. */
	unsigned long long ends;
	/* Duration of all pauses before the last one. */
	unsigned long long duration_ns;
};

/* Pauses by the other end of the link: the only value of the map `pauses`, which workers map. */
struct pauses {
	/* Zero until the daemon has set both. The second one follows the rate of the link. */
	unsigned long long honored;
	unsigned long long quantum_ps;
	/* Honored frames; rises after the other words of a frame, but may be seen before them. */
	unsigned long long frames;
	/* Those of them that are PAUSE frames. */
	unsigned long long global_frames;
	struct priority_pauses priorities[PRIORITIES];
};

#endif
