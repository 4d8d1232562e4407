//! Counters: plain numbers that the owner of an endpoint reads now and then. Names follow what RDMA people look for in
//! `/sys/class/infiniband/*/ports/*/hw_counters`.

/// An enum of things that are counted, and the struct that counts them.
macro_rules! named_counters {
    ($(#[$doc:meta])* $kind:ident, $counters:ident { $($(#[$item_doc:meta])* $item:ident $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind { $($(#[$item_doc])* $item,)* }

        impl $kind {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$item),*];

            /// The counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$item => $name,)* }
            }
        }

        #[doc = concat!("How often each [`", stringify!($kind), "`] happened.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $counters([u64; $kind::ALL.len()]);

        impl Default for $counters {
            fn default() -> Self {
                Self([0; $kind::ALL.len()])
            }
        }

        impl $counters {
            /// One more.
            pub fn count(&mut self, what: $kind) {
                self.0[what as usize] += 1;
            }

            /// `many` more.
            pub fn add(&mut self, what: $kind, many: u64) {
                self.0[what as usize] += many;
            }

            /// All that `other` counted, too.
            pub fn add_all(&mut self, other: &Self) {
                for (sum, more) in self.0.iter_mut().zip(other.0) {
                    *sum += more;
                }
            }

            /// How many so far.
            pub const fn get(&self, what: $kind) -> u64 {
                self.0[what as usize]
            }

            /// Every name with its count.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                $kind::ALL.iter().map(|kind| (kind.name(), self.0[*kind as usize]))
            }
        }
    };
}

pub(crate) use named_counters;

named_counters! {
    /// What a queue pair counts of itself; its endpoint counts the sum.
    QpCount, QpCounters {
        /// Packets sent by the requester, retransmissions included.
        RequestPackets "request_packets",
        /// Packets sent by the responder: ACKs, NAKs, READ responses.
        ResponsePackets "response_packets",
        /// Packets taken.
        ReceivedPackets "received_packets",
        /// Payload bytes sent, retransmissions included.
        SentBytes "sent_bytes",
        /// Payload bytes taken.
        ReceivedBytes "received_bytes",
        /// Requests completed with success.
        CompletedRequests "completed_requests",
        /// Packets sent again, for whatever reason.
        RetransmittedPackets "retransmitted_packets",
        /// ACK timer ran out.
        AckTimeout "local_ack_timeout_err",
        /// NAK "PSN sequence error" received.
        SequenceNakReceived "packet_seq_err",
        /// An ACK or response implied that a READ response or an ATOMIC ACK was lost.
        ImpliedNak "implied_nak_seq_err",
        /// NAK "PSN sequence error" sent.
        SequenceNakSent "out_of_sequence",
        /// Packets sent again because an answer was late, before the ACK timer ran out.
        AdaptiveRetransmission "roce_adp_retrans",
        /// Packets that came before their turn and were kept for it.
        OutOfOrderHeld "out_of_order_held",
        /// RNR NAK received.
        RnrNakReceived "rnr_nak_received",
        /// RNR NAK sent.
        RnrNakSent "rnr_nak_sent",
        /// Gave up after `rnr_retry` tries.
        RnrRetryExceeded "rnr_nak_retry_err",
        /// Gave up after `retry_cnt` tries.
        RetryExceeded "retry_exceeded_err",
        /// Duplicate requests answered.
        DuplicateRequest "duplicate_request",
        /// READ requests executed, replays included.
        ReadRequests "rx_read_requests",
        /// Atomic operations executed; a duplicate is answered, never executed.
        AtomicRequests "rx_atomic_requests",
        /// FLUSH requests executed; a duplicate is answered.
        FlushRequests "rx_flush_requests",
        /// Atomic WRITEs executed; a duplicate is answered, never executed.
        AtomicWriteRequests "rx_atomic_write_requests",
        /// WRITE requests begun.
        WriteRequests "rx_write_requests",
        /// SEND requests begun.
        SendRequests "rx_send_requests",
        /// NAK "remote access error" sent.
        RemoteAccessSent "resp_remote_access_errors",
        /// NAK "remote access error" received.
        RemoteAccessReceived "req_remote_access_errors",
        /// NAK "invalid request" sent.
        RemoteInvalidSent "resp_remote_invalid_request",
        /// NAK "invalid request" received.
        RemoteInvalidReceived "req_remote_invalid_request",
        /// NAK "remote operational error" sent.
        RemoteOperationSent "resp_remote_operational_errors",
        /// NAK "remote operational error" received.
        RemoteOperationReceived "req_remote_operational_errors",
        /// Work requests that failed on a local key, range or right.
        LocalProtection "local_protection_errors",
        /// Frames not sent because the next hop cannot be reached.
        Unreachable "unreachable",
        /// Completions lost because their queue was full.
        CqOverrun "cq_overrun",
        /// Work requests that came in state RESET: forgotten without a completion (IBTA v1 10.3.1).
        ForgottenInReset "forgotten_in_reset",
    }
}
