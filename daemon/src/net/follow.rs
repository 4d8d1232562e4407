//! Destinations that queue pairs send to, and how each is reached now.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use roced_shared::ids::DeviceId;

use super::route::Hop;

/// A followed destination. Who follows the same one from the same address gets the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FollowId(pub u64);

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// It is a GID of this device of ours.
    Local(DeviceId),
    /// The neighbor is being asked for its MAC address.
    Resolving,
    /// By Ethernet.
    Reachable {
        /// MAC address of the next hop.
        mac: [u8; 6],
        /// VLAN that it is in.
        vlan: Option<u16>,
        /// MAC address to send from.
        source_mac: [u8; 6],
        /// MTU of the way, bytes.
        mtu_bytes: u32,
    },
    /// No route, link down, or a neighbor that does not answer. It is tried again.
    Unreachable,
}

/// The first pause before asking again a neighbor that does not answer; each later one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// RoCE frames pass the kernel by, so it never learns from them that a neighbor still is there: it is asked this often to make
/// sure, which it does only when it has not heard of it otherwise.
const CONFIRM_EVERY: Duration = Duration::from_secs(5);

/// One followed destination.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) device: DeviceId,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) followers: u32,
    pub(super) hop: Option<Hop>,
    pub(super) next: NextHop,
    /// When "resolving" has lasted long enough.
    give_up: Option<Instant>,
    /// When the neighbor is to be asked again.
    ask_at: Option<Instant>,
    pause: Duration,
}

impl Follow {
    pub(super) fn new(device: DeviceId, source: IpAddr, destination: IpAddr) -> Self {
        Self {
            device,
            source,
            destination,
            followers: 1,
            hop: None,
            next: NextHop::Unreachable,
            give_up: None,
            ask_at: None,
            pause: PAUSE_MIN,
        }
    }

    /// What the kernel's view means now; says whether it is another than before. `view` is what is known without waiting.
    pub(super) fn see(&mut self, view: NextHop, now: Instant, patience: Duration) -> bool {
        let before = self.next;
        self.next = match view {
            // Who was given up stays so until there is an answer.
            NextHop::Resolving if before == NextHop::Unreachable && self.give_up.is_none() && self.asked() => before,
            other => other,
        };
        match self.next {
            NextHop::Resolving => {
                self.give_up.get_or_insert(now + patience);
                self.ask_at.get_or_insert(now);
            }
            NextHop::Reachable { .. } => {
                self.give_up = None;
                self.pause = PAUSE_MIN;
                self.ask_at.get_or_insert(now + CONFIRM_EVERY);
                if before != self.next {
                    self.ask_at = Some(now + CONFIRM_EVERY);
                }
            }
            NextHop::Local(_) => (self.give_up, self.ask_at) = (None, None),
            NextHop::Unreachable => {
                self.give_up = None;
                self.ask_at.get_or_insert(now + self.pause);
            }
        }
        self.next != before
    }

    fn asked(&self) -> bool {
        self.ask_at.is_some()
    }

    /// The way may be another now: a neighbor that was given up is asked again at once.
    pub(super) fn hope(&mut self, now: Instant) {
        if self.next == NextHop::Unreachable && self.asked() {
            self.ask_at = Some(now);
            self.pause = PAUSE_MIN;
        }
    }

    /// When [`Self::on_time`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.give_up, self.ask_at].into_iter().flatten().min()
    }

    /// Time has passed. Gives whether the neighbor must be asked now, and whether "resolving" just became "unreachable".
    pub(super) fn on_time(&mut self, now: Instant) -> (bool, bool) {
        let gave_up = self.give_up.is_some_and(|at| at <= now);
        if gave_up {
            self.next = NextHop::Unreachable;
            self.give_up = None;
        }
        let ask = self.ask_at.is_some_and(|at| at <= now);
        if ask {
            let pause = match self.next {
                NextHop::Reachable { .. } => CONFIRM_EVERY,
                NextHop::Unreachable => {
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                    self.pause
                }
                NextHop::Resolving | NextHop::Local(_) => PAUSE_MIN,
            };
            self.ask_at = Some(now + pause);
        }
        (ask, gave_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn follow() -> Follow {
        Follow::new(DeviceId(0), [10, 0, 0, 1].into(), [10, 0, 0, 2].into())
    }

    fn reachable(last: u8) -> NextHop {
        NextHop::Reachable { mac: [2, 0, 0, 0, 0, last], vlan: None, source_mac: [2; 6], mtu_bytes: 1500 }
    }

    #[test]
    fn a_neighbor_that_does_not_answer_is_given_up_and_asked_again_ever_more_rarely() {
        let (mut follow, start) = (follow(), Instant::now());
        assert!(follow.see(NextHop::Resolving, start, PATIENCE));
        assert_eq!(follow.on_time(start), (true, false));
        assert!(!follow.see(NextHop::Resolving, start, PATIENCE));
        let end = start + PATIENCE;
        assert_eq!(follow.on_time(end), (true, true));
        assert_eq!(follow.next, NextHop::Unreachable);
        assert!(!follow.see(NextHop::Resolving, end, PATIENCE), "asking goes on, hope does not");
        let mut asked = 0;
        let mut now = end;
        while now < end + Duration::from_secs(60) {
            now = follow.deadline().expect("it is asked again");
            asked += u32::from(follow.on_time(now).0);
        }
        assert!((2..10).contains(&asked), "{asked}");
        assert!(follow.see(reachable(1), now, PATIENCE));
    }

    #[test]
    fn another_mac_address_is_a_change_and_the_same_is_none() {
        let (mut follow, now) = (follow(), Instant::now());
        assert!(follow.see(reachable(1), now, PATIENCE));
        assert!(!follow.see(reachable(1), now, PATIENCE));
        assert!(follow.see(reachable(2), now, PATIENCE));
        assert_eq!(follow.deadline(), Some(now + CONFIRM_EVERY));
    }
}
