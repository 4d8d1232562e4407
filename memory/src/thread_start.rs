//! The begin of threads that this crate starts: the daemon confines each before it does anything.

use std::{cell::Cell, sync::OnceLock};

/// Threads of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelperThread {
    /// Accesses the proxied memory of a session.
    Copy,
    /// Closes descriptors of a user's clients, unmaps their memory, wakes them.
    User,
}

type Confine = Box<dyn Fn(HelperThread) + Send + Sync>;

static CONFINE: OnceLock<Confine> = OnceLock::new();

thread_local! {
    static IS_HELPER: Cell<bool> = const { Cell::new(false) };
}

/// Registers `confine`: each thread that begins from now on calls it first. The first call
/// counts, for the whole process.
pub fn on_thread_start(confine: impl Fn(HelperThread) + Send + Sync + 'static) {
    // A process has one daemon.
    let _ = CONFINE.set(Box::new(confine));
}

/// The calling thread begins.
pub(crate) fn begin(thread: HelperThread) {
    IS_HELPER.set(true);
    if let Some(confine) = CONFINE.get() {
        confine(thread);
    }
}

/// The calling thread is one of these: it may start no other.
pub(crate) fn is_helper() -> bool {
    IS_HELPER.get()
}
