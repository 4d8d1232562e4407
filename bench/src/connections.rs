//! Connections by the connection manager: how long one takes, how many are made in a second, and
//! 10,000 at once.
//!
//! Both programs are threads of this process, each a client of its own host's daemon, with one
//! event channel, as a program of librdmacm has it. Each connection has a queue pair of its own,
//! which is made, connected and destroyed with it.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roced_client::{
    Access, CompletionQueue, ConnectionOptions, Device, ProtectionDomain, QueuePair,
    cm::{CmAddress, CmChannel, CmChannelEvent, CmSession, cm_event, cm_family, cm_port_space, cm_service},
};
use serde::Serialize;

use crate::{
    cmtime::{self, CmTimes},
    cpu,
    host::{Host, HostMemory, within},
    network::{NetworkSide, Pair},
    programs::Programs,
    sample::{Rtt, Spread, Times},
};

const PORT: u16 = 18606;

/// Connections one after the other, of a round.
const ONE_BY_ONE: usize = 500;

/// Connections of a round with so many under way at a time.
const MANY: usize = 4000;
const UNDER_WAY: usize = 64;

/// Connections at once.
const AT_ONCE: usize = 10_000;

/// Queue pairs of a session: within the default limits of a client.
const QPS_OF_SESSION: usize = 1000;

/// How long anything may take that should come at once.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The identifiers' own number: events name the identifier itself.
const UID: u64 = 1;

/// Time that a neighbor has to answer, ms.
const RESOLVE_TIMEOUT_MS: u32 = 5000;

/// Until memory that is freed is given back, and idle workers sleep.
const SETTLE: Duration = Duration::from_millis(500);

/// The results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Connections {
    /// From the call that asks for a connection to the confirmation of the peer's answer, queue
    /// pairs of both ends connected: one connection after the other.
    pub(crate) connect_us: Rtt,
    /// From the creation of the first identifier to the last established connection, a second.
    pub(crate) per_s: Option<Spread>,
    /// Many at once.
    pub(crate) at_once: AtOnce,
    /// Of `cmtime`, if it is installed.
    pub(crate) cmtime: Option<CmTimes>,
}

/// Connections that are asked for at once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AtOnce {
    /// How many.
    pub(crate) asked: usize,
    /// Of them those that were established, at both ends.
    pub(crate) established: [usize; 2],
    /// Refused with a reason, by the peer or by a limit.
    pub(crate) refused: usize,
    /// From the first request to the last answer.
    pub(crate) in_s: f64,
    /// From the first end to the last one that the peer's program was told.
    pub(crate) ended_in_s: f64,
    /// Memory of the asking daemon for each idle one, its queue pair included.
    pub(crate) bytes_each: HostMemory,
    /// Processor time of that daemon with all of them idle, in parts of a second.
    pub(crate) idle_cpu_share: f64,
    /// Identifiers and connections that the daemons had in the end.
    pub(crate) left: u64,
}

/// Measures it all.
pub(crate) fn measure(programs: &Programs<'_>, rounds: usize) -> anyhow::Result<Connections> {
    let (a, b) = (programs.a, programs.b);
    let peer = SocketAddr::new(IpAddr::V4(Pair::Roce.address(NetworkSide::B)), PORT);
    let told = Told::default();
    let sockets = [a.socket(), b.socket()];
    let listener = Passive::new(&sockets[1], &told)?;
    thread::scope(|scope| {
        let passive = scope.spawn(|| listener.serve());
        let measured = measure_with(&sockets[0], peer, &told, [a, b], rounds);
        told.ends.store(true, Ordering::Relaxed);
        let served = passive.join().expect("it has nothing to panic about");
        let (mut measured, ()) = (measured?, served?);
        measured.cmtime = cmtime::measure(programs)?;
        Ok(measured)
    })
}

fn measure_with(
    socket: &Path,
    peer: SocketAddr,
    told: &Told,
    hosts: [&Host; 2],
    rounds: usize,
) -> anyhow::Result<Connections> {
    let mut times = Times::new();
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let mut one = Active::new(socket, peer)?;
        one.connect(ONE_BY_ONE, 1, &mut times)?;
        one.end()?;
        nothing_is_left(hosts)?;
        let mut many = Active::new(socket, peer)?;
        let begin = Instant::now();
        many.connect(MANY, UNDER_WAY, &mut Times::new())?;
        rates.push(MANY as f64 / begin.elapsed().as_secs_f64());
        many.end()?;
        nothing_is_left(hosts)?;
    }
    let sample = times.sample(Duration::from_secs(1));
    let connect_us = sample.rtt_us.context("each connection has a time")?;
    Ok(Connections { connect_us, per_s: Spread::of(rates), at_once: at_once(socket, peer, told, hosts)?, cmtime: None })
}

