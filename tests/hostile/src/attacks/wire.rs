//! Forged frames.

use std::{collections::BTreeMap, thread, time::Duration};

use anyhow::{Context as _, Result};
use roced_client::ServiceType;
use roced_transport::wire::{
    opcode::{self, Opcode},
    udp_source_port,
};
use roced_types::Qpn;

use crate::{
    acts::with_queues,
    finding::Finding,
    forger::{Forger, Forgery, QpnGuess},
    network::HostPair,
    raw_client::RawSession,
    stage::{Stage, last_lines, transfer},
    victim::Victim,
};

/// Bytes of the victim's messages and of forged ones: one packet.
const BYTES: usize = 64;

/// Key of the victim's datagrams, which is of its program and not of this one.
const OTHER_QKEY: u32 = 0x0bad_0bad;

/// Frames from host b, which also is the true peer, to host a.
fn forgery(stage: &Stage, pair: &HostPair, opcodes: &[Opcode], qpn: QpnGuess) -> Result<Forgery> {
    Ok(Forgery {
        space: pair.b.space.clone(),
        macs: [pair.b.mac()?, pair.a.mac()?],
        gids: [pair.b.gid().0, pair.a.gid().0],
        opcodes: opcodes.to_vec(),
        qpn,
        port: None,
        psn: (0, u32::MAX),
        payload_bytes: BYTES,
        qkey: OTHER_QKEY,
        source_qpn: 2,
        frames: None,
        seed: stage.seed,
    })
}

/// A blind attack on a transfer from host b to host a: its messages and its goodput.
fn inject(stage: &Stage, service: ServiceType, opcodes: &[Opcode], given: bool, what: &str) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let mut victim = Victim::start(&transfer(&pair.b, &pair.a, service, BYTES, 64))?;
    let alone = victim.measure(Duration::from_secs(1));
    let qpn = if given { QpnGuess::Known(victim.receiver_qpn) } else { QpnGuess::Any };
    // With both numbers the port is known, which connections of roced derive from them.
    let numbers = [victim.sender_qpn, victim.receiver_qpn].map(Qpn::from_wire);
    let port = (given && service != ServiceType::Ud).then(|| udp_source_port(0, numbers[0], numbers[1]));
    let forger = Forger::start(Forgery { port, ..forgery(stage, &pair, opcodes, qpn)? });
    let beside = victim.measure(stage.duration(10));
    let rate = forger.finish()?;
    let after = victim.measure(Duration::from_secs(1));
    let is_alive = pair.a.is_alive();
    let given = if given { "QPN given" } else { "QPN unknown" };
    let ended = beside.ended.is_some() || after.ended.is_some();
    let name = |figure: &str| format!("{what}, {given}: {figure}");
    let mut findings = vec![
        Finding::reported(name("forged frames a second"), rate, "1/s"),
        Finding::at_most(name("messages injected or damaged"), (beside.wrong + after.wrong) as f64, "", 0.0),
        Finding::at_most(name("connections lost"), f64::from(ended), "", 0.0),
        Finding::at_least(name("daemon alive"), f64::from(is_alive), "", 1.0),
        Finding::reported(name("goodput beside, of that alone"), beside.gbit_per_s / alone.gbit_per_s * 100.0, "%"),
        Finding::at_least(
            name("goodput afterward, of that alone"),
            after.gbit_per_s / alone.gbit_per_s * 100.0,
            "%",
            50.0,
        ),
    ];
    if service == ServiceType::Rc {
        findings.push(Finding::at_most(name("messages lost"), (beside.lost + after.lost) as f64, "", 0.0));
    }
    Ok(findings)
}

fn both(stage: &Stage, service: ServiceType, opcodes: &[Opcode], what: &str) -> Result<Vec<Finding>> {
    let mut findings = inject(stage, service, opcodes, true, what)?;
    findings.extend(inject(stage, service, opcodes, false, what)?);
    Ok(findings)
}

pub(super) fn blind_injection_rc(stage: &Stage) -> Result<Vec<Finding>> {
    let mut findings = both(stage, ServiceType::Rc, &[opcode::RC_SEND_ONLY], "SEND")?;
    findings.extend(half_blind(stage)?);
    Ok(findings)
}

pub(super) fn blind_injection_uc(stage: &Stage) -> Result<Vec<Finding>> {
    let send = opcode::uc(roced_transport::wire::Operation::Send, roced_transport::wire::Position::Only, false);
    both(stage, ServiceType::Uc, &[send], "SEND")
}

pub(super) fn blind_injection_ud(stage: &Stage) -> Result<Vec<Finding>> {
    both(stage, ServiceType::Ud, &[opcode::UD_SEND_ONLY], "SEND with another Q_Key")
}

pub(super) fn blind_answers(stage: &Stage) -> Result<Vec<Finding>> {
    use roced_transport::wire::{Operation, Position};
    let middle = opcode::rc(Operation::Send, Position::Middle, false);
    let mut findings = inject(stage, ServiceType::Rc, &[middle, opcode::RC_SEND_FIRST], true, "parts of messages")?;
    let writes = [opcode::RC_WRITE_ONLY, opcode::RC_READ_REQUEST];
    findings.extend(inject(stage, ServiceType::Rc, &writes, true, "WRITEs and READs with random keys")?);
    findings.extend(answers(stage)?);
    Ok(findings)
}

