//! Quantities as a person reads them.

/// Bytes with a binary unit: `512 B`, `4 KiB`, `1.5 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    // Whole steps of 1024; 2^64 bytes would be 16 EiB, so the last unit is enough.
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let shown = format!("{:.1}", bytes as f64 / (1u64 << (10 * unit)) as f64);
    format!("{} {}", shown.strip_suffix(".0").unwrap_or(&shown), UNITS[unit])
}

/// A span of time by its two largest units: `5 s`, `3 min 20 s`, `4 h 0 min`, `12 d 7 h`.
pub(crate) fn duration(seconds: f64) -> String {
    let total = seconds.max(0.0) as u64;
    let (days, hours, minutes, seconds) = (total / 86_400, total / 3600 % 24, total / 60 % 60, total % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {seconds} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// A span of time in microseconds: `12.3 us`.
pub(crate) fn microseconds(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / 1000.0)
}

/// A count in groups of three digits: `1,234,567`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_largest_unit_that_leaves_one() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1 << 30, "1 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (value, shown) in cases {
            assert_eq!(bytes(value), shown);
        }
    }

    #[test]
    fn durations_show_two_units() {
        let cases = [(0.4, "0 s"), (59.9, "59 s"), (200.0, "3 min 20 s"), (14_400.0, "4 h 0 min"), (1e6, "11 d 13 h")];
        for (value, shown) in cases {
            assert_eq!(duration(value), shown);
        }
    }

    #[test]
    fn counts_are_grouped() {
        for (value, shown) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(value), shown);
        }
    }
}
