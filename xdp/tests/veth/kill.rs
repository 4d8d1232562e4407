//! A daemon that is killed leaves no program behind: its interface is the kernel's again at once.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, pause},
};
use roced_xdp::{NicQueue, XdpMode, XdpProgram};

use crate::{
    needs_root,
    veth::{Host, INTERFACE, MODES, Pair, config, start},
};

/// Set for the process that holds the program until it is killed.
const HOLD: &str = "ROCED_TEST_HOLD_XDP";

/// Line that it prints when it holds the queue.
const HELD: &str = "program and queue held";

/// The other process: this test binary again. As a test of its own it does nothing.
#[test]
fn hold_until_killed() {
    let mode = match env::var(HOLD).as_deref() {
        Ok("native") => XdpMode::Native,
        Ok("generic") => XdpMode::Generic,
        _ => return,
    };
    let mut program = XdpProgram::attach(INTERFACE, mode).expect("the program is taken");
    let queue = NicQueue::open(&config()).expect("the queue is free");
    program.bind_socket(0, queue.socket()).expect("a socket on its queue");
    println!("{HELD}");
    loop {
        pause();
    }
}

/// Killed at the latest when the test is over.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_holder(host: &Host, mode: &str) -> Holder {
    let this = env::current_exe().expect("this test's own path");
    let mut command = host.command(this.to_str().expect("a plain path"));
    command
        .args(["--exact", "kill::hold_until_killed", "--nocapture", "--test-threads=1"])
        .env(HOLD, mode)
        .stdout(Stdio::piped());
    let mut holder = Holder(start(&mut command).expect("this binary runs"));
    let said = BufReader::new(holder.0.stdout.as_mut().expect("piped"));
    assert!(said.lines().map_while(Result::ok).any(|line| line.contains(HELD)), "it holds the program");
    holder
}

#[test]
fn no_program_is_left_within_a_second() {
    needs_root!();
    let pair = Pair::new(4200, 1, 1);
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGABRT] {
        for mode @ (asked, _) in MODES {
            let holder = start_holder(&pair.a, if asked == XdpMode::Native { "native" } else { "generic" });
            assert!(pair.a.has_program());
            // ip(8) has become this binary, so the child is the holder itself.
            kill(Pid::from_raw(holder.0.id().cast_signed()), signal).expect("it lives");
            let killed = Instant::now();
            while pair.a.has_program() {
                assert!(
                    killed.elapsed() < Duration::from_secs(1),
                    "{signal} in {asked:?} mode left the program behind"
                );
                thread::sleep(Duration::from_millis(5));
            }
            // And the next one serves at once.
            drop(pair.a.serve(mode, 1));
        }
    }
}
