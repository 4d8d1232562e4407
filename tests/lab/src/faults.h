/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Facts common to the switch's program and roced-lab; src/layout.rs has the same facts.
 */
#ifndef ROCED_LAB_FAULTS_H
#define ROCED_LAB_FAULTS_H

/* Most rules "the N-th frame of this opcode" at a time. */
#define RULES_MAX 8

enum action {
	DROP = 1,
	DUPLICATE = 2,
	CORRUPT = 3,
};

/* Act once, on frame `nth` of this BTH opcode, counted from 1 since the rules were set. */
struct rule {
	__u32 opcode;
	__u32 action;
	__u64 nth;
};

/* Faults for RoCE frames. A chance is in 2^-32: 2^32 is always. */
struct config {
	__u64 drop_chance;
	__u64 duplicate_chance;
	__u64 corrupt_chance;
	__u64 mark_chance;
	/*
	 * The queue on which frames leave, and so arrive at the host, plus one; zero: the kernel
	 * chooses.
	 */
	__u32 queue_plus_one;
	__u32 rules;
	/* Chances are for frames of this BTH opcode alone, plus one; zero: for all. */
	__u32 only_plus_one;
	__u32 reserved;
	struct rule rule[RULES_MAX];
};

/* Counted actions; the index into the map `counters`. */
enum counter {
	FRAMES = 0,
	DROPPED = 1,
	DUPLICATED = 2,
	CORRUPTED = 3,
	STEERED = 4,
	MARKED = 5,
	COUNTERS = 6,
};

#endif
