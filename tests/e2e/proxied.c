/*
 * Memory that no daemon can map, registered by libibverbs: an initialized variable, huge pages
 * where the machine has some, and, where userfaultfd is forbidden, anything at all. Data goes by
 * WRITE, READ and SEND, to it and from it, and every byte is looked at; a peer adds to a number in
 * it.
 *
 *   proxied DEVICE GID_INDEX [no-userfaultfd]
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "loopback.h"

enum { VARIABLE_BYTES = 300001, HUGE_BYTES = 2 << 20, BUFFER_BYTES = 100000, HEAP_BYTES = 25 * 4096 };

/* Begins with something other than zeros, so it lies in the file of this program. */
static unsigned char variable[VARIABLE_BYTES] = { 1, 2, 3 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qps[2];

static void forbid_userfaultfd(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void reap(int count)
{
	struct ibv_wc done;
	while (count > 0) {
		int got = ibv_poll_cq(cq, 1, &done);
		CHECK(got >= 0);
		CHECK(got == 0 || done.status == IBV_WC_SUCCESS);
		count -= got;
	}
}

static void post(enum ibv_wr_opcode opcode, struct ibv_mr *local, struct ibv_mr *remote, unsigned skip, unsigned length)
{
	struct ibv_sge here = { (uintptr_t)local->addr + skip, length, local->lkey }, there = { (uintptr_t)remote->addr + skip, length, remote->lkey };
	struct ibv_send_wr send = { .sg_list = &here, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
				    .wr.rdma = { there.addr, remote->rkey } }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = &there, .num_sge = 1 }, *bad_receive;
	int receives = opcode == IBV_WR_SEND;
	if (receives)
		CHECK(ibv_post_recv(qps[1], &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(qps[0], &send, &bad_send) == 0);
	reap(1 + receives);
}

static void fill(unsigned char *bytes, unsigned length, unsigned seed)
{
	for (unsigned i = 0; i < length; i++)
		bytes[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

/* Moves `length` bytes from one to the other by each operation. */
static void move(struct ibv_mr *from, struct ibv_mr *to, unsigned skip, unsigned length, unsigned seed)
{
	enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND };
	for (unsigned i = 0; i < 3; i++) {
		unsigned char *source = (unsigned char *)from->addr, *target = (unsigned char *)to->addr;
		unsigned char before = target[skip + length];
		fill(source + skip, length, seed + i);
		if (opcodes[i] == IBV_WR_RDMA_READ)
			post(opcodes[i], to, from, skip, length);
		else
			post(opcodes[i], from, to, skip, length);
		CHECK(memcmp(source + skip, target + skip, length) == 0);
		CHECK(target[skip + length] == before);
	}
}

/* A peer adds one to the first eight aligned bytes. */
static void count_up(struct ibv_mr *region)
{
	uint64_t *number = (uint64_t *)(((uintptr_t)region->addr + 7) & ~(uintptr_t)7), before = *number, answer = 0;
	struct ibv_mr *own = ibv_reg_mr(pd, &answer, sizeof answer, IBV_ACCESS_LOCAL_WRITE);
	CHECK(own != NULL);
	struct ibv_sge here = { (uintptr_t)&answer, sizeof answer, own->lkey };
	struct ibv_send_wr add = { .sg_list = &here, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
				   .wr.atomic = { .remote_addr = (uintptr_t)number, .rkey = region->rkey, .compare_add = 1 } }, *bad;
	CHECK(ibv_post_send(qps[0], &add, &bad) == 0);
	struct ibv_wc done;
	int got;
	while ((got = ibv_poll_cq(cq, 1, &done)) == 0)
		;
	CHECK(got == 1 && done.status == IBV_WC_SUCCESS);
	CHECK(answer == before && *number == before + 1);
	CHECK(ibv_dereg_mr(own) == 0);
}

static void use(const char *what, void *bytes, size_t length)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *region = ibv_reg_mr(pd, bytes, length, rights | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(region != NULL);
	unsigned char *buffer = malloc(length);
	CHECK(buffer != NULL);
	memset(buffer, 0, length);
	struct ibv_mr *other = ibv_reg_mr(pd, buffer, length, rights);
	CHECK(other != NULL);
	unsigned lengths[] = { 1, 9, 1023, 4096, 65537, length - 8 };
	for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		move(region, other, i, lengths[i], 10 * i);
		move(other, region, i, lengths[i], 10 * i + 5);
	}
	count_up(region);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, rights) == 0);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, rights | IBV_ACCESS_REMOTE_ATOMIC) == 0);
	count_up(region);
	CHECK(ibv_dereg_mr(region) == 0 && ibv_dereg_mr(other) == 0);
	free(buffer);
	printf("%s: %zu bytes\n", what, length);
}

int main(int count, char **words)
{
	CHECK(count >= 3);
	if (count > 3)
		forbid_userfaultfd();
	struct ibv_context *context = open_device(words[1]);
	CHECK((pd = ibv_alloc_pd(context)) != NULL);
	CHECK((cq = ibv_create_cq(context, 16, NULL, NULL, 0)) != NULL);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
		CHECK((qps[i] = ibv_create_qp(pd, &attr)) != NULL);
	}
	connect_both(qps, atoi(words[2]), IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, 4);
	use("variable", variable, sizeof variable);
	void *huge = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (huge != MAP_FAILED)
		use("huge pages", huge, HUGE_BYTES);
	/* Where the stack grows, which cannot be exchanged. */
	unsigned char on_stack[BUFFER_BYTES];
	use("stack", on_stack, sizeof on_stack);
	unsigned char *heap = aligned_alloc(4096, HEAP_BYTES);
	CHECK(heap != NULL);
	use("heap", heap, HEAP_BYTES);
	free(heap);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qps[i]) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