fn at_once(socket: &Path, peer: SocketAddr, told: &Told, hosts: [&Host; 2]) -> anyhow::Result<AtOnce> {
    let mut active = Active::new(socket, peer)?;
    thread::sleep(SETTLE);
    let before = hosts[0].memory()?;
    let passive_before = told.established.load(Ordering::Relaxed);
    active.resolve(AT_ONCE)?;
    let begin = Instant::now();
    let refused = active.connect_all()?;
    let in_s = begin.elapsed().as_secs_f64();
    let established = active.ends.len() - refused;
    let of_passive = || told.established.load(Ordering::Relaxed) - passive_before;
    within(TIMEOUT, || of_passive() >= established);
    thread::sleep(SETTLE);
    let after = hosts[0].memory()?;
    let idle_cpu_share = cpu::idle_share(hosts[0].daemon_pid());
    let ended_before = told.ended.load(Ordering::Relaxed);
    let begin = Instant::now();
    let at_peer = of_passive();
    active.end()?;
    let all_told = within(TIMEOUT, || told.ended.load(Ordering::Relaxed) - ended_before >= at_peer);
    ensure!(all_told, "the peer's program is not told of all ends");
    let ended_in_s = begin.elapsed().as_secs_f64();
    let left = nothing_is_left(hosts).map_or_else(|_| left(hosts), |()| Ok(0))?;
    Ok(AtOnce {
        asked: AT_ONCE,
        established: [established, at_peer],
        refused,
        in_s,
        ended_in_s,
        bytes_each: before.each(after, AT_ONCE),
        idle_cpu_share,
        left,
    })
}

fn left(hosts: [&Host; 2]) -> anyhow::Result<u64> {
    let mut sum = 0;
    for host in hosts {
        // The listener stays.
        sum += host.control_counter("cm_identifiers")? + host.control_counter("cm_connections")?;
        sum -= host.control_counter("cm_listeners")?;
    }
    Ok(sum)
}

/// The peer has answered, and TIMEWAIT is over.
fn nothing_is_left(hosts: [&Host; 2]) -> anyhow::Result<()> {
    ensure!(within(TIMEOUT, || left(hosts).is_ok_and(|left| left == 0)), "{} are left", left(hosts)?);
    Ok(())
}

/// Events of the program that is connected to.
#[derive(Debug, Default)]
struct Told {
    established: AtomicUsize,
    ended: AtomicUsize,
    ends: AtomicBool,
}

/// Sessions with room for queue pairs, one after the other.
#[derive(Debug)]
struct Makers {
    socket: PathBuf,
    device: String,
    makers: Vec<(ProtectionDomain, CompletionQueue)>,
    made: usize,
}

impl Makers {
    fn new(socket: &Path) -> anyhow::Result<Self> {
        let device = Device::list_at(socket)?.into_iter().next().context("roced has a device")?;
        Ok(Self { socket: socket.to_owned(), device, makers: Vec::new(), made: 0 })
    }

    fn make(&mut self) -> anyhow::Result<QueuePair> {
        // Those of ended connections are gone before there are so many again.
        let maker = self.made / QPS_OF_SESSION % (AT_ONCE / QPS_OF_SESSION);
        if maker == self.makers.len() {
            let device = Device::open_at(&self.socket, &self.device)?;
            self.makers.push((device.protection_domain()?, device.completion_queue(16)?));
        }
        self.made += 1;
        let (pd, cq) = &self.makers[maker];
        let qp = pd.queue_pair(cq, cq).send_wrs(1).recv_wrs(1).send_sges(1).recv_sges(1).inline_bytes(0).create()?;
        qp.to_init(Access::NONE)?;
        Ok(qp)
    }
}

/// The next event, within `timeout`.
fn next(channel: &CmChannel, timeout: Duration) -> anyhow::Result<Option<CmChannelEvent>> {
    if let Some(taken) = channel.take()? {
        return Ok(Some(taken.event));
    }
    let timeout = PollTimeout::try_from(timeout)?;
    poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout)?;
    Ok(channel.take()?.map(|taken| taken.event))
}

/// The program that is connected to.
#[derive(Debug)]
struct Passive<'a> {
    channel: CmChannel,
    makers: Makers,
    qps: HashMap<u32, QueuePair>,
    told: &'a Told,
}

impl<'a> Passive<'a> {
    fn new(socket: &Path, told: &'a Told) -> anyhow::Result<Self> {
        let channel = CmSession::open_at(socket)?.channel()?;
        let id = channel.create_id(UID, cm_port_space::TCP, cm_service::RC)?;
        channel.bind(id, CmAddress { family: cm_family::IPV4, port: PORT, ..CmAddress::default() })?;
        channel.listen(id, 0)?;
        Ok(Self { channel, makers: Makers::new(socket)?, qps: HashMap::new(), told })
    }

