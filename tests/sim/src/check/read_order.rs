//! READs of memory that counts up: the data of a later READ is never older than that of an earlier
//! one of the same queue pair.
//!
//! IBTA v1 9.5 (table 79): a responder executes a READ after a READ in order, and every word of the
//! memory counts up at once, so each word of a READ must be at least as new as all words of all
//! READs posted before it. Within one READ nothing is promised: a part that was lost is read again
//! later than the rest.
//!
//! This holds in all weather, with one exception. A response that was overtaken by one that left
//! later (reordered, or a copy that the network delayed) may be older than the data that its
//! requester has taken meanwhile: READ 1's first response is lost, READ 2's is on a slow way, both
//! are asked for again, READ 1's second response comes, then READ 2's first: it has the expected
//! PSN, and no implementation can tell it from the second. So the words of a PSN that a response
//! brought out of order are not compared.

use crate::{
    counting::count_of,
    layout::RECV_SLOTS,
    message::{Expected, Message},
    stream::Stream,
    violation::{Checked, demand},
};

impl Stream {
    /// A READ response reaches the requester whole: the `sequence`-th frame that its host has sent.
    pub(crate) fn on_response_order(&mut self, psn: u32, sequence: u64) {
        let psn = self.unwrap_psn(psn);
        let order = &mut self.read_order;
        if sequence < order.last {
            order.overtaken.insert(psn);
        }
        order.last = order.last.max(sequence);
        order.overtaken = order.overtaken.split_off(&self.una_at_least.min(psn).saturating_sub(1 << 12));
    }

    /// Bytes of a READ of counting memory are placed, from byte `done` of the message on.
    pub(crate) fn check_counts(&mut self, id: u64, done: u32, bytes: &[u8]) -> Checked {
        let mtu = self.mtu();
        let message = self.message(id).expect("it is being placed");
        let (first, Expected::Counting(offset)) = (message.first, message.expected) else { return Ok(()) };
        let order = &mut self.read_order;
        if order.current != id {
            (order.current, order.before) = (id, order.newest);
        }
        for (at, byte) in (done..).zip(bytes) {
            order.word[at as usize % 8] = *byte;
            if at % 8 != 7 {
                continue;
            }
            let count = count_of((offset + at) / 8, order.word);
            demand!(count.is_some(), "memory", "READ {id} brings {:x?} at byte {at}", order.word);
            let psn = first + u64::from(at / mtu);
            demand!(
                count >= Some(order.before) || order.overtaken.contains(&psn),
                "read-order",
                "READ {id} brings {} at byte {at}, PSN {}; one before it brought {}",
                count.unwrap_or_default(),
                psn & 0xff_ffff,
                order.before
            );
            order.newest = order.newest.max(count.unwrap_or_default());
        }
        Ok(())
    }
}

impl Stream {
    /// Whether READ `id` may bring these bytes from byte `skip` on, as far as one packet or write
    /// tells.
    pub(crate) fn may_bring(&self, id: u64, skip: u32, bytes: &[u8]) -> bool {
        let message = self.message(id).expect("a READ that is answered is kept");
        match message.expected {
            Expected::Sea => message.data.holds(skip, bytes),
            Expected::Counting(offset) => {
                let (words, rest) = bytes.as_chunks::<8>();
                let in_words = skip.is_multiple_of(8) && rest.is_empty();
                // Parts of words are looked at when they are words.
                !in_words || ((offset + skip) / 8..).zip(words).all(|(place, word)| count_of(place, *word).is_some())
            }
            Expected::Receive(index) => {
                // A receive buffer is used again after so many messages.
                self.takers_posted > index + u64::from(RECV_SLOTS) || message.data.holds(skip, bytes)
            }
            Expected::Word => {
                let left = self.message(id - 1).and_then(Message::left);
                left.is_some_and(|left| left.to_ne_bytes()[skip as usize..][..bytes.len()] == *bytes)
            }
        }
    }
}
