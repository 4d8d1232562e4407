//! Threads that serve a test may fail as well: the test then fails at once, with a message.

mod served;

use std::{
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use served::{Served, alone};

#[test]
fn a_panic_of_the_control_thread_fails_the_test_at_once() {
    let Some(mut alone) = alone("a_panic_of_the_control_thread_fails_the_test_at_once") else {
        return panic_beside_a_running_client();
    };
    let mut test = alone.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("this test runs");
    let begin = Instant::now();
    while test.try_wait().expect("it is ours").is_none() {
        if begin.elapsed() > Duration::from_secs(20) {
            test.kill().expect("it is ours");
        }
        thread::sleep(Duration::from_millis(2));
    }
    let output = test.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(101), "{said}");
    assert!(said.contains("the reason") && said.contains("served_ends.rs"), "{said}");
}

/// Clients hear that their daemon is gone; a thread that goes on until it is told to stop does not.
fn panic_beside_a_running_client() {
    let (served, stop) = (Served::start(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
            }
        });
        served.on_control_thread(|_, _| panic!("the reason"));
        stop.store(true, Ordering::Relaxed);
    });
}
