//! Rates of static rate control, as codes, multiples of 2.5 Gbit/s, and Mbit/s.

use std::ffi::c_int;

use crate::errno::{Errno, Result};

/// Code, multiple of 2.5 Gbit/s (of the base rate), Mbit/s.
const RATES: &[(c_int, c_int, c_int)] = &[
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 5, 14_062),
    (12, 22, 56_250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 41, 103_125),
    (17, 82, 206_250),
    (18, 123, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `IBV_RATE_MAX`: as fast as it goes.
const MAX: c_int = 0;

/// kbit/s of a code in an address, 0 for no limit.
pub(crate) fn to_kbit_per_s(code: u8) -> Result<u32> {
    if c_int::from(code) == MAX {
        return Ok(0);
    }
    let rate = RATES.iter().find(|rate| rate.0 == code.into()).ok_or(Errno::INVALID)?;
    Ok(rate.2.cast_unsigned() * 1000)
}

/// The code of [`to_kbit_per_s`].
pub(crate) fn from_kbit_per_s(kbit_per_s: u32) -> u8 {
    u8::try_from(from_mbps((kbit_per_s / 1000).cast_signed())).unwrap_or(0)
}

/// `ibv_rate_to_mult`.
pub(crate) extern "C" fn to_mult(code: c_int) -> c_int {
    RATES.iter().find(|rate| rate.0 == code).map_or(-1, |rate| rate.1)
}

/// `mult_to_ibv_rate`.
pub(crate) extern "C" fn from_mult(mult: c_int) -> c_int {
    RATES.iter().find(|rate| rate.1 == mult).map_or(MAX, |rate| rate.0)
}

/// `ibv_rate_to_mbps`.
pub(crate) extern "C" fn to_mbps(code: c_int) -> c_int {
    RATES.iter().find(|rate| rate.0 == code).map_or(-1, |rate| rate.2)
}

/// `mbps_to_ibv_rate`.
pub(crate) extern "C" fn from_mbps(mbps: c_int) -> c_int {
    RATES.iter().find(|rate| rate.2 == mbps).map_or(MAX, |rate| rate.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_has_its_own_code_and_comes_back() {
        for &(code, mult, mbps) in RATES {
            assert_eq!((from_mult(to_mult(code)), from_mbps(to_mbps(code))), (code, code), "{mult} {mbps}");
        }
        for code in (0..=255).filter(|code| *code == 0 || to_mbps(*code) > 0) {
            let code = u8::try_from(code).expect("below 256");
            assert_eq!(to_kbit_per_s(code).map(from_kbit_per_s), Ok(code));
        }
        assert_eq!((to_kbit_per_s(3), to_kbit_per_s(1)), (Ok(10_000_000), Err(Errno::INVALID)));
        assert_eq!((to_mult(99), to_mbps(99), from_mult(7), from_mbps(7)), (-1, -1, MAX, MAX));
    }
}
