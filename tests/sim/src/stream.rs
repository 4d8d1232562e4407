//! All requests of one queue pair, from posted to completed, as an observer outside knows them: by
//! the frames that leave and arrive, the bytes that reach memory, and the completions. The rules
//! are in [`crate::check`], each file an `impl` of this.

mod states;

use std::collections::{BTreeSet, VecDeque};

pub(crate) use self::states::{Credits, Hit, Inbox, NotReady, Owed, ReadOrder};
use crate::{
    message::{Kind, Message, Outcome},
    pattern::Pieces,
    settings::Settings,
};

/// Messages kept behind the last that is needed: late frames are checked against them.
pub(crate) const KEPT: usize = 128;

/// A receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) into: Pieces,
    /// Which of a shared queue's buffers.
    pub(crate) buffer: u32,
}

/// A place in the messages: which, and bytes of it that are done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) id: u64,
    pub(crate) done: u32,
}

/// A request as the wire shows it, for the MSN: a message, or a part of a READ that was asked for
/// at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireRequest {
    pub(crate) end: u64,
}

/// The requests of one queue pair to its peer.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) settings: Settings,
    /// The requester may keep answers that come before their turn.
    pub(crate) keeps: bool,
    pub(crate) messages: VecDeque<Message>,
    /// Id of the first of `messages`.
    base: u64,
    /// PSNs are counted without end here; the low 24 bits are on the wire. This one is behind all
    /// that was posted.
    pub(crate) end: u64,

    // State of the requester.
    /// The PSN behind the highest that was sent.
    pub(crate) frontier: u64,
    /// The oldest that no answer has acknowledged to it, if it keeps answers that come before their
    /// turn; and if it keeps none. Its own value lies between the two: where they differ it has the
    /// benefit of the doubt.
    pub(crate) una: u64,
    pub(crate) una_at_least: u64,
    /// First PSNs of requests that the peer was given again, and has not answered since.
    pub(crate) repeated: BTreeSet<u64>,
    /// The oldest of all was sent again as a question.
    pub(crate) asked_by_oldest: bool,
    /// All before this is acknowledged, but for READs and atomic operations; PSNs of their answers
    /// that came, from `una` on.
    pub(crate) acknowledged: u64,
    pub(crate) answered: BTreeSet<u64>,
    /// Since it went forward: how often the oldest PSN was sent, when that last counted, and RNR
    /// NAKs.
    pub(crate) attempts: u32,
    pub(crate) attempted_at: u64,
    pub(crate) rnr_naks: u32,
    /// The last that was said of a request behind one that is not answered.
    pub(crate) rnr_behind: Option<u64>,
    /// PSNs of the sequence NAKs that reached it.
    pub(crate) naks_heard: BTreeSet<u64>,
    /// PSNs of frames of either direction that the network did something to, from the oldest
    /// unacknowledged on.
    pub(crate) disturbed: Vec<u64>,
    /// No answer comes sooner than this, in nanoseconds.
    pub(crate) round_trip: u64,
    /// No request before this moment; set until one is sent.
    pub(crate) rnr_until: u64,
    pub(crate) waiting: bool,
    /// The link of its host pauses it at times.
    pub(crate) may_pause: bool,
    /// An RNR NAK of a request behind answers that are missing.
    pub(crate) not_ready: Option<NotReady>,
    /// The next request must be `una`.
    pub(crate) go_back: bool,
    /// The ACK timer cannot have begun before this moment.
    pub(crate) timer_from: u64,
    pub(crate) timeouts: u64,
    /// The ACK timer ran out since the last progress; or the peer made a key invalid, and answered
    /// no request meanwhile.
    pub(crate) timed_out: bool,
    pub(crate) peer_was_slow: bool,
    /// Its send queue is drained: nothing begins.
    pub(crate) is_held_back: bool,
    /// All before this was under way when something was made good.
    pub(crate) sent_again_until: u64,
    /// When something last went forward.
    pub(crate) alive_at: u64,
    /// The next message with a completion due.
    pub(crate) complete: u64,
    /// The READ that is placed next.
    pub(crate) placed: Place,
    pub(crate) read_order: ReadOrder,
    pub(crate) owed: Owed,

    // State of the responder.
    /// All before this arrived; ranges beyond it that did.
    pub(crate) covered: u64,
    /// Packets that came while a key was being made invalid lie before this, and may have been
    /// dropped.
    pub(crate) meanwhile: u64,
    pub(crate) beyond: Vec<(u64, u64)>,
    /// The message that is executed next, as far as memory shows, and the PSN behind the last
    /// packet that wrote.
    pub(crate) executed: Place,
    pub(crate) written: u64,
    pub(crate) last_ack: Option<u64>,
    pub(crate) last_nak: Option<u64>,
    pub(crate) requests: VecDeque<WireRequest>,
    /// PSNs behind which an answer may end because a part of a READ was asked for again: the last
    /// of them.
    pub(crate) part_ends: BTreeSet<u64>,
    /// Requests before the first of `requests`.
    pub(crate) requests_base: u64,
    /// Ids of messages that take receives, in order, from receive `receives.completed` on.
    pub(crate) takers: VecDeque<u64>,
    pub(crate) takers_posted: u64,
    /// The PSN up to which the responder may have refused something: it may have failed.
    pub(crate) refusal_arrived: bool,
    /// The message that the receiver of an unreliable connection is in the middle of.
    pub(crate) inbox: Inbox,
    /// The PSN behind the last READ or atomic operation that was posted.
    answered_until: u64,
    /// How far its peer's receives go.
    pub(crate) credits: Credits,

    // Frames of earlier lives.
    /// The PSN of the first request.
    pub(crate) start: u64,
    /// Each request of an earlier life that came, and was not behind all that was executed, is a
    /// reason for a NAK of the PSN that was expected then: one from the first of these to the
    /// second.
    pub(crate) provoked: Vec<(u64, u64)>,
    /// The oldest unacknowledged PSN when an answer of an earlier life came for packets in flight.
    pub(crate) disturbed_by_answer: Option<u64>,

    // Retransmissions where the network lets everything through.
    /// It may have done something to a frame of either direction, or the peer is slow or not there.
    pub(crate) is_disturbed: bool,
    /// The peer has failed, may have, or is not there.
    pub(crate) is_unheard: bool,
    /// Packets that may be sent again because of the responder's answer, and those that were for no
    /// such reason.
    pub(crate) asked_again: u64,
    pub(crate) unasked: u64,
    /// Where frames take several paths with a difference that the receiver bears: from this PSN on
    /// none is sent again.
    pub(crate) borne_from: Option<u64>,
    /// An answer that was dropped counts as lost: it came before any of this life was taken, or was
    /// another than its repetition.
    pub(crate) may_imply: bool,
}

