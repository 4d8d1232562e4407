//! IPsec security associations of RoCE (RFC 4303, RFC 4106): keys, AES-GCM, nonces, limits.
//!
//! ```text
//!   control thread   KeyMaterial ─► OutboundSa (shared) ─► OutboundSender for each worker
//!                               └─► InboundSa, of one worker
//!   worker, out      plain frame ─► OutboundSender::seal ─► NIC
//!   worker, in       NIC ─► EspFrame::read ─► the InboundSa of its SPI ─► open ─► plain frame ─► endpoint
//! ```
//!
//! `roced_transport::wire::esp` has the bytes, this crate everything that is secret. No key is
//! printed: `Debug` of its types has "…" in their place. Key material is cleared when it is
//! dropped, and so are the keys that AES-GCM made of it.
//!
//! A nonce is used once with a key, by construction: it is a number of a counter that no two
//! senders share, as [`OutboundSa`] gives each sender another one. Neither type can be cloned: a
//! copy of a counter would repeat its nonces, a copy of a replay window would accept repetitions.
//!
//! The workers share the sequence numbers of an outbound security association, which is the one
//! exception to the rule that workers share no counter: a sender reserves a run of few numbers at a
//! time, and returns the rest at the end of a poll iteration.
#![forbid(unsafe_code)]

mod aes_gcm;
mod inbound;
mod iv;
mod key;
mod outbound;

pub use aes_gcm::AesGcm;
pub use inbound::{InboundParameters, InboundSa};
pub use key::{KeyMaterial, UnknownKeyLength};
pub use outbound::{Lifetime, OutboundParameters, OutboundSa, OutboundSender, SealRefusal};
