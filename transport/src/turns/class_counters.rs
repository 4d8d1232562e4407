//! Counters of traffic classes.

use super::classes::CLASSES;
use crate::counters::named_counters;

named_counters! {
    /// Counters of the classes of an endpoint: of frames that queue pairs gave to a NIC.
    ClassCount, ClassCounters {
        /// Frames of class 0 to a NIC.
        Packets0 "tx_tc0_packets",
        /// Their bytes.
        Bytes0 "tx_tc0_bytes",
        /// Frames of class 1 to a NIC.
        Packets1 "tx_tc1_packets",
        /// Their bytes.
        Bytes1 "tx_tc1_bytes",
        /// Frames of class 2 to a NIC.
        Packets2 "tx_tc2_packets",
        /// Their bytes.
        Bytes2 "tx_tc2_bytes",
        /// Frames of class 3 to a NIC.
        Packets3 "tx_tc3_packets",
        /// Their bytes.
        Bytes3 "tx_tc3_bytes",
        /// Frames of class 4 to a NIC.
        Packets4 "tx_tc4_packets",
        /// Their bytes.
        Bytes4 "tx_tc4_bytes",
        /// Frames of class 5 to a NIC.
        Packets5 "tx_tc5_packets",
        /// Their bytes.
        Bytes5 "tx_tc5_bytes",
        /// Frames of class 6 to a NIC.
        Packets6 "tx_tc6_packets",
        /// Their bytes.
        Bytes6 "tx_tc6_bytes",
        /// Frames of class 7 to a NIC.
        Packets7 "tx_tc7_packets",
        /// Their bytes.
        Bytes7 "tx_tc7_bytes",
    }
}

const _: () = assert!(ClassCount::ALL.len() == 2 * CLASSES);

impl ClassCounters {
    /// Frames of a class left, with so many bytes.
    #[inline]
    pub(crate) fn on_sent(&mut self, class: u8, frames: usize, bytes: usize) {
        let first = 2 * (usize::from(class) % CLASSES);
        self.add(ClassCount::ALL[first], frames as u64);
        self.add(ClassCount::ALL[first + 1], bytes as u64);
    }
}
