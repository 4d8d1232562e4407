//! Connections that live twice: many queue pairs with first PSN 0 on both sides, each side asking
//! the other for everything at the same time, every byte compared. In their second life other bytes
//! move, by the same keys and, as asked for, by the same queue pairs.
//!
//! ```text
//!   memory of a connection   source   source of our SENDs and WRITEs, and of the peer's READs
//!                            inbox    place of the peer's SENDs
//!                            target   place of the peer's WRITEs
//!                            back     place of our READs
//! ```

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, Gid, GidEntry, MemoryRegion, ProtectionDomain,
    QpAddress, QpAttributes, QueuePair, RecvRequest, RemoteMemory, SendRequest, attribute, state,
};

use crate::end::{TIMEOUT, hear, say};

/// Small, so that a message is many PSNs.
const PATH_MTU: u32 = 256;
/// Of each operation.
const MESSAGES: usize = 4;
const MESSAGE_BYTES: usize = 16 * PATH_MTU as usize;
/// Of source, inbox, target and back.
const PART_BYTES: usize = MESSAGES * MESSAGE_BYTES;
const CONNECTION_BYTES: usize = 4 * PART_BYTES;
/// Connections with traffic at the same time.
const AT_ONCE: usize = 16;
/// Sends and receives of a connection in one life: SEND, WRITE, READ, WRITE, and at its end a SEND
/// without data.
const SENDS: usize = 4 * MESSAGES + 1;
const RECEIVES: usize = MESSAGES + 1;

/// Fate of a queue pair between its lives.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Between {
    /// It is destroyed, and another is made.
    Another,
    /// It is reset.
    Reset,
}

/// Which of the two hosts.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Contents of the source of a connection: no two places, connections, sides or lives have the same
/// for long.
fn contents(side: Side, connection: usize, life: usize, part: usize) -> Vec<u8> {
    let seed = (side as u64) << 60 | (life as u64) << 48 | (connection as u64) << 16 | part as u64;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(PART_BYTES);
    while bytes.len() < PART_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_ne_bytes());
    }
    bytes
}

/// The second WRITEs overwrite the first with the bytes behind them in the source, in another
/// order.
const fn second_write_of(message: usize) -> usize {
    (message + 1) % MESSAGES
}

struct Lives {
    side: Side,
    gid: GidEntry,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
    qps: Vec<QueuePair>,
}

/// Address and memory of the peer, as it told them.
struct Peer {
    gid: Gid,
    memory: RemoteMemory,
    qpns: Vec<u32>,
}

/// Two lives of `connections` connections.
pub(crate) fn live(side: Side, connections: usize, between: Between) -> Result<()> {
    let mut lives = Lives::open(side, connections)?;
    for life in 0..2 {
        if life > 0 {
            lives.begin_anew(between)?;
        }
        lives.run(life).with_context(|| format!("life {life}"))?;
        say("lived")?;
        hear()?;
    }
    // Late packets change nothing any more, either.
    lives.check_all(1)?;
    say("unharmed")
}

impl Lives {
    fn open(side: Side, connections: usize) -> Result<Self> {
        let peer: Gid = std::env::var("LAB_PEER_IPV4").context("run by scripts/lab exec")?.parse()?;
        let device = Device::open(&Device::list()?.into_iter().next().context("the daemon has no device")?)?;
        let gid = device.gid_toward(peer)?;
        let pd = device.protection_domain()?;
        // The peer may be one step ahead.
        let cq = device.completion_queue((2 * AT_ONCE * (SENDS + RECEIVES)) as u32)?;
        let memory = pd.allocate(connections * CONNECTION_BYTES, Access::ALL)?;
        let mut lives = Self { side, gid, pd, cq, memory, qps: Vec::new() };
        lives.qps = (0..connections).map(|_| lives.queue_pair()).collect::<Result<_>>()?;
        Ok(lives)
    }

    fn queue_pair(&self) -> Result<QueuePair> {
        let builder = self.pd.queue_pair(&self.cq, &self.cq).send_wrs(SENDS as u32).recv_wrs(RECEIVES as u32);
        Ok(builder.send_sges(1).recv_sges(1).create()?)
    }

