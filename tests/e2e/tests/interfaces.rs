//! Interfaces that disappear and return, and drivers that forget the XDP program.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
    program::{Ended, within},
};

/// The device's entry in `rocectl status`.
fn device(lab: &Lab, host: Host) -> Result<serde_json::Value> {
    Ok(lab.ctl(host, "status")?["devices"][0].clone())
}

fn state_is(lab: &Lab, host: Host, state: &str) -> Result<bool> {
    Ok(device(lab, host)?["state"] == state)
}

/// The interface is deleted and made anew under another index, three times: programs learn of it,
/// and the daemons serve it again without a restart.
pub(crate) fn one_that_returns_is_served_again(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let daemon = lab.daemon(Host::A)?;
    for _ in 0..3 {
        let mut program = lab.start(Host::A, settings.client, &["outlive"])?;
        program.expect("connected", SOON)?;
        let server = Server::start(&lab, Host::B, &[])?;
        let load = lab.start(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--seconds", "100"])?;
        thread::sleep(Duration::from_millis(300));

        lab.unplug()?;
        program.expect("failed", SOON)?;
        ensure!(within(SOON, || state_is(&lab, Host::A, "no interface"))?, "{:#}", device(&lab, Host::A)?);
        ensure!(!device(&lab, Host::A)?["link_up"].as_bool().context("link_up")?, "the link of nothing is up");
        let message = load.end(SOON)?.failure()?;
        ensure!(!message.contains("daemon is gone"), "roce-perf blames the daemon: {message}");
        drop(server);

        lab.plug()?;
        for host in [Host::A, Host::B] {
            ensure!(within(SOON, || state_is(&lab, host, "serving"))?, "{:#}", device(&lab, host)?);
        }
        program.expect("works again", SOON)?;
        program.end(SOON)?.success()?;
        let _server = Server::start(&lab, Host::B, &[])?;
        perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    }
    ensure!(lab.daemon(Host::A)? == daemon, "the daemon was started anew");
    let log = lab.log(Host::A)?;
    ensure!(log.contains("the interface is gone") && log.contains("the interface is back"), "{log}");
    Ok(())
}

/// An interface of that name that cannot carry RoCE: the daemon says why, and serves the next one that
/// can.
pub(crate) fn one_that_cannot_be_attached_to_is_tried_again(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    lab.unplug()?;
    ensure!(within(SOON, || state_is(&lab, Host::A, "no interface"))?, "{:#}", device(&lab, Host::A)?);
    let add = ["link", "add", "eth0", "mtu", "200", "type", "veth", "peer", "name", "other"];
    lab.run(Host::A, "ip", &add, SOON)?.success()?;
    ensure!(within(SOON, || state_is(&lab, Host::A, "failed"))?, "{:#}", device(&lab, Host::A)?);
    let problem = device(&lab, Host::A)?["problem"].to_string();
    ensure!(problem.contains("MTU"), "{problem}");
    lab.run(Host::A, "ip", &["link", "delete", "eth0"], SOON)?.success()?;
    lab.plug()?;
    for host in [Host::A, Host::B] {
        ensure!(within(SOON, || state_is(&lab, host, "serving"))?, "{:#}", device(&lab, host)?);
    }
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])
}

/// An interface that is renamed keeps its device. Reports have the new name, and it is attached
/// again by that name.
pub(crate) fn one_that_is_renamed_is_served_on(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--mtu", "1500"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for change in [&["down"][..], &["name", "lan0"], &["up"]] {
        let interface = if change == ["up"] { "lan0" } else { "eth0" };
        lab.run(Host::A, "ip", &[&["link", "set", interface], change].concat(), SOON)?.success()?;
    }
    let named = || Ok(device(&lab, Host::A)?["interface"] == "lan0");
    ensure!(within(SOON, named)?, "{:#}", device(&lab, Host::A)?);
    ensure!(state_is(&lab, Host::A, "serving")?, "{:#}", device(&lab, Host::A)?);
    for (host, interface) in [(Host::A, "lan0"), (Host::B, "eth0")] {
        lab.run(host, "ip", &["link", "set", interface, "mtu", "4200"], SOON)?.success()?;
        let raised = || Ok(device(&lab, host)?["path_mtu_bytes"] == 4096 && state_is(&lab, host, "serving")?);
        ensure!(within(SOON, raised)?, "{:#}", device(&lab, host)?);
    }
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    let log = lab.log(Host::A)?;
    ensure!(log.contains("renamed") && !log.contains("cannot be served"), "{log}");
    Ok(())
}