impl Stream {
    pub(crate) fn new(settings: &Settings, keeps: bool, round_trip: u64, psn: u32, now: u64) -> Self {
        let start = (1 << 32) + u64::from(psn);
        Self {
            settings: *settings,
            keeps,
            messages: VecDeque::new(),
            base: 0,
            end: start,
            frontier: start,
            una: start,
            una_at_least: start,
            repeated: BTreeSet::new(),
            asked_by_oldest: false,
            acknowledged: start,
            answered: BTreeSet::new(),
            attempts: 0,
            attempted_at: 0,
            rnr_naks: 0,
            rnr_behind: None,
            naks_heard: BTreeSet::new(),
            disturbed: Vec::new(),
            round_trip,
            rnr_until: 0,
            waiting: false,
            may_pause: false,
            not_ready: None,
            go_back: false,
            timer_from: now,
            timeouts: 0,
            timed_out: false,
            peer_was_slow: false,
            is_held_back: false,
            sent_again_until: start,
            alive_at: now,
            complete: 0,
            placed: Place::default(),
            read_order: ReadOrder::default(),
            owed: Owed::from(start),
            covered: start,
            meanwhile: start,
            beyond: Vec::new(),
            executed: Place::default(),
            written: start,
            last_ack: None,
            last_nak: None,
            requests: VecDeque::new(),
            part_ends: BTreeSet::new(),
            requests_base: 0,
            takers: VecDeque::new(),
            takers_posted: 0,
            refusal_arrived: false,
            inbox: Inbox { expected: start, under_way: None },
            answered_until: start,
            credits: Credits::default(),
            start,
            provoked: Vec::new(),
            disturbed_by_answer: None,
            is_disturbed: false,
            is_unheard: false,
            asked_again: 0,
            unasked: 0,
            borne_from: None,
            may_imply: false,
        }
    }

    pub(crate) fn mtu(&self) -> u32 {
        self.settings.mtu
    }

    /// The id that the next message gets.
    pub(crate) fn posted(&self) -> u64 {
        self.base + self.messages.len() as u64
    }

    pub(crate) fn message(&self, id: u64) -> Option<&Message> {
        self.messages.get(id.checked_sub(self.base)? as usize)
    }

    /// A message is posted: gives it its number, PSNs and receive.
    pub(crate) fn post(&mut self, mut message: Message, now: u64) -> &Message {
        let id = self.posted();
        message.wr_id = id;
        (message.first, message.posted_at) = (self.end, now);
        message.packets = match message.kind {
            Kind::LocalInvalidate => 0,
            _ => message.length.div_ceil(self.mtu()).max(1),
        };
        message.signaled |= self.settings.signal_all;
        self.end = message.end();
        message.answered_until = self.answered_until;
        if message.kind.wants_answer() {
            self.answered_until = self.end;
        }
        if message.takes_receive() && self.settings.service.is_reliable() {
            message.recv = Some(self.takers_posted);
            self.takers.push_back(id);
            self.takers_posted += 1;
        }
        if self.is_drained() {
            self.alive_at = now;
        }
        self.trim();
        self.messages.push_back(message);
        self.messages.back().expect("just pushed")
    }

    fn trim(&mut self) {
        let needed = self.complete.min(self.executed.id).min(self.placed.id);
        while self.messages.len() > KEPT && self.base < needed {
            self.messages.pop_front();
            self.base += 1;
        }
    }

