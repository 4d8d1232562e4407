/*
 * For programs in C with both ends in one process: a device of libibverbs by its name, and two
 * reliable connections to each other.
 */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); exit(1); } } while (0)

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **devices = ibv_get_device_list(NULL), *device = NULL;
	CHECK(devices != NULL);
	for (int i = 0; devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			device = devices[i];
	CHECK(device != NULL);
	struct ibv_context *context = ibv_open_device(device);
	CHECK(context != NULL);
	ibv_free_device_list(devices);
	return context;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, int gid_index, int access, int rd_atomic)
{
	union ibv_gid gid;
	CHECK(ibv_query_gid(qp->context, 1, gid_index, &gid) == 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = 1,
				   .max_dest_rd_atomic = rd_atomic, .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } } };
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = rd_atomic };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Connects both to each other, over one GID. */
__attribute__((unused)) static void connect_both(struct ibv_qp *qps[2], int gid_index, int access, int rd_atomic)
{
	connect_to(qps[0], qps[1], gid_index, access, rd_atomic);
	connect_to(qps[1], qps[0], gid_index, access, rd_atomic);
}

#endif