/// A device that an operator removes leaves its interface to the kernel, and is served again when it
/// is added. Members of the admin socket's group may ask, and not order.
pub(crate) fn a_removed_device_is_served_again_when_added(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let config = fs::read_to_string(lab.config(Host::A))?;
    fs::write(lab.config(Host::A), config.replace("[admin]\n", "[admin]\ngroup = \"daemon\"\n"))?;
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    lab.start_daemon(Host::A)?;
    let daemon = lab.daemon(Host::A)?;
    let order = |arguments: &[&str]| lab.run(Host::A, "rocectl", &[&["device"], arguments].concat(), SOON);
    let unknown = order(&["remove", "roce7"])?.failure()?;
    ensure!(unknown.contains("there is no device roce7, only roce0"), "{unknown}");
    let early = order(&["add", "roce0"])?.failure()?;
    ensure!(early.contains("was not removed"), "{early}");
    let refused = as_member(&lab, "daemon", &["device", "remove", "roce0"])?.failure()?;
    ensure!(refused.contains("only root"), "{refused}");
    as_member(&lab, "daemon", &["status"])?.success()?;
    let refused = as_member(&lab, "root", &["status"])?.failure()?;
    ensure!(refused.contains("no permission"), "{refused}");

    let server = Server::start(&lab, Host::B, &[])?;
    let load = lab.start(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--seconds", "100"])?;
    thread::sleep(Duration::from_millis(300));
    let removed = order(&["remove", "roce0"])?.success()?;
    ensure!(removed.contains("roce0 on eth0: removed"), "{removed}");
    let message = load.end(SOON)?.failure()?;
    ensure!(!message.contains("daemon is gone"), "roce-perf blames the daemon: {message}");
    drop(server);
    let links = lab.run(Host::A, "ip", &["-details", "link", "show", "dev", "eth0"], SOON)?.success()?;
    ensure!(!links.contains("xdp"), "{links}");
    let twice = order(&["remove", "roce0"])?.failure()?;
    ensure!(twice.contains("removed already"), "{twice}");
    // An interface that returns does not bring it back.
    lab.unplug()?;
    lab.plug()?;
    ensure!(within(SOON, || state_is(&lab, Host::B, "serving"))?, "{:#}", device(&lab, Host::B)?);
    ensure!(state_is(&lab, Host::A, "removed")?, "{:#}", device(&lab, Host::A)?);

    let added = order(&["add", "roce0"])?.success()?;
    ensure!(added.contains("roce0 on eth0: serving"), "{added}");
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    ensure!(lab.daemon(Host::A)? == daemon, "the daemon was started anew");
    Ok(())
}

/// Runs `rocectl` on host A as an ordinary user of a group.
fn as_member(lab: &Lab, group: &str, arguments: &[&str]) -> Result<Ended> {
    // A copy that any user may read: the build may lie in a private home folder.
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let built = lab.run(Host::A, "sh", &["-c", "command -v rocectl"], SOON)?.success()?;
    let program = folder.path().join("rocectl");
    fs::copy(built.trim(), &program)?;
    let program = program.display().to_string();
    let group = format!("--regid={group}");
    let user = ["--reuid=65534", &group, "--clear-groups", "--bounding-set=-all", program.as_str()];
    lab.run(Host::A, "setpriv", &[&user, arguments].concat(), SOON)
}

/// As after a reset of some drivers: the interface receives frames, and the program is not run.
/// Connections survive where the link changed just before, as it does with such drivers.
pub(crate) fn a_program_that_is_not_run_is_attached_again(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let arguments = ["bw", PEER_IPV4, "--op", "write", "--seconds", "8", "--size", "64K", "--json"];
    let load = lab.start(Host::A, "roce-perf", &arguments)?;
    let ping = lab.start(Host::B, "ping", &["-i", "0.01", "-c", "600", "-q", crate::OWN_IPV4])?;
    thread::sleep(Duration::from_millis(500));
    let links = lab.run(Host::A, "ip", &["-json", "-details", "link", "show", "dev", "eth0"], SOON)?.success()?;
    let program = serde_json::from_str::<serde_json::Value>(&links)?[0]["xdp"]["prog"]["id"].to_string();
    lab.run(Host::A, "ip", &["link", "set", "eth0", "mtu", "4190"], SOON)?.success()?;
    lab.run(Host::A, settings.client, &["detach-xdp", &program], SOON)?.success()?;
    let attached_again = || Ok(lab.log(Host::A)?.contains("no longer runs the XDP program"));
    ensure!(within(SOON, attached_again)?, "{}", lab.log(Host::A)?);
    ensure!(within(SOON, || state_is(&lab, Host::A, "serving"))?, "{:#}", device(&lab, Host::A)?);
    load.end(2 * SOON)?.success().context("a connection did not survive that the program was attached again")?;
    ping.end(SOON)?.success()?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])
}

