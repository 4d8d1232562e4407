//! Counters: plain numbers that the owner of an endpoint reads now and then. Names follow those of
//! adapters in `/sys/class/infiniband/*/ports/*/hw_counters`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

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
            /// Adds one to the counter `what`.
            pub fn count(&mut self, what: $kind) {
                self.0[what as usize] += 1;
            }

            /// Adds `many` to the counter `what`.
            pub fn add(&mut self, what: $kind, many: u64) {
                self.0[what as usize] += many;
            }

            /// Adds all that `other` counted.
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

/// Totals of all queue pairs of an endpoint. Each queue pair holds it and adds its counts; the
/// endpoint reads it. One thread writes at a time, the one of the endpoint, so that no addition is
/// lost and none needs a locked instruction.
#[derive(Debug)]
pub(crate) struct QpTotals([AtomicU64; QpCount::ALL.len()]);

impl Default for QpTotals {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; QpCount::ALL.len()])
    }
}

impl QpTotals {
    /// `many` more.
    #[inline]
    pub(crate) fn add(&self, what: QpCount, many: u64) {
        let total = &self.0[what as usize];
        total.store(total.load(Ordering::Relaxed).wrapping_add(many), Ordering::Relaxed);
    }

    /// The count of one so far.
    pub(crate) fn of(&self, what: QpCount) -> u64 {
        self.0[what as usize].load(Ordering::Relaxed)
    }

    /// Adds all that `counters` counted.
    pub(crate) fn add_all(&self, counters: &QpCounters) {
        QpCount::ALL.iter().for_each(|what| self.add(*what, counters.get(*what)));
    }

    /// The counts so far.
    pub(crate) fn get(&self) -> QpCounters {
        let mut counters = QpCounters::default();
        QpCount::ALL.iter().for_each(|what| counters.add(*what, self.of(*what)));
        counters
    }
}

/// The counters of one queue pair, which also adds its counts to the totals of its endpoint.
#[derive(Debug, Default)]
pub(crate) struct QpTally {
    own: QpCounters,
    totals: Option<Arc<QpTotals>>,
}

impl QpTally {
    /// One more.
    #[inline]
    pub(crate) fn count(&mut self, what: QpCount) {
        self.add(what, 1);
    }

    /// `many` more.
    #[inline]
    pub(crate) fn add(&mut self, what: QpCount, many: u64) {
        self.own.add(what, many);
        if let Some(totals) = &self.totals {
            totals.add(what, many);
        }
    }

    /// The queue pair's own counts.
    pub(crate) const fn own(&self) -> &QpCounters {
        &self.own
    }

    /// Adds to these totals from now on, beginning with all that was counted so far, or to none.
    pub(crate) fn count_into(&mut self, totals: Option<&Arc<QpTotals>>) {
        self.totals = totals.cloned();
        if let Some(totals) = totals {
            totals.add_all(&self.own);
        }
    }
}

named_counters! {
    /// Counters of a queue pair; its endpoint counts the sum.
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
        /// Retransmitted packets, for any reason.
        RetransmittedPackets "retransmitted_packets",
        /// ACK timer ran out.
        AckTimeout "local_ack_timeout_err",
        /// NAK "PSN sequence error" received.
        SequenceNakReceived "packet_seq_err",
        /// An ACK or response implied that a READ response or an ATOMIC ACK was lost. Not one that
        /// came and was dropped for the order of READs.
        ImpliedNak "implied_nak_seq_err",
        /// NAK "PSN sequence error" sent.
        SequenceNakSent "seq_nak_sent",
        /// Times an answer was so late, before the ACK timer ran out, that something was to be sent
        /// again.
        AdaptiveRetransmission "roce_adp_retrans",
        /// Duplicates of no bytes sent to have messages acknowledged that asked for nothing.
        AckRequested "ack_requested",
        /// Packets that came before their turn and were kept for it.
        OutOfOrderBuffered "out_of_order_buffered",
        /// RNR NAK received.
        RnrNakReceived "rnr_nak_received",
        /// RNR NAK sent.
        RnrNakSent "rnr_nak_sent",
        /// Gave up after `rnr_retry` tries.
        RnrRetryExceeded "retry_rnr_exceeded_err",
        /// Gave up after `retry_cnt` tries.
        RetryExceeded "retry_exceeded_err",
        /// Requests received that were executed before.
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
