//! Rate of a sender that follows congestion notification packets (CNPs), as DCQCN has it.
//!
//! ```text
//!   CNP ──► at most once a period: rate × (1 - share / 2); the old rate is the target
//!   time, bytes sent ──► half of the way back to the target, and after some steps a higher target
//! ```
//!
//! The names are those of mlx5's parameters and of the paper: "Congestion Control for Large-Scale
//! RDMA Deployments", SIGCOMM 2015; there the share is alpha, the rate `R_C` and the target `R_T`.
//! Unlike there a rate increases only while packets wait for it: else a sender with a full window
//! would have a higher rate after each round trip, and no CNP would slow it down. TAS (EuroSys
//! 2019) bounds rates by the bytes sent for the same reason. No timer runs: changes by time are
//! made when the rate is asked for, in a bounded number of steps.

use crate::clock::Nanos;

/// A megabit in a second, in bytes.
pub const MEGABIT_BYTES: u64 = 125_000;

/// Parameters of all queue pairs of an endpoint, under the names of mlx5 without their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcqcnParameters {
    /// Rate of the link in bytes per second: nothing is limited while a sender has it.
    pub line_rate: u64,
    /// Each cut sets the target to the present rate.
    pub clamp_tgt_rate: bool,
    /// The cut after an increase by time does so, not only the one after an increase by bytes.
    pub clamp_tgt_rate_after_time_inc: bool,
    /// An increase follows each such time without a cut.
    pub rpg_time_reset: Nanos,
    /// An increase follows so many bytes; 0 for none.
    pub rpg_byte_reset: u64,
    /// Increases that only go back to the target, before the target rises.
    pub rpg_threshold: u8,
    /// Highest rate of a limited sender in bytes per second; 0 for the link's.
    pub rpg_max_rate: u64,
    /// Rise of the target in bytes per second.
    pub rpg_ai_rate: u64,
    /// Rise of the target when both time and bytes have passed the threshold, in bytes per second.
    pub rpg_hai_rate: u64,
    /// A cut takes the share, of 1024, divided by two to this power.
    pub rpg_gd: u8,
    /// Percents of the rate that are left by each cut at least.
    pub rpg_min_dec_fac: u8,
    /// Lowest rate in bytes per second.
    pub rpg_min_rate: u64,
    /// Rate after the first CNP in bytes per second; 0 for the link's, which is cut like any other.
    pub rate_to_set_on_first_cnp: u64,
    /// Weight of the old share, of 1024.
    pub dce_tcp_g: u16,
    /// Time after which the share is renewed.
    pub dce_tcp_rtt: Nanos,
    /// Least time from one cut to the next.
    pub rate_reduce_monitor_period: Nanos,
    /// Share at the first CNP, of 1024.
    pub initial_alpha_value: u16,
}

impl DcqcnParameters {
    /// Defaults of `ConnectX` firmware. Rises of the target do not follow the rate of the link:
    /// they are made for many queue pairs on a fast one.
    pub const fn mlx(line_rate: u64) -> Self {
        Self {
            line_rate,
            clamp_tgt_rate: false,
            clamp_tgt_rate_after_time_inc: true,
            rpg_time_reset: Nanos::from_micros(300),
            rpg_byte_reset: 32_767,
            rpg_threshold: 1,
            rpg_max_rate: 0,
            rpg_ai_rate: 5 * MEGABIT_BYTES,
            rpg_hai_rate: 50 * MEGABIT_BYTES,
            rpg_gd: 11,
            rpg_min_dec_fac: 50,
            rpg_min_rate: MEGABIT_BYTES,
            rate_to_set_on_first_cnp: 0,
            dce_tcp_g: 1019,
            dce_tcp_rtt: Nanos::from_micros(1),
            rate_reduce_monitor_period: Nanos::from_micros(4),
            initial_alpha_value: 1023,
        }
    }

