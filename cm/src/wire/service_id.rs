//! Service IDs: the ports of listeners, by port space (IBTA annex A11).

/// A service ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

/// The port spaces that rdma_cm numbers by IP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// IP over InfiniBand.
    Ipoib = 0x0002,
    /// Reliable connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
}

impl ServiceId {
    /// The service ID of a port.
    pub const fn of(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Port space and port; `None` of service IDs that are not numbered by IP ports.
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        let space = match self.0 >> 16 {
            0x0002 => PortSpace::Ipoib,
            0x0106 => PortSpace::Tcp,
            0x0111 => PortSpace::Udp,
            _ => return None,
        };
        Some((space, self.0 as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_stands_behind_its_port_space() {
        assert_eq!(ServiceId::of(PortSpace::Tcp, 7174), ServiceId(0x0106_1c06));
        for space in [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp] {
            assert_eq!(ServiceId::of(space, 0xfffe).port(), Some((space, 0xfffe)));
        }
        assert_eq!(ServiceId(0x0001_0106_1c06).port(), None, "higher bits are no port space");
        assert_eq!(ServiceId(0x013f_0000).port(), None);
    }
}
