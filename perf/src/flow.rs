//! Arithmetic of credits, independent of any queue pair.
//!
//! A receiver that compares data must not be overrun: a WRITE into a buffer that is still being
//! compared would make good data look wrong, and a SEND that finds no receive work request costs an
//! RNR NAK. A sender therefore has at most `depth` messages that the receiver has not returned. The
//! receiver returns a quarter of the depth at a time, by a SEND without data; its immediate is the
//! number of compared messages so far (its low 32 bits): credits are cumulative, so none can be
//! lost or counted twice. For WRITEs, the last message of each such batch carries an immediate,
//! which tells the receiver that all messages up to it are in place: a reliable connection executes
//! requests in order.

/// Messages in a batch of `depth`.
pub(crate) const fn batch(depth: u32) -> u32 {
    if depth < 4 { 1 } else { depth / 4 }
}

/// Credits that can be under way at a time, at most: seven when seven messages make batches of one,
/// and one more.
pub(crate) const CREDITS_MAX: u32 = 8;

/// Immediates of WRITEs that can be under way at a time: as many as credits, and the last message
/// of all.
pub(crate) const NOTICES_MAX: u32 = CREDITS_MAX + 1;

/// The sender's side of one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    depth: u64,
    batch: u64,
    /// Messages to send in all; without end until [`Self::stop`] when `None`.
    quota: Option<u64>,
    waits_for_credit: bool,
    posted: u64,
    completed: u64,
    credited: u64,
}

/// A message to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedWork {
    /// From 0.
    pub(crate) sequence: u64,
    /// The receiver should be told that all messages up to this one are there.
    pub(crate) notice: bool,
}

impl Sending {
    /// A sender of `quota` messages, or of as many as there is time for. With `waits_for_credit`,
    /// messages count as under way until the receiver gives them back, else until they are
    /// complete.
    pub(crate) fn new(depth: u32, quota: Option<u64>, waits_for_credit: bool) -> Self {
        Self {
            depth: depth.into(),
            batch: batch(depth).into(),
            quota,
            waits_for_credit,
            posted: 0,
            completed: 0,
            credited: 0,
        }
    }

    /// Messages that may be posted now.
    pub(crate) fn room(&self) -> u64 {
        let done = if self.waits_for_credit { self.completed.min(self.credited) } else { self.completed };
        let left = self.quota.map_or(u64::MAX, |quota| quota - self.posted);
        left.min(self.depth - (self.posted - done))
    }

    /// The message that is `ahead` places behind the next one.
    pub(crate) fn peek(&self, ahead: u64) -> PostedWork {
        let sequence = self.posted + ahead;
        let last = self.quota == Some(sequence + 1);
        PostedWork { sequence, notice: last || (sequence + 1).is_multiple_of(self.batch) }
    }

    /// The next `messages` are posted.
    pub(crate) fn on_posted(&mut self, messages: u64) {
        self.posted += messages;
    }

    /// The oldest message that was not complete is.
    pub(crate) fn on_completed(&mut self) {
        self.completed += 1;
    }

    /// The receiver is done with `count` messages (low 32 bits).
    ///
    /// # Errors
    /// When the receiver cannot have said that.
    pub(crate) fn on_credit(&mut self, count: u32) -> Result<(), AbsurdCredit> {
        // Wraps on purpose: fewer than 2^32 messages are under way.
        let step = count.wrapping_sub(self.credited as u32);
        let credited = self.credited + u64::from(step);
        if step == 0 || credited > self.posted {
            return Err(AbsurdCredit { count, credited: self.credited, posted: self.posted });
        }
        self.credited = credited;
        Ok(())
    }

    /// The time is over: the current batch is completed, and no other begins.
    pub(crate) fn stop(&mut self) {
        let end = self.posted.next_multiple_of(self.batch);
        self.quota = Some(self.quota.map_or(end, |quota| quota.min(end)));
    }

    /// All that was to be sent is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.quota == Some(self.completed)
    }

    /// Messages complete so far.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }
}

/// A credit for messages that were never sent, or one that returns none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbsurdCredit {
    count: u32,
    credited: u64,
    posted: u64,
}

impl std::fmt::Display for AbsurdCredit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, credited, posted } = self;
        write!(f, "the server gave credit up to message {count} (mod 2^32) after {credited} with {posted} sent")
    }
}

impl std::error::Error for AbsurdCredit {}

/// The receiver's side of one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Receiving {
    batch: u64,
    consumed: u64,
    credited: u64,
    credits_under_way: u32,
}

impl Receiving {
    /// A receiver of messages of which at most `depth` are under way.
    pub(crate) fn new(depth: u32) -> Self {
        Self { batch: batch(depth).into(), consumed: 0, credited: 0, credits_under_way: 0 }
    }

    /// Messages done with so far: also the number of the next one.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Messages before the one with the low 32 bits `count` are in place; returns its number.
    /// Fewer than 2^32 are in flight, so it is the next number with these bits.
    pub(crate) fn notice(&self, count: u32) -> u64 {
        self.consumed + u64::from(count.wrapping_sub(self.consumed as u32))
    }

    /// One more is done with.
    pub(crate) fn on_consumed(&mut self) {
        self.consumed += 1;
    }

    /// The immediate of a credit to be sent now, if one is due and may be under way.
    pub(crate) fn next_credit(&mut self) -> Option<u32> {
        if self.consumed - self.credited < self.batch || self.credits_under_way == CREDITS_MAX {
            return None;
        }
        self.credited = self.consumed;
        self.credits_under_way += 1;
        Some(self.consumed as u32)
    }

