//! Contents of a config file, and the report of each mistake.

use std::{os::unix::fs::symlink, sync::mpsc, thread, time::Instant};

use nix::{sys::stat::Mode, unistd::mkfifo};

use super::{file::FILE_BYTES_MAX, *};

const DOCUMENTED: &str = include_str!("../../../config/roced.toml");

/// The documented file with its `#key = value` lines in force.
fn with_optional_keys() -> String {
    let uncomment = |line: &'static str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => rest,
        _ => line,
    };
    DOCUMENTED.lines().map(uncomment).collect::<Vec<_>>().join("\n")
}

fn problems(text: &str) -> Vec<(usize, String, String)> {
    let problems = Config::parse(text, &[0, 1]).expect_err("this document is wrong");
    problems.into_iter().map(|problem| (problem.line, problem.key, problem.message)).collect()
}

/// The only problem of a document with a correct device, unless `text` is about it.
fn problem(text: &str) -> (usize, String, String) {
    let mut problems = problems(&format!("{text}\n[[device]]\nname = \"roce0\"\ninterface = \"eth0\"\n"));
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

fn device(keys: &str) -> String {
    format!("[[device]]\nname = \"roce0\"\ninterface = \"eth0\"\n{keys}\n")
}

fn parsed(text: &str) -> Config {
    Config::parse(text, &[0, 1]).expect("this document is right")
}

#[test]
fn endpoint_has_room_for_no_more_queue_pairs_than_it_has_numbers() {
    let limits = |qps| DeviceLimits { qps, ..DeviceLimits::default() };
    assert_eq!([16_384, 1 << 18, 1 << 24].map(|qps| limits(qps).qps_per_endpoint()), [16_384, 1 << 18, 1 << 18]);
}

#[test]
fn the_documented_file_is_the_default_config() {
    let default = Config {
        workers: vec![WorkerConfig::default()],
        devices: vec![DeviceConfig::new("roce0", "eth0")],
        ..Config::default()
    };
    assert_eq!(parsed(DOCUMENTED), default);
    assert_eq!(parsed(&device("")), default, "a file that only names a device means the same");
}

/// Both ways: a key that the file lacks, one that the config lacks, a default or range that has
/// changed.
#[test]
fn the_documented_file_describes_exactly_the_keys_that_exist() {
    let text = with_optional_keys();
    let mut section = String::new();
    let mut comment = String::new();
    let mut described = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_matches(['[', ']']).to_owned();
        } else if let Some(words) = line.strip_prefix("# ") {
            comment = format!("{comment} {words}");
            continue;
        } else if let Some((key, value)) = line.split_once(" = ") {
            let earlier = described.insert(format!("{section}.{key}"), (comment.clone(), value.to_owned()));
            assert_eq!(earlier, None, "{section}.{key} stands twice");
        }
        comment.clear();
    }
    for key in Config::keys() {
        let inner = ["device.queues.queue", "device.queues.worker"].contains(&key.path.as_str());
        let Some((comment, value)) = described.remove(&key.path) else {
            assert!(inner, "config/roced.toml lacks {}", key.path);
            continue;
        };
        let end = match &key.default {
            Some(default) => format!(" Default: {default}. Allowed: {}.", key.allowed),
            None => format!(" Allowed: {}.", key.allowed),
        };
        assert!(comment.ends_with(&end), "the comment of {} must end in{end}\nbut is{comment}", key.path);
        assert!(comment.len() > end.len() + 20, "{} lacks its why", key.path);
        let optional = DOCUMENTED.contains(&format!("\n#{}", key.path.rsplit('.').next().expect("a last part")));
        assert!(key.default.is_none_or(|default| optional || default == value), "{} = {value}", key.path);
    }
    assert!(described.is_empty(), "config/roced.toml has keys that do not exist: {described:?}");
    parsed(&text);
}

