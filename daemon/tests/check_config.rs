//! `roced check-config` and `roced run` with files that are right, wrong and not there, as an
//! operator meets them.

use std::{
    fs::{self, File},
    io,
    process::{Command, Output, Stdio},
};

const DOCUMENTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/roced.toml");

const EIGHT_MISTAKES: &str = r#"[log]
level = "loud"
colour = true
[limits.client]
qps = 0
[[worker]]
core = 4095
[[device]]
name = "roce 0"
rx_ring_entries = 1000
queues = [0, { queue = 1, worker = 1 }]
"#;

/// Runs roced; returns its exit code and its standard error.
fn roced(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        Command::new(env!("CARGO_BIN_EXE_roced")).args(arguments).output().expect("roced was built");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn the_documented_config_is_good() {
    assert_eq!(roced(&["check-config", DOCUMENTED]), (Some(0), String::new()));
}

#[test]
fn an_output_that_takes_nothing_is_an_error_unless_its_reader_has_ended() {
    let check = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roced"));
        let command = command.args(["check-config", DOCUMENTED]).stdout(stdout).stderr(Stdio::piped());
        let Output { status, stderr, .. } =
            command.spawn().and_then(|child| child.wait_with_output()).expect("it runs");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    let full = File::options().write(true).open("/dev/full").expect("Linux has this device");
    let (code, text) = check(full.into());
    assert_eq!((code, &*text), (Some(1), "roced: the standard output: No space left on device (os error 28)\n"));
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(check(writer.into()), (Some(0), String::new()));
}

#[test]
fn every_mistake_is_told_with_its_line_and_keeps_the_daemon_from_starting() {
    let file = tempfile::NamedTempFile::new().expect("a scratch file");
    fs::write(file.path(), EIGHT_MISTAKES).expect("the scratch file can be written");
    let path = file.path().to_str().expect("a scratch path is UTF-8");
    let expected = [
        (2, "log.level: "),
        (3, "log.colour: "),
        (5, "limits.client.qps: "),
        (7, "worker[0].core: "),
        (8, "device[0].interface: "),
        (9, "device[0].name: "),
        (10, "device[0].rx_ring_entries: "),
        (11, "device[0].queues[1].worker: "),
    ];
    for arguments in [["check-config", path].as_slice(), &["run", "--config", path]] {
        let (code, text) = roced(arguments);
        assert_eq!(code, Some(78), "{text}");
        assert_eq!(text.lines().count(), 1 + expected.len(), "{text}");
        for (line, (number, key)) in text.lines().skip(1).zip(expected) {
            assert!(line.starts_with(&format!("  {path}:{number}:")) && line.contains(key), "{line}");
        }
    }
}

/// The unit starts the daemon again after other exit codes.
#[test]
fn a_wrong_config_is_told_by_the_exit_code_where_messages_cannot_be_written() {
    let unwritable: [fn() -> Stdio; 2] = [
        || File::options().write(true).open("/dev/full").expect("Linux has this device").into(),
        || io::pipe().expect("a pipe").1.into(),
    ];
    for stderr in unwritable {
        for arguments in [["check-config", "/nowhere"].as_slice(), &["run", "--config", "/nowhere"]] {
            let status = Command::new(env!("CARGO_BIN_EXE_roced")).args(arguments).stderr(stderr()).status();
            assert_eq!(status.expect("it runs").code(), Some(78), "{arguments:?}");
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    for arguments in [["check-config", "/nowhere/roced.toml"].as_slice(), &["run", "--config", "/nowhere/roced.toml"]] {
        let (code, text) = roced(arguments);
        assert_eq!(code, Some(78));
        assert!(text.contains("/nowhere/roced.toml: No such file"), "{text}");
    }
}

#[test]
fn the_unit_tries_again_without_end_but_not_after_a_wrong_config() {
    let unit = include_str!("../../config/roced.service");
    let has = |line: &str| unit.lines().any(|there| there == line);
    let (code, _) = roced(&["run", "--config", "/nowhere/roced.toml"]);
    assert!(has(&format!("RestartPreventExitStatus={}", code.expect("it exits"))), "{code:?}");
    assert!(has("Restart=on-failure") && has("StartLimitIntervalSec=0"));
}

/// A container gets the folder of the clients' socket.
#[test]
fn clients_and_operators_have_folders_of_their_own_in_the_unit() {
    let unit = include_str!("../../config/roced.service");
    let folders = unit.lines().find_map(|line| line.strip_prefix("RuntimeDirectory=")).expect("the unit has folders");
    let parents: Vec<_> = [roced_abi::DEFAULT_SOCKET, roced_report::DEFAULT_ADMIN_SOCKET]
        .iter()
        .map(|socket| socket.strip_prefix("/run/").and_then(|path| path.split_once('/')).expect("below /run").0)
        .collect();
    assert_ne!(parents[0], parents[1]);
    assert_eq!(folders.split(' ').collect::<Vec<_>>(), parents);
}

/// A container keeps the folder that it has mounted. systemd would delete it with the daemon, and
/// make another one for the next.
#[test]
fn folders_of_the_sockets_survive_a_restart_of_the_unit() {
    let unit = include_str!("../../config/roced.service");
    assert!(unit.lines().any(|line| line == "RuntimeDirectoryPreserve=yes"));
}
