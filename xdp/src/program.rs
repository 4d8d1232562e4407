//! The XDP program on one interface, for as long as an [`XdpProgram`] lives.
//!
//! It is attached through a bpf_link with our file descriptor as its only owner: however this
//! process ends, the kernel closes the descriptor and detaches the program, and all traffic is the
//! kernel's again. The link is therefore never pinned, and an attachment of the older kind
//! (netlink's, which stays behind) is undone and refused.

use std::{
    collections::BTreeSet,
    fmt,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd as _},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, IterableMap as _, Map, MapData, MapError, PerCpuArray, XskMap},
    programs::{Xdp, XdpMode as Attach, links::FdLink, xdp::XdpLinkId},
};
use caps::Capability;
use roced_steering::{self, AddressKey, Verdict};
use tracing::{info, warn};

use super::{
    XdpError,
    error::{errno, missing_capability},
};
use crate::{
    AttachedMode, XdpMode,
    pauses::{HonoredPauses, PauseMap},
};

/// Capability for attaching; checked only if the kernel says "not permitted".
const CAPABILITIES: [(Capability, &str); 2] = [
    (Capability::CAP_NET_ADMIN, "attaching an XDP program to an interface"),
    (Capability::CAP_BPF, "loading an XDP program"),
];

/// The program, attached. Dropping it detaches.
pub struct XdpProgram {
    // First, so that the program is off the interface before its maps go.
    _link: FdLink,
    interface: Box<str>,
    mode: AttachedMode,
    sockets: XskMap<MapData>,
    addresses: HashMap<MapData, AddressKey, u8>,
    verdicts: PerCpuArray<MapData, u64>,
    pauses: Array<MapData, [u64; roced_steering::PAUSE_WORDS]>,
    /// Entries of `addresses`.
    held: BTreeSet<AddressKey>,
}

impl XdpProgram {
    /// Loads the program and attaches it to `interface`, with no address and no socket yet: all
    /// traffic stays the kernel's.
    ///
    /// # Errors
    /// [`XdpError`], when the kernel or the driver refuses, or a program is there already.
    pub fn attach(interface: &str, mode: XdpMode) -> Result<Self, XdpError> {
        let mut ebpf = EbpfLoader::new().btf(None).load(roced_ebpf::OBJECT).map_err(load_error)?;
        let program: &mut Xdp = ebpf
            .program_mut(roced_steering::PROGRAM)
            .expect("the object has the program: tests/xdp")
            .try_into()
            .expect("it is an XDP program: tests/xdp");
        program.load().map_err(load_error)?;
        let (link, mode) = attach_in_mode(program, interface, mode)?;
        let this = Self {
            _link: link,
            interface: interface.into(),
            mode,
            sockets: XskMap::try_from(take_map(&mut ebpf, roced_steering::MAP_SOCKETS))
                .map_err(map_error(roced_steering::MAP_SOCKETS))?,
            addresses: HashMap::try_from(take_map(&mut ebpf, roced_steering::MAP_ADDRESSES))
                .map_err(map_error(roced_steering::MAP_ADDRESSES))?,
            verdicts: PerCpuArray::try_from(take_map(&mut ebpf, roced_steering::MAP_VERDICTS))
                .map_err(map_error(roced_steering::MAP_VERDICTS))?,
            pauses: Array::try_from(take_map(&mut ebpf, roced_steering::MAP_PAUSES))
                .map_err(map_error(roced_steering::MAP_PAUSES))?,
            held: BTreeSet::new(),
        };
        info!(interface, mode = mode.word(), "XDP program attached");
        Ok(this)
    }

    /// The mode it got.
    pub fn mode(&self) -> AttachedMode {
        self.mode
    }

    /// The interface it is on.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Sets `addresses` to those with frames of these versions of RoCE
    /// ([`roced_steering::ROCE_V1`], [`roced_steering::ROCE_V2`]) for this host. Remaining entries
    /// are not touched, so their traffic is not disturbed.
    ///
    /// # Errors
    /// When the map refuses, as it does beyond [`roced_steering::ADDRESSES_MAX`]. Then some may be set and
    /// others not; a later call goes on from there.
    pub fn set_addresses(&mut self, addresses: &[IpAddr], roce: u8) -> Result<(), XdpError> {
        let failed = map_error(roced_steering::MAP_ADDRESSES);
        let wanted: BTreeSet<_> = addresses.iter().copied().map(roced_types::gid_of).collect();
        // The old ones first: the new ones may need their room.
        for key in self.held.difference(&wanted).copied().collect::<Vec<_>>() {
            self.addresses.remove(&key).map_err(failed)?;
            self.held.remove(&key);
        }
        for key in wanted.difference(&self.held).copied().collect::<Vec<_>>() {
            self.addresses.insert(key, roce, 0).map_err(failed)?;
            self.held.insert(key);
        }
        Ok(())
    }

    /// Gives the frames of RX queue `queue` to `socket`. A socket that closes is taken out by the
    /// kernel.
    ///
    /// # Errors
    /// When the map refuses: a queue from [`roced_steering::QUEUES_MAX`] on, or not an AF_XDP socket.
    pub fn bind_socket(&mut self, queue: u32, socket: impl AsFd) -> Result<(), XdpError> {
        self.sockets.set(queue, socket.as_fd().as_raw_fd(), 0).map_err(map_error(roced_steering::MAP_SOCKETS))
    }

