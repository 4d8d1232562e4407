//! Privileges: of the daemon, of operators, of setuid programs.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket};
use std::os::fd::AsRawFd as _;

use crate::{
    actor::{ActArguments, Actor, FIRST_UID},
    acts::Role,
    finding::Finding,
    process::status_field,
    stage::Stage,
};

/// A member of the group that the daemon runs with asks for the objects of all.
pub(super) fn admin_socket(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let gid = fs::metadata(&pair.a.socket)?.gid();
    let asks = |gid| {
        let act = ActArguments { gid, ..ActArguments::new(Role::Admin, &pair.a.admin) };
        Actor::start(&act)?.number(Duration::from_secs(20))
    };
    Ok(vec![
        Finding::at_most("bytes of an answer to a member of the socket's group", asks(gid)?, "", 0.0),
        Finding::at_most("bytes of an answer to a user of no group", asks(FIRST_UID)?, "", 0.0),
    ])
}

/// A setuid program that uses the client library, with the socket of its caller in the environment.
pub(super) fn setuid_environment(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let folder = pair.folder().join("setuid");
    fs::create_dir(&folder)?;
    let program = folder.join("program");
    fs::copy(std::env::current_exe()?, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    let trap = folder.join("trap");
    let listener =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    bind(listener.as_raw_fd(), &UnixAddr::new(&trap)?)?;
    listen(&listener, Backlog::new(8)?)?;
    fs::set_permissions(&trap, fs::Permissions::from_mode(0o777))?;
    use std::os::unix::process::CommandExt as _;
    let mut child = Command::new(&program)
        .args(["act", "hello", "--socket"])
        .arg(&trap)
        .env("ROCED_SOCKET", &trap)
        .uid(FIRST_UID)
        .gid(FIRST_UID)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("the setuid program")?;
    thread::sleep(Duration::from_millis(500));
    let uids = status_field(child.id(), "Uid").unwrap_or_default();
    let caught = accept(listener.as_raw_fd()).is_ok();
    let _ = child.kill();
    let _ = child.wait();
    let is_root = uids.split_whitespace().nth(1) == Some("0");
    ensure!(!caught || is_root, "setuid has no effect in {}: {uids}", folder.display());
    Ok(vec![Finding::at_most("connections of a setuid program to its caller's socket", f64::from(caught), "", 0.0)])
}

/// Privileges of the running daemon, in all of its threads.
pub(super) fn sandbox(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let pid = pair.a.pid()?;
    let mut without_filter = 0;
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        threads += 1;
        without_filter += u32::from(!status.lines().any(|line| line == "Seccomp:\t2"));
    }
    let capabilities = |set: &str| anyhow::Ok(u64::from_str_radix(&status_field(pid, set)?, 16)?.count_ones());
    let new_privileges = status_field(pid, "NoNewPrivs")?;
    Ok(vec![
        Finding::reported("threads", threads.into(), ""),
        Finding::at_most("threads without a filter of system calls", without_filter.into(), "", 0.0),
        Finding::at_least("no_new_privs", new_privileges.parse()?, "", 1.0),
        Finding::at_most("effective capabilities", capabilities("CapEff")?.into(), "", 2.0),
        Finding::at_most("permitted capabilities", capabilities("CapPrm")?.into(), "", 2.0),
    ])
}
