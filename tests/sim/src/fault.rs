//! Network faults, as a table, and a seed's share of them.

use crate::random::Random;

/// One kind of fault: a column of the table that a run prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Fault {
    /// A frame is lost.
    Loss,
    /// Several in a row are.
    BurstLoss,
    /// A frame arrives twice.
    Duplicate,
    /// A frame is overtaken.
    Reorder,
    /// All frames of one direction are slow for a while.
    Delay,
    /// Bits flip.
    Corrupt,
    /// A switch marks "congestion experienced".
    CeMark,
    /// Nothing gets through for a while.
    LinkDown,
    /// A peer's endpoint goes away with all queue pairs; they are made anew.
    PeerRestart,
    /// The next connection has another path MTU.
    MtuChange,
    /// A frame of an earlier life of the connection arrives.
    EarlierLife,
    /// Frames take paths of different delays.
    Multipath,
}

impl Fault {
    /// All of them, with the names that the table shows.
    pub(crate) const ALL: [(Self, &'static str); 12] = [
        (Self::Loss, "loss"),
        (Self::BurstLoss, "burst loss"),
        (Self::Duplicate, "duplicate"),
        (Self::Reorder, "reorder"),
        (Self::Delay, "delay"),
        (Self::Corrupt, "corrupt"),
        (Self::CeMark, "CE mark"),
        (Self::LinkDown, "link down"),
        (Self::PeerRestart, "restart"),
        (Self::MtuChange, "MTU change"),
        (Self::EarlierLife, "earlier life"),
        (Self::Multipath, "multipath"),
    ];
}

/// Faults of a seed's network, in parts per million of frames; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) loss: u32,
    pub(crate) burst_loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    pub(crate) delay: u32,
    pub(crate) corrupt: u32,
    pub(crate) ce_mark: u32,
    pub(crate) link_down: u32,
    /// Of turns of the whole.
    pub(crate) peer_restart: u32,
    /// Of connections.
    pub(crate) mtu_change: u32,
    /// Frames of earlier lives, for each frame.
    pub(crate) earlier_life: u32,
    /// Of frames: several paths from then on for a while. A million: all the time.
    pub(crate) multipath: u32,
}

impl Weather {
    /// One seed in six is calm, or has earlier lives or several paths and nothing else; the others
    /// have each fault or not, at their own rate.
    pub(crate) fn forecast(random: &mut Random) -> Self {
        if random.one_in(6) {
            let calm = Self { mtu_change: 500_000, ..Self::default() };
            return match random.below(3) {
                0 => calm,
                1 => Self { earlier_life: random.pick(&[5_000, 30_000]), ..calm },
                _ => Self { multipath: random.pick(&[5_000, 1_000_000, 1_000_000]), ..calm },
            };
        }
        // Few seeds have all: the joint effect of two faults is seen best when a third does not
        // hide it.
        let keep = random.pick(&[2, 3, 4, 6]);
        let mut rate = |rates: &[u32]| if random.one_in(6 / keep.min(5) + 1) { random.pick(rates) } else { 0 };
        Self {
            loss: rate(&[1_000, 5_000, 20_000, 50_000]),
            burst_loss: rate(&[500, 2_000, 5_000]),
            duplicate: rate(&[2_000, 10_000, 50_000]),
            reorder: rate(&[2_000, 10_000, 50_000]),
            delay: rate(&[200, 1_000]),
            corrupt: rate(&[2_000, 10_000, 30_000]),
            ce_mark: rate(&[10_000, 200_000]),
            link_down: rate(&[300, 1_000]),
            peer_restart: rate(&[200, 1_000]),
            mtu_change: rate(&[500_000, 1_000_000]),
            earlier_life: rate(&[2_000, 10_000, 50_000]),
            multipath: rate(&[500, 5_000, 1_000_000]),
        }
    }
}

impl Weather {
    /// Every frame gets through as it was sent, in its turn.
    pub(crate) const fn is_calm(&self) -> bool {
        let Self { loss, burst_loss, duplicate, reorder, delay, corrupt, link_down, peer_restart, .. } = *self;
        loss | burst_loss | duplicate | reorder | delay | corrupt | link_down | peer_restart | self.multipath == 0
    }
}

/// A frame that is under way for longer, in nanoseconds, may be taken for a lost one.
const SLOW_FRAME_NS: u64 = 1_000_000;

/// Fate of one frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    /// Bit of each fault that hit it, by [`Fault`].
    pub(crate) hits: u32,
    pub(crate) lost: bool,
    pub(crate) twice: bool,
    pub(crate) corrupt: bool,
    pub(crate) marked: bool,
    /// Nanoseconds later than frames before and after it.
    pub(crate) late: u64,
    /// Nanoseconds that its path takes longer than the shortest.
    pub(crate) detour: u64,
    /// Nanoseconds until it arrives, if it does.
    pub(crate) under_way: u64,
}

impl Fate {
    /// The network loses the frame.
    pub(crate) fn lost() -> Self {
        let mut fate = Self { lost: true, ..Self::default() };
        fate.hit(Fault::Loss);
        fate
    }

    pub(crate) fn hit(&mut self, fault: Fault) {
        self.hits |= 1 << fault as usize;
    }

    /// An answer may be late, or not come, or mean something else, because of it.
    pub(crate) fn disturbs(&self) -> bool {
        let is_slow = self.hits >> Fault::Delay as usize & 1 != 0 || self.under_way > SLOW_FRAME_NS;
        self.lost || self.twice || self.corrupt || self.late + self.detour > 0 || is_slow
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        Fault::ALL.iter().filter(|(fault, _)| self.hits >> *fault as usize & 1 != 0).map(|(_, name)| *name).collect()
    }
}
