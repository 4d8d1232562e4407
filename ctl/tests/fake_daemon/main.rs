//! `rocectl` as an operator runs it, against an admin socket with answers of the test.

mod fabric;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use roced_report::{
    AccountReport, AccountsReport, CountersReport, DcbFindingReport, DcbReport, DeviceReport, GidReport, MemoryReport,
    Problem, QpReport, QpsReport, QueueReport, SandboxReport, SandboxedThreadReport, SessionReport, StatusReport,
    WorkerReport,
};
use tempfile::TempDir;

/// An admin socket that answers one connection after the other, and reports the questions.
struct FakeDaemon {
    folder: TempDir,
    asked: JoinHandle<String>,
}

impl FakeDaemon {
    fn answering(answer: String) -> Self {
        Self::answering_each(vec![answer])
    }

    fn answering_each(answers: Vec<String>) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let listener = UnixListener::bind(folder.path().join("admin.sock")).expect("a socket in a folder of our own");
        let asked = thread::spawn(move || {
            let mut lines = String::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("rocectl connects");
                BufReader::new(&stream).read_line(&mut lines).expect("rocectl asks");
                stream.write_all(answer.as_bytes()).expect("rocectl listens");
            }
            lines
        });
        Self { folder, asked }
    }

    /// Runs `rocectl` with `args` against this daemon; returns the question and the output of
    /// rocectl.
    fn run(self, args: &[&str]) -> (String, Output) {
        let output = rocectl(&self.folder.path().join("admin.sock"), args);
        (self.asked.join().expect("the fake daemon does not fail"), output)
    }
}

fn rocectl(socket: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rocectl")).args(args).arg("--socket").arg(socket).output().expect("rocectl starts")
}

fn line<R: serde::Serialize>(report: &R) -> String {
    serde_json::to_string(report).expect("a report is JSON") + "\n"
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("rocectl prints UTF-8")
}

fn status() -> StatusReport {
    StatusReport {
        version: "0.1.0".into(),
        pid: 4242,
        uptime_s: 3725.5,
        sessions: vec![SessionReport {
            session: 3,
            pid: 777,
            program: "ib_write_bw".into(),
            uid: 1000,
            device: "roce0".into(),
            qps: 2,
            mrs: 1,
            memory_bytes: 64 << 20,
            memory: MemoryReport {
                allocated_bytes: 48 << 20,
                migrated_bytes: 12 << 20,
                file_backed_bytes: 0,
                proxied_bytes: 1 << 20,
            },
        }],
        devices: vec![DeviceReport {
            name: "roce0".into(),
            interface: "eth1".into(),
            state: "serving".into(),
            problem: String::new(),
            xdp_mode: "native".into(),
            napi: "driver".into(),
            ecn: "on".into(),
            congestion_control: "window".into(),
            classes: "off".into(),
            max_rate_mbit: 8000,
            pauses: "off".into(),
            link_up: true,
            link_mtu_bytes: 4200,
            path_mtu_bytes: 4096,
            mac: "02:00:00:00:00:01".into(),
            gids: vec![
                GidReport { index: 0, address: "10.10.0.1".into(), vlan: None, roce: 1 },
                GidReport { index: 1, address: "fd00:10::1".into(), vlan: Some(7), roce: 2 },
            ],
            queues: vec![QueueReport { queue: 0, worker: 0, mode: "copy".into(), reason: "configured".into() }],
            dcb: DcbReport {
                mode: "check".into(),
                state: "differs".into(),
                problem: String::new(),
                lossless_priorities: vec![4],
                dscp_prio: BTreeMap::from([(26, vec![3]), (48, vec![0, 6])]),
                findings: vec![DcbFindingReport {
                    problem: "PFC is off for priority 3".into(),
                    command: "dcb pfc set dev eth1 prio-pfc 3:on".into(),
                }],
            },
        }],
        workers: vec![WorkerReport { worker: 0, core: Some(1), idle: "sleep".into(), polls: 1_000_000, sleeps: 12 }],
        sandbox: SandboxReport {
            in_force: true,
            landlock: "version 7".into(),
            threads: vec![SandboxedThreadReport {
                thread: "control".into(),
                system_calls: vec!["futex".into(), "read".into()],
                capabilities: vec!["CAP_NET_ADMIN".into()],
                files: vec!["/proc (read)".into()],
            }],
        },
    }
}

