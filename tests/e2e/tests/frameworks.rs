//! Frameworks between RDMA and applications: UCX, and Open MPI over it. They look for files of the
//! kernel's, so `roce-run --files` runs them.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON, repository},
    program::{Program, within},
    programs::listens,
};

/// How long a run may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Where ucx_perftest listens.
const UCX_PORT: u16 = 13337;
/// Nothing but the device and the transports that UCX needs beside it.
const UCX: [&str; 3] = ["env", "UCX_TLS=rc_verbs,ud_verbs,self", "UCX_NET_DEVICES=roce0:1"];

fn start(lab: &Lab, host: Host, words: &[&str]) -> Result<Program> {
    lab.start(host, "roce-run", &[&["--files"], &UCX[..], words].concat())
}

/// UCX finds the device, and moves tagged messages, one-sided messages and atomic operations.
pub(crate) fn ucx(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let listed = start(&lab, Host::A, &["ucx_info", "-d"])?.end(SOON)?.success()?;
    for transport in ["rc_verbs", "ud_verbs"] {
        ensure!(listed.contains(&format!("Transport: {transport}")), "no {transport} in {listed}");
    }
    for (test, bytes) in
        [("tag_lat", "8"), ("tag_bw", "65536"), ("ucp_put_bw", "8192"), ("ucp_get", "8192"), ("ucp_fadd", "8")]
    {
        let words = ["ucx_perftest", "-t", test, "-s", bytes, "-n", "100", "-w", "10"];
        let mut server = start(&lab, Host::B, &words)?;
        ensure!(within(SOON, || listens(&mut server, UCX_PORT))?, "{test}: it does not listen");
        let told = start(&lab, Host::A, &[&words[..], &[PEER_IPV4]].concat())?.end(LIMIT)?.success()?;
        ensure!(told.contains("Final:"), "{test}: {told}");
        server.end(LIMIT)?.success()?;
    }
    Ok(())
}

/// Two ranks on two hosts add up 16 MiB of numbers each, the heart of training on many machines.
pub(crate) fn open_mpi(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("allreduce").display().to_string();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("allreduce.c");
    let mut compiler = Command::new("mpicc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o", &program]).arg(source);
    Program::run(compiler, LIMIT)?.success()?;
    // The program that Open MPI takes for ssh: its words are the host, of which there is one, and
    // the command.
    let agent = folder.path().join("agent");
    let exec = format!("{} exec b -- roce-run --files sh -c \"$*\"", repository().join("scripts/lab").display());
    fs::write(&agent, format!("#!/bin/sh\nshift\nLAB_NAME={} LAB_BUILD=0 exec {exec}\n", lab.name()))?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    let agent = agent.display().to_string();
    let rounds = if settings.full { "20" } else { "2" };
    let words = [
        "mpirun",
        "--allow-run-as-root",
        "--host",
        "10.10.0.1,10.10.0.2",
        "-np",
        "2",
        "-x",
        "UCX_TLS",
        "-x",
        "UCX_NET_DEVICES",
        "--mca",
        "plm_rsh_agent",
        &agent,
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "oob_tcp_if_include",
        "eth0",
        &program,
        rounds,
    ];
    let told = start(&lab, Host::A, &words)?.end(LIMIT)?.success()?;
    for rank in ["rank 0 of 2: 0 wrong", "rank 1 of 2: 0 wrong"] {
        ensure!(told.contains(rank), "{told}");
    }
    // It went by the device, not by TCP.
    ensure!(lab.counter(Host::A, "device/*", "sent_bytes")? > 16 << 20, "nothing was moved: {told}");
    Ok(())
}
