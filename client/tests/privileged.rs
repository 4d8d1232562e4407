//! Environment variables in privileged programs: their caller must not choose the daemon that maps
//! their memory.
//!
//! The test runs copies of itself: a plain one, one that is setuid, and one with file capabilities.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::Command,
};

use roced_abi::{DEFAULT_SOCKET, SOCKET_VARIABLE};
use roced_client::Device;

/// Part of the copies: says which socket the library connects to.
#[test]
#[ignore = "a part of the other test, for copies of this program"]
fn name_the_socket() {
    println!("{:?}", Device::list().map(drop).expect_err("there is no daemon"));
}

/// What a copy prints whose environment names `socket`.
fn output_of(copy: &Path, socket: &Path) -> String {
    let mut command = Command::new(copy);
    command.args(["--exact", "name_the_socket", "--ignored", "--nocapture"]).env(SOCKET_VARIABLE, socket);
    let output = command.output().expect("the copy runs");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn a_privileged_program_takes_no_socket_from_its_caller() {
    let folder = tempfile::tempdir_in(env::current_exe().expect("this program").parent().expect("its folder"));
    let folder = folder.expect("a folder beside this program");
    let socket = folder.path().join("of-the-caller.sock");
    let copy = |name: &str| {
        let copy = folder.path().join(name);
        fs::copy(env::current_exe().expect("this program"), &copy).expect("a copy");
        copy
    };
    let plain = output_of(&copy("plain"), &socket);
    assert!(plain.contains("of-the-caller.sock"), "{plain}");

    if !is_root() {
        println!("skipped in part: only root makes privileged programs for others");
        return;
    }
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open).expect("ours");
    let setuid = copy("setuid");
    chown(&setuid, Some(65_534), None).expect("root may");
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).expect("root may");
    let output = output_of(&setuid, &socket);
    assert!(output.contains(DEFAULT_SOCKET) && !output.contains("of-the-caller"), "{output}");

    // Root gets no privileges from a file that it does not have already, and no AT_SECURE: another
    // user runs this one.
    let capable = copy("capable");
    let given = Command::new("setcap").arg("cap_net_bind_service+ep").arg(&capable).status();
    if !given.is_ok_and(|status| status.success()) {
        println!("skipped in part: setcap is missing (scripts/setup --test), or the file system has no capabilities");
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&capable);
    command.args(["--exact", "name_the_socket", "--ignored", "--nocapture"]).env(SOCKET_VARIABLE, &socket);
    let output = command.output().expect("util-linux is installed");
    let output = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.contains(DEFAULT_SOCKET) && !output.contains("of-the-caller"), "{output}");
}