#[test]
fn eight_mistakes_are_eight_problems_with_their_lines() {
    let text = r#"colour = "blue"
[log]
level = "loud"
[[worker]]
core = 7
[[device]]
name = "roce0"
interface = "eth0"
rx_ring_entries = 1000
queues = [{ queue = 0, worker = 3 }, { queue = 0, worker = 0 }]
[[device]]
name = "roce0"
"#;
    let found: Vec<(usize, String)> = problems(text).into_iter().map(|(line, key, _)| (line, key)).collect();
    let expected = [
        (1, "colour"),
        (3, "log.level"),
        (5, "worker[0].core"),
        (9, "device[0].rx_ring_entries"),
        (10, "device[0].queues[0].worker"),
        (10, "device[0].queues[1]"),
        (11, "device[1].interface"),
        (12, "device[1].name"),
    ];
    assert_eq!(found, expected.map(|(line, key)| (line, key.to_owned())));
}

#[test]
fn a_problem_names_line_key_and_allowed_values() {
    let problems = Config::parse(&device("  chunk_bytes = 3000"), &[0]).expect_err("3000 is no power of two");
    let shown: Vec<String> = problems.iter().map(ConfigProblem::to_string).collect();
    let expected = "4:17: device[0].chunk_bytes: 3000 is not allowed: it must be a power of two, 2048 to 4096 bytes";
    assert_eq!(shown, [expected]);
}

#[test]
fn an_unknown_key_is_refused_at_every_level() {
    assert_eq!(problem("[lgo]\n").1, "lgo");
    assert_eq!(problem("[log]\nlevl = 1").1, "log.levl");
    assert_eq!(problem("[limits.client]\nqp = 1").1, "limits.client.qp");
    assert_eq!(problem("[[worker]]\ncpu = 1").1, "worker[0].cpu");
    let queue = problems(&device("queues = [{ queue = 0, worker = 0, weight = 2 }]"));
    assert_eq!(queue[0].1, "device[0].queues[0].weight");
    let (_, key, message) = problem("[net]\ntimeout = 1");
    assert_eq!(
        (key.as_str(), message.as_str()),
        ("net.timeout", "unknown key; known here: denied_peers, resolve_timeout_ms")
    );
}

#[test]
fn an_old_name_of_a_key_is_refused_by_its_present_one() {
    let problems = problems(&device("held_packets = 5"));
    let (_, key, message) = &problems[0];
    assert_eq!(key, "device[0].held_packets");
    assert_eq!(message, "this key is called out_of_order_packets now");
    for key in ["ids", "channels", "groups"] {
        let (line, path, message) = problem(&format!("[limits.cm]\n{key}_of_user = 9"));
        assert_eq!((line, path), (2, format!("limits.cm.{key}_of_user")));
        assert_eq!(message, format!("this key is called {key}_of_account now"));
    }
    let (_, path, message) = problem("[limits]\nclients_of_user = 9");
    assert_eq!(
        (&*path, &*message),
        ("limits.clients_of_user", "this key is called clients under [limits.account] now")
    );
}

#[test]
fn an_old_name_of_a_key_says_nothing_about_other_sections() {
    for (section, key) in [
        ("log", "held_packets"),
        ("limits.account", "clients_of_user"),
        ("limits.client", "clients_of_user"),
        ("limits", "ids_of_user"),
        ("net", "channels_of_user"),
    ] {
        let (_, path, message) = problem(&format!("[{section}]\n{key} = 9"));
        assert_eq!(path, format!("{section}.{key}"));
        assert!(message.starts_with("unknown key; known here: "), "{path}: {message}");
    }
    let message = &problems(&device("ids_of_user = 9"))[0].2;
    assert!(message.starts_with("unknown key; known here: "), "{message}");
}

