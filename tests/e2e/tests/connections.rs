//! Programs that connect by rdma_cm, with the distribution's own librdmacm: those of librdmacm,
//! rsockets, perftest `-R`, and rdma-core's tests. Their kernel knows no RDMA.

use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    OWN_IPV4, PEER_IPV4, PEER_IPV6, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Report, Server},
    program::{Ended, Program, within},
    programs::{built_library, compile_with, unpack_tests},
};

/// How long a run of any of them may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Connections that an end of a program leaves are gone after the peer's answer, and TIMEWAIT.
const GONE: Duration = Duration::from_secs(20);

/// `words` over our library, on a host.
fn start(lab: &Lab, host: Host, words: &[&str]) -> Result<Program> {
    lab.start(host, "roce-run", words)
}

/// A server that listens.
fn listening(lab: &Lab, host: Host, words: &[&str]) -> Result<Program> {
    let listeners = || lab.counter(host, "control", "cm_listeners");
    let before = listeners()?;
    let mut server = start(lab, host, words)?;
    let listens = || {
        ensure!(server.runs()?, "{words:?} ended early");
        Ok(listeners()? > before)
    };
    ensure!(within(SOON, listens)?, "{words:?}: does not listen");
    Ok(server)
}

/// A server on b and its client on a, to their ends.
fn pair(lab: &Lab, server: &[&str], client: &[&str]) -> Result<(Ended, Ended)> {
    let server = listening(lab, Host::B, server)?;
    let client = start(lab, Host::A, client)?.end(LIMIT).context("client")?;
    Ok((client, server.end(LIMIT).context("server")?))
}

/// Both must end with exit code 0.
fn both_succeed(lab: &Lab, server: &[&str], client: &[&str]) -> Result<(String, String)> {
    let (client, server) = pair(lab, server, client)?;
    Ok((client.success()?, server.success()?))
}

/// rping compares the data of each round. With `-q` it makes its queue pair itself.
fn rping(lab: &Lab, address: &str, rounds: usize, own_qp: &[&str]) -> Result<()> {
    let count = rounds.to_string();
    let options = [&["-a", address, "-V", "-v", "-C", &count], own_qp].concat();
    let (client, server) =
        pair(lab, &[&["rping", "-s"], &options[..]].concat(), &[&["rping", "-c"], &options[..]].concat())?;
    let lines = |ended: &Ended| ended.output.lines().filter(|line| line.contains("ping data: rdma-ping-")).count();
    ensure!(
        lines(&client) == rounds && lines(&server) == rounds && !client.errors.contains("mismatch"),
        "rping {options:?}: {}{}",
        client.output,
        client.errors
    );
    Ok(())
}

/// Identifiers, connections and queue pairs of both hosts.
fn left(lab: &Lab) -> Result<u64> {
    let mut sum = 0;
    for host in [Host::A, Host::B] {
        sum += lab.counter(host, "control", "cm_identifiers")? + lab.counter(host, "control", "cm_connections")?;
        sum += lab.ctl(host, "qps")?["qps"].as_array().map_or(0, Vec::len) as u64;
    }
    Ok(sum)
}

fn nothing_is_left(lab: &Lab) -> Result<()> {
    nothing_is_left_within(lab, GONE)
}

fn nothing_is_left_within(lab: &Lab, limit: Duration) -> Result<()> {
    let mut last = 0;
    let is_gone = || {
        last = left(lab)?;
        Ok(last == 0)
    };
    ensure!(within(limit, is_gone)?, "{last} identifiers, connections and queue pairs are left");
    Ok(())
}

/// librdmacm by `dlopen`, locally and globally, lazily and at once, closed and opened again; with
/// the library preloaded, found by the search path, and with both halves of the commands.
pub(crate) fn librdmacm_opened_in_each_way(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile_with("tests/e2e/connection_manager.c", folder.path(), &["-pthread"])?;
    symlink(built_library(&lab)?, folder.path().join("libibverbs.so.1"))?;
    let path = format!("LD_LIBRARY_PATH={}", folder.path().display());
    for way in [&["roce-run"][..], &["env", &path], &["env", "ROCED_CM_AF_IB=0", "roce-run"]] {
        let words = [way, &[&program, OWN_IPV4]].concat();
        let told = lab.run(Host::A, words[0], &words[1..], LIMIT)?.success()?;
        ensure!(told.contains("all as by the kernel"), "{way:?}: {told}");
    }
    nothing_is_left(&lab)
}

