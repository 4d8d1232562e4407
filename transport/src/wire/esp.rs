//! IPsec ESP (RFC 4303) around frames of RoCEv2, without cryptography and keys: sequence numbers
//! and the replay window.

mod refusal;
mod replay;
mod sequence;

pub use refusal::{EspRefusal, EspRefusals};
pub use replay::{REPLAY_WINDOW, ReplayWindow};
pub use sequence::{EspSequence, Numbering, SequenceRun, SequenceSource, SequenceSpent};

use thiserror::Error;

/// The ICV is not that of ciphertext and header: forged, changed, or sealed with another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ICV does not hold")]
pub struct BadIcv;