/// A config of an unknown origin does not command the terminal of the operator that checks it.
#[test]
fn reports_of_a_file_have_no_control_characters() {
    for hidden in ["\\u001b]0;x\\u0007", "\\u009b2J", "a\\r\\nb", "\\u202e", "\\u0000"] {
        for document in [
            format!("\"{hidden}\" = 1"),
            format!("[\"{hidden}\"]\nx = 1"),
            format!("[[access]]\n\"{hidden}\" = 1"),
            format!("[log]\nlevel = \"{hidden}\""),
            format!("[control]\nsocket = \"{hidden}\""),
            format!("[[access]]\ndevices = [\"{hidden}\"]"),
            format!("[[device]]\nname = \"a\"\ninterface = \"{hidden}\""),
        ] {
            let problems = Config::parse(&document, &[0]).err();
            assert!(problems.is_some() || hidden == "\\u202e" && document.contains("interface"), "{document}");
            for shown in problems.iter().flatten().map(ConfigProblem::to_string) {
                let bad = shown.chars().find(|c| c.is_control() || *c == '\u{202e}');
                assert_eq!(bad, None, "{document}: {shown}");
            }
        }
    }
    // Raw characters that TOML allows in a string, and those that it does not.
    for document in ["[log]\nlevel = '\u{9b}2J'", "[log]\n'\u{9b}2J' = 1", "'\u{1b}[2J' = 1", "\u{1b}[2J"] {
        for shown in Config::parse(document, &[0]).expect_err("it is wrong").iter().map(ConfigProblem::to_string) {
            assert!(!shown.contains(char::is_control), "{shown:?}");
        }
    }
}

#[test]
fn long_keys_and_values_are_reported_in_short() {
    let long = "x".repeat(100_000);
    for document in [
        format!("{long} = 1"),
        format!("[{long}]\ny = 1"),
        format!("[log]\nlevel = \"{long}\""),
        format!("[control]\nsocket = \"{long}\""),
        format!("[[worker]]\ncore = {}", "9".repeat(100_000)),
        format!("[[access]]\ndevices = [\"{long}\"]"),
        format!("[log]\n{long}"),
    ] {
        for shown in Config::parse(&document, &[0]).expect_err("it is wrong").iter().map(ConfigProblem::to_string) {
            assert!(shown.len() < 500, "{} bytes: {}", shown.len(), &shown[..200]);
        }
    }
}

/// A reload reads the file on the control thread, and each problem is a line of the log.
#[test]
fn a_file_with_a_mistake_in_each_line_is_reported_in_short() {
    for line in ["k = 1\n", "k\n", "= 1\n", "[k\n"] {
        let document: String = (0..60_000).map(|index| line.replace('k', &format!("k{index}"))).collect();
        let begin = Instant::now();
        let problems = Config::parse(&document, &[0]).expect_err("it is wrong");
        assert!(begin.elapsed() < Duration::from_secs(5), "{line:?}: {:?}", begin.elapsed());
        let text = ConfigError::Invalid { path: "roced.toml".into(), problems }.to_string();
        assert!(text.lines().count() <= 102 && text.contains("100 mistake(s) or more"), "{line:?}: {text:.300}");
    }
}

#[test]
fn of_many_mistakes_the_first_lines_are_reported() {
    let unknown = |from: usize, to: usize| (from..to).rev().map(|at| format!("k{at} = 1\n")).collect::<String>();
    // Two tables that are read in another order than the file has them.
    let document = format!("[limits]\n{}[log]\n{}", unknown(100, 180), unknown(0, 200));
    let problems = Config::parse(&document, &[0]).expect_err("it is wrong");
    assert_eq!(problems.len(), PROBLEMS_MAX);
    // One is that there is no device.
    let lines: Vec<usize> = problems.iter().filter(|it| it.key != "device").map(|it| it.line).collect();
    assert_eq!(lines, (2..82).chain(83..102).collect::<Vec<_>>());
}