    /// Has pauses honored from now on; to be called once. Workers read them from the map that is
    /// returned.
    ///
    /// # Errors
    /// When the map refuses, or cannot be mapped.
    pub fn honor_pauses(&mut self, honored: HonoredPauses) -> Result<PauseMap, XdpError> {
        let map = PauseMap::new(self.pauses.map().fd().as_fd(), honored).map_err(XdpError::MapPauses)?;
        // The program writes none of it before.
        self.pauses.set(0, honored.words(), 0).map_err(map_error(roced_steering::MAP_PAUSES))?;
        Ok(map)
    }

    /// Frames by verdict since the program was loaded, all CPUs together, in the order of
    /// [`Verdict::ALL`].
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn verdicts(&self) -> Result<[u64; Verdict::ALL.len()], XdpError> {
        let mut sums = [0; Verdict::ALL.len()];
        for verdict in Verdict::ALL {
            let counts = self.verdicts.get(&(verdict as u32), 0).map_err(map_error(roced_steering::MAP_VERDICTS))?;
            sums[verdict as usize] = counts.iter().sum();
        }
        Ok(sums)
    }
}

impl fmt::Debug for XdpProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdpProgram")
            .field("interface", &self.interface)
            .field("mode", &self.mode)
            .field("addresses", &self.held.len())
            .finish_non_exhaustive()
    }
}

/// Attaches in the mode asked for. With [`XdpMode::Auto`] native first, and generic when the driver
/// does not want it.
fn attach_in_mode(program: &mut Xdp, interface: &str, mode: XdpMode) -> Result<(FdLink, AttachedMode), XdpError> {
    let native = |program: &mut Xdp| attach_link(program, interface, AttachedMode::Native);
    let generic = |program: &mut Xdp| attach_link(program, interface, AttachedMode::Generic);
    match mode {
        XdpMode::Native => native(program),
        XdpMode::Generic => generic(program),
        XdpMode::Auto => native(program).or_else(|refusal| match refusal {
            XdpError::ModeRefused { .. } | XdpError::TooFewQueues { .. } | XdpError::MtuTooLarge { .. } => {
                let attached = generic(program)?;
                warn!(interface, %refusal, "no native XDP, so generic: slower");
                Ok(attached)
            }
            _ => Err(refusal),
        }),
    }
}

const fn flag(mode: AttachedMode) -> Attach {
    match mode {
        AttachedMode::Native => Attach::Driver,
        AttachedMode::Generic => Attach::Skb,
    }
}

fn attach_link(program: &mut Xdp, interface: &str, mode: AttachedMode) -> Result<(FdLink, AttachedMode), XdpError> {
    let id = program.attach(interface, flag(mode)).map_err(|error| attach_error(error, interface, mode))?;
    let not_a_link = || XdpError::NotALink { interface: interface.into() };
    if !is_fd_link(&id) {
        // Detached by its id: once turned into anything else, aya forgets how to.
        program.detach(id).map_err(load_error)?;
        return Err(not_a_link());
    }
    let link = program.take_link(id).map_err(load_error)?;
    Ok((FdLink::try_from(link).map_err(|_| not_a_link())?, mode))
}

/// Whether the attachment goes away with its descriptor. aya attaches by netlink where the kernel
/// answers EINVAL to a link, does not say so, and has no other way to ask without giving the
/// attachment up. Were the name to change, every attachment would be refused, and every test of
/// this module would say so.
fn is_fd_link(id: &XdpLinkId) -> bool {
    format!("{id:?}").contains("FdLinkId")
}

fn take_map(ebpf: &mut Ebpf, name: &'static str) -> Map {
    ebpf.take_map(name).expect("the object has the map: tests/xdp")
}

fn map_error(map: &'static str) -> impl Fn(MapError) -> XdpError + Copy {
    move |source| XdpError::Map { map, source }
}

fn load_error(error: impl std::error::Error + Send + Sync + 'static) -> XdpError {
    let errno = errno(&error);
    let missing = match errno {
        Some(libc::EPERM | libc::EACCES) => missing_capability(&CAPABILITIES),
        _ => None,
    };
    match (missing, errno) {
        (Some(missing), _) => missing,
        (None, Some(libc::EACCES)) => XdpError::Verifier(Box::new(error)),
        (None, _) => XdpError::Load(Box::new(error)),
    }
}

fn attach_error(error: aya::programs::ProgramError, interface: &str, mode: AttachedMode) -> XdpError {
    let interface = interface.into();
    if let aya::programs::ProgramError::UnknownInterface { .. } = error {
        return XdpError::NoInterface { interface };
    }
    match errno(&error) {
        Some(libc::EPERM) => {
            if let Some(missing) = missing_capability(&CAPABILITIES) {
                return missing;
            }
        }
        // EBUSY: another program in this mode. EEXIST: one in the other mode.
        Some(libc::EBUSY | libc::EEXIST) => return XdpError::ProgramPresent { interface },
        // The message of veth, and of other drivers after it.
        Some(libc::ENOSPC) => return XdpError::TooFewQueues { interface },
        Some(libc::ERANGE) => return XdpError::MtuTooLarge { interface },
        _ => {}
    }
    XdpError::ModeRefused { interface, mode, source: Box::new(error) }
}
