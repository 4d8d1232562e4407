//! The transport's counters against the packets on the wire.

use roced_transport::{
    counters::{QpCount, QpCounters},
    reject::{DropCounters, DropReason},
};

use super::requester::What;
use crate::violation::{Checked, demand};

/// Work of one endpoint, as seen from outside.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Frames given to it.
    pub(crate) given: u64,
    /// Bytes of these, at least as many as notifications are earned by.
    pub(crate) given_bytes: u64,
    pub(crate) given_corrupt: u64,
    pub(crate) requests: u64,
    /// Packets sent again, questions, and packets that may be either.
    retransmitted: u64,
    questions: u64,
    either: u64,
    pub(crate) answers: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) atomics: u64,
    pub(crate) atomic_writes: u64,
    pub(crate) sequence_naks_sent: u64,
    pub(crate) rnr_naks_sent: u64,
    /// NAKs given to it: those that it cannot have taken for old ones, and all that it need not.
    pub(crate) sequence_naks_taken: [u64; 2],
    pub(crate) rnr_naks_taken: [u64; 2],
    /// Notifications of congestion sent by it, and whole ones given to it.
    pub(crate) notifications: u64,
    pub(crate) notifications_given: u64,
    /// Marked frames given to it: those that it has taken, and all.
    pub(crate) marked: [u64; 2],
    /// Requests given to it that were behind all that had arrived.
    pub(crate) behind: u64,
}

impl Tally {
    /// It is given a frame.
    pub(crate) fn give(&mut self, frame: &[u8]) {
        self.given += 1;
        // A packet counts as a notification and its payload: the shortest has 58 bytes besides.
        self.given_bytes += frame.len() as u64 + 74 - 58;
    }

    /// It sent a packet of a request.
    pub(crate) fn on_sent(&mut self, what: What) {
        match what {
            What::First => {}
            What::Again => self.retransmitted += 1,
            What::Question => self.questions += 1,
            What::AgainOrQuestion => self.either += 1,
        }
    }

    /// Of all that was given to it no more waits for its turn than came of late.
    pub(crate) fn check_held(&self, counters: &QpCounters, drops: &DropCounters, late: u64) -> Checked {
        let dropped: u64 = DropReason::ALL.iter().map(|reason| drops.get(*reason)).sum();
        let held = self.given - (counters.get(QpCount::ReceivedPackets) + dropped).min(self.given);
        demand!(held <= late, "buffered", "{held} packets are buffered, and {late} came in the last milliseconds");
        Ok(())
    }

    /// Everything that was counted was seen, and the other way round. `holds` says that it may
    /// still hold packets, which are counted when their turn has come.
    pub(crate) fn check(&self, counters: &QpCounters, drops: &DropCounters, holds: bool) -> Checked {
        // These are no frames that were given to it.
        let is_answer = |reason: &DropReason| matches!(reason, DropReason::FinalAnswerLost | DropReason::ReplayLost);
        let taken = DropReason::ALL.iter().filter(|reason| !is_answer(reason));
        let dropped: u64 = taken.map(|reason| drops.get(*reason)).sum();
        let exact = [
            ("request_packets", counters.get(QpCount::RequestPackets), self.requests),
            ("response_packets", counters.get(QpCount::ResponsePackets), self.answers),
            ("sent_bytes", counters.get(QpCount::SentBytes), self.payload_bytes),
            ("rx_atomic_requests", counters.get(QpCount::AtomicRequests), self.atomics),
            ("rx_atomic_write_requests", counters.get(QpCount::AtomicWriteRequests), self.atomic_writes),
            (
                "retransmitted_packets and ack_requested",
                counters.get(QpCount::RetransmittedPackets) + counters.get(QpCount::AckRequested),
                self.retransmitted + self.questions + self.either,
            ),
            ("seq_nak_sent", counters.get(QpCount::SequenceNakSent), self.sequence_naks_sent),
            ("rnr_nak_sent", counters.get(QpCount::RnrNakSent), self.rnr_naks_sent),
            ("drop_bad_icrc", drops.get(DropReason::BadIcrc), self.given_corrupt),
        ];
        for (name, counted, seen) in exact {
            demand!(counted == seen, "counters", "{name} is {counted}, on the wire it was {seen}");
        }
        let taken = counters.get(QpCount::ReceivedPackets) + dropped;
        let again = [self.retransmitted, self.retransmitted + self.either];
        let between = [
            ("retransmitted_packets", counters.get(QpCount::RetransmittedPackets), again),
            ("received_packets and drops", taken, [if holds { 0 } else { self.given }, self.given]),
            ("packet_seq_err", counters.get(QpCount::SequenceNakReceived), self.sequence_naks_taken),
            ("rnr_nak_received", counters.get(QpCount::RnrNakReceived), self.rnr_naks_taken),
        ];
        for (name, counted, [least, most]) in between {
            demand!((least..=most).contains(&counted), "counters", "{name} is {counted}, it was {least} to {most}");
        }
        let (behind, duplicates) = (self.behind, counters.get(QpCount::DuplicateRequest));
        demand!(duplicates <= behind, "counters", "duplicate_request is {duplicates}, and {behind} came");
        Ok(())
    }
}
