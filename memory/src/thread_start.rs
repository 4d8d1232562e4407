//! The begin of threads that this crate starts: the daemon confines each before it does anything.

use std::sync::OnceLock;

/// Threads of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelperThread {
    /// Accesses the proxied memory of a session.
    Copy,
    /// Closes descriptors of a user's clients, and unmaps their memory.
    User,
}

type Confine = Box<dyn Fn(HelperThread) + Send + Sync>;

static CONFINE: OnceLock<Confine> = OnceLock::new();

/// Has `confine` called at the begin of each thread from now on, in that thread. The first call
/// counts, for the whole process.
pub fn on_thread_start(confine: impl Fn(HelperThread) + Send + Sync + 'static) {
    // A process has one daemon.
    let _ = CONFINE.set(Box::new(confine));
}

/// The calling thread begins.
pub(crate) fn begin(thread: HelperThread) {
    if let Some(confine) = CONFINE.get() {
        confine(thread);
    }
}
