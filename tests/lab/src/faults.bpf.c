/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The faults of the lab: on the ports of the box between two hosts, RoCE frames of either version
 * that arrive are dropped, duplicated, corrupted or marked, by chance or by number, or made to arrive
 * on a queue of our choice. Anything else passes untouched.
 *
 * Runs as a tc classifier in direct-action mode at the ingress of every port, so the frame is an
 * skb; the kernel may have taken its outer VLAN tag out of the bytes. Frames may lie in several
 * buffers: everything is read by bpf_skb_load_bytes. Copies are made at the egress: so a capture on
 * a port shows the frames that its host sent, once, and those that it was sent.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "faults.h"

#define ROCE_UDP_PORT 4791
#define ICRC_BYTES 4

#define TYPE_IPV4 0x0800
#define TYPE_VLAN 0x8100
#define TYPE_IPV6 0x86dd
#define TYPE_ROCEV1 0x8915
#define TYPE_VLAN_SERVICE 0x88a8
#define PROTOCOL_UDP 17
/* Next header of a GRH: a BTH. */
#define PROTOCOL_BTH 0x1b

/* Byte 4 of the BTH (FECN, BECN, reserved) is not under the ICRC: a flip is no corruption. */
#define BTH_UNCOVERED_BYTE 4

/* "roce": marks a frame of which a copy is to be made on its way out. */
#define COPY_MARK 0x726f6365

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

/* How many frames each rule has seen. Apart from the config, which only user space writes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RULES_MAX);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Where a RoCE packet lies in its frame. */
struct place {
	__u32 bth;
	/* From the BTH to the end of the ICRC. */
	__u32 bytes;
	__u8 opcode;
};

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		*value += 1;
}

/* Reads big-endian 16 bits; 0 past the end, which is never a value that we look for. */
static __always_inline __u16 load16(struct __sk_buff *frame, __u32 at)
{
	__be16 value = 0;

	if (bpf_skb_load_bytes(frame, at, &value, sizeof(value)))
		return 0;
	return bpf_ntohs(value);
}

static __always_inline __u8 load8(struct __sk_buff *frame, __u32 at)
{
	__u8 value = 0;

	if (bpf_skb_load_bytes(frame, at, &value, sizeof(value)))
		return 0;
	return value;
}

/* True for a whole RoCEv1 frame with its GRH at `at`. */
static __always_inline int find_rocev1(struct __sk_buff *frame, __u32 at, struct place *place)
{
	place->bth = at + 40;
	place->bytes = load16(frame, at + 4);
	place->opcode = load8(frame, place->bth);
	return load8(frame, at + 6) == PROTOCOL_BTH && place->bytes >= 12 + ICRC_BYTES &&
	       place->bth + place->bytes <= frame->len;
}

/* True for a whole RoCE frame. */
static __always_inline int find_roce(struct __sk_buff *frame, struct place *place)
{
	__u32 at = 12;
	__u16 type = load16(frame, at);

	at += 2;
#pragma clang loop unroll(full)
	for (int tag = 0; tag < 2; tag++) {
		if (type != TYPE_VLAN && type != TYPE_VLAN_SERVICE)
			break;
		type = load16(frame, at + 2);
		at += 4;
	}

	if (type == TYPE_IPV4) {
		__u32 header_bytes = (load8(frame, at) & 0xf) * 4;

		/* Bits and offset of a fragment: those are not whole. */
		if (load8(frame, at + 9) != PROTOCOL_UDP || load16(frame, at + 6) & 0x3fff)
			return 0;
		at += header_bytes;
	} else if (type == TYPE_IPV6) {
		if (load8(frame, at + 6) != PROTOCOL_UDP)
			return 0;
		at += 40;
	} else if (type == TYPE_ROCEV1) {
		return find_rocev1(frame, at, place);
	} else {
		return 0;
	}

	__u32 udp_bytes = load16(frame, at + 4);

	if (load16(frame, at + 2) != ROCE_UDP_PORT || udp_bytes < 8 + 12 + ICRC_BYTES || at + udp_bytes > frame->len)
		return 0;
	place->bth = at + 8;
	place->bytes = udp_bytes - 8;
	place->opcode = load8(frame, place->bth);
	return 1;
}

/* Flips bits of one byte between the BTH and the ICRC, and mends nothing. */
static __always_inline int corrupt(struct __sk_buff *frame, const struct place *place)
{
	__u32 offset = bpf_get_prandom_u32() % (place->bytes - ICRC_BYTES);
	__u8 flip = 1 + bpf_get_prandom_u32() % 255;
	__u8 value;

	if (offset == BTH_UNCOVERED_BYTE)
		offset++;
	if (bpf_skb_load_bytes(frame, place->bth + offset, &value, sizeof(value)))
		return -1;
	value ^= flip;
	return bpf_skb_store_bytes(frame, place->bth + offset, &value, sizeof(value), 0);
}

static __always_inline int happens(const struct config *wanted, __u8 opcode, __u64 chance)
{
	if (wanted->only_plus_one && wanted->only_plus_one != opcode + 1)
		return 0;
	return chance && bpf_get_prandom_u32() < chance;
}

/* The action of the rule that this frame matches, or zero. */
static __always_inline __u32 take_rule(const struct config *wanted, __u8 opcode)
{
	__u32 action = 0;

	for (__u32 at = 0; at < RULES_MAX; at++) {
		__u32 key = at;
		__u64 *frames;

		if (at >= wanted->rules)
			break;
		if (wanted->rule[at].opcode != opcode)
			continue;
		frames = bpf_map_lookup_elem(&seen, &key);
		if (frames && __sync_fetch_and_add(frames, 1) + 1 == wanted->rule[at].nth)
			action = wanted->rule[at].action;
	}
	return action;
}

static __always_inline void steer(struct __sk_buff *frame, const struct config *wanted)
{
	if (!wanted->queue_plus_one)
		return;
	/* Read by the port on the way out as "the queue it came from", and kept. */
	frame->queue_mapping = wanted->queue_plus_one;
	count(STEERED);
}

SEC("tc")
int roced_faults(struct __sk_buff *frame)
{
	struct place place = {};
	__u32 first = 0;
	const struct config *wanted = bpf_map_lookup_elem(&config, &first);

	if (!wanted || !find_roce(frame, &place))
		return TC_ACT_OK;
	count(FRAMES);

	__u32 action = take_rule(wanted, place.opcode);

	if (action == DROP || happens(wanted, place.opcode, wanted->drop_chance)) {
		count(DROPPED);
		return TC_ACT_SHOT;
	}
	if ((action == CORRUPT || happens(wanted, place.opcode, wanted->corrupt_chance)) && !corrupt(frame, &place))
		count(CORRUPTED);
	/* As a switch with WRED does: nothing that says it cannot be marked. */
	if (happens(wanted, place.opcode, wanted->mark_chance) && bpf_skb_ecn_set_ce(frame) == 1)
		count(MARKED);
	if (action == DUPLICATE || happens(wanted, place.opcode, wanted->duplicate_chance))
		frame->mark = COPY_MARK;
	steer(frame, wanted);
	return TC_ACT_OK;
}

/*
 * At the egress of every port, before the queue, if the port has one. The copy passes here as well,
 * without the mark.
 */
SEC("tc")
int roced_copies(struct __sk_buff *frame)
{
	if (frame->mark != COPY_MARK)
		return TC_ACT_UNSPEC;
	frame->mark = 0;
	if (!bpf_clone_redirect(frame, frame->ifindex, 0))
		count(DUPLICATED);
	return TC_ACT_UNSPEC;
}

char program_license[] SEC("license") = "Dual MIT/GPL";
