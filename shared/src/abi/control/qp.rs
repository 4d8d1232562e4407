//! Bodies of calls about queue pairs, and about whom datagrams go to.

use super::body::bodies;
use crate::abi::layout::QpSizes;

bodies! {
    /// A queue pair to make.
    CreateQpRequest {
        /// Protection domain.
        pd: u32,
        /// Completion queue of the send queue.
        send_cq: u32,
        /// Completion queue of the receive queue.
        recv_cq: u32,
        /// A [`service`](super::service).
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
        /// Its bell in that worker's page.
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
        /// Which.
        qpn: u32,
        /// Which of the attributes count: [`attribute`](super::attribute) bits.
        mask: u32,
        /// Their values.
        attributes: QpAttributes,
    }
    /// Attributes of a queue pair; verbs names (`ibv_qp_attr`) where there is one.
    QpAttributes {
        /// A [`state`](super::state).
        state: u32,
        /// [`access`](super::access) bits that the peer has, besides those of each region.
        access: u32,
        /// Path MTU, bytes: 256, 512, 1024, 2048 or 4096.
        path_mtu_bytes: u32,
        /// The peer's queue pair.
        dest_qpn: u32,
        /// First PSN expected.
        rq_psn: u32,
        /// First PSN sent.
        sq_psn: u32,
        /// READs and atomic operations that we have outstanding at most, 0 to 128.
        max_rd_atomic: u32,
        /// READs and atomic operations that we answer at a time, 0 to 128.
        max_dest_rd_atomic: u32,
        /// Code of the RNR NAK timer that we ask of the peer, 0 to 31.
        min_rnr_timer: u32,
        /// ACK timeout code: 4.096 us * 2^code, 0 for none, up to 31.
        timeout: u32,
        /// Retries after timeout or sequence error, 0 to 7.
        retry_cnt: u32,
        /// Retries after RNR NAK, 0 to 6, 7 for ever.
        rnr_retry: u32,
        /// Which entry of the port's table of partition keys.
        pkey_index: u32,
        /// Flow label, 20 bits; also makes the UDP source port when not 0.
        flow_label: u32,
        /// Index of the source GID.
        sgid_index: u32,
        /// IP time to live or hop limit; 0 means 64.
        hop_limit: u32,
        /// IP traffic class: DSCP in the upper six bits.
        traffic_class: u32,
        /// Service level, 0 to 7: the priority in the VLAN tag, where there is one.
        service_level: u32,
        /// The peer's GID.
        dgid: [u8; 16],
        /// Rate limit, bytes per second, 0 for none.
        rate_limit_bytes_per_s: u64,
        /// In a query: 1 while the next hop's address is still being resolved.
        path_resolving: u32,
        /// Q_Key that datagrams must have to be let in, of a UD queue pair.
        qkey: u32,
        /// Of a change: the state that the client takes the queue pair to be in; another one
        /// refuses the change.
        current_state: u32,
        /// In a query: 1 in state SQD while requests that were begun are not done.
        sq_draining: u32,
        /// Of a change to SQD: 1 asks for the event
        /// [`event::SQ_DRAINED`](super::event::SQ_DRAINED).
        sq_drained_event: u32,
        /// Zero.
        reserved: u32,
    }
    /// What a queue pair has counted since it was made; `rocectl qps --counters` has more.
    QpStatistics {
        /// Packets of its requests sent, retransmissions included.
        request_packets: u64,
        /// Packets of its answers sent: ACKs, NAKs, READ responses.
        response_packets: u64,
        /// Packets taken.
        received_packets: u64,
        /// Packets sent again, for whatever reason.
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
    }
    /// A multicast group and who is of it.
    MulticastRequest {
        /// A datagram queue pair.
        qpn: u32,
        /// Index of the GID by whose interface the group is joined; not looked at when it is left.
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
