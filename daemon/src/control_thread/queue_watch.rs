//! The number of queues on which frames of an interface arrive, and its growth.
//!
//! A frame keeps the number of its RX queue in the interfaces above the port on which it arrived.
//! So an interface with a driver that does not say, such as a bond, has frames on as many as
//! the port with most has. Ports come, and `ethtool -L` gives them more queues. rtnetlink says
//! nothing of that. The ethtool family of generic netlink does (`ETHTOOL_MSG_CHANNELS_NTF`), but
//! roced does not use it: it asks drivers once in a while.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    time::{Duration, Instant},
};

use roced_types::DeviceId;

use crate::net::{Below, LowerInterface, Net};

/// Ports that one look asks for their queues: each costs a socket and an `ioctl`, and a bridge may
/// have hundreds. A guess.
const PORTS_A_LOOK: usize = 8;

/// The least time between two looks that ask drivers, which cost system calls. Devices are looked at
/// more often while their link changes.
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// RX queues of an interface, as far as netlink has them.
#[derive(Clone, Debug)]
pub(super) struct LinkQueues {
    /// [`Net::rx_queues_made`].
    made: u32,
    below: Below,
}

/// RX queues on which frames arrive at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuesInUse {
    pub(super) count: u32,
    /// The driver does not say: the count is that of interfaces below, or a guess.
    pub(super) is_deduced: bool,
}

impl LinkQueues {
    pub(super) fn of(net: &Net, device: DeviceId) -> Self {
        let made = net.rx_queues_made(device);
        // Interfaces below cannot add to the only one.
        let below = if made > 1 { net.below(device) } else { Below::default() };
        Self { made, below }
    }

    /// Those of an interface with nothing below it.
    #[cfg(test)]
    pub(super) fn without_ports(made: u32) -> Self {
        Self { made, below: Below::default() }
    }

    /// RX queues on which frames arrive at `interface`: those that its driver says, by `ask`, or
    /// else those of the interfaces below it, unless it has fewer. Of those that it has, at least
    /// `least` are served: its ports may come later.
    ///
    /// # Errors
    /// Those of `ask` about the interface itself. A port may be gone already.
    pub(super) fn in_use(
        &self,
        interface: &str,
        least: u32,
        mut ask: impl FnMut(&str) -> io::Result<Option<u32>>,
    ) -> io::Result<QueuesInUse> {
        if let Some(said) = ask(interface)? {
            return Ok(QueuesInUse { count: said, is_deduced: false });
        }
        let made = self.made.max(1);
        let mut most = if self.below.others_elsewhere { made } else { least.clamp(1, made) };
        for lower in &self.below.interfaces {
            if most >= made {
                break;
            }
            most = most.max(queues_of(lower, &mut ask).unwrap_or(0)).min(made);
        }
        Ok(QueuesInUse { count: most, is_deduced: true })
    }
}

/// Watches for frames on further queues, at a bounded cost.
#[derive(Debug)]
pub(super) struct QueueWatch {
    /// The most queues that frames were known to arrive on. More than are served, if some are not
    /// listed or could not be opened.
    known: u32,
    /// When drivers were asked last.
    asked_at: Option<Instant>,
    /// [`Net::interface_changes`] when the interfaces below were looked up.
    looked_up_at: Option<u64>,
    /// The interfaces below; the first one is asked next.
    below: VecDeque<LowerInterface>,
    others_elsewhere: bool,
}

/// The interfaces as a look finds them.
pub(super) struct Surroundings<'a, B> {
    pub(super) now: Instant,
    pub(super) interface: &'a str,
    /// [`Net::rx_queues_made`].
    pub(super) made: u32,
    /// [`Net::interface_changes`].
    pub(super) changes: u64,
    /// [`Net::below`].
    pub(super) below: B,
}

impl QueueWatch {
    pub(super) fn new(known: u32) -> Self {
        Self { known, asked_at: None, looked_up_at: None, below: VecDeque::new(), others_elsewhere: false }
    }

    /// Frames may arrive on that many queues: fewer are no news.
    pub(super) fn expect(&mut self, queues: u32) {
        self.known = self.known.max(queues);
    }

    /// Looks once; asks drivers for their queues by `ask`, unless it has done so a moment ago. Returns the number of queues when it is
    /// larger than ever.
    pub(super) fn look(
        &mut self,
        around: Surroundings<'_, impl FnOnce() -> Below>,
        mut ask: impl FnMut(&str) -> io::Result<Option<u32>>,
    ) -> Option<u32> {
        let is_early = self.asked_at.is_some_and(|asked| around.now.saturating_duration_since(asked) < ASK_PAUSE);
        if around.made <= 1 || is_early {
            return None;
        }
        self.asked_at = Some(around.now);
        let most = match ask(around.interface) {
            Ok(Some(said)) => said,
            Ok(None) if self.known >= around.made => return None,
            Ok(None) => self.look_below(around, ask),
            // Gone: netlink says so soon.
            Err(_) => return None,
        };
        let more = most > self.known;
        self.expect(most);
        more.then_some(most)
    }

