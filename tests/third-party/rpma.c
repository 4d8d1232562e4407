/*
 * librpma between two hosts: WRITE, flush, READ, atomic WRITE and SEND with immediate data, every
 * byte looked at on both. `rpma server ADDRESS PORT`, `rpma client ADDRESS PORT`.
 */
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AREA = 4 << 20, PIECE = 60000, MARK_AT = 4096, NOTE = 64 };
static const uint32_t DONE = 0x646f6e65;
static const char MARK[8] = "markmark";

#define CHECK(call)                                                         \
  do {                                                                      \
    int result = (call);                                                    \
    if (result != 0) {                                                      \
      fprintf(stderr, "%s: %s\n", #call, rpma_err_2str(result));            \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

static void require(int condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
  }
}

static void fill(unsigned char *bytes) {
  for (size_t i = 0; i < AREA; i++) bytes[i] = (unsigned char)((i * 2654435761u) >> 13);
  memcpy(bytes + MARK_AT, MARK, sizeof MARK);
}

static struct ibv_wc completion(struct rpma_conn *connection) {
  struct rpma_cq *queue;
  struct ibv_wc done;
  CHECK(rpma_conn_get_cq(connection, &queue));
  /* One event may stand for several completions. */
  int status;
  while ((status = rpma_cq_get_wc(queue, 1, &done, NULL)) == RPMA_E_NO_COMPLETION) CHECK(rpma_cq_wait(queue));
  CHECK(status);
  require(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status));
  return done;
}

static void event(struct rpma_conn *connection, enum rpma_conn_event wanted) {
  enum rpma_conn_event seen;
  CHECK(rpma_conn_next_event(connection, &seen));
  require(seen == wanted, rpma_utils_conn_event_2str(seen));
}

static void close_all(struct rpma_conn **connection, struct rpma_mr_local **a, struct rpma_mr_local **b,
                      struct rpma_peer **peer) {
  CHECK(rpma_conn_delete(connection));
  CHECK(rpma_mr_dereg(a));
  CHECK(rpma_mr_dereg(b));
  CHECK(rpma_peer_delete(peer));
}

static void serve(struct rpma_peer *peer, const char *address, const char *port, unsigned char *area,
                  unsigned char *expected, char *note) {
  struct rpma_mr_local *region, *notes;
  CHECK(rpma_mr_reg(peer, area, AREA,
                    RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY,
                    &region));
  CHECK(rpma_mr_reg(peer, note, NOTE, RPMA_MR_USAGE_RECV | RPMA_MR_USAGE_SEND, &notes));
  char descriptor[64];
  size_t size;
  CHECK(rpma_mr_get_descriptor_size(region, &size));
  require(size <= sizeof descriptor, "a descriptor of 64 bytes");
  CHECK(rpma_mr_get_descriptor(region, descriptor));

  struct rpma_ep *endpoint;
  struct rpma_conn_req *request;
  struct rpma_conn *connection;
  CHECK(rpma_ep_listen(peer, address, port, &endpoint));
  CHECK(rpma_ep_next_conn_req(endpoint, NULL, &request));
  CHECK(rpma_conn_req_recv(request, notes, 0, NOTE, NULL));
  struct rpma_conn_private_data data = {.ptr = descriptor, .len = (uint8_t)size};
  CHECK(rpma_conn_req_connect(&request, &data, &connection));
  event(connection, RPMA_CONN_ESTABLISHED);

  struct ibv_wc done = completion(connection);
  require(done.opcode == IBV_WC_RECV && done.byte_len == NOTE, "a note of the client");
  require(be32toh(done.imm_data) == DONE || done.imm_data == DONE, "its immediate data");
  require(memcmp(area, expected, AREA) == 0, "the bytes of the client");
  strcpy(note, "all is as written");
  CHECK(rpma_send(connection, notes, 0, NOTE, RPMA_F_COMPLETION_ALWAYS, NULL));
  completion(connection);
  event(connection, RPMA_CONN_CLOSED);
  CHECK(rpma_conn_disconnect(connection));
  CHECK(rpma_ep_shutdown(&endpoint));
  close_all(&connection, &region, &notes, &peer);
}

static void use(struct rpma_peer *peer, const char *address, const char *port, unsigned char *area,
                unsigned char *expected, char *note) {
  struct rpma_mr_local *region, *notes;
  CHECK(rpma_mr_reg(peer, area, AREA, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST, &region));
  CHECK(rpma_mr_reg(peer, note, NOTE, RPMA_MR_USAGE_RECV | RPMA_MR_USAGE_SEND, &notes));
  struct rpma_conn_req *request;
  struct rpma_conn *connection;
  CHECK(rpma_conn_req_new(peer, address, port, NULL, &request));
  CHECK(rpma_conn_req_recv(request, notes, 0, NOTE, NULL));
  CHECK(rpma_conn_req_connect(&request, NULL, &connection));
  event(connection, RPMA_CONN_ESTABLISHED);

  struct rpma_conn_private_data data;
  struct rpma_mr_remote *remote;
  size_t size;
  CHECK(rpma_conn_get_private_data(connection, &data));
  CHECK(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote));
  CHECK(rpma_mr_remote_get_size(remote, &size));
  require(size == AREA, "the size of the server's region");

  for (size_t at = 0; at < AREA; at += PIECE) {
    size_t length = AREA - at < PIECE ? AREA - at : PIECE;
    memcpy(area + at, expected + at, length);
    if (at <= MARK_AT && MARK_AT < at + length) memset(area + MARK_AT, 0, sizeof MARK);
    CHECK(rpma_write(connection, remote, at, region, at, length, RPMA_F_COMPLETION_ALWAYS, NULL));
    completion(connection);
  }
  CHECK(rpma_atomic_write(connection, remote, MARK_AT, MARK, RPMA_F_COMPLETION_ALWAYS, NULL));
  completion(connection);
  CHECK(rpma_flush(connection, remote, 0, AREA, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL));
  completion(connection);
  memset(area, 0, AREA);
  CHECK(rpma_read(connection, region, 0, remote, 0, AREA, RPMA_F_COMPLETION_ALWAYS, NULL));
  completion(connection);
  require(memcmp(area, expected, AREA) == 0, "the bytes that were read back");

  /* The answer lands in the note that was sent. */
  CHECK(rpma_send_with_imm(connection, notes, 0, NOTE, RPMA_F_COMPLETION_ALWAYS, DONE, NULL));
  for (int completions = 0; completions < 2; completions++) completion(connection);
  require(strcmp(note, "all is as written") == 0, "the server's note");
  CHECK(rpma_conn_disconnect(connection));
  event(connection, RPMA_CONN_CLOSED);
  CHECK(rpma_mr_remote_delete(&remote));
  close_all(&connection, &region, &notes, &peer);
}

int main(int argc, char **argv) {
  require(argc == 4, "rpma server|client ADDRESS PORT");
  int serves = strcmp(argv[1], "server") == 0;
  struct ibv_context *device;
  struct rpma_peer *peer;
  enum rpma_util_ibv_context_type kind = serves ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE;
  CHECK(rpma_utils_get_ibv_context(argv[2], kind, &device));
  CHECK(rpma_peer_new(device, &peer));
  unsigned char *area = aligned_alloc(4096, AREA), *expected = malloc(AREA);
  char *note = aligned_alloc(4096, 4096);
  require(area && expected && note, "memory");
  memset(area, 0, AREA);
  memset(note, 0, NOTE);
  fill(expected);
  (serves ? serve : use)(peer, argv[2], argv[3], area, expected, note);
  printf("%s: all bytes as written\n", argv[1]);
  return 0;
}