#[test]
fn a_text_without_quotes_and_a_second_table_are_named() {
    let first = |document: &str| {
        let problems = Config::parse(document, &[0]).expect_err("it is wrong");
        problems.iter().find(|problem| problem.key.is_empty()).map(ConfigProblem::to_string).expect("there is one")
    };
    for (document, shown) in [
        (
            "[log]\nlevel = info # or debug\n",
            "2:9: info is no number, true or false; a text has quotes: level = \"info\"",
        ),
        ("[log]\nlevel = warn", "2:9: warn is no number, true or false; a text has quotes: level = \"warn\""),
        (
            "[control]\nsocket = /run/x\n",
            "2:10: /run/x is no number, true or false; a text has quotes: socket = \"/run/x\"",
        ),
        ("[log]\nlevel = # info\ntarget = \"stderr\"\n", "2:9: level has no value"),
        ("[log]\nlevel =", "2:8: level has no value"),
        ("[control]\nmode = 0660\n", "2:8: unexpected leading zero, expected nothing"),
        ("[net]\na = { b = 1, b = 2 }\n", "2:14: duplicate key"),
        ("[log]\n\n[net]\n[log] # again\n", "4:2: [log] is here a second time, the first is in line 1"),
        (
            "[net]\nlevel = 1\n[log]\nlevel = \"info\"\nlevel = \"info\"\n",
            "5:1: level is here a second time, the first is in line 4",
        ),
    ] {
        assert_eq!(first(document), shown);
    }
}

#[test]
fn a_name_of_a_file_has_no_effect_on_a_terminal() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for name in ["\u{1b}[2J", "a\nroced: good"] {
        let path = folder.path().join(name);
        let missing = Config::load(&path).expect_err("it is not there").to_string();
        fs::write(&path, "wrong").expect("the scratch file can be written");
        let wrong = Config::load(&path).expect_err("it is wrong").to_string();
        assert!(!missing.contains(char::is_control), "{missing:?}");
        assert!(!wrong.contains('\u{1b}') && wrong.lines().count() == 2, "{wrong:?}");
    }
}

#[test]
fn the_first_byte_that_is_not_utf_8_is_named_by_its_place() {
    let file = tempfile::NamedTempFile::new().expect("a scratch file");
    for (bytes, place, byte) in [
        (&b"[log]\n# \xc3\xbc \xff\n"[..], "2:5: ", "0xff"),
        (b"\xfe\xff\0[", "1:1: ", "0xfe"),
        (b"a = 1\n\nb = '\xe4\xb8", "3:6: ", "0xe4"),
    ] {
        fs::write(file.path(), bytes).expect("the scratch file can be written");
        let text = Config::load(file.path()).expect_err("it is not UTF-8").to_string();
        let place = format!("{}:{place}", file.path().display());
        assert!(text.contains(&place) && text.contains(byte) && text.contains("UTF-8"), "{text}");
    }
}

#[test]
fn numbers_are_taken_up_to_their_last_allowed_value() {
    assert_eq!(parsed(&device("window_packets = 8192")).devices[0].window_packets, 8192);
    assert_eq!(parsed(&device("window_packets = 0x1")).devices[0].window_packets, 1);
    for wrong in ["0", "8193", "-1", "1.5", "true", "18446744073709551616", "[1]"] {
        let found = problems(&device(&format!("window_packets = {wrong}")));
        assert_eq!((found.len(), found[0].0), (1, 4), "{wrong}: {found:?}");
        assert!(found[0].2.contains("1 to 8192 packets"), "{found:?}");
    }
}

#[test]
fn limits_of_the_connection_manager_have_bounds() {
    let text =
        "[limits.cm]\nconnections = 1048576\nids_of_account = 1\nchannels_of_account = 2\ngroups_of_account = 3\n";
    let wanted =
        CmLimits { connections: 1 << 20, ids_of_account: 1, channels_of_account: Some(2), groups_of_account: 3 };
    assert_eq!(parsed(&format!("{text}{}", device(""))).limits.cm, wanted);
    for (key, wrong, allowed) in [
        ("connections", "0", "1 to 1048576 connections"),
        ("connections", "1048577", "1 to 1048576 connections"),
        ("ids_of_account", "-1", "1 to 1048576 identifiers"),
        ("channels_of_account", "0", "1 to 1048576 channels"),
        ("groups_of_account", "65537", "1 to 65536 groups"),
    ] {
        let (line, found, message) = problem(&format!("[limits.cm]\n{key} = {wrong}"));
        assert_eq!((line, found), (2, format!("limits.cm.{key}")));
        assert!(message.contains(wrong) && message.contains(allowed), "{message}");
    }
    assert_eq!(problem("[limits.cm]\nids = 1").1, "limits.cm.ids");
}

