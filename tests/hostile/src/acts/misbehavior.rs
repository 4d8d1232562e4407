//! Misbehavior of any kind, by seed, while another thread scribbles on all memory that the daemon
//! shares.

use std::{
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::MsgFlags,
    },
    unistd::ftruncate,
};
use roced_abi::{
    VERSION,
    control::{
        AllocMemory, AllocPd, BODY_BYTES, Call as _, CreateCq, CreateCqRequest, CreateQp, CreateQpRequest, CreateSrq,
        CreateSrqRequest, DestroyQp, DeviceName, Handle, Hello, HelloRequest, MAGIC, MESSAGE_BYTES, MapMemory,
        MemoryRequest, Message, ModifyQp, Nothing, OpenCm, OpenDevice,
    },
};
use roced_client::{Access, Completion, Device, RecvRequest, SendRequest};
use zerocopy::IntoBytes as _;

use super::{objects::with_queues, say, traffic, wait};
use crate::{
    actor::ActArguments,
    random::Seeded,
    raw_client::{RawClient, RawSession},
    shared::Shared,
};

/// Numbers of calls lie below this.
const OPS: u64 = 92;

/// Mappings that are scribbled on at a time.
const MAPPINGS: usize = 64;

/// Memory shared with the daemon, which a thread scribbles on.
#[derive(Clone, Debug, Default)]
struct Scribbled(Arc<Mutex<Vec<Arc<Shared>>>>);

impl Scribbled {
    fn start(seed: u64) -> Self {
        let all = Self::default();
        let shared = all.clone();
        thread::spawn(move || shared.scribble(&mut Seeded::new(seed)));
        all
    }

    fn add(&self, file: &OwnedFd, random: &mut Seeded) {
        // Read-only and empty files are of no use here.
        let Ok(mapped) = Shared::whole(file) else { return };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAPPINGS {
            all.push(mapped);
        } else {
            all[random.below(MAPPINGS as u64) as usize] = mapped;
        }
    }

    fn scribble(&self, random: &mut Seeded) {
        loop {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if all.is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            for mapped in &all {
                for _ in 0..32 {
                    // Indices and doorbells lie at the beginning.
                    let most = if random.once_in(2) { 80.min(mapped.words()) } else { mapped.words() };
                    let word = mapped.word(random.below(most as u64) as usize);
                    let value = match random.below(4) {
                        0 => random.next(),
                        1 => random.below(64),
                        2 => u64::MAX,
                        _ => word.load(Ordering::Relaxed) ^ 1 << random.below(64),
                    };
                    word.store(value, Ordering::Relaxed);
                }
            }
            thread::yield_now();
        }
    }
}

/// A client without manners.
struct Misbehaving<'a> {
    path: &'a Path,
    random: Seeded,
    client: Option<RawClient>,
    /// Numbers of objects, as replies named them.
    numbers: Vec<u32>,
    /// Those of protection domains, and of completion queues.
    pds: Vec<u32>,
    cqs: Vec<u32>,
    files: Vec<OwnedFd>,
    scribbled: Scribbled,
    ended: u64,
    files_scribbled: u64,
}

impl<'a> Misbehaving<'a> {
    fn new(path: &'a Path, seed: u64) -> Result<Self> {
        let memfd = memfd_create(c"passed", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&memfd, 1 << 16)?;
        let (read, write) = nix::unistd::pipe()?;
        let files =
            vec![memfd, read, write, std::fs::File::open("/")?.into(), std::fs::File::open("/proc/self/mem")?.into()];
        let random = Seeded::new(seed);
        let scribbled = Scribbled::start(seed ^ 0x5c21_bb1e);
        Ok(Self {
            path,
            random,
            client: None,
            numbers: vec![0],
            pds: vec![0],
            cqs: vec![0],
            files,
            scribbled,
            ended: 0,
            files_scribbled: 0,
        })
    }

    /// A message that is right in its form.
    fn valid(&mut self) -> Message {
        let op = match self.random.below(12) {
            0 => CreateQp::OP,
            4 => CreateSrq::OP,
            5 => AllocMemory::OP,
            6 => AllocPd::OP,
            1 => ModifyQp::OP,
            2 => CreateCq::OP,
            3 => MapMemory::OP,
            _ => self.random.below(OPS) as u32,
        };
        let mut message = Message::new(op, self.random.next() as u32, &Nothing {});
        for field in message.body[..128].chunks_exact_mut(4) {
            let value = match self.random.below(8) {
                0 | 1 => self.random.of(&self.numbers),
                2 => self.random.next() as u32,
                3 => 1 << self.random.below(32),
                4 => u32::MAX,
                _ => self.random.below(8) as u32,
            };
            field.copy_from_slice(&value.to_ne_bytes());
        }
        if !self.random.once_in(4) {
            self.make_likely(&mut message);
        }
        message
    }