/// The device stays served, because the MTU may rise again, but nothing can be sent.
pub(crate) fn an_mtu_that_becomes_too_small_is_warned_of(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    lab.run(Host::A, "ip", &["link", "set", "eth0", "mtu", "200"], SOON)?.success()?;
    let warned = || Ok(lab.log(Host::A)?.contains("the MTU of eth0, 200 bytes, is too small for RoCE"));
    ensure!(within(SOON, warned)?, "{}", lab.log(Host::A)?);
    ensure!(state_is(&lab, Host::A, "serving")?, "{:#}", device(&lab, Host::A)?);
    let problem = device(&lab, Host::A)?["problem"].to_string();
    ensure!(problem.contains("the MTU of eth0, 200 bytes, is too small"), "{problem}");
    Ok(())
}

/// Drivers keep the buffers for the MTU that the program was attached with.
pub(crate) fn a_higher_mtu_attaches_again_and_connections_survive(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--mtu", "1500"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let load = lab.start(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--seconds", "4", "--json"])?;
    thread::sleep(Duration::from_millis(500));
    for host in [Host::A, Host::B] {
        lab.run(host, "ip", &["link", "set", "eth0", "mtu", "4200"], SOON)?.success()?;
        ensure!(
            within(SOON, || Ok(lab.log(host)?.contains("the MTU was raised")))?,
            "host {host} did not attach again: {}",
            lab.log(host)?
        );
        ensure!(within(SOON, || state_is(&lab, host, "serving"))?, "{:#}", device(&lab, host)?);
    }
    load.end(SOON)?.success()?;
    ensure!(device(&lab, Host::A)?["path_mtu_bytes"] == 4096, "{:#}", device(&lab, Host::A)?);
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])
}

/// Host B's daemon serves a bridge instead of `eth0`, which is no port of it yet. `made` are options of
/// its making, `keys` further lines of its device's section. A bridge may have as many queues as a
/// bond, and most kernels can make one.
fn serve_bridge(lab: &Lab, made: &str, keys: &str) -> Result<()> {
    lab.stop_daemon(Host::B, Signal::SIGTERM)?;
    let config = fs::read_to_string(lab.config(Host::B))?;
    fs::write(lab.config(Host::B), config.replace("\"eth0\"", &format!("\"above\"\n{keys}")))?;
    on_b(lab, &format!("ip link add above mtu 4200 {made} type bridge"))?;
    on_b(lab, "ip link set above up")?;
    on_b(lab, "ip address flush dev eth0")?;
    on_b(lab, &format!("ip address add {PEER_IPV4}/24 dev above"))?;
    Ok(())
}

/// Runs a command line on host B.
fn on_b(lab: &Lab, line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let program = words.next().context("a program")?;
    lab.run(Host::B, program, &words.collect::<Vec<_>>(), SOON)?.success().map(drop)
}

/// Queues that host B's device is served on, while it is.
fn queues_of_b(lab: &Lab) -> Result<usize> {
    let device = device(lab, Host::B)?;
    let queues = device["queues"].as_array().map_or(0, Vec::len);
    Ok(if device["state"] == "serving" { queues } else { 0 })
}

/// Queue pairs of the hosts exchange messages by all queues.
fn transfer_by_all_queues(lab: &Lab) -> Result<()> {
    let _server = Server::start(lab, Host::B, &[])?;
    let transfer = ["bw", PEER_IPV4, "--op", "write", "--qps", "16", "--bytes", "16M", "--timeout", "18"];
    let report = lab.run(Host::A, "roce-perf", &transfer, 2 * SOON)?.success()?;
    ensure!(report.contains("every byte"), "{report}");
    Ok(())
}

/// Frames of a port keep the number of their RX queue in the interface above it, such as a bond. The
/// port comes while the interface above is served, and later gets more queues.
pub(crate) fn frames_keep_the_queue_of_a_port(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "4"])?;
    serve_bridge(&lab, "numrxqueues 16", "")?;
    lab.start_daemon(Host::B)?;
    ensure!(within(SOON, || Ok(queues_of_b(&lab)? == 1))?, "without a port: {:#}", device(&lab, Host::B)?);
    on_b(&lab, "ethtool -L eth0 rx 2 tx 2")?;
    on_b(&lab, "ip link set eth0 master above")?;
    ensure!(within(SOON, || Ok(queues_of_b(&lab)? == 2))?, "{:#}", device(&lab, Host::B)?);
    on_b(&lab, "ethtool -L eth0 rx 4 tx 4")?;
    ensure!(within(SOON, || Ok(queues_of_b(&lab)? == 4))?, "more of the same port: {:#}", device(&lab, Host::B)?);
    transfer_by_all_queues(&lab)
}

