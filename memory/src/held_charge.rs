//! A charge of an account that lasts as long as memory of the kernel: longer than the object that
//! the memory was for.

use std::{
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
};

/// Counts for an account until it is dropped.
pub type HeldCharge = Box<dyn fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe>;
