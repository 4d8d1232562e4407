//! Sizes on the command line: a number of bytes, or one with K, M or G (1024, 1024², 1024³).

/// The bytes that `text` says.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    // `from_str` would take a plus sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a size is a number of bytes, or one with K, M or G, such as 64K".into());
    }
    let too_large = || "that is more than 64 bits of bytes".to_owned();
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

/// A size as short as it can be said exactly: `64 KiB`, `1 GiB`, `1500 B`.
pub(crate) fn show(bytes: u64) -> String {
    for (unit, shift) in [("G", 30), ("M", 20), ("K", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}iB", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// A size as a person compares it: `1.5 GiB`.
pub(crate) fn about(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    // Whole steps of 1024; 2^64 bytes would be 16 EiB, so the last unit is enough.
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    if unit == 0 { show(bytes) } else { format!("{:.1} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [("0", 0), ("1500", 1500), ("4K", 4096), ("4k", 4096), ("3M", 3 << 20), ("1G", 1 << 30)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn the_last_size_that_fits_is_taken_and_the_next_is_not() {
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
        assert!(parse("18446744073709551616").is_err());
        assert_eq!(parse("17179869183G"), Ok(u64::MAX >> 30 << 30));
        assert!(parse("17179869184G").is_err());
    }

    #[test]
    fn an_invalid_size_is_refused() {
        for text in ["", "K", "1.5K", "-1", "+1", "1KB", "1 K", "ten", "1T", "0x10", "٣", "1ſ"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_shown_exactly() {
        for (bytes, shown) in [(0, "0 B"), (1500, "1500 B"), (65536, "64 KiB"), (1 << 30, "1 GiB"), (1025, "1025 B")] {
            assert_eq!(show(bytes), shown);
        }
    }

    #[test]
    fn sizes_are_compared_with_one_digit() {
        for (bytes, shown) in [(1023, "1023 B"), (1536, "1.5 KiB"), (65 << 30, "65.0 GiB"), (u64::MAX, "16.0 EiB")] {
            assert_eq!(about(bytes), shown);
        }
    }
}
