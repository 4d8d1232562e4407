//! `roce-perf serve`: the other side of a measurement, for one client after another and several at
//! a time.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, bail, ensure};
use roced_client::{Connection, Listener};
use roced_output::print_error;

use crate::{
    bw,
    cli::{DEPTH_MAX, MESSAGE_BYTES_MAX, Op, QPS_MAX, Serve},
    control::{ControlChannel, ControlMessage, DEFAULT_PORT, PeerVerdict, Ready, RunKind, Setup, WORK_TIMEOUT},
    pattern::{Mismatch, tape_bytes},
    peer::Peer,
    ping,
    session::{Needs, Opened, RunSession},
    size,
    stream::{ANSWER_TIMEOUT, StreamListener},
};

/// Runs at a time.
const RUNS_MAX: usize = 64;

/// Limit on the memory of a run, for messages and the expected data: any client that reaches the
/// port can ask for it.
const RUN_BYTES_MAX: u64 = 8 << 30;

/// Serves until it is ended, or until one run is over with `--once`.
///
/// # Errors
/// The server cannot listen or has no device; with `--once`, the reason why the run failed.
pub(crate) fn serve(args: &Serve) -> anyhow::Result<()> {
    // Said now and not when the first client comes; each run opens a session of its own.
    let device = Opened::new(args.device.as_deref())?.name;
    let listener = listen(args.bind.as_deref(), args.cm)?;
    let served = if args.cm { "all devices by the connection manager" } else { &device };
    print_error(format_args!("roce-perf: serving {served} on {}", shown(listener.address()?)));
    let running = Arc::new(AtomicUsize::new(0));
    loop {
        let (stream, from) = match listener.accept()? {
            Ok(accepted) => accepted,
            Err(error) => {
                // A client that gave up before it was accepted, or no fd free: the next one may do
                // better.
                print_error(format_args!("roce-perf: accepting a connection: {error}"));
                thread::sleep(ANSWER_TIMEOUT / 10);
                continue;
            }
        };
        if args.once {
            // One that is no client does not count.
            match ControlChannel::accept(stream) {
                Ok(mut channel) => return serve_client(&mut channel, &device, from),
                Err(error) => print_error(format_args!("roce-perf: {}: {error:#}", shown(from))),
            }
        } else if running.fetch_add(1, Ordering::AcqRel) < RUNS_MAX {
            let (device, running) = (device.clone(), Arc::clone(&running));
            thread::spawn(move || {
                let served =
                    ControlChannel::accept(stream).and_then(|mut channel| serve_client(&mut channel, &device, from));
                // The next client is served all the same.
                if let Err(error) = served {
                    print_error(format_args!("roce-perf: {}: {error:#}", shown(from)));
                }
                running.fetch_sub(1, Ordering::AcqRel);
            });
        } else {
            running.fetch_sub(1, Ordering::AcqRel);
            print_error(format_args!("roce-perf: {}: turned away, {RUNS_MAX} runs are under way", shown(from)));
        }
    }
}

fn listen(bind: Option<&str>, by_cm: bool) -> anyhow::Result<StreamListener> {
    let (addresses, shown) = match bind {
        // The first takes IPv4 as well; the second is for hosts without IPv6.
        None => (
            vec![(Ipv6Addr::UNSPECIFIED, DEFAULT_PORT).into(), (Ipv4Addr::UNSPECIFIED, DEFAULT_PORT).into()],
            format!("port {DEFAULT_PORT}"),
        ),
        Some(bind) => {
            let peer = Peer::parse(bind, DEFAULT_PORT)?;
            (peer.resolve(ANSWER_TIMEOUT)?, peer.to_string())
        }
    };
    let listener = StreamListener::bind(&addresses, by_cm);
    listener.with_context(|| format!("listening on {shown}"))
}

