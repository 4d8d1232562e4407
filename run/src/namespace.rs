//! Mounts that only this process and those that it starts see.
#![expect(unsafe_code, reason = "system calls on mounts")]

use std::{
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::{Path, PathBuf},
    ptr,
};

use anyhow::{Context as _, Result};
use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};
use roced_client::Device;

use crate::{child_signal::ChildSignal, device_files};

/// Whether [`show`] will do: where it does not, half of it may be done, and there is no way back. So a child tries.
pub(crate) fn can_be_had() -> Result<bool> {
    let child_signal = ChildSignal::take()?;
    let tried = try_in_a_child();
    child_signal.give_back()?;
    tried
}

fn try_in_a_child() -> Result<bool> {
    // SAFETY: this program has one thread.
    match unsafe { fork() }.context("trying whether mounts can be had")? {
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None)?;
            // Where it was ended half-way.
            let _ = fs::remove_dir(stage_of(child.as_raw().cast_unsigned()));
            Ok(matches!(ended, WaitStatus::Exited(_, 0)))
        }
        ForkResult::Child => {
            let tried = enter().and_then(|()| cover(Path::new("/dev"))).and_then(|()| cover(Path::new("/sys/class")));
            // SAFETY: it ends this process, which is what is wanted, and nothing that the parent has.
            unsafe { libc::_exit(i32::from(tried.is_err())) }
        }
    }
}

/// Shows the files of `devices` to this process and to those that it starts.
pub(crate) fn show(devices: &[Device]) -> Result<()> {
    enter()?;
    cover(Path::new("/dev"))?;
    cover(Path::new("/sys/class"))?;
    device_files::make(devices, Path::new("/"), |path| {
        fs::write(path, "")?;
        bind(Path::new("/dev/null"), path)
    })
}

/// A mount namespace of our own. Without the right to make one, in a user namespace of our own, where this user stays this user.
fn enter() -> Result<()> {
    // SAFETY: these ask the kernel for nothing but numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if unshare(libc::CLONE_NEWNS).is_err() {
        unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)
            .context("this needs root, or a system that lets users make namespaces")?;
        fs::write("/proc/self/setgroups", "deny").context("setgroups")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1")).context("uid_map")?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1")).context("gid_map")?;
    }
    // What is mounted here is not to be seen outside.
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "")
}

/// A folder under which files can be made, that looks as `path` did: it lies under a `tmpfs` with a link to each of its entries.
fn cover(path: &Path) -> Result<()> {
    let name = path.file_name().context("a folder that has a name")?;
    let stage = stage_of(std::process::id());
    fs::create_dir(&stage).with_context(|| stage.display().to_string())?;
    let covered = cover_from(&stage, path, Path::new(name));
    if covered.is_err() {
        // What was mounted there, if anything was, would keep the folder. SAFETY: the path is a text.
        let _ = CString::new(stage.as_os_str().as_bytes())
            .map(|path| unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) });
    }
    let removed = fs::remove_dir(&stage);
    covered.and(removed.context("removing a folder"))
}

/// Where a process puts together what it moves to its place then.
fn stage_of(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("roce-run-{process}"))
}

fn cover_from(stage: &Path, path: &Path, name: &Path) -> Result<()> {
    mount(Some("roce-run"), stage, Some("tmpfs"), libc::MS_NOSUID, "mode=755")?;
    // One level deeper than it was, so that links which lead out of it (`../../devices`) lead to what is said there.
    let real = Path::new(".real").join(name);
    fs::create_dir_all(stage.join(&real))?;
    bind(path, &stage.join(&real))?;
    if path == Path::new("/sys/class") {
        symlink("../../devices", stage.join(".real/devices"))?;
    }
    for entry in fs::read_dir(stage.join(&real))? {
        let entry = entry?.file_name();
        // Ours, where this runs within another run of itself, or an adapter's: neither is to be seen, nor to be changed.
        if [".real", "infiniband", "infiniband_verbs"].iter().any(|name| entry == *name) {
            continue;
        }
        symlink(real.join(&entry), stage.join(&entry))?;
    }
    mount(stage.to_str(), path, None, libc::MS_MOVE, "")
}

/// Shows `from` at `to`, with all that is mounted in it.
fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(from.to_str(), to, None, libc::MS_BIND | libc::MS_REC, "")
}

fn unshare(what: libc::c_int) -> io::Result<()> {
    // SAFETY: there is no other thread whose idea of its namespaces could differ.
    if unsafe { libc::unshare(what) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mount(from: Option<&str>, to: &Path, kind: Option<&str>, flags: libc::c_ulong, options: &str) -> Result<()> {
    let text = |text: &str| CString::new(text).context("a path with a zero in it");
    let from = from.map(text).transpose()?;
    let kind = kind.map(text).transpose()?;
    let options = text(options)?;
    let target = CString::new(to.as_os_str().as_bytes()).context("a path with a zero in it")?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: every pointer is null where that is allowed, or a text that lives until the call is over.
    let done = unsafe { libc::mount(pointer(&from), target.as_ptr(), pointer(&kind), flags, options.as_ptr().cast()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()).with_context(|| format!("mount {}", to.display())) }
}
