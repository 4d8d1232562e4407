//! Fates of frames on their way between the hosts.

/// Fate of a frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Deliver,
    Drop,
    Duplicate,
    Corrupt,
    /// Overtaken by so many frames.
    Late(usize),
    /// Marked by a congested switch.
    Mark,
}

/// Sets the ECN field to "congestion experienced", as a switch does (RFC 3168 5).
pub(crate) fn mark(frame: &mut [u8]) {
    let ip = &mut frame[14..];
    if ip[0] >> 4 == 6 {
        ip[1] |= 0x30;
        return;
    }
    ip[1] |= 3;
    ip[10..12].fill(0);
    let mut sum: u32 = ip[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
}