    /// It cannot succeed. Where nothing is answered only failures before it leaves are known.
    pub(crate) fn must_fail(&self, message: &Message) -> bool {
        match message.outcome {
            Outcome::Success => false,
            Outcome::RemoteAccess | Outcome::RemoteInvalid => self.settings.service.is_reliable(),
            Outcome::LocalProtection | Outcome::LocalLength | Outcome::LocalOperation => true,
        }
    }

    /// The count with `psn` as its low 24 bits that is nearest to `frontier`.
    pub(crate) fn unwrap_psn(&self, psn: u32) -> u64 {
        let distance = ((psn.wrapping_sub(self.frontier as u32) << 8) as i32) >> 8;
        self.frontier.wrapping_add_signed(distance.into())
    }

    /// The message that has this PSN, and which of its packets.
    pub(crate) fn find(&self, psn: u64) -> Option<(u64, u32)> {
        let place = self.messages.partition_point(|message| message.end() <= psn);
        let message = self.messages.get(place)?;
        (message.first <= psn).then(|| (self.base + place as u64, (psn - message.first) as u32))
    }

    /// Rows of the message that has this PSN.
    pub(crate) fn rows_at(&self, psn: u64) -> u64 {
        self.find(psn).and_then(|(id, _)| self.message(id)).map_or(0, |message| message.rows)
    }

    pub(crate) fn message_mut(&mut self, id: u64) -> Option<&mut Message> {
        self.messages.get_mut(id.checked_sub(self.base)? as usize)
    }

    /// The key that the next message names which makes one invalid opens nothing any more.
    pub(crate) fn on_invalidated(&mut self, key: u32) {
        let waits = |message: &&mut Message| {
            let it_is = message.invalidates || message.kind == Kind::LocalInvalidate;
            it_is && !message.invalidated && message.rkey == key
        };
        if let Some(message) = self.messages.iter_mut().find(waits) {
            message.invalidated = true;
        }
    }

    /// Messages that are not acknowledged.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &Message> {
        let from = self.messages.partition_point(|message| message.end() <= self.una);
        self.messages.range(from..)
    }

    /// Messages without a decided completion.
    pub(crate) fn incomplete(&self) -> impl Iterator<Item = &Message> {
        self.messages.range((self.complete - self.base) as usize..)
    }

    /// Nothing that was posted waits for anything: messages that are not complete are silent and
    /// acknowledged.
    pub(crate) fn is_drained(&self) -> bool {
        self.incomplete().all(|message| !message.signaled && message.end() <= self.una && !self.must_fail(message))
    }

    /// Counts a request on the wire that had not been there before.
    pub(crate) fn note_request(&mut self, end: u64) {
        if self.requests.len() > 4 * KEPT {
            self.requests.pop_front();
            self.requests_base += 1;
        }
        self.requests.push_back(WireRequest { end });
    }

    /// Requests that end at or before this PSN: the MSN of a responder that has executed all before
    /// it. `None` when that is forgotten.
    pub(crate) fn msn_at(&self, psn: u64) -> Option<u32> {
        let count = self.requests.partition_point(|request| request.end <= psn);
        if count == 0 && self.requests_base > 0 {
            return None;
        }
        Some((self.requests_base + count as u64) as u32 & 0x00ff_ffff)
    }

    /// The end of the request on the wire that has this PSN.
    pub(crate) fn request_end(&self, psn: u64) -> Option<u64> {
        self.requests.get(self.requests.partition_point(|request| request.end <= psn)).map(|request| request.end)
    }

    /// Some packets sent until now may be sent again, for another reason than the paths'
    /// difference.
    pub(crate) fn excuse(&mut self, psns: u64) {
        let end = self.frontier + psns;
        self.borne_from = self.borne_from.map(|from| from.max(end));
    }

    /// Steps over messages that memory does not show (READs, messages of no bytes) and over done
    /// ones.
    pub(crate) fn skip_executed(&mut self) {
        while let Some(message) = self.message(self.executed.id) {
            let silent = message.kind == Kind::Read || message.length == 0;
            let waits = message.invalidates && !message.invalidated;
            // A READ that fails on our side was executed over there.
            let executes = message.outcome == Outcome::Success
                || message.kind == Kind::Read && message.outcome == Outcome::LocalProtection;
            if !executes || waits || !(silent || self.executed.done == message.length) {
                return;
            }
            self.executed = Place { id: self.executed.id + 1, done: 0 };
        }
    }

    /// The PSN of the next packet that will show in memory, or must not: nothing from it on was
    /// executed.
    pub(crate) fn unexecuted(&mut self) -> u64 {
        self.skip_executed();
        match self.message(self.executed.id) {
            None => self.end,
            Some(message) => (message.first + u64::from(self.executed.done / self.mtu())).min(message.end() - 1),
        }
    }
}

/// Receive work of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    /// From `completed` on.
    pub(crate) list: VecDeque<Receive>,
}

impl Receives {
    /// The oldest completes.
    pub(crate) fn take(&mut self) -> Option<Receive> {
        let receive = self.list.pop_front()?;
        self.completed += 1;
        Some(receive)
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Receive> {
        self.list.get(index.checked_sub(self.completed)? as usize)
    }
}
