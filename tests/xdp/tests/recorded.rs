//! The program over every frame that two Linux rxe hosts were recorded to send each other. Needs
//! root.

use std::net::IpAddr;

use roced_captures::{CapturedFrame, frames};
use roced_steering::Verdict;
use roced_xdp_tests::{Program, is_root, model};

/// Addresses of the two hosts (README of the captures).
const HOST_A: [&str; 3] = ["10.77.0.1", "fd00:77::1", "fe80::5054:ff:fe77:1"];
const HOST_B: [&str; 3] = ["10.77.0.2", "fd00:77::2", "fe80::5054:ff:fe77:2"];

fn addresses(hosts: &[&str]) -> Vec<IpAddr> {
    hosts.iter().map(|host| host.parse().expect("an address")).collect()
}

/// The counters after all frames went through a program that has `ours` and, if asked, a socket on
/// queue 0.
fn run_all(frames: &[CapturedFrame], ours: &[IpAddr], with_socket: bool) -> [u64; Verdict::ALL.len()] {
    let mut program = Program::load();
    for &address in ours {
        program.add_address(address);
    }
    if with_socket {
        program.add_socket(0);
    }
    for frame in frames {
        let expected = match model::judge(&frame.bytes, ours, false) {
            Verdict::Redirected if !with_socket => Verdict::PassNoSocket,
            verdict => verdict,
        };
        assert_eq!(program.run(&frame.bytes), expected, "frame {} of {}", frame.index, frame.file);
    }
    program.verdicts()
}

fn only(counts: &[(Verdict, u64)]) -> [u64; Verdict::ALL.len()] {
    let mut all = [0; Verdict::ALL.len()];
    for &(verdict, count) in counts {
        all[verdict as usize] = count;
    }
    all
}

#[test]
fn every_frame_for_us_is_redirected_and_no_other() {
    if !is_root("every_frame_for_us_is_redirected_and_no_other") {
        return;
    }
    let frames = frames();
    let (a, b) = (addresses(&HOST_A), addresses(&HOST_B));
    let both: Vec<_> = a.iter().chain(&b).copied().collect();
    assert_eq!(run_all(&frames, &both, true), only(&[(Verdict::Redirected, 976)]));
    assert_eq!(run_all(&frames, &[], true), only(&[(Verdict::PassNotOurs, 976)]));

    // Counted by tshark: `ip.dst == 10.77.0.1 || ipv6.dst == fd00:77::1 || ipv6.dst ==
    // fe80::5054:ff:fe77:1`.
    const TO_A: u64 = 371;
    let split = |ours, others| only(&[(Verdict::Redirected, ours), (Verdict::PassNotOurs, others)]);
    assert_eq!(run_all(&frames, &a, true), split(TO_A, 976 - TO_A));
    assert_eq!(run_all(&frames, &b, true), split(976 - TO_A, TO_A));
}

#[test]
fn without_a_socket_every_frame_is_the_kernels() {
    if !is_root("without_a_socket_every_frame_is_the_kernels") {
        return;
    }
    let both = addresses(&[&HOST_A[..], &HOST_B[..]].concat());
    assert_eq!(run_all(&frames(), &both, false), only(&[(Verdict::PassNoSocket, 976)]));
}
