//! Runs programs of the distribution's librdmacm at both ends, connected by the connection manager
//! of Linux at one of them and by roced's at the other: data, refusals, and the sudden end of a
//! program.

use std::{fmt::Write as _, thread, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    bench::{Bench, SOON},
    cm_test::{CmTest, GROUP_MAC, ROUNDS},
    process::Ended,
    scenario::{ECT0, Scenario, Side},
    stale::{self, IdleConnection},
    told::Told,
};

/// Datagrams of the connection manager that are lost come again after 4 to 6 s, some of them twice.
const LIMIT: Duration = Duration::from_secs(100);
/// Frames that pass before a program is killed.
const LOAD: u64 = 300;
/// From the port of a scenario to that of another connection in it.
const IDLE_PORT: u16 = 1000;

impl CmTest {
    /// Command lines of client and server.
    fn commands(self, bench: &Bench, scenario: &Scenario, port: u16) -> [String; 2] {
        let Scenario { client, network, .. } = *scenario;
        let address = Bench::address_of(client.other(), network);
        let option =
            |name: &str| if scenario.marks_rxe(bench.ecn()) { format!(" {name} {ECT0}") } else { String::new() };
        match self {
            Self::Rping | Self::Lost(_) => [
                format!("{} -c -a {address} -p {port}", Self::Rping.program()),
                format!("rping -v -s -a {address} -p {port}"),
            ],
            Self::KilledBeforeRtu => {
                let program = match client {
                    Side::Roced => bench.built("interop-before-rtu"),
                    Side::Rxe => "before-rtu".to_owned(),
                };
                [format!("{program} {address} {port}"), format!("rping -s -a {address} -p {port}")]
            }
            Self::NoListener | Self::ServerKilled | Self::ClientKilled | Self::DaemonKilled => {
                ["c", "s"].map(|role| format!("rping -{role} -a {address} -p {port}"))
            }
            Self::PowerFails => unreachable!("programs of `stale`"),
            // It has no option for its port.
            Self::Udaddy => ["s", "b"].map(|role| format!("{} -{role} {address}{}", self.program(), option("-t"))),
            Self::FifthLost => Self::Ucmatose(10).commands(bench, scenario, port),
            Self::Mckey | Self::MckeySendOnly => {
                let own = Bench::address_of(client, network);
                [format!("{} -b {own} -s", self.program()), format!("{} -b {address}", Self::Mckey.program())]
            }
            Self::Ucmatose(_) | Self::Rstream => {
                ["s", "b"].map(|role| format!("{} -{role} {address} -p {port}{}", self.program(), option("-t")))
            }
            Self::WriteBw => {
                let server = format!("{} -p {port}{}", self.program(), option("-T"));
                [format!("{server} {address}"), server]
            }
        }
    }

    /// Errors in the output of client and server.
    fn check(self, [asked, served]: [&Ended; 2]) -> Result<()> {
        let count = |ended: &Ended, text: &str| ended.output.lines().filter(|line| line.starts_with(text)).count();
        match self {
            // Its exit code says nothing: it takes the end of the connection for an error.
            Self::Rping | Self::Lost(_) => {
                let rounds = [count(asked, "ping data: rdma-ping-"), count(served, "server ping data: rdma-ping-")];
                ensure!(rounds == [ROUNDS; 2], "{rounds:?} rounds of {ROUNDS}");
                ensure!(!asked.output.contains("mismatch"), "wrong data");
            }
            Self::Ucmatose(_) | Self::FifthLost | Self::Udaddy | Self::Mckey | Self::MckeySendOnly => {
                ensure!([asked, served].iter().all(|ended| ended.output.contains("return status 0")), "status not 0");
            }
            _ => {}
        }
        let may_fail = matches!(self, Self::Rping | Self::Lost(_));
        ensure!(may_fail || (asked.code, served.code) == (0, 0), "exit codes {} and {}", asked.code, served.code);
        Ok(())
    }
}

