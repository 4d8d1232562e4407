//! roced through its client library, in this process: what `roce-perf` does not measure.

mod driver;
mod pairs;

pub(crate) use self::{
    driver::{BenchWork, Drive, drive},
    pairs::{Ends, Pairs},
};
