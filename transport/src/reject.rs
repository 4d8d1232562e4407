//! Refusals, sorted by the party at fault.
//!
//! * [`DropReason`]: the network. The packet is counted under that name and dropped, possibly with
//!   a NAK.
//! * [`Reject`]: a control call that cannot be carried out. The caller is told and goes on.

use roced_types::{Qpn, Srqn};
use thiserror::Error;

use crate::counters::named_counters;

named_counters! {
    /// Why a packet was dropped. Each is also a counter of the endpoint ([`DropCounters`]).
    DropReason, DropCounters {
        /// Shorter than its headers, or its lengths do not agree with one another.
        BadLength "drop_bad_length",
        /// Neither RoCEv2 (UDP to port 4791 on IPv4 or IPv6, not a fragment) nor RoCEv1 (EtherType
        /// 0x8915): nothing that the XDP program lets through.
        NotRoce "drop_not_roce",
        /// An undefined opcode.
        UnknownOpcode "drop_unknown_opcode",
        /// Transport header version is not 0.
        BadVersion "drop_bad_version",
        /// Wrong ICRC.
        BadIcrc "drop_bad_icrc",
        /// The partition key is not one that the queue pair accepts.
        BadPkey "drop_bad_pkey",
        /// Wrong IPv4 header checksum.
        BadIpChecksum "drop_bad_ip_checksum",
        /// Wrong UDP checksum, other than 0.
        BadUdpChecksum "drop_bad_udp_checksum",
        /// No queue pair of that number.
        NoSuchQp "drop_no_such_qp",
        /// The source or destination address is not that of the queue pair's path.
        WrongAddress "drop_wrong_address",
        /// Sent by another party than its source address names: a packet from the network from an
        /// address that is here or that no host has, or to a connection whose peer is here.
        ForgedSource "drop_forged_source",
        /// From a network that the operator keeps out.
        DeniedSource "drop_denied_source",
        /// Its VLAN is not that of the queue pair's path, or it has one where the path has none.
        WrongVlan "drop_wrong_vlan",
        /// The opcode is of another transport service than the queue pair.
        WrongService "drop_wrong_service",
        /// The queue pair's state takes no such packet.
        WrongState "drop_wrong_state",
        /// A request ahead of the expected PSN (answered by one NAK).
        OutOfSequence "drop_out_of_sequence",
        /// Farther from the expected PSN than the peer has packets under way.
        BeyondWindow "drop_beyond_window",
        /// Ahead of its turn, and no room to buffer it (requested again).
        OutOfOrderNoBuffer "drop_out_of_order_no_buffer",
        /// Buffered, and discarded before its turn: RNR NAK, error, change of state, age.
        OutOfOrderDiscarded "drop_out_of_order_discarded",
        /// Of a queue pair of the same endpoint, with borrowed payload that is gone.
        LoopbackSourceGone "drop_loopback_source_gone",
        /// A request that was executed before (answered again, where anything is answered).
        Duplicate "drop_duplicate",
        /// A duplicate READ or atomic operation that matches nothing kept for replay.
        UnknownDuplicate "drop_unknown_duplicate",
        /// A request that broke the rules of its operation (answered by a NAK).
        InvalidRequest "drop_invalid_request",
        /// A request with an invalid key, range or access right (answered by a NAK).
        RemoteAccess "drop_remote_access",
        /// A request for which no receive work request was there (answered by an RNR NAK).
        ReceiverNotReady "drop_receiver_not_ready",
        /// A datagram with another Q_Key than that of the queue pair.
        BadQkey "drop_bad_qkey",
        /// A datagram to queue pair 1 from another queue pair than the peer's queue pair 1.
        WrongSourceQp "drop_wrong_source_qp",
        /// A management datagram, and no room to keep it (its sender repeats it).
        ManagementQueueFull "drop_management_queue_full",
        /// A datagram to a multicast group to which no queue pair is attached.
        NoSuchGroup "drop_no_such_group",
        /// From the UDP source port that the peer had in an earlier life of the connection, or from
        /// one that it does not have.
        OtherSourcePort "drop_other_source_port",
        /// It was buffered already, with other bytes: neither is trusted.
        OutOfOrderConflict "drop_out_of_order_conflict",
        /// A congestion notification packet (CNP) that does not tell its receiver of congestion:
        /// without BECN.
        NoCongestion "drop_cnp_without_becn",
        /// A response or ACK that fits no outstanding request.
        UnexpectedResponse "drop_unexpected_response",
        /// A response to a request that was answered before.
        StaleResponse "drop_stale_response",
        /// A response after a gap: the responses between are lost (requested again).
        ResponseGap "drop_response_gap",
        /// Not a packet that came, but an answer that a removed queue pair owed: too many of them
        /// waited for room on the wire.
        FinalAnswerLost "drop_final_answer_lost",
        /// Not a packet that came, but a management datagram to be sent by a port that is gone.
        ManagementLost "drop_management_lost",
        /// Not a packet that came, but the answer to a duplicate READ: its memory is gone, or its
        /// queue pair has ended.
        ReplayLost "drop_replay_lost",
    }
}

/// Disposition of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It was executed.
    Accepted,
    /// It is ahead of its turn and buffered; its effect is counted later.
    Buffered,
    /// It did nothing, for this reason.
    Dropped(DropReason),
}

/// Why a control call cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Reject {
    /// No queue pair of that number.
    #[error("no queue pair {0}")]
    NoSuchQp(Qpn),
    /// No shared receive queue of that number.
    #[error("no {0}")]
    NoSuchSrq(Srqn),
    /// The state does not allow the change.
    #[error("a queue pair in state {from} cannot go to state {to}")]
    InvalidState {
        /// Present state, number of `roced_types::state`.
        from: u32,
        /// Asked state.
        to: u32,
    },
    /// Attributes missing or not allowed for this change.
    #[error("attribute mask: 0x{missing:x} missing, 0x{excess:x} not allowed")]
    InvalidMask {
        /// Bits that had to be there.
        missing: u32,
        /// Bits that may not be there.
        excess: u32,
    },
    /// An attribute is out of its range.
    #[error("attribute 0x{attribute:x} cannot be {value}")]
    InvalidAttribute {
        /// Its bit of `roced_types::attribute`.
        attribute: u32,
        /// The requested value.
        value: u64,
    },
    /// The table is full or the key is taken.
    #[error("no room in the table")]
    NoRoom,
}
