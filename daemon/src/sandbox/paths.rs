//! Files that each kind of thread can open (Landlock), and no TCP. A kernel without Landlock, or
//! with an older version of it, restricts as much as it can; reports say which.
//!
//! The paths are folders: a rule belongs to the file that a path leads to when it is made, and an
//! editor replaces the config file by another one.
#![expect(unsafe_code, reason = "system calls of Landlock, which neither libc nor nix wraps")]

use std::{
    env,
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::PathBuf,
    ptr,
};

use libc::c_long;

use super::{ServedPaths, ThreadKind, folder};

/// Accesses to files: `LANDLOCK_ACCESS_FS_*` of `linux/landlock.h`.
mod access {
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const REMOVE_FILE: u64 = 1 << 5;
    pub(super) const TRUNCATE: u64 = 1 << 14;
    /// `LANDLOCK_ACCESS_NET_BIND_TCP` and `_CONNECT_TCP`.
    pub(super) const TCP: u64 = 0b11;
}

/// `LANDLOCK_CREATE_RULESET_VERSION`, and `LANDLOCK_RULE_PATH_BENEATH`.
const ASK_VERSION: u32 = 1;
const PATH_BENEATH: u32 = 1;

/// Accesses to files that a version of Landlock knows, by their bits.
const fn known_accesses(version: u32) -> u64 {
    let bits = match version {
        0 | 1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << bits) - 1
}

/// `struct landlock_ruleset_attr`, as far as version 4 has it.
#[repr(C)]
struct RulesetAttributes {
    files: u64,
    /// Since version 4.
    tcp: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttributes {
    allowed: u64,
    parent: i32,
}

/// A folder or file, and the accesses to it that are needed.
struct OpenPath {
    path: PathBuf,
    access: u64,
    word: &'static str,
}

impl OpenPath {
    fn describe(&self) -> String {
        let path = roced_output::escaped(&self.path.display().to_string());
        format!("{path} ({})", self.word)
    }
}

/// Paths that a kind of thread needs; all of them exist on every host, except where noted.
fn open_to(kind: ThreadKind, served: &ServedPaths) -> Vec<OpenPath> {
    let read = access::READ_FILE | access::READ_DIR;
    let write = access::WRITE_FILE | access::TRUNCATE;
    let reads = |path: &str| OpenPath { path: path.into(), access: read, word: "read" };
    // Where /sys/class/net/*/threaded leads to.
    let switches = OpenPath { path: "/sys/devices".into(), access: read | write, word: "read, write" };
    // For the backtrace of a panic.
    let mut all = match env::current_exe() {
        Ok(own) => vec![OpenPath { path: own, access: access::READ_FILE, word: "read" }],
        Err(_) => Vec::new(),
    };
    match kind {
        // Which queues there are; the drivers' NAPI threads, and their switch.
        ThreadKind::Attach => all.extend([reads("/proc"), reads("/sys"), switches]),
        // Whether a thread that copies computes: /proc/self/task/*/stat.
        ThreadKind::Worker => all.push(reads("/proc")),
        // Limits and ports of the kernel, users of clients, interfaces; the switch of NAPI threads.
        ThreadKind::Control => {
            all.extend([reads("/proc"), reads("/sys"), switches]);
            // To be able to turn a client away.
            all.push(OpenPath { path: "/dev/null".into(), access: access::READ_FILE, word: "read" });
            // Its folder, and that of the file which a symbolic link leads to.
            let configs = [Some(served.config.clone()), served.config.canonicalize().ok()];
            let mut folders: Vec<PathBuf> = configs.iter().flatten().map(|config| folder(config).into()).collect();
            folders.dedup();
            all.extend(folders.into_iter().map(|path| OpenPath { path, access: access::READ_FILE, word: "read" }));
            let remove = |socket: &PathBuf| OpenPath {
                path: folder(socket).into(),
                access: access::REMOVE_FILE,
                word: "remove",
            };
            all.extend(served.sockets.iter().map(remove));
        }
        ThreadKind::Copy | ThreadKind::User | ThreadKind::Log => {}
    }
    all
}

/// Files of each kind of thread, as rules of the kernel. They are made once: a thread that starts
/// while the process has as many descriptors as it may have is confined as well.
#[derive(Debug)]
pub(super) struct PathRules {
    /// By [`ThreadKind::ALL`]; without Landlock none.
    rules: Vec<OwnedFd>,
    /// The paths of these rules in words, by [`ThreadKind::ALL`]. A symbolic link may lead
    /// elsewhere by now.
    described: Vec<Vec<String>>,
    /// The kernel's Landlock, in words.
    pub(super) landlock: String,
}

impl PathRules {
    /// The rules of all kinds. Their folders exist.
    pub(super) fn new(served: &ServedPaths) -> io::Result<Self> {
        let opened = ThreadKind::ALL.into_iter().map(|kind| opened(kind, served)).collect::<io::Result<Vec<_>>>()?;
        let described = opened.iter().map(|paths| paths.iter().map(|(open, _)| open.describe()).collect()).collect();
        let version = match version() {
            Ok(version) => version,
            Err(error) => {
                let landlock = match error.raw_os_error() {
                    Some(libc::EOPNOTSUPP) => "not enabled in this kernel (lsm=)",
                    _ => "not in this kernel (CONFIG_SECURITY_LANDLOCK)",
                };
                return Ok(Self { rules: Vec::new(), described, landlock: landlock.into() });
            }
        };
        let rules = opened.iter().map(|paths| rules_of(paths, version)).collect::<Result<_, _>>()?;
        Ok(Self { rules, described, landlock: format!("version {version}") })
    }

