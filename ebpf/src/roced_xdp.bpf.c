/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The first decision about a frame: RoCE for one of our addresses, whole and no fragment? Then it
 * goes to the AF_XDP socket of the RX queue that it arrived on. Everything else is the kernel's,
 * untouched.
 *
 * The program only reads. It looks at the headers in the linear part (in the first buffer of a
 * frame that lies in several), and takes the frame's length from all its buffers. A frame that it
 * does not understand it passes: a wrong guess here would take traffic away from the kernel.
 *
 * Frames of the other end of the link that pause it (IEEE 802.3 annexes 31B and 31D) end here, if
 * the device honors them: workers read from a map until when they must not send.
 */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

/* Ethernet types. */
#define TYPE_IPV4 0x0800
#define TYPE_VLAN 0x8100
#define TYPE_IPV6 0x86dd
#define TYPE_MAC_CONTROL 0x8808
#define TYPE_VLAN_SERVICE 0x88a8
#define TYPE_ROCE_V1 0x8915

/* Opcodes of MAC control frames. */
#define OPCODE_PAUSE 0x0001
#define OPCODE_PRIORITY_PAUSE 0x0101

/* IP protocols. */
#define PROTOCOL_UDP 17
#define PROTOCOL_IPV6_FRAGMENT 44

/* Next header of a GRH: a base transport header. */
#define NEXT_HEADER_BTH 0x1b

/* Outer and inner tag (IEEE 802.1ad). */
#define VLAN_TAGS_MAX 2

/* IPv4: "more fragments" and the fragment's offset; zero in both means a whole packet. */
#define IPV4_FRAGMENT_BITS 0x3fff

/* The third word of an IPv4 address mapped into IPv6, after two of zeros. */
#define MAPPED_WORD 0x0000ffff

/* The compiler makes this value, and nothing else in its place. */
#define KEEP_VALUE(value) asm volatile("" : "+r"(value))

struct ethernet_header {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
} __attribute__((packed));

/* The bytes behind a type of TYPE_VLAN: the tag, and the type of the next header. */
struct vlan_header {
	__be16 tag;
	__be16 type;
} __attribute__((packed));

/* A PFC frame. Of a PAUSE frame `priorities` is the time. */
struct mac_control {
	__be16 opcode;
	__be16 priorities;
	__be16 quanta[PRIORITIES];
} __attribute__((packed));

struct ipv4_header {
	__u8 version_and_words;
	__u8 traffic_class;
	__be16 total_bytes;
	__be16 identification;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__u8 source[4];
	__u8 destination[4];
} __attribute__((packed));

/* A GRH of RoCEv1 has the same fields in the same places. */
struct ipv6_header {
	__be32 version_class_flow;
	__be16 payload_bytes;
	__u8 next_header;
	__u8 hop_limit;
	__u8 source[16];
	__u8 destination[16];
} __attribute__((packed));

struct udp_header {
	__be16 source_port;
	__be16 destination_port;
	__be16 bytes;
	__be16 checksum;
} __attribute__((packed));

/* The socket of each RX queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Our addresses; the value says by which RoCE: bits of `enum roce`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES_MAX);
	__type(key, struct address_key);
	__type(value, __u8);
} addresses SEC(".maps");

/* Frames by verdict, a set of counters for each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS);
	__type(key, __u32);
	__type(value, __u64);
} verdicts SEC(".maps");

/* Pauses, mapped by the workers of the device. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pauses);
} pauses SEC(".maps");

/*
 * Keys are built of 8-byte words: before Linux 6.9 the verifier refuses, to a process without
 * CAP_PERFMON, a shorter store to a stack slot of which another part has been stored ("attempt to
 * corrupt spilled pointer on stack").
 */
static __always_inline struct address_key key_at(const __u8 *address)
{
	struct address_key key;

	__builtin_memcpy(key.halves, address, sizeof(key.halves));
	return key;
}

static __always_inline struct address_key mapped_key_at(const __u8 *address)
{
	__u32 word;

	__builtin_memcpy(&word, address, sizeof(word));
	return (struct address_key){ .halves = { 0, (__u64)word << 32 | bpf_htonl(MAPPED_WORD) } };
}

static __always_inline enum verdict judge_destination(const struct address_key *destination, __u8 roce)
{
	__u8 *ours = bpf_map_lookup_elem(&addresses, destination);

	return ours && (*ours & roce) ? REDIRECTED : PASS_NOT_OURS;
}

