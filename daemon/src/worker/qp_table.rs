//! Queue pairs and sessions of clients in a worker: doorbells and rings with work.
//!
//! ```text
//!   doorbell block of a session ──► doorbell number ──► entry of a queue pair ──► FairList
//!       ──► its rings ──► Endpoint
//! ```
//!
//! A client that breaks the rules is muted: its doorbells and rings are no longer looked at,
//! until the control thread has taken its queue pairs and its session away. Those of a session that
//! has ended are looked at only where the control thread asks for their last work.

use roced_abi::{
    doorbell::{DOORBELLS, NamedWords, any_doorbell, drain_doorbells},
    layout::{QpLayout, RECV_SLOT_WORDS_MAX, SEND_SLOT_WORDS_MAX, SrqLayout},
};
use roced_memory::{
    access_log::touch,
    queues::{QpRings, SrqRing, WorkerSession},
};
use roced_transport::{
    endpoint::Endpoint,
    reject::Reject,
    srq::Srq,
    table::Table,
    turns::fair::{FairList, FairOwner},
};
use roced_types::{Qpn, SessionId, Srqn};

use super::{
    abi::{RecvSlot, SendSlot, check_recv, check_send},
    client_fault::ClientFault,
    doorbell_bounds::DoorbellBounds,
};

/// Work requests of each direction that a queue pair may post before the next has its turn; a
/// guess. A visit costs its account as many work requests as it took, and at least this many: one
/// without any takes time, as well.
const QUANTUM: u32 = 16;

/// Work requests that a shared receive queue may post before the next has its turn: it feeds
/// several queue pairs; a guess.
const SHARED_QUANTUM: u32 = 4 * QUANTUM;

/// Doorbells without a queue that a session may ring: with [`STRAYS_OF_ONE`], many times as many as
/// a program rings that destroys a queue while another thread posts to it.
const STRAYS: u32 = 1024;

/// More of them for each queue that is destroyed.
const STRAYS_OF_ONE: u32 = 16;

/// `doorbell` of the session in `slot` in the table of doorbells.
const fn doorbell_place(slot: u32, doorbell: u32) -> usize {
    slot as usize * DOORBELLS as usize + doorbell as usize
}

#[derive(Debug)]
struct SessionEntry {
    session: WorkerSession,
    /// Queue pairs and shared receive queues.
    users: u32,
    muted: bool,
    /// Place of its account.
    account: u32,
    /// Words of doorbells that were named and not taken.
    named: NamedWords,
    /// Doorbells without a queue that it may ring yet.
    strays: u32,
    /// Set when it ends.
    end: Option<EndCursor>,
}

/// Where the last work of an ended session continues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndCursor {
    /// Doorbells below this one had their turn.
    pub(super) doorbell: u32,
    /// One of them has more.
    pub(super) is_left: bool,
}

impl SessionEntry {
    /// Doorbells or rings of the session are looked at.
    fn touch(&self) {
        touch(self.session.session, self.session.session);
    }

    /// A doorbell is rung.
    fn any_doorbell(&self) -> bool {
        self.touch();
        any_doorbell(&self.session.doorbells, self.named)
    }

    /// One of its queues is gone.
    fn on_removal(&mut self) {
        self.users -= 1;
        self.strays = (self.strays + STRAYS_OF_ONE).min(STRAYS_OF_ONE * DOORBELLS);
    }

    /// Its doorbells and rings no longer have turns.
    const fn is_closed(&self) -> bool {
        self.muted || self.end.is_some()
    }
}

/// A shared receive queue; its entry is behind those of all queue pairs.
#[derive(Debug)]
struct SrqEntry {
    ring: SrqRing,
    words: usize,
    session_slot: u32,
    arming: Option<Arming>,
}

/// A limit of a shared receive queue that is armed as soon as enough of the receives that were
/// posted before it are taken, in turn with the work of others.
#[derive(Clone, Copy, Debug)]
struct Arming {
    limit: u32,
    /// Receives posted before it that were not taken yet.
    posted: u32,
}

