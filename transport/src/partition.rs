//! Partitions: which ports may speak to each other (IBTA v1 10.9).
//!
//! A port has a table of partition keys; each queue pair is in one of these partitions, by its
//! index. Full members reach all members of their partition, limited members only full ones.

use roced_types::PKEYS_MAX;

/// A partition key: 15 bits name the partition, the highest is set for its full members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pkey(pub u16);

impl Pkey {
    /// That of the partition which every port is a full member of unless it is told otherwise.
    pub const DEFAULT: Self = Self(0xffff);

    const FULL_MEMBER: u16 = 1 << 15;

    /// Returns true if the key names a partition: the number 0 names none.
    pub const fn is_valid(self) -> bool {
        self.0 & !Self::FULL_MEMBER != 0
    }

    /// Returns true if both keys are of one partition, and not both limited members (IBTA v1 10.9.3).
    pub const fn may_speak_to(self, other: Self) -> bool {
        (self.0 ^ other.0) & !Self::FULL_MEMBER == 0 && (self.0 | other.0) & Self::FULL_MEMBER != 0
    }
}

/// The table of a port: at least one key, at most [`Partitions::MAX`].
#[derive(Clone, Copy, Debug)]
pub struct Partitions {
    keys: [Pkey; Self::MAX],
    count: usize,
}

impl Partitions {
    /// Most entries.
    pub const MAX: usize = PKEYS_MAX;

    /// A table of `keys`.
    ///
    /// # Panics
    /// When there is none, or more than [`Self::MAX`].
    pub fn new(keys: &[Pkey]) -> Self {
        assert!(!keys.is_empty(), "a port is in some partition");
        let mut table = [Pkey::DEFAULT; Self::MAX];
        table[..keys.len()].copy_from_slice(keys);
        Self { keys: table, count: keys.len() }
    }

    /// The key at `index`.
    pub fn get(&self, index: u32) -> Option<Pkey> {
        self.keys[..self.count].get(index as usize).copied()
    }

    /// The port shares a partition with a sender of this key, and may speak to it.
    pub fn accept(&self, sender: Pkey) -> bool {
        self.keys[..self.count].iter().any(|key| key.is_valid() && key.may_speak_to(sender))
    }
}

impl Default for Partitions {
    /// The default partition alone.
    fn default() -> Self {
        Self::new(&[Pkey::DEFAULT])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_members_speak_to_full_ones_alone() {
        let [full, limited, other] = [0x8007, 0x0007, 0x8008].map(Pkey);
        assert!(full.may_speak_to(full) && full.may_speak_to(limited) && limited.may_speak_to(full));
        assert!(!limited.may_speak_to(limited) && !full.may_speak_to(other) && !limited.may_speak_to(other));
        assert!(Pkey::DEFAULT.may_speak_to(Pkey(0x7fff)));
    }

    #[test]
    fn no_partition_has_the_number_0() {
        assert!(!Pkey(0).is_valid() && !Pkey(0x8000).is_valid());
        assert!(Pkey(1).is_valid() && Pkey::DEFAULT.is_valid());
    }

    #[test]
    fn a_port_accepts_senders_of_its_partitions_unless_both_are_limited_members() {
        let table = Partitions::new(&[Pkey(0x8001), Pkey(0x0002), Pkey(0x8000)]);
        assert!([0x8001, 0x0001, 0x8002].map(Pkey).into_iter().all(|key| table.accept(key)));
        assert!(![0x0002, 0x8003, 0xffff, 0x8000, 0].map(Pkey).into_iter().any(|key| table.accept(key)));
    }

    #[test]
    fn an_index_behind_the_table_names_nothing() {
        let table = Partitions::new(&[Pkey(0x8001), Pkey(0x0002)]);
        assert_eq!(
            [0, 1, 2, 16, u32::MAX].map(|index| table.get(index)),
            [Some(Pkey(0x8001)), Some(Pkey(2)), None, None, None]
        );
    }
}