    /// A credit arrived at the sender.
    pub(crate) fn on_credit_completed(&mut self) {
        self.credits_under_way -= 1;
    }
}

/// `total` messages shared out over `qps` queue pairs, as evenly as it goes.
pub(crate) fn share(total: u64, qps: u32) -> impl Iterator<Item = u64> {
    let (each, more) = (total / u64::from(qps), total % u64::from(qps));
    (0..u64::from(qps)).map(move |qp| each + u64::from(qp < more))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(sender: &mut Sending) -> Option<PostedWork> {
        let post = (sender.room() > 0).then(|| sender.peek(0))?;
        sender.on_posted(1);
        Some(post)
    }

    /// Plays both sides: credits at once or as late as possible, messages seen as they come (SEND)
    /// or by notices only (WRITE). Gives the most that was under way.
    fn play(depth: u32, quota: u64, lazy: bool, by_notice: bool) -> u64 {
        let mut sender = Sending::new(depth, Some(quota), true);
        let mut receiver = Receiving::new(depth);
        let (mut seen, mut under_way_max) = (0, 0);
        while !sender.is_done() {
            let mut moved = false;
            while let Some(post) = post(&mut sender) {
                sender.on_completed();
                if post.notice || !by_notice {
                    seen = receiver.notice((post.sequence + 1) as u32);
                    assert_eq!(seen, post.sequence + 1);
                }
                moved = true;
                under_way_max = under_way_max.max(post.sequence + 1 - receiver.consumed());
                if !lazy {
                    break;
                }
            }
            while receiver.consumed() < seen {
                receiver.on_consumed();
                moved = true;
            }
            while let Some(credit) = receiver.next_credit() {
                sender.on_credit(credit).expect("a true credit");
                receiver.on_credit_completed();
            }
            assert!(moved, "neither side can go on: {sender:?} {receiver:?}");
        }
        assert_eq!(receiver.consumed(), quota);
        under_way_max
    }

    #[test]
    fn every_depth_and_quota_comes_to_its_end() {
        for depth in 1..20 {
            for quota in 0..100 {
                for (lazy, by_notice) in [(false, false), (false, true), (true, false), (true, true)] {
                    assert!(play(depth, quota, lazy, by_notice) <= u64::from(depth));
                }
            }
        }
        assert_eq!(play(4096, 10_000, true, false), 4096, "the whole depth is used");
    }

    #[test]
    fn credits_and_notices_under_way_have_a_limit() {
        for depth in 1..=4096 {
            assert!(depth / batch(depth) < CREDITS_MAX, "depth {depth}");
        }
        const { assert!(NOTICES_MAX > CREDITS_MAX) };
    }

    #[test]
    fn a_notice_ends_every_batch_and_the_last_message() {
        let mut sender = Sending::new(8, Some(5), false);
        let notices: Vec<bool> = std::iter::from_fn(|| post(&mut sender)).map(|post| post.notice).collect();
        assert_eq!(notices, [false, true, false, true, true]);
    }

    #[test]
    fn a_timed_run_ends_with_a_batch() {
        let mut sender = Sending::new(16, None, false);
        for _ in 0..5 {
            post(&mut sender).expect("room");
        }
        sender.stop();
        let rest: Vec<PostedWork> = std::iter::from_fn(|| post(&mut sender)).collect();
        assert_eq!(rest.len(), 3);
        assert!(rest[2].notice, "the receiver hears of the last one");
        assert!(!sender.is_done());
        (0..8).for_each(|_| sender.on_completed());
        assert!(sender.is_done());
    }

    #[test]
    fn credits_survive_the_wrap_of_32_bits() {
        let before = u64::from(u32::MAX) - 1;
        let mut sender = Sending { posted: before, completed: before, credited: before, ..Sending::new(8, None, true) };
        let mut receiver = Receiving { consumed: before, credited: before, ..Receiving::new(8) };
        for _ in 0..4 {
            post(&mut sender).expect("room");
        }
        assert_eq!(receiver.notice((before + 4) as u32), before + 4);
        (0..4).for_each(|_| receiver.on_consumed());
        sender.on_credit(receiver.next_credit().expect("due")).expect("a true credit");
        assert_eq!(sender.credited, before + 4);
    }

    #[test]
    fn a_credit_that_cannot_be_is_refused() {
        let mut sender = Sending::new(8, None, true);
        post(&mut sender).expect("room");
        assert!(sender.on_credit(2).is_err(), "more than was sent");
        assert!(sender.on_credit(0).is_err(), "nothing new");
        assert_eq!(sender.on_credit(1), Ok(()));
        assert!(sender.on_credit(0).is_err(), "backward");
    }

    #[test]
    fn without_credits_completions_count() {
        let mut sender = Sending::new(2, None, false);
        assert_eq!(std::iter::from_fn(|| post(&mut sender)).count(), 2);
        sender.on_completed();
        assert_eq!(post(&mut sender), Some(PostedWork { sequence: 2, notice: true }));
        assert_eq!(post(&mut sender), None);
    }

    #[test]
    fn shares_add_up() {
        assert_eq!(share(10, 4).collect::<Vec<_>>(), [3, 3, 2, 2]);
        assert_eq!(share(1, 3).collect::<Vec<_>>(), [1, 0, 0]);
    }
}
