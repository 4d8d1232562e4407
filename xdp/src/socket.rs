//! An AF_XDP socket on one queue: made, bound and set up.
#![expect(unsafe_code, reason = "binds the socket, takes its rings apart")]

use std::{
    error::Error as _,
    ffi::CString,
    io,
    os::fd::BorrowedFd,
    thread,
    time::{Duration, Instant},
};

use caps::Capability;
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    net::if_::if_nametoindex,
    sys::socket::{setsockopt, sockopt},
};
use roced_transport::io::SEGMENTS_MAX;
use tracing::debug;
use xsk_rs::{
    CompQueue, FillQueue, RxQueue, Socket, TxQueue,
    config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig},
};

use super::{
    NicQueueConfig, XdpError,
    error::{errno, missing_capability},
    receive::Receive,
    sys,
    transmit::Transmit,
    umem::{Dealt, Umem, UmemRefused, UmemSizes},
};
use crate::{
    CopyMode,
    frame_path::{self, DriverZeroCopy, FrameChunks, frame_chunks},
    netdev::Netdev,
};

/// Capability for a socket; checked only if the kernel says "not permitted".
const CAPABILITIES: [(Capability, &str); 2] =
    [(Capability::CAP_NET_RAW, "an AF_XDP socket"), (Capability::CAP_NET_ADMIN, "an AF_XDP socket")];

/// Between two tries on a busy queue. A queue just released is free after 5 to 13 ms.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// Descriptors that one system call may send in copy mode. Measured on veth: 8 times fewer calls
/// than with the kernel's 32.
const TX_BUDGET: u32 = 256;

/// A bound socket.
pub(super) struct BoundSocket {
    pub receive: Receive,
    pub transmit: Transmit,
    pub zerocopy: bool,
    pub reason: &'static str,
    /// The longest frame that it sends and receives.
    pub frame_bytes_max: usize,
}

/// Makes the UMEM, binds a socket to the queue and gives it its chunks.
pub(super) fn bind(config: &NicQueueConfig) -> Result<BoundSocket, XdpError> {
    let sizes = sizes(config)?;
    let Dealt { umem, rx, tx } = Umem::create(&sizes).map_err(|refused| umem_error(config, &sizes, refused))?;
    let driver = if_nametoindex(&*config.interface).map_or(DriverZeroCopy::Unknown, Netdev::zero_copy);
    let wanted = frame_chunks(config.link_mtu_bytes, umem.usable_bytes(), config.copy_mode, driver);
    let (tx_queue, rx_queue, fill, completion, chunks) = bind_for(config, &umem, wanted)?;
    let frame_bytes_max = chunks * umem.usable_bytes();
    // SAFETY: rings and chunks are those of one UMEM, just made, and no other code has them; `rx`
    // are the receiving chunks.
    let receive = unsafe { Receive::new(umem.clone(), fill, rx_queue, rx) };
    // SAFETY: as above; `tx` are the sending chunks, and `bind_once` asked for a TX ring of that
    // size.
    let transmit = unsafe { Transmit::new(umem, tx_queue, completion, config.tx_ring_entries, tx) };
    let zerocopy = set_up(transmit.socket(), config).map_err(|source| queue_refused(config, source))?;
    let reason = frame_path::reason(zerocopy, wanted, config.copy_mode, driver);
    Ok(BoundSocket { receive, transmit, zerocopy, reason, frame_bytes_max })
}

/// How the chunks are dealt: as many to send as the TX ring has entries, the rest to receive.
fn sizes(config: &NicQueueConfig) -> Result<UmemSizes, XdpError> {
    let rx_chunks = config.umem_frames.checked_sub(config.tx_ring_entries).filter(|&chunks| chunks > 0);
    let rx_chunks =
        rx_chunks.ok_or_else(|| bad_sizes(config, "a queue has more frames than entries in its TX ring"))?;
    Ok(UmemSizes {
        rx_chunks,
        tx_chunks: config.tx_ring_entries,
        chunk_bytes: config.chunk_bytes,
        fill_ring_entries: config.fill_ring_entries,
        completion_ring_entries: config.completion_ring_entries,
    })
}

type Rings = (TxQueue, RxQueue, FillQueue, CompQueue);

/// Binds for frames of as many chunks as `wanted`. Kernels before Linux 6.6 know only one, and so do
/// some drivers with zero-copy: then a frame is one chunk at most. Also says how many chunks.
fn bind_for(
    config: &NicQueueConfig,
    umem: &Umem,
    wanted: FrameChunks,
) -> Result<(TxQueue, RxQueue, FillQueue, CompQueue, usize), XdpError> {
    let mut refused = None;
    if wanted == FrameChunks::Several {
        match bind_until_free(config, umem, BindFlags::XDP_USE_SG)? {
            Ok((tx, rx, fill, completion)) => return Ok((tx, rx, fill, completion, SEGMENTS_MAX)),
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                return Err(bind_error(config, error));
            }
            Err(error) => refused = Some(error),
        }
    }
    match bind_until_free(config, umem, BindFlags::empty())? {
        Ok((tx, rx, fill, completion)) => Ok((tx, rx, fill, completion, 1)),
        // The first refusal was for the same reason.
        Err(error) => Err(bind_error(config, refused.unwrap_or(error))),
    }
}

