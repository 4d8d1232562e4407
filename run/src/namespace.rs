//! Mounts visible to this process and its children only.
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

/// Folder of devices of no other class, below `/sys/class`.
const MISC: &str = "misc";

/// Whether [`show`] works. A failed attempt may leave half of the mounts behind, so a child tries.
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
            // Left behind if the child was killed.
            let _ = fs::remove_dir(stage_of(child.as_raw().cast_unsigned()));
            Ok(matches!(ended, WaitStatus::Exited(_, 0)))
        }
        ForkResult::Child => {
            let tried = enter().and_then(|()| cover(Path::new("/dev"))).and_then(|()| cover(Path::new("/sys/class")));
            // SAFETY: it ends the child and releases nothing of the parent.
            unsafe { libc::_exit(i32::from(tried.is_err())) }
        }
    }
}

/// Mounts the files of `devices` for this process and its children.
pub(crate) fn show(devices: &[Device]) -> Result<()> {
    enter()?;
    cover(Path::new("/dev"))?;
    cover(Path::new("/sys/class"))?;
    device_files::make(devices, Path::new("/"), |path, other| {
        fs::write(path, "")?;
        bind(other, path)
    })
}

/// Enters a new mount namespace. Without the right to create one, it enters a new user namespace
/// first, in which the user keeps its id.
fn enter() -> Result<()> {
    // SAFETY: these calls only return numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if unshare(libc::CLONE_NEWNS).is_err() {
        unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)
            .context("this needs root, or a system that lets users make namespaces")?;
        fs::write("/proc/self/setgroups", "deny").context("setgroups")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1")).context("uid_map")?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1")).context("gid_map")?;
    }
    // Mounts in here must not propagate to the outside.
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "")
}

/// Covers `path` with a `tmpfs` that has a link to each of its entries, so that files can be
/// created in it.
fn cover(path: &Path) -> Result<()> {
    let name = path.file_name().context("a folder that has a name")?;
    let stage = stage_of(std::process::id());
    fs::create_dir(&stage).with_context(|| stage.display().to_string())?;
    let covered = cover_from(&stage, path, Path::new(name));
    if covered.is_err() {
        // A mount would keep the folder busy. SAFETY: the path is a null-terminated string.
        let _ = CString::new(stage.as_os_str().as_bytes())
            .map(|path| unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) });
    }
    let removed = fs::remove_dir(&stage);
    covered.and(removed.context("removing a folder"))
}

/// The folder in which a process prepares a mount before it moves it into place.
fn stage_of(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("roce-run-{process}"))
}

fn cover_from(stage: &Path, path: &Path, name: &Path) -> Result<()> {
    mount(Some("roce-run"), stage, Some("tmpfs"), libc::MS_NOSUID, "mode=755")?;
    // One level deeper than before, so that relative links out of it (`../../devices`) still
    // resolve.
    let real = Path::new(".real").join(name);
    fs::create_dir_all(stage.join(&real))?;
    bind(path, &stage.join(&real))?;
    if path == Path::new("/sys/class") {
        symlink("../../devices", stage.join(".real/devices"))?;
    }
    // Files of an outer `roce-run` or of an adapter: neither shown nor changed.
    let hidden = [".real", "infiniband", "infiniband_verbs"];
    let is_class = path == Path::new("/sys/class");
    link_entries(stage, &real, |name| !(hidden.contains(&name) || is_class && name == MISC))?;
    let real_misc = Path::new("..").join(&real).join(MISC);
    if is_class {
        // A folder of its own, in which the connection manager has a device.
        fs::create_dir(stage.join(MISC))?;
        if stage.join(&real).join(MISC).exists() {
            link_entries(&stage.join(MISC), &real_misc, |_| true)?;
        }
    }
    mount(stage.to_str(), path, None, libc::MS_MOVE, "")
}

/// Creates in `folder` a link to each entry of `real`, a path relative to it.
fn link_entries(folder: &Path, real: &Path, is_shown: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(folder.join(real))? {
        let entry = entry?.file_name();
        if entry.to_str().is_none_or(&is_shown) {
            symlink(real.join(&entry), folder.join(&entry))?;
        }
    }
    Ok(())
}

/// Bind-mounts `from` and its submounts at `to`.
fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(from.to_str(), to, None, libc::MS_BIND | libc::MS_REC, "")
}

fn unshare(what: libc::c_int) -> io::Result<()> {
    // SAFETY: the process has one thread, so no other thread's namespaces can differ.
    if unsafe { libc::unshare(what) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mount(from: Option<&str>, to: &Path, kind: Option<&str>, flags: libc::c_ulong, options: &str) -> Result<()> {
    let text = |text: &str| CString::new(text).context("a path with a zero in it");
    let from = from.map(text).transpose()?;
    let kind = kind.map(text).transpose()?;
    let options = text(options)?;
    let target = CString::new(to.as_os_str().as_bytes()).context("a path with a zero in it")?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: every pointer is null where allowed, or a string that lives until the call returns.
    let done = unsafe { libc::mount(pointer(&from), target.as_ptr(), pointer(&kind), flags, options.as_ptr().cast()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()).with_context(|| format!("mount {}", to.display())) }
}
