//! Networks of many hosts in virtual time: the production transport behind simulated switches.
//!
//! Each host is an [`Endpoint`](roced_transport::endpoint::Endpoint), a worker that has turns, and a
//! NIC with rings. Switches mark, drop and pause. Connections carry WRITEs or READs, and every
//! byte is compared where it arrives. One seed always gives the same run.
//!
//! ```text
//!   flow ─► endpoint ─► NIC ─► link ─► switch: queue, mark, drop, pause
//!                                         └─► link ─► NIC ─► endpoint ─► memory
//! ```
//!
//! A case is a network with its flows, and bars that its results must reach.
//!
//! ```
//! let report = roced_fabric::execute(&["ETS".to_owned()], true, 1, &|| ());
//! assert!(report.bars.iter().all(|bar| bar.met) && report.violations.is_empty());
//! ```

mod bar;
mod cases;
mod event;
mod execute;
mod flow;
mod frames;
mod host;
mod memory;
mod outcome;
mod picture;
mod queues;
mod run;
mod switch;
mod topology;

pub use self::{
    bar::Bar,
    execute::{FabricReport, RunRow, execute, runs},
    picture::Picture,
};

/// Names of cases with a sentence on each, and whether each belongs to the short form. The arguments
/// are those of [`execute`].
pub fn cases(only: &[String], is_quick: bool) -> Vec<(&'static str, &'static str, bool)> {
    execute::chosen(only, is_quick).iter().map(|case| (case.name, case.text, case.is_quick)).collect()
}
