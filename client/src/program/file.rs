//! The file behind memory that the program itself shares.
//!
//! Nobody is asked for a file that the program could not open itself: what is found is a descriptor that it has, or one that the kernel gives it
//! for the asking.
#![expect(unsafe_code, reason = "copies a descriptor of the program by its number")]

use std::{
    fs::{self, OpenOptions},
    ops::Range,
    os::{
        fd::{BorrowedFd, OwnedFd, RawFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::areas::{self, Area, Identity};
use crate::error::Result;

/// The file of which `range` shows one piece, opened for reading, or for both with `write`, and where the piece begins. `None` when there is no such
/// file, or no way to it.
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

/// This process's memory as a file; `None` where there is no `/proc`, or this process may not look at itself.
pub(super) fn own_memory() -> Option<OwnedFd> {
    OpenOptions::new().read(true).write(true).open("/proc/self/mem").ok().map(OwnedFd::from)
}

/// A descriptor that the program has.
fn open_already(area: &Area, write: bool) -> Option<OwnedFd> {
    let fits = |entry: fs::DirEntry| {
        // The name first: of a descriptor of anything else nothing is asked, for whoever serves its file might not answer.
        let name = fs::read_link(entry.path()).ok()?;
        (name.to_string_lossy() == area.name).then_some(())?;
        let number: RawFd = entry.file_name().to_str()?.parse().ok()?;
        // SAFETY: the descriptor is only copied. When the program closes it now, or has opened something else under its number, there is
        // no copy, or one of something else, which is looked at before it is used.
        let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().ok()?;
        suits(&copy, area.identity, write).then_some(copy)
    };
    fs::read_dir("/proc/self/fd").ok()?.flatten().find_map(fits)
}

/// The file, opened once more as any program may.
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

/// What the kernel gives those with the privilege, also where no descriptor and no name is left.
fn by_mapping(whole: &Area, write: bool) -> Option<OwnedFd> {
    let name = format!("/proc/self/map_files/{:x}-{:x}", whole.range.start, whole.range.end);
    let file = OwnedFd::from(OpenOptions::new().read(true).write(write).open(name).ok()?);
    suits(&file, whole.identity, write).then_some(file)
}

fn suits(fd: &OwnedFd, identity: Identity, write: bool) -> bool {
    let mode = fcntl(fd, FcntlArg::F_GETFL).map(|flags| OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE);
    let rights = mode.is_ok_and(|mode| mode == OFlag::O_RDWR || mode == OFlag::O_RDONLY && !write);
    rights && Identity::of(fd).is_ok_and(|of| of == identity)
}
