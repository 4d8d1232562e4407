//! Control calls of a session, and the objects that they make: check, act, reply.
//!
//! A call is executed completely or not at all: steps before a failed one are undone. Workers are
//! told one after the other; each answers within a poll iteration.

mod ah;
mod cq;
mod device;
mod mr;
mod multicast;
mod mw;
mod nvidia;
pub(crate) mod path;
mod qp;
pub(crate) mod refused;
pub(crate) mod session;
mod srq;
mod unsealed;

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use roced_abi::control::{
    AllocMemory, AllocMw, AllocPd, AttachMulticast, Call, CreateAh, CreateChannel, CreateCq, CreateQp, CreateSrq,
    DeallocMw, DeallocPd, DeregMr, DeregMrAndFree, DestroyAh, DestroyChannel, DestroyCq, DestroyQp, DestroySrq,
    DetachMulticast, FreeMemory, Hello, HelloRequest, ListDevice, MapAndRegMr, MapMemory, Message, ModifyQp, ModifySrq,
    Nothing, OpenCm, OpenDevice, QueryDevice, QueryGid, QueryPort, QueryQp, QueryQpStatistics, QuerySrq, Refusal,
    RegMr, ReregMr, ResizeCq, limit::AccountResource,
};
use roced_memory::{
    accounts::ClientAccounts,
    descriptor::Descriptor,
    queues::SleepBoard,
    quota::{Quota, Room},
    shared_fd::SharedFd,
};
use roced_types::{Cqn, DeviceId, SessionId, WorkerId};
use tracing::error;

pub use self::device::DeviceSetup;
pub(crate) use self::device::OpenedDevice;
use self::{
    path::Follower,
    refused::Refused,
    session::{Session, SessionObjects, SessionStage},
    unsealed::{QueueFile, kept},
};
use crate::{
    accounts::ledger::{Charge, Ledger, SharedPool, half_of_the_memory},
    client_socket::connection::ClientProcess,
    cm::{Caller, ConnectionService},
    config::{DeviceLimits, LimitsConfig, RuleLimits},
    environment::Environment,
    last_work::SentBatch,
    net::FollowId,
    numbers::{Numbers, random_bytes},
    worker::{
        command::{self, Answer, Command},
        endpoints::EndpointLocation,
        mad_filters::MadFilters,
    },
};

/// State shared by all sessions.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) devices: Vec<OpenedDevice>,
    pub(crate) limits: LimitsConfig,
    pub(crate) board: SleepBoard,
    pub(crate) quota: Quota,
    pub(crate) ledger: Ledger,
    pub(crate) pds: Numbers,
    pub(crate) memory_objects: Numbers,
    pub(crate) mrs: Numbers,
    pub(crate) channels: Numbers,
    pub(crate) cqs: Numbers,
    /// Link states that sessions know of.
    pub(crate) links: BTreeMap<DeviceId, bool>,
    /// Users of paths to a followed destination.
    pub(crate) followers: BTreeMap<FollowId, Vec<(SessionId, Follower)>>,
    /// Connections of programs, by the connection manager.
    pub(crate) cm: ConnectionService,
}

impl Registry {
    /// # Errors
    /// The kernel's: no random bytes.
    pub(crate) fn new(
        devices: Vec<DeviceSetup>,
        limits: LimitsConfig,
        board: SleepBoard,
        accounts: ClientAccounts,
        rules: Vec<RuleLimits>,
        filters: &Arc<MadFilters>,
    ) -> Result<Self, Errno> {
        let ledger = Ledger::new(&limits.account, rules, pools(&devices, &limits));
        let cm_devices = devices.iter().map(DeviceSetup::for_cm).collect();
        Ok(Self {
            cm: ConnectionService::new(cm_devices, limits.cm, random_bytes()?, filters, ledger.clone()),
            devices: devices.into_iter().map(|setup| OpenedDevice::new(setup, &limits.device)).collect(),
            limits,
            board,
            quota: Quota::of_kernel().unmapped_by(accounts),
            ledger,
            pds: Numbers::default(),
            memory_objects: Numbers::default(),
            mrs: Numbers::default(),
            channels: Numbers::default(),
            cqs: Numbers::default(),
            links: BTreeMap::new(),
            followers: BTreeMap::new(),
        })
    }

    pub(crate) fn device(&mut self, id: DeviceId) -> &mut OpenedDevice {
        self.devices.iter_mut().find(|device| device.setup.id == id).expect("sessions open devices of this table")
    }
}

