//! Requests of applications, as a table: one small file an operation, or a family of them. A row
//! has a name, how often it is drawn, and a function that composes its work requests.

mod atomic;
mod counting;
mod datagram;
mod keys;
mod local;
mod placement;
mod read;
mod reuse;
mod send;
mod unreliable;
mod write;

use roced_transport::work::DatagramTo;
use roced_types::{Qpn, flush};

use crate::{
    layout::{
        BACK_AT, BACK_WORD_AT, COUNTING_KEY, COUNTING_VA, READ_AT, READ_BYTES, RECV_AT, RECV_BYTES, RECV_SLOTS,
        REUSE_BYTES, SINK_KEY, SINK_VA, SLOT_BYTES, SOURCE_KEY, SOURCE_VA, WORDS, WORDS_AT, WRITE_BYTES, own_key,
        reuse_key, slot_key,
    },
    message::{Expected, Kind, Message, Outcome},
    pattern::{Pieces, SOURCE_BYTES},
    random::Random,
    reuse::Reuse,
    service::Service,
};

/// Work requests that one operation posts at the most.
pub(crate) const WORK_REQUESTS_MAX: u32 = counting::WORK_REQUESTS_MAX;

/// An operation: a row of the table that a run prints.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// How often it is drawn, beside the others of its table.
    pub(crate) weight: u32,
    pub(crate) compose: fn(&mut Composer<'_>),
}

/// Operations of a reliable connection that succeed.
const SOUND: &[Operation] = &[
    send::SEND,
    send::SEND_IMM,
    send::SEND_INVALIDATE,
    write::WRITE,
    write::WRITE_IMM,
    read::READ,
    read::READ_BACK,
    counting::COUNTING,
    counting::BEHIND,
    keys::NEW_KEY,
    atomic::COMPARE_SWAP,
    atomic::FETCH_ADD,
    local::INVALIDATE,
    placement::FLUSH,
    placement::ATOMIC_WRITE,
    reuse::REUSE,
];

/// Operations that end a reliable connection.
const FATAL: &[Operation] = &[
    keys::WRONG_RKEY,
    keys::OUT_OF_RANGE,
    keys::NO_RIGHT,
    keys::OTHER_DOMAIN,
    keys::STALE_KEY,
    local::WRONG_LKEY,
    send::TOO_LONG,
    atomic::MISALIGNED,
    local::STALE_LKEY,
    placement::PERSISTENT,
];

/// Operations of an unreliable connection that its sender completes, regardless of their fate.
const UNRELIABLE: &[Operation] = &[
    unreliable::SEND,
    unreliable::SEND_IMM,
    unreliable::WRITE,
    unreliable::WRITE_IMM,
    unreliable::NEW_KEY,
    unreliable::REFUSED,
    unreliable::STALE_KEY,
    unreliable::TOO_LONG,
];

/// Operations that end an unreliable connection.
const UNRELIABLE_FATAL: &[Operation] = &[unreliable::WRONG_LKEY];

/// Datagrams, which their sender completes, received or not.
const DATAGRAM: &[Operation] = &[datagram::SEND, datagram::SEND_IMM, datagram::WRONG_QKEY, datagram::WRONG_QP];

/// Datagrams that cannot be sent: no frame shows them, and they have no row.
const DATAGRAM_FATAL: &[Operation] = &[datagram::WRONG_LKEY, datagram::TOO_LONG, datagram::NO_HANDLE, datagram::WRITE];

/// All that have rows, in the order of the rows.
const ALL: [&[Operation]; 5] = [SOUND, FATAL, UNRELIABLE, UNRELIABLE_FATAL, DATAGRAM];

/// Traits of a message besides its operation; rows of their own.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Trait {
    Inline,
    SeveralSges,
    ReceiverNotReady,
    SharedReceive,
}

const TRAITS: [&str; 4] = ["inline", "several SGEs", "RNR", "shared receive"];

/// The rows of the table.
pub(crate) fn rows() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().flatten().map(|operation| operation.name).chain(TRAITS)
}

/// The bit of a trait.
pub(crate) fn trait_bit(which: Trait) -> u64 {
    1 << (ALL.iter().map(|set| set.len()).sum::<usize>() + which as usize)
}

