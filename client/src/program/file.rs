//! The file behind memory that the program itself shares.
//!
//! Only files that the program could open itself are used: by a descriptor that the program has, or
//! one that the kernel provides on request.
#![expect(unsafe_code, reason = "copies a descriptor of the program by its number")]

use std::{
    fs::{self, OpenOptions},
    ops::Range,
    os::{
        fd::{BorrowedFd, OwnedFd, RawFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::statfs::{TMPFS_MAGIC, fstatfs},
};

use super::areas::{self, Area, Identity};
use crate::error::Result;

/// Returns the file of which `range` shows one contiguous piece, opened for reading, or for both if
/// `write` is set, and the offset of the piece. `None` if there is no such file, or no way to open
/// it.
pub(super) fn behind(all: &[Area], range: &Range<usize>, write: bool) -> Result<Option<(OwnedFd, u64)>> {
    let parts = areas::within(all, range)?;
    let first = &parts[0];
    let goes_on = |area: &Area| {
        area.shared
            && area.identity == first.identity
            && area.offset.wrapping_sub(first.offset) == (area.range.start - first.range.start) as u64
    };
    if !parts.iter().all(goes_on) {
        return Ok(None);
    }
    areas::check_rights(&parts, write)?;
    let whole = all.iter().find(|area| area.range.contains(&range.start)).unwrap_or(first);
    let file = open_already(first, write).or_else(|| by_name(first, write)).or_else(|| by_mapping(whole, write));
    Ok(file.map(|file| (file, first.offset)))
}

/// Opens this process's memory as a file; `None` without `/proc`, or if this process may not access
/// it.
pub(super) fn own_memory() -> Option<OwnedFd> {
    OpenOptions::new().read(true).write(true).open("/proc/self/mem").ok().map(OwnedFd::from)
}

/// Finds a descriptor of the file that the program has.
fn open_already(area: &Area, write: bool) -> Option<OwnedFd> {
    let fits = |entry: fs::DirEntry| {
        // The name is compared first: descriptors of other files are not queried, because the
        // server of such a file might not answer.
        let name = fs::read_link(entry.path()).ok()?;
        (name.to_string_lossy() == area.name).then_some(())?;
        let number: RawFd = entry.file_name().to_str()?.parse().ok()?;
        // SAFETY: the descriptor is only duplicated. If the program closes it now, or has opened
        // another file under its number, there is no duplicate, or one of that other file, which is
        // checked before use.
        let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().ok()?;
        suits(&copy, area.identity, write).then_some(copy)
    };
    fs::read_dir("/proc/self/fd").ok()?.flatten().find_map(fits)
}

/// Opens the file once more by its name, as any program may.
fn by_name(area: &Area, write: bool) -> Option<OwnedFd> {
    let there = fs::symlink_metadata(&area.name).ok()?;
    if !there.is_file() || (there.dev(), there.ino()) != (area.identity.device, area.identity.inode) {
        return None;
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(&area.name).ok()?;
    let file = OwnedFd::from(file);
    suits(&file, area.identity, write).then_some(file)
}

/// Opens the file through `map_files`, which the kernel allows with the privilege, even without a
/// descriptor or name.
fn by_mapping(whole: &Area, write: bool) -> Option<OwnedFd> {
    let name = format!("/proc/self/map_files/{:x}-{:x}", whole.range.start, whole.range.end);
    let file = OwnedFd::from(OpenOptions::new().read(true).write(write).open(name).ok()?);
    suits(&file, whole.identity, write).then_some(file)
}

/// The file is the one of `identity`, opened with the rights, and of a kind that the daemon maps:
/// pages in memory. Other files answer the request for seals with an error.
fn suits(fd: &OwnedFd, identity: Identity, write: bool) -> bool {
    if fcntl(fd, FcntlArg::F_GET_SEALS).is_err() || !fstatfs(fd).is_ok_and(|of| of.filesystem_type() == TMPFS_MAGIC) {
        return false;
    }
    let mode = fcntl(fd, FcntlArg::F_GETFL).map(|flags| OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE);
    let rights = mode.is_ok_and(|mode| mode == OFlag::O_RDWR || mode == OFlag::O_RDONLY && !write);
    rights && Identity::of(fd).is_ok_and(|of| of == identity)
}
