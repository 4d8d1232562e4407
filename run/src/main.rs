//! `roce-run CMD...`: runs a program, and all that it starts, with roced's `libibverbs.so.1` in place of the system's.
//!
//! Most programs ask nothing but the library. Some (UCX, and so Open MPI) look for `/dev/infiniband` and `/sys/class/infiniband` first: with
//! `--files` they see such files, in a mount namespace of their own.

mod device_files;
mod namespace;

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::Parser;

/// Names the library where it is not found by itself.
const LIBRARY_VARIABLE: &str = "ROCED_VERBS";

/// Runs a program that uses RDMA over roced.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Shows it files below /dev/infiniband and /sys/class/infiniband, for programs that look for them (UCX, Open MPI).
    #[arg(long)]
    files: bool,
    /// The program, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let library = library()?;
    if arguments.files {
        device_files::show().context("making the files that --files asks for")?;
    }
    let (program, rest) = arguments.command.split_first().expect("clap asks for one");
    // It only returns when it failed.
    let error = Command::new(program).args(rest).env("LD_PRELOAD", preload(&library)).exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}

/// The library: as the environment names it, else beside this program, else where packages put it.
fn library() -> Result<PathBuf> {
    if let Some(path) = env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let here = env::current_exe().context("where is this program?")?;
    let folder = here.parent().unwrap_or(Path::new("/"));
    let places = [
        folder.join("libibverbs.so"),
        folder.join("../lib/roced/libibverbs.so.1"),
        PathBuf::from("/usr/lib/roced/libibverbs.so.1"),
    ];
    match places.iter().find(|place| place.exists()) {
        Some(place) => Ok(place.clone()),
        None => bail!(
            "no libibverbs.so.1 of roced: looked for {}, {} and {}; name it in {LIBRARY_VARIABLE}",
            places[0].display(),
            places[1].display(),
            places[2].display()
        ),
    }
}

/// In front of what is preloaded anyway.
fn preload(library: &Path) -> OsString {
    let mut all = OsString::from(library);
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}
