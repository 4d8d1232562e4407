//! PFC and PAUSE frames. Needs root.

use nix::time::{ClockId, clock_gettime};
use roced_steering::{HONOR_GLOBAL_PAUSE, PRIORITIES, PauseWord, PriorityPauseWord, Verdict};
use roced_xdp_tests::{
    Program,
    frame::{PAUSE_OF_PRIORITY_3 as XOFF_3, from_hex as frame},
    is_root,
};

/// Of 10 Gbit/s.
const QUANTUM_PS: u64 = 51_200;

/// [`XOFF_3`] with no time.
const XON_3: &str = "0180c2000001 020000000001 8808 0101 0008 0000 0000 0000 0000 0000 0000 0000 0000";

/// A PAUSE frame (annex 31B) of 256 quanta.
const PAUSE: &str = "0180c2000001 020000000001 8808 0001 0100";

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Priorities with a pause at `now`.
fn paused(words: &[u64], now: u64) -> Vec<usize> {
    (0..PRIORITIES).filter(|priority| words[PriorityPauseWord::UntilNanoseconds.of(*priority)] > now).collect()
}

#[test]
fn a_pfc_frame_pauses_its_priorities_for_its_time() {
    if !is_root("a_pfc_frame_pauses_its_priorities_for_its_time") {
        return;
    }
    let mut program = Program::load();
    program.honor_pauses(1 << 3 | 1 << 4, QUANTUM_PS);
    let before = now_ns();
    assert_eq!(program.run(&frame(XOFF_3)), Verdict::DropPause);
    let (words, after) = (program.pauses(), now_ns());
    let pause = 65_535 * QUANTUM_PS / 1000;
    let until = words[PriorityPauseWord::UntilNanoseconds.of(3)];
    assert!((before + pause..=after + pause).contains(&until), "{before} {until} {after}");
    assert_eq!(paused(&words, after), [3]);
    assert_eq!(words[PriorityPauseWord::BeginNanoseconds.of(3)] + pause, until);
    assert_eq!(words[PriorityPauseWord::DurationNanoseconds.of(3)], 0, "that of pauses before");
    assert_eq!([PauseWord::Frames, PauseWord::GlobalFrames].map(|word| words[word as usize]), [1, 0]);
    assert_eq!([3, 4].map(|priority| words[PriorityPauseWord::Frames.of(priority)]), [1, 0]);

    assert_eq!(program.run(&frame(XON_3)), Verdict::DropPause);
    let (words, after) = (program.pauses(), now_ns());
    assert_eq!(paused(&words, after), [0; 0]);
    assert_eq!(words[PriorityPauseWord::Ends.of(3)], 1);
    let duration = words[PriorityPauseWord::DurationNanoseconds.of(3)];
    assert!(duration > 0 && duration <= after - before, "{duration}: the rest of the pause does not count");
    assert_eq!(program.run(&frame(XON_3)), Verdict::DropPause);
    let words = program.pauses();
    assert_eq!(words[PriorityPauseWord::Ends.of(3)], 1, "there was nothing to end");
    assert_eq!(words[PriorityPauseWord::Frames.of(3)], 3);
    // One that passes by itself counts as ended when the next begins.
    program.honor_pauses(1 << 3, 1);
    assert_eq!(program.run(&frame(XOFF_3)), Verdict::DropPause);
    while now_ns() < program.pauses()[PriorityPauseWord::UntilNanoseconds.of(3)] {}
    assert_eq!(program.run(&frame(XOFF_3)), Verdict::DropPause);
    let words = program.pauses();
    assert_eq!(words[PriorityPauseWord::Ends.of(3)], 1);
    assert_eq!(words[PriorityPauseWord::DurationNanoseconds.of(3)], 65_535 / 1000);
}

#[test]
fn a_pause_frame_pauses_all_priorities() {
    if !is_root("a_pause_frame_pauses_all_priorities") {
        return;
    }
    let mut program = Program::load();
    program.honor_pauses(HONOR_GLOBAL_PAUSE, QUANTUM_PS);
    let before = now_ns();
    assert_eq!(program.run(&frame(PAUSE)), Verdict::DropPause);
    let words = program.pauses();
    let pause = 256 * QUANTUM_PS / 1000;
    assert_eq!(paused(&words, before + pause - 1), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(words[PauseWord::GlobalFrames as usize], 1);
    assert_eq!(program.run(&frame(XOFF_3)), Verdict::PassNotIp, "it is for priorities");
}

#[test]
fn frames_that_are_not_honored_change_nothing() {
    if !is_root("frames_that_are_not_honored_change_nothing") {
        return;
    }
    let mut program = Program::load();
    assert_eq!(program.run(&frame(XOFF_3)), Verdict::PassNotIp, "nothing is honored by default");
    program.honor_pauses(1 << 4, QUANTUM_PS);
    let before = program.pauses();
    let other_address = XOFF_3.replacen("0180c2000001", "0180c2000002", 1);
    let other_opcode = XOFF_3.replacen("8808 0101", "8808 0102", 1);
    let tagged = XOFF_3.replacen("8808", "8100 6000 8808", 1);
    for other in [PAUSE, &other_address, &other_opcode, &tagged] {
        assert_eq!(program.run(&frame(other)), Verdict::PassNotIp, "{other}");
    }
    for length in 14..34 {
        assert_eq!(program.run(&frame(XOFF_3)[..length]), Verdict::PassMalformed, "{length} bytes");
    }
    assert_eq!(program.pauses(), before);
    // A priority that is not honored, and one without its bit.
    let three_and_bit_of_five = XOFF_3.replacen("0101 0008", "0101 0028", 1);
    assert_eq!(program.run(&frame(&three_and_bit_of_five)), Verdict::DropPause);
    assert_eq!(paused(&program.pauses(), 0), [0; 0]);
}
