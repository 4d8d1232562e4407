/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The queues of the lab's switch: at the egress of each port toward a host a frame is dropped when
 * the queue has no room for it, and marked (CE) by WRED when the queue is long.
 *
 * Runs as a tc classifier in direct-action mode, before the qdisc that delays the frames: TBF of
 * the same rate, with more room, so that all drops are here. Time and chance are taken before the
 * lock, in which no helper may be called. So another CPU may have charged the queue at a later time
 * than ours: the queue is older than now, never younger, and no difference wraps.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#include "queue.h"

#define NS_PER_S 1000000000ULL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* By interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

static __always_inline int is_marked(const struct settings *wanted, __u64 depth, __u32 chance)
{
	if (depth <= wanted->min_bytes)
		return 0;
	if (depth > wanted->max_bytes)
		return 1;
	return chance < wanted->max_chance * (depth - wanted->min_bytes) / (wanted->max_bytes - wanted->min_bytes);
}

SEC("tc")
int roced_queue(struct __sk_buff *frame)
{
	__u32 first = 0, port = frame->ifindex;
	const struct settings *wanted = bpf_map_lookup_elem(&settings, &first);
	struct queue *queue = bpf_map_lookup_elem(&queues, &port);

	if (!wanted || !queue || !wanted->bytes_per_s)
		return TC_ACT_UNSPEC;

	__u64 rate = wanted->bytes_per_s;
	__u64 bytes = frame->len;
	__u64 now = bpf_ktime_get_ns();
	__u32 chance = bpf_get_prandom_u32();
	int mark = 0, drop = 0;

	bpf_spin_lock(&queue->lock);
	if (queue->reset_ns != wanted->reset_ns) {
		queue->reset_ns = wanted->reset_ns;
		queue->frames = queue->bytes = queue->marked = queue->dropped = queue->peak_bytes = 0;
	}

	__u64 empty = queue->empty_ns > now ? queue->empty_ns : now;
	__u64 depth = (empty - now) * rate / NS_PER_S + bytes;

	if (depth > wanted->buffer_bytes) {
		drop = 1;
		queue->dropped++;
	} else {
		queue->empty_ns = empty + bytes * NS_PER_S / rate;
		queue->frames++;
		queue->bytes += bytes;
		if (depth > queue->peak_bytes)
			queue->peak_bytes = depth;
		mark = is_marked(wanted, depth, chance);
	}
	bpf_spin_unlock(&queue->lock);

	if (drop)
		return TC_ACT_SHOT;
	/* 1 for a frame that may be marked, and zero for others. */
	if (mark && bpf_skb_ecn_set_ce(frame) == 1)
		__sync_fetch_and_add(&queue->marked, 1);
	return TC_ACT_UNSPEC;
}

char program_license[] SEC("license") = "Dual MIT/GPL";
