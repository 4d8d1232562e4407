/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The queues of the lab's switch: at the egress of each port toward a host a frame is dropped when
 * the queue has no room for it, and marked (CE) by WRED when the queue is long. With PFC a long
 * queue pauses the host that sent a frame of a lossless priority, until it would be half as long.
 *
 * Runs as a tc classifier in direct-action mode, before the qdisc that delays the frames: TBF of
 * the same rate, with more room, so that all drops are here. Time and chance are taken before the
 * lock, in which no helper may be called. So another CPU may have charged the queue at a later time
 * than ours: the queue is older than now, never younger, and no difference wraps.
 *
 * With traffic classes the qdisc is HTB, and takes the class from the priority of the skb:
 *
 *   bridge - a0 [roced_queue, HTB] === wire-a0 [roced_wire] - host-a0 === eth0 of the host
 *
 * A frame has the position of its last byte in its class as its mark. At the other end of the wire
 * all bytes up to there have left. Frames of a class leave in their order, so that a lost one
 * counts as sent with the next.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "queue.h"

#define NS_PER_S 1000000000ULL

/* "pfc": marks a frame that passes the queue a second time, and a PFC frame. */
#define PAUSE_MARK 0x706663

/* Least time between two pauses of a host. */
#define PAUSE_INTERVAL_NS 500000ULL

/* Of the link of 1 Gbit/s that hosts are told of (scripts/lab). */
#define QUANTUM_NS 512ULL
#define QUANTA_MAX 65535ULL

#define FRAME_BYTES_MIN 60

#define TYPE_IPV4 0x0800
#define TYPE_IPV6 0x86dd
#define TYPE_ROCEV1 0x8915
#define PROTOCOL_ICMPV6 58

struct pfc_frame {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
	__be16 opcode;
	__be16 priorities;
	__be16 quanta[8];
} __attribute__((packed));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX * CLASSES_MAX);
	__type(key, struct place);
	__type(value, struct queue);
} queues SEC(".maps");

/* By interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX * 2);
	__type(key, __u32);
	__type(value, struct wire);
} wires SEC(".maps");

static __always_inline int is_marked(const struct settings *wanted, __u64 depth, __u32 chance)
{
	if (depth <= wanted->min_bytes)
		return 0;
	if (depth > wanted->max_bytes)
		return 1;
	return chance < wanted->max_chance * (depth - wanted->min_bytes) / (wanted->max_bytes - wanted->min_bytes);
}

/* Priority of a frame: the upper three bits of its traffic class. */
static __always_inline __u32 priority_of(const struct __sk_buff *frame)
{
	__u8 bytes[2] = { 0 };

	if (frame->protocol == bpf_htons(TYPE_IPV4)) {
		bpf_skb_load_bytes_relative(frame, 1, bytes, 1, BPF_HDR_START_NET);
		return bytes[0] >> 5;
	}
	if (frame->protocol == bpf_htons(TYPE_IPV6)) {
		bpf_skb_load_bytes_relative(frame, 0, bytes, 2, BPF_HDR_START_NET);
		return (bytes[0] & 0xf) >> 1;
	}
	return 0;
}

/* ARP and discovery of neighbors never wait for data. RoCEv1 has no DSCP. */
static __always_inline __u32 class_of(const struct __sk_buff *frame, const struct settings *wanted)
{
	__u8 protocol = 0;

	if (!wanted->has_classes)
		return 0;
	if (frame->protocol == bpf_htons(TYPE_IPV6))
		bpf_skb_load_bytes_relative(frame, 6, &protocol, 1, BPF_HDR_START_NET);
	else if (frame->protocol != bpf_htons(TYPE_IPV4) && frame->protocol != bpf_htons(TYPE_ROCEV1))
		return CLASS_OTHER;
	if (protocol == PROTOCOL_ICMPV6)
		return CLASS_OTHER;
	return wanted->class_of_priority[priority_of(frame) & 7];
}

/* Class of HTB of a traffic class. */
static __always_inline __u32 handle_of(__u32 class)
{
	return HTB_MAJOR << 16 | (class + 1);
}

/* True for a frame that passes the queue a second time, and for a PFC frame. */
static __always_inline int has_passed(const struct __sk_buff *frame, const struct settings *wanted)
{
	return wanted->has_classes ? frame->priority >> 16 == HTB_MAJOR : frame->mark == PAUSE_MARK;
}

/* Sends the frame on its way, and in its place pauses the host behind the port that it came by. */
static __always_inline int pause_sender(struct __sk_buff *frame, const struct settings *wanted, __u32 port,
					__u64 pause_ns)
{
	__u32 priority = priority_of(frame) & 7;
	__u64 quanta = pause_ns / QUANTUM_NS;
	struct pfc_frame pfc = {
		.destination = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x01 },
		.source = { 0x02, 0x00, 0x00, 0x00, 0x00, 0xff },
		.type = bpf_htons(0x8808),
		.opcode = bpf_htons(0x0101),
		.priorities = bpf_htons(1 << priority),
	};
	static const __u8 zeros[FRAME_BYTES_MIN - sizeof(pfc)];

	if (quanta > QUANTA_MAX)
		quanta = QUANTA_MAX;
