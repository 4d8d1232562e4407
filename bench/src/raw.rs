//! The limit: raw AF_XDP frames of the size that RoCE's would have, on a link like RoCE's.
//!
//! Sender and receiver share with the daemon only its lowest layer ([`roced_xdp`]): the same
//! sockets, rings and sizes, the same XDP program in the same mode. There is no protocol, no
//! client, no checksum, and no payload is copied: the bytes behind a frame's headers are the old
//! content of the chunk. As with RDMA, the data in flight is limited: the receiver sends a small
//! frame back now and then that says how far it came.

mod frame;
mod pingpong;
mod stream;

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use roced_steering::ROCE_V2;
use roced_xdp::{NicQueue, NicQueueConfig, ThreadedNapi, XdpMode, XdpProgram};

use self::frame::FrameTemplate;
use crate::{
    network::{BenchNetwork, NetworkSide, Pair},
    sample::Sample,
};

/// One host's end of the link.
#[derive(Debug)]
struct RawEnd {
    queue: NicQueue,
    template: FrameTemplate,
    /// The receiver's NAPI is moved, here or at the other end.
    napi_moved: bool,
    // Last: the socket goes before the program that feeds it, and that before the rest of the
    // interface.
    _program: XdpProgram,
    _napi: Option<ThreadedNapi>,
}

/// Both ends of the link, open from the first round to the last.
#[derive(Debug)]
pub(crate) struct Raw {
    ends: Mutex<[RawEnd; 2]>,
}

impl Raw {
    /// Opens both ends of a pair with the daemon's defaults.
    pub(crate) fn new(network: &BenchNetwork, pair: Pair) -> anyhow::Result<Self> {
        let open = |side| network.on(side, || RawEnd::open(pair, side)).context("raw AF_XDP");
        Ok(Self { ends: Mutex::new([open(NetworkSide::A)?, open(NetworkSide::B)?]) })
    }

    /// One way, as many frames as go in `time`.
    pub(crate) fn stream(&self, frame_bytes: usize, time: Duration) -> anyhow::Result<Sample> {
        let [a, b] = &mut *self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        stream::run(a, b, frame_bytes, time)
    }

    /// There and back, one frame at a time, both ends looking all the time.
    pub(crate) fn pingpong(&self, frame_bytes: usize, time: Duration) -> anyhow::Result<Sample> {
        let [a, b] = &mut *self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        pingpong::run(a, b, frame_bytes, time)
    }
}

impl RawEnd {
    fn open(pair: Pair, side: NetworkSide) -> anyhow::Result<Self> {
        let mut program = XdpProgram::attach(&pair.interface(), XdpMode::Auto)?;
        program.set_addresses(&[IpAddr::V4(pair.address(side))], ROCE_V2)?;
        // As the daemon opens it when its config says nothing.
        let queue = NicQueue::open(&NicQueueConfig::new(&pair.interface(), 0))?;
        program.bind_socket(0, queue.socket())?;
        let template = FrameTemplate::new(
            [pair.mac(side), pair.mac(side.peer())],
            [pair.address(side), pair.address(side.peer())],
        );
        // As the daemon does it for a worker on that core.
        let core = u32::try_from(side.core()).ok();
        let napi_moved = pair.moves_napi();
        let here = napi_moved && side == NetworkSide::B;
        let napi = here.then(|| ThreadedNapi::start(&pair.interface(), &[core])).transpose()?;
        Ok(Self { queue, template, napi_moved, _program: program, _napi: napi })
    }

    /// Takes the frames that an earlier round left behind.
    fn drain(&mut self) {
        self.queue.flush();
        while self.queue.rx_burst(64, |_| {}) > 0 {}
    }
}
