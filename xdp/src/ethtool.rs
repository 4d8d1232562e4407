//! Queries to drivers of interfaces, and settings.
#![expect(unsafe_code, reason = "ioctl(2) with the structures of ethtool")]

use std::{
    ffi::c_char,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `ETHTOOL_GDRVINFO` of `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x3;

/// `ETHTOOL_GRINGPARAM`.
const ETHTOOL_GRINGPARAM: u32 = 0x10;

/// `ETHTOOL_GPAUSEPARAM` and `ETHTOOL_SPAUSEPARAM`.
const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
const ETHTOOL_SPAUSEPARAM: u32 = 0x13;

/// `ETHTOOL_GCHANNELS`.
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `ETHTOOL_GGRO` and `ETHTOOL_SGRO`.
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;

/// `ETHTOOL_GFLAGS`, and its flag for VLAN tags of received frames: `ETH_FLAG_RXVLAN`.
const ETHTOOL_GFLAGS: u32 = 0x25;
const FLAG_RXVLAN: u32 = 1 << 8;

/// `SIOCETHTOOL` of `linux/sockios.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `struct ethtool_drvinfo`: the driver's name, and unused fields.
#[repr(C)]
struct Driver {
    cmd: u32,
    name: [u8; 32],
    others: [u8; 140],
    numbers: [u32; 5],
}

/// `struct ethtool_ringparam`.
#[repr(C)]
#[derive(Default)]
struct RingParameters {
    cmd: u32,
    rx_max: u32,
    rx_mini_max: u32,
    rx_jumbo_max: u32,
    tx_max: u32,
    rx: u32,
    rx_mini: u32,
    rx_jumbo: u32,
    tx: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx_count: u32,
    tx_count: u32,
    other_count: u32,
    combined_count: u32,
}

/// `struct ethtool_pauseparam`.
#[repr(C)]
#[derive(Default)]
struct PauseParameters {
    cmd: u32,
    autoneg: u32,
    rx: u32,
    tx: u32,
}

/// `struct ethtool_value`.
#[repr(C)]
#[derive(Default)]
struct Value {
    cmd: u32,
    data: u32,
}

/// A structure of ethtool that begins with the command, which says which structure it is.
///
/// # Safety
/// For every command that it is made with, it is the structure that the kernel reads and writes.
unsafe trait Structure {}

// SAFETY: made with ETHTOOL_GDRVINFO only.
unsafe impl Structure for Driver {}
// SAFETY: made with ETHTOOL_GRINGPARAM only.
unsafe impl Structure for RingParameters {}
// SAFETY: made with ETHTOOL_GCHANNELS only.
unsafe impl Structure for Channels {}
// SAFETY: made with ETHTOOL_GPAUSEPARAM and ETHTOOL_SPAUSEPARAM only.
unsafe impl Structure for PauseParameters {}
// SAFETY: made with ETHTOOL_GGRO, ETHTOOL_SGRO and ETHTOOL_GFLAGS only.
unsafe impl Structure for Value {}

/// Carries out the command in `what` on an interface.
fn ethtool<T: Structure>(interface: &str, what: &mut T) -> io::Result<()> {
    let socket: OwnedFd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: all bytes zero are a valid `ifreq`: numbers, arrays and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = byte as c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut *what).cast();
    // SAFETY: SIOCETHTOOL takes an `ifreq` with a pointer to the structure of its command, which
    // `Structure` promises; both live until the call returns, and the kernel keeps neither.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// RX queues in use now, as `ethtool -l` shows them; `None` if the driver does not say.
///
/// # Errors
/// The kernel's; `ENODEV` when there is no such interface.
pub fn rx_queues(interface: &str) -> io::Result<Option<u32>> {
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
    match ethtool(interface, &mut channels) {
        // Cannot overflow in earnest: a NIC has a few hundred.
        Ok(()) => Ok(Some(channels.rx_count.saturating_add(channels.combined_count).max(1))),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Entries of each receive ring of the NIC, as `ethtool -g` shows them; `None` if the driver does not
/// say, as those of virtual interfaces.
pub fn rx_ring_entries(interface: &str) -> Option<u32> {
    let mut rings = RingParameters { cmd: ETHTOOL_GRINGPARAM, ..RingParameters::default() };
    ethtool(interface, &mut rings).ok()?;
    Some(rings.rx).filter(|entries| *entries > 0)
}

/// Global pause of a link (IEEE 802.3x), which stops all priorities together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalPause {
    /// The peer takes part in the decision.
    pub autoneg: bool,
    /// Received pause frames are obeyed.
    pub rx: bool,
    /// Pause frames are sent.
    pub tx: bool,
}

/// Global pause, as `ethtool -a` shows it; `None` if the driver does not say, as those of virtual
/// interfaces.
///
/// # Errors
/// The kernel's.
pub(super) fn global_pause(interface: &str) -> io::Result<Option<GlobalPause>> {
    let mut pause = PauseParameters { cmd: ETHTOOL_GPAUSEPARAM, ..PauseParameters::default() };
    match ethtool(interface, &mut pause) {
        Ok(()) => Ok(Some(GlobalPause { autoneg: pause.autoneg != 0, rx: pause.rx != 0, tx: pause.tx != 0 })),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets [`global_pause`].
///
/// # Errors
/// The kernel's.
pub(super) fn set_global_pause(interface: &str, pause: GlobalPause) -> io::Result<()> {
    let GlobalPause { autoneg, rx, tx } = pause;
    let (autoneg, rx, tx) = (autoneg.into(), rx.into(), tx.into());
    ethtool(interface, &mut PauseParameters { cmd: ETHTOOL_SPAUSEPARAM, autoneg, rx, tx })
}

/// Whether the interface is an end of a veth pair.
///
/// # Errors
/// The kernel's.
pub(super) fn is_veth(interface: &str) -> io::Result<bool> {
    let mut driver = Driver { cmd: ETHTOOL_GDRVINFO, name: [0; 32], others: [0; 140], numbers: [0; 5] };
    ethtool(interface, &mut driver)?;
    Ok(driver.name.starts_with(b"veth\0"))
}

/// Whether received packets are joined to larger ones (`ethtool -k`: generic-receive-offload).
///
/// # Errors
/// The kernel's.
pub(super) fn gro(interface: &str) -> io::Result<bool> {
    let mut value = Value { cmd: ETHTOOL_GGRO, data: 0 };
    ethtool(interface, &mut value).map(|()| value.data != 0)
}

/// Switches [`gro`].
///
/// # Errors
/// The kernel's.
pub(super) fn set_gro(interface: &str, on: bool) -> io::Result<()> {
    ethtool(interface, &mut Value { cmd: ETHTOOL_SGRO, data: on.into() })
}

/// Whether the NIC takes VLAN tags off frames that arrive (`ethtool -k`: rx-vlan-offload): XDP then
/// sees no tag. A driver that does not say may do so.
pub fn strips_vlan_tags(interface: &str) -> bool {
    let mut value = Value { cmd: ETHTOOL_GFLAGS, data: 0 };
    ethtool(interface, &mut value).map_or(true, |()| value.data & FLAG_RXVLAN != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_no_veth() {
        assert!(!is_veth("lo").unwrap_or(false));
        assert_eq!(is_veth("none-such-if").expect_err("not there").raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn the_loopback_does_not_say_its_queues_and_an_interface_that_is_not_there_is_an_error() {
        assert_eq!(rx_queues("lo").expect("the loopback is always there"), None);
        assert_eq!(global_pause("lo").expect("the loopback is always there"), None);
        assert_eq!(global_pause("none-such-if").expect_err("not there").raw_os_error(), Some(libc::ENODEV));
        assert_eq!((rx_ring_entries("lo"), rx_ring_entries("none-such-if")), (None, None));
        assert_eq!(rx_queues("none-such-if").expect_err("not there").raw_os_error(), Some(libc::ENODEV));
        assert_eq!(rx_queues("a-name-far-too-long").expect_err("not there").raw_os_error(), Some(libc::ENODEV));
    }
}
