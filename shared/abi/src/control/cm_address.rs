//! Socket addresses as [`CmAddress`], and back.

use core::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::{CmAddress, cm_family};

/// An address of a family that [`cm_family`] does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFamily(pub u16);

impl CmAddress {
    /// Returns the address, or `None` if the family is [`cm_family::NONE`].
    ///
    /// # Errors
    /// The address family is unknown.
    pub fn socket_address(&self) -> Result<Option<SocketAddr>, UnknownFamily> {
        let [a, b, c, d, ..] = self.address;
        match self.family {
            cm_family::NONE => Ok(None),
            cm_family::IPV4 => Ok(Some(SocketAddr::new(IpAddr::from([a, b, c, d]), self.port))),
            cm_family::IPV6 => Ok(Some(SocketAddrV6::new(self.address.into(), self.port, 0, self.scope).into())),
            family => Err(UnknownFamily(family)),
        }
    }
}

impl From<SocketAddr> for CmAddress {
    fn from(of: SocketAddr) -> Self {
        let mut address = [0; 16];
        let (family, scope) = match of {
            SocketAddr::V4(v4) => {
                address[..4].copy_from_slice(&v4.ip().octets());
                (cm_family::IPV4, 0)
            }
            SocketAddr::V6(v6) => {
                address = v6.ip().octets();
                (cm_family::IPV6, v6.scope_id())
            }
        };
        Self { address, scope, family, port: of.port() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_the_other_side() {
        for address in ["10.0.0.1:7", "[fd00::1]:65535", "[fe80::1%3]:7", "0.0.0.0:0"] {
            let address: SocketAddr = address.parse().expect("an address");
            assert_eq!(CmAddress::from(address).socket_address(), Ok(Some(address)));
        }
        assert_eq!(CmAddress::default().socket_address(), Ok(None));
        assert_eq!(CmAddress { family: 3, ..CmAddress::default() }.socket_address(), Err(UnknownFamily(3)));
    }
}
