//! Facts that two sides must agree on.
//!
//! `steer` lies between kernel and daemon, `abi` between client and daemon, `ids` are the numbers
//! that both speak of. Nothing here does anything by itself: no system call, no thread, no
//! allocation. Whoever changes a byte of `abi` changes [`abi::VERSION`] with it.
#![no_std]

extern crate alloc;

pub mod abi;
pub mod ids;
pub mod report;
pub mod steer;
pub mod sync;