fn qps() -> QpsReport {
    QpsReport {
        qps: vec![
            QpReport {
                qpn: 0x12ab,
                device: "roce0".into(),
                session: 3,
                pid: 777,
                program: "ib_write_bw".into(),
                service: "RC".into(),
                worker: 0,
                state: "RTS".into(),
                peer: "10.10.0.2".into(),
                dest_qpn: 0x99,
                path_mtu_bytes: 4096,
                path: "nic".into(),
                next_psn: Some(1234),
                oldest_psn: Some(1200),
                expected_psn: Some(77),
                sends: 3,
                receives: 16,
                in_flight_packets: 34,
                round_trip_ns: 12_340,
                request_window_packets: None,
                rate_mbit_per_s: None,
                response_window_packets: None,
                last_error: String::new(),
                counters: [("retransmitted_packets".to_owned(), 5), ("cq_overrun".to_owned(), 0)].into(),
            },
            QpReport {
                qpn: 0x12ac,
                device: "roce0".into(),
                session: 3,
                pid: 777,
                program: "ib_write_bw".into(),
                service: "UD".into(),
                worker: 0,
                state: "INIT".into(),
                peer: String::new(),
                dest_qpn: 0,
                path_mtu_bytes: 0,
                path: String::new(),
                next_psn: None,
                oldest_psn: None,
                expected_psn: None,
                sends: 0,
                receives: 0,
                in_flight_packets: 0,
                round_trip_ns: 0,
                request_window_packets: None,
                rate_mbit_per_s: None,
                response_window_packets: None,
                last_error: "send failed: TransportRetryExceeded".into(),
                counters: [].into(),
            },
        ],
    }
}

#[test]
fn status_names_every_thing_with_its_unit() {
    let (asked, output) = FakeDaemon::answering(line(&status())).run(&["status"]);
    assert_eq!(asked, "\"status\"\n");
    assert!(output.status.success());
    let shown = text(&output.stdout);
    for part in [
        "roced 0.1.0, pid 4242, up 1 h 2 min",
        "roce0   eth1       serving  up      4200 B    4096 B  native  driver  on   window ",
        "copy",
        "fd00:10::1  v2    7",
        "1,000,000",
        "64 MiB",
        "control             2  CAP_NET_ADMIN  /proc (read)",
    ] {
        assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
    }
    assert!(shown.lines().all(|line| line == line.trim_end()), "no spaces at the ends of lines");
}

