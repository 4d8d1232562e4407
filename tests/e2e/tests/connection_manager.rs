//! Programs that connect by rdma_cm, with the distribution's librdmacm: its examples, and a program
//! that opens it in each way.

use std::{os::unix::fs::symlink, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    OWN_IPV4, PEER_IPV4, PEER_IPV6, Settings,
    lab::{Host, Lab, SOON},
    program::{Ended, Program, both_ended_well, within},
    programs::{built_library, compile_with, unpack_tests},
};

/// Time for a run of a program on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// `program` over our library, on a host.
fn start(lab: &Lab, host: Host, program: &[&str]) -> Result<Program> {
    lab.start(host, "roce-run", program)
}

/// A server on b, and its client on a once the server has an identifier. The client is started
/// again while the server does not listen yet. Returns the results of both.
fn pair(lab: &Lab, server: &[&str], client: &[&str]) -> Result<(Ended, Ended)> {
    let identifiers = || lab.counter(Host::B, "control", "cm_identifiers");
    // Those of an earlier server go by and by.
    ensure!(within(SOON, || Ok(identifiers()? == 0))?, "identifiers are left behind");
    let mut served = start(lab, Host::B, server)?;
    ensure!(within(SOON, || Ok(identifiers()? > 0 || !served.runs()?))?, "{server:?} makes no identifier");
    let mut result = None;
    within(LIMIT, || {
        let ended = start(lab, Host::A, client)?.end(LIMIT)?;
        let is_done = ended.status.success() || !served.runs()?;
        result = Some(ended);
        Ok(is_done)
    })?;
    Ok((result.context("a client was started")?, served.end(LIMIT)?))
}

fn both_succeed(lab: &Lab, server: &[&str], client: &[&str]) -> Result<String> {
    let (client, server) = pair(lab, server, client)?;
    Ok(both_ended_well(Ok(client), Ok(server))?.0)
}

/// librdmacm by `dlopen`, locally and globally, lazily and at once, closed and opened again; with
/// the library preloaded, found by the search path, and with both halves of the commands.
pub(crate) fn librdmacm_is_opened_in_each_way(_: &Settings) -> Result<()> {
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
    Ok(())
}

/// Every byte of each message is looked at by the program (`-v`).
pub(crate) fn rping(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for address in [PEER_IPV4, PEER_IPV6] {
        for more in [&[][..], &["-q"]] {
            let server = [&["rping", "-s", "-a", address, "-v", "-C", "10"], more].concat();
            let client = [&["rping", "-c", "-a", address, "-v", "-C", "10"], more].concat();
            let (client, _) = pair(&lab, &server, &client)?;
            let told = client.success()?;
            ensure!(told.lines().filter(|line| line.starts_with("ping data")).count() == 10, "{told}");
        }
    }
    Ok(())
}

/// Ten connections at once, also moved to another event channel.
pub(crate) fn ucmatose(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for more in [&[][..], &["-m"]] {
        let server = [&["ucmatose", "-c", "10", "-b", PEER_IPV4], more].concat();
        let client = [&["ucmatose", "-c", "10", "-s", PEER_IPV4], more].concat();
        let told = both_succeed(&lab, &server, &client)?;
        ensure!(told.contains("return status 0"), "{told}");
    }
    Ok(())
}

/// Datagram services.
pub(crate) fn udaddy(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let told = both_succeed(&lab, &["udaddy", "-c", "3", "-b", PEER_IPV4], &["udaddy", "-c", "3", "-s", PEER_IPV4])?;
    ensure!(told.contains("return status 0"), "{told}");
    Ok(())
}

/// Synchronous mode, with a channel for each identifier.
pub(crate) fn rdma_client(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let told = both_succeed(&lab, &["rdma_server"], &["rdma_client", "-s", PEER_IPV4])?;
    ensure!(told.contains("rdma_client: end 0"), "{told}");
    Ok(())
}

/// rsockets: small and large messages, that poll and that block. Few of them, for both ends watch
/// memory before they wait, and machines with fewer cores than threads are slow in that.
pub(crate) fn rstream(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for size in ["64", "65536"] {
        for more in [&[][..], &["-T", "b"]] {
            let options = [&["-S", size, "-C", "50"], more].concat();
            let server = [&["rstream", "-b", PEER_IPV4], &options[..]].concat();
            let client = [&["rstream", "-s", PEER_IPV4], &options[..]].concat();
            let told = both_succeed(&lab, &server, &client)?;
            ensure!(told.lines().any(|line| line.starts_with("custom")), "{options:?}: {told}");
        }
    }
    Ok(())
}

/// rdma-core's own tests, both ends on one host: connections, datagrams, groups, READ and WRITE,
/// refusal, synchronous mode, and a queue pair that the program makes itself.
pub(crate) fn the_tests_of_pyverbs(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let tests = unpack_tests(folder.path())?;
    let options = ["-v", "--dev", "roce0", "--port", "1", "--gid", "1", "tests.test_rdmacm"];
    let words = [&["--files", "/usr/bin/python3", &tests], &options[..]].concat();
    // It prints all on stderr.
    let told = lab.run(Host::A, "roce-run", &words, LIMIT)?.errors;
    ensure!(told.lines().filter(|line| line.ends_with("... ok")).count() >= 10, "{told}");
    ensure!(told.trim_end().ends_with("OK"), "{told}");
    Ok(())
}

/// The end of the daemon is the removal of the device, and not a hang.
pub(crate) fn a_dead_daemon_removes_the_device(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let mut server = start(&lab, Host::B, &["rping", "-s", "-P", "-d", "-a", PEER_IPV4])?;
    let client = &["rping", "-c", "-v", "-C", "1", "-a", PEER_IPV4];
    let connects = || Ok(start(&lab, Host::A, client)?.end(LIMIT)?.status.success());
    ensure!(within(LIMIT, connects)?, "no connection");
    ensure!(server.runs()?, "the server ended early");
    lab.stop_daemon(Host::B, Signal::SIGKILL)?;
    let told = server.end(SOON)?;
    let whole = told.output + &told.errors;
    ensure!(whole.contains("DEVICE_REMOVAL") || whole.contains("device removal"), "{whole}");
    Ok(())
}