/// Runs a test.
pub(crate) fn run(bench: &mut Bench, scenario: &Scenario, test: CmTest, port: u16) -> Result<Told> {
    // Queue pair numbers begin at the same place after each boot.
    if test == CmTest::PowerFails {
        bench.boot()?;
    }
    bench.forget_kernel_log()?;
    let told = match test {
        CmTest::Lost(nth) => lost(bench, scenario, test, port, nth),
        CmTest::FifthLost => fifth_lost(bench, scenario, test, port),
        CmTest::NoListener => refused(bench, scenario, test, port),
        CmTest::ServerKilled => killed(bench, scenario, test, port, scenario.client.other()),
        CmTest::ClientKilled => killed(bench, scenario, test, port, scenario.client),
        CmTest::KilledBeforeRtu => killed_before_rtu(bench, scenario, test, port),
        CmTest::DaemonKilled => daemon_killed(bench, scenario, test, port),
        CmTest::PowerFails => stale::power_fails(bench, scenario, port),
        _ => pair(bench, scenario, test, port),
    };
    let silence = bench.kernel_is_silent();
    let told = told?;
    silence.map(|()| told)
}

fn pair(bench: &Bench, scenario: &Scenario, test: CmTest, port: u16) -> Result<Told> {
    let [client, server] = both(bench, scenario, test, port, || Ok(()))?;
    if let Err(why) = test.check([&client, &server]) {
        return Err(why.context(outputs(&client, &server)));
    }
    Ok(Told { client: client.output, server: server.output, ..Told::default() })
}

/// The datagram, or the one that it answers, is sent again.
fn lost(bench: &Bench, scenario: &Scenario, test: CmTest, port: u16, nth: u8) -> Result<Told> {
    bench.drop_datagram(nth)?;
    let told = pair(bench, scenario, test, port)?;
    let [dropped, ..] = bench.passed()?.harmed;
    ensure!(dropped == 1, "{dropped} datagrams were dropped");
    Ok(told)
}

/// Each that is lost, or the one that it answers, is sent again.
fn fifth_lost(bench: &Bench, scenario: &Scenario, test: CmTest, port: u16) -> Result<Told> {
    bench.drop_datagrams("20%")?;
    let told = pair(bench, scenario, test, port)?;
    let [dropped, ..] = bench.passed()?.harmed;
    ensure!(dropped > 0, "no datagram was dropped");
    Ok(told)
}

