//! roced through its client library, in this process: what `roce-perf` does not measure.

mod driver;
mod pairs;

pub(crate) use self::{
    driver::{Drive, Work, drive},
    pairs::{Ends, Pairs},
};