/// Reliable connections of each program, by IPv4 and IPv6.
pub(crate) fn programs_of_librdmacm(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let rounds = if settings.full { 1000 } else { 20 };
    for address in [PEER_IPV4, PEER_IPV6] {
        rping(&lab, address, rounds, &[])?;
        rping(&lab, address, rounds, &["-q"])?;
    }
    for connections in ["1", "100"] {
        let told = both_succeed(
            &lab,
            &["ucmatose", "-b", PEER_IPV4, "-c", connections],
            &["ucmatose", "-s", PEER_IPV4, "-c", connections],
        )?;
        ensure!(told.0.contains("return status 0") && told.1.contains("return status 0"), "{told:?}");
    }
    both_succeed(&lab, &["ucmatose", "-b", PEER_IPV4, "-m"], &["ucmatose", "-s", PEER_IPV4, "-m"])
        .context("migrated identifiers")?;
    both_succeed(&lab, &["rdma_server"], &["rdma_client", "-s", PEER_IPV4])?;
    nothing_is_left(&lab)
}

/// Sockets over RDMA: streams, and a file that is copied.
pub(crate) fn programs_of_rsockets(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for program in ["rstream", "riostream"] {
        let options = ["-S", "65536", "-I", "50", "-T", "v"];
        both_succeed(
            &lab,
            &[&[program, "-b", PEER_IPV4], &options[..]].concat(),
            &[&[program, "-s", PEER_IPV4], &options[..]].concat(),
        )?;
    }
    let folder = tempfile::tempdir()?;
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    let bytes: Vec<u8> =
        (0..3_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(&from, &bytes)?;
    let server = listening(&lab, Host::B, &["rcopy"])?;
    let target = format!("{PEER_IPV4}:{}", to.display());
    start(&lab, Host::A, &["rcopy", &from.display().to_string(), &target])?.end(LIMIT)?.success()?;
    let is_copied = || Ok(fs::read(&to).is_ok_and(|copied| copied == bytes));
    ensure!(within(SOON, is_copied)?, "the copy differs");
    // It serves without end.
    server.signal(Signal::SIGKILL)?;
    server.end(SOON)?;
    nothing_is_left(&lab)
}

/// perftest connects by rdma_cm with `-R`.
pub(crate) fn perftest(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for words in [
        &["ib_write_bw", "-R", "-n", "500"][..],
        &["ib_read_lat", "-R", "-n", "100"],
        &["ib_send_bw", "-R", "-n", "500", "-q", "4"],
        &["ib_send_lat", "-R", "-n", "100", "-c", "UD"],
    ] {
        both_succeed(&lab, words, &[words, &[PEER_IPV4]].concat()).with_context(|| format!("{words:?}"))?;
    }
    nothing_is_left(&lab)
}

/// Datagram services, and multicast groups that programs join by rdma_cm.
pub(crate) fn datagrams_and_groups(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for address in [PEER_IPV4, PEER_IPV6] {
        both_succeed(&lab, &["udaddy", "-b", address], &["udaddy", "-s", address])?;
    }
    // It sends once and waits for nothing: the receiver must have joined.
    let group = ["-m", "239.9.8.7", "-C", "10"];
    let joined = |lab: &Lab| lab.counter(Host::B, "control", "cm_memberships");
    for sender in [&["-s"][..], &["-s", "-o"]] {
        let receiver = start(&lab, Host::B, &[&["mckey", "-b", PEER_IPV4], &group[..]].concat())?;
        ensure!(within(SOON, || Ok(joined(&lab)? == 1))?, "mckey does not join");
        let words = [&["mckey", "-b", OWN_IPV4], &group[..], sender].concat();
        start(&lab, Host::A, &words)?.end(LIMIT)?.success()?;
        receiver.end(LIMIT)?.success()?;
    }
    nothing_is_left(&lab)
}

/// All tests of rdma-core for librdmacm.
pub(crate) fn the_tests_of_rdma_core(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let tests = unpack_tests(folder.path())?;
    let words = ["--files", "/usr/bin/python3", &tests, "-v", "--dev", "roce0", "--port", "1", "--gid", "1"];
    let ended = start(&lab, Host::A, &[&words[..], &["tests.test_rdmacm"]].concat())?.end(Duration::from_secs(180))?;
    // It prints all on stderr.
    let passed = ended.errors.lines().filter(|line| line.ends_with("... ok")).count();
    ensure!(passed >= 10 && ended.errors.contains("\nOK"), "{passed} of 10\n{}", ended.errors);
    Ok(())
}

/// Programs of one host connect to each other.
pub(crate) fn a_host_with_itself(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--devices", "2"])?;
    for own in [OWN_IPV4, "fd00:10::1", "10.11.0.1"] {
        let server = listening(&lab, Host::A, &["ucmatose", "-b", own, "-c", "10"])?;
        start(&lab, Host::A, &["ucmatose", "-s", own, "-c", "10"])?.end(LIMIT)?.success()?;
        server.end(LIMIT)?.success()?;
    }
    nothing_is_left(&lab)
}

/// Refusals are told with their reason.
pub(crate) fn a_port_without_a_listener(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let begin = Instant::now();
    let told = start(&lab, Host::A, &["ucmatose", "-s", PEER_IPV4])?.end(LIMIT)?;
    ensure!(told.output.contains("RDMA_CM_EVENT_REJECTED, error: 8"), "{}{}", told.output, told.errors);
    ensure!(begin.elapsed() < Duration::from_secs(10), "refused at once, not after {:?}", begin.elapsed());
    let told = start(&lab, Host::A, &["udaddy", "-s", PEER_IPV4])?.end(LIMIT)?;
    ensure!(told.output.contains("RDMA_CM_EVENT_UNREACHABLE, error: 1"), "{}{}", told.output, told.errors);
    let told = start(&lab, Host::A, &["ucmatose", "-s", "192.0.2.1"])?.end(LIMIT)?;
    ensure!(told.errors.contains("Network is unreachable"), "{}{}", told.output, told.errors);
    nothing_is_left(&lab)
}

/// A peer hears of the end of the other program, and a program of the end of its daemon.
pub(crate) fn a_killed_program_and_a_killed_daemon(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let endless = |lab: &Lab| -> Result<(Program, Program)> {
        let server = listening(lab, Host::B, &["rping", "-s", "-a", PEER_IPV4])?;
        let mut client = start(lab, Host::A, &["rping", "-c", "-a", PEER_IPV4, "-v"])?;
        client.line(SOON)?;
        Ok((server, client))
    };
    let (server, client) = endless(&lab)?;
    server.signal(Signal::SIGKILL)?;
    server.end(SOON)?;
    client.end(GONE).context("the client is not told that its peer is gone")?;
    nothing_is_left(&lab)?;
    let (server, client) = endless(&lab)?;
    lab.run(Host::A, "kill", &["-KILL", &lab.daemon(Host::B)?.to_string()], SOON)?.success()?;
    server.end(GONE).context("the server is not told that the daemon is gone")?;
    // As that of a host without power, the other end is not told: a program that only waits for a
    // receive waits on.
    client.signal(Signal::SIGKILL)?;
    client.end(SOON)?;
    Ok(())
}

/// Clients killed at any moment of connecting and disconnecting leave nothing.
pub(crate) fn killed_programs_leave_nothing(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let kills = if settings.full { 1000 } else { 25 };
    let server = listening(&lab, Host::B, &["rping", "-s", "-P", "-a", PEER_IPV4])?;
    let begin = [Host::A, Host::B].map(|host| lab.daemon(host).and_then(descriptors));
    for kill in 0..kills {
        let client = start(&lab, Host::A, &["rping", "-c", "-a", PEER_IPV4, "-C", "50"])?;
        // From before its first call to after its last.
        std::thread::sleep(Duration::from_millis(kill * 7 % 60));
        client.signal(Signal::SIGKILL)?;
        client.end(SOON)?;
    }
    server.signal(Signal::SIGKILL)?;
    server.end(SOON)?;
    nothing_is_left(&lab)?;
    let end = [Host::A, Host::B].map(|host| lab.daemon(host).and_then(descriptors));
    for (begin, end) in begin.into_iter().zip(end) {
        let (begin, end) = (begin?, end?);
        ensure!(end <= begin, "{begin} descriptors of a daemon have become {end}");
    }
    Ok(())
}

/// Open descriptors of a process.
fn descriptors(pid: i32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// The end of the daemon is the removal of the device, and not a hang.
pub(crate) fn a_dead_daemon_removes_the_device(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let server = listening(&lab, Host::B, &["rping", "-s", "-P", "-d", "-a", PEER_IPV4])?;
    start(&lab, Host::A, &["rping", "-c", "-C", "1", "-a", PEER_IPV4])?.end(LIMIT)?.success()?;
    lab.stop_daemon(Host::B, Signal::SIGKILL)?;
    let told = server.end(SOON)?;
    let whole = told.output + &told.errors;
    ensure!(whole.contains("DEVICE_REMOVAL"), "{whole}");
    Ok(())
}

/// One frame in twenty is lost: connections are made all the same.
pub(crate) fn lost_datagrams(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    lab.fault(&["--drop", "0.05"])?;
    both_succeed(&lab, &["ucmatose", "-b", PEER_IPV4, "-c", "20"], &["ucmatose", "-s", PEER_IPV4, "-c", "20"])?;
    let faults = lab.faults()?;
    ensure!(faults.values().any(|count| *count > 0), "no frame was lost: {faults:?}");
    lab.fault(&["off"])?;
    nothing_is_left(&lab)
}

/// A daemon that stops disconnects all connections: the peers' program hears of each at once, and
/// not after a time-out. More at once than any queue of datagrams holds, and one datagram is lost.
pub(crate) fn an_orderly_stop_is_told_to_all_peers(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let count = "600";
    let mut server = lab.start(Host::B, settings.client, &["accept", count])?;
    ensure!(server.line(SOON)? == "listening", "the server does not listen");
    // A connection takes more datagrams to begin than to end: the bar grows with the load of the
    // machine.
    let begin = Instant::now();
    let mut client = lab.start(Host::A, settings.client, &["connect", PEER_IPV4, count])?;
    let all = format!("{count} connections");
    ensure!(client.line(LIMIT)? == all && server.line(LIMIT)? == all, "not all connections are there");
    let bar = Duration::from_secs(1) + begin.elapsed();
    lab.fault(&["--nth", "0x64:1:drop"])?;
    let begin = Instant::now();
    lab.run(Host::A, "kill", &["-TERM", &lab.daemon(Host::A)?.to_string()], SOON)?.success()?;
    server.end(SOON)?.success().context("a connection to a peer with a stopped daemon")?;
    ensure!(begin.elapsed() < bar, "told only after {:?}, not {bar:?}", begin.elapsed());
    client.end(SOON)?;
    Ok(())
}

/// The same while the daemon does not know its neighbor's address: the kernel has learned it again,
/// but the daemon has not read that when it stops.
pub(crate) fn an_orderly_stop_learns_of_neighbors(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let count = "10";
    let mut server = lab.start(Host::B, settings.client, &["accept", count])?;
    ensure!(server.line(SOON)? == "listening", "the server does not listen");
    let mut client = lab.start(Host::A, settings.client, &["connect", PEER_IPV4, count])?;
    let all = format!("{count} connections");
    ensure!(client.line(LIMIT)? == all && server.line(LIMIT)? == all, "not all connections are there");
    let set = |host, name: &str, value: &str| {
        lab.run(host, "sysctl", &["-qw", &format!("net.ipv4.{name}={value}")], SOON)?.success()
    };
    // The kernel asks often and for long; the peer does not answer for now.
    set(Host::A, "neigh.eth0.retrans_time_ms", "50")?;
    set(Host::A, "neigh.eth0.mcast_solicit", "1000")?;
    set(Host::B, "conf.eth0.arp_ignore", "8")?;
    let neighbor = |state: &str| -> Result<bool> {
        let words = ["neighbor", "show", PEER_IPV4, "dev", "eth0"];
        Ok(lab.run(Host::A, "ip", &words, SOON)?.success()?.contains(state))
    };
    lab.run(Host::A, "ip", &["neighbor", "flush", "dev", "eth0"], SOON)?.success()?;
    ensure!(within(SOON, || neighbor("INCOMPLETE"))?, "the daemon does not ask for its neighbor");
    let daemon = lab.daemon(Host::A)?.to_string();
    let signal = |name: &str| lab.run(Host::A, "kill", &[name, &daemon], SOON)?.success();
    signal("-STOP")?;
    set(Host::B, "conf.eth0.arp_ignore", "0")?;
    let is_known = within(SOON, || Ok(neighbor("REACHABLE")? || neighbor("STALE")?));
    signal("-TERM")?;
    signal("-CONT")?;
    ensure!(is_known?, "the kernel does not learn of the neighbor");
    server.end(SOON)?.success().context("a connection to a peer with a stopped daemon")?;
    client.end(SOON)?;
    Ok(())
}

/// Limits are those of the config, and change by a reload; the log has each refusal with its
/// reason.
pub(crate) fn limits_of_the_config_and_refusals_are_told(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let says = |host, words: &str| -> Result<()> {
        let found = || Ok(lab.log(host)?.lines().any(|line| words.split('|').all(|word| line.contains(word))));
        ensure!(within(SOON, found)?, "no line with {words} in the log of {host}: {}", lab.log(host)?);
        Ok(())
    };
    start(&lab, Host::A, &["ucmatose", "-s", PEER_IPV4])?.end(LIMIT)?;
    says(Host::B, "INFO|connection refused|space=\"tcp\"|no program listens on the port")?;
    says(Host::A, "INFO|connection refused|account=0|the peer refused: no listener on the port (8)")?;
    let config = lab.config(Host::B);
    let before = fs::read_to_string(&config)?;
    fs::write(&config, format!("{before}\n[limits.cm]\nids_of_account = 1\n"))?;
    lab.run(Host::B, "kill", &["-HUP", &lab.daemon(Host::B)?.to_string()], SOON)?.success()?;
    says(Host::B, "config read again: applied|limits.cm.ids_of_account")?;
    let server = listening(&lab, Host::B, &["ucmatose", "-b", PEER_IPV4])?;
    let client = start(&lab, Host::A, &["ucmatose", "-s", PEER_IPV4])?;
    says(Host::B, "WARN|connection refused|too many identifiers of the account (limits.cm.ids_of_account)")?;
    // The peer repeats its request.
    fs::write(&config, &before)?;
    lab.run(Host::B, "kill", &["-HUP", &lab.daemon(Host::B)?.to_string()], SOON)?.success()?;
    client.end(LIMIT)?.success()?;
    server.end(LIMIT)?.success()?;
    Ok(())
}

/// The link-local address of a host's device, as its peer names it.
fn link_local(lab: &Lab, host: Host) -> Result<String> {
    let told =
        lab.run(host, "ip", &["-j", "-6", "address", "show", "dev", "eth0", "scope", "link"], SOON)?.success()?;
    let links: serde_json::Value = serde_json::from_str(&told)?;
    let mut addresses = links[0]["addr_info"].as_array().into_iter().flatten();
    // Entries of other scopes are empty.
    let address = addresses.find_map(|address| address["local"].as_str()).with_context(|| format!("none: {told}"))?;
    Ok(format!("{address}%eth0"))
}

/// `roce-perf --cm`: no TCP connection of its own, by IPv4 and IPv6, also link-local.
pub(crate) fn the_measuring_tool(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--devices", "2"])?;
    let refused = lab.run(Host::A, "roce-perf", &["ping", PEER_IPV4, "--cm"], LIMIT)?.failure()?;
    ensure!(refused.contains("is `roce-perf serve --cm` running there?"), "{refused}");
    let server = Server::start(&lab, Host::B, &["--cm"])?;
    for peer in [PEER_IPV4, PEER_IPV6, "10.11.0.2", &link_local(&lab, Host::B)?] {
        perf::transfer_all(&lab, peer, "1M", &["--cm"])?;
        for op in ["send", "write"] {
            perf::run(&lab, Host::A, &["ping", peer, "--cm", "--op", op, "--count", "500"], LIMIT)?;
        }
        let report = perf::run(&lab, Host::A, &["bw", peer, "--cm", "--op", "write", "--seconds", "1"], LIMIT)?;
        ensure!(report.number("mtu")? == 4096, "the path MTU is that of the links");
    }
    drop(server);
    nothing_is_left(&lab)
}

/// The interface of a host, for frames to it.
fn mac(lab: &Lab, host: Host) -> Result<String> {
    let told = lab.run(host, "ip", &["-j", "link", "show", "dev", "eth0"], SOON)?.success()?;
    let links: serde_json::Value = serde_json::from_str(&told)?;
    Ok(links[0]["address"].as_str().context("eth0 has an address")?.to_owned())
}

/// Answers and requests that a host received and had no room for on their way to the connection
/// manager.
fn without_room(lab: &Lab, host: Host) -> Result<u64> {
    let counters =
        [("worker/*", "mads_queue_full"), ("worker/*", "mads_share_full"), ("control", "cm_receive_dropped")];
    counters.into_iter().map(|(groups, name)| lab.counter(host, groups, name)).sum()
}

/// Management datagrams at full rate: requests of hosts that do not exist to a listener, and
/// answers with any numbers. A peer goes on to connect to that listener a hundred times a second,
/// data moves and is right, and in the end nothing is left. Answers that name no connection, half of
/// them in the name of that peer, take no room of others. Data moves at least at 80 % of the rate
/// beside a flood that roced does not see, at the median of several rounds.
pub(crate) fn a_flood_of_management_datagrams(settings: &Settings) -> Result<()> {
    const PORT: &str = "18700";
    const ROUNDS: usize = 9;
    const ROUND_S: u32 = 4;
    let lab = Lab::up(&[])?;
    let at = format!("{PEER_IPV4}:{PORT}");
    let mut server = lab.start(Host::B, settings.client, &["accept-all", &at])?;
    server.expect("listening", SOON)?;
    let flooded = Flooded { lab: &lab, client: settings.client, port: PORT, mac: mac(&lab, Host::B)? };
    flooded.connect(10)?.end(LIMIT)?.success().context("before the flood")?;
    let _receiver = Server::start(&lab, Host::B, &[])?;
    for content in CONTENTS {
        let before = without_room(&lab, Host::B)?;
        flooded.moves(content, if settings.full { 20 } else { 3 })?;
        let lost = without_room(&lab, Host::B)? - before;
        ensure!(content == "requests" || lost == 0, "{content}: {lost} answers or requests had no room");
    }
    if settings.full {
        let mut rates = [const { Vec::new() }; CONTENTS.len()];
        for round in 0..ROUNDS {
            for at in 0..CONTENTS.len() {
                let at = (round + at) % CONTENTS.len();
                rates[at].push(flooded.moves(CONTENTS[at], ROUND_S)?);
            }
        }
        println!("\n    Gbit/s by round, of {CONTENTS:?}: {rates:.2?}");
        let [unseen, others @ ..] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        for (median, content) in others.into_iter().zip(&CONTENTS[1..]) {
            println!("    beside {content}: {:.2} of the rate beside {}", median / unseen, CONTENTS[0]);
            ensure!(median >= 0.8 * unseen, "{content}: the transfer keeps {:.2}", median / unseen);
        }
    }
    server.signal(Signal::SIGKILL)?;
    server.end(SOON)?;
    // Peers that do not exist are told of the end, as long as one that exists had time to answer.
    nothing_is_left_within(&lab, 2 * LIMIT)
}

/// Contents of floods. The first reaches neither a connection manager nor roced. Of the last some
/// wait for a second after its end.
const CONTENTS: [&str; 3] = ["nothing", "answers", "requests"];

/// Host b with its listener, which a floods and connects to.
struct Flooded<'a> {
    lab: &'a Lab,
    client: &'a str,
    port: &'a str,
    mac: String,
}

impl Flooded<'_> {
    /// Connects so many times, a hundred a second.
    fn connect(&self, count: u32) -> Result<Program> {
        let at = format!("{PEER_IPV4}:{}", self.port);
        self.lab.start(Host::A, self.client, &["connect-at-rate", &at, "100", &count.to_string()])
    }

    /// Gbit/s that are moved beside a flood, which other connections are made beside.
    fn moves(&self, content: &str, seconds: u32) -> Result<f64> {
        let time_ms = (seconds * 1000 + 1000).to_string();
        let words = ["flood", "eth0", OWN_IPV4, &self.mac, PEER_IPV4, self.port, content, &time_ms];
        let mut flood = self.lab.start(Host::A, self.client, &words)?;
        flood.expect("floods", SOON)?;
        let time_s = seconds.to_string();
        let transfer = ["bw", PEER_IPV4, "--op", "write", "--seconds", &time_s, "--json"];
        let transfer = self.lab.start(Host::A, "roce-perf", &transfer)?;
        let told = self.connect(100 * seconds)?.end(LIMIT)?.success().context(content.to_owned())?;
        let moved = Report::read(&transfer.end(LIMIT)?.success().context(content.to_owned())?)?;
        let sent = flood.end(LIMIT)?.success()?;
        let rate = moved.0["gbit_per_s"].as_f64().context("roce-perf tells its rate")?;
        print!("\n    {content}: {}; {}; {rate:.2} Gbit/s", sent.trim(), told.trim());
        Ok(rate)
    }
}
