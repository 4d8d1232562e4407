//! Client memory and the rings shared with clients: mapping, access, accounting.
//!
//! The control thread makes everything here and hands it to workers whole, so that no lock lies between a client and its packets.
//! Neither `clients` nor `worker` is known here.
//!
//! | file | what |
//! |---|---|
//! | `descriptor.rs` | file descriptors that clients pass |
//! | `mapping.rs` | mappings of client files, unmapped once and in the right thread |
//! | `quota.rs` | how many mappings a user may cost |
//! | `client_memory.rs` | access to mapped memory: copies, atomic operations |
//! | `kept.rs`, `kept/` | access to memory that cannot be mapped, by `/proc/self/mem` |
//! | `reach.rs` | either of both |
//! | `credit.rs` | how long a user's memory may keep workers waiting |
//! | `lost.rs` | pages that are missing under a mapping (SIGBUS) |
//! | `touched.rs` | whose memory a worker waits for |
//! | `queues.rs` | rings and channels of queue pairs, CQs and SRQs |

pub mod client_memory;
pub(crate) mod credit;
pub(crate) mod descriptor;
pub(crate) mod kept;
pub(crate) mod lost;
pub mod mapping;
pub mod queues;
pub mod quota;
pub mod reach;
pub mod touched;
