//! A defect of NVIDIA's kernel driver that proxied memory meets.
//!
//! From version 595 on its `access` handler uses a context that mappings of registers do not have.
//! A read of such a mapping through `/proc/PID/mem` is a null dereference in the kernel, in the
//! thread that reads: the daemon's. The client chooses the address.

use std::fs;

/// Where the kernel shows the version of the loaded driver.
const VERSION: &str = "/sys/module/nvidia/version";
/// The first one with the defect. No later one is known to be without it.
const FIRST: u64 = 595;

/// Major version of the loaded driver, if it has the defect. Other text counts as the first.
pub(super) fn defective_version() -> Option<u64> {
    fs::read_to_string(VERSION).ok().and_then(|version| defective(&version))
}

fn defective(version: &str) -> Option<u64> {
    let major = version.trim().split('.').next().and_then(|major| major.parse().ok()).unwrap_or(FIRST);
    (major >= FIRST).then_some(major)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_from_595_on_count_as_defective() {
        assert_eq!(defective("595.45.04\n"), Some(595));
        assert_eq!(defective("610.10\n"), Some(610));
        assert_eq!(defective("580.95.05\n"), None);
        assert_eq!(defective("535\n"), None);
        assert_eq!(defective("unknown\n"), Some(595), "an unknown version is not trusted");
    }
}