#[test]
fn partition_keys_are_numbers_of_partitions_each_once() {
    let keys = |text: &str| parsed(&device(&format!("pkeys = {text}"))).devices[0].pkeys.clone();
    assert_eq!(keys("[0xffff, 0x8001, 2]"), [Pkey(0xffff), Pkey(0x8001), Pkey(2)]);
    assert_eq!(keys("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]").len(), 16);
    for (wrong, key) in [
        ("[]", "pkeys"),
        ("0xffff", "pkeys"),
        ("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]", "pkeys"),
        ("[0xffff, 0x8000]", "pkeys[1]"),
        ("[0]", "pkeys[0]"),
        ("[0x10000]", "pkeys[0]"),
        ("['0xffff']", "pkeys[0]"),
        ("[-1]", "pkeys[0]"),
        ("[7, 7]", "pkeys[1]"),
    ] {
        let found = problems(&device(&format!("pkeys = {wrong}")));
        assert_eq!((found.len(), &*found[0].1), (1, &*format!("device[0].{key}")), "{wrong}: {found:?}");
    }
}

/// A sender that lets switches mark its packets has to react to marks.
#[test]
fn packets_may_be_marked_only_where_the_config_says_so() {
    let choices = |keys: &str| {
        let device = &parsed(&device(keys)).devices[0];
        (device.ecn, device.cnp, device.congestion_control)
    };
    assert_eq!(choices(""), (EcnChoice::Off, CnpChoice::On, CongestionChoice::Off));
    let reacts = choices("ecn = \"on\"\ncnp = \"off\"\ncongestion_control = \"window\"");
    assert_eq!(reacts, (EcnChoice::On, CnpChoice::Off, CongestionChoice::Window));
    let notified = parsed(&device("min_time_between_cnps_us = 0\ncnp_dscp = 63\ncnp_except = [\"10.9.0.0/16\"]"));
    let DeviceConfig { min_time_between_cnps_us, cnp_dscp, cnp_except, .. } = &notified.devices[0];
    assert_eq!((*min_time_between_cnps_us, *cnp_dscp), (0, 63));
    assert_eq!(*cnp_except, ["10.9.0.0/16".parse().expect("a network")]);
    assert_eq!(
        [parsed(&device("")), parsed(&device("delay_guard_us = 250"))].map(|it| it.devices[0].delay_guard_us),
        [0, 250]
    );
    for (key, wrong) in
        [("min_time_between_cnps_us", "4096"), ("cnp_dscp", "64"), ("cnp_802p_prio", "8"), ("delay_guard_us", "65001")]
    {
        assert_eq!(problems(&device(&format!("{key} = {wrong}")))[0].1, format!("device[0].{key}"));
    }
}

#[test]
fn settings_of_the_nic_are_numbers_in_their_ranges() {
    let read = |keys: &str| parsed(&device(keys)).devices[0].clone();
    let default = read("");
    assert_eq!((default.dcb, default.lossless_priorities.is_empty()), (DcbChoice::Check, true));
    let set = read("dcb = \"apply\"\nlossless_priorities = [4, 0x3]\ndscp_prio = { 0 = 7, 63 = 0, 26 = 3 }");
    assert_eq!((set.dcb, set.lossless_priorities.bits()), (DcbChoice::Apply, 0x18));
    assert_eq!(set.dscp_prio, BTreeMap::from([(0, 7), (26, 3), (63, 0)]));
    assert_eq!(read("dscp_prio.26 = 3").dscp_prio, BTreeMap::from([(26, 3)]));
    for (wrong, key) in [
        ("dcb = \"on\"", "dcb"),
        ("lossless_priorities = 3", "lossless_priorities"),
        ("lossless_priorities = [8]", "lossless_priorities[0]"),
        ("lossless_priorities = [3, 3]", "lossless_priorities[1]"),
        ("lossless_priorities = [3, '4']", "lossless_priorities[1]"),
        ("dscp_prio = [26]", "dscp_prio"),
        ("dscp_prio = { 64 = 3 }", "dscp_prio.64"),
        ("dscp_prio = { 26 = 8 }", "dscp_prio.26"),
        ("dscp_prio = { 26 = '3' }", "dscp_prio.26"),
        ("dscp_prio = { 026 = 3 }", "dscp_prio.026"),
        ("dscp_prio = { '+26' = 3 }", "dscp_prio.+26"),
        ("dscp_prio = { af31 = 3 }", "dscp_prio.af31"),
    ] {
        let found = problems(&device(wrong));
        assert_eq!((found.len(), &*found[0].1), (1, &*format!("device[0].{key}")), "{wrong}: {found:?}");
    }
}

