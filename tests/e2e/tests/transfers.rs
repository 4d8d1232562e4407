//! Data moves right over every kind of network between the hosts and however queues, workers and
//! devices are dealt out.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    PEER_IPV4, PEER_IPV6, Settings,
    lab::{Host, Lab},
    perf::{self, Server, transfer_all},
};

pub(crate) fn four_queues_on_one_worker(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "4", "--workers", "1"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    transfer_all(&lab, PEER_IPV4, settings.bytes(), &[])
}

pub(crate) fn two_queues_on_two_workers(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "2", "--workers", "2"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    transfer_all(&lab, PEER_IPV4, settings.bytes(), &[])
}

pub(crate) fn two_devices_on_one_worker(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--devices", "2", "--workers", "1"])?;
    for (device, peer) in [("roce0", PEER_IPV4), ("roce1", "10.11.0.2")] {
        let _server = Server::start(&lab, Host::B, &["--device", device])?;
        transfer_all(&lab, peer, settings.bytes(), &["--device", device])?;
        ensure!(lab.counter(Host::A, &format!("device/{device}"), "xdp_redirected")? > 0, "{device} carried nothing");
    }
    Ok(())
}

/// The switch makes every frame arrive on one queue, so that at one time half of the queue pairs,
/// at another time the other half, get theirs on a queue of the other worker.
pub(crate) fn frames_on_the_wrong_queue_are_forwarded(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--queues", "2", "--workers", "2"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for queue in ["0", "1"] {
        lab.fault(&["--queue", queue])?;
        let before = lab.counter(Host::B, "worker/*", "forwarded")?;
        transfer_all(&lab, PEER_IPV4, settings.bytes(), &[])?;
        ensure!(lab.counter(Host::B, "worker/*", "forwarded")? > before, "no frame was forwarded");
        ensure!(lab.faults()?["steered"] > 0, "no frame was steered");
    }
    Ok(())
}

pub(crate) fn through_a_router_by_ipv4_and_ipv6(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--routed"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for peer in ["10.20.0.2", "fd00:20::2"] {
        transfer_all(&lab, peer, settings.bytes(), &[])?;
    }
    Ok(())
}

pub(crate) fn by_ipv6(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    transfer_all(&lab, PEER_IPV6, settings.bytes(), &[])
}

/// Every path MTU, and as the default the largest that the link carries.
pub(crate) fn at_every_path_mtu(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for mtu in ["256", "512", "1024", "2048", "4096"] {
        for op in ["send", "write", "read"] {
            let arguments = ["bw", PEER_IPV4, "--op", op, "--size", "70001", "--mtu", mtu, "--bytes", settings.bytes()];
            perf::run(&lab, Host::A, &arguments, Duration::from_secs(60))?;
        }
    }
    let report = perf::run(&lab, Host::A, &["ping", PEER_IPV4, "--count", "10"], Duration::from_secs(60))?;
    ensure!(report.number("mtu")? == 4096, "a link MTU of 4200 carries 4096: {:#}", report.0);
    Ok(())
}

pub(crate) fn a_link_of_1500_carries_a_path_mtu_of_1024(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--mtu", "1500"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let arguments = ["bw", PEER_IPV4, "--op", "write", "--bytes", settings.bytes()];
    let report = perf::run(&lab, Host::A, &arguments, Duration::from_secs(60))?;
    ensure!(report.number("mtu")? == 1024, "{:#}", report.0);
    Ok(())
}

/// Between a host's two devices, and between two clients of one device: by hand-over inside the
/// daemon, no frame on the wire.
pub(crate) fn a_peer_on_this_very_host(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--devices", "2"])?;
    let _server = Server::start(&lab, Host::A, &["--device", "roce0"])?;
    for device in ["roce0", "roce1"] {
        transfer_all(&lab, "10.10.0.1", settings.bytes(), &["--device", device])?;
    }
    ensure!(lab.counter(Host::A, "device/*", "xdp_redirected")? == 0, "frames went over the wire");
    Ok(())
}