/* REDIRECTED stands for "ours": whether a socket takes it is not known here. */
static __always_inline enum verdict judge_udp(const struct udp_header *udp, __u32 room_bytes,
					      const struct address_key *destination)
{
	if (udp->destination_port != bpf_htons(ROCE_UDP_PORT))
		return PASS_NOT_ROCE;

	__u32 udp_bytes = bpf_ntohs(udp->bytes);

	if (udp_bytes < sizeof(*udp) || udp_bytes > room_bytes)
		return PASS_MALFORMED;
	return judge_destination(destination, ROCE_V2);
}

static __always_inline enum verdict judge_ipv4(struct xdp_md *frame, void *at, void *linear_end, __u32 ip_at,
					       __u32 room_bytes)
{
	struct ipv4_header *ip = at;

	if ((void *)(ip + 1) > linear_end)
		return PASS_MALFORMED;

	__u32 header_bytes = (ip->version_and_words & 0xf) * 4;
	__u32 total_bytes = bpf_ntohs(ip->total_bytes);

	if (ip->version_and_words >> 4 != 4 || header_bytes < sizeof(*ip))
		return PASS_MALFORMED;
	if (ip->fragment & bpf_htons(IPV4_FRAGMENT_BITS))
		return PASS_FRAGMENT;
	if (ip->protocol != PROTOCOL_UDP)
		return PASS_NOT_ROCE;
	/* Shorter than the frame is fine: Ethernet pads to 60 bytes. */
	if (total_bytes < header_bytes || total_bytes > room_bytes)
		return PASS_MALFORMED;

	struct address_key destination = mapped_key_at(ip->destination);
	struct udp_header udp;

	if (header_bytes == sizeof(*ip)) {
		struct udp_header *direct = (void *)(ip + 1);

		if ((void *)(direct + 1) > linear_end)
			return PASS_MALFORMED;
		return judge_udp(direct, total_bytes - header_bytes, &destination);
	}
	/* Behind options: a packet pointer with a variable offset needs CAP_PERFMON. */
	if (bpf_xdp_load_bytes(frame, ip_at + header_bytes, &udp, sizeof(udp)))
		return PASS_MALFORMED;
	return judge_udp(&udp, total_bytes - header_bytes, &destination);
}

static __always_inline enum verdict judge_ipv6(void *at, void *linear_end, __u32 room_bytes)
{
	struct ipv6_header *ip = at;

	if ((void *)(ip + 1) > linear_end)
		return PASS_MALFORMED;
	if (bpf_ntohl(ip->version_class_flow) >> 28 != 6)
		return PASS_MALFORMED;
	if (ip->next_header == PROTOCOL_IPV6_FRAGMENT)
		return PASS_FRAGMENT;
	if (ip->next_header != PROTOCOL_UDP)
		return PASS_NOT_ROCE;

	__u32 payload_bytes = bpf_ntohs(ip->payload_bytes);

	if (payload_bytes > room_bytes - sizeof(*ip))
		return PASS_MALFORMED;

	struct address_key destination = key_at(ip->destination);

	/* A mapped IPv4 address has no business on the wire; it must not pass for the IPv4 address. */
	if (!destination.halves[0] && (__u32)destination.halves[1] == bpf_htonl(MAPPED_WORD))
		return PASS_NOT_OURS;

	struct udp_header *udp = (void *)(ip + 1);

	if ((void *)(udp + 1) > linear_end)
		return PASS_MALFORMED;
	return judge_udp(udp, payload_bytes, &destination);
}

static __always_inline enum verdict judge_grh(void *at, void *linear_end, __u32 room_bytes)
{
	struct ipv6_header *grh = at;

	if ((void *)(grh + 1) > linear_end)
		return PASS_MALFORMED;
	if (bpf_ntohl(grh->version_class_flow) >> 28 != 6)
		return PASS_MALFORMED;
	if (grh->next_header != NEXT_HEADER_BTH)
		return PASS_NOT_ROCE;
	if (bpf_ntohs(grh->payload_bytes) > room_bytes - sizeof(*grh))
		return PASS_MALFORMED;

	struct address_key destination = key_at(grh->destination);

	return judge_destination(&destination, ROCE_V1);
}

/*
 * Where a frame concerns a priority, it replaces the pause that is there; no quanta end it. There
 * are no branches, because their common ends would be one, with an address that is the sum of two
 * variables: before CAP_PERFMON the verifier refuses that.
 */
static __always_inline void pause_priority(struct priority_pauses *priority, __u64 now, __u64 pause_ns, __u64 concerned)
{
	__u64 begin = priority->begin_ns, until = priority->until_ns;
	__u64 end = until < now ? until : now;
	__u64 has_ended = until && (until <= now || !pause_ns);

	priority->begin_ns = concerned ? now : begin;
	priority->until_ns = concerned ? (pause_ns ? now + pause_ns : 0) : until;
	__sync_fetch_and_add(&priority->frames, concerned);
	__sync_fetch_and_add(&priority->ends, concerned & has_ended);
	/* Another CPU may have noted a later frame meanwhile. */
	__sync_fetch_and_add(&priority->duration_ns, concerned && until && end > begin ? end - begin : 0);
}

