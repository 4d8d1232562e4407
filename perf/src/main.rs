//! placeholder
#![allow(dead_code)]
mod cli;
mod control;
mod flow;
mod gid;
mod pattern;
mod peer;
mod progress;
mod report;
mod size;
mod statistics;
fn main() {}
