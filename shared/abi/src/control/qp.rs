//! Bodies of calls about queue pairs, address handles and multicast groups.

use roced_types::{QpAttributes, QpSizes};

use super::body::bodies;

bodies! {
    /// A queue pair to make.
    CreateQpRequest {
        /// Protection domain.
        pd: u32,
        /// Completion queue of the send queue.
        send_cq: u32,
        /// Completion queue of the receive queue.
        recv_cq: u32,
        /// A [`service`](roced_types::service).
        service: u32,
        /// Work requests of the send queue.
        send_wrs: u32,
        /// Work requests of the receive queue.
        recv_wrs: u32,
        /// Scatter/gather entries of a send.
        send_sges: u32,
        /// Scatter/gather entries of a receive.
        recv_sges: u32,
        /// Inline bytes of a send.
        inline_bytes: u32,
        /// 1: every send makes a completion, as if it were signaled.
        signal_all: u32,
        /// Shared receive queue, or 0. With one, the sizes of receives do not count.
        srq: u32,
    }
    /// A queue pair.
    CreateQpReply {
        /// Its number, also its handle.
        qpn: u32,
        /// The worker that owns it: an index into `OpenDeviceReply::worker_ids`.
        worker: u32,
        /// Its doorbell in that worker's block.
        doorbell: u32,
        /// Sizes it got, as [`QpSizes`].
        send_wrs: u32,
        /// See above.
        recv_wrs: u32,
        /// See above.
        send_sges: u32,
        /// See above.
        recv_sges: u32,
        /// See above.
        inline_bytes: u32,
    }
    /// A change to a queue pair.
    ModifyQpRequest {
        /// Its number.
        qpn: u32,
        /// Attributes that count: [`attribute`](roced_types::attribute) bits.
        mask: u32,
        /// Their values.
        attributes: QpAttributes,
    }
    /// Statistics of a queue pair since its creation; `rocectl qps --counters` shows more.
    QpStatistics {
        /// Packets of its requests sent, retransmissions included.
        request_packets: u64,
        /// Packets of its answers sent: ACKs, NAKs, READ responses.
        response_packets: u64,
        /// Packets taken.
        received_packets: u64,
        /// Retransmitted packets, for any reason.
        retransmitted_packets: u64,
        /// Times that the ACK timer ran out.
        ack_timeouts: u64,
        /// NAKs "PSN sequence error" received.
        sequence_naks_received: u64,
        /// NAKs "PSN sequence error" sent.
        sequence_naks_sent: u64,
        /// READ responses found to be lost because a later answer came.
        implied_naks: u64,
        /// RNR NAKs received.
        rnr_naks_received: u64,
        /// RNR NAKs sent.
        rnr_naks_sent: u64,
        /// Duplicate requests answered.
        duplicate_requests: u64,
    }
    /// Where datagrams go.
    CreateAhRequest {
        /// Protection domain: only its queue pairs may name the handle.
        pd: u32,
        /// Index of the source GID.
        sgid_index: u32,
        /// The destination's GID.
        dgid: [u8; 16],
        /// Flow label, 20 bits; also makes the UDP source port when not 0.
        flow_label: u32,
        /// IP time to live or hop limit; 0 means 64.
        hop_limit: u32,
        /// IP traffic class: DSCP in the upper six bits.
        traffic_class: u32,
        /// Service level, 0 to 7: the priority in the VLAN tag, where there is one.
        service_level: u32,
        /// Highest rate of datagrams to there, kbit/s, 0 for none.
        static_rate_kbit_per_s: u32,
    }
    /// Membership of a queue pair in a multicast group.
    MulticastRequest {
        /// A datagram queue pair.
        qpn: u32,
        /// Index of the GID of the interface that joins the group; ignored when leaving.
        sgid_index: u32,
        /// The group: an IPv4 or IPv6 multicast address.
        group: [u8; 16],
    }
}

impl CreateQpRequest {
    /// The sizes asked for.
    pub const fn sizes(&self) -> QpSizes {
        QpSizes {
            send_wrs: self.send_wrs,
            recv_wrs: self.recv_wrs,
            send_sges: self.send_sges,
            recv_sges: self.recv_sges,
            inline_bytes: self.inline_bytes,
        }
    }
}

impl CreateQpReply {
    /// The sizes it got.
    pub const fn sizes(&self) -> QpSizes {
        QpSizes {
            send_wrs: self.send_wrs,
            recv_wrs: self.recv_wrs,
            send_sges: self.send_sges,
            recv_sges: self.recv_sges,
            inline_bytes: self.inline_bytes,
        }
    }
}
