//! Tests of the state of a repair.

use super::*;

const OLD: Psn = Psn::new(0x00ff_fffe);

/// Sets one field to refer to [`OLD`].
type Set = fn(&mut Selective);

const SETS: [Set; 11] = [
    |it| it.again = Some(SingleRepair { psn: OLD, at: Nanos(0), frontier: OLD, is_answered: false }),
    |it| it.missed = Some(AnswerRepair { end: OLD, frontier: OLD, named: false, told: false }),
    |it| it.repeated = Some((OLD, OLD)),
    |it| it.gap_due = Nanos(1),
    |it| it.gap_end = Some(OLD),
    |it| it.parts_end = Some(OLD),
    |it| it.acknowledged = Some(OLD),
    |it| it.dropped = Some((OLD, OLD)),
    |it| it.asked_for_dropped = Some(OLD),
    |it| it.solicited = Some((OLD, Nanos(0))),
    |it| it.note_again(OLD),
];

/// Each field alone makes progress examine the repair.
#[test]
fn progress_ends_the_repair_of_packets_before_it() {
    for (number, set) in SETS.iter().enumerate() {
        let mut state = Selective::new(OLD);
        assert!(!state.is_repairing());
        set(&mut state);
        assert!(state.is_repairing(), "field {number}");
        state.advance_repair(OLD.plus(3), &mut Requester::new(1), Nanos(0));
        assert!(!state.is_repairing(), "field {number}");
    }
}

/// The cursor went back, and an answer beyond it shows that the peer kept the packets.
#[test]
fn progress_beyond_the_cursor_ends_a_rewind() {
    let mut state = Selective::new(OLD);
    state.went_back = Some(Rewind { at: Nanos(0), psn: OLD, end: OLD.plus(3), late: None });
    assert!(state.is_repairing());
    let mut requester = Requester::new(1);
    requester.begin(OLD, 0);
    state.advance_repair(OLD.plus(3), &mut requester, Nanos(0));
    assert!(state.buffers && !state.is_repairing());
}
