//! Frames that lie in several buffers, and frames of several queues. Needs root.

use std::{
    io::{self, Write as _},
    net::IpAddr,
};

use roced_steering::Verdict;
use roced_xdp_tests::{Arrival, Program, TestInterface, frame::Frame, is_root};

fn program(queue: u32) -> Program {
    let mut program = Program::load();
    for ours in ["10.77.0.2", "fd00:77::2"] {
        program.add_address(ours.parse().expect("an address"));
    }
    program.add_socket(queue);
    program
}

/// A RoCE frame for us of `frame_bytes`.
fn frame_of(frame_bytes: usize, destination: &str) -> Frame {
    let destination: IpAddr = destination.parse().expect("an address");
    let headers = if destination.is_ipv4() { 42 } else { 62 };
    let payload = (0..frame_bytes - headers).map(|at| (at * 7 + at / 256) as u8).collect();
    Frame { destination, payload, ..Frame::default() }
}

/// A test run puts the first 3.5 KiB or so of a frame into the linear part and the rest into
/// further buffers.
#[test]
fn a_frame_in_several_buffers_is_judged_by_its_whole_length() {
    if !is_root("a_frame_in_several_buffers_is_judged_by_its_whole_length") {
        return;
    }
    let mut program = program(0);
    for destination in ["10.77.0.2", "fd00:77::2"] {
        for frame_bytes in [1082, 3400, 3519, 3520, 3521, 3600, 4096, 4154, 5000, 7616, 8000] {
            let frame = frame_of(frame_bytes, destination);
            assert_eq!(frame.bytes().len(), frame_bytes);
            assert_eq!(program.run(&frame.bytes()), Verdict::Redirected, "{frame_bytes} bytes to {destination}");

            let told_longer = Frame { ip_length_lie: 1, ..frame.clone() };
            assert_eq!(program.run(&told_longer.bytes()), Verdict::PassMalformed, "IP length, {frame_bytes} bytes");
            let told_longer = Frame { udp_length_lie: 1, ..frame.clone() };
            assert_eq!(program.run(&told_longer.bytes()), Verdict::PassMalformed, "UDP length, {frame_bytes} bytes");
            let cut = &frame.bytes()[..frame_bytes - 1];
            assert_eq!(program.run(cut), Verdict::PassMalformed, "cut after {} bytes", cut.len());
            let padded = Frame { padding: 40, ..frame };
            assert_eq!(program.run(&padded.bytes()), Verdict::Redirected, "padding after {frame_bytes} bytes");
        }
    }
}

/// RX queues of the interface that frames come by.
const QUEUES: u32 = 4;

#[test]
fn a_frame_goes_to_the_socket_of_its_own_queue_only() {
    if !is_root("a_frame_goes_to_the_socket_of_its_own_queue_only") {
        return;
    }
    let interface = TestInterface::new(QUEUES);
    let mut program = program(2);
    let frame = frame_of(4154, "10.77.0.2").bytes();
    for queue in 0..QUEUES {
        let arrival = Arrival { ifindex: interface.ifindex, queue, linear_bytes: frame.len() as u32 };
        let expected = if queue == 2 { Verdict::Redirected } else { Verdict::PassNoSocket };
        assert_eq!(program.try_run(&frame, Some(arrival)).expect("a run"), expected, "queue {queue}");
    }
}

/// A driver may leave little of a frame in the linear part. The program reads only there, so it
/// must not guess.
#[test]
fn headers_outside_the_linear_part_are_not_guessed() {
    if !is_root("headers_outside_the_linear_part_are_not_guessed") {
        return;
    }
    let interface = TestInterface::new(QUEUES);
    let mut program = program(0);
    let frame = frame_of(4154, "10.77.0.2").bytes();
    let mut run =
        |linear_bytes| program.try_run(&frame, Some(Arrival { ifindex: interface.ifindex, queue: 0, linear_bytes }));
    if let Err(error) = run(42) {
        let _ = writeln!(io::stderr(), "SKIPPED, before Linux 6.18 no test run chooses the linear part: {error}");
        return;
    }
    for linear_bytes in 14..42 {
        assert_eq!(run(linear_bytes).expect("a run"), Verdict::PassMalformed, "{linear_bytes} bytes linear");
    }
    for linear_bytes in [42, 43, 60, 256, 3000] {
        assert_eq!(run(linear_bytes).expect("a run"), Verdict::Redirected, "{linear_bytes} bytes linear");
    }
}