/// Forged answers to host b's requests: they come from host a.
fn answers(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let mut victim = Victim::start(&transfer(&pair.a, &pair.b, ServiceType::Rc, BYTES, 64))?;
    let alone = victim.measure(Duration::from_secs(1));
    let opcodes = [opcode::RC_ACK, opcode::RC_READ_RESPONSE_ONLY];
    let qpn = QpnGuess::Known(victim.sender_qpn);
    let forger = Forger::start(forgery(stage, &pair, &opcodes, qpn)?);
    let beside = victim.measure(stage.duration(10));
    forger.finish()?;
    let after = victim.measure(Duration::from_secs(1));
    let name = |figure: &str| format!("ACKs and NAKs, QPN given: {figure}");
    let ended = beside.ended.is_some() || after.ended.is_some();
    Ok(vec![
        Finding::at_most(name("connections lost"), f64::from(ended), "", 0.0),
        Finding::at_most(name("messages lost"), (beside.lost + after.lost) as f64, "", 0.0),
        Finding::at_least(
            name("goodput afterward, of that alone"),
            after.gbit_per_s / alone.gbit_per_s * 100.0,
            "%",
            50.0,
        ),
    ])
}

/// PSN that a queue pair of host a expects next.
fn expected_psn(pair: &HostPair, qpn: u32) -> Result<u32> {
    let report = pair.a.ask("\"qps\"")?;
    let qps = report["qps"].as_array().context("queue pairs")?;
    let ours = qps.iter().find(|qp| qp["qpn"] == qpn).context("the victim's queue pair")?;
    Ok(ours["expected_psn"].as_u64().context("its PSN")? as u32)
}

/// A connection at rest, of which all numbers are known but 16 bits of the PSN and the UDP port:
/// seconds stand for the 256 times as long that a blind attack takes.
fn half_blind(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let mut victim = Victim::start(&transfer(&pair.b, &pair.a, ServiceType::Rc, BYTES, 64))?;
    victim.measure(Duration::from_millis(1500));
    victim.pause(true);
    thread::sleep(Duration::from_millis(300));
    victim.take();
    let psn = (expected_psn(&pair, victim.receiver_qpn)?, 0xffff);
    let qpn = QpnGuess::Known(victim.receiver_qpn);
    let forger = Forger::start(Forgery { psn, ..forgery(stage, &pair, &[opcode::RC_SEND_ONLY], qpn)? });
    let beside = victim.measure(Duration::from_secs(10));
    forger.finish()?;
    victim.pause(false);
    let after = victim.measure(Duration::from_secs(1));
    let name = |figure: &str| format!("SEND at rest, QPN and 8 bits of PSN given: {figure}");
    let ended = beside.ended.is_some() || after.ended.is_some();
    Ok(vec![
        Finding::at_most(name("injected"), (beside.wrong + after.wrong) as f64, "", 0.0),
        Finding::at_most(name("connections lost"), f64::from(ended), "", 0.0),
        Finding::at_most(name("messages lost"), after.lost as f64, "", 0.0),
    ])
}

/// A connection between two programs of host a, and frames from the wire with host a's address and
/// everything else known.
pub(super) fn own_address(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let mut victim = Victim::start(&transfer(&pair.a, &pair.a, ServiceType::Rc, BYTES, 64))?;
    victim.measure(Duration::from_secs(1));
    victim.pause(true);
    thread::sleep(Duration::from_millis(300));
    victim.take();
    let psn = expected_psn(&pair, victim.receiver_qpn)?;
    let own = pair.a.gid().0;
    let forgery = Forgery {
        gids: [own, own],
        psn: (psn, 0),
        frames: Some(256),
        ..forgery(stage, &pair, &[opcode::RC_SEND_ONLY], QpnGuess::Known(victim.receiver_qpn))?
    };
    Forger::start(forgery).wait()?;
    thread::sleep(Duration::from_millis(300));
    victim.pause(false);
    let after = victim.measure(Duration::from_secs(2));
    let is_alive = pair.a.is_alive();
    if let Some(why) = &after.ended {
        eprintln!("own-address-from-wire: {why}; {}", last_lines(&pair.a.log_text()));
    }
    Ok(vec![
        Finding::at_most("frames with our source that reached a program", (after.wrong + after.lost) as f64, "", 0.0),
        Finding::at_most("local connections lost", f64::from(after.ended.is_some()), "", 0.0),
        Finding::at_least("daemon alive", f64::from(is_alive), "", 1.0),
        Finding::at_least("verified messages afterward", after.messages as f64, "", 1.0),
    ])
}

/// Numbers of the first queue pairs of many sessions: the bits that differ among them.
pub(super) fn guessed_numbers(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let mut numbers = Vec::new();
    for _ in 0..256 {
        let mut session = RawSession::open(&pair.a.socket)?;
        let request = with_queues(&mut session, 1)?;
        let qp = session.queue_pair(request)?.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
        numbers.push(qp.reply.qpn);
    }
    // A bit that is random is the same in all with a chance of 2^-255.
    let varying = numbers.iter().fold(0, |bits, number| bits | number ^ numbers[0]).count_ones();
    let mut counts = BTreeMap::new();
    for number in &numbers {
        *counts.entry(number & 0xff).or_insert(0_u32) += 1;
    }
    let most = counts.values().max().copied().unwrap_or(0);
    Ok(vec![
        Finding::at_least("bits that vary in numbers of new queue pairs", varying.into(), "bits", 22.0),
        Finding::at_most("numbers with the same lower 8 bits, of 256", most.into(), "", 16.0),
    ])
}
