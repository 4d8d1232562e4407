//! Choice of a congestion control, and its state as it is reported.

/// A reaction to congestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// Nothing: only [`crate::qp::QpConfig::window_packets`] limits a queue pair.
    #[default]
    Off,
    /// A window of requests follows CNPs and losses, and one of READ responses that are asked for
    /// follows marks and losses. A rate that follows CNPs limits packets without
    /// acknowledgments: READ responses and those of unreliable connections.
    Window,
    /// As [`Self::Window`], but requests follow CNPs by the rate, and the window losses only.
    Dcqcn,
}

/// Limits of a queue pair. Windows are in packets: fewer than one is one packet in several round
/// trips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CongestionState {
    /// Window of requests; `None` for a service without acknowledgments.
    pub request_window: Option<f64>,
    /// Window of READ responses that are asked for; `None` for a service without READs.
    pub response_window: Option<f64>,
    /// Rate of packets that follow CNPs by a rate, in bytes per second; `None` if it has no bound.
    pub rate_bytes_per_s: Option<u64>,
}
