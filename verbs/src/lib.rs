//! `libibverbs.so.1` over roced: programs that were built against the verbs of rdma-core run as
//! they are.
//!
//! ```text
//!   program ─► ibv_* symbol ────────► a function here ─► roced-client ─► daemon, shared rings
//!         └──► static inline of verbs.h ─► ibv_context ops ──┘
//! ```
//!
//! A thin layer: `roced-client` and the daemon define the meaning of calls. Here are C's structs
//! (`abi`), the objects that programs hold by pointer (`object`), and errors as errno numbers
//! (`errno`). Operations that roced does not have return EOPNOTSUPP.
//!
//! Arguments of programs are trusted as in every C library: a pointer is valid as verbs require.
//! Nothing here unwinds into the program: functions of the C ABI do not.
//!
//! The library keeps no thread: registering private memory and dropping it, and a fork beside it,
//! start the thread `roced-memory`, which ends before the call does. Until a program asks for
//! devices the library opens no file descriptor.

mod abi;
mod absent;
mod acknowledge;
mod ah;
mod buf;
mod channel;
mod cm;
mod context;
mod cq;
mod cq_ex;
mod device;
mod errno;
mod event;
mod exports;
mod fork;
mod marshal;
mod modify;
mod mr;
mod multicast;
mod mw;
mod object;
mod open;
mod pd;
mod post;
mod qp;
mod query;
mod rate;
mod srq;
mod sysfs;
mod text;
mod wr;
