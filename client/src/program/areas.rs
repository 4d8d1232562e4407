//! Mappings of this process, as reported by the kernel.

use std::{fs, ops::Range, os::fd::AsFd};

use nix::{errno::Errno, sys::stat::fstat};

use crate::error::{Error, Result};

/// Identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Identity {
    pub(super) fn of(file: impl AsFd) -> Result<Self> {
        let stat = fstat(file).map_err(Error::kernel("fstat"))?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A mapping of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) range: Range<usize>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) executable: bool,
    pub(super) shared: bool,
    /// Offset of the mapping in its file.
    pub(super) offset: u64,
    /// Inode 0 for a mapping without a file.
    pub(super) identity: Identity,
    /// Path of the file, a name in brackets, or empty.
    pub(super) name: String,
}

impl Area {
    /// True for private memory without a file: heaps, stacks and large allocations.
    pub(super) fn is_plain(&self) -> bool {
        let named_so = ["", "[heap]", "[stack]"].contains(&self.name.as_str()) || self.name.starts_with("[anon:");
        !self.shared && self.identity.inode == 0 && named_so
    }

    /// True if the mapping shows `file` at offsets equal to its addresses.
    pub(super) fn mirrors(&self, file: Identity) -> bool {
        self.shared && self.identity == file && self.offset == self.range.start as u64
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let rights = fields.next()?.as_bytes();
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let device = libc::makedev(number(major)?, number(minor)?);
        let identity = Identity { device, inode: fields.next()?.parse().ok()? };
        Some(Self {
            range: hex(start)?..hex(end)?,
            readable: rights.first() == Some(&b'r'),
            writable: rights.get(1) == Some(&b'w'),
            executable: rights.get(2) == Some(&b'x'),
            shared: rights.get(3) == Some(&b's'),
            offset,
            identity,
            name: fields.next().unwrap_or("").trim_start().into(),
        })
    }
}

/// Returns all mappings, by address.
pub(super) fn all() -> Result<Vec<Area>> {
    let broken = || Error::Kernel { call: "read /proc/self/maps", errno: Errno::EINVAL };
    let text = fs::read("/proc/self/maps").map_err(|error| Error::Kernel {
        call: "read /proc/self/maps",
        errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
    })?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Area::parse(&String::from_utf8_lossy(line)).ok_or_else(broken)).collect()
}

/// Returns the parts of `areas` inside `range`, clipped to it.
///
/// # Errors
/// The range has a gap.
pub(super) fn within(areas: &[Area], range: &Range<usize>) -> Result<Vec<Area>> {
    let mut next = range.start;
    let mut parts = Vec::new();
    for area in areas.iter().filter(|area| area.range.end > range.start && area.range.start < range.end) {
        let part = area.range.start.max(range.start)..area.range.end.min(range.end);
        if part.start != next {
            break;
        }
        next = part.end;
        let offset = area.offset + (part.start - area.range.start) as u64;
        parts.push(Area { range: part, offset, ..area.clone() });
    }
    if next == range.end { Ok(parts) } else { Err(Error::NotMapped { address: next }) }
}

/// Checks that the program itself may read all parts, and write them if `write` is set.
pub(super) fn check_rights(parts: &[Area], write: bool) -> Result<()> {
    match parts.iter().find(|area| !area.readable || write && !area.writable) {
        Some(unfit) => Err(Error::NoRights { address: unfit.range.start }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let area =
            Area::parse("7f0000001000-7f0000003000 rw-s 7f0000001000 00:01 77                 /memfd:a b (deleted)");
        let area = area.expect("a line");
        assert_eq!(
            (area.range.clone(), area.offset, area.identity.inode),
            (0x7f00_0000_1000..0x7f00_0000_3000, 0x7f00_0000_1000, 77)
        );
        assert!(
            area.readable
                && area.writable
                && !area.executable
                && area.shared
                && area.mirrors(Identity { device: 1, inode: 77 })
        );
        assert_eq!(area.name, "/memfd:a b (deleted)");
        for (name, plain) in [("", true), ("[heap]", true), ("[stack]", true), ("[anon:x]", true), ("[vvar]", false)] {
            let area = Area::parse(&format!("1000-2000 rw-p 00000000 00:00 0 {name}")).expect("a line");
            assert_eq!(area.is_plain(), plain, "{name}");
        }
        assert_eq!(Area::parse("nonsense"), None);
    }

    #[test]
    fn unmapped_memory_is_noticed() {
        let area = |start: usize, end: usize, offset| Area {
            range: start..end,
            readable: true,
            writable: true,
            executable: false,
            shared: false,
            offset,
            identity: Identity { device: 0, inode: 0 },
            name: String::new(),
        };
        let areas = [area(0x1000, 0x3000, 0x5000), area(0x3000, 0x4000, 0), area(0x6000, 0x7000, 0)];
        assert_eq!(
            within(&areas, &(0x2000..0x4000)).expect("all is there"),
            [area(0x2000, 0x3000, 0x6000), area(0x3000, 0x4000, 0)]
        );
        for (range, missing) in
            [(0x0..0x2000, 0x0), (0x3000..0x5000, 0x4000), (0x3000..0x7000, 0x4000), (0x6000..0x8000, 0x7000)]
        {
            let gap = within(&areas, &range).expect_err("a gap");
            assert!(matches!(gap, Error::NotMapped { address } if address == missing), "{range:?} {gap}");
        }
    }

    #[test]
    fn this_process_is_mapped() {
        let here = 5;
        let at = (&raw const here).addr();
        assert!(
            all()
                .expect("it can be read")
                .iter()
                .any(|area| area.range.contains(&at) && area.writable && area.is_plain())
        );
    }
}
