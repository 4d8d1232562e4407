//! Subordinate uids, by `/etc/subuid`.
//!
//! A line is `OWNER:FIRST:COUNT`, where OWNER is the name or the uid of a user (subuid(5)).
//! Subordinate uids of other name services are unknown.

use std::path::Path;

use nix::unistd::User;
use roced_types::AccountId;
use tracing::warn;

/// The file of the system.
const SUBUID: &str = "/etc/subuid";

/// Owners of subordinate uids.
#[derive(Clone, Debug, Default)]
pub struct SubordinateUids {
    /// By first uid.
    ranges: Vec<OwnedRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnedRange {
    first: u32,
    count: u32,
    owner: u32,
}

impl SubordinateUids {
    /// Reads the subordinate uids of the system. Looks up names of users, so it is for the start of
    /// the daemon. Lines that cannot be read are logged and left out.
    pub fn of_system() -> Self {
        Self::read(Path::new(SUBUID), |name| Some(User::from_name(name).ok()??.uid.as_raw()))
    }

    fn read(path: &Path, uid_of: impl Fn(&str) -> Option<u32>) -> Self {
        // Without the file no user has subordinate uids.
        let text = std::fs::read(path).unwrap_or_default();
        let mut ranges = Vec::new();
        for line in String::from_utf8_lossy(&text).lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match parse(line, &uid_of) {
                Some(range) => ranges.push(range),
                None => warn!(path = %path.display(), line, "subordinate uids of an unknown user: ignored"),
            }
        }
        ranges.sort_by_key(|range| range.first);
        Self { ranges }
    }

    /// The account of a process of user `uid`.
    pub fn account_of(&self, uid: u32) -> AccountId {
        // Root of the host keeps its account, also where a line claims uid 0.
        let owner = (uid != 0).then(|| self.ranges.iter().find(|range| uid.wrapping_sub(range.first) < range.count));
        AccountId(owner.flatten().map_or(uid, |range| range.owner))
    }
}

fn parse(line: &str, uid_of: impl Fn(&str) -> Option<u32>) -> Option<OwnedRange> {
    let mut fields = line.split(':');
    let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() {
        return None;
    }
    let owner = owner.parse().ok().or_else(|| uid_of(owner))?;
    Some(OwnedRange { first: first.parse().ok()?, count: count.parse().ok()?, owner })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(text: &str) -> SubordinateUids {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        SubordinateUids::read(file.path(), |name| (name == "anna").then_some(1000))
    }

    #[test]
    fn a_subordinate_uid_counts_for_its_owner_and_every_other_for_itself() {
        let uids = read("# comment\nanna:100000:65536\n\n1001:165536:10\n");
        for (uid, account) in [
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (165_545, 1001),
            (165_546, 165_546),
        ] {
            assert_eq!(uids.account_of(uid), AccountId(account), "of uid {uid}");
        }
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out_and_root_is_never_subordinate() {
        let uids = read("nobody-known:200000:10\nanna:1:2:3\nanna:x:2\nanna:0:4294967295\n");
        assert_eq!(uids.account_of(200_003), AccountId(1000), "by the last whole line");
        assert_eq!(uids.account_of(0), AccountId(0));
        assert_eq!(read("").account_of(7), AccountId(7));
    }
}