    /// Numbers with which a call that makes an object nearly always succeeds.
    fn make_likely(&mut self, message: &mut Message) {
        let size = 1 << self.random.below(9);
        let (pd, cq) = (self.random.of(&self.pds), self.random.of(&self.cqs));
        let mut put = |bytes: &[u8]| message.body[..bytes.len()].copy_from_slice(bytes);
        match message.header.op {
            CreateCq::OP => put(CreateCqRequest { entries: size, channel: 0 }.as_bytes()),
            AllocMemory::OP => put(MemoryRequest { bytes: u64::from(size) << 12 }.as_bytes()),
            CreateSrq::OP => put(CreateSrqRequest { pd, wrs: size, sges: 2 }.as_bytes()),
            CreateQp::OP => put(CreateQpRequest {
                pd,
                send_cq: cq,
                recv_cq: cq,
                service: 2 + size % 3,
                send_wrs: size,
                recv_wrs: size,
                send_sges: 2,
                recv_sges: 2,
                inline_bytes: 64,
                ..CreateQpRequest::default()
            }
            .as_bytes()),
            _ => {}
        }
    }

    /// Bytes of the beginning of a session, nearly always in order.
    fn begin(&mut self) {
        let mut client = match RawClient::connect(self.path) {
            Ok(client) => client,
            Err(_) => {
                // Too many of this user's are being ended.
                thread::sleep(Duration::from_millis(2));
                return;
            }
        };
        if !self.random.once_in(20) {
            // It may be one client too many; the next message shows it.
            drop(client.begin::<Hello>(&HelloRequest { version: VERSION, program: [b'm'; 16] }, &[]));
        }
        match self.random.below(20) {
            0 => {}
            1 | 2 => drop(client.begin::<OpenCm>(&Nothing {}, &[])),
            _ => drop(client.begin::<OpenDevice>(&DeviceName::new("roce0"), &[])),
        }
        for _ in 0..4 {
            drop(client.begin::<AllocPd>(&Nothing {}, &[]));
        }
        drop(client.begin::<AllocMemory>(&MemoryRequest { bytes: 8192 }, &[]));
        (self.numbers, self.pds, self.cqs) = (vec![0], vec![0], vec![0]);
        self.client = Some(client);
    }