#[test]
fn a_core_runs_one_worker_and_must_exist() {
    let text = format!("[[worker]]\n[[worker]]\ncore = 1\n[[worker]]\ncore = 1\n{}", device(""));
    assert_eq!(
        problems(&text),
        [(5, "worker[2].core".to_owned(), "core 1 already runs worker[1]: give each worker its own".to_owned())]
    );
    assert!(problem("[[worker]]\ncore = 2").2.contains("no core 2; it has 0, 1"));
    assert_eq!(parse_cores("0-2,5,8-9\n"), [0, 1, 2, 5, 8, 9]);
}

#[test]
fn devices_share_neither_name_nor_interface() {
    let text = format!("{}{}", device(""), device(""));
    let keys: Vec<String> = problems(&text).into_iter().map(|(_, key, _)| key).collect();
    assert_eq!(keys, ["device[1].name", "device[1].interface"]);
}

#[test]
fn a_config_without_device_is_refused() {
    for text in ["", "device = []", "[[worker]]"] {
        assert!(problems(text).iter().any(|(_, key, message)| key == "device" && message.contains("at least one")));
    }
    assert!(problems("[device]\nname = \"roce0\"")[0].2.contains("[[device]]"));
}

#[test]
fn queues_are_dealt_out_or_assigned() {
    let worker = |queue, worker| QueueOwner { queue, worker };
    let two_workers = "[[worker]]\n[[worker]]\n";
    let queues = |keys: &str| parsed(&format!("{two_workers}{}", device(keys))).devices.remove(0).queues;
    assert_eq!(queues("").owners(3, 2), [worker(0, 0), worker(1, 1), worker(2, 0)]);
    assert_eq!(queues("queues = [4, 6]").owners(8, 2), [worker(4, 0), worker(6, 1)]);
    assert_eq!(queues("queues = [{ queue = 0, worker = 1 }]").owners(8, 2), [worker(0, 1)]);
    let many_lines = "[[device.queues]]\nqueue = 3\nworker = 1";
    assert_eq!(queues(many_lines).owners(8, 2), [worker(3, 1)]);
    for wrong in ["\"some\"", "[]", "[256]", "[0, 0]", "[\"0\"]", "[{ queue = 1 }]", "[{ queue = 0, worker = 2 }]"] {
        let found = problems(&format!("{two_workers}{}", device(&format!("queues = {wrong}"))));
        assert_eq!((found.len(), found[0].0), (1, 6), "{wrong}: {found:?}");
    }
}

#[test]
fn workers_times_devices_must_fit_the_queue_pair_numbers() {
    let workers = "[[worker]]\n".repeat(64);
    assert_eq!(parsed(&format!("{workers}{}", device(""))).workers.len(), 64);
    let second = "[[device]]\nname = \"roce1\"\ninterface = \"eth1\"\nqueues = [0]\n";
    let found = problems(&format!("{workers}{}{second}", device("")));
    assert_eq!((found.len(), found[0].1.as_str()), (1, "device[1].queues"));
    assert!(problems(&format!("{workers}[[worker]]\n{}", device("queues = [0]")))[0].2.contains("at most 64"));
}

#[test]
fn rings_that_want_more_frames_than_there_are_are_refused() {
    assert_eq!(problems(&device("tx_ring_entries = 4096"))[0].1, "device[0].umem_frames");
}

