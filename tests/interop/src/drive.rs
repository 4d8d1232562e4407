//! Runs one scenario: a server, then its client, and the output of both.

use std::{fmt::Write as _, fs, path::Path, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    bench::{Bench, SOON},
    cm, expect,
    parting::{self, Parting},
    process::Ended,
    scenario::{ECT0, MARKED, Run, Scenario, Side, Stock},
    told::{Counted, Told},
    verify::POWER_FAILED,
};

/// How long a program may take, one without KVM at the other end and 2 % of frames lost.
const LIMIT: Duration = Duration::from_secs(60);
/// Where servers listen: each scenario has a port of its own.
const FIRST_PORT: u16 = 20_000;
/// Frames that a scenario without faults may move, because the guest is slow.
const FRAMES: u32 = 4_000;
/// How many frames the guest sends and receives before its power fails.
const LOAD: u64 = 1_000;

/// Runs it. `number` is its place in the plan; both captures lie in `folder` afterward.
pub(crate) fn run(bench: &mut Bench, scenario: &Scenario, number: usize, folder: &Path) -> Result<Told> {
    // That of a run before this one, if there is one.
    let _ = fs::remove_file(folder.join(POWER_FAILED));
    bench.set_faults(scenario.harm)?;
    let roced = bench.capture(Side::Roced, &folder.join("roced.pcap"))?;
    let rxe = bench.capture(Side::Rxe, &folder.join("rxe.pcap"))?;
    let port = FIRST_PORT + number as u16;
    let told = match scenario.run {
        Run::Stock(stock) => stock_pair(bench, scenario, stock, port),
        Run::Ends(MARKED) => marked(bench, scenario, port),
        Run::Ends(what) => ends_pair(bench, scenario, what, port),
        Run::Client => client(bench, scenario, port),
        Run::Cm(test) => cm::run(bench, scenario, test, port),
        Run::Reboot => reboot(bench, scenario, port),
    };
    let passed = bench.passed()?;
    bench.set_faults(None)?;
    roced.stop()?;
    rxe.stop()?;
    bench.within(SOON, Bench::daemon_is_idle)?;
    let told = told?;
    fs::write(folder.join("client.txt"), &told.client)?;
    fs::write(folder.join("server.txt"), &told.server)?;
    if let Some(at_ns) = told.power_failed_ns {
        fs::write(folder.join(POWER_FAILED), at_ns.to_string())?;
    }
    Ok(Told { harmed: passed.harmed, marked: passed.marked, ..told })
}

/// Starts a server, waits until it listens, runs the client.
fn pair(bench: &Bench, client: Side, commands: [&str; 2], port: u16, limit: Duration) -> Result<[Ended; 2]> {
    let [client_command, server_command] = commands;
    let server = client.other();
    thread::scope(|scope| {
        let serving = scope.spawn(|| bench.run(server, &bench.of_verbs(server, server_command), limit));
        let asked = await_listener(bench, server, port)
            .and_then(|()| bench.run(client, &bench.of_verbs(client, client_command), limit));
        let served = serving.join().expect("no panic");
        match (asked, served) {
            (Ok(asked), Ok(served)) => Ok([asked, served]),
            (Err(error), Ok(served)) => {
                Err(error.context(format!("the server, exit code {}:\n{}", served.code, served.output)))
            }
            (Ok(asked), Err(error)) => {
                Err(error.context(format!("the client, exit code {}:\n{}", asked.code, asked.output)))
            }
            (Err(asked), Err(served)) => Err(asked.context(format!("the server: {served:#}"))),
        }
    })
}

/// Waits until a server listens there.
fn await_listener(bench: &Bench, side: Side, port: u16) -> Result<()> {
    let is_there = format!(":{port:04x} [0-9a-f]*:0000 0a");
    let listening = format!("until grep -qi '{is_there}' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done");
    // It is stopped, in the guest with an exit code, when no server listens for too long.
    bench.run(side, &listening, SOON)?.success(&format!("no server listens at port {port} of {side}")).map(drop)
}

fn stock_pair(bench: &Bench, scenario: &Scenario, stock: Stock, port: u16) -> Result<Told> {
    let commands =
        [scenario.client, scenario.client.other()].map(|side| stock_command(bench, scenario, stock, side, port));
    let [client, server] = commands;
    let client = format!("{} {}", client?, Bench::address(scenario.client.other()));
    let [client, server] = pair(bench, scenario.client, [&client, &server?], port, LIMIT)?;
    let parting = Parting::of(scenario.client, [&client, &server]).filter(|_| scenario.loses_frames());
    for (ended, who, other) in [(&client, "client", &server), (&server, "server", &client)] {
        ensure!(
            parting::is_good(ended) || parting.is_some(),
            "the {who}, exit code {}:\n{}\nand the other:\n{}",
            ended.code,
            ended.output,
            other.output
        );
    }
    Ok(Told { client: client.output, server: server.output, parting, ..Told::default() })
}

/// The program with its options, as a side runs it.
fn stock_command(bench: &Bench, scenario: &Scenario, stock: Stock, side: Side, port: u16) -> Result<String> {
    let gid = bench.gid_index(side, scenario.network)?;
    let mut command = format!("{} -p {port}", stock.command());
    let packets = scenario.size.div_ceil(scenario.mtu).max(1);
    if stock.is_pingpong() {
        let rounds = (FRAMES / 2 / packets).clamp(2, 50);
        write!(command, " -g {gid} -s {} -n {rounds} -c", scenario.size)?;
    } else {
        let rounds = (FRAMES / packets).clamp(5, 50);
        write!(command, " -F -x {gid} -n {rounds} -u 16")?;
        if !stock.is_atomic() {
            write!(command, " -s {}", scenario.size)?;
        }
        if scenario.marks_rxe(bench.ecn()) {
            write!(command, " --tclass={ECT0}")?;
        }
    }
    if stock != Stock::UdPingpong {
        write!(command, " -m {}", scenario.mtu)?;
    }
    Ok(command)
}

