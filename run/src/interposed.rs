//! Files that a program finds by replaced calls (`libroce_files.so`), where nothing can be mounted. They lie in a folder that goes when the program has ended.
#![expect(unsafe_code, reason = "what a child does before it becomes another program")]

use std::{
    os::unix::{
        fs::symlink,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Child, Command},
};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{SigSet, Signal, kill},
    unistd::Pid,
};
use roced_client::Device;

use crate::device_files;

/// Names the folder to the library that replaces the calls.
const FOLDER_VARIABLE: &str = "ROCE_RUN_FILES";

/// What is handed on to the program.
const HANDED_ON: [Signal; 4] = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Whoever presses a key means the program, and it hears that, too.
const OF_THE_TERMINAL: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];

/// Runs `command` with the files of `devices`, and says how it ended, as a shell does.
pub(crate) fn run(mut command: Command, devices: &[Device]) -> Result<u8> {
    let folder = tempfile::Builder::new().prefix("roce-run-").tempdir().context("a folder for the files")?;
    device_files::make(devices, folder.path(), |path| Ok(symlink("/dev/null", path)?))?;
    command.env(FOLDER_VARIABLE, folder.path());
    let ours: SigSet = HANDED_ON.into_iter().chain(OF_THE_TERMINAL).chain([Signal::SIGCHLD]).collect();
    let before = ours.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    // SAFETY: it calls nothing but the kernel.
    unsafe { command.pre_exec(move || Ok(before.thread_set_mask()?)) };
    let child = command.spawn().with_context(|| format!("running {}", command.get_program().display()))?;
    wait(child, &ours)
}

fn wait(mut child: Child, signals: &SigSet) -> Result<u8> {
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
        }
        let signal = signals.wait()?;
        if HANDED_ON.contains(&signal) {
            // It may have ended, which is seen next.
            let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
        }
    }
}