#[test]
fn status_says_when_the_daemon_is_not_confined() {
    let mut report = status();
    report.sandbox.landlock = "not enabled in this kernel (lsm=)".into();
    let (_, output) = FakeDaemon::answering(line(&report)).run(&["status"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("any: Landlock is not enabled in this kernel") && !shown.contains("/proc"), "{shown}");
    report.sandbox = SandboxReport::default();
    let (_, output) = FakeDaemon::answering(line(&report)).run(&["status"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("Sandbox\n  not in force: the daemon runs with --no-sandbox"), "{shown}");
}

#[test]
fn status_gives_the_problem_of_a_device_that_cannot_be_served() {
    let mut report = status();
    report.devices[0].state = "failed".into();
    report.devices[0].problem = "the MTU is too small".into();
    let (_, output) = FakeDaemon::answering(line(&report)).run(&["status"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("failed") && shown.contains("\nroce0: the MTU is too small\n"), "{shown}");
}

#[test]
fn status_shows_differences_of_a_nic_with_the_command_that_mends_them() {
    let shown = |report: &StatusReport| text(&FakeDaemon::answering(line(report)).run(&["status"]).1.stdout);
    let mut report = status();
    let differs = shown(&report);
    let row = "  roce0   PFC is off for priority 3  dcb pfc set dev eth1 prio-pfc 3:on\n";
    assert!(differs.contains("window              off      off     differs") && differs.contains(row), "{differs}");
    report.devices[0].dcb.problem = "nothing was written".into();
    let unwritten = shown(&report);
    assert!(unwritten.contains("\nroce0: DCB: nothing was written\n"), "{unwritten}");
    report.devices[0].dcb = DcbReport { state: "as configured".into(), ..DcbReport::default() };
    let good = shown(&report);
    assert!(good.contains("as configured") && !good.contains("\nDCB\n"), "{good}");
}

#[test]
fn json_is_the_report_itself() {
    let (_, output) = FakeDaemon::answering(line(&status())).run(&["status", "--json"]);
    let report: StatusReport = serde_json::from_slice(&output.stdout).expect("--json prints JSON");
    assert_eq!(report, status());
}

#[test]
fn qps_show_a_dash_for_missing_values() {
    let (asked, output) = FakeDaemon::answering(line(&qps())).run(&["qps"]);
    assert_eq!(asked, "\"qps\"\n");
    let shown = text(&output.stdout);
    let row = |qpn| shown.lines().find(|line| line.contains(qpn)).unwrap_or_else(|| panic!("no {qpn} in\n{shown}"));
    let cells: Vec<&str> = row("0x0012ab").split_whitespace().collect();
    let (owner, path) = (["0x0012ab", "RC", "roce0", "0", "3", "777", "ib_write_bw"], ["nic", "10.10.0.2", "0x000099"]);
    let progress = ["1234", "1200", "77", "3", "16", "34", "12.3", "us", "-"];
    assert_eq!(cells, [&owner[..], &["RTS", "4096", "B"], &path, &progress].concat());
    let cells: Vec<&str> = row("0x0012ac").split_whitespace().collect();
    assert_eq!(cells[..12], ["0x0012ac", "UD", "roce0", "0", "3", "777", "ib_write_bw", "INIT", "-", "-", "-", "-"]);
    assert!(row("0x0012ac").ends_with("send failed: TransportRetryExceeded"), "{shown}");
    assert!(!shown.contains("retransmitted_packets"), "counters only on request:\n{shown}");
}

#[test]
fn qps_show_congestion_windows_where_there_are_any() {
    let mut report = qps();
    let (_, output) = FakeDaemon::answering(line(&report)).run(&["qps"]);
    assert!(!text(&output.stdout).contains("window"));
    report.qps[0].request_window_packets = Some(31.25);
    report.qps[0].response_window_packets = Some(128.0);
    let (_, output) = FakeDaemon::answering(line(&report)).run(&["qps"]);
    let shown = text(&output.stdout);
    for part in
        ["RTT  window  READ window  last error", "12.3 us    31.2        128.0  -", "-            -  send failed: "]
    {
        assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
    }
    assert!(!shown.contains("rate"), "{shown}");
    report.qps[0].rate_mbit_per_s = Some(624.9);
    let (_, output) = FakeDaemon::answering(line(&report)).run(&["qps"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("READ window        rate  last error"), "{shown}");
    assert!(shown.contains("128.0  625 Mbit/s  -"), "{shown}");
}

#[test]
fn qps_with_counters_show_those_that_counted() {
    let (_, output) = FakeDaemon::answering(line(&qps())).run(&["qps", "--counters"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("retransmitted_packets      5"), "{shown}");
    assert!(!shown.contains("cq_overrun"), "{shown}");
}

#[test]
fn counters_hide_zeros_for_a_person_but_not_in_json() {
    let report = CountersReport {
        counters: [("device/roce0".to_owned(), [("a".to_owned(), 0), ("b".to_owned(), 1)].into())].into(),
    };
    let (asked, output) = FakeDaemon::answering(line(&report)).run(&["counters"]);
    assert_eq!(asked, "\"counters\"\n");
    assert!(text(&output.stdout).contains("1 counter is 0 (--all shows them)"));
    let (_, output) = FakeDaemon::answering(line(&report)).run(&["--json", "counters"]);
    assert_eq!(serde_json::from_slice::<CountersReport>(&output.stdout).expect("JSON"), report);
}

fn counters() -> CountersReport {
    let group = |name: &str, counters: &[(&str, u64)]| {
        (name.to_owned(), counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    };
    let device = [
        ("packet_seq_err", 7),
        ("xdp_redirected", 9),
        ("drop_bad_icrc", 2),
        ("request_packets", 5),
        ("np_cnp_sent", 3),
    ];
    CountersReport {
        counters: [
            group("device/roce0", &device),
            group("device/roce0/worker/0", &device),
            group("device/roce0/queue/3", &[("nic_rx_ring_full", 4)]),
            group("worker/0", &[("forward_dropped", 1)]),
            group("control", &[("cm_listeners", 6), ("cm_req_sent", 11)]),
        ]
        .into(),
    }
}

/// Answers to the questions of `rocectl metrics`.
fn metric_answers() -> Vec<String> {
    let account = AccountReport {
        uid: 1000,
        taken: BTreeMap::new(),
        limits: BTreeMap::new(),
        refused: [("qps".to_owned(), 5)].into(),
        control_calls_per_second: 50_000,
        delayed_calls: 8,
        max_rate_mbit: 2500,
        delayed_turns: 77,
        slow_wakes: 2,
        delayed_neighbors: 3,
    };
    vec![line(&status()), line(&counters()), line(&AccountsReport { accounts: vec![account] })]
}

#[test]
fn metrics_have_each_counter_once_and_the_names_of_node_exporter() {
    let (asked, output) = FakeDaemon::answering_each(metric_answers()).run(&["metrics"]);
    assert_eq!(asked, "\"status\"\n\"counters\"\n\"accounts\"\n");
    let shown = text(&output.stdout);
    for part in [
        "# TYPE roced_up gauge\n",
        "\nroced_up 1.0\n",
        "roced_build_info{version=\"0.1.0\"} 1.0\n",
        "roced_device_state{device=\"roce0\",state=\"serving\"} 1.0\n",
        "roced_device_state{device=\"roce0\",state=\"no_interface\"} 0.0\n",
        "roced_queue_pairs{device=\"roce0\"} 2.0\n",
        "roced_registered_memory_bytes{device=\"roce0\",kind=\"proxied\"} 1048576.0\n",
        "# TYPE roced_packet_seq_err counter\n",
        "\nroced_packet_seq_err_total{device=\"roce0\"} 7.0\n",
        "roced_xdp_frames_total{device=\"roce0\",verdict=\"redirected\"} 9.0\n",
        "roced_dropped_packets_total{device=\"roce0\",reason=\"bad_icrc\"} 2.0\n",
        "roced_queue_nic_rx_ring_full_total{device=\"roce0\",queue=\"3\"} 4.0\n",
        "roced_worker_forward_dropped_total{worker=\"0\"} 1.0\n",
        "# TYPE roced_control_cm_req_sent counter\n",
        "\nroced_control_cm_req_sent_total 11.0\n",
        "# TYPE roced_control_cm_listeners gauge\n",
        "\nroced_control_cm_listeners 6.0\n",
        "roced_account_delayed_calls_total{uid=\"1000\"} 8.0\n",
        "roced_account_delayed_turns_total{uid=\"1000\"} 77.0\n",
        "roced_account_slow_wakes_total{uid=\"1000\"} 2.0\n",
        "roced_account_delayed_neighbors_total{uid=\"1000\"} 3.0\n",
        "roced_account_refused_calls_total{uid=\"1000\",resource=\"qps\"} 5.0\n",
        "roced_infiniband_packet_sequence_errors_total{device=\"roce0\",port=\"1\"} 7.0\n",
        "roced_infiniband_np_cnp_packets_sent_total{device=\"roce0\",port=\"1\"} 3.0\n",
        "roced_infiniband_port_packets_transmitted_total{device=\"roce0\",port=\"1\"} 8.0\n",
        "roced_infiniband_state_id{device=\"roce0\",port=\"1\"} 4.0\n",
    ] {
        assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
    }
    assert!(shown.ends_with("# EOF\n"), "{shown}");
    let samples: Vec<&str> = shown.lines().filter_map(|line| line.split(' ').next()).filter(|it| *it != "#").collect();
    let different: BTreeSet<&str> = samples.iter().copied().collect();
    assert_eq!(samples.len(), different.len(), "a sample stands twice in\n{shown}");
}

#[test]
fn node_prefix_changes_the_names_of_node_exporter_alone() {
    let daemon = FakeDaemon::answering_each(metric_answers());
    let shown = text(&daemon.run(&["metrics", "--node-prefix", "node"]).1.stdout);
    assert!(shown.contains("node_infiniband_packet_sequence_errors_total{"), "{shown}");
    assert!(shown.contains("roced_packet_seq_err_total{") && !shown.contains("roced_infiniband"), "{shown}");
    let wrong = rocectl(Path::new("/nowhere"), &["metrics", "--node-prefix", "a-b"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// A response to a GET of `path`, by HTTP on the socket at `address`.
fn get(address: &Path, path: &str) -> String {
    let mut stream = loop {
        match UnixStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("rocectl reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("rocectl answers");
    response
}

#[test]
fn scrapes_within_a_second_ask_the_daemon_once_and_a_daemon_that_is_gone_is_a_metric() {
    let daemon = FakeDaemon::answering_each(metric_answers());
    let (admin, web) = (daemon.folder.path().join("admin.sock"), daemon.folder.path().join("metrics.sock"));
    let _rocectl = Command::new(env!("CARGO_BIN_EXE_rocectl"))
        .args(["metrics", "--listen", &format!("unix:{}", web.display()), "--socket"])
        .arg(&admin)
        .spawn()
        .map(Ended)
        .expect("rocectl starts");
    let (first, second) = (get(&web, "/metrics"), get(&web, "/metrics?x=1"));
    assert!(first.starts_with("HTTP/1.1 200") && first.contains("application/openmetrics-text"), "{first}");
    assert!(first.contains("\nroced_up 1.0\n") && second.contains("\nroced_up 1.0\n"), "{second}");
    assert_eq!(daemon.asked.join().expect("the fake daemon does not fail"), "\"status\"\n\"counters\"\n\"accounts\"\n");
    assert!(get(&web, "/").starts_with("HTTP/1.1 404"));
    thread::sleep(Duration::from_millis(1100));
    let gone = get(&web, "/metrics");
    assert!(gone.contains("\nroced_up 0.0\n") && !gone.contains("roced_device"), "{gone}");
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `rocectl` fails with exit code 1, nothing on stdout, and a message that has all of `parts`.
fn assert_refused(output: &Output, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty());
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

#[test]
fn no_daemon_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let socket = folder.path().join("admin.sock");
    assert_refused(&rocectl(&socket, &["status"]), &["no admin socket", "admin.sock", "is roced running?"]);
    drop(UnixListener::bind(&socket).expect("a socket in a folder of our own"));
    assert_refused(&rocectl(&socket, &["status"]), &["no daemon listens on", "admin.sock"]);
}

#[test]
fn a_file_that_is_no_socket_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("file");
    File::create(&path).expect("a folder of our own");
    assert_refused(&rocectl(&path, &["status"]), &["/file is no socket", "[admin]"]);
    assert_refused(&rocectl(folder.path(), &["status"]), &["is no socket"]);
}

#[test]
fn metrics_as_json_are_a_wrong_command_line() {
    for args in [["metrics", "--json"], ["--json", "metrics"]] {
        let output = rocectl(Path::new("/nowhere"), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("metrics have one form"), "{args:?}: {}", text(&output.stderr));
    }
    let help = |command| text(&rocectl(Path::new("/nowhere"), &[command, "--help"]).stdout);
    assert!(!help("metrics").contains("--json"), "{}", help("metrics"));
    assert!(help("qps").contains("--json"), "{}", help("qps"));
}

#[test]
fn the_socket_of_programs_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("roced.sock");
    let programs = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).expect("a socket");
    bind(programs.as_raw_fd(), &UnixAddr::new(&path).expect("short")).expect("a folder of our own");
    listen(&programs, Backlog::MAXCONN).expect("bound");
    assert_refused(&rocectl(&path, &["status"]), &["is no admin socket", "roced.sock", "[admin]"]);
}

#[test]
fn a_path_too_long_for_a_socket_is_a_clear_error() {
    let path = PathBuf::from("/".to_owned() + &"x".repeat(200));
    assert_refused(&rocectl(&path, &["qps"]), &["cannot be a socket path"]);
}

/// An answer comes from a daemon of any version, or from another program at the socket.
#[test]
fn answers_have_no_effect_on_the_terminal() {
    for answer in [
        line(&Problem { problem: "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}".into() }),
        "{\"\u{1b}[2J".into(),
        "x".repeat(9999) + "\n",
    ] {
        let (_, output) = FakeDaemon::answering(answer).run(&["status"]);
        let shown = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{shown:?}");
        assert!(!shown.trim_end().contains(|c: char| c.is_control() || c == '\u{202e}'), "{shown:?}");
        assert!(shown.len() < 2100, "{} bytes", shown.len());
    }
}

#[test]
fn outputs_that_take_nothing_are_errors_of_the_command() {
    let full = || File::options().write(true).open("/dev/full").expect("Linux has this device");
    let run = |stdout: Stdio, stderr: Stdio, socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rocectl"));
        let child = command.arg("status").arg("--socket").arg(socket).stdout(stdout).stderr(stderr).spawn();
        child.and_then(Child::wait_with_output).expect("rocectl starts")
    };
    let daemon = FakeDaemon::answering_each(vec![line(&status()); 2]);
    let socket = daemon.folder.path().join("admin.sock");
    let output = run(full().into(), Stdio::piped(), &socket);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "rocectl: the standard output: No space left on device (os error 28)\n");
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let output = run(writer.into(), Stdio::piped(), &socket);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    // Its message is lost, its exit code is not.
    assert_eq!(run(Stdio::null(), full().into(), Path::new("/nowhere")).status.code(), Some(1));
}

#[test]
fn the_daemons_own_problem_is_passed_on() {
    let problem = Problem { problem: "worker 0 does not answer".into() };
    let (_, output) = FakeDaemon::answering(line(&problem)).run(&["qps"]);
    assert_refused(&output, &["roced says: worker 0 does not answer"]);
}

#[test]
fn an_answer_that_is_no_report_is_a_clear_error() {
    let (_, output) = FakeDaemon::answering("{\"cows\": 7}\n".into()).run(&["qps"]);
    assert_refused(&output, &["of one version?"]);
    let (_, output) = FakeDaemon::answering("{\"qps\": [".into()).run(&["qps"]);
    assert_refused(&output, &["ends in the middle"]);
    let (_, output) = FakeDaemon::answering(String::new()).run(&["qps"]);
    assert_refused(&output, &["without an answer"]);
}

#[test]
fn a_daemon_that_hangs_is_given_up() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let socket = folder.path().join("admin.sock");
    let _listener = UnixListener::bind(&socket).expect("a socket in a folder of our own");
    let begun = Instant::now();
    assert_refused(&rocectl(&socket, &["status"]), &["no answer within 5 s"]);
    assert!(begun.elapsed() < Duration::from_secs(8), "gave up after {:?}", begun.elapsed());
}

#[test]
fn the_socket_comes_from_the_environment_too() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let elsewhere = folder.path().join("elsewhere.sock");
    let with = |socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rocectl"));
        command.arg("status").env("ROCED_ADMIN_SOCKET", socket).output().expect("rocectl starts")
    };
    assert_refused(&with(&elsewhere), &["elsewhere.sock"]);
    // An empty one is none. A daemon of this host may answer.
    let output = with(Path::new(""));
    assert_ne!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
