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
	VERDICTS = 7,
};

#endif
