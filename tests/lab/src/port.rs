//! A port of the switch as a packet socket: RoCE frames that arrive there, and frames that leave
//! there.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send, setsockopt, socket,
        sockopt,
    },
};
use roced_transport::wire::frame::dest_qpn;
use roced_types::Qpn;

/// Bytes of unread frames that the socket holds. A guess; frames that do not fit are not looked at.
const RECEIVE_BYTES: usize = 64 << 20;

/// Ethernet with two tags, the longest IP header, UDP and BTH.
const HEAD_BYTES: usize = 22 + 60 + 8 + 12;

/// `PACKET_OUTGOING` of `linux/if_packet.h`: a frame that leaves.
const OUTGOING: u8 = 4;

/// A RoCE frame that arrived at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its destination MAC address.
    pub to: [u8; 6],
    /// The queue pair that it is for.
    pub dest_qpn: Qpn,
}

/// A port.
#[derive(Debug)]
pub struct Port {
    name: String,
    socket: OwnedFd,
}

impl Port {
    /// Opens the port with this name of this network namespace.
    ///
    /// # Errors
    /// There is none; the caller is not root.
    pub fn open(name: &str) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
            .context("a packet socket: is this root?")?;
        setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BYTES).context("SO_RCVBUFFORCE")?;
        bind(socket.as_raw_fd(), &link_address(name)?).with_context(|| format!("binding to port '{name}'"))?;
        Ok(Self { name: name.to_owned(), socket })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next RoCE frame that arrived; `None` when there is none yet.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arrival(&self) -> Result<Option<Arrival>> {
        loop {
            let mut head = [0; HEAD_BYTES];
            let (bytes, from) = match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut head) {
                Ok(received) => received,
                Err(Errno::EAGAIN) => return Ok(None),
                // The port was down for an instant.
                Err(Errno::ENETDOWN | Errno::EINTR) => continue,
                Err(error) => return Err(error).context(format!("frames that arrive on port '{}'", self.name)),
            };
            let is_outgoing = from.is_some_and(|from| from.pkttype() == OUTGOING);
            let head = &head[..bytes];
            if let (false, Some(to), Some(dest_qpn)) = (is_outgoing, head.first_chunk(), dest_qpn(&[head])) {
                return Ok(Some(Arrival { to: *to, dest_qpn }));
            }
        }
    }

    /// Sends a frame out of the port, to the host behind it. False when the port has no room.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, frame: &[u8]) -> Result<bool> {
        match send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            Ok(sent) => {
                ensure!(sent == frame.len(), "{sent} of {} bytes left port '{}'", frame.len(), self.name);
                Ok(true)
            }
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(false),
            Err(error) => Err(error).context(format!("sending {} bytes out of port '{}'", frame.len(), self.name)),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn link_address(name: &str) -> Result<LinkAddr> {
    let mut all = getifaddrs().context("the interfaces")?.filter(|interface| interface.interface_name == name);
    let address = all.find_map(|interface| interface.address?.as_link_addr().copied());
    address.with_context(|| format!("no port '{name}' in this network namespace"))
}
