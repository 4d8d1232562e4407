//! Client memory and the rings shared with clients: mapping, access, accounting.
//!
//! The control thread creates everything here and hands it to workers completely, so that no lock
//! lies between a client and its packets, except for proxied memory, where a worker waits for a
//! copy thread.
//!
//! | file | content |
//! |---|---|
//! | `descriptor.rs` | file descriptors that clients pass |
//! | `mapping.rs` | mappings of client files, unmapped once and in the right thread |
//! | `quota.rs` | how many mappings a user may cost |
//! | `client_memory.rs` | access to mapped memory, within its bounds |
//! | `copies.rs` | copies and atomic operations on memory that others change meanwhile |
//! | `proxied.rs`, `proxied/` | access to memory that cannot be mapped, by `/proc/self/mem` |
//! | `backing.rs` | either of both |
//! | `accounts.rs` | accounts of clients |
//! | `shared_fd.rs` | descriptors of the daemon with another end, at a client |
//! | `spare_numbers.rs` | numbers of descriptors that are kept for messages |
//! | `chores.rs` | threads of users, for work of the kernel that a client can make long |
//! | `waking.rs` | which thread wakes a client: a message may take the kernel long |
//! | `client_socket.rs` | sockets of which a client has the other end |
//! | `channel.rs` | completion channels |
//! | `stall_budget.rs` | how long a user's memory may keep workers waiting |
//! | `unread.rs` | descriptors in replies that programs have not received |
//! | `sigbus.rs` | pages that are missing under a mapping (SIGBUS) |
//! | `first_touch.rs` | pages that no client has touched are not made by us |
//! | `poll_id.rs` | identities of poll iterations |
//! | `access_log.rs` | session of the memory that a worker waits for |
//! | `stall_meter.rs` | how long a worker waits for mapped memory, by session |
//! | `clock.rs` | clocks of the kernel |
//! | `held_charge.rs` | charges that last as long as memory of the kernel |
//! | `heap.rs` | the daemon's own memory goes back to the system |
//! | `thread_start.rs` | begin of the threads that copy, and of users |
//! | `queues.rs` | rings of queue pairs, CQs and SRQs |
//! | `arm_word.rs` | words by which programs ask for events of CQs |

pub mod access_log;
pub mod accounts;
mod arm_word;
pub mod backing;
pub mod channel;
pub(crate) mod chores;
pub mod client_memory;
pub mod client_socket;
pub mod clock;
mod copies;
pub mod descriptor;
pub mod first_touch;
pub mod heap;
pub mod held_charge;
pub mod mapping;
pub mod poll_id;
pub mod proxied;
pub mod queues;
pub mod quota;
pub mod shared_fd;
pub mod sigbus;
pub(crate) mod spare_numbers;
pub(crate) mod stall_budget;
mod stall_meter;
pub mod thread_start;
pub mod unread;
pub(crate) mod waking;