    /// One misbehavior.
    fn step(&mut self) {
        if self.client.is_none() {
            self.begin();
        }
        let mut bytes = self.valid().as_bytes().to_vec();
        match self.random.below(16) {
            0 => {
                for _ in 0..=self.random.below(4) {
                    let at = self.random.below(MESSAGE_BYTES as u64) as usize;
                    bytes[at] ^= 1 << self.random.below(8);
                }
            }
            // Most sessions outlive a few messages.
            1 if self.random.once_in(8) => bytes.resize(self.random.below(400) as usize, 0xa5),
            2 if self.random.once_in(8) => bytes.fill(self.random.next() as u8),
            3 if self.random.once_in(4) => {
                self.client = None;
                return;
            }
            _ => {}
        }
        let fds: Vec<RawFd> = match self.random.below(24) {
            0 => vec![self.files[0].as_raw_fd()],
            1 if self.random.once_in(4) => {
                let count = self.random.below(3);
                (0..count)
                    .map(|_| self.random.below(self.files.len() as u64) as usize)
                    .map(|at| self.files[at].as_raw_fd())
                    .collect()
            }
            _ => Vec::new(),
        };
        let begin = Instant::now();
        loop {
            let Some(client) = &self.client else { return };
            let sent = client.send_bytes(&bytes, &fds, MsgFlags::MSG_DONTWAIT);
            if sent.is_ok() && !self.random.once_in(8) {
                // A client that is far ahead has closed its session before the daemon sees it.
                client.wait_for_reply(Duration::from_millis(20));
            }
            self.take_replies(sent);
            // The daemon is behind: as long as it is alive, it takes the message soon.
            if sent != Err(Errno::EAGAIN) || begin.elapsed() > Duration::from_secs(10) {
                return;
            }
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn take_replies(&mut self, sent: Result<(), Errno>) {
        let mut gone = matches!(sent, Err(errno) if errno != Errno::EAGAIN);
        while let Some(client) = &self.client {
            match client.receive(MsgFlags::MSG_DONTWAIT) {
                Ok(Some((message, fds))) => {
                    if message.header.status == 0 {
                        let number: u32 = message.body::<Handle>().handle;
                        match message.header.op {
                            AllocPd::OP => self.pds.push(number),
                            CreateCq::OP => self.cqs.push(number),
                            _ => {}
                        }
                        let at = self.random.below(64) as usize;
                        if self.numbers.len() <= at { self.numbers.push(number) } else { self.numbers[at] = number }
                    }
                    self.files_scribbled += fds.len() as u64;
                    for file in &fds {
                        self.scribbled.add(file, &mut self.random);
                    }
                }
                Err(Errno::EAGAIN) => break,
                Ok(None) | Err(_) => {
                    gone = true;
                    break;
                }
            }
        }
        if gone {
            self.client = None;
            self.ended += 1;
        }
    }
}

/// `count` random misbehaviors.
pub(super) fn misbehave(arguments: &ActArguments) -> Result<()> {
    let mut client = Misbehaving::new(&arguments.socket, arguments.seed)?;
    say("ready")?;
    for _ in 0..arguments.count {
        client.step();
    }
    say(&format!("ended {}", client.ended))?;
    say(&format!("scribbled {}", client.files_scribbled))?;
    say(&format!("done {}", arguments.count))?;
    wait()
}

/// Each call in each of the ways in which it can be wrong.
pub(super) fn scripted(arguments: &ActArguments) -> Result<()> {
    let file = memfd_create(c"passed", MFdFlags::MFD_CLOEXEC)?;
    let mut done = 0;
    say("ready")?;
    'all: for op in 0..OPS as u32 {
        for way in 0..12 {
            if done == arguments.count {
                break 'all;
            }
            one_wrong(&arguments.socket, op, way, &file).with_context(|| format!("call {op}, way {way}"))?;
            done += 1;
        }
    }
    say(&format!("done {done}"))?;
    wait()
}

fn one_wrong(path: &Path, op: u32, way: u32, file: &OwnedFd) -> Result<()> {
    let client = match way {
        // Before the handshake; behind it; with a device.
        0 => RawClient::connect(path)?,
        1 => {
            let mut client = RawClient::connect(path)?;
            client.hello()?;
            client
        }
        _ => RawSession::open(path)?.client,
    };
    let mut message = Message::new(op, way, &Nothing {});
    match way {
        3 => message.body = [0xff; BODY_BYTES],
        4 => message.body = [1; BODY_BYTES],
        5 => message.header.magic = MAGIC ^ 1 << 31,
        6 => message.header.status = u32::MAX,
        7 => message.header.op = op | 1 << 16,
        _ => {}
    }
    let raw = [file.as_raw_fd(), file.as_raw_fd()];
    let (length, fds) = match way {
        8 => (MESSAGE_BYTES - 1, &raw[..0]),
        9 => (16, &raw[..0]),
        10 => (MESSAGE_BYTES, &raw[..1]),
        11 => (MESSAGE_BYTES, &raw[..]),
        _ => (MESSAGE_BYTES, &raw[..0]),
    };
    client.send_bytes(&message.as_bytes()[..length], fds, MsgFlags::empty())?;
    // A reply, or the end of the session: silence is a failure, as is the end of the daemon.
    client.receive(MsgFlags::empty()).context("neither a reply nor an end").map(drop)
}

/// Objects and messages of an ordinary program, at random, until it is killed.
pub(super) fn random_life(arguments: &ActArguments) -> Result<()> {
    let mut random = Seeded::new(arguments.seed);
    say("ready")?;
    loop {
        let life = match random.below(3) {
            0 => honest_life(arguments, &mut random),
            _ => raw_life(arguments, &mut random),
        };
        if let Err(error) = life {
            return say(&format!("ended {error:#}"));
        }
    }
}

fn honest_life(arguments: &ActArguments, random: &mut Seeded) -> Result<()> {
    let device = Device::open_at(&arguments.socket, "roce0")?;
    let cq = device.completion_queue(256)?;
    let (left, right) = traffic::connected_to_itself(&device, &cq)?;
    let pd = device.protection_domain()?;
    let regions: Vec<_> = (0..random.below(4))
        .map(|_| pd.allocate(1 << (12 + random.below(10)), Access::ALL))
        .collect::<Result<_, _>>()?;
    let mut done = [Completion::EMPTY; 16];
    for _ in 0..random.below(200) {
        right.post_recv(&RecvRequest::new(&[]))?;
        left.post_send(&SendRequest::send_inline(&[]).signaled())?;
        let mut completed = 0;
        while completed < 2 {
            completed += cq.wait(&mut done, Duration::from_secs(10))?;
        }
    }
    drop(regions);
    Ok(())
}

fn raw_life(arguments: &ActArguments, random: &mut Seeded) -> Result<()> {
    let mut session = RawSession::open(&arguments.socket)?;
    let request = with_queues(&mut session, 1 << random.below(12))?;
    let mut qps = Vec::new();
    for _ in 0..random.below(40) {
        match random.below(4) {
            0 if !qps.is_empty() => {
                let qpn = qps.swap_remove(random.below(qps.len() as u64) as usize);
                session.client.call::<DestroyQp>(Handle { handle: qpn })?;
            }
            1 => drop(session.client.call::<AllocMemory>(MemoryRequest { bytes: 1 << (12 + random.below(12)) })?),
            2 => drop(session.client.attempt::<MapMemory>(Default::default(), &[])?),
            _ => {
                if let Ok(qp) = session.queue_pair(request)? {
                    qps.push(qp.reply.qpn);
                }
            }
        }
    }
    Ok(())
}
