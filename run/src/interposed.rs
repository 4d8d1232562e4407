//! Device files without mounts: replaced calls (`libroce_files.so`) find them in a folder that is
//! removed when the program has ended.
#![expect(unsafe_code, reason = "steps of a child before it becomes another program")]

use std::{
    io,
    os::unix::{
        fs::symlink,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Child, Command},
};

use anyhow::{Context as _, Result};
use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{SigSet, SigmaskHow, Signal, kill},
        signalfd::SignalFd,
    },
    unistd::Pid,
};
use roced_client::Device;

use crate::{child_signal::ChildSignal, device_files};

/// Environment variable that tells `libroce_files.so` the folder.
pub(crate) const FOLDER_VARIABLE: &str = "ROCE_RUN_FILES";

/// Signals forwarded to the program.
const HANDED_ON: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGXCPU,
    Signal::SIGINT,
    Signal::SIGQUIT,
];

/// Runs `command` with the files of `devices`. Returns its exit status as a shell reports it, or the
/// reason why it cannot be executed.
pub(crate) fn run(mut command: Command, devices: &[Device]) -> Result<io::Result<u8>> {
    let folder = tempfile::Builder::new().prefix("roce-run-").tempdir().context("a folder for the files")?;
    device_files::make(devices, folder.path(), |path, other| Ok(symlink(other, path)?))?;
    command.env(FOLDER_VARIABLE, folder.path());
    let ours: SigSet = HANDED_ON.into_iter().chain([Signal::SIGCHLD]).collect();
    let mask = ours.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let child_signal = ChildSignal::take()?;
    let before = move || {
        mask.thread_set_mask()?;
        // If this process is killed, the program ends as well.
        set_pdeathsig(Signal::SIGTERM)?;
        Ok(child_signal.give_back()?)
    };
    // SAFETY: the function makes system calls only.
    unsafe { command.pre_exec(before) };
    match command.spawn() {
        Ok(child) => wait(child, &SignalFd::new(&ours)?).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

fn wait(mut child: Child, signals: &SignalFd) -> Result<u8> {
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
        }
        let Some(came) = signals.read_signal()? else { continue };
        let signal = HANDED_ON.into_iter().find(|signal| *signal as u32 == came.ssi_signo);
        // The terminal sends its signals to the program as well.
        let from_terminal = came.ssi_code == libc::SI_KERNEL;
        if let Some(signal) = signal.filter(|_| !from_terminal) {
            // The program may have ended; the next wait reports it.
            let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
        }
    }
}