    fn serve(mut self) -> anyhow::Result<()> {
        while !self.told.ends.load(Ordering::Relaxed) {
            let Some(event) = next(&self.channel, Duration::from_millis(50))? else { continue };
            match event.kind {
                cm_event::CONNECT_REQUEST => self.accept(event.id)?,
                cm_event::ESTABLISHED => {
                    self.told.established.fetch_add(1, Ordering::Relaxed);
                }
                cm_event::DISCONNECTED => {
                    self.channel.disconnect(event.id)?;
                    self.destroy(event.id)?;
                    self.told.ended.fetch_add(1, Ordering::Relaxed);
                }
                cm_event::TIMEWAIT_EXIT => {}
                _ => self.destroy(event.id)?,
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> anyhow::Result<()> {
        let (qp, options) = (self.makers.make()?, ConnectionOptions::default());
        self.channel.identifier(id)?.connect_qp(&qp, &options)?;
        self.channel.accept(id, UID, options.parameters(&qp), &[])?;
        self.qps.insert(id, qp);
        Ok(())
    }

    fn destroy(&mut self, id: u32) -> anyhow::Result<()> {
        self.channel.destroy_id(id)?;
        self.qps.remove(&id);
        Ok(())
    }
}

/// The program that connects.
#[derive(Debug)]
struct Active {
    channel: CmChannel,
    makers: Makers,
    peer: CmAddress,
    ends: HashMap<u32, (QueuePair, Instant)>,
}

impl Active {
    fn new(socket: &Path, peer: SocketAddr) -> anyhow::Result<Self> {
        let IpAddr::V4(address) = peer.ip() else { bail!("hosts have IPv4 addresses") };
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&address.octets());
        let peer = CmAddress { address: bytes, family: cm_family::IPV4, port: peer.port(), ..CmAddress::default() };
        let channel = CmSession::open_at(socket)?.channel()?;
        Ok(Self { channel, makers: Makers::new(socket)?, peer, ends: HashMap::new() })
    }

    fn begin(&self) -> anyhow::Result<()> {
        let id = self.channel.create_id(UID, cm_port_space::TCP, cm_service::RC)?;
        Ok(self.channel.resolve_address(id, CmAddress::default(), self.peer, RESOLVE_TIMEOUT_MS)?)
    }

    fn ask(&mut self, id: u32) -> anyhow::Result<()> {
        let options = ConnectionOptions::default();
        let (qp, asked) = self.ends.get_mut(&id).context("it has a queue pair")?;
        *asked = Instant::now();
        Ok(self.channel.connect(id, options.parameters(qp), &[])?)
    }

    fn confirm(&self, id: u32, times: &mut Times) -> anyhow::Result<()> {
        let (qp, asked) = self.ends.get(&id).context("it has a queue pair")?;
        self.channel.identifier(id)?.connect_qp(qp, &ConnectionOptions::default())?;
        self.channel.confirm(id)?;
        times.record(asked.elapsed());
        Ok(())
    }

    fn next(&self) -> anyhow::Result<CmChannelEvent> {
        next(&self.channel, TIMEOUT)?.context("no event comes")
    }

    /// An event on the way to a connection; true if the route is known.
    fn is_routed(&mut self, event: &CmChannelEvent) -> anyhow::Result<bool> {
        match event.kind {
            cm_event::ADDRESS_RESOLVED => self.channel.resolve_route(event.id, RESOLVE_TIMEOUT_MS)?,
            cm_event::ROUTE_RESOLVED => {
                let qp = self.makers.make()?;
                self.ends.insert(event.id, (qp, Instant::now()));
                return Ok(true);
            }
            other => bail!("event {other} with status {}", event.status),
        }
        Ok(false)
    }

    /// Makes `count` connections, so many under way at a time.
    fn connect(&mut self, count: usize, under_way: usize, times: &mut Times) -> anyhow::Result<()> {
        (0..under_way.min(count)).try_for_each(|_| self.begin())?;
        let (mut begun, mut established) = (under_way.min(count), 0);
        while established < count {
            let event = self.next()?;
            if event.kind == cm_event::CONNECT_RESPONSE {
                self.confirm(event.id, times)?;
                established += 1;
                if begun < count {
                    begun += 1;
                    self.begin()?;
                }
            } else if self.is_routed(&event)? {
                self.ask(event.id)?;
            }
        }
        Ok(())
    }

    /// Finds the routes of `count` connections, and makes their queue pairs.
    fn resolve(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            self.begin()?;
            let mut is_routed = false;
            while !is_routed {
                let event = self.next()?;
                is_routed = self.is_routed(&event)?;
            }
        }
        Ok(())
    }

    /// Asks for all of them at once. Returns the number of those that were refused.
    fn connect_all(&mut self) -> anyhow::Result<usize> {
        let ids: Vec<u32> = self.ends.keys().copied().collect();
        ids.iter().try_for_each(|id| self.ask(*id))?;
        let (mut refused, mut times) = (0, Times::new());
        for _ in ids {
            let event = self.next()?;
            match event.kind {
                cm_event::CONNECT_RESPONSE => self.confirm(event.id, &mut times)?,
                cm_event::REJECTED => refused += 1,
                other => bail!("event {other} with status {}", event.status),
            }
        }
        Ok(refused)
    }

    /// Ends all connections: the peer is told.
    fn end(mut self) -> anyhow::Result<()> {
        for (id, (qp, _)) in self.ends.drain() {
            self.channel.destroy_id(id)?;
            drop(qp);
        }
        Ok(())
    }
}
