//! Codes of path MTUs.

/// Returns the code of the largest path MTU of at most `bytes`, as in verbs (`enum ibv_mtu`) and in
/// messages of the connection manager: 1 for 256 bytes to 5 for 4096; 0 for less than 256.
///
/// ```
/// assert_eq!([0, 255, 256, 1500, 4096, 9000].map(roced_types::mtu_code), [0, 0, 1, 3, 5, 5]);
/// ```
pub const fn mtu_code(bytes: u32) -> u8 {
    match bytes {
        0..256 => 0,
        256..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        4096.. => 5,
    }
}

/// Returns the path MTU of a code, in bytes; `None` for codes that IBTA does not define.
///
/// ```
/// assert_eq!([0, 1, 5, 6].map(roced_types::mtu_of_code), [None, Some(256), Some(4096), None]);
/// ```
pub const fn mtu_of_code(code: u8) -> Option<u32> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_path_mtus_are_inverse() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!((mtu_code(bytes), mtu_of_code(code)), (code, Some(bytes)));
        }
        assert_eq!([0, 6, 15].map(mtu_of_code), [None; 3]);
        assert_eq!([0, 255, 8192, u32::MAX].map(mtu_code), [0, 0, 5, 5]);
    }
}