    /// Parameters of the paper, with increases in proportion to the link: its 40 Mbit/s at 10 Gbit/s.
    pub const fn paper(line_rate: u64) -> Self {
        Self {
            clamp_tgt_rate: true,
            rpg_time_reset: Nanos::from_micros(55),
            rpg_byte_reset: 10_000_000,
            rpg_threshold: 5,
            rpg_ai_rate: line_rate / 250,
            rpg_hai_rate: line_rate / 25,
            rpg_min_rate: line_rate / 1000,
            dce_tcp_g: 1020,
            dce_tcp_rtt: Nanos::from_micros(55),
            rate_reduce_monitor_period: Nanos::from_micros(50),
            ..Self::mlx(line_rate)
        }
    }

    /// Highest rate of a limited sender.
    const fn cap(&self) -> u64 {
        match self.rpg_max_rate {
            0 => self.line_rate,
            rate if rate < self.line_rate => rate,
            _ => self.line_rate,
        }
    }
}

impl Default for DcqcnParameters {
    /// Those of the paper on a link of 10 Gbit/s.
    fn default() -> Self {
        Self::paper(10_000 * MEGABIT_BYTES)
    }
}

/// Share of periods with CNPs that is all of them; 1024 of mlx5's units.
const ALL: u32 = 1 << 20;

/// A power of two that is one, for powers of a weight.
const UNIT: u64 = 1 << 31;

/// Periods of increases without a packet after which a sender counts as idle.
const IDLE_PERIODS: u64 = 32;

/// Increases by time between two packets of a sender.
const INCREASES_MAX: u64 = 8;

/// The rate, and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Dcqcn {
    /// In bytes per second.
    rate: u64,
    target: u64,
    /// Of periods with CNPs, lately.
    share: u32,
    /// When the share is renewed; when a cut may follow; when an increase follows.
    share_at: Nanos,
    cut_at: Nanos,
    increase_at: Nanos,
    /// Since the last increase by bytes.
    bytes: u64,
    /// Increases since the last cut.
    time_stage: u8,
    byte_stage: u8,
    /// Only a limited sender has a rate.
    is_limited: bool,
    /// A CNP came since the share was renewed; one came since the last cut.
    is_notified: bool,
    owes_cut: bool,
    /// The next cut sets the target.
    has_risen: bool,
    /// A packet has waited for the rate since the last increase.
    is_in_use: bool,
}

impl Dcqcn {
    pub(crate) const fn new() -> Self {
        Self {
            rate: 0,
            target: 0,
            share: 0,
            share_at: Nanos(0),
            cut_at: Nanos(0),
            increase_at: Nanos(0),
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
            is_limited: false,
            is_notified: false,
            owes_cut: false,
            has_risen: false,
            is_in_use: false,
        }
    }

    /// Bytes per second, as of the last call of another method; `None` without a limit.
    #[inline]
    pub(crate) const fn rate(&self) -> Option<u64> {
        if self.is_limited { Some(self.rate) } else { None }
    }

    /// A CNP came at `now`; the rate permits the next packet at `next_send`.
    pub(crate) fn on_notification(&mut self, now: Nanos, next_send: Nanos, with: &DcqcnParameters) {
        self.follow(now, next_send, with);
        if !self.is_limited {
            self.begin(now, with);
        }
        self.renew_share(now, with);
        self.is_notified = true;
        if !self.owes_cut {
            self.owes_cut = true;
            self.cut_at = self.cut_at.max(now);
        }
        self.follow(now, next_send, with);
    }

    fn begin(&mut self, now: Nanos, with: &DcqcnParameters) {
        let rate = match with.rate_to_set_on_first_cnp {
            0 => with.cap(),
            rate => rate.min(with.cap()),
        };
        *self = Self {
            rate,
            target: rate,
            share: u32::from(with.initial_alpha_value.min(1024)) << 10,
            share_at: now + with.dce_tcp_rtt,
            cut_at: now,
            increase_at: now + with.rpg_time_reset,
            is_limited: true,
            ..Self::new()
        };
    }

    /// A packet waits for the rate.
    #[inline]
    pub(crate) const fn on_waiting(&mut self) {
        self.is_in_use = true;
    }

