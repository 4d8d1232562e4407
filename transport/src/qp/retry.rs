//! The codes of timers and how often to try again.

use crate::clock::Nanos;

/// `retry_cnt` and `rnr_retry` have three bits.
pub(crate) const RETRY_MAX: u32 = 7;

/// An `rnr_retry` of 7 tries for ever (IBTA v1 9.9.2.4.1); a `retry_cnt` of 7 means seven.
pub(crate) const RNR_RETRY_FOREVER: u32 = 7;

/// How long a requester waits for an answer: 4.096 us * 2^code, for ever with code 0 (IBTA v1 9.7.6.1.3).
pub(crate) const fn ack_timeout(code: u32) -> Nanos {
    if code == 0 { Nanos::NEVER } else { Nanos(4096 << (code & 31)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_specifications() {
        assert_eq!(ack_timeout(14), Nanos(67_108_864));
        assert_eq!(ack_timeout(31), Nanos(4096 << 31));
        assert_eq!(ack_timeout(0), Nanos::NEVER);
    }
}
