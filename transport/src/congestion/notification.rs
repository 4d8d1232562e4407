//! Notification point (annex A17.9): tells senders of marked packets of the congestion.
//!
//! ```text
//!   data with a mark ──► at most one owed an interval ──► budget ──► CNP, ahead of everything
//!   anything else with a mark: counted
//! ```
//!
//! A congestion notification packet (CNP) is never acknowledged and never repeated. Only packets
//! that carry a part of a message cause one, so that a stream of ACKs does not slow down the other
//! direction, and two hosts never answer each other's notifications.

use alloc::boxed::Box;

use crate::{clock::Nanos, counters::named_counters, denied_sources::GidPrefix, slot_list::SlotList, wire::ecn};

/// Bytes of a CNP over IPv4.
pub const NOTIFICATION_BYTES: u64 = 74;

/// Accepted bytes for each CNP that is sent, on average, so that marks on all packets cause about an
/// eighth of the traffic that the worker accepts. A packet counts as [`NOTIFICATION_BYTES`] and its
/// payload: a large one earns the CNPs of several queue pairs, as a receiver of many senders
/// with a packet each in flight needs them.
pub const BYTES_PER_NOTIFICATION: u64 = 8 * NOTIFICATION_BYTES;

/// CNPs sent at once after a quiet time. A guess: as many senders as begin at one moment to send to
/// one host.
pub const NOTIFICATION_BURST: u64 = 64;

/// Options of the notification point of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationConfig {
    /// CNPs are sent. Marks are counted in any case.
    pub is_enabled: bool,
    /// Least time between two CNPs of a queue pair, at most [`INTERVAL_MAX`].
    pub interval: Nanos,
    /// DSCP of CNPs, 6 bits. Their ECN field says that they are not to be marked.
    pub dscp: u8,
    /// Priority of CNPs with a VLAN tag, 3 bits.
    pub priority: u8,
    /// Networks with peers that get none: Linux's `rdma_rxe` before 5.12 takes one for a response.
    pub except: Box<[GidPrefix]>,
}

impl NotificationConfig {
    /// Traffic class of CNPs.
    pub(crate) const fn traffic_class(&self) -> u8 {
        self.dscp << 2 | ecn::NOT_CAPABLE
    }

    /// A peer with this address may get CNPs.
    pub(crate) fn serves(&self, peer: &[u8; 16]) -> bool {
        self.is_enabled && !self.except.iter().any(|network| network.has(peer))
    }
}

impl Default for NotificationConfig {
    /// The interval of the paper that describes DCQCN, DSCP and priority of adapters.
    fn default() -> Self {
        Self { is_enabled: true, interval: Nanos::from_micros(50), dscp: 48, priority: 6, except: Box::default() }
    }
}

named_counters! {
    /// Counters of congestion. An endpoint has them, not each queue pair: an idle queue pair shall
    /// cost little memory.
    NotificationCount, NotificationCounters {
        /// Packets of any kind received with the mark of a congested switch that passed the checks
        /// of the endpoint, those that a queue pair drops included.
        Marked "np_ecn_marked_roce_packets",
        /// CNPs sent.
        Sent "np_cnp_sent",
        /// Marked packets that caused no CNP because too little had been received for one more.
        Suppressed "cnp_sent_suppressed",
        /// CNPs received that a congestion window or a rate followed.
        Handled "rp_cnp_handled",
        /// CNPs received without an effect.
        Ignored "rp_cnp_ignored",
        /// Storms of pauses (PFC) of a class that the watchdog detected.
        PauseStorm "pfcwd_storms",
        /// Those that have ended.
        PauseStormEnd "pfcwd_restored",
    }
}

/// CNPs of an endpoint: options, counters, and the queue pairs that owe one.
#[derive(Debug)]
pub(crate) struct Notifications {
    pub(crate) config: NotificationConfig,
    pub(crate) counters: NotificationCounters,
    /// Queue pairs that owe a CNP.
    pub(crate) owed: SlotList,
    pub(crate) budget: NotificationBudget,
}

impl Notifications {
    /// Of an endpoint with at most `max_qps` queue pairs.
    pub(crate) fn new(max_qps: u32) -> Self {
        Self {
            config: NotificationConfig::default(),
            counters: NotificationCounters::default(),
            owed: SlotList::new(max_qps),
            budget: NotificationBudget::default(),
        }
    }

    /// There may be a CNP to be sent.
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.owed.is_empty()
    }
}

/// Bound of an endpoint's CNPs by the bytes that it has accepted.
#[derive(Debug)]
pub(crate) struct NotificationBudget {
    /// Bytes that no CNP was sent for.
    bytes: u64,
    /// Bytes received when this was last looked at.
    received: u64,
}

impl Default for NotificationBudget {
    fn default() -> Self {
        Self { bytes: NOTIFICATION_BURST * BYTES_PER_NOTIFICATION, received: 0 }
    }
}

impl NotificationBudget {
    /// Takes a CNP from the budget of an endpoint that has received so many packets, with so many
    /// bytes of payload; false if there is none.
    pub(crate) fn take(&mut self, packets: u64, payload_bytes: u64) -> bool {
        let received = packets.wrapping_mul(NOTIFICATION_BYTES).wrapping_add(payload_bytes);
        let fresh = received.wrapping_sub(self.received);
        self.received = received;
        let bytes = self.bytes.saturating_add(fresh).min(NOTIFICATION_BURST * BYTES_PER_NOTIFICATION);
        let left = bytes.checked_sub(BYTES_PER_NOTIFICATION);
        self.bytes = left.unwrap_or(bytes);
        left.is_some()
    }
}

