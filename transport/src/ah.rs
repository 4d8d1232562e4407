//! Address handles: where datagrams can be sent, each an object of a protection domain.
//!
//! A work request names one by its number. An [`AhEntry`] from [`AhTable::find`] belongs to the
//! protection domain of the queue pair, for any number that a client wrote.

use roced_types::Pdn;

use crate::{path_state::PathState, reject::Reject, table::Table};

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct AhEntry {
    /// Only queue pairs of this protection domain.
    pub pd: Pdn,
    /// How frames get there.
    pub path: PathState,
    /// The longest message that gets there, bytes: the path MTU of the way.
    pub mtu_bytes: u32,
    /// Highest rate of datagrams to there, kbit/s, 0 for none.
    pub static_rate_kbit_per_s: u32,
}

/// The address handles of an endpoint, by number.
#[derive(Debug)]
pub struct AhTable {
    handles: Table<AhEntry>,
}

impl AhTable {
    /// A table for the numbers below `capacity`.
    pub fn new(capacity: u32) -> Self {
        Self { handles: Table::new(capacity) }
    }

    /// Adds a handle.
    ///
    /// # Errors
    /// [`Reject::NoRoom`] when the number is taken or beyond the table.
    pub fn insert(&mut self, number: u32, handle: AhEntry) -> Result<(), Reject> {
        self.handles.insert(number, handle).map_err(|_| Reject::NoRoom)
    }

    /// Changes how a handle's destination is reached; false when there is no such handle.
    pub fn set_path(&mut self, number: u32, path: PathState, mtu_bytes: u32) -> bool {
        let Some(handle) = self.handles.get_mut(number) else { return false };
        (handle.path, handle.mtu_bytes) = (path, mtu_bytes);
        true
    }

    /// Takes a destination that is being resolved for unreachable; false for any other.
    pub fn abandon(&mut self, number: u32) -> bool {
        let waits = |handle: &&mut AhEntry| matches!(handle.path, PathState::Resolving);
        let Some(handle) = self.handles.get_mut(number).filter(waits) else { return false };
        handle.path = PathState::Unreachable;
        true
    }

    /// Removes a handle.
    pub fn remove(&mut self, number: u32) -> Option<AhEntry> {
        self.handles.remove(number)
    }

    /// The handle of that number, if it is of this protection domain.
    pub fn find(&self, pd: Pdn, number: u32) -> Option<&AhEntry> {
        self.handles.get(number).filter(|handle| handle.pd == pd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_found_by_its_number_and_its_domain_alone() {
        let mut table = AhTable::new(2);
        let handle = AhEntry { pd: Pdn(7), path: PathState::Resolving, mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
        assert_eq!(table.insert(2, handle), Err(Reject::NoRoom), "beyond the table");
        table.insert(1, handle).expect("room");
        assert_eq!(table.insert(1, handle), Err(Reject::NoRoom), "taken");
        assert!(table.find(Pdn(7), 1).is_some());
        for (pd, number) in [(8, 1), (7, 0), (7, 2), (7, u32::MAX)] {
            assert!(table.find(Pdn(pd), number).is_none(), "pd {pd}, number {number}");
        }
        assert!(table.set_path(1, PathState::Unreachable, 512) && !table.set_path(0, PathState::Unreachable, 512));
        assert_eq!(table.find(Pdn(7), 1).map(|handle| handle.mtu_bytes), Some(512));
        assert!(!table.abandon(1) && table.set_path(1, PathState::Resolving, 512) && table.abandon(1));
        assert!(matches!(table.find(Pdn(7), 1).expect("there").path, PathState::Unreachable));
        assert!(table.remove(1).is_some() && table.remove(1).is_none() && table.find(Pdn(7), 1).is_none());
    }
}