/// Pools that accounts share, with their sizes.
fn pools(devices: &[DeviceSetup], limits: &LimitsConfig) -> Vec<(SharedPool, u64)> {
    use AccountResource::{Ahs, Attachments, Clients, DaemonMemory, Mrs, Qps, Srqs};
    let DeviceLimits { qps, mrs, ahs, srqs, attachments } = limits.device;
    let of_device = [(Qps, qps), (Mrs, mrs), (Ahs, ahs), (Srqs, srqs), (Attachments, attachments)];
    let devices = devices.iter().flat_map(|device| {
        of_device.map(|(resource, most)| (SharedPool::Device(resource, device.id), u64::from(most)))
    });
    let of_daemon = [
        (SharedPool::Daemon(Clients), limits.clients.into()),
        (SharedPool::Daemon(DaemonMemory), half_of_the_memory()),
    ];
    devices.chain(of_daemon).collect()
}

/// The process may have ports below 1024: as root, or by capability in the daemon's own user
/// namespace.
fn may_bind_privileged(process: ClientProcess) -> bool {
    let capable = || {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
        let own = namespace("self")?;
        (namespace(&process.pid.to_string())? == own).then_some(())?;
        caps::has_cap(Some(process.pid), CapSet::Effective, Capability::CAP_NET_BIND_SERVICE).ok()
    };
    process.uid == 0 || capable().unwrap_or(false)
}

/// A name from a client, as safe text for logs and terminals.
fn printable(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or(name);
    name.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '_' }).collect()
}

/// Answer of a call: a body, and accompanying file descriptors.
type CallReply<C> = Result<(<C as Call>::Reply, Vec<OwnedFd>), Refused>;

/// Carries out the call in `message`, with the descriptor beside it: the reply, and the file
/// descriptors beside it.
pub(crate) fn answer(
    registry: &mut Registry,
    session: &mut Session,
    message: &Message,
    descriptor: Option<Descriptor>,
    environment: &mut Environment<'_>,
) -> (Message, Vec<OwnedFd>) {
    let op = message.header.op;
    match &mut session.stage {
        SessionStage::OneTooMany(why) => refusal(message, *why),
        SessionStage::Connected if op == Hello::OP => {
            let request: HelloRequest = message.body();
            let reply = registry.hello(session.id, session.connection.process(), request);
            if reply.is_ok() {
                session.program = printable(&request.program);
                session.stage = SessionStage::Greeted;
            }
            made::<Hello>(message, reply)
        }
        SessionStage::Connected => refusal(message, Refused::plain(Refusal::OutOfOrder)),
        stage @ (SessionStage::Greeted | SessionStage::Open(_) | SessionStage::Cm) if op == ListDevice::OP => {
            let _any_time = stage;
            made::<ListDevice>(message, registry.list_device(session.connection.process(), message.body()))
        }
        SessionStage::Greeted if op == OpenDevice::OP => {
            let process = session.connection.process();
            let opened = registry.open_device(session.id, process, &message.body(), environment);
            let reply = opened.map(|(objects, reply, fds)| {
                session.stage = SessionStage::Open(Box::new(objects));
                (reply, fds)
            });
            made::<OpenDevice>(message, reply)
        }
        SessionStage::Greeted if op == OpenCm::OP => {
            let (account, process) = (session.connection.account().clone(), session.connection.process());
            registry.cm.open(session.id, process, account, may_bind_privileged(process));
            session.stage = SessionStage::Cm;
            made::<OpenCm>(message, Ok((Nothing {}, Vec::new())))
        }
        SessionStage::Greeted => refusal(message, Refused::plain(Refusal::OutOfOrder)),
        SessionStage::Cm => registry.cm.answer(Caller { session: session.id }, message, environment),
        SessionStage::Open(objects) => {
            let mut handler = CallHandler { registry, session: session.id, objects, environment };
            match op {
                MapMemory::OP => made::<MapMemory>(message, handler.map_memory(message.body(), descriptor)),
                MapAndRegMr::OP => made::<MapAndRegMr>(message, handler.map_and_reg_mr(message.body(), descriptor)),
                _ => handler.answer(message),
            }
        }
    }
}

fn refusal(message: &Message, refused: Refused) -> (Message, Vec<OwnedFd>) {
    let header = message.header;
    (Message::refusal(header.op, header.sequence, refused.why, refused.detail), Vec::new())
}