/// Longest [`NotificationConfig::interval`].
pub const INTERVAL_MAX: Nanos = Nanos::from_micros(4095);

/// Notification point of one queue pair, in four bytes: no other CNP before this, in microseconds
/// modulo 2^31, and [`OWED`]. The clock wraps, and is within the few milliseconds before it once in
/// 35 minutes; a mark within these is not answered if there was none since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NotificationPoint(u32);

/// A CNP is owed.
const OWED: u32 = 1 << 31;

impl NotificationPoint {
    /// A mark at `now` causes a CNP, within the budget of the endpoint.
    pub(crate) const fn is_due(self, now: Nanos) -> bool {
        const MOST: u32 = micros(INTERVAL_MAX) + 1;
        let wait = self.0.wrapping_sub(micros(now)) & !OWED;
        !self.is_owed() && (wait == 0 || wait > MOST)
    }

    /// Notes that a CNP is owed from now on.
    pub(crate) const fn owe(&mut self) {
        self.0 |= OWED;
    }

    /// Whether a CNP is owed.
    pub(crate) const fn is_owed(self) -> bool {
        self.0 & OWED != 0
    }

    /// The CNP was sent at `now`.
    pub(crate) fn on_sent(&mut self, now: Nanos, interval: Nanos) {
        // Not before the interval is over, of any part of a microsecond.
        self.0 = micros(now + interval.min(INTERVAL_MAX) + Nanos(999)) & !OWED;
    }
}

/// Whole microseconds of a time, modulo 2^32.
const fn micros(time: Nanos) -> u32 {
    (time.0 / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_notification_is_sent_for_eight_small_packets_after_a_burst() {
        let mut budget = NotificationBudget::default();
        let mut taken = |packets: u64| u64::from(budget.take(packets, 0));
        // Marked packets alone, each of which asks for one. The first finds the budget full.
        let sent: u64 = (1..=80_001).map(&mut taken).sum();
        assert_eq!(sent, NOTIFICATION_BURST + 80_000 / 8);
        // Any time without marks gives one burst.
        let sent: u64 = (0..1000).map(|_| taken(10_000_000)).sum();
        assert_eq!(sent, NOTIFICATION_BURST);
        assert_eq!([taken(10_000_007), taken(10_000_008), taken(10_000_015)], [0, 1, 0]);
    }

    /// Each of many senders has one large packet in flight, and all are marked.
    #[test]
    fn a_large_packet_earns_its_notification() {
        let mut budget = NotificationBudget::default();
        assert!((1..10_000).all(|packets| budget.take(packets, packets * 1024)), "path MTU 1024");
        let (mut budget, mut payload) = (NotificationBudget::default(), 0);
        let sent = (1..=100_000).filter(|packets| {
            payload += 100;
            budget.take(*packets, payload)
        });
        let (sent, earned) = (sent.count() as u64, 100_000 * (NOTIFICATION_BYTES + 100) / BYTES_PER_NOTIFICATION);
        assert!((earned..=earned + NOTIFICATION_BURST).contains(&sent), "{sent}, an eighth of the bytes is {earned}");
    }

    #[test]
    fn budget_survives_a_wrap_of_the_byte_count() {
        let mut budget = NotificationBudget { bytes: 0, received: u64::MAX - 99 };
        assert!(!budget.take(0, 491) && budget.take(0, 492) && !budget.take(0, 493));
    }

    #[test]
    fn interval_begins_when_the_notification_is_sent() {
        let (interval, mut point) = (Nanos::from_micros(50), NotificationPoint::default());
        assert!(point.is_due(Nanos(0)), "the first mark is answered at once");
        point.owe();
        assert!(!point.is_due(Nanos(7)) && point.is_owed());
        point.on_sent(Nanos(1000), interval);
        assert!(!point.is_owed() && !point.is_due(Nanos(50_999)) && point.is_due(Nanos(51_000)));
        point.on_sent(Nanos(51_001), interval);
        assert!(!point.is_due(Nanos(101_000)) && point.is_due(Nanos(102_000)));
        point.on_sent(Nanos(200_000), Nanos(0));
        assert!(point.is_due(Nanos(200_000)));
    }

    /// The clock of a queue pair has 31 bits: no quiet time makes it wait for long.
    #[test]
    fn a_mark_after_any_quiet_time_is_due_within_milliseconds() {
        for begin in [0, 7_000_000_000, 2_147_483_648_000, 4_294_967_295_000, u64::MAX / 2] {
            let mut point = NotificationPoint::default();
            point.on_sent(Nanos(begin), Nanos::from_micros(50));
            assert!(!point.is_due(Nanos(begin + 49_000)), "{begin}");
            for quiet in (0..u64::from(u32::MAX)).step_by(1 << 22).chain([60, 4_294_967_290, 4_294_967_300]) {
                let at = Nanos(begin + quiet.max(60) * 1000);
                assert!(point.is_due(at) || point.is_due(at + Nanos::from_micros(4100)), "{begin} {quiet}");
            }
        }
    }

    #[test]
    fn peers_of_excepted_networks_are_not_served() {
        let gid = |address: &str| roced_types::gid_of(address.parse().expect("an address"));
        let config = NotificationConfig {
            except: [GidPrefix::new(gid("10.9.0.0"), 96 + 16)].into(),
            ..NotificationConfig::default()
        };
        assert!(config.serves(&gid("10.8.0.1")) && !config.serves(&gid("10.9.7.1")));
        let off = NotificationConfig { is_enabled: false, ..NotificationConfig::default() };
        assert!(!off.serves(&gid("10.8.0.1")));
    }
}