/// Draws an operation of that service, by weight; gives the bit of its row too, 0 if it has none.
pub(crate) fn draw(random: &mut Random, service: Service, fatal: bool) -> (&'static Operation, u64) {
    let set = match (service, fatal) {
        (Service::Reliable, false) => SOUND,
        (Service::Reliable, true) => FATAL,
        (Service::Unreliable, false) => UNRELIABLE,
        (Service::Unreliable, true) => UNRELIABLE_FATAL,
        (Service::Datagram, false) => DATAGRAM,
        (Service::Datagram, true) => DATAGRAM_FATAL,
    };
    let mut left = random.below(set.iter().map(|operation| u64::from(operation.weight)).sum());
    for operation in set {
        match left.checked_sub(operation.weight.into()) {
            Some(rest) => left = rest,
            None => {
                let row = ALL.into_iter().flatten().position(|row| row.name == operation.name);
                return (operation, row.map_or(0, |row| 1 << row));
            }
        }
    }
    unreachable!("less than the sum of all weights")
}

/// The answer of an application that is asked whether a message is there.
pub(crate) fn answer() -> (&'static Operation, u64) {
    (&send::SEND, 1)
}

/// Input and output of composing.
pub(crate) struct Composer<'c> {
    pub(crate) random: &'c mut Random,
    pub(crate) mtu: u32,
    /// The longest WRITE or READ.
    pub(crate) longest: u32,
    pub(crate) host: usize,
    /// Which part of the sinks is this connection's.
    pub(crate) slot: usize,
    pub(crate) inline_bytes: u32,
    pub(crate) sges: u32,
    /// The peer takes its receives from a queue that it shares.
    pub(crate) shares: bool,
    /// Of datagrams: queue pairs of the other host that take them, with their Q_Keys, and some that
    /// do not; the own Q_Key.
    pub(crate) partners: Vec<(u32, u32)>,
    pub(crate) refusing: Vec<u32>,
    pub(crate) qkey: u32,
    /// Where the next WRITE and the next READ put their bytes.
    pub(crate) write_at: &'c mut u32,
    pub(crate) read_at: &'c mut u32,
    /// No earlier request reads the area of data to be read back.
    pub(crate) back_is_free: bool,
    /// Nothing that was posted before makes the peer's key invalid that is taken back now and then.
    pub(crate) key_is_free: bool,
    /// Nothing that was posted before makes our own key invalid that comes and goes; its
    /// generation.
    pub(crate) own_key_is_free: bool,
    pub(crate) own_generation: u32,
    /// Generation of the peer's key that is taken back now and then.
    pub(crate) generation: u32,
    /// The index of the receive that the next SEND takes; `None` if that is unknown.
    pub(crate) next_receive: Option<u64>,
    /// Nothing that was posted before uses the memory that is used again; the memory.
    pub(crate) reuse_is_free: bool,
    pub(crate) reuse: Reuse,
    /// Set: nothing more is posted for so many nanoseconds.
    pub(crate) pause: u64,
    /// Set: the peer takes that key back, and makes another, before this is posted.
    pub(crate) take_back: bool,
    pub(crate) messages: Vec<Message>,
}

