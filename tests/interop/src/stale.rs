//! Connections of rdma_cm that one end has forgotten because its host lost its power, or because
//! the daemon was killed: they end at the other end, and new ones work beside them. Programs:
//! `stale.c` at both ends.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{
    bench::{Bench, SOON},
    process::{Ended, Running},
    scenario::{Scenario, Side},
    told::Told,
};

/// A refused REP has the requester repeat its REQ, after 4 to 8 s; a guest may be slow.
const LIMIT: Duration = Duration::from_secs(100);
/// In less time Linux repeats no DREQ: the first one was answered.
const BEFORE_REPETITION_MS: u32 = 4_000;
/// "stale connection" (IBTA v1 12.6.7.2).
const REFUSED: &str = "RDMA_CM_EVENT_REJECTED 10";
const DISCONNECTED: &str = "RDMA_CM_EVENT_DISCONNECTED";
const DATA: &str = "right data";

/// A program that runs at an end.
enum Party {
    OnHost(Running),
    /// In the background of the guest, known by its role.
    InGuest(&'static str),
}

impl Party {
    fn start(bench: &Bench, side: Side, role: &'static str, arguments: &str) -> Result<Self> {
        let program = match side {
            Side::Roced => bench.built("interop-stale"),
            Side::Rxe => "stale".to_owned(),
        };
        let command = bench.of_verbs(side, &format!("{program} {role} {arguments}"));
        if side == Side::Roced {
            return Ok(Self::OnHost(bench.start_on_host(&command)?));
        }
        let inner = format!("echo $$ >/run/stale.{role}.pid; {command}");
        let line = format!("(sh -c '{inner}'; echo \"exit code $?\") >/run/stale.{role} 2>&1 &");
        bench.run(side, &line, SOON)?.success(role)?;
        Ok(Self::InGuest(role))
    }

    fn printed(&self, bench: &Bench) -> Result<String> {
        match self {
            Self::OnHost(running) => running.printed(),
            Self::InGuest(role) => bench.run(Side::Rxe, &format!("cat /run/stale.{role}"), SOON)?.success(role),
        }
    }

