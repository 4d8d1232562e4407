/*
 * A program that is not linked with libibverbs but opens it, as NCCL and others do, and asks for
 * functions by version.
 *
 *   opener NAME DEVICE [LIST]
 *
 * LIST has a version node and a symbol in each line: each is asked for by dlvsym, all but those of
 * IBVERBS_1.0.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Symbols of the list that the library lacks, by name and version. */
static int lacking(void *library, const char *list)
{
	char node[64], symbol[128], line[256];
	int asked = 0, missing = 0;
	FILE *file = fopen(list, "r");
	if (!file)
		return 1;
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%63s %127s", node, symbol) != 2 || *node == '#' || !strcmp(node, "IBVERBS_1.0"))
			continue;
		asked++;
		if (!dlvsym(library, symbol, node)) {
			fprintf(stderr, "%s\n", dlerror());
			missing++;
		}
	}
	fclose(file);
	printf("%d of %d symbols missing\n", missing, asked);
	return missing || !asked;
}

int main(int count, char **arguments)
{
	if (count < 3 || count > 4)
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
	if (count == 4 && lacking(library, arguments[3]))
		return 1;
	/* RTLD_LOCAL: its functions are not those of the program. */
	if (!getenv("LD_PRELOAD") && dlsym(RTLD_DEFAULT, "ibv_open_device")) {
		fprintf(stderr, "the library became global\n");
		return 1;
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