static __always_inline enum verdict judge_mac_control(const struct ethernet_header *ethernet, void *at,
						      void *linear_end)
{
	static const __u8 receivers[6] = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x01 };
	struct mac_control *control = at;
	/* A whole slot: see `key_at`. */
	__u64 key = 0;
	struct pauses *state = bpf_map_lookup_elem(&pauses, &key);

	if (!state || !state->honored)
		return PASS_NOT_IP;
	/* No bridge forwards frames to this address: the sender is at the other end of the link. */
#pragma clang loop unroll(full)
	for (int byte = 0; byte < 6; byte++)
		if (ethernet->destination[byte] != receivers[byte])
			return PASS_NOT_IP;
	if ((void *)(control + 1) > linear_end)
		return PASS_MALFORMED;

	__u64 now = bpf_ktime_get_ns();
	__u64 quantum_ps = state->quantum_ps;
	__u64 is_global = control->opcode == bpf_htons(OPCODE_PAUSE);
	__u64 priorities = state->honored;
	__u64 of_all = bpf_ntohs(control->priorities);

	KEEP_VALUE(of_all);
	if (is_global && priorities & HONOR_GLOBAL_PAUSE)
		priorities = HONOR_GLOBAL_PAUSE - 1;
	else if (control->opcode == bpf_htons(OPCODE_PRIORITY_PAUSE) && priorities & (HONOR_GLOBAL_PAUSE - 1))
		priorities &= bpf_ntohs(control->priorities);
	else
		return PASS_NOT_IP;
#pragma clang loop unroll(full)
	for (int priority = 0; priority < PRIORITIES; priority++) {
		__u64 of_priority = bpf_ntohs(control->quanta[priority]);

		/* A choice between values, not between addresses: see `pause_priority`. */
		KEEP_VALUE(of_priority);
		pause_priority(&state->priorities[priority], now, (is_global ? of_all : of_priority) * quantum_ps / 1000,
			       priorities >> priority & 1);
	}
	__sync_fetch_and_add(&state->global_frames, is_global);
	__sync_fetch_and_add(&state->frames, 1);
	return DROP_PAUSE;
}

static __always_inline enum verdict judge(struct xdp_md *frame)
{
	void *start = (void *)(long)frame->data;
	void *linear_end = (void *)(long)frame->data_end;
	struct ethernet_header *ethernet = start;
	void *at = ethernet + 1;

	if (at > linear_end)
		return PASS_MALFORMED;

	__be16 type = ethernet->type;
	/* Counted along: the difference of two packet pointers needs CAP_PERFMON. */
	__u32 offset = sizeof(*ethernet);

#pragma clang loop unroll(full)
	for (int tag = 0; tag < VLAN_TAGS_MAX; tag++) {
		struct vlan_header *vlan = at;

		if (type != bpf_htons(TYPE_VLAN) && type != bpf_htons(TYPE_VLAN_SERVICE))
			break;
		if ((void *)(vlan + 1) > linear_end)
			return PASS_MALFORMED;
		type = vlan->type;
		at = vlan + 1;
		offset += sizeof(*vlan);
	}

	/* The linear part is a part of the frame, so this does not wrap. */
	__u32 room_bytes = (__u32)bpf_xdp_get_buff_len(frame) - offset;

	if (type == bpf_htons(TYPE_IPV4))
		return judge_ipv4(frame, at, linear_end, offset, room_bytes);
	if (type == bpf_htons(TYPE_IPV6))
		return judge_ipv6(at, linear_end, room_bytes);
	if (type == bpf_htons(TYPE_ROCE_V1))
		return judge_grh(at, linear_end, room_bytes);
	/* Never with a tag. */
	if (ethernet->type == bpf_htons(TYPE_MAC_CONTROL))
		return judge_mac_control(ethernet, ethernet + 1, linear_end);
	return PASS_NOT_IP;
}

SEC("xdp.frags")
int roced_xdp(struct xdp_md *frame)
{
	/* The key is the first half, on a little-endian machine. */
	__u64 verdict = judge(frame);
	int action = XDP_PASS;

	if (verdict == REDIRECTED) {
		action = (int)bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_PASS);
		if (action != XDP_REDIRECT)
			verdict = PASS_NO_SOCKET;
	} else if (verdict == DROP_PAUSE) {
		action = XDP_DROP;
	}

	__u64 *count = bpf_map_lookup_elem(&verdicts, &verdict);

	if (count)
		*count += 1;
	return action;
}

char program_license[] SEC("license") = "Dual MIT/GPL";
