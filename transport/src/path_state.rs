//! State of the path to a destination, of a queue pair or an address handle.

use crate::{io::Egress, wire::path::Path};

/// State of the path to a destination.
#[derive(Clone, Copy, Debug)]
pub enum PathState {
    /// Resolution of the next hop's address is in progress: frames wait.
    Resolving,
    /// Resolved.
    Ready(Path),
    /// The next hop does not answer: frames are counted and dropped, so that retries run out.
    Unreachable,
}

impl PathState {
    /// Name of the state, as `rocectl qps` shows it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Resolving => "resolving",
            Self::Ready(path) => match path.via() {
                Egress::Nic { .. } | Egress::Group { .. } => "nic",
                Egress::HandOver { .. } | Egress::SameDevice => "local",
            },
            Self::Unreachable => "unreachable",
        }
    }
}
