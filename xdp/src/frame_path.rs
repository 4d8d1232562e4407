//! Decision how a queue moves frames: by the driver (zero-copy) or the kernel (copy), in frames of
//! one chunk or of several.
//!
//! A driver may offer zero-copy for frames of one chunk only (`xdp_zc_max_segs`, Linux 6.6). Asked
//! for several chunks the kernel then copies, and does not say so; so several are asked for only if
//! frames of the link's MTU need them.

use crate::CopyMode;

/// Bytes before an IP packet: Ethernet header and one VLAN tag.
const HEADER_BYTES: usize = 14 + 4;

/// Zero-copy of a driver, by the netlink family "netdev".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverZeroCopy {
    /// The kernel does not say (before Linux 6.3).
    Unknown,
    /// None.
    None,
    /// For frames in at most that many chunks.
    Chunks(u32),
}

/// Chunks of a frame to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameChunks {
    /// One.
    One,
    /// As many as a frame may have (`XDP_USE_SG`).
    Several,
}

/// Decides by the link's MTU, the usable bytes of a chunk, the config and the driver.
pub(crate) fn frame_chunks(
    link_mtu_bytes: u32,
    chunk_bytes: usize,
    mode: CopyMode,
    driver: DriverZeroCopy,
) -> FrameChunks {
    let fits = link_mtu_bytes as usize + HEADER_BYTES <= chunk_bytes;
    if fits || mode == CopyMode::Zerocopy && driver == DriverZeroCopy::Chunks(1) {
        FrameChunks::One
    } else {
        FrameChunks::Several
    }
}

/// Why a queue is in the mode that it is in, for operators.
pub(crate) fn reason(is_zerocopy: bool, chunks: FrameChunks, mode: CopyMode, driver: DriverZeroCopy) -> &'static str {
    match (is_zerocopy, mode, driver) {
        (true, CopyMode::Zerocopy, DriverZeroCopy::Chunks(1)) => {
            "configured; the driver's zero-copy takes frames of one chunk, which may limit the path MTU"
        }
        (_, CopyMode::Zerocopy | CopyMode::Copy, _) => "configured",
        (true, CopyMode::Auto, _) => "the driver offers it",
        (false, CopyMode::Auto, DriverZeroCopy::None) => "the driver has no zero-copy",
        (false, CopyMode::Auto, DriverZeroCopy::Chunks(1)) if chunks == FrameChunks::Several => {
            "frames of the link's MTU need several chunks, the driver's zero-copy takes one: lower the MTU for zero-copy"
        }
        (false, CopyMode::Auto, DriverZeroCopy::Chunks(_)) => "the driver refused zero-copy",
        (false, CopyMode::Auto, DriverZeroCopy::Unknown) => "the driver has no zero-copy, or refused it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a chunk of 4096 bytes.
    const CHUNK: usize = 4096 - 256;

    #[test]
    fn several_chunks_are_asked_for_only_where_frames_need_them() {
        let chunks = |mtu, driver| frame_chunks(mtu, CHUNK, CopyMode::Auto, driver);
        for driver in [DriverZeroCopy::Unknown, DriverZeroCopy::None, DriverZeroCopy::Chunks(1)] {
            assert_eq!(chunks(1500, driver), FrameChunks::One, "{driver:?}");
            assert_eq!(chunks(3822, driver), FrameChunks::One, "{driver:?}");
            assert_eq!(chunks(3823, driver), FrameChunks::Several, "{driver:?}: the path MTU comes first");
        }
        assert_eq!(frame_chunks(1500, 2048 - 256, CopyMode::Auto, DriverZeroCopy::Unknown), FrameChunks::One);
        assert_eq!(frame_chunks(2000, 2048 - 256, CopyMode::Auto, DriverZeroCopy::Unknown), FrameChunks::Several);
    }

    #[test]
    fn zero_copy_that_is_configured_comes_before_the_path_mtu() {
        let chunks = |driver| frame_chunks(9000, CHUNK, CopyMode::Zerocopy, driver);
        assert_eq!(chunks(DriverZeroCopy::Chunks(1)), FrameChunks::One);
        assert_eq!(chunks(DriverZeroCopy::Chunks(17)), FrameChunks::Several);
    }

    #[test]
    fn the_reason_names_a_remedy_if_there_is_one() {
        let reason = |chunks, driver| reason(false, chunks, CopyMode::Auto, driver);
        assert!(reason(FrameChunks::Several, DriverZeroCopy::Chunks(1)).contains("lower the MTU"));
        assert!(reason(FrameChunks::Several, DriverZeroCopy::None).contains("no zero-copy"));
    }
}
