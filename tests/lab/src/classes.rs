//! Traffic classes of the switch's ports: a queue for each, and the wire of a port, at the other end
//! of which bytes leave the queue.
//!
//! HTB, which `scripts/lab` adds, gives the classes their turns, so that the time at which a frame
//! leaves is known at the other end of the port's wire alone. `queue.bpf.c` has the diagram.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, Result, ensure};
use zerocopy::{Immutable, IntoBytes};

use crate::program::index_of;

/// Frames that are neither IP nor RoCE, and neighbor discovery: `CLASS_OTHER`.
const OTHER: u8 = 8;

/// Redirect to the ingress of an interface: `BPF_F_INGRESS` of `linux/bpf.h`.
const INGRESS: u64 = 1;

/// The traffic classes of all ports: a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortClasses(u8);

impl FromStr for PortClasses {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut classes = 0;
        for word in text.split(',') {
            let class: u8 = word.parse().with_context(|| format!("'{word}' is no class"))?;
            ensure!(class < OTHER, "a class is 0 to 7, not {class}");
            classes |= 1 << class;
        }
        ensure!(classes & 1 != 0, "frames of priority 0 need the class 0, which '{text}' lacks");
        Ok(Self(classes))
    }
}

impl PortClasses {
    /// Class of each priority: that of its number, or that of priority 0, as roced has them.
    pub(crate) fn of_priorities(self) -> [u8; 8] {
        core::array::from_fn(|priority| if self.0 & 1 << priority == 0 { 0 } else { priority as u8 })
    }

    /// All that have a queue.
    pub(crate) fn with_queues(self) -> impl Iterator<Item = u8> {
        (0..OTHER).filter(move |class| self.0 & 1 << class != 0).chain([OTHER])
    }
}

/// A traffic class of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortClass(pub u8);

impl fmt::Display for PortClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == OTHER { f.pad("other") } else { f.pad(&self.0.to_string()) }
    }
}

/// `struct wire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct WireBytes {
    /// The port that frames have left, or zero for those of the host.
    pub(crate) port: u32,
    /// The next interface.
    pub(crate) next: u32,
    /// How they get there.
    pub(crate) flags: u64,
}

/// Interfaces between `port` and its host, as `scripts/lab` names them: the end of the port's wire,
/// and the one toward the host.
pub(crate) fn interfaces(port: &str) -> [String; 2] {
    [format!("wire-{port}"), format!("host-{port}")]
}

/// Path of frames through the interfaces of `port`: index and value of the map `wires`.
pub(crate) fn wires(port: &str) -> Result<[(u32, WireBytes); 2]> {
    let [wire, host] = interfaces(port);
    let index = |name: &str| index_of(name).map(i32::cast_unsigned);
    let (port, wire, host) = (index(port)?, index(&wire)?, index(&host)?);
    Ok([(wire, WireBytes { port, next: host, flags: 0 }), (host, WireBytes { port: 0, next: port, flags: INGRESS })])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_without_a_class_are_of_class_0() {
        let classes: PortClasses = "6,0,3".parse().expect("classes");
        assert_eq!(classes.of_priorities(), [0, 0, 0, 3, 0, 0, 6, 0]);
        assert_eq!(
            classes.with_queues().map(|class| PortClass(class).to_string()).collect::<Vec<_>>(),
            ["0", "3", "6", "other"]
        );
        for text in ["", "3", "0,8", "0,x", "0,,3"] {
            assert!(text.parse::<PortClasses>().is_err(), "{text}");
        }
    }
}