    fn begin_anew(&mut self, between: Between) -> Result<()> {
        match between {
            Between::Reset => self.qps.iter().try_for_each(QueuePair::reset)?,
            Between::Another => {
                let count = self.qps.len();
                self.qps.clear();
                self.qps = (0..count).map(|_| self.queue_pair()).collect::<Result<_>>()?;
            }
        }
        Ok(())
    }

    /// Where part `part` of a connection begins: 0 is its source, 1 its inbox, 2 its target, 3 the
    /// data of its READs.
    const fn place(connection: usize, part: usize, message: usize) -> usize {
        connection * CONNECTION_BYTES + part * PART_BYTES + message * MESSAGE_BYTES
    }

    fn run(&self, life: usize) -> Result<()> {
        for connection in 0..self.qps.len() {
            self.memory.fill(Self::place(connection, 1, 0), 3 * PART_BYTES, 0xee);
            self.memory.write_at(Self::place(connection, 0, 0), &contents(self.side, connection, life, 0));
        }
        let peer = self.meet()?;
        let all: Vec<_> = (0..self.qps.len()).collect();
        let mut next = vec![[0, SENDS]; self.qps.len()];
        for some in all.chunks(AT_ONCE) {
            some.iter().try_for_each(|connection| self.post(*connection, peer.memory))?;
            self.reap(some, &mut next).with_context(|| format!("connections {some:?}"))?;
            some.iter().try_for_each(|connection| self.check(*connection, life))?;
        }
        self.check_all(life)
    }

    /// Both sides are connected when this returns, with receives.
    fn meet(&self) -> Result<Peer> {
        for (connection, qp) in self.qps.iter().enumerate() {
            qp.to_init(Access::ALL)?;
            for message in 0..RECEIVES {
                let begin = Self::place(connection, 1, message);
                let bytes = if message < MESSAGES { MESSAGE_BYTES } else { 0 };
                let sge = [self.memory.sge(begin..begin + bytes)];
                let sges = if bytes > 0 { &sge[..] } else { &[] };
                qp.post_recv(&RecvRequest::new(sges).id(id(connection, SENDS + message)))?;
            }
        }
        let qpns: Vec<_> = self.qps.iter().map(|qp| qp.qpn().to_string()).collect();
        let memory = self.memory.remote();
        say(&format!("here {} {} {} {} {}", self.gid.gid, memory.va, memory.length, memory.rkey, qpns.join(",")))?;
        let peer = read_here(&hear()?)?;
        ensure!(peer.qpns.len() == self.qps.len(), "the peer has {} queue pairs", peer.qpns.len());
        for (qp, peer_qpn) in self.qps.iter().zip(&peer.qpns) {
            connect(qp, self.gid.index, QpAddress { gid: peer.gid, qpn: *peer_qpn, psn: 0, mtu_bytes: PATH_MTU })?;
        }
        say("connected")?;
        ensure!(hear()? == "both connected", "the test says something else");
        Ok(peer)
    }

    fn post(&self, connection: usize, theirs: RemoteMemory) -> Result<()> {
        let source = |message| {
            let begin = Self::place(connection, 0, message);
            [self.memory.sge(begin..begin + MESSAGE_BYTES)]
        };
        let there = |part, message| theirs.at(Self::place(connection, part, message) as u64);
        let qp = &self.qps[connection];
        for message in 0..MESSAGES {
            let back = Self::place(connection, 3, message);
            let back = [self.memory.sge(back..back + MESSAGE_BYTES)];
            let (first, second) = (source(message), source(second_write_of(message)));
            let requests = [
                SendRequest::send(&first),
                SendRequest::write(&first, there(2, message)),
                SendRequest::read(&back, there(0, message)),
                SendRequest::write(&second, there(2, message)),
            ];
            for (nth, request) in requests.into_iter().enumerate() {
                qp.post_send(&request.id(id(connection, 4 * message + nth)).signaled())?;
            }
        }
        Ok(qp.post_send(&SendRequest::send(&[]).id(id(connection, SENDS - 1)).signaled())?)
    }