/// Binds, and tries again for as long as the config allows when the queue is busy: after a restart
/// it is for a moment. The inner error is any other that the kernel gave.
fn bind_until_free(config: &NicQueueConfig, umem: &Umem, flags: BindFlags) -> Result<io::Result<Rings>, XdpError> {
    let begin = Instant::now();
    loop {
        let bound = bind_once(config, umem, flags)?;
        let busy = matches!(&bound, Err(error) if error.raw_os_error() == Some(libc::EBUSY));
        if !busy {
            return Ok(bound);
        }
        let waited = begin.elapsed();
        if waited >= config.busy_deadline {
            return Err(XdpError::QueueBusy { interface: config.interface.clone(), queue: config.queue, waited });
        }
        thread::sleep(BUSY_PAUSE.min(config.busy_deadline - waited));
    }
}

/// One try. The outer error is ours, the inner one the kernel's.
fn bind_once(config: &NicQueueConfig, umem: &Umem, flags: BindFlags) -> Result<io::Result<Rings>, XdpError> {
    let ring = |entries| QueueSize::new(entries).map_err(|_| bad_sizes(config, "a ring has a power of two entries"));
    let name = CString::new(&*config.interface).map_err(|_| no_interface(config))?;
    let socket_config = SocketConfig::builder()
        .rx_queue_size(ring(config.rx_ring_entries)?)
        .tx_queue_size(ring(config.tx_ring_entries)?)
        // Ours is attached already, or will be.
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(flags | bind_flags(config.copy_mode))
        .build();
    // SAFETY: the UMEM is shared with no other socket, and even then the flag set above is all that
    // is asked for.
    let made = unsafe { Socket::new(socket_config, umem.inner(), &Interface::new(name), config.queue) };
    Ok(match made {
        Ok((tx, rx, Some((fill, completion)))) => Ok((tx, rx, fill, completion)),
        Ok((_, _, None)) => unreachable!("the first socket of a UMEM gets its rings"),
        Err(error) => Err(errno(&error).map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)),
    })
}

fn bind_flags(mode: CopyMode) -> BindFlags {
    let how = match mode {
        CopyMode::Auto => BindFlags::empty(),
        CopyMode::Zerocopy => BindFlags::XDP_ZEROCOPY,
        CopyMode::Copy => BindFlags::XDP_COPY,
    };
    BindFlags::XDP_USE_NEED_WAKEUP | how
}

/// Sets the options of a bound socket. Says whether it is zero-copy.
fn set_up(socket: BorrowedFd<'_>, config: &NicQueueConfig) -> io::Result<bool> {
    fcntl(socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let zerocopy = sys::is_zerocopy(socket)?;
    if !zerocopy {
        // In copy mode every frame under way counts against the send buffer, with about twice its
        // bytes; the usual buffer holds 17 frames of 4154 bytes, and beyond the kernel says EAGAIN.
        let wanted = u64::from(config.tx_ring_entries) * u64::from(config.chunk_bytes) * 2;
        let wanted = usize::try_from(wanted.min(i32::MAX as u64 / 2)).expect("less than 2^30");
        let set = setsockopt(&socket, sockopt::SndBufForce, &wanted);
        if let Err(error) = set.or_else(|_| setsockopt(&socket, sockopt::SndBuf, &wanted)) {
            debug!(queue = config.queue, %error, "the send buffer stays as it is");
        }
        if let Err(error) = sys::set_tx_budget(socket, TX_BUDGET.min(config.tx_ring_entries)) {
            debug!(queue = config.queue, %error, "the kernel sends 32 descriptors in a call (before Linux 6.17)");
        }
    }
    Ok(zerocopy)
}

fn umem_error(config: &NicQueueConfig, sizes: &UmemSizes, refused: UmemRefused) -> XdpError {
    let error = match refused {
        UmemRefused::Sizes(rule) => return bad_sizes(config, rule),
        UmemRefused::Kernel(error) => error,
    };
    let (interface, queue, bytes) = (config.interface.clone(), config.queue, sizes.bytes());
    let errno = error.source().and_then(errno);
    let missing = match errno {
        Some(libc::EPERM) => missing_capability(&CAPABILITIES),
        _ => None,
    };
    match errno {
        _ if missing.is_some() => missing.expect("just looked"),
        // Registering the memory locks it: against RLIMIT_MEMLOCK, unless CAP_IPC_LOCK is there.
        Some(libc::ENOBUFS) => XdpError::LockedMemory { interface, queue, bytes },
        errno => {
            let source = errno.map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error);
            XdpError::Umem { interface, queue, bytes, source }
        }
    }
}

fn bind_error(config: &NicQueueConfig, source: io::Error) -> XdpError {
    let (interface, queue) = (config.interface.clone(), config.queue);
    match source.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => no_interface(config),
        Some(libc::EPERM) => missing_capability(&CAPABILITIES).unwrap_or_else(|| queue_refused(config, source)),
        Some(libc::EOPNOTSUPP | libc::EINVAL) if config.copy_mode == CopyMode::Zerocopy => {
            XdpError::NoZeroCopy { interface, queue, source }
        }
        _ => queue_refused(config, source),
    }
}

fn queue_refused(config: &NicQueueConfig, source: io::Error) -> XdpError {
    XdpError::QueueRefused { interface: config.interface.clone(), queue: config.queue, source }
}

fn no_interface(config: &NicQueueConfig) -> XdpError {
    XdpError::NoInterface { interface: config.interface.clone() }
}

fn bad_sizes(config: &NicQueueConfig, rule: &'static str) -> XdpError {
    XdpError::BadSizes { interface: config.interface.clone(), queue: config.queue, rule }
}
