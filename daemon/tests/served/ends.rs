//! Threads of the daemon that serve tests. A panic in one ends its process at once, as in the
//! daemon: a waiting thread, or a thread of the test that runs until it is told to stop, would wait
//! without success.

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

/// Exit code of cargo's tests after a failure.
const FAILED: i32 = 101;

/// A thread that ends the process at once with a message when it panics.
pub(crate) fn spawn<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if current().name() != Some(NAME) {
                return usual(info);
            }
            // Without a macro: the harness keeps the output of macros until the test has ended.
            let _ = writeln!(stderr(), "\nwhat serves this test has ended: {info}\n{}", Backtrace::capture());
            exit(FAILED);
        }));
    });
    Builder::new().name(NAME.into()).spawn(act).expect("a thread")
}