fn made<C: Call>(message: &Message, reply: CallReply<C>) -> (Message, Vec<OwnedFd>) {
    match reply {
        Ok((body, fds)) => (Message::new(C::OP, message.header.sequence, &body), fds),
        Err(refused) => refusal(message, refused),
    }
}

/// Where the calls of one session that has opened its device are served.
pub(crate) struct CallHandler<'a, 'o> {
    pub(crate) registry: &'a mut Registry,
    pub(crate) session: SessionId,
    pub(crate) objects: &'a mut SessionObjects,
    pub(crate) environment: &'a mut Environment<'o>,
}

impl CallHandler<'_, '_> {
    fn answer(&mut self, message: &Message) -> (Message, Vec<OwnedFd>) {
        macro_rules! serve {
            ($($call:ident => $method:ident,)*) => {
                match message.header.op {
                    $($call::OP => made::<$call>(message, self.$method(message.body())),)*
                    Hello::OP | OpenDevice::OP | OpenCm::OP => {
                        refusal(message, Refused::plain(Refusal::OutOfOrder))
                    }
                    op => refusal(message, Refused::with(Refusal::UnknownCall, op, 0u64)),
                }
            };
        }
        serve! {
            QueryDevice => query_device,
            QueryPort => query_port,
            QueryGid => query_gid,
            AllocPd => alloc_pd,
            DeallocPd => dealloc_pd,
            AllocMemory => alloc_memory,
            FreeMemory => free_memory,
            RegMr => reg_mr,
            DeregMr => dereg_mr,
            DeregMrAndFree => dereg_mr_and_free,
            AllocMw => alloc_mw,
            DeallocMw => dealloc_mw,
            ReregMr => rereg_mr,
            CreateChannel => create_channel,
            DestroyChannel => destroy_channel,
            CreateCq => create_cq,
            ResizeCq => resize_cq,
            DestroyCq => destroy_cq,
            CreateSrq => create_srq,
            ModifySrq => modify_srq,
            QuerySrq => query_srq,
            DestroySrq => destroy_srq,
            CreateQp => create_qp,
            ModifyQp => modify_qp,
            QueryQp => query_qp,
            DestroyQp => destroy_qp,
            QueryQpStatistics => query_qp_statistics,
            CreateAh => create_ah,
            DestroyAh => destroy_ah,
            AttachMulticast => attach_multicast,
            DetachMulticast => detach_multicast,
        }
    }

    /// A batch of the session's last work is sent on each worker, and its work has no turns any
    /// more. After a worker that does not answer no more is sent: destruction waits for it.
    pub(crate) fn send_last(&mut self) -> SentBatch {
        let (mut sent, mut all_answer) = (SentBatch::default(), true);
        for place in self.places() {
            match self.tell(place.worker, Command::EndSession(self.session), 0) {
                Ok(Answer::Sent { frames, is_left }) => {
                    sent.frames += frames;
                    sent.is_left |= is_left;
                }
                Ok(_) => {}
                Err(refused) => all_answer &= refused.why != Refusal::WorkerTimeout,
            }
        }
        SentBatch { is_left: sent.is_left && all_answer, ..sent }
    }

    /// Destroys the next object of an ended session: users before the objects that they use. False
    /// if none is left. If a worker does not answer, it stops there: the objects of that worker
    /// stay with it, numbers stay in use, and the watchdog decides about the daemon.
    pub(crate) fn end_next(&mut self) -> bool {
        match self.try_to_end_next() {
            Ok(true) => return true,
            Ok(false) => {}
            Err(refused) => {
                error!(session = %self.session, why = ?refused.why, "a worker did not give up objects of a client");
            }
        }
        // Groups that a worker did not give up: no member is left to receive from them.
        self.leave_all();
        false
    }