    fn await_text(&mut self, bench: &Bench, text: &str) -> Result<()> {
        if let Self::OnHost(running) = self {
            return running.await_text(text, LIMIT);
        }
        let deadline = Instant::now() + LIMIT;
        loop {
            let printed = self.printed(bench)?;
            if printed.contains(text) {
                return Ok(());
            }
            let waits = Instant::now() < deadline && !printed.contains("exit code ");
            ensure!(waits, "the guest's program does not say '{text}': {printed}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(mut self, bench: &Bench) -> Result<Ended> {
        if let Self::OnHost(running) = self {
            return running.end(LIMIT);
        }
        self.await_text(bench, "exit code ")?;
        let output = self.printed(bench)?;
        let code = output.rsplit_once("exit code ").and_then(|(_, code)| code.trim().parse().ok());
        Ok(Ended::now(code.with_context(|| format!("no exit code: {output}"))?, output))
    }
}

fn serve(bench: &Bench, scenario: &Scenario, port: u16, count: usize) -> Result<Party> {
    let server = scenario.client.other();
    let address = Bench::address_of(server, scenario.network);
    let mut party = Party::start(bench, server, "serve", &format!("{address} {port} {count}"))?;
    party.await_text(bench, "listens")?;
    Ok(party)
}

/// A client; `role` says when its connection ends.
fn connect(bench: &Bench, scenario: &Scenario, port: u16, role: &'static str) -> Result<Party> {
    let address = Bench::address_of(scenario.client.other(), scenario.network);
    Party::start(bench, scenario.client, role, &format!("{address} {port}"))
}

/// Its own and the peer's number of each queue pair that a program connected.
fn queue_pairs(output: &str) -> Vec<[u32; 2]> {
    let numbers = |line: &str| {
        let (_, rest) = line.split_once(" queue pairs ")?;
        let (own, peer) = rest.split_once(' ')?;
        Some([own.parse().ok()?, peer.parse().ok()?])
    };
    output.lines().filter_map(numbers).collect()
}

/// The program's first connection ended, by one event.
fn ended_once(output: &str) -> Result<()> {
    let first = output.lines().filter_map(|line| line.strip_prefix("1 "));
    let events: Vec<_> = first.filter(|line| line.starts_with("RDMA_CM_EVENT_")).collect();
    let count = events.iter().filter(|event| event.starts_with(DISCONNECTED)).count();
    let has_others =
        events.iter().any(|event| ["REJECTED", "UNREACHABLE", "ERROR"].iter().any(|it| event.contains(it)));
    ensure!(count == 1 && !has_others, "the first connection ended by {events:?}");
    Ok(())
}

/// The guest's power fails under an idle connection, and a program in the next guest connects with
/// a queue pair of the same number. roced refuses the first attempt and ends the old connection;
/// the next attempt succeeds.
pub(crate) fn power_fails(bench: &mut Bench, scenario: &Scenario, port: u16) -> Result<Told> {
    let is_server_ours = scenario.client == Side::Rxe;
    // The program that does not lose its power serves both connections.
    let mut serving = serve(bench, scenario, port, if is_server_ours { 2 } else { 1 })?;
    let mut held = connect(bench, scenario, port, "hold")?;
    for party in [&mut serving, &mut held] {
        party.await_text(bench, DATA)?;
    }
    let power_failed_ns = bench.cut_power();
    bench.boot()?;
    bench.forget_kernel_log()?;

    let (held, serving) = if is_server_ours { (None, serving) } else { (Some(held), serve(bench, scenario, port, 1)?) };
    let asked = connect(bench, scenario, port, "ask")?.end(bench)?;
    // Where the client has failed, the server waits without success.
    let served = if asked.code == 0 { serving.end(bench)? } else { Ended::now(-1, serving.printed(bench)?) };
    let held = held.map(|held| held.end(bench)).transpose()?;
    let all_ended_well = [Some(&asked), Some(&served), held.as_ref()].into_iter().flatten().all(|it| it.code == 0);
    let [old, new, theirs]: [&str; 3] = match &held {
        None => [&served.output, "", &asked.output],
        Some(held) => [&held.output, &asked.output, &served.output],
    };
    let verdict = if all_ended_well { right_end(old, new, theirs) } else { Err(anyhow!("a program failed")) };
    verdict.with_context(|| format!("roced's programs:\n{old}{new}\nthe next guest's:\n{theirs}"))?;
    bench.within(LIMIT, Bench::has_no_connections)?;
    let client = held.map_or_else(String::new, |it| it.output) + &asked.output;
    Ok(Told { client, server: served.output, power_failed_ns: Some(power_failed_ns), ..Told::default() })
}

/// By the output of roced's program with the old connection, of its program with the new one, if
/// that is another, and of the next guest's.
fn right_end(old: &str, new: &str, theirs: &str) -> Result<()> {
    ended_once(old)?;
    let queue_pairs = [old, new].map(queue_pairs).concat();
    let are_one = queue_pairs.windows(2).all(|pair| pair[0][1] == pair[1][1]);
    ensure!(queue_pairs.len() == 2 && are_one, "queue pairs of roced and the guests: {queue_pairs:?}");
    ensure!(theirs.contains(REFUSED), "no attempt was refused as stale");
    let data = [old, new, theirs].map(|output| output.matches(DATA).count());
    ensure!((data[0] + data[1], data[2]) == (2, 1), "data of {data:?} connections");
    Ok(())
}

/// A connection without load, of which Linux's end is to outlive roced's daemon.
pub(crate) struct IdleConnection {
    client: Side,
    /// By [`Side`].
    parties: [Party; 2],
}

impl IdleConnection {
    pub(crate) fn new(bench: &Bench, scenario: &Scenario, port: u16) -> Result<Self> {
        let mut served = serve(bench, scenario, port, 1)?;
        let mut held = connect(bench, scenario, port, "hold")?;
        for party in [&mut served, &mut held] {
            party.await_text(bench, DATA)?;
        }
        let parties = if scenario.client == Side::Roced { [held, served] } else { [served, held] };
        Ok(Self { client: scenario.client, parties })
    }

    /// The daemon was killed, and another runs, to which the connection is unknown: Linux's end has
    /// heard nothing of it until a message of its own is not acknowledged. Its DREQ is answered.
    pub(crate) fn end_of_forgotten(self, bench: &Bench) -> Result<Told> {
        let [ours, theirs] = self.parties;
        let ours = ours.end(bench)?;
        ensure!(ours.output.contains("RDMA_CM_EVENT_DEVICE_REMOVAL"), "not told of the end: {}", ours.output);
        let Party::InGuest(role) = theirs else { unreachable!("Linux's end") };
        let before = theirs.printed(bench)?;
        ensure!(!before.contains(DISCONNECTED), "ended too early: {before}");
        bench.run(Side::Rxe, &format!("kill -USR1 $(cat /run/stale.{role}.pid)"), SOON)?.success("kill")?;
        let theirs = theirs.end(bench)?;
        let verdict = gave_up(&theirs);
        verdict.with_context(|| theirs.output.clone())?;
        let [client, server] = if self.client == Side::Roced { [ours, theirs] } else { [theirs, ours] };
        Ok(Told { client: client.output, server: server.output, ..Told::default() })
    }
}

fn gave_up(ended: &Ended) -> Result<()> {
    ensure!(ended.code == 0, "exit code {}", ended.code);
    ensure!(ended.output.contains("1 probe: transport retry counter exceeded"), "no retries were used up");
    ended_once(&ended.output)?;
    let took = ended.output.split_once("1 answered after ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    let took: u32 = took.context("the DREQ was not answered")?;
    ensure!(took < BEFORE_REPETITION_MS, "the DREQ was answered after {took} ms");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "listens\n1 queue pairs 900 17\n1 RDMA_CM_EVENT_ESTABLISHED 0\n1 right data\n1 RDMA_CM_EVENT_DISCONNECTED 0\n\
                        2 queue pairs 901 17\n2 RDMA_CM_EVENT_ESTABLISHED 0\n2 right data\n2 RDMA_CM_EVENT_DISCONNECTED 0\n\
                        1 RDMA_CM_EVENT_TIMEWAIT_EXIT 0\n";
    const THEIRS: &str =
        "1 RDMA_CM_EVENT_REJECTED 10\n2 RDMA_CM_EVENT_CONNECT_RESPONSE 0\n2 queue pairs 17 901\n2 right data\n";

    #[test]
    fn one_refusal_and_one_end_are_right() {
        right_end(OURS, "", THEIRS).expect("right");
        for (from, to) in [
            ("1 RDMA_CM_EVENT_DISCONNECTED 0\n", ""),
            ("1 RDMA_CM_EVENT_TIMEWAIT_EXIT 0\n", "1 RDMA_CM_EVENT_DISCONNECTED 0\n"),
            ("1 RDMA_CM_EVENT_TIMEWAIT_EXIT 0\n", "1 RDMA_CM_EVENT_REJECTED 4\n"),
            ("2 queue pairs 901 17\n", "2 queue pairs 901 18\n"),
            ("2 right data\n", "2 wrong data in round 0\n"),
        ] {
            assert!(OURS.contains(from) && right_end(&OURS.replace(from, to), "", THEIRS).is_err(), "{from}");
        }
        assert!(right_end(OURS, "", &THEIRS.replace("REJECTED 10", "REJECTED 28")).is_err());
        assert!(right_end(OURS, "", &THEIRS.replace("2 right data\n", "")).is_err());
    }

    #[test]
    fn a_disconnection_that_is_repeated_was_not_answered_at_once() {
        let told = |answer: &str| {
            let probe = "1 right data\n1 probe: transport retry counter exceeded\n";
            gave_up(&Ended::now(0, format!("{probe}{answer}1 RDMA_CM_EVENT_DISCONNECTED 0\nexit code 0\n")))
        };
        told("1 answered after 12 ms\n").expect("right");
        assert!(told("1 answered after 4300 ms\n").is_err());
        assert!(told("").is_err());
    }
}