#pragma clang loop unroll(full)
	for (__u32 at = 0; at < 8; at++)
		pfc.quanta[at] = at == priority ? bpf_htons(quanta) : 0;
	if (!wanted->has_classes)
		frame->mark = PAUSE_MARK;
	if (bpf_clone_redirect(frame, frame->ifindex, 0) || bpf_skb_change_tail(frame, FRAME_BYTES_MIN, 0) ||
	    bpf_skb_store_bytes(frame, 0, &pfc, sizeof(pfc), 0) ||
	    bpf_skb_store_bytes(frame, sizeof(pfc), zeros, sizeof(zeros), 0))
		return TC_ACT_SHOT;
	if (wanted->has_classes) {
		frame->mark = 0;
		frame->priority = handle_of(CLASS_OTHER);
	}
	return bpf_redirect(port, 0);
}

SEC("tc")
int roced_queue(struct __sk_buff *frame)
{
	__u32 first = 0;
	const struct settings *wanted = bpf_map_lookup_elem(&settings, &first);

	if (!wanted || !wanted->bytes_per_s || has_passed(frame, wanted))
		return TC_ACT_UNSPEC;

	struct place place = { .port = frame->ifindex, .class = class_of(frame, wanted) };
	struct queue *queue = bpf_map_lookup_elem(&queues, &place);

	if (!queue)
		return TC_ACT_UNSPEC;

	__u64 rate = wanted->bytes_per_s;
	__u64 bytes = frame->len;
	__u64 now = bpf_ktime_get_ns();
	__u32 chance = bpf_get_prandom_u32(), position = 0;
	int mark = 0, drop = 0;

	bpf_spin_lock(&queue->lock);
	if (queue->reset_ns != wanted->reset_ns) {
		queue->reset_ns = wanted->reset_ns;
		queue->frames = queue->bytes = queue->marked = queue->dropped = queue->peak_bytes = queue->pauses = 0;
	}

	__u64 empty = queue->empty_ns > now ? queue->empty_ns : now;
	__u64 depth = bytes;

	if (wanted->has_classes)
		depth += queue->accepted - queue->left;
	else
		depth += (empty - now) * rate / NS_PER_S;
	if (depth > wanted->buffer_bytes) {
		drop = 1;
		queue->dropped++;
	} else {
		queue->empty_ns = empty + bytes * NS_PER_S / rate;
		queue->accepted += bytes;
		position = queue->accepted;
		queue->frames++;
		queue->bytes += bytes;
		if (depth > queue->peak_bytes)
			queue->peak_bytes = depth;
		mark = is_marked(wanted, depth, chance);
	}
	bpf_spin_unlock(&queue->lock);

	if (drop)
		return TC_ACT_SHOT;
	if (wanted->has_classes) {
		frame->mark = position;
		frame->priority = handle_of(place.class);
	}
	/* 1 for a frame that may be marked, and zero for others. */
	if (mark && bpf_skb_ecn_set_ce(frame) == 1)
		__sync_fetch_and_add(&queue->marked, 1);
	if (depth <= wanted->pause_bytes || !(wanted->paused_priorities & 1 << priority_of(frame)))
		return TC_ACT_UNSPEC;

	struct place source = { .port = frame->ingress_ifindex, .class = place.class };
	struct queue *of_source = bpf_map_lookup_elem(&queues, &source);

	if (!of_source || now < of_source->paused_ns + PAUSE_INTERVAL_NS)
		return TC_ACT_UNSPEC;
	of_source->paused_ns = now;
	__sync_fetch_and_add(&of_source->pauses, 1);
	return pause_sender(frame, wanted, source.port, (depth - wanted->pause_bytes / 2) * NS_PER_S / rate);
}

/* At the ingress of both interfaces between a port with classes and its host. */
SEC("tc")
int roced_wire(struct __sk_buff *frame)
{
	__u32 first = 0, interface = frame->ifindex, position = frame->mark;
	const struct settings *wanted = bpf_map_lookup_elem(&settings, &first);
	const struct wire *wire = bpf_map_lookup_elem(&wires, &interface);

	if (!wanted || !wire)
		return TC_ACT_SHOT;
	if (!wire->port)
		return bpf_redirect(wire->next, wire->flags);

	struct place place = { .port = wire->port, .class = class_of(frame, wanted) };
	struct queue *queue = bpf_map_lookup_elem(&queues, &place);

	/* No position: a PFC frame, or the one in 2^32 bytes at which positions begin anew. */
	if (queue && position) {
		bpf_spin_lock(&queue->lock);
		if ((__s32)(position - queue->left) > 0)
			queue->left = position;
		bpf_spin_unlock(&queue->lock);
	}
	/* The port's choice of a queue, as "the queue it came from". */
	frame->queue_mapping = frame->queue_mapping + 1;
	return bpf_redirect(wire->next, wire->flags);
}

char program_license[] SEC("license") = "Dual MIT/GPL";
