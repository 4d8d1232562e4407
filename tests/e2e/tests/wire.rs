//! Frames on the wire, as others see them: tshark's dissector and an ICRC of our own making in
//! Python.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    PEER_IPV4, PEER_IPV6, Settings,
    lab::{Host, Lab, SOON, repository},
    memory::introduce,
    perf::{self, Report, Server},
    program::{Program, within},
};

/// tshark over `file`: one line of `fields` for each frame that `filter` lets through.
pub(crate) fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Result<Vec<String>> {
    let mut tshark = Command::new("tshark");
    // Protocols that it would take payloads for, and then find malformed: random bytes sometimes
    // look like Fibre Channel over InfiniBand with a wrong checksum, and a SEND without payload
    // like RPC over RDMA that ends too soon.
    const GUESSES: [&str; 9] =
        ["rpcordma", "smb_direct", "nvme-rdma", "lnet", "iser", "smc", "fcoib", "infiniband.eoib", "infiniband_sdp"];
    tshark.args(["--disable-heuristic", "eth_over_ib"]);
    for guess in GUESSES {
        tshark.args(["--disable-protocol", guess]);
    }
    tshark.arg("-r").arg(file).args(["-Y", filter, "-T", "fields"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let text = Program::run(tshark, Duration::from_secs(120))?.success()?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The check of every ICRC in captures.
pub(crate) fn icrc_check(files: &[&Path]) -> Result<Program> {
    let mut check = Command::new("python3");
    check.arg(repository().join("tests/e2e/icrc_check.py")).args(files);
    Program::start(check)
}

/// Everything that the protocol has, losses and refusals included, on the wire: others read it as
/// RoCE, with nothing malformed, and every ICRC holds.
pub(crate) fn others_understand_our_frames(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("lab.pcap");
    let capture = lab.capture(&file)?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for peer in [PEER_IPV4, PEER_IPV6] {
        for mtu in ["256", "1024", "4096"] {
            for op in ["send", "write", "read"] {
                let arguments = ["bw", peer, "--op", op, "--size", "9001", "--mtu", mtu, "--bytes", "200K"];
                perf::run(&lab, Host::A, &arguments, SOON)?;
            }
        }
    }
    lab.fault(&["--drop", "2%"])?;
    perf::run(&lab, Host::A, &["bw", PEER_IPV4, "--op", "write", "--bytes", "2M"], SOON)?;
    perf::run(&lab, Host::A, &["bw", PEER_IPV4, "--op", "read", "--bytes", "2M"], SOON)?;
    lab.fault(&["off"])?;
    let mut expose = lab.start(Host::B, settings.client, &["expose", "64"])?;
    let mut transfer = lab.start(Host::A, settings.client, &["transfer", "write", "128"])?;
    introduce(&mut transfer, &mut expose)?;
    transfer.expect("posted", SOON)?;
    transfer.say("wait")?;
    transfer.expect("ended RemoteAccess", SOON)?;
    capture.stop()?;

    let opcodes = tshark(&file, "udp.port == 4791", &["infiniband.bth.opcode"])?;
    ensure!(opcodes.len() > 1000, "only {} frames were captured", opcodes.len());
    ensure!(opcodes.iter().all(|opcode| !opcode.is_empty()), "tshark takes a frame for something else than RoCE");
    let mut malformed =
        tshark(&file, "_ws.malformed || _ws.expert.severity >= 0x00800000", &["frame.number", "_ws.expert.message"])?;
    // A UDP checksum of zero over IPv6 is demanded by annex A17 and sent by Linux's rxe; tshark
    // knows only that IPv6 alone would not have it (RFC 6936 does).
    malformed.retain(|complaint| !complaint.ends_with("\tIllegal checksum value (0)"));
    ensure!(malformed.is_empty(), "tshark finds fault with frames {malformed:?}");
    let syndromes = tshark(&file, "infiniband.aeth.syndrome", &["infiniband.aeth.syndrome"])?;
    for (what, syndrome) in [("sequence error", "96"), ("remote access error", "98")] {
        ensure!(syndromes.iter().any(|seen| seen == syndrome), "no NAK {what} in {:?}", kinds(&syndromes));
    }
    let verdict = icrc_check(&[&file])?.end(SOON)?.success()?;
    print!("\n    {} frames; {}", opcodes.len(), verdict.trim());
    ensure!(verdict.starts_with(&format!("{0} of {0} ", opcodes.len())), "{verdict}");
    Ok(())
}

/// One device, both versions: each run has its own frames, and those of RoCEv1 hold before others,
/// as well.
pub(crate) fn rocev1_and_rocev2_on_one_device_at_once(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--rocev1"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("versions.pcap");
    let capture = lab.capture(&file)?;
    let _servers = [Server::start(&lab, Host::B, &[])?, Server::start_at(&lab, Host::B, "18516", &[])?];
    let run = |peer: &str, version: &[&str]| -> Result<()> {
        for op in ["send", "write", "read"] {
            let arguments = ["bw", peer, "--op", op, "--size", "100000", "--bytes", "1M", "--mtu", "1024"];
            perf::run(&lab, Host::A, &[&arguments, version].concat(), SOON)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(PEER_IPV4, &["--rocev1"]));
        run("10.10.0.2:18516", &[])?;
        first.join().expect("no panic")
    })?;
    perf::run(&lab, Host::A, &["ping", PEER_IPV6, "--rocev1", "--count", "50"], SOON)?;
    capture.stop()?;

    for (version, filter) in [("RoCEv1", "eth.type == 0x8915"), ("RoCEv2", "udp.dstport == 4791")] {
        let opcodes = tshark(&file, filter, &["infiniband.bth.opcode"])?;
        ensure!(opcodes.len() > 3 * 1024, "{version}: only {} frames", opcodes.len());
        ensure!(
            opcodes.iter().all(|opcode| !opcode.is_empty()),
            "tshark takes a frame of {version} for something else"
        );
    }
    let malformed = tshark(&file, "_ws.malformed", &["frame.number", "frame.protocols", "_ws.expert.message"])?;
    ensure!(malformed.is_empty(), "tshark finds malformed frames: {malformed:?}");
    let verdict = icrc_check(&[&file])?.end(SOON)?.success()?;
    print!("\n    {}", verdict.trim());

    // It is an option.
    drop(lab);
    let lab = Lab::up(&[])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let arguments = ["bw", PEER_IPV4, "--op", "send", "--rocev1", "--bytes", settings.bytes(), "--json"];
    let refused = lab.run(Host::A, "roce-perf", &arguments, SOON)?;
    ensure!(refused.errors.contains("no GID of IPv4 and RoCEv1"), "{refused}");
    Ok(())
}

fn kinds(values: &[String]) -> Vec<&String> {
    let mut kinds: Vec<_> = values.iter().collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// The check itself, against the recorded captures: of 976 frames one was corrupted on purpose.
pub(crate) fn the_icrc_check_knows_good_from_bad(_: &Settings) -> Result<()> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(repository().join("tests/captures/data"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            files.push(path);
        }
    }
    let files: Vec<_> = files.iter().map(std::path::PathBuf::as_path).collect();
    let ended = icrc_check(&files)?.end(SOON)?;
    ensure!(ended.status.code() == Some(1), "{ended}");
    ensure!(ended.output.contains("975 of 976 ICRCs hold"), "{ended}");
    ensure!(ended.output.contains("corrupt_icrc_send_middle.tapB.pcap"), "{ended}");
    Ok(())
}

/// The path attributes of a queue pair stand on its frames, in both directions.
pub(crate) fn traffic_class_hop_limit_and_flow_label_are_on_the_frames(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("path.pcap");
    let capture = lab.capture(&file)?;
    let _server = Server::start(&lab, Host::B, &[])?;
    // DSCP 26, and ECN bits, which are the device's to set; a flow label of which every part shows
    // in the UDP source port.
    let path = ["--traffic-class", "107", "--hop-limit", "17", "--flow-label", "0xabcde"];
    for peer in [PEER_IPV4, PEER_IPV6] {
        let arguments = [&["ping", peer, "--count", "50"][..], &path].concat();
        perf::run(&lab, Host::A, &arguments, SOON)?;
    }
    capture.stop()?;
    // RoCEv2 (annex A17): the source port is made of the flow label's 20 bits.
    let port = ((0xabcde & 0x3fff) ^ ((0xabcde & 0xfc000) >> 14)) | 0xc000;
    let fields = ["ip.src", "ip.dsfield.dscp", "ip.dsfield.ecn", "ip.ttl", "udp.srcport"];
    let wanted = format!("26\t0\t17\t{port}");
    expect_all(&file, "ip && udp.dstport == 4791", &fields, &["10.10.0.1", "10.10.0.2"], &wanted)?;
    let fields = ["ipv6.src", "ipv6.tclass.dscp", "ipv6.tclass.ecn", "ipv6.hlim", "ipv6.flow", "udp.srcport"];
    let wanted = format!("26\t0\t17\t0xabcde\t{port}");
    expect_all(&file, "ipv6 && udp.dstport == 4791", &fields, &["fd00:10::1", "fd00:10::2"], &wanted)
}

/// Every frame that passes `filter` comes from one of `sources` and shows `wanted`; each of them
/// sent some.
fn expect_all(file: &Path, filter: &str, fields: &[&str], sources: &[&str], wanted: &str) -> Result<()> {
    let lines = tshark(file, filter, fields)?;
    for source in sources {
        ensure!(lines.iter().any(|line| line.starts_with(&format!("{source}\t"))), "{filter}: no frame from {source}");
    }
    for line in &lines {
        let (_, rest) = line.split_once('\t').context("fields")?;
        let rest = rest.replace("0x0abcde", "0xabcde");
        ensure!(rest == wanted, "{filter}: a frame shows '{rest}', not '{wanted}' ({})", fields.join(", "));
    }
    Ok(())
}

/// A switch marks all packets that may be marked: receivers of data notify its sender, by frames
/// with the bytes of annex A17, and every transfer is whole. Management datagrams are not marked.
pub(crate) fn marked_data_is_answered_by_notifications(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--ecn", "on"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("marked.pcap");
    let capture = lab.capture(&file)?;
    let _server = Server::start(&lab, Host::B, &["--cm"])?;
    lab.fault(&["--mark", "100%"])?;
    for peer in [PEER_IPV4, PEER_IPV6] {
        for op in ["write", "read"] {
            perf::run(&lab, Host::A, &["bw", peer, "--cm", "--op", op, "--size", "9001", "--bytes", "4M"], SOON)?;
        }
    }
    let faults = lab.faults()?;
    capture.stop()?;
    let count = |name| -> Result<[u64; 2]> {
        Ok([lab.counter(Host::A, "device/roce0", name)?, lab.counter(Host::B, "device/roce0", name)?])
    };
    let (marked, sent, ignored) =
        (count("np_ecn_marked_roce_packets")?, count("np_cnp_sent")?, count("rp_cnp_ignored")?);
    println!("\n    {marked:?} packets marked of {}, {sent:?} notifications, {ignored:?} came", faults["marked"]);
    for at in 0..2 {
        ensure!(sent[at] > 1 && sent[at] <= 64 + marked[at] / 8, "{sent:?} for {marked:?}");
        ensure!(ignored[at] > 0 && ignored[at] <= sent[1 - at], "{ignored:?} of {sent:?}");
    }
    ensure!(marked.iter().sum::<u64>() <= faults["marked"], "{marked:?} of {}", faults["marked"]);
    for (family, source, ecn) in [("ip", "ip.src", "ip.dsfield.ecn"), ("ipv6", "ipv6.src", "ipv6.tclass.ecn")] {
        let sources = if family == "ip" { ["10.10.0.1", "10.10.0.2"] } else { ["fd00:10::1", "fd00:10::2"] };
        let management = format!("{family} && infiniband.bth.destqp == 1");
        expect_all(&file, &management, &[source, ecn], &sources, "0")?;
        let unmarked = format!("{family} && infiniband.bth.opcode < 0x20 && {ecn} == 0");
        let unmarked = tshark(&file, &unmarked, &["frame.number"])?;
        ensure!(unmarked.is_empty(), "frames {unmarked:?} of connections may not be marked");
        expect_notifications(&file, family, &sources)?;
    }
    icrc_check(&[&file])?.end(SOON)?.success().map(drop)
}

/// The sender of a transfer that a switch marks follows the notifications, and so does the reader of
/// marked responses; both transfers are whole. A host that is told of nothing has its whole window.
pub(crate) fn a_sender_that_is_notified_has_a_smaller_window(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--ecn", "on", "--congestion", "window"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for (op, marks, other) in [
        ("write", "request_window_packets", "response_window_packets"),
        ("read", "response_window_packets", "request_window_packets"),
    ] {
        for is_marked in [false, true] {
            // Not all: the smallest window sends 100 packets in a second.
            let mark: &[&str] = if is_marked { &["--mark", "20%"] } else { &["off"] };
            lab.fault(mark)?;
            let load = ["bw", PEER_IPV4, "--op", op, "--size", "1M", "--seconds", "2", "--json"];
            let load = lab.start(Host::A, "roce-perf", &load)?;
            let window = |name: &str| -> Result<Option<f64>> { Ok(lab.ctl(Host::A, "qps")?["qps"][0][name].as_f64()) };
            let is_right = || Ok(window(marks)?.is_some_and(|size| if is_marked { size < 12.0 } else { size > 64.0 }));
            ensure!(within(SOON, is_right)?, "{op}, marked: {is_marked}: {:#}", lab.ctl(Host::A, "qps")?);
            ensure!(window(other)?.is_some_and(|size| size >= 16.0), "{op}: {:#}", lab.ctl(Host::A, "qps")?);
            Report::read(&load.end(SOON)?.success()?)?;
        }
    }
    let count = |name| lab.counter(Host::A, "device/roce0", name);
    let (handled, ignored) = (count("rp_cnp_handled")?, count("rp_cnp_ignored")?);
    ensure!(handled > 10 && ignored == 0, "{handled} notifications handled, {ignored} ignored");
    Ok(())
}

/// Notifications of both hosts, with every byte that annex A17 gives: DSCP 48, not to be marked.
fn expect_notifications(file: &Path, family: &str, sources: &[&str; 2]) -> Result<()> {
    let filter = format!("{family} && infiniband.bth.opcode == 0x81");
    let (fields, wanted) = match family {
        "ip" => (["ip.src", "ip.dsfield.dscp", "ip.dsfield.ecn", "frame.len"], "48\t0\t74"),
        _ => (["ipv6.src", "ipv6.tclass.dscp", "ipv6.tclass.ecn", "frame.len"], "48\t0\t94"),
    };
    expect_all(file, &filter, &fields, sources, wanted)?;
    for bytes in tshark(file, &filter, &["udp.payload"])? {
        let bytes = bytes.replace(':', "");
        // BECN, the number of a queue pair, no PSN, 16 reserved bytes, an ICRC.
        let is_right = bytes.starts_with("8100ffff40") && bytes.get(16..56) == Some(&"0".repeat(40));
        ensure!(is_right && bytes.len() == 64, "a notification of the bytes {bytes}");
    }
    Ok(())
}

/// A router takes one from the hop limit, and the ICRC holds all the same.
pub(crate) fn a_router_changes_the_hop_limit_and_nothing_that_counts(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--routed"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("routed.pcap");
    let capture = lab.capture(&file)?;
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::run(&lab, Host::A, &["ping", "10.20.0.2", "--count", "50", "--hop-limit", "17"], SOON)?;
    capture.stop()?;
    expect_all(&file, "ip.src == 10.10.0.1 && udp.dstport == 4791", &["ip.src", "ip.ttl"], &["10.10.0.1"], "17")?;
    expect_all(&file, "ip.src == 10.20.0.2 && udp.dstport == 4791", &["ip.src", "ip.ttl"], &["10.20.0.2"], "16")?;
    icrc_check(&[&file])?.end(SOON)?.success().map(drop)
}

/// On a VLAN: every frame has its tag, with the priority that the queue pair asked for.
pub(crate) fn vlan_and_priority_are_on_the_frames(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--vlan", "100", "--mtu", "1500"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("vlan.pcap");
    let capture = lab.capture(&file)?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for peer in [PEER_IPV4, PEER_IPV6] {
        perf::run(&lab, Host::A, &["ping", peer, "--count", "50", "--service-level", "5"], SOON)?;
        perf::transfer_all(&lab, peer, "1M", &["--service-level", "5"])?;
    }
    capture.stop()?;
    for source in ["10.10.0.1", "10.10.0.2"] {
        let filter = format!("ip.src == {source} && udp.dstport == 4791");
        expect_all(&file, &filter, &["ip.src", "vlan.id", "vlan.priority"], &[source], "100\t5")?;
    }
    icrc_check(&[&file])?.end(SOON)?.success().map(drop)
}
