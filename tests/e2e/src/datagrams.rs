//! Datagrams, each answered: a sender that waits without success for an answer sends again. A
//! datagram that is lost on the way costs time, never a wrong byte.
//!
//! ```text
//!   asker ── number, pattern ──► answerer     to the queue pair that the test names
//!   asker ◄── the same, turned ── answerer    to where the datagram came from, as its GRH and completion say
//! ```

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    net::Ipv4Addr,
    thread,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use roced_client::{
    Access, AddressHandle, Completion, CompletionOp, GRH_BYTES, Gid, MemoryRegion, RecvRequest, SendRequest,
    ServiceType,
};

use crate::end::{Address, End, hear, say, to};

/// Datagrams of all lengths up to this, which fits the lab's path MTU of 4096 and one of 1024.
const BYTES_MAX: usize = 1024;
const RECEIVES: usize = 16;
/// Of an answerer, to look whether it is told to end.
const TIMEOUT: Duration = Duration::from_millis(50);
/// Longer than the kernel takes to find out that a neighbor is not there.
const LONG: Duration = Duration::from_secs(20);
/// Tries for one question. Losses alone need a few; a machine that is busy with something else may
/// let some more pass.
const TRIES: u32 = 100;

/// A datagram queue pair with receives posted.
struct Post {
    end: End,
    memory: MemoryRegion,
    /// Datagrams that arrived during a send.
    arrived: VecDeque<Completion>,
}

impl Post {
    fn open(peer: Gid) -> Result<Self> {
        let end = End::toward(peer, ServiceType::Ud)?;
        let memory = end.pd.allocate((RECEIVES + 1) * (GRH_BYTES + BYTES_MAX), Access::LOCAL_WRITE)?;
        let post = Self { end, memory, arrived: VecDeque::new() };
        for place in 0..RECEIVES as u64 {
            post.receive(place)?;
        }
        Ok(post)
    }

    /// Where place `place` begins in memory; behind the last receive is the one to send from.
    const fn at(place: u64) -> usize {
        place as usize * (GRH_BYTES + BYTES_MAX)
    }

    fn receive(&self, place: u64) -> Result<()> {
        let room = [self.memory.sge(Self::at(place)..Self::at(place + 1))];
        Ok(self.end.qp.post_recv(&RecvRequest::new(&room).id(place))?)
    }

    /// Sends, and waits until its place may be used again.
    fn send(&mut self, ah: &AddressHandle, qpn: u32, bytes: &[u8]) -> Result<()> {
        self.post_send(ah, qpn, bytes)?;
        while let Some(done) = self.completion(LONG)? {
            if done.op == CompletionOp::Send {
                return Ok(());
            }
            self.arrived.push_back(done);
        }
        bail!("it is not sent")
    }

    fn post_send(&self, ah: &AddressHandle, qpn: u32, bytes: &[u8]) -> Result<()> {
        let at = Self::at(RECEIVES as u64);
        self.memory.write_at(at, bytes);
        let data = [self.memory.sge(at..at + bytes.len())];
        self.end.qp.post_send(&to(ah, qpn, SendRequest::send(&data)).signaled())?;
        Ok(())
    }

    /// The datagram that arrives next, with its completion; `None` when nothing does for so long.
    /// No send is under way.
    fn next(&mut self, patience: Duration) -> Result<Option<(Completion, Vec<u8>)>> {
        let arrived = match self.arrived.pop_front() {
            Some(done) => Some(done),
            None => self.completion(patience)?,
        };
        let Some(done) = arrived else { return Ok(None) };
        ensure!(done.op == CompletionOp::Recv && done.has_grh, "no datagram: {done:?}");
        ensure!(done.byte_len as usize >= GRH_BYTES, "no GRH: {done:?}");
        Ok(Some((done, self.memory.to_vec(Self::at(done.wr_id), done.byte_len as usize))))
    }

