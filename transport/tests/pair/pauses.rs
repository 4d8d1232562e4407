//! Pauses of priorities by the other end of a link, and the watchdog of an endpoint.

use roced_transport::{
    clock::Nanos,
    congestion::notification::NotificationCount,
    counters::QpCount,
    io::{Abort, Egress, EmitError, FrameMut, Wire},
    turns::{
        class_pause::{PauseStorm, PauseWatchdog},
        classes::{CLASSES, TrafficClasses},
    },
};
use roced_types::{SendOp, Status};

use crate::{
    host::{Pair, Settings, no_fault, sge, work},
    selective::warm,
};

/// Connections are of priority 0.
fn without_watchdog() -> TrafficClasses {
    let watchdog = PauseWatchdog { detection: Nanos::NEVER, ..PauseWatchdog::default() };
    TrafficClasses { watchdog, ..TrafficClasses::default() }
}

fn warm_with(classes: fn() -> TrafficClasses) -> Pair {
    warm(Settings { classes: Some(classes), ..Settings::default() })
}

/// Host `at` is paused for that time.
fn pause(pair: &mut Pair, at: usize, time: Nanos) {
    let until = pair.now + time;
    pair.hosts[at].endpoint.set_pauses(&[until, Nanos(0), Nanos(0), Nanos(0), Nanos(0), Nanos(0), Nanos(0), until]);
}

#[test]
fn a_paused_connection_sends_nothing_and_spends_no_retry() {
    let mut pair = warm_with(without_watchdog);
    pause(&mut pair, 0, Nanos::from_millis(3000));
    let sent = pair.hosts[0].count(QpCount::RequestPackets);
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 50_000)], 10_000));
    pair.run(Nanos::from_millis(2500), no_fault);
    assert_eq!((pair.hosts[0].count(QpCount::RequestPackets), pair.hosts[0].take()), (sent, Vec::new()));
    pair.run(Nanos::from_millis(600), no_fault);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
}

#[test]
fn a_pause_that_ends_before_its_time_lets_frames_leave_at_once() {
    let mut pair = warm_with(without_watchdog);
    pause(&mut pair, 0, Nanos::from_millis(300));
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    pair.run(Nanos::from_millis(1), no_fault);
    assert!(!pair.hosts[0].endpoint.wants_transmit(), "the worker may sleep");
    assert!(pair.hosts[0].endpoint.poll_timeout() <= pair.now + Nanos::from_micros(100), "and looks again");
    pause(&mut pair, 0, Nanos(0));
    assert!(pair.hosts[0].endpoint.wants_transmit());
    pair.run(Nanos::from_micros(100), no_fault);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn other_priorities_are_not_paused() {
    let mut pair = warm_with(without_watchdog);
    let mut until = [pair.now + Nanos::from_millis(300); CLASSES];
    until[0] = Nanos(0);
    pair.hosts[0].endpoint.set_pauses(&until);
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    pair.run(Nanos::from_micros(500), no_fault);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn begin_and_end_of_a_storm_are_reported_once() {
    let mut pair = warm_with(TrafficClasses::default);
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    pause(&mut pair, 0, Nanos::from_millis(300));
    pair.run(Nanos::from_millis(199), no_fault);
    assert!(!pair.hosts[0].endpoint.has_reports() && pair.hosts[0].take().is_empty());
    pair.run(Nanos::from_millis(2), no_fault);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    let storm = |begins| Some(PauseStorm { class: 0, begins });
    let endpoint = &mut pair.hosts[0].endpoint;
    assert!(endpoint.has_reports());
    assert_eq!((endpoint.poll_pause_storm(), endpoint.poll_pause_storm()), (storm(true), None));
    // Frames do not wait any longer, although the pause lasts.
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 5000)], 10_000));
    pair.run(Nanos::from_micros(500), no_fault);
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
    pair.now = pair.now + Nanos::from_millis(400);
    let (now, host) = (pair.now, &mut pair.hosts[0]);
    host.endpoint.on_timeout(now, 16, &mut host.app);
    assert_eq!((host.endpoint.poll_pause_storm(), host.endpoint.poll_pause_storm()), (storm(false), None));
    let counters = host.endpoint.notification_counters();
    assert_eq!(
        [NotificationCount::PauseStorm, NotificationCount::PauseStormEnd].map(|count| counters.get(count)),
        [1, 1]
    );
}

/// Takes frames and counts them.
#[derive(Default)]
struct FrameCount(usize);

impl Wire for FrameCount {
    fn emit(
        &mut self,
        _via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let mut bytes = vec![0; frame_bytes];
        fill(&mut FrameMut::single(&mut bytes)).map_err(|Abort| EmitError::Aborted)?;
        self.0 += 1;
        Ok(())
    }
}

/// It neither leaves in spite of a pause, nor keeps the watchdog from a storm.
#[test]
fn the_last_work_of_a_program_waits_for_a_pause() {
    let mut pair = warm_with(TrafficClasses::default);
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    let (begin, mut wire) = (pair.now, FrameCount::default());
    pause(&mut pair, 0, Nanos::from_millis(400));
    let host = &mut pair.hosts[0];
    for millis in 0..200 {
        let now = begin + Nanos::from_millis(millis);
        let sent = host.endpoint.transmit_of(now, host.qpn, 16, &mut host.app, &mut wire);
        assert!(sent.visits == 0 && sent.is_left, "{millis} ms: {sent:?}");
    }
    assert_eq!(wire.0, 0);
    let storm = begin + Nanos::from_millis(201);
    let sent = host.endpoint.transmit_of(storm, host.qpn, 16, &mut host.app, &mut wire);
    assert!(sent.visits > 0 && wire.0 > 0, "{sent:?}");
}
