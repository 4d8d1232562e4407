//! Traffic classes of a device (IEEE 802.1Q 8.6.8): which class a packet belongs to, and the share
//! of the link that each class has.
//!
//! ```text
//!   DSCP ──► priority ──► class:  strict ones first, the highest number before the others;
//!   PCP  ──┘                      the rest by shares (ETS), each below its highest rate
//! ```

use alloc::sync::Arc;

use super::{class_pause::PauseWatchdog, shared_rate::SharedRate};
use crate::{path_state::PathState, wire::path::Path};

/// Traffic classes of a device, and priorities of IEEE 802.1Q.
pub const CLASSES: usize = 8;

/// Class of frames that leave by no NIC: to queue pairs of this host.
pub(crate) const LOCAL: u8 = CLASSES as u8;

/// Rule by which a class has its turns (IEEE 802.1Q, table 8-6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Before all classes with a lower number, and before all that share.
    Strict,
    /// A share of the bytes that strict classes leave, in percent, 1 to 100 (ETS). Shares are
    /// relative to those of the classes that have something to send.
    Ets {
        /// The share.
        percent: u8,
    },
}

/// One class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// Its turns.
    pub selection: Selection,
    /// kbit/s of frames to the NIC; 0 for no limit.
    pub max_rate_kbit_per_s: u32,
}

impl ClassConfig {
    /// Without a limit.
    pub const fn new(selection: Selection) -> Self {
        Self { selection, max_rate_kbit_per_s: 0 }
    }
}

/// Highest rates of a device and of its classes; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct DeviceRates {
    pub(crate) device: Arc<SharedRate>,
    pub(crate) classes: [Arc<SharedRate>; CLASSES],
}

/// Field that tells the priority of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The DSCP, by [`TrafficClasses::priority_of_dscp`].
    #[default]
    Dscp,
    /// The priority code point of the VLAN tag; priority 0 without a tag.
    Pcp,
}

/// All classes of a device. Clones share its rates: each endpoint of the device has one.
///
/// ```
/// use roced_transport::turns::classes::{ClassConfig, Selection, TrafficClasses};
///
/// // DSCP 26 (priority 3) has nine tenths of a busy link, and DSCP 48 (priority 6) comes first.
/// let mut classes = TrafficClasses::default();
/// classes.priority_of_dscp[26] = 3;
/// classes.config[0] = ClassConfig::new(Selection::Ets { percent: 10 });
/// classes.config[3] = ClassConfig::new(Selection::Ets { percent: 90 });
/// classes.config[6] = ClassConfig::new(Selection::Strict);
/// assert_eq!(classes.class_of_priority[6], 6);
/// ```
#[derive(Clone, Debug)]
pub struct TrafficClasses {
    /// The classes by their number.
    pub config: [ClassConfig; CLASSES],
    /// Class of each priority, below [`CLASSES`].
    pub class_of_priority: [u8; CLASSES],
    /// Priority of each DSCP, below [`CLASSES`].
    pub priority_of_dscp: [u8; 64],
    /// Field that tells the priority.
    pub trust: Trust,
    /// Bytes in the queue of a NIC with which packets of classes with shares find no room: those
    /// that a packet of a strict class waits for at most, beside one frame.
    pub ahead_bytes_max: usize,
    /// kbit/s of all frames to the NIC; 0 for no limit.
    pub max_rate_kbit_per_s: u32,
    /// When the device and each class may send again, if they have a highest rate.
    pub rates: DeviceRates,
    /// Priorities that may be paused, a bit for each: frames of their classes have no more bytes
    /// before them than those of classes with shares. The NIC sends these in spite of a pause.
    pub paused_priorities: u8,
    /// Rules for pauses without an end.
    pub watchdog: PauseWatchdog,
}

impl Default for TrafficClasses {
    /// Each priority has a class with an equal share; the priority is the class selector, the upper
    /// three bits of the DSCP (RFC 2474 4.2.2).
    fn default() -> Self {
        Self {
            config: [ClassConfig::new(Selection::Ets { percent: 12 }); CLASSES],
            class_of_priority: core::array::from_fn(|priority| priority as u8),
            priority_of_dscp: core::array::from_fn(|dscp| dscp as u8 >> 3),
            trust: Trust::Dscp,
            ahead_bytes_max: 65_536,
            max_rate_kbit_per_s: 0,
            rates: DeviceRates::default(),
            paused_priorities: 0,
            watchdog: PauseWatchdog::default(),
        }
    }
}

impl TrafficClasses {
    /// Class of the packets that leave by a path.
    pub(crate) fn of(&self, path: &PathState) -> u8 {
        match path {
            PathState::Ready(path) if !path.via().is_local() => {
                self.class_of_priority[usize::from(self.priority(path)) % CLASSES] % CLASSES as u8
            }
            PathState::Ready(_) | PathState::Resolving | PathState::Unreachable => LOCAL,
        }
    }

    /// A class may be paused.
    pub(crate) fn may_be_paused(&self, class: u8) -> bool {
        let mut priorities = (0..).zip(&self.class_of_priority);
        priorities.any(|(priority, of)| *of == class && self.paused_priorities >> priority & 1 == 1)
    }

    /// Class of datagrams without a resolved path.
    pub(crate) const fn of_unresolved_datagrams(&self) -> u8 {
        self.class_of_priority[0] % CLASSES as u8
    }

    fn priority(&self, path: &Path) -> u8 {
        match self.trust {
            Trust::Dscp => self.priority_of_dscp[usize::from(path.traffic_class() >> 2)],
            Trust::Pcp => path.vlan_priority().unwrap_or(0),
        }
    }
}