    fn completion(&self, patience: Duration) -> Result<Option<Completion>> {
        let mut one = [Completion::EMPTY];
        let count = self.end.cq.wait(&mut one, patience)?;
        Ok(if count == 0 { None } else { Some(one[0].ok()?) })
    }
}

fn question(number: u32) -> Vec<u8> {
    let length = 4 + (number as usize * 389) % (BYTES_MAX - 3);
    let pattern = (4..length).map(|at| (at * 13 + at / 251) as u8 ^ number as u8);
    number.to_be_bytes().into_iter().chain(pattern).collect()
}

/// As its GRH says.
fn source(grh: &[u8]) -> Result<Gid> {
    let gid = if grh[0] >> 4 == 6 {
        Gid(grh[8..24].try_into().expect("16 bytes"))
    } else {
        ensure!(grh[20] == 0x45 && grh[..20].iter().all(|byte| *byte == 0), "neither IPv6 nor IPv4: {grh:02x?}");
        let address: [u8; 4] = grh[32..36].try_into().expect("4 bytes");
        Gid::from(std::net::IpAddr::from(Ipv4Addr::from(address)))
    };
    Ok(gid)
}

/// Asks, waiting so long for each answer, and says how many tries were without success.
pub(crate) fn ask(peer: Gid, questions: u32, patience: Duration) -> Result<()> {
    let mut post = Post::open(peer)?;
    let them = post.end.meet_for_datagrams()?;
    let mut unanswered = 0;
    for number in 0..questions {
        let asked = question(number);
        let mut tries = 0;
        while !try_to_ask(&mut post, &them, &asked, patience)? {
            tries += 1;
            ensure!(tries < TRIES, "question {number} is not answered");
        }
        unanswered += tries;
    }
    say(&format!("unanswered {unanswered}"))
}

/// One question; true when it was answered.
fn try_to_ask(post: &mut Post, them: &Address, asked: &[u8], patience: Duration) -> Result<bool> {
    post.send(&them.handle, them.qpn, asked)?;
    while let Some((done, bytes)) = post.next(patience)? {
        post.receive(done.wr_id)?;
        ensure!(done.src_qpn == them.qpn, "an answer from 0x{:06x}", done.src_qpn);
        ensure!(source(&bytes[..GRH_BYTES])? == them.gid, "an answer from elsewhere");
        let answer: Vec<u8> = bytes[GRH_BYTES..].iter().rev().copied().collect();
        if answer == asked {
            return Ok(true);
        }
        // That to an earlier try, which came late.
        ensure!(answer.len() >= 4 && answer == question(u32::from_be_bytes(answer[..4].try_into()?)), "a wrong answer");
    }
    Ok(false)
}

/// Answers every sender, until the test says that it is enough.
pub(crate) fn answer(peer: Gid) -> Result<()> {
    let mut post = Post::open(peer)?;
    post.end.meet_for_datagrams()?;
    let enough = thread::spawn(hear);
    let mut handles: BTreeMap<[u8; 16], AddressHandle> = BTreeMap::new();
    let mut answered = 0;
    while !enough.is_finished() {
        let Some((done, bytes)) = post.next(TIMEOUT)? else { continue };
        let from = source(&bytes[..GRH_BYTES])?;
        let ah = match handles.entry(from.0) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(post.end.address_handle(from)?),
        };
        let turned: Vec<u8> = bytes[GRH_BYTES..].iter().rev().copied().collect();
        post.receive(done.wr_id)?;
        post.send(ah, done.src_qpn, &turned)?;
        answered += 1;
    }
    say(&format!("answered {answered}"))
}

/// Sends one datagram to an absent host: it waits while that is found out, and then is as good as
/// sent.
pub(crate) fn send_to_absent_host(absent: Gid) -> Result<()> {
    let post = Post::open(absent)?;
    let ah = post.end.address_handle(absent)?;
    post.post_send(&ah, 5, b"hello?")?;
    ensure!(post.completion(TIMEOUT)?.is_none(), "it was sent to an absent host");
    say("waits")?;
    ensure!(post.completion(LONG)?.is_some(), "it waits for ever");
    say("complete")
}