/// Runs a server, its client, and meanwhile something else.
fn both(
    bench: &Bench,
    scenario: &Scenario,
    test: CmTest,
    port: u16,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<[Ended; 2]> {
    let (client, server) = (scenario.client, scenario.client.other());
    let [ask, serve] = test.commands(bench, scenario, port);
    // The guest's rping, told of the end, sometimes waits for a completion that never comes.
    let kills = matches!(test, CmTest::ServerKilled | CmTest::ClientKilled | CmTest::DaemonKilled);
    let limit = if kills { SOON } else { LIMIT };
    let run = |side: Side, command: &str| {
        let noted = format!("echo $$ >{}; {}", bench.process_file(side), bench.of_verbs(side, command));
        bench.run(side, &noted, limit)
    };
    thread::scope(|scope| {
        let serving = scope.spawn(|| run(server, &serve));
        let listens = await_listener(bench, server, test);
        let asking = scope.spawn(|| run(client, &ask));
        let done = meanwhile();
        let (asked, served) = (asking.join().expect("no panic"), serving.join().expect("no panic"));
        match (asked, served) {
            (Ok(asked), Ok(served)) => {
                let context = outputs(&asked, &served);
                listens.and(done).map(|()| [asked, served]).map_err(|error| error.context(context))
            }
            (Err(error), Ok(served)) => Err(error.context(format!("the server, {}: {}", served.code, served.output))),
            (Ok(asked), Err(error)) => Err(error.context(format!("the client, {}: {}", asked.code, asked.output))),
            (Err(asked), Err(served)) => Err(asked.context(format!("the server: {served:#}"))),
        }
    })
}

fn outputs(client: &Ended, server: &Ended) -> String {
    let mut text = String::new();
    for (role, ended) in [("client", client), ("server", server)] {
        let _ = writeln!(text, "{role}, exit code {}: {}", ended.code, ended.output.trim_end());
    }
    text
}

/// Waits until a program listens. roced does not show its listeners, so a program with an
/// identifier has half a second for its next two calls. A receiver of a group has joined it.
fn await_listener(bench: &Bench, side: Side, test: CmTest) -> Result<()> {
    let listens = match side {
        Side::Rxe if !test.is_answered() => {
            &format!("until grep -q {GROUP_MAC} /proc/net/dev_mcast; do sleep 0.05; done; sleep 0.5")
        }
        Side::Roced if !test.is_answered() => {
            "until rocectl counters | grep -q cm_memberships; do sleep 0.05; done; sleep 0.5"
        }
        Side::Rxe => "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done",
        Side::Roced => "until rocectl counters | grep -q cm_identifiers; do sleep 0.05; done; sleep 0.5",
    };
    bench.run(side, listens, SOON)?.success(&format!("no program of {side} listens")).map(drop)
}

/// IBTA v1 12.6.7.2: reason 8, invalid service ID.
fn refused(bench: &Bench, scenario: &Scenario, test: CmTest, port: u16) -> Result<Told> {
    let [ask, _] = test.commands(bench, scenario, port);
    let asked = bench.run(scenario.client, &bench.of_verbs(scenario.client, &ask), SOON)?;
    ensure!(
        asked.output.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "not refused, exit code {}: {}",
        asked.code,
        asked.output
    );
    Ok(Told { client: asked.output, ..Told::default() })
}

/// The program of a side is killed under load: the other one is told.
fn killed(bench: &Bench, scenario: &Scenario, test: CmTest, port: u16, victim: Side) -> Result<Told> {
    let [client, server] = both(bench, scenario, test, port, || {
        bench.within(SOON, |bench| {
            ensure!(bench.passed()?.frames > LOAD, "there is no load");
            Ok(())
        })?;
        let kill = format!("kill -9 $(cat {})", bench.process_file(victim));
        bench.run(victim, &kill, SOON)?.success("kill").map(drop)
    })?;
    let survivor = if victim == scenario.client { &server } else { &client };
    // The memory of a dying program may go before its connection: a request under way is refused.
    let is_told = ["DISCONNECT EVENT", "cq completion failed status 10"].iter().any(|it| survivor.output.contains(it));
    ensure!(is_told, "not told of the end\n{}", outputs(&client, &server));
    Ok(Told { client: client.output, server: server.output, ..Told::default() })
}

/// The server has accepted, and is told that its client is gone.
fn killed_before_rtu(bench: &Bench, scenario: &Scenario, test: CmTest, port: u16) -> Result<Told> {
    let [client, server] = both(bench, scenario, test, port, || Ok(()))?;
    let is_told = client.output.contains("accepted") && server.output.contains("RDMA_CM_EVENT_REJECTED");
    ensure!(is_told, "not told of the end\n{}", outputs(&client, &server));
    Ok(Told { client: client.output, server: server.output, ..Told::default() })
}

/// roced's program is told that the device is gone. Linux's is not: no program is left to say so,
/// and for rxe a retry count of 7 has no end; it is killed. The daemon that is started in its place
/// serves the same port, beside an idle connection that Linux still has.
fn daemon_killed(bench: &Bench, scenario: &Scenario, test: CmTest, port: u16) -> Result<Told> {
    let mut idle = None;
    let [client, server] = both(bench, scenario, test, port, || {
        bench.within(SOON, |bench| {
            ensure!(bench.passed()?.frames > LOAD, "there is no load");
            Ok(())
        })?;
        idle = Some(IdleConnection::new(bench, scenario, port + IDLE_PORT)?);
        bench.replace_daemon()?;
        let kill = format!("kill -9 $(cat {})", bench.process_file(Side::Rxe));
        bench.run(Side::Rxe, &kill, SOON)?.success("kill").map(drop)
    })?;
    let ours = if scenario.client == Side::Roced { &client } else { &server };
    ensure!(ours.output.contains("device removal"), "not told of the end\n{}", outputs(&client, &server));
    let again = pair(bench, scenario, CmTest::Rping, port)?;
    let idle = idle.expect("it is made before the daemon is killed").end_of_forgotten(bench)?;
    Ok(Told {
        client: client.output + &again.client + &idle.client,
        server: server.output + &again.server + &idle.server,
        ..again
    })
}
