/* A program that is not linked with libibverbs but opens it, as NCCL and others do: opener NAME DEVICE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

/* Names of functions, and the versions by which openers ask for them. */
static const struct { const char *name, *version; } functions[] = {
	{"ibv_get_device_list", "IBVERBS_1.1"}, {"ibv_free_device_list", "IBVERBS_1.1"},
	{"ibv_get_device_name", "IBVERBS_1.1"}, {"ibv_open_device", "IBVERBS_1.1"},
	{"ibv_close_device", "IBVERBS_1.1"},    {"ibv_get_async_event", "IBVERBS_1.1"},
	{"ibv_ack_async_event", "IBVERBS_1.1"}, {"ibv_query_device", "IBVERBS_1.1"},
	{"ibv_query_port", "IBVERBS_1.1"},      {"ibv_query_gid", "IBVERBS_1.1"},
	{"ibv_query_qp", "IBVERBS_1.1"},        {"ibv_alloc_pd", "IBVERBS_1.1"},
	{"ibv_dealloc_pd", "IBVERBS_1.1"},      {"ibv_reg_mr", "IBVERBS_1.1"},
	{"ibv_reg_mr_iova2", "IBVERBS_1.8"},    {"ibv_dereg_mr", "IBVERBS_1.1"},
	{"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},  {"ibv_create_cq", "IBVERBS_1.1"},
	{"ibv_destroy_cq", "IBVERBS_1.1"},      {"ibv_create_qp", "IBVERBS_1.1"},
	{"ibv_modify_qp", "IBVERBS_1.1"},       {"ibv_destroy_qp", "IBVERBS_1.1"},
	{"ibv_fork_init", "IBVERBS_1.1"},       {"ibv_event_type_str", "IBVERBS_1.1"},
	{"ibv_query_ece", "IBVERBS_1.10"},      {"ibv_set_ece", "IBVERBS_1.10"},
};

int main(int count, char **arguments)
{
	if (count != 3)
		return 2;
	void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (size_t at = 0; at < sizeof functions / sizeof *functions; at++) {
		if (!dlvsym(library, functions[at].name, functions[at].version)) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
	}
	struct ibv_device **(*list)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
	const char *(*name)(struct ibv_device *) = dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1");
	struct ibv_context *(*open_device)(struct ibv_device *) = dlvsym(library, "ibv_open_device", "IBVERBS_1.1");
	int devices = 0;
	struct ibv_device **all = list(&devices);
	for (int at = 0; all && at < devices; at++) {
		if (!strcmp(name(all[at]), arguments[2]) && open_device(all[at])) {
			printf("opened %s by %s\n", arguments[2], arguments[1]);
			return 0;
		}
	}
	fprintf(stderr, "%d devices by %s, no %s\n", devices, arguments[1], arguments[2]);
	return 1;
}
