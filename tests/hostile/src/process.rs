//! Figures of a process from `/proc`, and the identity of this one.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::Signal,
    },
    unistd::{Gid, Uid, setgroups, setresgid, setresuid},
};

/// Resources that a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Private memory, bytes.
    pub(crate) private_bytes: u64,
    /// Locked memory, bytes.
    pub(crate) locked_bytes: u64,
    /// Shared memory in its page tables, bytes.
    pub(crate) shared_bytes: u64,
    /// Descriptors.
    pub(crate) descriptors: u64,
    /// Mappings of files: of memory that is shared with clients, and of programs.
    pub(crate) mappings: u64,
    /// Mappings of no file: the allocator has some for each thread, and splits them at will.
    pub(crate) anonymous_mappings: u64,
    /// Threads.
    pub(crate) threads: u64,
}

impl Holdings {
    /// Those of process `pid`.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let proc = Path::new("/proc").join(pid.to_string());
        let rollup = fs::read_to_string(proc.join("smaps_rollup")).context("smaps_rollup")?;
        let field = |name: &str| kibibytes(&rollup, name) << 10;
        let count = |folder: &str| Ok::<_, std::io::Error>(fs::read_dir(proc.join(folder))?.count() as u64);
        let maps = fs::read_to_string(proc.join("maps"))?;
        // Address, permissions, offset, device, inode.
        let is_of_file = |line: &&str| line.split_whitespace().nth(4).is_some_and(|inode| inode != "0");
        let mappings = maps.lines().filter(is_of_file).count() as u64;
        Ok(Self {
            private_bytes: field("Private_Clean:") + field("Private_Dirty:"),
            locked_bytes: kibibytes(&fs::read_to_string(proc.join("status"))?, "VmLck:") << 10,
            shared_bytes: kibibytes(&fs::read_to_string(proc.join("status"))?, "RssShmem:") << 10,
            descriptors: count("fd").context("descriptors")?,
            mappings,
            anonymous_mappings: maps.lines().count() as u64 - mappings,
            threads: count("task").context("threads")?,
        })
    }
}

fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Field `name` of `/proc/PID/status`.
pub(crate) fn status_field(pid: u32, name: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {name} in the status"))?.trim().to_owned())
}

/// Processor time of process `pid`.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind_name = stat.rsplit_once(')').context("stat")?.1;
    let ticks: u64 = behind_name.split_whitespace().skip(11).take(2).map(|field| field.parse().unwrap_or(0)).sum();
    // A tick is 10 ms on every architecture of today.
    Ok(Duration::from_millis(ticks * 10))
}

/// Ends this process with its parent, gives it all descriptors that it may have, and makes it one
/// of an unprivileged user.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    if uid != 0 {
        setgroups(&[]).context("setgroups: is this root?")?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
    }
    // Last, since a change of user clears both.
    prctl::set_dumpable(true).context("PR_SET_DUMPABLE")?;
    prctl::set_pdeathsig(Signal::SIGKILL).context("PR_SET_PDEATHSIG")
}
