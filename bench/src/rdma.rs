//! roced through its client library, in this process: measurements that `roce-perf` does not have.

mod driver;
mod pairs;

pub(crate) use self::{
    driver::{BenchWork, Drive, drive},
    pairs::{Ends, Pairs},
};