fn ends_pair(bench: &Bench, scenario: &Scenario, what: &str, port: u16) -> Result<Told> {
    let command = |side: Side, program: &str| -> Result<String> {
        let gid = bench.gid_index(side, scenario.network)?;
        let class = if scenario.marks_rxe(bench.ecn()) { ECT0 } else { 0 };
        Ok(format!("{program} -g {gid} -m {} -p {port} -t {class} {what}", scenario.mtu))
    };
    let program = |side: Side| match side {
        Side::Roced => bench.built("interop-ends"),
        Side::Rxe => "ends".to_owned(),
    };
    let (client, server) = (scenario.client, scenario.client.other());
    let ask = format!("{} {}", command(client, &program(client))?, Bench::address(server));
    let [asked, served] = pair(bench, client, [&ask, &command(server, &program(server))?], port, LIMIT)?;
    ensure!(
        asked.code == 0 && served.code == 0,
        "exit codes {} and {}\nclient: {}\nserver: {}",
        asked.code,
        served.code,
        asked.output,
        served.output
    );
    let quirks = expect::check(what, client, &asked.output, &served.output)?;
    Ok(Told { client: asked.output, server: served.output, quirks, ..Told::default() })
}

/// Transfers through a switch that marks packets: roced notifies rxe, which drops CNPs by their
/// opcode and does not count them; its kernel has nothing to complain about.
fn marked(bench: &Bench, scenario: &Scenario, port: u16) -> Result<Told> {
    let counted = || -> Result<_> {
        let received = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
        let received = bench.run(Side::Rxe, received, SOON)?.success("rcvd_pkts")?.trim().parse::<u64>()?;
        Ok([bench.counter("np_cnp_sent")?, received])
    };
    bench.forget_kernel_log()?;
    let before = counted()?;
    let told = ends_pair(bench, scenario, MARKED, port)?;
    bench.kernel_is_silent()?;
    let [notifications, packets] = counted()?;
    let counted = Counted { notifications: notifications - before[0], packets: packets - before[1] };
    Ok(Told { counted: Some(counted), ..told })
}

/// Our own client library, every operation in both directions, wrong keys too where nothing else is
/// wrong.
fn client(bench: &Bench, scenario: &Scenario, port: u16) -> Result<Told> {
    let program = bench.built("e2e-client");
    let keys = if scenario.harm.is_none() { " --wrong-keys" } else { "" };
    let asking = format!("exec {program} rxe {} {port}{keys}", Bench::address(Side::Rxe));
    let class = if scenario.marks_rxe(bench.ecn()) { ECT0 } else { 0 };
    let serving = format!("rxe-peer {port} {class}");
    thread::scope(|scope| {
        // It serves for as long as it lives; its exit code when killed is no failure.
        let serving = scope.spawn(|| bench.run(Side::Rxe, &serving, LIMIT));
        let asked = await_listener(bench, Side::Rxe, port).and_then(|()| bench.run(Side::Roced, &asking, LIMIT));
        let ended = bench.run(Side::Rxe, "killall rxe-peer", SOON);
        let served = serving.join().expect("no panic")?;
        ended?;
        let client = asked?.success("e2e-client")?;
        Ok(Told { client, server: served.output, ..Told::default() })
    })
}

/// The guest's power fails under load. A program of roced that waits for an answer is told; the
/// daemon goes on.
fn reboot(bench: &mut Bench, scenario: &Scenario, port: u16) -> Result<Told> {
    let command = |side: Side| -> Result<String> {
        let gid = bench.gid_index(side, scenario.network)?;
        // Both ways, so that roced asks for something whichever side is the client.
        Ok(format!("ib_write_bw -b -D 30 -F -x {gid} -m {} -p {port}", scenario.mtu))
    };
    let (host, guest) = (command(Side::Roced)?, command(Side::Rxe)?);
    let in_background = |command: &str| format!("{command} >/run/load 2>&1 &");
    let mut ours = if scenario.client == Side::Roced {
        bench.run(Side::Rxe, &in_background(&guest), SOON)?.success("the guest's server")?;
        await_listener(bench, Side::Rxe, port)?;
        bench.start_on_host(&bench.of_verbs(Side::Roced, &format!("{host} {}", Bench::address(Side::Rxe))))?
    } else {
        let ours = bench.start_on_host(&bench.of_verbs(Side::Roced, &host))?;
        await_listener(bench, Side::Roced, port)?;
        bench
            .run(Side::Rxe, &in_background(&format!("{guest} {}", Bench::address(Side::Roced))), SOON)?
            .success("the guest's client")?;
        ours
    };
    bench.within(SOON, |bench| {
        ensure!(bench.passed()?.frames > LOAD, "there is no load");
        Ok(())
    })?;
    ensure!(ours.runs()?, "it ended before the guest did: {}", ours.printed()?);
    bench.cut_power();
    let ended = ours.end(LIMIT).context("the guest has gone")?;
    ensure!(
        ended.code != 0 && ended.output.contains("status 12"),
        "not told of transport retry exceeded (12), exit code {}: {}",
        ended.code,
        ended.output
    );
    bench.boot()?;
    Ok(Told { client: ended.output, ..Told::default() })
}
