//! Attachments of queue pairs of a device to multicast groups: those of this endpoint, which take a
//! copy each, and those of the device's other endpoints, so that the receiver of a datagram knows
//! the other members.

use alloc::vec::Vec;
use core::ops::Range;

use roced_types::Qpn;

use crate::reject::Reject;

/// A GID and a queue pair that is attached to it.
type Attachment = ([u8; 16], Qpn);

/// Attachments, in order, each once. The room is made once.
#[derive(Debug)]
pub(crate) struct Groups {
    attachments: Vec<Attachment>,
    capacity: usize,
}

impl Groups {
    /// No attachments, and room for `capacity`.
    pub(crate) fn new(capacity: u32) -> Self {
        Self { attachments: Vec::with_capacity(capacity as usize), capacity: capacity as usize }
    }

    /// Attaches a queue pair; false when it was attached already.
    ///
    /// # Errors
    /// [`Reject::NoRoom`].
    pub(crate) fn attach(&mut self, group: [u8; 16], qpn: Qpn) -> Result<bool, Reject> {
        match self.attachments.binary_search(&(group, qpn)) {
            Ok(_) => Ok(false),
            Err(_) if self.attachments.len() == self.capacity => Err(Reject::NoRoom),
            Err(at) => {
                self.attachments.insert(at, (group, qpn));
                Ok(true)
            }
        }
    }

    /// Detaches a queue pair; false when it was not attached.
    pub(crate) fn detach(&mut self, group: [u8; 16], qpn: Qpn) -> bool {
        let found = self.attachments.binary_search(&(group, qpn));
        found.is_ok_and(|at| {
            self.attachments.remove(at);
            true
        })
    }

    /// Detaches a queue pair from everything. Walks all attachments.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.attachments.retain(|(_, attached)| *attached != qpn);
    }

    /// The places of those attached to `group`, for [`Self::member`].
    pub(crate) fn members(&self, group: &[u8; 16]) -> Range<usize> {
        let begin = self.attachments.partition_point(|(attached, _)| attached < group);
        let count = self.attachments[begin..].partition_point(|(attached, _)| attached == group);
        begin..begin + count
    }

    /// The member at that place. Queue pairs of one endpoint are adjacent.
    pub(crate) fn member(&self, place: usize) -> Qpn {
        self.attachments[place].1
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    fn members(groups: &Groups, group: [u8; 16]) -> Vec<u32> {
        groups.members(&group).map(|at| groups.member(at).get()).collect()
    }

    #[test]
    fn each_member_is_met_once_and_no_other() {
        let (a, b, c) = ([1; 16], [2; 16], [3; 16]);
        let mut groups = Groups::new(5);
        let qpn = Qpn::from_wire;
        for (group, number) in [(b, 7), (b, 2), (a, 9), (b, 3), (c, 2), (b, 3)] {
            groups.attach(group, qpn(number)).expect("room");
        }
        assert_eq!(groups.attach(a, qpn(1)), Err(Reject::NoRoom));
        assert_eq!((members(&groups, a), members(&groups, b)), ([9].into(), [2, 3, 7].into()));
        assert!(members(&groups, [0; 16]).is_empty() && members(&groups, [9; 16]).is_empty());
        assert!(groups.detach(b, qpn(3)) && !groups.detach(b, qpn(3)) && !groups.detach(c, qpn(9)));
        groups.forget(qpn(2));
        assert_eq!((members(&groups, b), members(&groups, c)), ([7].into(), [].into()));
    }
}