    fn try_to_end_next(&mut self) -> Result<bool, Refused> {
        let objects = &*self.objects;
        if let Some(number) = first_of(&objects.qps) {
            self.end_qp(number)?;
        } else if let Some(number) = first_of(&objects.srqs) {
            self.end_srq(number)?;
        } else if let Some(number) = first_of(&objects.mws) {
            self.end_mw(number)?;
        } else if let Some(number) = first_of(&objects.ahs) {
            self.end_ah(number)?;
        } else if let Some(number) = first_of(&objects.mrs) {
            self.end_mr(number)?;
        } else if let Some(number) = first_of(&objects.memories) {
            self.end_memory(number)?;
        } else if let Some(number) = first_of(&objects.cqs) {
            self.end_cq(number)?;
        } else if let Some(number) = first_of(&objects.channels) {
            self.end_channel(number)?;
        } else if let Some(number) = first_of(&objects.pds) {
            self.end_pd(number)?;
        } else {
            let session = self.session;
            self.take_back_from_all(|| Command::DetachSession(session))?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Room for a mapping more, of which the bytes have this charge.
    fn room(&self, charge: Option<Charge>) -> Result<Room, Refused> {
        Ok(with_charge(self.registry.quota.take(self.objects.process.account, 1)?, charge))
    }

    /// A descriptor of the file of a new queue, to seal it when the queue is used.
    fn keep_file(&mut self, fd: &OwnedFd) -> Result<SharedFd, Refused> {
        self.objects.unsealed.make_room(self.registry.limits.client.unsealed_memory)?;
        kept(fd, &self.registry.quota, self.objects.process.account)
    }

    /// These queues are used from now on: no process takes pages out of their files.
    fn seal(&mut self, queues: impl IntoIterator<Item = QueueFile>) -> Result<(), Refused> {
        let choice = self.registry.limits.client.unsealed_memory;
        queues.into_iter().try_for_each(|queue| self.objects.unsealed.seal(queue, choice))
    }

    /// One object more of the client's account, in the pool of its device if all accounts share
    /// one.
    fn charge(&self, resource: AccountResource) -> Result<Charge, Refused> {
        Ok(self.registry.ledger.take(
            self.objects.process.account,
            SharedPool::Device(resource, self.objects.device),
            1,
        )?)
    }

    /// The workers of the session's device.
    fn places(&mut self) -> Vec<EndpointLocation> {
        let device = self.objects.device;
        self.registry.device(device).setup.endpoints.clone()
    }

    /// Tells a worker to do something; `limit` is the one that is reached when it has no room.
    fn tell(&mut self, worker: WorkerId, command: Command, limit: u64) -> Result<Answer, Refused> {
        tell(self.environment, worker, command, limit)
    }

    /// Takes something back from a worker. That it is not there is fine: an earlier try may have
    /// been given up too soon.
    fn take_back(&mut self, worker: WorkerId, command: Command) -> Result<(), Refused> {
        take_back(self.environment, worker, command)
    }

    /// Tells all workers of the device to take something, or none.
    fn give_to_all(
        &mut self,
        limit: u64,
        mut give: impl FnMut(usize) -> Command,
        undo: impl Fn() -> Command,
    ) -> Result<(), Refused> {
        let places = self.places();
        for (at, place) in places.iter().enumerate() {
            if let Err(refused) = self.tell(place.worker, give(at), limit) {
                // This one too: it may carry it out later than we waited.
                for place in &places[..=at] {
                    // A worker that does not answer keeps it; the call is refused in any case.
                    let _ = self.take_back(place.worker, undo());
                }
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Takes something back from all workers of the device.
    fn take_back_from_all(&mut self, command: impl Fn() -> Command) -> Result<(), Refused> {
        let mut result = Ok(());
        for place in self.places() {
            result = result.and(self.take_back(place.worker, command()));
        }
        result
    }
}

fn tell(environment: &mut Environment<'_>, worker: WorkerId, command: Command, limit: u64) -> Result<Answer, Refused> {
    match environment.workers.call(worker, command)? {
        // Its objects are dropped here: this thread created them.
        Answer::Refused(why, _carried) => Err(Refused::by_worker(why, limit)),
        answer => Ok(answer),
    }
}

fn take_back(environment: &mut Environment<'_>, worker: WorkerId, command: Command) -> Result<(), Refused> {
    match environment.workers.call(worker, command)? {
        Answer::Refused(command::CommandRefused::NoSuchObject, _) => Ok(()),
        Answer::Refused(why, _carried) => Err(Refused::by_worker(why, 0)),
        // Returned objects are freed here, by the thread that created them.
        _ => Ok(()),
    }
}

fn first_of<T>(objects: &BTreeMap<u32, T>) -> Option<u32> {
    objects.keys().next().copied()
}

/// A completion queue's number as its client names it.
const fn handle_of(cqn: Cqn) -> u32 {
    cqn.0
}

fn with_charge(room: Room, charge: Option<Charge>) -> Room {
    match charge {
        Some(charge) => room.with_charge(Box::new(charge)),
        None => room,
    }
}
