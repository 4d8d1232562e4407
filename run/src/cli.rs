//! The command line.

use std::ffi::OsString;

use clap::{Parser, ValueEnum};

/// Runs a program that uses RDMA over roced.
#[derive(Parser)]
#[command(name = "roce-run", version)]
pub(crate) struct RunArgs {
    /// Shows it files below /dev/infiniband and /sys/class/infiniband, for programs that look for
    /// them (UCX, Open MPI).
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub(crate) files: Option<Files>,
    /// The program, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// How files are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Files {
    /// By mounts where they can be had, else by replaced calls.
    Auto,
    /// In a mount namespace, which takes root, or a system that lets users make namespaces.
    Mount,
    /// By replaced calls of the C library: not for statically linked programs.
    Interpose,
}