/// An IPv4 address on an IPv6 socket is shown as IPv4.
fn shown(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Serves one client, and reports failures to it as well.
fn serve_client(channel: &mut ControlChannel, device: &str, from: SocketAddr) -> anyhow::Result<()> {
    let served = run(channel, device).inspect_err(|error| {
        // A mismatch was said in the verdict.
        if error.downcast_ref::<Mismatch>().is_none() {
            channel.say_failed(error);
        }
    })?;
    print_error(format_args!("roce-perf: {}: {served}", shown(from)));
    Ok(())
}

/// One run from the client's wish to our verdict; gives a line about it.
fn run(channel: &mut ControlChannel, device: &str) -> anyhow::Result<String> {
    let setup = match channel.listen(WORK_TIMEOUT)? {
        ControlMessage::Setup(setup) => setup,
        other => bail!("the client began with {other:?}"),
    };
    check(&setup)?;
    let run = &setup.run;
    let opened = Opened::new(Some(channel.device().unwrap_or(device)))?;
    let mtu = agree_on_mtu(&setup, &opened)?;
    let gid = opened.gid(None, run.path.rocev1, channel.local_ip()?, setup.gid)?;
    let mut session = RunSession::new(&opened, gid, &needs(&setup))?;
    let _connections;
    let served = match run.kind {
        RunKind::Ping => {
            let echo = ping::Echo::new(run, &mut session, &setup.qps[0])?;
            _connections = make_ready(channel, echo.session(), &setup, gid.address, mtu, |_| ping::offer(run))?;
            echo.run(channel).map(|()| 0)
        }
        RunKind::Bw => {
            let server = bw::server::Server::new(run, &mut session)?;
            _connections =
                make_ready(channel, server.session(), &setup, gid.address, mtu, |qp| bw::server_offer(run, qp))?;
            server.run(channel)
        }
    };
    let (compared_bytes, mismatch) = match served {
        Ok(bytes) => (bytes, None),
        Err(error) => (0, Some(error.downcast::<Mismatch>()?)),
    };
    let statistics = session.statistics()?;
    channel.say(&ControlMessage::Verdict(PeerVerdict { compared_bytes, mismatch: mismatch.clone(), statistics }))?;
    match mismatch {
        Some(mismatch) => Err(mismatch.into()),
        None => Ok(describe(&setup, mtu, compared_bytes)),
    }
}

fn describe(setup: &Setup, mtu: u32, compared_bytes: u64) -> String {
    let run = &setup.run;
    let kind = match run.kind {
        RunKind::Ping => "ping",
        RunKind::Bw => "bw",
    };
    let compared =
        if compared_bytes > 0 { format!(", {} compared", size::about(compared_bytes)) } else { String::new() };
    let plural = if setup.qps.len() == 1 { "" } else { "s" };
    let (op, size, qps) = (run.op, size::show(run.size), setup.qps.len());
    format!("{kind} {op} of {size} on {qps} queue pair{plural}, path MTU {mtu}: done{compared}")
}

/// Gives the queue pairs their peers and says so; by the connection manager, the other way around.
/// The connections end with their values.
fn make_ready(
    channel: &mut ControlChannel,
    session: &RunSession,
    setup: &Setup,
    gid: IpAddr,
    mtu: u32,
    offers: impl Fn(usize) -> Option<(u64, u64)>,
) -> anyhow::Result<Vec<Connection>> {
    let ready = |port| Ok::<_, anyhow::Error>(Ready { gid, mtu, qps: session.addresses(offers)?, port });
    if channel.device().is_none() {
        session.connect(&setup.qps, setup.gid, mtu, &setup.run.path)?;
        channel.say(&ControlMessage::Ready(ready(None)?))?;
        return Ok(Vec::new());
    }
    let listener = Listener::bind(channel.local_at(0)?)?;
    channel.say(&ControlMessage::Ready(ready(Some(listener.address()?.port()))?))?;
    session.accept(&listener, channel.peer_ip()?, &setup.run)
}

fn needs(setup: &Setup) -> Needs {
    match setup.run.kind {
        RunKind::Ping => ping::needs(&setup.run),
        RunKind::Bw => bw::server_needs(&setup.run, setup.qps.len() as u32),
    }
}

/// Any program that reaches the port may have written this.
fn check(setup: &Setup) -> anyhow::Result<()> {
    let run = &setup.run;
    ensure!((1..=MESSAGE_BYTES_MAX).contains(&run.size), "a message of {} bytes cannot be", run.size);
    ensure!((1..=DEPTH_MAX).contains(&run.depth), "a depth of {} cannot be", run.depth);
    let qps_max = if run.kind == RunKind::Ping { 1 } else { QPS_MAX as usize };
    ensure!((1..=qps_max).contains(&setup.qps.len()), "{} queue pairs cannot be", setup.qps.len());
    ensure!(run.kind == RunKind::Bw || run.op != Op::Read, "there is no ping by READ");
    // Cannot overflow: 2^31 * 2^12 * 2^10.
    let bytes = needs(setup).memory_bytes + tape_bytes(run.size);
    ensure!(
        bytes <= RUN_BYTES_MAX,
        "the run needs {} of the server's memory, more than the {} that it gives: lower --size, --depth or --qps",
        size::about(bytes),
        size::show(RUN_BYTES_MAX)
    );
    Ok(())
}

fn agree_on_mtu(setup: &Setup, opened: &Opened) -> anyhow::Result<u32> {
    match setup.mtu_asked {
        Some(asked) => opened.check_mtu(asked).map(|()| asked).context("at the server"),
        None => Ok(setup.mtu.min(opened.mtu)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::PathOptions,
        control::{QpInfo, Run},
    };

    fn setup(size: u64, depth: u32, qps: usize) -> Setup {
        let path = PathOptions {
            rocev1: false,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
            flow_label: 0,
            timeout: 14,
            retry: 7,
        };
        Setup {
            run: Run { kind: RunKind::Bw, op: Op::Write, size, depth, verify: true, seed: 1, path },
            gid: IpAddr::from([10, 0, 0, 1]),
            mtu: 1024,
            mtu_asked: None,
            qps: vec![QpInfo { qpn: 2, psn: 3, memory: None }; qps],
        }
    }

    #[test]
    fn forbidden_requests_of_a_client_are_refused() {
        check(&setup(1 << 16, 64, 4)).expect("an ordinary run");
        for (wrong, why) in [
            (setup(0, 1, 1), "0 bytes"),
            (setup(MESSAGE_BYTES_MAX + 1, 1, 1), "2147483649 bytes"),
            (setup(64, 0, 1), "depth of 0"),
            (setup(64, DEPTH_MAX + 1, 1), "depth of 4097"),
            (setup(64, 1, 0), "0 queue pairs"),
            (setup(64, 1, 1025), "1025 queue pairs"),
            (setup(MESSAGE_BYTES_MAX, 4, 1), "more than the 8 GiB"),
            (setup(MESSAGE_BYTES_MAX, DEPTH_MAX, 1024), "more than the 8 GiB"),
        ] {
            let message = check(&wrong).expect_err(why).to_string();
            assert!(message.contains(why), "{message}");
        }
        let mut ping = setup(64, 1, 2);
        ping.run.kind = RunKind::Ping;
        assert!(check(&ping).is_err(), "a ping has one queue pair");
        ping.qps.truncate(1);
        check(&ping).expect("a ping by WRITE");
        ping.run.op = Op::Read;
        assert!(check(&ping).is_err(), "no ping by READ");
    }
}
