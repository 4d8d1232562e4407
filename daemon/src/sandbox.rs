//! The daemon's own confinement: bounds of a bug.
//!
//! Each thread enters its sandbox when it starts to serve, in this order: capabilities that it does
//! not need are gone (`capabilities`), files that it does not need cannot be opened (`paths`,
//! Landlock), and a system call outside of its list (`syscalls`) kills the daemon (`filter`,
//! seccomp). Nothing of that can be undone. `docs/sandbox.md` has the lists for operators.
//!
//! ```text
//!   start: all privileges ─► attach thread enters ─► workers enter ─► log, control thread enter
//!                                  │                                    │
//!                                  └► its attempts inherit             └► copy and user threads inherit,
//!                                     its sandbox                         and enter a tighter one
//! ```
//!
//! A thread is confined by itself and by all sandboxes of its parents. The control thread therefore
//! starts no thread that needs more than itself: attaching needs more, so its thread is older than
//! the control thread's sandbox, and starts the threads of attempts.

mod capabilities;
mod filter;
mod paths;
mod syscalls;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use nix::sys::prctl;
use roced_report::{SandboxReport, SandboxedThreadReport};
use thiserror::Error;
use tracing::{error, info, warn};

use self::{filter::ThreadFilter, paths::PathRules};
use crate::log_thread;

/// Memory that a core dump contains (core(5)): private memory without a file, ELF headers, private
/// huge pages. Not shared memory: that is clients' memory and the frames of NIC queues.
const CORE_DUMP_FILTER: &str = "0x31";

/// Kinds of the daemon's threads, by their sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// Attaches to interfaces, and starts threads for that.
    Attach,
    /// Moves packets.
    Worker,
    /// Serves clients, operators, the kernel's network.
    Control,
    /// Accesses the proxied memory of a session.
    Copy,
    /// Closes descriptors of a user's clients, unmaps their memory, sends and takes their messages.
    User,
    /// Writes the log to stderr.
    Log,
}

impl ThreadKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Attach, Self::Worker, Self::Control, Self::Copy, Self::User, Self::Log];

    /// As reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Worker => "worker",
            Self::Control => "control",
            Self::Copy => "copy",
            Self::User => "user",
            Self::Log => "log",
        }
    }
}

/// Whether the daemon confines itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// The default.
    On,
    /// For debugging.
    Off,
}

/// Files of a daemon's config.
#[derive(Clone, Debug)]
pub struct ServedPaths {
    /// The config file: a reload reads it.
    pub config: PathBuf,
    /// The sockets: they are removed at the end.
    pub sockets: Vec<PathBuf>,
}

/// Why a thread cannot be confined.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// Capabilities stay.
    #[error("cannot give up capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// Landlock refuses rules that its own version has.
    #[error("cannot restrict the access to files: {0}")]
    Paths(io::Error),
    /// A list that makes no filter.
    #[error("cannot make a filter of system calls: {0}")]
    Compile(#[from] seccompiler::BackendError),
    /// No seccomp.
    #[error("cannot filter system calls (CONFIG_SECCOMP_FILTER): {0}")]
    Filter(io::Error),
}

/// The sandboxes of all threads.
#[derive(Clone, Debug)]
pub struct Sandbox(Option<Arc<PreparedSandbox>>);

#[derive(Debug)]
struct PreparedSandbox {
    served: ServedPaths,
    /// By [`ThreadKind::ALL`].
    filters: Vec<ThreadFilter>,
    /// Once a thread is confined: folders of sockets are made before.
    rules: OnceLock<PathRules>,
}

impl PreparedSandbox {
    fn landlock(&self) -> &str {
        self.rules.get().map_or("not used", |rules| &rules.landlock)
    }

    fn rules(&self) -> io::Result<&PathRules> {
        if let Some(rules) = self.rules.get() {
            return Ok(rules);
        }
        let made = PathRules::new(&self.served)?;
        Ok(self.rules.get_or_init(|| made))
    }
}

impl Sandbox {
    /// No confinement: `--no-sandbox`, and tests of the daemon's parts.
    pub const fn off() -> Self {
        Self(None)
    }

    /// Prepares the sandboxes for a daemon with these files; none is entered.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn prepare(served: ServedPaths) -> Result<Self, SandboxError> {
        let filters = ThreadKind::ALL.into_iter().map(ThreadFilter::of).collect::<Result<_, _>>()?;
        if let Err(error) = fs::write("/proc/self/coredump_filter", CORE_DUMP_FILTER) {
            warn!(%error, "a core dump of the daemon would contain memory of clients: /proc/self/coredump_filter is not writable");
        }
        Ok(Self(Some(Arc::new(PreparedSandbox { served, filters, rules: OnceLock::new() }))))
    }

    /// Confines the calling thread, for ever.
    ///
    /// # Errors
    /// [`SandboxError`]; the thread is confined in part.
    pub fn enter(&self, kind: ThreadKind) -> Result<(), SandboxError> {
        let Some(prepared) = &self.0 else { return Ok(()) };
        capabilities::keep_only(kind)?;
        // Without it no filter is installed for a user other than root, and none of the daemon's
        // programs gains privileges: it has no programs.
        prctl::set_no_new_privs().map_err(|errno| SandboxError::Filter(errno.into()))?;
        prepared.rules().and_then(|rules| rules.restrict(kind)).map_err(SandboxError::Paths)?;
        prepared.filters[kind as usize].install(kind).map_err(SandboxError::Filter)
    }

    /// Confines the calling thread, or ends the daemon.
    pub fn enter_or_abort(&self, kind: ThreadKind) {
        if let Err(error) = self.enter(kind) {
            error!(thread = kind.name(), %error, "a thread cannot be confined; the daemon ends itself");
            log_thread::flush_and_abort();
        }
    }

    /// True when files are out of reach as well: this kernel has Landlock, and a thread is
    /// confined.
    pub fn restricts_files(&self) -> bool {
        self.0.as_ref().is_some_and(|prepared| prepared.landlock().starts_with("version"))
    }

    /// Logs the state of the confinement.
    pub(crate) fn log(&self) {
        match &self.0 {
            Some(prepared) => info!(landlock = prepared.landlock(), "confined: see `rocectl status`"),
            None => warn!("NOT confined (--no-sandbox): a bug in the daemon has all its privileges"),
        }
    }

    /// The state of the confinement.
    pub fn report(&self) -> SandboxReport {
        let Some(prepared) = &self.0 else {
            return SandboxReport { in_force: false, landlock: "not used".into(), threads: Vec::new() };
        };
        let thread = |kind: ThreadKind| SandboxedThreadReport {
            thread: kind.name().into(),
            system_calls: prepared.filters[kind as usize].calls().map(str::to_owned).collect(),
            capabilities: capabilities::kept_now(kind).map(|capability| capability.to_string()).collect(),
            files: prepared.rules.get().map_or_else(Vec::new, |rules| rules.described(kind).to_vec()),
        };
        SandboxReport {
            in_force: true,
            landlock: prepared.landlock().into(),
            threads: ThreadKind::ALL.into_iter().map(thread).collect(),
        }
    }
}

/// The folder of a file.
fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
