//! Calls about devices.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use roced_abi::{
    COMPLETIONS_MAX, VERSION,
    control::{
        DeviceAttributes, DeviceName, GidEntry, Hello, HelloReply, HelloRequest, Index, ListDevice, Nothing,
        OpenDeviceReply, PortAttributes, QueryDevice, QueryGid, QueryPort, Refusal, gid_type,
    },
    layout::session_bytes,
};
use roced_memory::queues::new_session;
use roced_transport::{partition::Pkey, qp::RD_ATOMIC_MAX};
use roced_types::{
    DeviceId, INLINE_BYTES_MAX, PKEYS_MAX, Qpn, SGE_MAX, SessionId, WORK_REQUESTS_MAX, gid_of, node_guid,
};

use super::{
    CallHandler, CallReply, Registry,
    refused::Refused,
    session::SessionObjects,
    take_back, tell,
    unsealed::{QueueFile, kept},
    with_charge,
};
use crate::{
    client_socket::connection::ClientProcess,
    cm::CmDevice,
    config::{Credits, DeviceConfig, DeviceLimits, PacketPriorities},
    environment::Environment,
    net::RoceVersion,
    numbers::{MrKeys, NumberPool, Qpns},
    worker::{command::Command, endpoints::EndpointLocation},
};

/// The largest message (IBTA v1 9.7.1: 2^31 bytes).
const MESSAGE_BYTES_MAX: u32 = 1 << 31;

/// In [`GidEntry::vlan`]: none.
const NO_VLAN: u32 = 0xffff;

/// A device, as sessions need to know it.
#[derive(Clone, Debug)]
pub struct DeviceSetup {
    /// Its number.
    pub id: DeviceId,
    /// The name by which clients open it.
    pub name: String,
    /// Packets that one queue pair has in flight at most.
    pub window_packets: u32,
    /// Its reliable connections have end-to-end flow control.
    pub credits: bool,
    /// Its partition keys, by index.
    pub pkeys: Vec<Pkey>,
    /// Priorities of its packets.
    pub priorities: PacketPriorities,
    /// Its endpoints, by worker: the order of CQ rings and doorbell block.
    pub endpoints: Vec<EndpointLocation>,
    /// Queue pairs that each endpoint has room for.
    pub qps_per_endpoint: u32,
}

impl DeviceSetup {
    /// A device by its number and config, with these endpoints.
    pub fn new(
        (id, config): (DeviceId, &DeviceConfig),
        endpoints: impl Iterator<Item = EndpointLocation>,
        limits: &DeviceLimits,
    ) -> Self {
        Self {
            pkeys: config.pkeys.clone(),
            id,
            name: config.name.clone(),
            window_packets: config.window_packets,
            credits: config.credits == Credits::On,
            priorities: config.priorities(),
            endpoints: endpoints.collect(),
            qps_per_endpoint: limits.qps_per_endpoint(),
        }
    }

    pub(crate) fn for_cm(&self) -> CmDevice {
        let worker = self.endpoints.first().expect("a device has a worker").worker;
        CmDevice { id: self.id, worker }
    }
}

/// A device with its objects in use.
#[derive(Debug)]
pub(crate) struct OpenedDevice {
    pub(crate) setup: DeviceSetup,
    pub(crate) keys: MrKeys,
    /// One for each endpoint.
    pub(crate) qpns: Vec<Qpns>,
    pub(crate) qps: u32,
    pub(crate) mrs: u32,
    pub(crate) ahs: NumberPool,
    /// Of shared receive queues, one for each endpoint.
    pub(crate) srqns: Vec<Qpns>,
    pub(crate) srqs: u32,
    /// Of queue pairs to multicast groups.
    pub(crate) attachments: u32,
}

impl OpenedDevice {
    pub(super) fn new(setup: DeviceSetup, limits: &DeviceLimits) -> Self {
        // Shared receive queues are found by index, and their numbers are of no use to a peer.
        let (endpoints, places) = (setup.endpoints.iter(), limits.srq_places());
        let srqns = endpoints.clone().map(|place| Qpns::new(place.endpoint, places, places)).collect();
        let qpns = endpoints.map(|place| Qpns::new(place.ids, Qpn::INDEX_COUNT, setup.qps_per_endpoint)).collect();
        let (keys, ahs) = (MrKeys::default(), NumberPool::new(limits.ahs));
        Self { setup, keys, qpns, qps: 0, mrs: 0, ahs, srqns, srqs: 0, attachments: 0 }
    }
}

impl Registry {
    /// Devices that a client may open, in their order.
    fn devices_of(&self, process: ClientProcess) -> impl Iterator<Item = &OpenedDevice> {
        self.devices.iter().filter(move |device| process.access.devices.has(device.setup.id))
    }

    pub(super) fn hello(&self, session: SessionId, process: ClientProcess, request: HelloRequest) -> CallReply<Hello> {
        if request.version != VERSION {
            return Err(Refused::with(Refusal::Version, VERSION, request.version));
        }
        Ok((
            HelloReply { version: VERSION, session: session.0, devices: self.devices_of(process).count() as u32 },
            Vec::new(),
        ))
    }

    pub(super) fn list_device(&self, process: ClientProcess, request: Index) -> CallReply<ListDevice> {
        let device =
            self.devices_of(process).nth(request.index as usize).ok_or(Refused::plain(Refusal::NoSuchDevice))?;
        Ok((DeviceName::new(&device.setup.name), Vec::new()))
    }