impl Arming {
    /// `taken` more of them were taken, and the queue holds `held`: whether the outcome is known.
    fn is_due(&mut self, taken: u32, held: u32) -> bool {
        self.posted = self.posted.saturating_sub(taken);
        held >= self.limit || held + self.posted < self.limit
    }
}

#[derive(Debug)]
struct QpEntry {
    rings: QpRings,
    send_words: usize,
    recv_words: usize,
    session_slot: u32,
}

/// Every session and queue pair of a worker.
#[derive(Debug)]
pub struct QpTable {
    sessions: Vec<Option<SessionEntry>>,
    /// Occupied slots of `sessions`, in no order.
    live: Vec<u32>,
    qps: Table<QpEntry>,
    srqs: Table<SrqEntry>,
    /// Entry of each session slot's doorbells, plus one; 0 where there is none.
    doorbells: Box<[u32]>,
    bounds: DoorbellBounds,
    /// Index in `live` of the session whose doorbells come first.
    first: usize,
    /// Entries with possible work in their rings; those of shared receive queues come behind.
    ready: FairList,
    /// Where work is copied to before it is checked.
    send_slot: SendSlot,
    recv_slot: RecvSlot,
}

/// Result of [`QpTable::drain_doorbells`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rung {
    /// Doorbells of queues.
    pub doorbells: usize,
    /// As in [`Served`].
    pub fault: Option<(SessionId, ClientFault)>,
}

/// Result of one visit to a queue pair's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Work requests taken.
    pub taken: u32,
    /// Why the session is muted from now on, and which it is.
    pub fault: Option<(SessionId, ClientFault)>,
}

impl QpTable {
    /// Empty entries for that many.
    pub fn new(max_sessions: u32, max_qps: u32, max_srqs: u32) -> Self {
        Self {
            sessions: (0..max_sessions).map(|_| None).collect(),
            live: Vec::with_capacity(max_sessions as usize),
            qps: Table::new(max_qps),
            srqs: Table::new(max_srqs),
            doorbells: vec![0; doorbell_place(max_sessions, 0)].into_boxed_slice(),
            bounds: DoorbellBounds::new(max_sessions),
            first: 0,
            ready: FairList::new(max_qps + max_srqs, QUANTUM),
            send_slot: [0; SEND_SLOT_WORDS_MAX],
            recv_slot: [0; RECV_SLOT_WORDS_MAX],
        }
    }

    /// Adds a session.
    ///
    /// # Errors
    /// Gives it back when there is no entry, or it has one already.
    pub fn add_session(&mut self, session: WorkerSession) -> Result<(), WorkerSession> {
        let free = self.sessions.iter().position(Option::is_none);
        let (Some(slot), None) = (free, self.slot_of(session.session)) else { return Err(session) };
        self.live.push(slot as u32);
        let account = self.bounds.join(session.account);
        let named = NamedWords::default();
        self.sessions[slot] =
            Some(SessionEntry { session, users: 0, muted: false, account, named, strays: STRAYS, end: None });
        Ok(())
    }

    /// Takes a session away; `None` when it is not here or has queue pairs.
    pub fn remove_session(&mut self, session: SessionId) -> Option<WorkerSession> {
        let slot = self.slot_of(session)?;
        let entry = self.sessions[slot as usize].take_if(|entry| entry.users == 0)?;
        self.live.retain(|live| *live != slot);
        self.bounds.leave(entry.account);
        Some(entry.session)
    }

