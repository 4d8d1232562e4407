//! Statistics of the queue pairs of one side in a run.

use roced_client::QpStatistics;
use serde::{Deserialize, Serialize};

/// Sums over a side's queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Statistics {
    /// Packets of requests sent, retransmissions included.
    pub(crate) request_packets: u64,
    /// Packets of answers sent: ACKs, NAKs, READ responses.
    pub(crate) response_packets: u64,
    /// Packets taken.
    pub(crate) received_packets: u64,
    /// Packets sent again.
    pub(crate) retransmitted_packets: u64,
    /// ACK timeouts.
    pub(crate) ack_timeouts: u64,
    /// NAKs "PSN sequence error" received.
    pub(crate) sequence_naks_received: u64,
    /// NAKs "PSN sequence error" sent.
    pub(crate) sequence_naks_sent: u64,
    /// READ responses found to be lost.
    pub(crate) implied_naks: u64,
    /// RNR NAKs received.
    pub(crate) rnr_naks_received: u64,
    /// RNR NAKs sent.
    pub(crate) rnr_naks_sent: u64,
    /// Duplicate requests answered.
    pub(crate) duplicate_requests: u64,
}

impl Statistics {
    /// Adds the statistics of one queue pair.
    pub(crate) fn add(&mut self, qp: &QpStatistics) {
        self.request_packets += qp.request_packets;
        self.response_packets += qp.response_packets;
        self.received_packets += qp.received_packets;
        self.retransmitted_packets += qp.retransmitted_packets;
        self.ack_timeouts += qp.ack_timeouts;
        self.sequence_naks_received += qp.sequence_naks_received;
        self.sequence_naks_sent += qp.sequence_naks_sent;
        self.implied_naks += qp.implied_naks;
        self.rnr_naks_received += qp.rnr_naks_received;
        self.rnr_naks_sent += qp.rnr_naks_sent;
        self.duplicate_requests += qp.duplicate_requests;
    }
}