    /// The sender sent so many bytes.
    pub(crate) fn on_sent(&mut self, bytes: usize, with: &DcqcnParameters) {
        if !self.is_limited || with.rpg_byte_reset == 0 {
            return;
        }
        self.bytes += bytes as u64;
        if self.bytes >= with.rpg_byte_reset {
            self.bytes %= with.rpg_byte_reset;
            if core::mem::take(&mut self.is_in_use) {
                self.byte_stage = self.byte_stage.saturating_add(1);
                self.has_risen = true;
                self.increase(with);
            }
        }
    }

    /// Makes the changes of the time up to `now`; the rate permits the next packet at `next_send`.
    #[inline]
    pub(crate) fn follow(&mut self, now: Nanos, next_send: Nanos, with: &DcqcnParameters) {
        if self.is_limited && self.next_change() <= now {
            self.catch_up(now, next_send, with);
        }
    }

    fn next_change(&self) -> Nanos {
        if self.owes_cut { self.cut_at.min(self.increase_at) } else { self.increase_at }
    }

    fn catch_up(&mut self, now: Nanos, next_send: Nanos, with: &DcqcnParameters) {
        // A packet that waits now has waited all the time, or nothing was sent.
        let is_in_use = core::mem::take(&mut self.is_in_use);
        if self.owes_cut && self.cut_at <= now {
            let at = self.cut_at;
            self.pass_periods(at, next_send, is_in_use, with);
            if !self.is_limited {
                return;
            }
            self.renew_share(at, with);
            self.cut(at, with);
        }
        self.pass_periods(now, next_send, is_in_use, with);
    }

    /// Periods of increases end up to `until`. A sender in use makes up for at most
    /// [`INCREASES_MAX`] of them: at a low rate its packets are many periods apart, and an increase
    /// for each period would end the limit before the network has seen a packet.
    fn pass_periods(&mut self, until: Nanos, next_send: Nanos, is_in_use: bool, with: &DcqcnParameters) {
        if !self.is_limited || until < self.increase_at {
            return;
        }
        let period = with.rpg_time_reset.0.max(1);
        let idle_from = self.increase_at.max(next_send);
        let periods = (until - self.increase_at).0 / period + 1;
        self.increase_at = Nanos(until.0 - (until - self.increase_at).0 % period) + Nanos(period);
        if !is_in_use {
            if until >= idle_from {
                self.grow_idle((until - idle_from).0 / period, with);
            }
            return;
        }
        for _ in 0..periods.min(INCREASES_MAX) {
            self.time_stage = self.time_stage.saturating_add(1);
            self.has_risen |= with.clamp_tgt_rate_after_time_inc;
            self.increase(with);
            if !self.is_limited {
                return;
            }
        }
    }

    /// An idle sender knows little of the present network: its rate grows by time.
    fn grow_idle(&mut self, periods: u64, with: &DcqcnParameters) {
        let increases = periods.saturating_sub(IDLE_PERIODS);
        if increases > 0 {
            self.target = self.target.saturating_add(increases.saturating_mul(with.rpg_hai_rate)).min(with.cap());
            self.rate = self.target;
            self.end_at_line(with);
        }
    }

    /// Periods up to `until` end: the first of them had CNPs or not, those after it had none.
    fn renew_share(&mut self, until: Nanos, with: &DcqcnParameters) {
        if until < self.share_at {
            return;
        }
        let period = with.dce_tcp_rtt.0.max(1);
        let mut periods = (until - self.share_at).0 / period + 1;
        self.share_at = Nanos(self.share_at.0.saturating_add(periods.saturating_mul(period)));
        let weight = u64::from(with.dce_tcp_g.min(1024));
        if self.is_notified {
            self.is_notified = false;
            periods -= 1;
            self.share = ((u64::from(self.share) * weight + u64::from(ALL) * (1024 - weight)) >> 10) as u32;
        }
        self.share = ((u64::from(self.share) * power(weight * (UNIT >> 10), periods)) / UNIT) as u32;
    }