    /// All work of these connections completes, in order, and none twice; `next` are the next ones,
    /// of all connections.
    fn reap(&self, connections: &[usize], next: &mut [[usize; 2]]) -> Result<()> {
        let mut some = [Completion::EMPTY; 64];
        while connections.iter().any(|connection| next[*connection] != [SENDS, SENDS + RECEIVES]) {
            let count = self.cq.wait(&mut some, TIMEOUT)?;
            ensure!(count > 0, "nothing completes for {} s", TIMEOUT.as_secs());
            for completion in &some[..count] {
                let (connection, nth) = (completion.wr_id as usize >> 8, completion.wr_id as usize & 0xff);
                let done = completion.ok().with_context(|| format!("connection {connection}, work {nth}"))?;
                let expected = &mut next[connection][usize::from(nth >= SENDS)];
                ensure!(*expected == nth, "connection {connection}: completion {nth} where {expected} is next");
                let is_data = (SENDS..SENDS + MESSAGES).contains(&nth);
                ensure!(!is_data || done.byte_len as usize == MESSAGE_BYTES, "connection {connection}: {done:?}");
                *expected += 1;
            }
        }
        Ok(())
    }

    fn check(&self, connection: usize, life: usize) -> Result<()> {
        let theirs = contents(self.side.other(), connection, life, 0);
        let message = |nth: usize| &theirs[nth * MESSAGE_BYTES..][..MESSAGE_BYTES];
        let written: Vec<u8> = (0..MESSAGES).flat_map(|nth| message(second_write_of(nth)).to_vec()).collect();
        let parts = [("received", 1, &theirs), ("written by the peer", 2, &written), ("read", 3, &theirs)];
        for (name, part, wanted) in parts {
            let found = self.memory.to_vec(Self::place(connection, part, 0), PART_BYTES);
            if let Some(at) = (0..PART_BYTES).find(|at| found[*at] != wanted[*at]) {
                let word = &found[at & !7..][..8];
                let earlier = |it: &usize| contents(self.side.other(), *it, 0, 0).chunks(8).any(|bytes| bytes == word);
                let whose = match (0..self.qps.len()).find(earlier).filter(|_| life > 0) {
                    Some(it) => format!(", which are of the first life of connection {it}"),
                    None => String::new(),
                };
                bail!("connection {connection}, life {life}: the bytes {name} are wrong from {at} on{whose}");
            }
        }
        Ok(())
    }

    fn check_all(&self, life: usize) -> Result<()> {
        (0..self.qps.len()).try_for_each(|connection| self.check(connection, life))
    }
}

const fn id(connection: usize, nth: usize) -> u64 {
    (connection << 8 | nth) as u64
}

/// From INIT to RTS with first PSN 0 in both directions.
fn connect(qp: &QueuePair, sgid_index: u32, peer: QpAddress) -> Result<()> {
    let options =
        ConnectOptions { sgid_index: Some(sgid_index), path_mtu_bytes: Some(PATH_MTU), ..ConnectOptions::default() };
    qp.to_rtr(&peer, &options)?;
    let mask = attribute::STATE
        | attribute::SQ_PSN
        | attribute::TIMEOUT
        | attribute::RETRY_CNT
        | attribute::RNR_RETRY
        | attribute::MAX_QP_RD_ATOMIC;
    let attributes = QpAttributes {
        state: state::RTS,
        sq_psn: 0,
        max_rd_atomic: options.max_rd_atomic,
        timeout: options.timeout,
        retry_cnt: options.retry_cnt,
        rnr_retry: options.rnr_retry,
        ..QpAttributes::default()
    };
    Ok(qp.modify(mask, &attributes)?)
}

fn read_here(line: &str) -> Result<Peer> {
    let words: Vec<_> = line.split_whitespace().collect();
    let ["here", gid, va, length, rkey, qpns] = words[..] else { bail!("'{line}' is not where the peer is") };
    let memory = RemoteMemory { va: va.parse()?, length: length.parse()?, rkey: rkey.parse()? };
    let qpns = qpns.split(',').map(str::parse).collect::<Result<_, _>>()?;
    Ok(Peer { gid: gid.parse()?, memory, qpns })
}
