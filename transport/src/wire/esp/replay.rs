//! Replay window of an inbound security association (RFC 4303 3.4.3), as a ring of words (RFC
//! 6479): to move it clears words, and shifts none.

use super::{EspRefusal, EspSequence, Numbering};

/// How many numbers up to the highest one may still come, each once.
///
/// At 3 million packets a second it lasts 1.4 ms, which is more than the queues of a NIC differ by;
/// Linux has at most 4096 as well.
pub const REPLAY_WINDOW: u32 = 4096;

const WORD_BITS: u64 = u64::BITS as u64;

/// Words of the ring. More than the window: the word of the highest number and that of the lowest
/// one are never the same.
const WORDS: usize = (REPLAY_WINDOW as usize / WORD_BITS as usize + 1).next_power_of_two();

/// Numbers received so far. One worker owns it.
///
/// [`Self::check`] comes before decryption and costs little; [`Self::mark`] comes after, because
/// only an authentic packet may move the window.
///
/// ```
/// use roced_transport::wire::esp::{EspRefusal, Numbering, ReplayWindow};
///
/// let mut window = ReplayWindow::new(Numbering::Extended);
/// let number = window.check(5)?;
/// window.mark(number)?;
/// assert_eq!(window.check(5), Err(EspRefusal::Replayed));
/// assert_eq!(window.check(4).map(|number| number.get()), Ok(4));
/// # Ok::<(), EspRefusal>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    numbering: Numbering,
    /// The highest number that was marked; 0 before the first.
    top: u64,
    /// A bit for each number, modulo the ring.
    words: [u64; WORDS],
}

impl ReplayWindow {
    /// A window that has seen no number.
    pub const fn new(numbering: Numbering) -> Self {
        Self { numbering, top: 0, words: [0; WORDS] }
    }

    /// The highest number that was marked; 0 before the first.
    pub const fn top(&self) -> u64 {
        self.top
    }

    /// The number of a packet with the half `low`, if it may still come.
    ///
    /// # Errors
    /// [`EspRefusal::Replayed`] or [`EspRefusal::BehindWindow`].
    pub fn check(&self, low: u32) -> Result<EspSequence, EspRefusal> {
        let number = self.numbering.of_received(low, self.top, REPLAY_WINDOW);
        // 0 is never sent.
        let number = number.filter(|number| *number > 0).ok_or(EspRefusal::BehindWindow)?;
        self.refuse(number)?;
        Ok(EspSequence::new(number))
    }

    /// The packet with the number `sequence` is authentic: it came.
    ///
    /// # Errors
    /// As [`Self::check`]: another packet with that number, or a later one, was marked meanwhile.
    pub fn mark(&mut self, sequence: EspSequence) -> Result<(), EspRefusal> {
        let number = sequence.get();
        self.refuse(number)?;
        if number > self.top {
            let (old, new) = (self.top / WORD_BITS, number / WORD_BITS);
            let cleared = (new - old).min(WORDS as u64);
            for word in new + 1 - cleared..=new {
                self.words[Self::place(word)] = 0;
            }
            self.top = number;
        }
        self.words[Self::place(number / WORD_BITS)] |= Self::bit(number);
        Ok(())
    }

    fn refuse(&self, number: u64) -> Result<(), EspRefusal> {
        if number > self.top {
            return Ok(());
        }
        if self.top - number >= u64::from(REPLAY_WINDOW) {
            return Err(EspRefusal::BehindWindow);
        }
        let is_marked = self.words[Self::place(number / WORD_BITS)] & Self::bit(number) != 0;
        if is_marked { Err(EspRefusal::Replayed) } else { Ok(()) }
    }

    const fn place(word: u64) -> usize {
        (word % WORDS as u64) as usize
    }

    const fn bit(number: u64) -> u64 {
        1 << (number % WORD_BITS)
    }
}
