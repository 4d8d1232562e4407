//! The example programs, as their users run them: one waits on host b, the other connects from a.

use std::{env, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    PEER_IPV4, PEER_IPV6, Settings,
    lab::{Host, Lab, SOON, repository},
    program::{Program, both_ended_well, within},
    programs::{compile, listens},
};

/// TCP port on which the examples of the client library wait.
const PORT: u16 = 18600;
/// TCP port of the examples in C.
const C_PORT: u16 = 18601;
/// Time limit for a run, and for building an example.
const LIMIT: Duration = Duration::from_secs(90);
const BUILD_LIMIT: Duration = Duration::from_secs(600);

/// The program that the README shows, by IPv4 and by IPv6.
pub(crate) fn first(settings: &Settings) -> Result<()> {
    let (lab, program) = (Lab::up(&[])?, build(settings, "first")?);
    for (own, peer) in [("10.10.0.1", "10.10.0.2:18603"), ("[fd00:10::1]", "[fd00:10::2]:18603")] {
        let mut waits = lab.start(Host::B, &program, &[])?;
        let first = waits.line(SOON)?;
        ensure!(first.starts_with("listening at [::]:18603"), "{first}");
        let asks = lab.run(Host::A, &program, &[peer], LIMIT);
        let (asked, waited) = both_ended_well(asks, waits.end(LIMIT))?;
        has(&asked, &[&format!("Send to {peer} is complete")])?;
        has(&waited, &[own, ": hello, RDMA"])?;
    }
    Ok(())
}

/// One program writes 1 MiB into the memory of the other, by IPv4 and by IPv6.
pub(crate) fn two_hosts(settings: &Settings) -> Result<()> {
    let (lab, program) = (Lab::up(&[])?, build(settings, "two_hosts")?);
    for peer in [PEER_IPV4, PEER_IPV6] {
        let (asked, waited) = pair(&lab, &[&program], PORT, &[peer])?;
        has(&asked, &["wrote 1048576 bytes to", "the peer says: verified"])?;
        has(&waited, &["verified 1048576 bytes written by"])?;
    }
    Ok(())
}

/// Messages arrive in order and whole, to programs that sleep in between.
pub(crate) fn send_recv(settings: &Settings) -> Result<()> {
    let (lab, program) = (Lab::up(&[])?, build(settings, "send_recv")?);
    let messages = settings.rounds().to_string();
    let (asked, waited) = pair(&lab, &[&program], PORT, &[PEER_IPV4, &messages])?;
    has(&asked, &[&format!("sent {messages} messages; the peer says: all verified")])?;
    has(&waited, &[&format!("received {messages} messages, verified")])
}

/// Datagrams are answered, to the address in their header, by IPv4 and by IPv6.
pub(crate) fn datagram(settings: &Settings) -> Result<()> {
    let (lab, program) = (Lab::up(&[])?, build(settings, "datagram")?);
    for (peer, from) in [(PEER_IPV4, "10.10.0.1"), (PEER_IPV6, "fd00:10::1")] {
        let (asked, waited) = pair(&lab, &[&program], PORT, &[peer])?;
        has(&asked, &["hello: HELLO", "datagrams: DATAGRAMS", "good-bye: GOOD-BYE"])?;
        has(&waited, &[&format!("good-bye from {from}, queue pair 0x")])?;
    }
    Ok(())
}

/// Every message of four connections finds a receive of the one queue, which is filled at its limit
/// event and at no other time: 32 receives at first, for 1000 messages.
pub(crate) fn shared_receive(settings: &Settings) -> Result<()> {
    let (lab, program) = (Lab::up(&["--workers", "2", "--queues", "2"])?, build(settings, "shared_receive")?);
    let (asked, waited) = pair(&lab, &[&program], PORT, &[PEER_IPV4])?;
    has(&asked, &["sent 250 messages over each of 4 connections", "the peer says: all verified"])?;
    has(&waited, &["received 250 messages over each of 4 connections, verified"])?;
    let events = waited.split("posted again at ").nth(1).and_then(|rest| rest.split(' ').next());
    let events: u32 = events.context("no number of limit events")?.parse()?;
    ensure!(events >= (1000 - 32) / 32, "only {events} limit events: {waited}");
    Ok(())
}

/// The remote counter is seen to change, and behind it the new table.
pub(crate) fn read(settings: &Settings) -> Result<()> {
    let (lab, program) = (Lab::up(&[])?, build(settings, "read")?);
    let (asked, waited) = pair(&lab, &[&program], PORT, &[PEER_IPV4])?;
    has(&asked, &["read 512 numbers", "the counter is 1 after", "read the changed 512 numbers"])?;
    has(&waited, &["the peer has read the table again"])
}

/// A connection by the connection manager, by IPv4 and IPv6.
pub(crate) fn connection(settings: &Settings) -> Result<()> {
    let (lab, program) = (Lab::up(&[])?, build(settings, "connection")?);
    for (own, peer) in [("10.10.0.1", PEER_IPV4), ("fd00:10::1", PEER_IPV6)] {
        let mut waits = lab.start(Host::B, &program, &[if peer == PEER_IPV4 { "0.0.0.0" } else { "::" }, "listen"])?;
        let first = waits.line(SOON)?;
        ensure!(first.starts_with("listening at"), "{first}");
        let asks = lab.run(Host::A, &program, &[peer], LIMIT);
        let (asked, waited) = both_ended_well(asks, waits.end(LIMIT))?;
        has(&asked, &["connected to", "the answer: HELLO, CONNECTION MANAGER"])?;
        has(&waited, &[own, "asks with 'a question'", "answered 'hello, connection manager'"])?;
    }
    Ok(())
}

/// The program in C, over the verbs library.
pub(crate) fn rc_write(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile("verbs/examples/rc_write.c", folder.path())?;
    let (asked, waited) = pair(&lab, &["roce-run", &program, "1"], C_PORT, &[PEER_IPV4])?;
    has(&asked, &["wrote 1048576 bytes to queue pair", "the peer verified them"])?;
    has(&waited, &["verified 1048576 bytes written by queue pair"])
}

/// The path of an example of the client library, built beside the test's own client programs and in
/// the same profile. `LAB_BUILD=0` says that it is there.
fn build(settings: &Settings, name: &str) -> Result<String> {
    let folder = Path::new(settings.client).parent().context("a folder")?;
    if env::var_os("LAB_BUILD").is_none_or(|value| value != "0") {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--quiet", "-p", "roced-client", "--example", name]);
        cargo.arg("--target-dir").arg(folder.parent().context("a target folder")?).current_dir(repository());
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        Program::run(cargo, BUILD_LIMIT)?.success()?;
    }
    let program = folder.join("examples").join(name);
    ensure!(program.exists(), "no {}: cargo build -p roced-client --examples", program.display());
    Ok(program.display().to_string())
}

/// Runs an example on b, then on a with more arguments: the output of a, and that of b.
fn pair(lab: &Lab, words: &[&str], port: u16, more: &[&str]) -> Result<(String, String)> {
    let mut waiting = lab.start(Host::B, words[0], &words[1..])?;
    ensure!(within(SOON, || listens(&mut waiting, port))?, "{words:?} does not listen");
    let asking = lab.run(Host::A, words[0], &[&words[1..], more].concat(), LIMIT);
    both_ended_well(asking, waiting.end(LIMIT))
}

fn has(output: &str, wanted: &[&str]) -> Result<()> {
    wanted.iter().try_for_each(|wanted| {
        ensure!(output.contains(wanted), "no '{wanted}' in {output}");
        Ok(())
    })
}