/// The daemon's limit of open files stands for any resource that a further queue may lack.
pub(crate) fn a_queue_that_cannot_be_opened_ends_no_others(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "16"])?;
    serve_bridge(&lab, "numrxqueues 16 numtxqueues 16", "")?;
    on_b(&lab, "ethtool -L eth0 rx 2 tx 2")?;
    on_b(&lab, "ip link set eth0 master above")?;
    lab.start_daemon(Host::B)?;
    ensure!(within(SOON, || Ok(queues_of_b(&lab)? == 2))?, "{:#}", device(&lab, Host::B)?);
    let daemon = lab.daemon(Host::B)?;
    let files = fs::read_dir(format!("/proc/{daemon}/fd"))?.flatten();
    let used: Vec<u32> = files.filter_map(|file| file.file_name().to_str()?.parse().ok()).collect();
    let limit = (0..).filter(|number| !used.contains(number)).nth(6).context("a number for each file")?;
    on_b(&lab, &format!("prlimit --pid {daemon} --nofile={limit}"))?;
    on_b(&lab, "ethtool -L eth0 rx 16 tx 16")?;
    let warned = || Ok(lab.log(Host::B)?.contains("further queues cannot be served"));
    ensure!(within(SOON, warned)?, "{:#}\n{}", device(&lab, Host::B)?, lab.log(Host::B)?);
    ensure!(within(SOON, || Ok((2..16).contains(&queues_of_b(&lab)?)))?, "{:#}", device(&lab, Host::B)?);
    thread::sleep(Duration::from_secs(3));
    let log = lab.log(Host::B)?;
    ensure!(log.matches("further queues cannot be served").count() == 1, "tried again and again: {log}");
    ensure!(log.contains("refuses a socket on queue") && !log.contains("cannot be served; it is tried again"), "{log}");
    ensure!((2..16).contains(&queues_of_b(&lab)?), "{:#}", device(&lab, Host::B)?);
    Ok(())
}

/// A bridge is made with one TX queue where `numtxqueues` is not given.
pub(crate) fn an_interface_with_more_rx_than_tx_queues_is_served(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "4", "--workers", "2"])?;
    serve_bridge(&lab, "numrxqueues 16", "")?;
    on_b(&lab, "ip link set eth0 master above")?;
    lab.start_daemon(Host::B)?;
    ensure!(within(SOON, || Ok(queues_of_b(&lab)? == 4))?, "{:#}", device(&lab, Host::B)?);
    let log = lab.log(Host::B)?;
    ensure!(log.contains("fewer TX queues than roced has workers"), "{log}");
    transfer_by_all_queues(&lab)?;
    // Given by the operator, it is a mistake of the config.
    lab.stop_daemon(Host::B, Signal::SIGTERM)?;
    let config = fs::read_to_string(lab.config(Host::B))?;
    fs::write(lab.config(Host::B), config.replace("\"above\"", "\"above\"\nqueues = [0, 1]"))?;
    ensure!(lab.start_daemon(Host::B).is_err(), "worker 1 cannot send");
    let log = lab.log(Host::B)?;
    ensure!(log.contains("none of the queues of worker 1 on above has a TX queue"), "{log}");
    Ok(())
}

/// Listed queues stay as they are, and the daemon says which frames are lost.
pub(crate) fn a_port_with_queues_that_are_not_listed_is_warned_of(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "4"])?;
    serve_bridge(&lab, "numrxqueues 16", "queues = [0]")?;
    lab.start_daemon(Host::B)?;
    ensure!(within(SOON, || Ok(queues_of_b(&lab)? == 1))?, "{:#}", device(&lab, Host::B)?);
    let warnings = || -> Result<usize> { Ok(lab.log(Host::B)?.matches("the kernel's and lost to roced").count()) };
    ensure!(warnings()? == 0, "{}", lab.log(Host::B)?);
    on_b(&lab, "ip link set eth0 master above")?;
    ensure!(within(SOON, || Ok(warnings()? == 1))?, "{}", lab.log(Host::B)?);
    thread::sleep(Duration::from_secs(3));
    ensure!(warnings()? == 1 && queues_of_b(&lab)? == 1, "{}", lab.log(Host::B)?);
    Ok(())
}