    /// Paths of a kind of thread, for a report.
    pub(super) fn described(&self, kind: ThreadKind) -> &[String] {
        &self.described[kind as usize]
    }

    /// Takes the access to all other files from the calling thread, and to TCP, for ever.
    pub(super) fn restrict(&self, kind: ThreadKind) -> io::Result<()> {
        let Some(rules) = self.rules.get(kind as usize) else { return Ok(()) };
        // SAFETY: it takes numbers only.
        result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) }).map(drop)
    }
}

/// The paths of a kind of thread. One that is missing needs no rule.
fn opened(kind: ThreadKind, served: &ServedPaths) -> io::Result<Vec<(OpenPath, File)>> {
    let mut opened = Vec::new();
    for path in open_to(kind, served) {
        match OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path.path) {
            Ok(file) => opened.push((path, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.describe()))),
        }
    }
    Ok(opened)
}

fn rules_of(paths: &[(OpenPath, File)], version: u32) -> io::Result<OwnedFd> {
    let rules = ruleset(version)?;
    for (open, file) in paths {
        allow(&rules, file, open.access & known_accesses(version))?;
    }
    Ok(rules)
}

fn result(returned: c_long) -> io::Result<c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

fn version() -> io::Result<u32> {
    // SAFETY: with this flag there is no structure, and the kernel returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<RulesetAttributes>(), 0_usize, ASK_VERSION)
    };
    result(version).map(|version| version as u32)
}

/// Rules that allow nothing of all that this version knows.
fn ruleset(version: u32) -> io::Result<OwnedFd> {
    let attributes = RulesetAttributes { files: known_accesses(version), tcp: access::TCP };
    // Older kernels refuse a longer structure than theirs.
    let bytes = if version < 4 { size_of::<u64>() } else { size_of::<RulesetAttributes>() };
    // SAFETY: the structure has as many bytes, and the kernel reads it only.
    let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, bytes, 0_u32) };
    // SAFETY: a new descriptor, which no other code has.
    result(made).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Allows accesses to a file, or to all below a folder.
fn allow(rules: &OwnedFd, file: &File, allowed: u64) -> io::Result<()> {
    let rule = PathBeneathAttributes { allowed, parent: file.as_raw_fd() };
    // SAFETY: the structure is that of this kind of rule, and the kernel reads it only.
    let added =
        unsafe { libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), PATH_BENEATH, &raw const rule, 0_u32) };
    result(added).map(drop)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn the_paths_of_a_report_are_those_of_the_rules_and_not_where_a_link_leads_later() {
        let root = tempfile::tempdir().expect("a scratch folder");
        let [at_start, later] = ["at-start", "later"].map(|name| root.path().join(name));
        for folder in [&at_start, &later] {
            fs::create_dir(folder).expect("a folder of our own");
            File::create(folder.join("roced.toml")).expect("a folder of our own");
        }
        let link = root.path().join("link.toml");
        symlink(at_start.join("roced.toml"), &link).expect("a folder of our own");
        let served = ServedPaths { config: link.clone(), sockets: vec![root.path().join("missing/x.sock")] };
        let rules = PathRules::new(&served).expect("rules, or no Landlock");
        fs::remove_file(&link).expect("the link");
        symlink(later.join("roced.toml"), &link).expect("a folder of our own");
        let shown = rules.described(ThreadKind::Control).join("\n");
        assert!(shown.contains("at-start (read)") && !shown.contains("later"), "{shown}");
        assert!(!shown.contains("missing"), "a folder that is not there has no rule: {shown}");
    }
}