    /// True when the session is here.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.slot_of(session).is_some()
    }

    /// The doorbells and rings of a session no longer have turns. Returns its slot, and whether
    /// it ends now; `None` when it is not here.
    pub(super) fn end_session(&mut self, session: SessionId) -> Option<(u32, bool)> {
        let slot = self.slot_of(session)?;
        let entry = self.sessions[slot as usize].as_mut()?;
        let is_new = entry.end.is_none();
        entry.end.get_or_insert_default();
        Some((slot, is_new))
    }

    /// Where the last work of the ended session in `slot` continues.
    pub(super) fn end_cursor(&self, slot: u32) -> EndCursor {
        self.sessions[slot as usize].as_ref().and_then(|entry| entry.end).unwrap_or_default()
    }

    /// Its last work continues here.
    pub(super) fn set_end_cursor(&mut self, slot: u32, cursor: EndCursor) {
        if let Some(entry) = &mut self.sessions[slot as usize] {
            entry.end = Some(cursor);
        }
    }

    /// The first queue pair of the session in `slot` with a doorbell from `from` on that is not
    /// passed over: doorbell, entry and number.
    pub(super) fn next_qp_of(&self, slot: u32, from: u32) -> Option<(u32, u32, Qpn)> {
        (from..DOORBELLS).find_map(|doorbell| {
            let entry = self.doorbells[doorbell_place(slot, doorbell)].checked_sub(1)?;
            Some((doorbell, entry, self.qps.get(entry)?.rings.qpn))
        })
    }

    /// The queue pair of this doorbell of the ended session in `slot` no longer has last work.
    pub(super) fn pass_over(&mut self, slot: u32, doorbell: u32) {
        self.doorbells[doorbell_place(slot, doorbell)] = 0;
    }

    /// True when the session of a queue pair with these rings is here, and their doorbell is free.
    pub fn has_doorbell_for(&self, rings: &QpRings) -> bool {
        self.has_doorbell(rings.session, rings.doorbell)
    }

    fn has_doorbell(&self, session: SessionId, doorbell: u32) -> bool {
        self.slot_of(session)
            .is_some_and(|slot| doorbell < DOORBELLS && self.doorbells[doorbell_place(slot, doorbell)] == 0)
    }

    /// True when the shared receive queue with this ring could be seated as number `index` of them.
    pub fn has_srq_room(&self, index: u32, ring: &SrqRing) -> bool {
        self.srqs.has_room(index) && self.has_doorbell(ring.session, ring.doorbell)
    }

    /// Adds a shared receive queue as number `index` of them.
    ///
    /// # Panics
    /// Unless [`Self::has_srq_room`] said that it may.
    pub fn add_srq(&mut self, index: u32, ring: SrqRing) {
        assert!(self.has_srq_room(index, &ring), "a free entry, a free doorbell");
        let slot = self.slot_of(ring.session).expect("has_srq_room found it");
        let entry = self.srq_entry(index);
        self.doorbells[doorbell_place(slot, ring.doorbell)] = entry + 1;
        self.sessions[slot as usize].as_mut().expect("an occupied slot").users += 1;
        let words = SrqLayout::new(ring.sizes).recv.stride_words();
        let _ = self.srqs.insert(index, SrqEntry { ring, words, session_slot: slot, arming: None });
        self.ready.add(entry, self.owner(slot));
        // It may have been rung for before it sat here.
        self.ready.push_back(entry);
    }

    /// Takes shared receive queue number `index` away.
    pub fn remove_srq(&mut self, index: u32) -> Option<SrqRing> {
        let srq = self.srqs.remove(index)?;
        self.ready.forget(self.srq_entry(index));
        self.doorbells[doorbell_place(srq.session_slot, srq.ring.doorbell)] = 0;
        self.sessions[srq.session_slot as usize].as_mut().expect("sessions outlive their queues").on_removal();
        Some(srq.ring)
    }

    /// The session of shared receive queue number `index`.
    pub fn session_of_srq(&self, index: u32) -> Option<SessionId> {
        Some(self.srqs.get(index)?.ring.session)
    }

    /// Arms the limit of shared receive queue number `index`, or with 0 disarms it. Receives that
    /// its client has posted count from now on, though they are taken in their turn: the limit is
    /// armed once enough of them are, or cannot be.
    ///
    /// # Errors
    /// [`Reject::NoSuchSrq`].
    pub fn set_srq_limit(&mut self, index: u32, limit: u32, endpoint: &mut Endpoint, srqn: Srqn) -> Result<(), Reject> {
        let entry = self.srq_entry(index);
        let srq = self.srqs.get_mut(index).filter(|srq| srq.ring.srqn == srqn).ok_or(Reject::NoSuchSrq(srqn))?;
        let session = self.sessions[srq.session_slot as usize].as_ref().expect("sessions outlive their queues");
        srq.arming = None;
        if limit > 0 && !session.is_closed() {
            session.touch();
            // The next poll iteration finds the fault of a ring that is corrupt.
            let mut arming = Arming { limit, posted: srq.ring.recv.available().unwrap_or(0) };
            if !arming.is_due(0, endpoint.srq(srqn).map_or(0, Srq::len)) {
                srq.arming = Some(arming);
            }
            self.ready.push_back(entry);
        }
        endpoint.set_srq_limit(srqn, if srq.arming.is_some() { 0 } else { limit })
    }

    /// The limit of shared receive queue number `index` that is to be armed.
    pub fn srq_arming(&self, index: u32) -> Option<u32> {
        Some(self.srqs.get(index)?.arming?.limit)
    }

    /// Shared receive queue number `index` waits for a visit.
    pub fn want_srq_visit(&mut self, index: u32) {
        if self.srqs.get(index).is_some() {
            self.ready.push_back(self.srq_entry(index));
        }
    }

    /// The number among shared receive queues of the one in `entry`; `None` when a queue pair sits
    /// there.
    pub fn srq_in(&self, entry: u32) -> Option<u32> {
        entry.checked_sub(self.qps.capacity())
    }

    fn srq_entry(&self, index: u32) -> u32 {
        self.qps.capacity() + index
    }

    /// Adds a queue pair in `entry`.
    ///
    /// # Panics
    /// Unless the entry is free and [`Self::has_doorbell_for`] said that it may.
    pub fn add_qp(&mut self, entry: u32, rings: QpRings) {
        assert!(self.qps.has_room(entry) && self.has_doorbell_for(&rings), "a free entry, a free doorbell");
        let slot = self.slot_of(rings.session).expect("has_doorbell_for found it");
        let layout = QpLayout::new(rings.sizes);
        self.doorbells[doorbell_place(slot, rings.doorbell)] = entry + 1;
        self.sessions[slot as usize].as_mut().expect("an occupied slot").users += 1;
        let qp = QpEntry {
            send_words: layout.send.stride_words(),
            recv_words: layout.recv.stride_words(),
            session_slot: slot,
            rings,
        };
        let _ = self.qps.insert(entry, qp);
        // Not pushed: its client learns of it after this, so its rings are empty, and their memory
        // is accessed only when they hold work.
        self.ready.add(entry, self.owner(slot));
    }

    /// Takes a queue pair away.
    pub fn remove_qp(&mut self, entry: u32) -> Option<QpRings> {
        let qp = self.qps.remove(entry)?;
        self.ready.forget(entry);
        self.doorbells[doorbell_place(qp.session_slot, qp.rings.doorbell)] = 0;
        self.sessions[qp.session_slot as usize].as_mut().expect("sessions outlive their queue pairs").on_removal();
        Some(qp.rings)
    }

    /// Entries of queue pairs are below this.
    pub const fn max_qps(&self) -> u32 {
        self.qps.capacity()
    }

    /// The rings of the queue pair in `entry`.
    pub fn rings(&self, entry: u32) -> Option<&QpRings> {
        Some(&self.qps.get(entry)?.rings)
    }

    /// The session of the queue pair in `entry`.
    pub fn session_of(&self, entry: u32) -> Option<SessionId> {
        Some(self.qps.get(entry)?.rings.session)
    }

    /// Takes doorbells that were rung, within their bounds: their queues wait for a visit.
    /// A session that rings doorbells without a queue is muted, if it `may` be.
    pub fn drain_doorbells(&mut self, may: bool) -> Rung {
        let mut rung = Rung::default();
        let Self { sessions, live, doorbells, bounds, ready, .. } = self;
        bounds.begin();
        let (before, after) = live.split_at(self.first.min(live.len()));
        let mut waiting = None;
        for (at, slot) in (before.len()..live.len()).zip(after).chain((0..).zip(before)) {
            let Some(entry) = sessions[*slot as usize].as_mut() else { continue };
            if entry.is_closed() || !entry.any_doorbell() {
                continue;
            }
            let words = bounds.left(entry.account);
            if words == 0 {
                waiting.get_or_insert(at);
                continue;
            }
            let mut strays = 0;
            let taken = drain_doorbells(&entry.session.doorbells, &mut entry.named, words, |doorbell| {
                let queue = doorbells[doorbell_place(*slot, doorbell)].checked_sub(1);
                match queue {
                    Some(queue) => {
                        ready.push_back(queue);
                        rung.doorbells += 1;
                    }
                    None => strays += 1,
                }
            });
            bounds.take(entry.account, taken);
            entry.strays = entry.strays.saturating_sub(strays);
            if entry.strays == 0 && may && rung.fault.is_none() {
                entry.muted = true;
                rung.fault = Some((entry.session.session, ClientFault::StrayDoorbells));
            }
        }
        self.first = waiting.unwrap_or(self.first);
        rung
    }

    /// A doorbell waits to be drained.
    pub fn any_doorbell(&self) -> bool {
        self.live
            .iter()
            .filter_map(|slot| self.sessions[*slot as usize].as_ref())
            .any(|entry| !entry.is_closed() && entry.any_doorbell())
    }

    /// The queue pair in `entry` waits for a visit.
    pub fn want_visit(&mut self, entry: u32) {
        if self.qps.get(entry).is_some() {
            self.ready.push_back(entry);
        }
    }

    /// The entry to visit next.
    pub fn next_visit(&mut self) -> Option<u32> {
        let entry = self.ready.pop()?;
        self.ready.charge(entry, QUANTUM);
        Some(entry)
    }

    /// True if an entry waits for a visit.
    pub fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Copies work from the rings of the queue pair in `entry` to its endpoint: at most a quantum
    /// of each direction, at most as many as the endpoint has room for. When there may be more it
    /// wants another turn.
    pub fn serve(&mut self, entry: u32, endpoint: &mut Endpoint) -> Served {
        self.serve_if(entry, endpoint, |session| !session.is_closed())
    }

    /// As [`Self::serve`], also for a queue pair of an ended session.
    pub fn serve_last(&mut self, entry: u32, endpoint: &mut Endpoint) -> Served {
        self.serve_if(entry, endpoint, |session| !session.muted)
    }

    fn serve_if(&mut self, entry: u32, endpoint: &mut Endpoint, may: impl FnOnce(&SessionEntry) -> bool) -> Served {
        let mut served = Served { taken: 0, fault: None };
        let Some(qp) = self.qps.get_mut(entry) else { return served };
        let session = self.sessions[qp.session_slot as usize].as_mut().expect("sessions outlive their queue pairs");
        if !may(session) {
            return served;
        }
        session.touch();
        let outcome = drain_recvs(qp, endpoint, &mut self.recv_slot)
            .and_then(|recvs| Ok((recvs, drain_sends(qp, endpoint, &mut self.send_slot)?)));
        match outcome {
            Ok((recvs, sends)) => {
                served.taken = recvs.taken + sends.taken;
                self.ready.charge(entry, served.taken.saturating_sub(QUANTUM));
                if recvs.more || sends.more {
                    self.ready.push_back(entry);
                }
            }
            Err(fault) => {
                session.muted = true;
                served.fault = Some((qp.rings.session, fault));
            }
        }
        served
    }

    /// As [`Self::serve`], for shared receive queue number `index`.
    pub fn serve_srq(&mut self, index: u32, endpoint: &mut Endpoint) -> Served {
        let mut served = Served { taken: 0, fault: None };
        let entry = self.srq_entry(index);
        let Some(srq) = self.srqs.get_mut(index) else { return served };
        let session = self.sessions[srq.session_slot as usize].as_mut().expect("sessions outlive their queues");
        if session.is_closed() {
            return served;
        }
        session.touch();
        match drain_shared(srq, endpoint, &mut self.recv_slot) {
            Ok(drained) => {
                served.taken = drained.taken;
                self.ready.charge(entry, served.taken.saturating_sub(QUANTUM));
                let (srqn, held) = (srq.ring.srqn, endpoint.srq(srq.ring.srqn).map_or(0, Srq::len));
                // A client that took back receives has none to wait for.
                let due = srq.arming.take_if(|arming| arming.is_due(drained.taken, held) || !drained.more);
                if let Some(Arming { limit, .. }) = due {
                    endpoint.set_srq_limit(srqn, limit).expect("it has an entry here and there");
                }
                if drained.more {
                    self.ready.push_back(entry);
                }
            }
            Err(fault) => {
                session.muted = true;
                served.fault = Some((srq.ring.session, fault));
            }
        }
        served
    }

    /// Owner of the session in a slot.
    fn owner(&self, slot: u32) -> FairOwner {
        let session = &self.sessions[slot as usize].as_ref().expect("an occupied slot").session;
        FairOwner { account: session.account, client: session.session, weight: session.weight }
    }

    fn slot_of(&self, session: SessionId) -> Option<u32> {
        self.live
            .iter()
            .copied()
            .find(|slot| self.sessions[*slot as usize].as_ref().is_some_and(|entry| entry.session.session == session))
    }
}

