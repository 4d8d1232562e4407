//! The begin of threads that this crate starts: the daemon confines each before it does anything.
//! Those that cannot be begun are begun later, by the control thread.

use std::{
    cell::Cell,
    os::fd::OwnedFd,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::unistd::write;

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

/// Whether threads of users are needed and could not be begun: one flag for all users.
#[derive(Debug, Default)]
pub(crate) struct MissingThreads {
    are_missing: AtomicBool,
    /// Wakes the thread that begins them.
    bell: OnceLock<OwnedFd>,
}

impl MissingThreads {
    /// Sets the eventfd that is rung when a thread is missing. The first call counts.
    pub(crate) fn ring(&self, bell: OwnedFd) {
        // A daemon has one control thread.
        let _ = self.bell.set(bell);
        if self.are_missing() {
            self.write();
        }
    }

    /// A thread is missing.
    pub(crate) fn note(&self) {
        if !self.are_missing.swap(true, Ordering::Relaxed) {
            self.write();
        }
    }

    pub(crate) fn are_missing(&self) -> bool {
        self.are_missing.load(Ordering::Relaxed)
    }

    /// Each that is missing is noted again. Returns true if some were.
    pub(crate) fn clear(&self) -> bool {
        self.are_missing.swap(false, Ordering::Relaxed)
    }

    fn write(&self) {
        if let Some(bell) = self.bell.get() {
            // A counter that is full (EAGAIN) is as readable as can be.
            let _ = write(bell, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
pub(crate) mod refused {
    //! Threads that the kernel refuses, in tests.

    use std::{env, fs, process::Command};

    use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

    /// Environment of the other process.
    const ALONE: &str = "ROCED_TEST_ALONE";

    /// Whether the test of this name is alone in its process. If not, it has been so in another one.
    pub(crate) fn is_alone(test: &str) -> bool {
        if env::var_os(ALONE).is_some() {
            return true;
        }
        let mut alone = Command::new(env::current_exe().expect("a test"));
        let output = alone.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        false
    }

    /// There is no memory for the stack of a thread of this process until it is dropped.
    pub(crate) struct NoThreads {
        most: rlim_t,
    }

    impl NoThreads {
        pub(crate) fn begin() -> Self {
            let (_, most) = getrlimit(Resource::RLIMIT_AS).expect("a limit");
            let pages = fs::read_to_string("/proc/self/statm").expect("there is /proc");
            let pages: u64 = pages.split(' ').next().expect("its size").parse().expect("a number");
            // Less than the stack of a thread.
            setrlimit(Resource::RLIMIT_AS, pages * 4096 + (1 << 20), most).expect("a lower one");
            Self { most }
        }
    }

    impl Drop for NoThreads {
        fn drop(&mut self) {
            setrlimit(Resource::RLIMIT_AS, self.most, self.most).expect("as it was");
        }
    }
}
