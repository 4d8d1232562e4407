//! A host: its identifiers, and queue pair 1 of its endpoint.

use std::{collections::VecDeque, time::Duration};

use roced_cm::{
    CmConfig, CmTransmit, PeerAddress,
    identifiers::{Identifiers, OwnerId},
};
use roced_transport::{
    clock::Nanos,
    endpoint::{Endpoint, EndpointConfig},
    io::{App, AtomicOperation, BorrowedPayload, CqOverrun, Egress, MemoryFault, PlaceFault, WorkCompletion},
    mr::MemSpan,
    partition::Partitions,
    wire::{
        Roce,
        path::{Path, PathSpec},
    },
};
use roced_types::{AccountId, Cqn, EndpointId};

use super::{
    mad,
    manners::Manners,
    numbers::QueuePairNumbers,
    surroundings::{DEVICE, Surroundings},
};
use crate::{
    host::{BEARING, Nic},
    random::Random,
};

/// A host.
pub(crate) struct Machine {
    pub(crate) is_up: bool,
    /// Counts its starts.
    pub(crate) life: u32,
    pub(crate) ids: Identifiers,
    pub(crate) surroundings: Surroundings,
    pub(crate) numbers: QueuePairNumbers,
    /// Programs that are gone, with identifiers that are left.
    pub(crate) ending: VecDeque<OwnerId>,
    endpoint: Endpoint,
}

impl Machine {
    /// A host that has just started: it knows of nothing before.
    pub(crate) fn new(host: usize, life: u32, manners: &Manners, random: &mut Random) -> Self {
        let mut seed = [0; 32];
        seed.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random.next().to_le_bytes()));
        let config = CmConfig::new(seed, manners.connections_max);
        let mut ids = Identifiers::new(&config, manners.of_account_max);
        for owner in 0..OWNERS {
            ids.add_owner(OwnerId(owner), account_of(OwnerId(owner)));
        }
        Self {
            is_up: true,
            life,
            ids,
            surroundings: Surroundings::new(host, manners.ephemeral.clone()),
            numbers: QueuePairNumbers::new(manners.queue_pairs),
            ending: VecDeque::new(),
            endpoint: Endpoint::new(EndpointConfig {
                id: EndpointId::new(host + 1).expect("a small number"),
                max_mrs: 1,
                max_ahs: 1,
                max_srqs: 1,
                max_attachments: 0,
                max_qps: 1,
                total_window_packets: 16,
                recovery: BEARING,
                partitions: Partitions::default(),
            }),
        }
    }

    /// The frame of a datagram.
    pub(crate) fn frame(&mut self, transmit: &CmTransmit, now: Duration) -> Vec<u8> {
        let path = Path::new(&PathSpec {
            via: Egress::Nic { flow: 1 },
            source_mac: [2, 0, 0, 0, 0, transmit.to.local[15]],
            dest_mac: [2, 0, 0, 0, 0, transmit.to.remote[15]],
            vlan: None,
            source: transmit.to.local,
            destination: transmit.to.remote,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            roce: Roce::V2 { udp_source_port: 0xc001 },
        });
        let path = path.expect("one address family");
        self.endpoint.send_management(path, &transmit.mad.to_bytes()).expect("one at a time");
        let (mut spare, mut frames) = (Vec::new(), Vec::new());
        let mut nic = Nic { room: 1, ahead_max: usize::MAX, spare: &mut spare, frames: &mut frames };
        self.endpoint.poll_transmit(nanos(now), 1, &mut NoMemory, &mut nic);
        frames.pop().expect("there is room")
    }

    /// The datagram of a frame, with its addresses, unless queue pair 1 refuses it.
    pub(crate) fn datagram(&mut self, frame: &[u8], now: Duration) -> Option<(PeerAddress, [u8; mad::BYTES])> {
        self.endpoint.on_frame(nanos(now), &[frame], &mut NoMemory);
        let datagram = self.endpoint.poll_management()?;
        let from = PeerAddress { device: DEVICE, vlan: datagram.vlan, local: datagram.local, remote: datagram.remote };
        Some((from, datagram.bytes))
    }

    pub(crate) fn on_datagram(&mut self, from: PeerAddress, bytes: &[u8; mad::BYTES], now: Duration) {
        if self.ids.connections().is_answer(from, bytes) {
            self.surroundings.known.insert(from);
        }
        self.ids.on_datagram(from, bytes, &mut self.surroundings, now);
    }
}

/// Programs of a seed, at most.
pub(crate) const OWNERS: u32 = 64;

/// The user of a program.
pub(crate) const fn account_of(owner: OwnerId) -> AccountId {
    AccountId(1 + owner.0 % 2)
}

const fn nanos(now: Duration) -> Nanos {
    Nanos(now.as_nanos() as u64)
}

/// An endpoint that has queue pair 1 alone.
struct NoMemory;

impl App for NoMemory {
    fn write(&mut self, _: MemSpan<'_>, _: &[u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault)
    }

    fn copy(&mut self, _: MemSpan<'_>, _: BorrowedPayload) -> Result<(), PlaceFault> {
        Err(PlaceFault::Target)
    }

    fn read(&mut self, _: MemSpan<'_>, _: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault)
    }

    fn atomic(&mut self, _: MemSpan<'_>, _: AtomicOperation) -> Result<u64, MemoryFault> {
        Err(MemoryFault)
    }

    fn complete(&mut self, _: Cqn, _: &WorkCompletion) -> Result<(), CqOverrun> {
        Err(CqOverrun)
    }
}
