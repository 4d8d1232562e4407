/*
 * Functions of rdma-core 59 to 65 in this libibverbs, found as a program that was linked with a
 * newer one finds them: by name and version. Those that roced has work, the others fail as their
 * manual pages say.
 *
 *   newer DEVICE GID_INDEX
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "loopback.h"

/* struct ibv_mr_init_attr of rdma-core 65; older headers have none. */
struct init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};
enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_BUF = 32 };

static void *find(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);
	if (!found) {
		printf("no %s@%s\n", name, version);
		exit(1);
	}
	return found;
}

/* Buffers of rdma-core 65: memory of the library's, registered whole or in part. */
static void buffers(struct ibv_context *context, struct ibv_pd *pd, struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct init_attr *))
{
	enum { SIZE = 10000, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = find("ibv_alloc_buf", "IBVERBS_1.17");
	void (*free_buf)(void *) = find("ibv_free_buf", "IBVERBS_1.17");
	struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int) = find("ibv_reg_buf_mr", "IBVERBS_1.17");
	int (*export_buf)(void *) = find("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	struct ibv_pd *other_pd = ibv_alloc_pd(context);
	void *buf = NULL;
	unsigned char *memory = alloc_buf(pd, SIZE, &buf);
	CHECK(memory && buf && other_pd);
	memset(memory, 7, SIZE);
	struct ibv_mr *mr = reg_buf_mr(pd, buf, memory, SIZE, ACCESS), *part = reg_buf_mr(pd, buf, memory + 5000, 5000, ACCESS);
	CHECK(mr && mr->addr == memory && mr->length == SIZE && part && part->addr == memory + 5000);
	CHECK(memory[0] == 7 && memory[SIZE - 1] == 7);
	CHECK(ibv_dereg_mr(part) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(!reg_buf_mr(pd, buf, memory + 5000, 5001, ACCESS) && errno == EINVAL);
	CHECK(!reg_buf_mr(pd, buf, memory - 1, 1, ACCESS) && errno == EINVAL);
	CHECK(!reg_buf_mr(other_pd, buf, memory, SIZE, ACCESS) && errno == EINVAL);
	struct init_attr attr = { SIZE, ACCESS, MASK_ADDR | MASK_BUF, 0, memory, .buf = buf };
	CHECK((mr = reg_mr_ex(pd, &attr)) && ibv_dereg_mr(mr) == 0);
	attr.length++;
	CHECK(!reg_mr_ex(pd, &attr) && errno == EINVAL);
	attr.comp_mask = MASK_ADDR | MASK_BUF | MASK_FD;
	CHECK(!reg_mr_ex(pd, &attr) && errno == EINVAL);
	CHECK(export_buf(buf) == -1 && errno == ENODATA);
	CHECK(!alloc_buf(pd, SIZE_MAX, &buf) && errno == ENOMEM);
	free_buf(buf);
	CHECK(ibv_dealloc_pd(other_pd) == 0);
}

/*
 * Rights of FLUSH, also for persistent memory: drivers grant the queue pair either, regardless of
 * the rights that regions can have.
 */
static void flush_rights(struct ibv_context *context, struct ibv_pd *pd)
{
	enum { GLOBAL = 1 << 8, PERSISTENT = 1 << 9 };
	static unsigned char memory[64];
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(cq && qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | GLOBAL | PERSISTENT };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(!ibv_reg_mr_iova2(pd, memory, sizeof memory, 0, IBV_ACCESS_LOCAL_WRITE | PERSISTENT) && errno == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int count, char **arguments)
{
	static unsigned char memory[10000];
	const char *names[][2] = {
		{ "ibv_alloc_dmah", "IBVERBS_1.15" }, { "ibv_dealloc_dmah", "IBVERBS_1.15" }, { "_ibv_query_comp_cntr_caps", "IBVERBS_1.18" },
		{ "ibv_create_comp_cntr", "IBVERBS_1.18" }, { "ibv_destroy_comp_cntr", "IBVERBS_1.18" }, { "ibv_inc_comp_cntr", "IBVERBS_1.18" },
		{ "ibv_inc_err_comp_cntr", "IBVERBS_1.18" }, { "ibv_qp_attach_comp_cntr", "IBVERBS_1.18" }, { "ibv_read_comp_cntr", "IBVERBS_1.18" },
		{ "ibv_read_err_comp_cntr", "IBVERBS_1.18" }, { "ibv_set_comp_cntr", "IBVERBS_1.18" }, { "ibv_set_err_comp_cntr", "IBVERBS_1.18" },
		{ "ibv_cmd_reg_mr", "IBVERBS_PRIVATE_65" },
	};
	CHECK(count == 3);
	for (unsigned at = 0; at < sizeof names / sizeof *names; at++)
		find(names[at][0], names[at][1]);
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct init_attr *) = find("ibv_reg_mr_ex", "IBVERBS_1.15");
	int (*port_speed)(struct ibv_context *, uint32_t, uint64_t *) = find("ibv_query_port_speed", "IBVERBS_1.16");
	int (*export_fd)(void *) = find("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
	void *(*create_counter)(struct ibv_context *, void *) = find("ibv_create_comp_cntr", "IBVERBS_1.18");

	struct ibv_context *context = open_device(arguments[1]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	struct init_attr attr = { sizeof memory, IBV_ACCESS_LOCAL_WRITE, MASK_ADDR, 0, memory };
	struct ibv_mr *mr = reg_mr_ex(pd, &attr);
	CHECK(mr && mr->addr == memory && mr->length == sizeof memory);
	CHECK(ibv_dereg_mr(mr) == 0);
	attr.comp_mask = MASK_ADDR | MASK_IOVA;
	attr.iova = 0x1000;
	CHECK((mr = reg_mr_ex(pd, &attr)) && ibv_dereg_mr(mr) == 0);
	attr.comp_mask = MASK_FD;
	CHECK(!reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = 0;
	CHECK(!reg_mr_ex(pd, &attr) && errno == EINVAL);
	buffers(context, pd, reg_mr_ex);
	flush_rights(context, pd);
	int (*in_order)(void *, int, uint32_t) = find("ibv_query_qp_data_in_order", "IBVERBS_1.14");
	/* Yes; both capabilities, with RETURN_CAPS; no, for an unknown flag. */
	CHECK(in_order(NULL, IBV_WR_SEND, 0) == 1 && in_order(NULL, IBV_WR_SEND, 1) == 3 && in_order(NULL, IBV_WR_SEND, 4) == 0);
	uint64_t speed = ~0;
	CHECK(port_speed(context, 1, &speed) == 0 && speed != ~0ull);
	CHECK(port_speed(context, 2, &speed) == EINVAL);
	CHECK(export_fd(NULL) == -1 && errno == EOPNOTSUPP);
	CHECK(!create_counter(context, NULL) && errno == EOPNOTSUPP);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	printf("all there\n");
	return 0;
}