impl Composer<'_> {
    /// A length that is interesting: nothing, a byte, around the MTU, some packets, or anything up
    /// to `most`.
    pub(crate) fn length(&mut self, most: u32) -> u32 {
        let mtu = self.mtu;
        let length = match self.random.below(9) {
            0 => self.random.below(9) as u32,
            1 | 2 => mtu * self.random.within(1, 3) as u32,
            3 => mtu * self.random.within(1, 3) as u32 + self.random.below(5) as u32 - 2,
            4 | 5 => self.random.below(u64::from(mtu) * 6) as u32,
            6 | 7 => self.random.below(u64::from(most.min(24 * mtu)) + 1) as u32,
            _ => self.random.below(u64::from(most) + 1) as u32,
        };
        length.min(most)
    }

    /// As [`Self::length`], but not nothing.
    pub(crate) fn some_length(&mut self, most: u32) -> u32 {
        self.length(most).max(1)
    }

    /// Any bytes of `host`'s source, in up to as many pieces as a work request has.
    fn source(&mut self, host: usize, length: u32, pieces_max: u32) -> Pieces {
        let base = host * SOURCE_BYTES;
        let most = pieces_max.min(32);
        let count = if most > 1 && self.random.one_in(3) { self.random.within(2, u64::from(most)) } else { 1 };
        let mut pieces = Pieces::default();
        let mut left = length;
        for piece in 0..count {
            let bytes = if piece + 1 == count { left } else { self.random.below(u64::from(left) + 1) as u32 };
            let offset = self.random.below((SOURCE_BYTES - bytes as usize) as u64) as usize;
            pieces.push((base + offset) as u32, bytes);
            left -= bytes;
        }
        pieces
    }

    fn message(&mut self, kind: Kind, length: u32, data: Pieces) -> Message {
        Message {
            wr_id: 0,
            rows: 0,
            kind,
            to: DatagramTo::NOWHERE,
            imm: None,
            solicited: self.random.one_in(4),
            signaled: !self.random.one_in(3),
            fenced: self.random.one_in(10),
            inline: false,
            data,
            length,
            expected: Expected::Sea,
            into: Pieces::default(),
            remote: 0,
            remote_va: 0,
            rkey: 0,
            invalidates: false,
            invalidated: false,
            lkey: SOURCE_KEY,
            reuses: false,
            reused: None,
            tells: None,
            swap_or_add: 0,
            compare: 0,
            found: None,
            outcome: Outcome::Success,
            may_fail: false,
            generation: None,
            stale: false,
            writable: length,
            first: 0,
            packets: 0,
            posted_at: 0,
            recv: None,
            answered_until: 0,
        }
    }

    /// The data of an outgoing message: inline now and then, if it is short enough.
    fn outgoing(&mut self, kind: Kind, length: u32) -> Message {
        let inline = length <= self.inline_bytes && self.random.one_in(2);
        let data = self.source(self.host, length, if inline { 1 } else { self.sges });
        let mut message = self.message(kind, length, data);
        message.inline = inline;
        if inline {
            message.rows |= trait_bit(Trait::Inline);
        }
        if message.data.len() > 1 {
            message.rows |= trait_bit(Trait::SeveralSges);
        }
        message
    }

    pub(crate) fn send(&mut self, length: u32) -> Message {
        self.outgoing(Kind::Send, length)
    }

    /// A datagram to a queue pair that takes it.
    pub(crate) fn datagram(&mut self) -> Message {
        let length = self.length(self.mtu);
        let (qpn, qkey) = self.random.pick(&self.partners);
        // The top bit asks for the queue pair's own.
        let qkey = if qkey == self.qkey && self.random.one_in(3) { 1 << 31 | self.random.next() as u32 } else { qkey };
        let to = DatagramTo { ah: self.slot as u32, qpn: Qpn::from_wire(qpn), qkey };
        Message { to, ..self.send(length) }
    }

    /// A WRITE to the next place of the peer's sink, or once more to where the last began.
    pub(crate) fn write(&mut self, length: u32) -> Message {
        if *self.write_at + length > WRITE_BYTES {
            *self.write_at = 0;
        }
        let at = *self.write_at;
        if !self.random.one_in(8) {
            *self.write_at += length;
        }
        self.write_to(at, length)
    }

    pub(crate) fn write_to(&mut self, at: u32, length: u32) -> Message {
        let remote = self.slot as u32 * SLOT_BYTES + at;
        let remote_va = SINK_VA + u64::from(remote);
        Message { remote, remote_va, rkey: SINK_KEY, ..self.outgoing(Kind::Write, length) }
    }

    /// A WRITE in two pieces, the first of `sound` bytes.
    pub(crate) fn write_in_two(&mut self, sound: u32, length: u32) -> Message {
        let message = self.write(length);
        let mut data = self.source(self.host, sound, 1);
        let (offset, _) = self.source(self.host, length - sound, 1).iter().next().unwrap_or_default();
        data.push(offset, length - sound);
        Message { data, inline: false, rows: trait_bit(Trait::SeveralSges), ..message }
    }

    /// A READ of the peer's source.
    pub(crate) fn read(&mut self, length: u32) -> Message {
        let data = self.source(1 - self.host, length, 1);
        let (offset, _) = data.iter().next().unwrap_or_default();
        let remote_va = SOURCE_VA + u64::from(offset) - ((1 - self.host) * SOURCE_BYTES) as u64;
        self.read_of(data, length, remote_va, SOURCE_KEY)
    }

    /// A READ of the data of a WRITE before it.
    pub(crate) fn read_back(&mut self, written: &Message) -> Message {
        self.read_of(written.data.clone(), written.length, written.remote_va, SINK_KEY)
    }

    /// The bytes of a SEND or WRITE come from memory that is used again.
    pub(crate) fn fill_from_reused(&mut self, message: &mut Message) {
        let offset = self.random.below(u64::from(REUSE_BYTES - message.length) + 1) as u32;
        message.data = Pieces::default();
        message.data.push(self.reuse.sea_at(self.host) as u32 + offset, message.length);
        (message.inline, message.reuses) = (false, true);
        message.rows &= !(trait_bit(Trait::Inline) | trait_bit(Trait::SeveralSges));
        message.lkey = reuse_key(self.slot, self.reuse.generation);
    }

    /// A READ of words that count up, from byte `offset` of them on.
    pub(crate) fn read_counts(&mut self, offset: u32, length: u32) -> Message {
        let message = self.read_of(Pieces::default(), length, COUNTING_VA + u64::from(offset), COUNTING_KEY);
        Message { expected: Expected::Counting(offset), ..message }
    }

    /// A READ of the data that a SEND before it puts into the receive of that index.
    pub(crate) fn read_received(&mut self, sent: &Message, index: u64) -> Message {
        let buffer = (index % u64::from(RECV_SLOTS)) as u32;
        let remote = self.slot as u32 * SLOT_BYTES + RECV_AT + buffer * RECV_BYTES;
        let message = self.read_of(sent.data.clone(), sent.length, SINK_VA + u64::from(remote), SINK_KEY);
        Message { expected: Expected::Receive(index), ..message }
    }

    /// An atomic operation on the word that is read back, and the READ.
    pub(crate) fn atomic_and_back(&mut self, kind: Kind) -> [Message; 2] {
        let remote = self.slot as u32 * SLOT_BYTES + BACK_WORD_AT;
        let remote_va = SINK_VA + u64::from(remote);
        let message = self.atomic(kind);
        let read = self.read_of(Pieces::default(), 8, remote_va, SINK_KEY);
        [Message { remote, remote_va, ..message }, Message { expected: Expected::Word, ..read }]
    }

    /// A FLUSH of the data of a WRITE before it, or of all that its key opens.
    pub(crate) fn flush(&mut self, written: &Message) -> Message {
        let level = self.random.pick(&[flush::RANGE, flush::REGION]);
        Message {
            remote_va: written.remote_va,
            rkey: written.rkey,
            swap_or_add: written.length.into(),
            compare: flush::operand(flush::GLOBAL, level),
            ..self.message(Kind::Flush, 0, Pieces::default())
        }
    }

    /// A LOCAL_INV.
    pub(crate) fn invalidate(&mut self, key: u32) -> Message {
        Message { rkey: key, ..self.message(Kind::LocalInvalidate, 0, Pieces::default()) }
    }

    /// Our own key that comes and goes.
    pub(crate) fn own_key(&self) -> u32 {
        own_key(self.slot, self.own_generation)
    }

    /// An atomic operation on one of the peer's words: the even ones are swapped or written, the
    /// odd ones added to.
    pub(crate) fn atomic(&mut self, kind: Kind) -> Message {
        let word = self.random.below(u64::from(WORDS) / 2) as u32 * 2 + u32::from(kind == Kind::FetchAdd);
        let remote = self.slot as u32 * SLOT_BYTES + WORDS_AT + word * 8;
        let remote_va = SINK_VA + u64::from(remote);
        if kind == Kind::AtomicWrite {
            let swap_or_add = self.random.pick(&[0, 1, 2, u64::MAX]) ^ self.random.next() >> 62;
            let message = self.message(kind, 8, Pieces::default());
            return Message { remote, remote_va, rkey: SINK_KEY, swap_or_add, ..message };
        }
        let message = self.read_of(Pieces::default(), 8, remote_va, SINK_KEY);
        // Few values, so that the compared value is there now and then.
        let swap = kind == Kind::CompareSwap;
        let swap_or_add = if swap { self.random.below(3) } else { self.random.next() };
        let compare = if swap { self.random.below(3) } else { 0 };
        Message { kind, remote, swap_or_add, compare, ..message }
    }

    fn read_of(&mut self, data: Pieces, length: u32, remote_va: u64, rkey: u32) -> Message {
        if *self.read_at + length > READ_BYTES {
            *self.read_at = 0;
        }
        let base = self.slot as u32 * SLOT_BYTES + READ_AT + *self.read_at;
        *self.read_at += length;
        let mut into = Pieces::default();
        let split = if self.sges > 1 && self.random.one_in(3) { self.random.below(u64::from(length) + 1) } else { 0 };
        if split > 0 {
            into.push(base, split as u32);
        }
        into.push(base + split as u32, length - split as u32);
        let several = if into.len() > 1 { trait_bit(Trait::SeveralSges) } else { 0 };
        let message = self.message(Kind::Read, length, data);
        Message { into, remote_va, rkey, lkey: SINK_KEY, rows: several, ..message }
    }

    /// With immediate data.
    pub(crate) fn with_imm(&mut self, message: Message) -> Message {
        Message { imm: Some((self.random.next() as u32).to_be_bytes()), ..message }
    }

    /// By the key that is taken back now and then.
    pub(crate) fn by_slot_key(&self, message: Message) -> Message {
        Message { rkey: slot_key(self.slot, self.generation), generation: Some(self.generation), ..message }
    }

    pub(crate) fn post(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub(crate) const fn longest(&self) -> u32 {
        self.longest
    }

    pub(crate) const fn back_at(&self) -> u32 {
        BACK_AT
    }
}

/// A message that the responder refuses for its key, range or right, regardless of its operation.
pub(crate) fn refused(message: Message) -> Message {
    Message { outcome: Outcome::RemoteAccess, writable: 0, ..message }
}