    fn cut(&mut self, at: Nanos, with: &DcqcnParameters) {
        if with.clamp_tgt_rate || self.has_risen {
            self.target = self.rate;
        }
        let taken = (u128::from(self.rate) * u128::from(self.share)) >> (10 + u32::from(with.rpg_gd.min(63)));
        let left = self.rate.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
        let least = (self.rate / 100).saturating_mul(with.rpg_min_dec_fac.min(100).into());
        self.rate = left.max(least).max(with.rpg_min_rate).clamp(1, with.cap().max(1));
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        (self.owes_cut, self.has_risen) = (false, false);
        self.cut_at = at + with.rate_reduce_monitor_period;
        self.increase_at = at + with.rpg_time_reset;
    }

    fn increase(&mut self, with: &DcqcnParameters) {
        let (most, least) = (self.time_stage.max(self.byte_stage), self.time_stage.min(self.byte_stage));
        let rise = if most < with.rpg_threshold {
            0
        } else if least > with.rpg_threshold {
            with.rpg_hai_rate
        } else {
            with.rpg_ai_rate
        };
        self.target = self.target.saturating_add(rise).min(with.cap());
        // Rounded up: it reaches its target.
        self.rate = u64::midpoint(self.rate, self.target + 1);
        self.end_at_line(with);
    }

    /// A sender with the rate of the link is no longer limited.
    fn end_at_line(&mut self, with: &DcqcnParameters) {
        if self.rate >= with.line_rate - with.line_rate / 1000 {
            *self = Self::new();
        }
    }
}