#[test]
fn sockets_need_their_own_absolute_paths() {
    assert_eq!(problem("[control]\nsocket = \"run/x\"").1, "control.socket");
    assert_eq!(problem(&format!("[control]\nsocket = \"/{}\"", "x".repeat(107))).1, "control.socket");
    let (line, key, _) = problem("[control]\nsocket = \"/run/x\"\n[admin]\nsocket = \"/run/x\"");
    assert_eq!((line, key.as_str()), (4, "admin.socket"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load(Path::new("/nowhere/roced.toml")).expect_err("it does not exist");
    let text = error.to_string();
    assert!(text.starts_with("cannot read the config file /nowhere/roced.toml: No such file"), "{text}");
    assert!(text.contains("one to start from"), "{text}");
    let text = Config::load(Path::new("/")).expect_err("a folder").to_string();
    assert!(!text.contains("one to start from"), "{text}");
}

#[test]
fn rules_of_access_are_read_in_their_order() {
    let text = device("")
        + "[[access]]\nusers = [\"anna\", 1000]\ngroups = [50]\ndevices = [\"roce0\"]\nqps = 7\nweight = 4\n\
                             [[access]]\ndevices = []\n";
    let config = parsed(&text);
    let [first, last] = &config.access[..] else { panic!("two rules: {:?}", config.access) };
    assert_eq!(first.users, [AccountName::Named("anna".into()), AccountName::Numbered(1000)]);
    assert_eq!((&first.groups[..], first.limits.qps), (&[AccountName::Numbered(50)][..], Some(7)));
    assert_eq!((first.devices.as_deref(), first.limits.weight), (Some(&["roce0".to_owned()][..]), 4));
    assert_eq!((last.devices.as_deref(), last.limits.weight), (Some(&[][..]), 1));
    let others = AccountLimits { cqs: 5, qps: Some(3), ..AccountLimits::default() };
    let limits = first.limits.over(&others);
    assert_eq!((limits.qps, limits.cqs), (Some(7), 5));
    assert_eq!(last.limits.over(&others), others);
}

#[test]
fn wrong_rules_of_access_are_named() {
    for (rule, key) in [
        ("users = []", "access[0].users"),
        ("users = \"anna\"", "access[0].users"),
        ("users = [\"a:b\"]", "access[0].users[0]"),
        ("groups = [-1]", "access[0].groups[0]"),
        ("devices = [\"roce7\"]", "access[0].devices[0]"),
        ("weight = 17", "access[0].weight"),
        ("weight = 2\n[[access]]\nusers = [1]", "access[1]."),
    ] {
        assert_eq!(problem(&format!("[[access]]\n{rule}")).1, key, "{rule}");
    }
}

#[test]
fn only_a_regular_file_of_a_sane_size_is_read() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let refusal = |path: &Path| {
        let (path, (done, refusal)) = (path.to_owned(), mpsc::channel());
        let named = path.display().to_string();
        thread::spawn(move || done.send(Config::load(&path).expect_err("no config").to_string()));
        let text = refusal.recv_timeout(Duration::from_secs(20)).expect("it does not wait for a writer");
        assert!(text.contains(&named), "{text}");
        text
    };
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).expect("a FIFO");
    assert!(refusal(&fifo).contains("a FIFO or a device, not a regular file"));
    let link = folder.path().join("link");
    symlink(&fifo, &link).expect("a link");
    assert!(refusal(&link).contains("not a regular file"));
    assert!(refusal(folder.path()).contains("a folder, not a regular file"));
    assert!(refusal(Path::new("/dev/zero")).contains("not a regular file"));
    let large = folder.path().join("large");
    fs::write(&large, "#".repeat(FILE_BYTES_MAX as usize + 1)).expect("a large file");
    assert!(refusal(&large).contains("more than 1 MiB"));
    // As much as is allowed is read and parsed.
    fs::write(&large, "#".repeat(FILE_BYTES_MAX as usize)).expect("a smaller one");
    assert!(matches!(Config::load(&large), Err(ConfigError::Invalid { .. }) | Ok(_)));
}
