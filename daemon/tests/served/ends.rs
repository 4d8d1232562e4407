//! Threads of the daemon that tests are served by. Where one panics its process ends at once, as
//! the daemon does: who waits for it, or for a thread of the test's own that goes on until it is
//! told to stop, would wait in vain.

use std::{
    backtrace::Backtrace,
    io::{Write, stderr},
    panic::{set_hook, take_hook},
    process::exit,
    sync::Once,
    thread::{Builder, JoinHandle, current},
};

/// By this name such threads are known.
const NAME: &str = "served";

/// What cargo's tests exit with when they have failed.
const FAILED: i32 = 101;

/// A thread whose panic ends the process at once, and says why.
pub(crate) fn spawn<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if current().name() != Some(NAME) {
                return usual(info);
            }
            // By no macro: what those print the harness keeps until the test has ended.
            let _ = writeln!(stderr(), "\nwhat serves this test has ended: {info}\n{}", Backtrace::capture());
            exit(FAILED);
        }));
    });
    Builder::new().name(NAME.into()).spawn(act).expect("a thread")
}
