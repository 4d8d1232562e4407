//! Times of the connection manager: exponents on the wire, intervals of repetition.

use core::time::Duration;

/// Response timeout that Linux announces, and so do we: 4.3 s.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// Longest response timeout of a peer that is believed: 17 s. An unknown peer could keep a
/// connection for hours.
pub const RESPONSE_TIMEOUT_MAX: u8 = 22;
/// Longest packet life time by which a REQ is repeated: 1 s, as that of Linux before 6.2.
pub const PACKET_LIFE_TIME_MAX: u8 = 18;
/// Longest ACK timeout of a peer or a program that is believed in TIMEWAIT, likewise: 4.3 s.
pub const ACK_TIMEOUT_MAX: u8 = 20;
/// Repetitions that Linux makes of an unanswered message.
pub const RETRIES: u8 = 15;
/// Service timeout of an MRA: 65.5 s.
pub const MRA_SERVICE_TIMEOUT: u8 = 24;

/// The first repetitions come early: a lost datagram costs a fraction of a second. Linux begins
/// after 4 to 6 s.
const EARLY: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
const LATE: Duration = Duration::from_secs(4);

/// The time of an exponent, 4.096 us to the power of two of it, in the milliseconds of Linux: 1 ms
/// at least.
pub fn of_exponent(exponent: u8) -> Duration {
    Duration::from_millis(1 << exponent.min(31).saturating_sub(8))
}

/// Interval before repetition `sent`, which counts from 1. `random` spreads it by up to an eighth,
/// lest many repeat at one moment.
pub fn repetition(sent: u32, random: u32) -> Duration {
    let interval = EARLY.get(sent.saturating_sub(1) as usize).copied().unwrap_or(LATE);
    interval + interval / 8 * (random % 256) / 256
}

/// ACK timeout of a path: the exponent of twice the packet life time and the peer's delay, as Linux
/// adds exponents.
pub fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let timeout = packet_life_time + 1;
    let sum = if timeout >= ack_delay {
        timeout + u8::from(ack_delay + 1 >= timeout)
    } else {
        ack_delay + u8::from(timeout + 1 >= ack_delay)
    };
    sum.min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_the_milliseconds_of_linux() {
        assert_eq!([20, 18, 16, 24].map(|exponent| of_exponent(exponent).as_millis()), [4096, 1024, 256, 65536]);
        assert_eq!((of_exponent(0).as_millis(), of_exponent(8).as_millis()), (1, 1));
        assert_eq!(of_exponent(255), of_exponent(31));
    }

    #[test]
    fn ack_timeouts_are_those_of_linux() {
        assert_eq!((ack_timeout(15, 18), ack_timeout(15, 16)), (19, 17));
        assert_eq!((ack_timeout(15, 14), ack_timeout(31, 31)), (16, 31));
    }

    #[test]
    fn repetitions_begin_early_and_end_at_four_seconds() {
        let intervals: [_; 6] = core::array::from_fn(|at| repetition(at as u32 + 1, 0).as_millis());
        assert_eq!(intervals, [250, 500, 1000, 2000, 4000, 4000]);
        assert!(repetition(9, u32::MAX) < Duration::from_millis(4501));
    }
}
