# Programs that connect by rdma_cm: a part of scripts/third-party, which has the list of them and
# the functions that are common to all. Where a program compares no data, one of this folder does.
# shellcheck shell=bash disable=SC2016,SC2034,SC2054,SC2154,SC2206,SC2317

connected_sources=$root/tests/third-party
rsockets=$(echo /usr/lib/*/rsocket/librspreload.so)

# version PACKAGE: of the distribution's.
version() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo unknown; }

# listeners HOST: of its connection manager.
listeners() { lab_ctl "$1" counters | jq '[.counters[].cm_listeners // 0] | add'; }
lab_ctl() { local host=$1; shift; "$root/scripts/lab" exec "$host" -- rocectl --json "$@"; }

# served NAME SECONDS SERVER... -- CLIENT...: a server on host b until it listens, by rdma_cm or TCP,
# then its client on host a. The server must end by itself, without a failure; with `endless` before
# SERVER it is ended.
served() {
  local name=$1 seconds=$2 endless='' server=() pid status=0 try
  shift 2
  [[ $1 != endless ]] || { endless=1; shift; }
  while [[ $1 != -- ]]; do server+=("$1"); shift; done
  shift
  printf '+ b: %s\n+ a: %s\n' "${server[*]}" "$*" >>"$logs/$name"
  # Not by a function, so that the number is that of timeout, which passes the signal on.
  timeout --kill-after=5 "$seconds" "$root/scripts/lab" exec b -- roce-run "${server[@]}" >>"$logs/$name" 2>&1 & pid=$!
  for ((try = 0; try < 100; try++)); do
    (($(listeners b) == 0)) || break
    [[ -z $(ip netns exec "$LAB_NAME-b" ss --listening --tcp --numeric --no-header) ]] || break
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  on a "$seconds" "$@" >>"$logs/$name" 2>&1 || { status=$?; printf 'FAILED: exit code %d of the client\n' $status >>"$logs/$name"; }
  [[ -z $endless ]] || kill $pid 2>/dev/null || true
  wait $pid || [[ -n $endless ]] || { status=$?; printf 'FAILED: exit code %d of the server\n' $status >>"$logs/$name"; }
  return $status
}

# compiled NAME FILE COMPILER ARGUMENTS...: a program for the runs of NAME.
compiled() {
  local name=$1 file=$2 compiler=$3
  shift 3
  mkdir -p "$work/connected"
  "$compiler" -O1 -Wall -Werror -o "$work/connected/$file" "$@" >>"$logs/$name" 2>&1
}

# cm_sum COUNTERS: of both hosts.
cm_sum() {
  local host sum=0
  for host in a b; do sum=$((sum + $(lab_ctl $host counters | jq "[.counters[] | $1] | add"))); done
  echo $sum
}

# connections_ended: connections were made by rdma_cm since the last call, and nothing of them is
# left, TIMEWAIT included.
requests=0
connections_ended() {
  local before=$requests count try
  requests=$(cm_sum '.cm_req_sent // 0')
  echo "$((requests - before)) requests for connections"
  ((requests > before)) || { echo "FAILED: no connection by rdma_cm"; return 1; }
  for ((try = 0; try < 200; try++)); do
    count=$(cm_sum '(.cm_identifiers // 0) + (.cm_connections // 0)')
    ((count > 0)) || return 0
    sleep 0.1
  done
  echo "FAILED: $count identifiers and connections are left"
  return 1
}

# --- qperf ----------------------------------------------------------------------------------------------------------------

# qperf_test OPTIONS...: qperf 0.4.11 tells the client its port before it listens, so a fast client is
# refused: that counts for nothing, up to five times.
qperf_test() {
  local name=qperf from try
  for ((try = 0; try < 5; try++)); do
    from=$(wc -l <"$logs/$name")
    served $name 30 endless qperf -- qperf "$peer" -cm1 -t 1 "$@" && return
    tail -n "+$((from + 1))" "$logs/$name" | grep -q 'Event rejected' || return 1
  done
  return 1
}

# Its verifying tests compare the results of atomic operations; the others count messages.
run_qperf() {
  local name=qperf test
  passed=0 failed=0
  for test in rc_bw rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat \
    rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add; do
    counted qperf_test $test
  done
  for test in rc_bw rc_rdma_read_bw; do
    counted qperf_test -m 1m -cp1 $test
  done
  counted logged $name connections_ended
  result $name "$(version qperf)" $passed $failed 11 "UC, UD: by LIDs, without rdma_cm; XRC"
}

# --- fio ------------------------------------------------------------------------------------------------------------------

# fio_jobs VERB RECEIVER SENDER: the receiver's and the sender's job file, with further lines. A job
# that reads is the one that listens.
fio_jobs() {
  local folder=$work/connected/fio common=$'[global]\nioengine=rdma\nthread=1\nport=8888\nbs=64k\nsize=64m\n'
  mkdir -p "$folder"
  printf '%s[receiver]\niodepth=32\nrw=read\nhostname=%s\n%s' "$common" "$peer" "${2-}" >"$folder/receiver"
  printf '%s[sender]\nrw=write\nhostname=%s\nverb=%s\n%s' "$common" "$peer" "$1" "${3-}" >"$folder/sender"
}

run_fio() {
  local name=fio verb folder=$work/connected/fio
  passed=0 failed=0
  for verb in write read; do
    fio_jobs $verb '' $'iodepth=16\n'
    counted served $name 60 fio "$folder/receiver" -- fio "$folder/sender"
  done
  # The receiver looks at the checksum of each block. fio asks for no RNR retries: the sender must not
  # be faster than the receives.
  fio_jobs send $'verify=crc32c\nverify_fatal=1\n' $'iodepth=1\nverify=crc32c\ndo_verify=0\nverify_state_save=0\n'
  counted served $name 60 fio "$folder/receiver" -- fio "$folder/sender"
  counted logged $name connections_ended
  result $name "$(version fio)" $passed $failed 1 "engine librpma: not in Debian's fio"
}

# --- libfabric ------------------------------------------------------------------------------------------------------------

run_libfabric() {
  local name=libfabric endpoint provider
  passed=0 failed=0
  counted logged $name on a 60 fi_info -p verbs
  for endpoint in msg:verbs 'rdm:verbs;ofi_rxm' 'rdm:verbs;ofi_rxd' dgram:verbs; do
    provider=${endpoint#*:}
    endpoint=${endpoint%%:*}
    counted served $name 60 fi_pingpong -p "$provider" -e "$endpoint" -c -I 50 -- fi_pingpong -p "$provider" -e "$endpoint" -c -I 50 "$peer"
  done
  counted served $name 60 fi_pingpong -p 'verbs;ofi_rxm' -e rdm -m tagged -c -I 50 -- fi_pingpong -p 'verbs;ofi_rxm' -e rdm -m tagged -c -I 50 "$peer"
  counted logged $name connections_ended
  result $name "$(version libfabric-bin)" $passed $failed 1 "fabtests: not in Debian"
}

# --- UCX ------------------------------------------------------------------------------------------------------------------

ucx_environment=(env UCX_NET_DEVICES="$device:1" UCX_SOCKADDR_TLS_PRIORITY=rdmacm UCX_TLS=rc_v,ud_v,self)

# io_demo connects by sockaddr, hence rdma_cm, and compares all data (-q).
run_ucx() {
  local name=ucx kind operation example=/usr/share/doc/libucx-dev/examples
  passed=0 failed=0
  for kind in tag am stream; do
    if compiled $name ucp_client_server gcc -I"$example" "$example/ucp_client_server.c" -lucp -lucs -Wno-error; then
      counted served $name 60 endless --files "${ucx_environment[@]}" "$work/connected/ucp_client_server" -c $kind -s 100000 -i 20 -- \
        --files "${ucx_environment[@]}" "$work/connected/ucp_client_server" -a "$peer" -c $kind -s 100000 -i 20
    else
      failed=$((failed + 1))
    fi
  done
  for operation in read write; do
    for kind in '' -A; do
      counted served $name 60 endless --files "${ucx_environment[@]}" io_demo -p 1337 $kind -q -d 8:1048576 -- \
        --files "${ucx_environment[@]}" io_demo -p 1337 $kind -q -o $operation -d 8:1048576 -i 200 "$peer"
    done
  done
  counted logged $name connections_ended
  result $name "$(version ucx-utils)" $passed $failed 1 "ucx_perftest: connects by addresses of workers, without rdma_cm"
}

# --- MPI ------------------------------------------------------------------------------------------------------------------

# agent: stands in place of ssh, gives each host its name, for MPI libraries take hosts of one name
# for one host.
mpi_agent() {
  local agent=$work/connected/agent
  mkdir -p "$work/connected"
  cat >"$agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in *.1) host=a ;; *) host=b ;; esac
shift
export LAB_NAME=$LAB_NAME LAB_BUILD=0
exec unshare --uts sh -c 'hostname "host-\$0"; exec $root/scripts/lab exec "\$0" -- roce-run --files sh -c "\$1"' \$host "\$*"
AGENT
  chmod +x "$agent"
  printf '%s\n' "$agent"
}

# collectives NAME COMMAND...: two ranks of our program, one on each host, that look at every number.
collectives() {
  local name=$1 from=$SECONDS rank text
  shift
  printf '+ %s\n' "$*" >>"$logs/$name"
  text=$("$@" 2>&1) || { printf '%s\nFAILED: exit code\n' "$text" >>"$logs/$name"; return 1; }
  printf '%s\n(%s s)\n' "$text" $((SECONDS - from)) >>"$logs/$name"
  for rank in 0 1; do grep -q "^rank $rank of 2 on host-[ab]: 0 wrong" <<<"$text" || return 1; done
}

run_openmpi() {
  local name=openmpi program=$work/connected/collectives-openmpi agent transport
  local -a common
  passed=0 failed=0
  compiled $name collectives-openmpi mpicc.openmpi "$connected_sources/collectives.c" || { broken $name; return; }
  agent=$(mpi_agent)
  common=(on a 120 --files unshare --uts sh -c 'hostname host-a; exec "$@"' sh mpirun --allow-run-as-root --host "10.10.0.1,$peer" -np 2
    --mca plm_rsh_agent "$agent" --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0)
  # By rdma_cm: libfabric's reliable datagrams over connections; windows by messages.
  counted collectives $name "${common[@]}" --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' --mca osc pt2pt --mca btl self "$program"
  # By addresses that it exchanges itself.
  counted collectives $name "${common[@]}" -x UCX_NET_DEVICES="$device:1" -x UCX_TLS=rc_v,ud_v,self --mca pml ucx --mca osc ucx --mca btl self "$program"
  counted logged $name connections_ended
  result $name "$(version openmpi-bin)" $passed $failed 1 "btl openib: Debian's connects without rdma_cm alone"
}

run_mpich() {
  local name=mpich program=$work/connected/collectives-mpich agent
  passed=0 failed=0
  compiled $name collectives-mpich mpicc.mpich "$connected_sources/collectives.c" || { broken $name; return; }
  agent=$(mpi_agent)
  counted collectives $name on a 120 --files unshare --uts sh -c 'hostname host-a; exec "$@"' sh env UCX_NET_DEVICES="$device:1" UCX_TLS=rc_v,ud_v,self \
    mpiexec.mpich -launcher ssh -launcher-exec "$agent" -iface eth0 -hosts "10.10.0.1,$peer" -n 2 "$program"
  result $name "$(version mpich)" $passed $failed 1 "rdma_cm: Debian's MPICH has UCX (ch4:ucx), which connects by addresses of workers, and not libfabric"
}

# --- rsockets -------------------------------------------------------------------------------------------------------------

# preloaded NAME: sets `preloaded` to a command that runs another with rsockets in place of sockets, in
# front of roced's library, and with rsocket_gaps.c in front of them.
preloaded=()
preloaded() {
  compiled "$1" rsocket_gaps.so gcc -shared -fPIC "$connected_sources/rsocket_gaps.c" || { broken "$1"; return 1; }
  preloaded=(sh -c 'LD_PRELOAD=$0:$LD_PRELOAD exec "$@"' "$work/connected/rsocket_gaps.so:$rsockets")
}

run_rsockets-iperf3() {
  local name=rsockets-iperf3
  passed=0 failed=0
  preloaded $name || return 0
  counted served $name 60 "${preloaded[@]}" iperf3 -s -1 -4 -- "${preloaded[@]}" iperf3 -4 -c "$peer" -n 1G
  counted served $name 60 "${preloaded[@]}" iperf3 -s -1 -4 -- "${preloaded[@]}" iperf3 -4 -c "$peer" -n 256M -R
  counted logged $name connections_ended
  result $name "$(version iperf3)" $passed $failed 0
}

# A database: values at random come back, by their SHA-256; then a benchmark. librspreload has no
# epoll, so libevent is told to poll. One connection at a time: rsockets may hang when several end at
# once, until rdma-core 65.
run_rsockets-memcached() {
  local name=rsockets-memcached server=()
  passed=0 failed=0
  preloaded $name || return 0
  server=("${preloaded[@]}" env EVENT_NOEPOLL=1 memcached -u root -l "$peer" -m 1500 -I 4m -t 2)
  counted served $name 120 endless "${server[@]}" -- "${preloaded[@]}" /usr/bin/python3 "$connected_sources/values.py" "$peer" 11211 1024
  counted served $name 60 endless "${server[@]}" -- "${preloaded[@]}" memcslap --servers="$peer" --concurrency=1 --execute-number=5000 --test=get
  counted logged $name connections_ended
  result $name "$(version memcached)" $passed $failed 1 "redis and valkey: wait by epoll, which librspreload lacks before rdma-core 65"
}

# --- librpma --------------------------------------------------------------------------------------------------------------

run_librpma() {
  local name=librpma
  passed=0 failed=0
  compiled $name rpma gcc "$connected_sources/rpma.c" -lrpma -libverbs || { broken $name; return; }
  counted served $name 60 "$work/connected/rpma" server "$peer" 7204 -- "$work/connected/rpma" client "$peer" 7204
  counted logged $name connections_ended
  result $name "$(version librpma0)" $passed $failed 1 "its examples: not in Debian"
}

# --- QEMU -----------------------------------------------------------------------------------------------------------------

# A guest without KVM moves from host a to host b while it runs; its memory is the same on both.
run_qemu() {
  local name=qemu pin
  passed=0 failed=0
  for pin in off on; do
    counted logged $name timeout 180 /usr/bin/python3 "$connected_sources/migrate.py" "$root/scripts/lab" "$work/connected" "$peer" $pin
  done
  counted logged $name connections_ended
  result $name "$(version qemu-system-x86)" $passed $failed 0
}