    pub(super) fn open_device(
        &mut self,
        session: SessionId,
        process: ClientProcess,
        request: &DeviceName,
        environment: &mut Environment<'_>,
    ) -> Result<(SessionObjects, OpenDeviceReply, Vec<OwnedFd>), Refused> {
        let wanted = request.as_str();
        let device = self.devices.iter().find(|device| Some(device.setup.name.as_str()) == wanted);
        let setup = &device.ok_or(Refused::plain(Refusal::NoSuchDevice))?.setup;
        if !process.access.devices.has(setup.id) {
            return Err(Refused::with(Refusal::Forbidden, process.access.rule.map_or(0, |rule| rule.0 as u64), 0u64));
        }
        let places = &setup.endpoints;
        let workers = places.len() as u32;
        let mut objects = SessionObjects::new(setup.id, places.len(), process, &self.ledger)?;
        let mapped = objects.charge(session_bytes(workers) as u64, &self.limits.client)?;

        let room = with_charge(self.quota.take(process.account, 1)?, mapped);
        let (mut halves, doorbells, wakes) = new_session(session, workers, room)?;
        objects.unsealed.add(QueueFile::Doorbells, kept(&doorbells, &self.quota, process.account)?);
        let weight = self.ledger.weight(process.access.rule);
        halves.iter_mut().for_each(|half| (half.account, half.weight) = (process.account, weight));
        let states = self.board.fd().try_clone_to_owned().map_err(|error| errno(&error))?;
        for (at, (place, half)) in places.iter().zip(halves).enumerate() {
            let told = tell(environment, place.worker, Command::AttachSession(half), self.limits.clients.into());
            if let Err(refused) = told {
                for place in &places[..=at] {
                    // A worker that does not answer keeps it; the session is refused in any case.
                    let _ = take_back(environment, place.worker, Command::DetachSession(session));
                }
                return Err(refused);
            }
        }
        // It can ask how the link is; from now on it is told of changes.
        self.links.entry(objects.device).or_insert_with(|| environment.network.port(objects.device).link_up);
        let mut reply = OpenDeviceReply { workers, workers_in_daemon: self.board.workers(), worker_ids: [0; 64] };
        for (id, place) in reply.worker_ids.iter_mut().zip(places) {
            *id = u8::try_from(place.worker.0).expect("a daemon has at most 64 endpoints, so fewer workers than that");
        }
        Ok((objects, reply, [doorbells, states].into_iter().chain(wakes).collect()))
    }
}

impl CallHandler<'_, '_> {
    pub(super) fn query_device(&mut self, _: Nothing) -> CallReply<QueryDevice> {
        let mac = self.environment.network.port(self.objects.device).mac;
        let limits = &self.registry.limits.client;
        let attributes = DeviceAttributes {
            node_guid: node_guid(mac),
            max_qps: limits.qps,
            max_qp_wrs: WORK_REQUESTS_MAX,
            max_sges: SGE_MAX,
            max_inline_bytes: INLINE_BYTES_MAX,
            max_cqs: limits.cqs,
            max_cqes: COMPLETIONS_MAX,
            max_mrs: limits.mrs,
            max_pds: limits.pds,
            max_mr_bytes: limits.memory_bytes(),
            max_rd_atomic: RD_ATOMIC_MAX,
            max_message_bytes: MESSAGE_BYTES_MAX,
            max_ahs: limits.ahs,
            max_srqs: limits.srqs,
            max_attachments: limits.attachments,
            reserved: 0,
        };
        Ok((attributes, Vec::new()))
    }

    pub(super) fn query_port(&mut self, _: Nothing) -> CallReply<QueryPort> {
        let port = self.environment.network.port(self.objects.device);
        let keys = &self.registry.device(self.objects.device).setup.pkeys;
        let mut pkeys = [0; PKEYS_MAX];
        pkeys.iter_mut().zip(keys).for_each(|(place, key)| *place = key.0);
        let attributes = PortAttributes {
            active: port.link_up.into(),
            active_mtu_bytes: port.path_mtu_bytes(),
            gid_entries: port.gid_entries,
            link_mtu_bytes: port.link_mtu_bytes,
            speed_mbit_per_s: port.speed_mbit_per_s,
            pkey_entries: keys.len() as u32,
            pkeys,
        };
        Ok((attributes, Vec::new()))
    }

    pub(super) fn query_gid(&mut self, request: Index) -> CallReply<QueryGid> {
        let device = self.objects.device;
        if request.index >= self.environment.network.port(device).gid_entries {
            return Err(Refused::with(Refusal::NoSuchGid, request.index, 0u64));
        }
        let entry = self.environment.network.gid(device, request.index);
        let reply = entry.map_or_else(GidEntry::default, |entry| GidEntry {
            gid: gid_of(entry.address),
            ifindex: entry.ifindex,
            vlan: entry.vlan.map_or(NO_VLAN, u32::from),
            gid_type: match entry.roce {
                RoceVersion::V1 => gid_type::ROCE_V1,
                RoceVersion::V2 => gid_type::ROCE_V2,
            },
        });
        Ok((reply, Vec::new()))
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EMFILE, Errno::from_raw)
}