/// Entries found in one ring.
struct Drained {
    taken: u32,
    /// There may be more, and the endpoint may have room for it.
    more: bool,
}

fn drain_sends(qp: &mut QpEntry, endpoint: &mut Endpoint, slot: &mut SendSlot) -> Result<Drained, ClientFault> {
    let QpRings { qpn, sizes, send, .. } = &mut qp.rings;
    let corrupt = |_| ClientFault::RingCorrupt(*qpn);
    if send.available().map_err(corrupt)? == 0 {
        return Ok(Drained { taken: 0, more: false });
    }
    // After a room of 0 the endpoint names the queue pair when it has some.
    let quota = endpoint.send_room(*qpn).min(QUANTUM);
    let mut taken = 0;
    while taken < quota && send.pop(&mut slot[..qp.send_words]).map_err(corrupt)? {
        endpoint.post_send(*qpn, &check_send(slot, sizes)?).map_err(|_| ClientFault::NoSuchQp(*qpn))?;
        taken += 1;
    }
    send.release();
    Ok(Drained { taken, more: quota > 0 && taken == quota })
}

fn drain_recvs(qp: &mut QpEntry, endpoint: &mut Endpoint, slot: &mut RecvSlot) -> Result<Drained, ClientFault> {
    let QpRings { qpn, sizes, recv, shared, .. } = &mut qp.rings;
    let corrupt = |_| ClientFault::RingCorrupt(*qpn);
    if recv.available().map_err(corrupt)? == 0 {
        return Ok(Drained { taken: 0, more: false });
    }
    if *shared {
        return Err(ClientFault::ReceiveOnShared(*qpn));
    }
    let quota = endpoint.recv_room(*qpn).min(QUANTUM);
    let mut taken = 0;
    while taken < quota && recv.pop(&mut slot[..qp.recv_words]).map_err(corrupt)? {
        endpoint.post_recv(*qpn, &check_recv(slot, sizes)?).map_err(|_| ClientFault::NoSuchQp(*qpn))?;
        taken += 1;
    }
    recv.release();
    Ok(Drained { taken, more: quota > 0 && taken == quota })
}

fn drain_shared(srq: &mut SrqEntry, endpoint: &mut Endpoint, slot: &mut RecvSlot) -> Result<Drained, ClientFault> {
    let SrqRing { srqn, sizes, recv, .. } = &mut srq.ring;
    let corrupt = |_| ClientFault::SharedRingCorrupt(*srqn);
    if recv.available().map_err(corrupt)? == 0 {
        return Ok(Drained { taken: 0, more: false });
    }
    let quota = endpoint.srq_room(*srqn).min(SHARED_QUANTUM);
    let mut taken = 0;
    while taken < quota && recv.pop(&mut slot[..srq.words]).map_err(corrupt)? {
        endpoint.post_srq_recv(*srqn, &check_recv(slot, sizes)?).map_err(|_| ClientFault::NoSuchSrq(*srqn))?;
        taken += 1;
    }
    recv.release();
    Ok(Drained { taken, more: quota > 0 && taken == quota })
}

/// The entry of a queue pair of an endpoint: by its slot there, and the entries of endpoints lie
/// one behind the other.
pub fn entry_of(first_entry: u32, endpoint: &Endpoint, qpn: Qpn) -> Option<u32> {
    Some(first_entry + endpoint.slot(qpn)?)
}
