//! `roce-perf ping` and `roce-perf bw`: agree with the server, measure, report.

use anyhow::{Context, bail, ensure};
use roced_client::Connection;

use crate::{
    bw,
    cli::{BandwidthArgs, Common, Ping, default_depth},
    control::{
        ControlChannel, ControlMessage, DEFAULT_PORT, PeerVerdict, QpInfo, Ready, Run, RunKind, Setup, WORK_TIMEOUT,
    },
    pattern,
    peer::Peer,
    ping,
    progress::ProgressGoal,
    report::{Measured, RunReport},
    session::{Needs, Opened, RunSession},
};

/// `roce-perf ping`.
///
/// # Errors
/// Any reason that prevented the measurement; [`pattern::Mismatch`] if data was wrong.
pub(crate) fn ping(args: &Ping) -> anyhow::Result<RunReport> {
    let run = Run {
        kind: RunKind::Ping,
        op: args.op.into(),
        size: args.size,
        depth: 1,
        verify: true,
        seed: pattern::fresh_seed(),
        path: args.common.path,
    };
    measure(&args.peer, &args.common, &run, 1, |agreed| {
        let Agreed { session, server, channel, .. } = agreed;
        let outcome = ping::client(&run, session, &server[0], channel, args.count)?;
        let verdict = finish(channel, vec![outcome.sent])?;
        Ok(Measured {
            messages: args.count,
            elapsed: outcome.elapsed,
            times: outcome.times,
            verified_bytes: outcome.compared_bytes,
            client: session.statistics()?,
            server: verdict.statistics,
        })
    })
}

/// `roce-perf bw`.
///
/// # Errors
/// As [`ping()`].
pub(crate) fn bw(args: &BandwidthArgs) -> anyhow::Result<RunReport> {
    let run = Run {
        kind: RunKind::Bw,
        op: args.op,
        size: args.size,
        depth: args.depth.unwrap_or_else(|| default_depth(args.size)),
        verify: !args.no_verify,
        seed: pattern::fresh_seed(),
        path: args.common.path,
    };
    let goal = match args.bytes {
        Some(bytes) => ProgressGoal::Messages(bytes.div_ceil(args.size)),
        None => ProgressGoal::Time(args.seconds),
    };
    measure(&args.peer, &args.common, &run, args.qps, |agreed| {
        let Agreed { session, server, channel, .. } = agreed;
        let outcome = bw::client::Client::new(&run, session, server, goal)?.run(channel, goal)?;
        let messages = outcome.messages.iter().sum();
        let verdict = finish(channel, outcome.messages)?;
        Ok(Measured {
            messages,
            elapsed: outcome.elapsed,
            times: outcome.times,
            // One of the two receives the data and compares it.
            verified_bytes: outcome.compared_bytes + verdict.compared_bytes,
            client: session.statistics()?,
            server: verdict.statistics,
        })
    })
}

/// Parameters that both sides agreed on.
struct Agreed<'a> {
    session: &'a mut RunSession,
    server: &'a [QpInfo],
    channel: &'a mut ControlChannel,
}

/// Connects, has `run` measured by `work`, and reports.
fn measure(
    peer: &str,
    common: &Common,
    run: &Run,
    qps: u32,
    work: impl FnOnce(&mut Agreed<'_>) -> anyhow::Result<Measured>,
) -> anyhow::Result<RunReport> {
    let peer = Peer::parse(peer, DEFAULT_PORT)?;
    let (mut channel, opened) = open(&peer, common)?;
    let result = agree(&mut channel, &opened, common, run, qps).and_then(|(mut session, ready, _connections)| {
        let measured = work(&mut Agreed { session: &mut session, server: &ready.qps, channel: &mut channel })?;
        Ok(RunReport::new(run, ready.mtu, qps, &measured))
    });
    result.inspect_err(|error| channel.say_failed(error))
}

/// The control channel, and the device that the user named, or that leads to the peer.
fn open(peer: &Peer, common: &Common) -> anyhow::Result<(ControlChannel, Opened)> {
    if common.cm {
        let channel = ControlChannel::connect(peer, true)?;
        let opened = Opened::new(channel.device())?;
        return Ok((channel, opened));
    }
    let opened = Opened::new(common.device.as_deref())?;
    common.mtu.map_or(Ok(()), |mtu| opened.check_mtu(mtu))?;
    Ok((ControlChannel::connect(peer, false)?, opened))
}

/// Makes this side's queue pairs, has the server make its own, and connects them.
fn agree(
    channel: &mut ControlChannel,
    opened: &Opened,
    common: &Common,
    run: &Run,
    qps: u32,
) -> anyhow::Result<(RunSession, Ready, Vec<Connection>)> {
    let gid = opened.gid(common.gid_index, run.path.rocev1, channel.local_ip()?, channel.peer_ip()?)?;
    let (needs, offer): (Needs, _) = match run.kind {
        RunKind::Ping => (ping::needs(run), ping::offer(run)),
        RunKind::Bw => (bw::client_needs(run, qps), None),
    };
    let session = RunSession::new(opened, gid, &needs)?;
    channel.say(&ControlMessage::Setup(Setup {
        run: run.clone(),
        gid: gid.address,
        mtu: opened.mtu,
        mtu_asked: common.mtu,
        qps: session.addresses(|_| offer)?,
    }))?;
    let mut ready = match channel.listen(WORK_TIMEOUT)? {
        ControlMessage::Ready(ready) => ready,
        other => bail!("the server answered {other:?}"),
    };
    ensure!(ready.qps.len() == qps as usize, "the server made {} queue pairs, not {qps}", ready.qps.len());
    ensure!(ready.mtu <= opened.mtu, "the server wants path MTU {}, more than this link carries", ready.mtu);
    let mut connections = Vec::new();
    if let Some(port) = ready.port {
        connections = session.connect_to(channel.peer_at(port)?, run)?;
        ready.mtu = session.mtu()?;
    } else {
        session.connect(&ready.qps, ready.gid, ready.mtu, &run.path)?;
    }
    Ok((session, ready, connections))
}

/// Reports the number of messages to the server and receives its findings.
fn finish(channel: &mut ControlChannel, messages: Vec<u64>) -> anyhow::Result<PeerVerdict> {
    channel.say(&ControlMessage::Finish { messages })?;
    match channel.listen(WORK_TIMEOUT).context("waiting for the server's verdict")? {
        ControlMessage::Verdict(PeerVerdict { mismatch: Some(mismatch), .. }) => Err(mismatch.into()),
        ControlMessage::Verdict(verdict) => Ok(verdict),
        other => bail!("the server answered {other:?} where a verdict was due"),
    }
}