/// A fraction of [`UNIT`] to a power.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    if exponent > 1 << 16 {
        return if base >= UNIT { UNIT } else { 0 };
    }
    let mut product = UNIT;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product = product * base / UNIT;
        }
        base = base * base / UNIT;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 10_000 * MEGABIT_BYTES;

    /// A rate as a share of the link's.
    fn of_line(dcqcn: &Dcqcn) -> f64 {
        dcqcn.rate().unwrap_or(LINE) as f64 / LINE as f64
    }

    /// Time passes while packets wait, and at least one leaves in each period.
    fn follow(dcqcn: &mut Dcqcn, now: Nanos, with: &DcqcnParameters) {
        while dcqcn.is_limited && dcqcn.next_change() <= now {
            dcqcn.on_sent(0, with);
            dcqcn.on_waiting();
            dcqcn.follow(dcqcn.next_change(), Nanos(0), with);
        }
    }

    fn at(micros: u64) -> Nanos {
        Nanos::from_micros(1_000_000 + micros)
    }

    #[test]
    fn without_a_notification_nothing_is_limited() {
        let (mut dcqcn, with) = (Dcqcn::new(), DcqcnParameters::paper(LINE));
        dcqcn.on_sent(1 << 30, &with);
        follow(&mut dcqcn, at(1 << 30), &with);
        assert_eq!(dcqcn.rate(), None);
    }

    #[test]
    fn the_first_notification_halves_and_five_steps_go_back() {
        let (mut dcqcn, with) = (Dcqcn::new(), DcqcnParameters::paper(LINE));
        dcqcn.on_notification(at(0), Nanos(0), &with);
        assert!((0.5..0.501).contains(&of_line(&dcqcn)), "{}", of_line(&dcqcn));
        for (step, share) in [(1, 0.75), (2, 0.875), (3, 0.9375)] {
            follow(&mut dcqcn, at(55 * step), &with);
            assert!((share..share + 0.001).contains(&of_line(&dcqcn)), "{step}: {}", of_line(&dcqcn));
        }
        follow(&mut dcqcn, at(55 * 20), &with);
        assert_eq!(dcqcn.rate(), None, "it has the rate of the link again");
    }

    #[test]
    fn notifications_of_one_period_cut_once_and_the_next_one_cuts_at_its_begin() {
        let (mut dcqcn, with) = (Dcqcn::new(), DcqcnParameters::paper(LINE));
        (0..10).for_each(|micros| dcqcn.on_notification(at(micros), Nanos(0), &with));
        assert!((0.5..0.501).contains(&of_line(&dcqcn)));
        follow(&mut dcqcn, at(49), &with);
        assert!(of_line(&dcqcn) > 0.5);
        follow(&mut dcqcn, at(50), &with);
        assert!((0.25..0.251).contains(&of_line(&dcqcn)), "{}", of_line(&dcqcn));
        follow(&mut dcqcn, at(104), &with);
        assert!((0.25..0.251).contains(&of_line(&dcqcn)), "one cut for all of them: {}", of_line(&dcqcn));
    }

    /// The share of periods with notifications falls by a 256th in each period without one.
    #[test]
    fn rare_notifications_cut_by_little() {
        let (mut dcqcn, with) = (Dcqcn::new(), DcqcnParameters::paper(LINE));
        dcqcn.on_notification(at(0), Nanos(0), &with);
        dcqcn.renew_share(at(55 * 512), &with);
        let share = f64::from(dcqcn.share) / f64::from(ALL);
        assert!((0.13..0.14).contains(&share), "(255/256)^512 = 0.135: {share}");
        dcqcn.renew_share(Nanos(u64::MAX / 2), &with);
        assert_eq!(dcqcn.share, 0);
    }

    #[test]
    fn the_rate_is_never_below_the_lowest_and_rises_from_there() {
        for with in [DcqcnParameters::paper(LINE), DcqcnParameters::mlx(LINE)] {
            let mut dcqcn = Dcqcn::new();
            (0..2000).for_each(|step| dcqcn.on_notification(at(step * 50), Nanos(0), &with));
            assert_eq!(dcqcn.rate(), Some(with.rpg_min_rate));
            let end = at(2000 * 50);
            follow(&mut dcqcn, end + Nanos::from_micros(1000), &with);
            assert!(dcqcn.rate().is_some_and(|rate| rate > 2 * with.rpg_min_rate), "{:?}", dcqcn.rate());
            // Two seconds are 6,666 increases of firmware's time.
            follow(&mut dcqcn, end + Nanos::from_millis(2000), &with);
            assert_eq!(dcqcn.rate(), None);
        }
    }

    #[test]
    fn bytes_raise_the_rate_as_time_does() {
        let with = DcqcnParameters { rpg_time_reset: Nanos::from_millis(1000), ..DcqcnParameters::mlx(LINE) };
        let mut dcqcn = Dcqcn::new();
        dcqcn.on_notification(at(0), Nanos(0), &with);
        dcqcn.on_waiting();
        dcqcn.on_sent(32_766, &with);
        assert!(of_line(&dcqcn) < 0.51);
        dcqcn.on_sent(1, &with);
        assert!((0.75..0.76).contains(&of_line(&dcqcn)), "{}", of_line(&dcqcn));
        let without = DcqcnParameters { rpg_byte_reset: 0, ..with };
        dcqcn.on_sent(1 << 30, &without);
        assert!(of_line(&dcqcn) < 0.76);
    }

    /// Above the threshold the target rises, and faster when both time and bytes are above it.
    #[test]
    fn the_target_rises_in_two_speeds() {
        let with = DcqcnParameters { rpg_byte_reset: 1000, ..DcqcnParameters::paper(LINE) };
        let mut dcqcn = Dcqcn::new();
        (0..100).for_each(|step| dcqcn.on_notification(at(step * 50), Nanos(0), &with));
        follow(&mut dcqcn, at(99 * 50), &with);
        let begin = at(99 * 50);
        let target = dcqcn.target;
        follow(&mut dcqcn, begin + Nanos::from_micros(55 * 4), &with);
        assert_eq!(dcqcn.target, target, "four steps go back to the target");
        follow(&mut dcqcn, begin + Nanos::from_micros(55 * 7), &with);
        assert_eq!(dcqcn.target, target + 3 * with.rpg_ai_rate);
        for _ in 0..6 {
            dcqcn.on_waiting();
            dcqcn.on_sent(1000, &with);
        }
        assert_eq!(dcqcn.target, target + 8 * with.rpg_ai_rate + with.rpg_hai_rate);
    }

    #[test]
    fn a_rate_that_no_packet_waits_for_does_not_increase() {
        let (mut dcqcn, with) = (Dcqcn::new(), DcqcnParameters::paper(LINE));
        dcqcn.on_notification(at(0), Nanos(0), &with);
        for step in 1..20 {
            dcqcn.on_sent(10_000_000, &with);
            dcqcn.follow(at(55 * step), Nanos(0), &with);
        }
        assert!((0.5..0.501).contains(&of_line(&dcqcn)), "{}", of_line(&dcqcn));
        dcqcn.follow(at(55 * 100), Nanos(0), &with);
        assert_eq!(dcqcn.rate(), None, "nothing was sent for 4 ms");
    }

    /// Packets of low rates are many periods apart.
    #[test]
    fn a_packet_that_waits_for_many_periods_makes_some_increases() {
        let with = DcqcnParameters::paper(LINE);
        let mut dcqcn = Dcqcn::new();
        (0..2000).for_each(|step| dcqcn.on_notification(at(step * 50), Nanos(0), &with));
        let mut now = at(2000 * 50);
        for packet in 1..=3 {
            dcqcn.on_sent(4096, &with);
            now = now + Nanos::from_millis(9);
            dcqcn.on_waiting();
            dcqcn.follow(now, now, &with);
            assert_eq!(u64::from(dcqcn.time_stage), packet * INCREASES_MAX);
            assert!(
                dcqcn.rate().is_some_and(|rate| rate < with.rpg_min_rate + packet * INCREASES_MAX * with.rpg_ai_rate)
            );
        }
    }

    #[test]
    fn a_sender_is_idle_from_the_time_that_its_rate_permits_a_packet() {
        let (mut dcqcn, with) = (Dcqcn::new(), DcqcnParameters::paper(LINE));
        dcqcn.on_notification(at(0), Nanos(0), &with);
        dcqcn.follow(at(9_000), at(8_000), &with);
        assert!((0.5..0.501).contains(&of_line(&dcqcn)), "{}", of_line(&dcqcn));
        dcqcn.follow(at(20_000), at(8_000), &with);
        assert_eq!(dcqcn.rate(), None);
    }

    #[test]
    fn a_lower_highest_rate_limits_without_end() {
        let with = DcqcnParameters { rpg_max_rate: LINE / 2, ..DcqcnParameters::paper(LINE) };
        let mut dcqcn = Dcqcn::new();
        dcqcn.on_notification(at(0), Nanos(0), &with);
        follow(&mut dcqcn, at(10_000_000), &with);
        assert_eq!(dcqcn.rate(), Some(LINE / 2));
    }

    #[test]
    fn any_parameters_and_any_times_keep_the_rate_within_its_bounds() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..2000 {
            let with = DcqcnParameters {
                line_rate: 1 + next(1 << 31),
                clamp_tgt_rate: next(2) == 0,
                clamp_tgt_rate_after_time_inc: next(2) == 0,
                rpg_time_reset: Nanos(next(1000)),
                rpg_byte_reset: next(3) * 100,
                rpg_threshold: next(32) as u8,
                rpg_max_rate: next(1 << 31),
                rpg_ai_rate: next(1 << 31),
                rpg_hai_rate: next(1 << 31),
                rpg_gd: next(16) as u8,
                rpg_min_dec_fac: next(101) as u8,
                rpg_min_rate: next(1 << 31),
                rate_to_set_on_first_cnp: next(1 << 31),
                dce_tcp_g: next(1025) as u16,
                dce_tcp_rtt: Nanos(next(1000)),
                rate_reduce_monitor_period: Nanos(next(1000)),
                initial_alpha_value: next(1025) as u16,
            };
            let (mut dcqcn, mut now) = (Dcqcn::new(), Nanos(next(1 << 31)));
            for _ in 0..50 {
                now = Nanos(now.0 + next(1 << 12));
                match next(3) {
                    0 => dcqcn.on_notification(now, Nanos(0), &with),
                    1 => dcqcn.on_sent(next(10_000) as usize, &with),
                    _ => {
                        dcqcn.on_waiting();
                        dcqcn.follow(now, Nanos(next(1 << 32)), &with);
                    }
                }
                assert!(dcqcn.rate().is_none_or(|rate| (1..=with.line_rate).contains(&rate)), "{with:?}");
                assert!(dcqcn.is_limited || (dcqcn.rate, dcqcn.increase_at) == (0, Nanos(0)), "{with:?}");
            }
        }
    }
}