    fn look_below(
        &mut self,
        around: Surroundings<'_, impl FnOnce() -> Below>,
        mut ask: impl FnMut(&str) -> io::Result<Option<u32>>,
    ) -> u32 {
        if self.looked_up_at != Some(around.changes) {
            self.looked_up_at = Some(around.changes);
            self.take_below((around.below)());
        }
        if self.others_elsewhere {
            return around.made;
        }
        let asked = self.below.len().min(PORTS_A_LOOK);
        let most = self.below.iter().take(asked).filter_map(|lower| queues_of(lower, &mut ask)).max();
        self.below.rotate_left(asked);
        most.unwrap_or(0).min(around.made)
    }

    /// New interfaces are asked first, then the others in their order.
    fn take_below(&mut self, below: Below) {
        self.others_elsewhere = below.others_elsewhere;
        let mut new: BTreeMap<_, _> = below.interfaces.into_iter().map(|lower| (lower.ifindex, lower)).collect();
        let known: Vec<_> = self.below.drain(..).filter_map(|lower| new.remove(&lower.ifindex)).collect();
        self.below = new.into_values().chain(known).collect();
    }
}

/// RX queues of an interface below another: its driver's answer, or else the kernel's. It may be
/// gone already.
fn queues_of(lower: &LowerInterface, ask: &mut impl FnMut(&str) -> io::Result<Option<u32>>) -> Option<u32> {
    ask(&lower.name).ok()?.or(lower.rx_queues_made)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn port(ifindex: u32, rx_queues_made: Option<u32>) -> LowerInterface {
        LowerInterface { ifindex, name: format!("port{ifindex}"), rx_queues_made }
    }

    fn below(interfaces: &[LowerInterface]) -> Below {
        Below { interfaces: interfaces.to_vec(), others_elsewhere: false }
    }

    /// Answers of drivers; an interface without an entry does not say, and one of "gone" is an
    /// error.
    fn drivers<'a>(said: &'a [(&str, u32)]) -> impl FnMut(&str) -> io::Result<Option<u32>> + use<'a> {
        let said: BTreeMap<String, u32> = said.iter().map(|(name, queues)| ((*name).to_owned(), *queues)).collect();
        move |name| match name {
            "gone" => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            _ => Ok(said.get(name).copied()),
        }
    }

    #[test]
    fn frames_arrive_on_the_queues_of_the_port_with_most() {
        let in_use = |made, interfaces: &[LowerInterface], said: &[(&str, u32)]| {
            LinkQueues { made, below: below(interfaces) }.in_use("bond0", 1, drivers(said)).expect("there").count
        };
        let gone = LowerInterface { name: "gone".to_owned(), ..port(4, Some(9)) };
        let ports = [port(2, Some(8)), port(3, Some(8)), gone];
        assert_eq!(in_use(16, &ports, &[("port2", 2), ("port3", 4)]), 4);
        assert_eq!(in_use(3, &ports, &[("port2", 2), ("port3", 4)]), 3, "as many as it has");
        assert_eq!(in_use(16, &ports, &[("port2", 2)]), 8, "a driver that does not say, as of TAP");
        assert_eq!(in_use(16, &[port(2, None), port(3, Some(4))], &[]), 4, "a macvlan, and the NIC below");
        assert_eq!(in_use(16, &[], &[]), 1, "a bond without ports");
        assert_eq!(in_use(16, &ports, &[("bond0", 5), ("port3", 9)]), 5, "its own driver says");
        let elsewhere = Below { others_elsewhere: true, ..below(&[port(2, None)]) };
        let unknown = LinkQueues { made: 16, below: elsewhere };
        assert_eq!(unknown.in_use("bond0", 1, drivers(&[])).expect("there").count, 16);
        assert!(unknown.in_use("gone", 1, drivers(&[])).is_err());
    }

    #[test]
    fn ports_are_not_asked_beyond_the_queues_of_the_interface() {
        let ports: Vec<_> = (2..300).map(|ifindex| port(ifindex, Some(64))).collect();
        for (made, asked_at_most) in [(1, 1), (16, 2)] {
            let mut asked = 0;
            let queues = LinkQueues { made, below: below(&ports) };
            let in_use = queues.in_use("bridge0", 1, |_| {
                asked += 1;
                Ok(None)
            });
            assert_eq!(in_use.expect("there"), QueuesInUse { count: made, is_deduced: true });
            assert!(asked <= asked_at_most, "{made} queues: {asked} were asked");
        }
    }

    fn look(watch: &mut QueueWatch, changes: u64, interfaces: &[LowerInterface], said: &[(&str, u32)]) -> Option<u32> {
        let now = watch.asked_at.map_or_else(Instant::now, |asked| asked + ASK_PAUSE);
        let around = Surroundings { now, interface: "bridge0", made: 16, changes, below: || below(interfaces) };
        watch.look(around, drivers(said))
    }

    #[test]
    fn more_queues_of_the_same_port_are_noticed_once() {
        let (mut watch, ports) = (QueueWatch::new(2), [port(2, None)]);
        assert_eq!(look(&mut watch, 1, &ports, &[("port2", 2)]), None);
        assert_eq!(look(&mut watch, 1, &ports, &[("port2", 4)]), Some(4), "netlink has not said a word");
        assert_eq!(look(&mut watch, 1, &ports, &[("port2", 4)]), None);
        assert_eq!(look(&mut watch, 1, &ports, &[("port2", 1)]), None);
        assert_eq!(look(&mut watch, 1, &ports, &[("port2", 64)]), Some(16), "as many as the interface has");
        assert_eq!(look(&mut watch, 1, &ports, &[("port2", 128)]), None);
        // Of the interface itself.
        assert_eq!(look(&mut QueueWatch::new(2), 1, &[], &[("bridge0", 3)]), Some(3));
    }

    #[test]
    fn a_port_made_again_under_its_name_is_another() {
        let mut watch = QueueWatch::new(2);
        assert_eq!(look(&mut watch, 1, &[port(2, Some(2))], &[]), None);
        let again = LowerInterface { ifindex: 3, ..port(2, Some(8)) };
        assert_eq!(look(&mut watch, 2, &[again], &[]), Some(8));
    }

    #[test]
    fn a_look_asks_few_ports_and_new_ones_first() {
        let ports: Vec<_> = (2..302).map(|ifindex| port(ifindex, Some(1))).collect();
        let mut watch = QueueWatch::new(1);
        let mut asked_often = BTreeMap::<String, u32>::new();
        let begin = Instant::now();
        for turn in 0..300_usize.div_ceil(PORTS_A_LOOK) as u32 {
            let mut asked = 0;
            let now = begin + ASK_PAUSE * turn;
            let around = Surroundings { now, interface: "bridge0", made: 16, changes: 1, below: || below(&ports) };
            let more = watch.look(around, |name| {
                asked += 1;
                *asked_often.entry(name.to_owned()).or_default() += 1;
                Ok(None)
            });
            assert!(more.is_none() && asked <= PORTS_A_LOOK + 1, "{asked} were asked");
        }
        assert!(ports.iter().all(|port| asked_often.contains_key(&port.name)), "each has its turn");
        let more = [&ports[..], &[port(400, Some(4))]].concat();
        assert_eq!(look(&mut watch, 2, &more, &[]), Some(4));
    }

    #[test]
    fn close_looks_ask_once_a_second() {
        let (mut watch, begin, mut asked) = (QueueWatch::new(4), Instant::now(), 0);
        let mut looks = Vec::new();
        for tenth in 0..25_u32 {
            let now = begin + Duration::from_millis(100) * tenth;
            let around =
                Surroundings { now, interface: "eth0", made: 16, changes: u64::from(tenth), below: Below::default };
            let more = watch.look(around, |_| {
                asked += 1;
                Ok(Some(if tenth < 5 { 4 } else { 8 }))
            });
            looks.extend(more.map(|queues| (tenth, queues)));
        }
        assert_eq!((asked, looks), (3, vec![(10, 8)]));
    }

    #[test]
    fn steady_interfaces_are_not_looked_up() {
        let (mut watch, mut now) = (QueueWatch::new(1), Instant::now());
        let mut look = |made, changes, lookups: &mut u32, asked: &mut u32| {
            let below = || {
                *lookups += 1;
                below(&[port(2, Some(1))])
            };
            now += ASK_PAUSE;
            let more = watch.look(Surroundings { now, interface: "bridge0", made, changes, below }, |_| {
                *asked += 1;
                Ok(None)
            });
            assert_eq!(more, None);
        };
        let (mut lookups, mut asked) = (0, 0);
        look(1, 1, &mut lookups, &mut asked);
        assert_eq!((lookups, asked), (0, 0), "its only queue is served");
        for changes in [1, 1, 1, 2] {
            look(16, changes, &mut lookups, &mut asked);
        }
        assert_eq!((lookups, asked), (2, 8));
    }
}
