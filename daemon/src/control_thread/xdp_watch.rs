//! Finds interfaces with a driver that has stopped running the XDP program: some do after the link
//! went down and up or the MTU changed, while the kernel still lists the program as attached.

/// Frames that an interface receives without a verdict before it is suspected: more than strays that
/// a NIC handles by itself.
const FRAMES: u64 = 16;

/// Looks that make up the suspicion, at least: counters are not read at one time.
const LOOKS_MIN: u32 = 2;

/// Looks after which the count begins anew.
const LOOKS_MAX: u32 = 10;

/// Knowledge of one interface.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct XdpWatch {
    /// Frames received and verdicts counted when the last verdict was seen, or the count began.
    base: Option<(u64, u64)>,
    /// Looks since then.
    looks: u32,
}

impl XdpWatch {
    /// True when the interface received frames and the program was run for none of them. `received`
    /// are the frames that the interface has received, `judged` those for which the program counted
    /// a verdict, each since any time.
    pub(super) fn look(&mut self, received: u64, judged: u64) -> bool {
        let Some((received_then, _)) = self.base.filter(|(_, then)| *then == judged && self.looks < LOOKS_MAX) else {
            (self.base, self.looks) = (Some((received, judged)), 0);
            return false;
        };
        self.looks += 1;
        self.looks >= LOOKS_MIN && received.saturating_sub(received_then) >= FRAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_without_verdicts_are_found_however_they_are_spread() {
        let mut watch = XdpWatch::default();
        let looks = [(100, 100), (200, 200), (300, 200), (301, 200)];
        assert_eq!(looks.map(|(received, judged)| watch.look(received, judged)), [false, false, false, true]);
        let mut watch = XdpWatch::default();
        let looks = [0, 4, 8, 12, 16].map(|received| watch.look(received, 7));
        assert_eq!(looks, [false, false, false, false, true]);
    }

    #[test]
    fn an_interface_with_verdicts_or_with_strays_alone_is_left_alone() {
        let mut watch = XdpWatch::default();
        let looks = [(0, 0), (100, 1), (200, 2), (300, 2), (301, 3), (302, 3), (400, 4)];
        assert!(looks.iter().all(|(received, judged)| !watch.look(*received, *judged)));
        let mut watch = XdpWatch::default();
        assert!((0..100).all(|stray| !watch.look(stray, 0)));
    }
}
