//! The unit file: systemd takes it, and it gives the daemon no more than it needs.

use std::{
    env, fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use roced::systemd::ServiceManager;

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/roced.service");
const SYSUSERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/roced.sysusers");
const INSTALLED: &str = "/usr/bin/roced";

/// Runs a tool of systemd; `None`, with a printed reason, where there is none.
fn run(program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        }
        Err(error) => {
            println!("skipped: {program} does not run here: {error}");
            None
        }
    }
}

/// The unit as it will be installed, but with the binary of this build, since systemd looks for it.
fn with_our_binary(folder: &Path) -> String {
    let unit = fs::read_to_string(UNIT).expect("the unit file is there");
    assert_eq!(unit.matches(INSTALLED).count(), 2, "ExecStart, and the check of ExecReload");
    let path = folder.join("roced.service");
    fs::write(&path, unit.replace(INSTALLED, env!("CARGO_BIN_EXE_roced"))).expect("a scratch file can be written");
    path.into_os_string().into_string().expect("a scratch path is UTF-8")
}

#[test]
fn systemd_takes_the_unit_without_complaint() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    // The manual pages are made for the packages, and are not on this machine.
    let arguments = ["verify", "--man=no", &with_our_binary(folder.path())];
    let Some((good, text)) = run("systemd-analyze", &arguments) else { return };
    assert!(good && text.is_empty(), "{text}");
}

#[test]
fn the_unit_exposes_little() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let unit = with_our_binary(folder.path());
    // Of 10.0. Network, netlink and BPF, the purpose of roced, cost 2 already.
    let arguments = ["security", "--offline=true", "--threshold=26", "--no-pager", &unit];
    let Some((good, text)) = run("systemd-analyze", &arguments) else { return };
    assert!(good, "{text}");
}

#[test]
fn the_user_of_the_unit_is_the_one_that_sysusers_makes() {
    let unit = fs::read_to_string(UNIT).expect("the unit file is there");
    let users = fs::read_to_string(SYSUSERS).expect("the sysusers file is there");
    assert!(unit.contains("\nUser=roced\n") && users.contains("\nu roced "));
    let Some((good, text)) = run("systemd-sysusers", &["--dry-run", SYSUSERS]) else { return };
    assert!(good && !text.contains("ignoring"), "{text}");
}

/// This test runs itself once more as a child with the environment that systemd gives to a service.
#[test]
fn systemd_hears_ready_alive_and_stopping() {
    const TEST: &str = "systemd_hears_ready_alive_and_stopping";
    if env::var_os("NOTIFY_SOCKET").is_some() {
        let start = Instant::now();
        let mut manager = ServiceManager::from_environment();
        manager.ready(start, "1 device");
        assert_eq!(manager.deadline(), Some(start + Duration::from_secs(5)));
        manager.on_deadline(start + Duration::from_secs(5));
        manager.status("2 clients");
        manager.stopping();
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a scratch socket");
    let child = Command::new(env::current_exe().expect("this test is a program"))
        .args(["--exact", TEST])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "10000000")
        .env_remove("WATCHDOG_PID")
        .output()
        .expect("it runs once more");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    socket.set_nonblocking(true).expect("it is a socket");
    let mut heard = Vec::new();
    let mut buffer = [0; 256];
    while let Ok(length) = socket.recv(&mut buffer) {
        heard.push(String::from_utf8_lossy(&buffer[..length]).trim_end().to_owned());
    }
    assert_eq!(heard, ["READY=1\nSTATUS=1 device", "WATCHDOG=1", "STATUS=2 clients", "STOPPING=1"]);
}
