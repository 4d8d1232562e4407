//! Timer codes and retry limits.

use crate::clock::Nanos;

/// `retry_cnt` and `rnr_retry` have three bits.
pub(crate) const RETRY_MAX: u32 = 7;

/// Value of `rnr_retry` that retries for ever (IBTA v1 9.9.2.4.1); a `retry_cnt` of 7 means seven.
pub(crate) const RNR_RETRY_FOREVER: u32 = 7;

/// Shortest ACK timeout in use, 16.8 ms; smaller codes count as this one. Adapters do the same
/// (ConnectX from 12 to 16 by model): programs that request microseconds run on them with
/// milliseconds, and would fail with the timeout that they request. NAKs and probes find losses
/// long before.
const TIMEOUT_CODE_MIN: u32 = 12;

/// ACK timeout of a requester: 4.096 us * 2^code, for ever with code 0 (IBTA v1 9.7.6.1.3, which
/// allows up to four times as long).
pub(crate) const fn ack_timeout(code: u32) -> Nanos {
    match code & 31 {
        0 => Nanos::NEVER,
        code if code < TIMEOUT_CODE_MIN => Nanos(4096 << TIMEOUT_CODE_MIN),
        code => Nanos(4096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_specifications() {
        assert_eq!(ack_timeout(14), Nanos(67_108_864));
        assert_eq!(ack_timeout(31), Nanos(4096 << 31));
        assert_eq!(ack_timeout(0), Nanos::NEVER);
        assert_eq!([1, 8, 12].map(ack_timeout), [Nanos(16_777_216); 3]);
        assert_eq!(ack_timeout(13), Nanos(33_554_432));
    }
}
