//! `roce-run CMD...`: runs a program and its children with roced's `libibverbs.so.1` in place of
//! the system's.
//!
//! Most programs need the library only. Some (UCX, and so Open MPI) look for `/dev/infiniband` and
//! `/sys/class/infiniband` first. With `--files` they see such files: in a mount namespace, or,
//! where none can be created, by replaced calls of the C library.

mod child_signal;
mod cli;
mod device_files;
mod interposed;
mod namespace;

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use roced_client::trusted_variable;

use crate::cli::{Files, RunArgs};

/// Environment variable with the library's path, for installations in other places.
const LIBRARY_VARIABLE: &str = "ROCED_VERBS";

/// Exit codes of shells for a program that does not exist, and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

fn main() -> Result<ExitCode> {
    let arguments = RunArgs::parse();
    forget_other_files();
    let library = library()?;
    let (program, rest) = arguments.command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload([&library]));
    // Programs that open `libibverbs.so` and not `libibverbs.so.1` look for a file of that name.
    if let Some(folder) = library.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        command.env("LD_LIBRARY_PATH", before_others("LD_LIBRARY_PATH", [folder.as_os_str()]));
    }
    if let Some(how) = arguments.files {
        let mounts = how == Files::Mount || how == Files::Auto && namespace::can_be_had()?;
        let devices = device_files::devices()?;
        if mounts {
            namespace::show(&devices).context("mounting the files that --files asks for")?;
        } else {
            command.env("LD_PRELOAD", preload([&library, &beside(&library)?]));
            return Ok(match interposed::run(command, &devices)? {
                Ok(code) => code.into(),
                Err(error) => cannot_run(program, &error),
            });
        }
    }
    // `exec` returns only on failure.
    Ok(cannot_run(program, &command.exec()))
}

/// Reports why a program cannot run; returns the exit code that a shell would.
fn cannot_run(program: &OsStr, error: &io::Error) -> ExitCode {
    // The exit code says the same where this cannot be written.
    let _ = writeln!(io::stderr(), "roce-run: cannot run {}: {error}", program.display());
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }.into()
}

/// Unsets the folder of an outer `roce-run`: its files are meant neither for this process nor for
/// the program.
#[expect(unsafe_code, reason = "changes the environment")]
fn forget_other_files() {
    // SAFETY: this program has one thread.
    unsafe { env::remove_var(interposed::FOLDER_VARIABLE) };
}

/// The path of `libroce_files.so`, which is installed next to the library.
fn beside(library: &Path) -> Result<PathBuf> {
    let path = library.with_file_name("libroce_files.so");
    if path.exists() {
        Ok(path)
    } else {
        bail!(
            "no {}, by which --files shows files where it cannot mount them: it belongs beside the library",
            path.display()
        )
    }
}

/// The path of the library: from the environment, else next to this program, else where packages
/// install it.
fn library() -> Result<PathBuf> {
    if let Some(path) = trusted_variable(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
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

/// The value of `LD_PRELOAD`, with these libraries before those already in it.
fn preload<const N: usize>(libraries: [&PathBuf; N]) -> OsString {
    before_others("LD_PRELOAD", libraries.map(|library| library.as_os_str()))
}

/// The value of a list in the environment, with these entries before those already in it.
fn before_others<const N: usize>(variable: &str, entries: [&OsStr; N]) -> OsString {
    let others = env::var_os(variable).filter(|others| !others.is_empty());
    let all: Vec<_> = entries.into_iter().map(OsStr::to_owned).chain(others).collect();
    all.join(OsStr::new(":"))
}
