//! An event channel: a socket pair, with its other end polled by the program.
//!
//! Written events are kept until the program has surely taken them, since an identifier that moves
//! to another channel takes those with it that were not.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, SockFlag, recv, send, setsockopt, sockopt},
};
use roced_abi::control::{CmChannelEvent, cm_event};
use roced_cm::identifiers::IdKey;
use roced_memory::{
    accounts::ClientAccount,
    channel::event_sockets,
    client_socket::{ClientSocket, SendingState, SentMessage, ThreadReports},
    unread::unread_cost,
};
use roced_types::SessionId;
use zerocopy::{FromZeros, IntoBytes};

use crate::accounts::ledger::Charge;

/// Buffer of a channel's socket, bytes: some dozens of events, for any default of the host. The
/// kernel allows twice as much, its own structures included.
const SOCKET_BYTES: usize = 16 << 10;

/// Bytes of the kernel's own structures for one message, at least.
const MESSAGE_OVERHEAD_MIN: usize = 512;

/// Events that the socket holds unread, at most.
const IN_SOCKET_MAX: usize = (2 * SOCKET_BYTES).div_ceil(size_of::<CmChannelEvent>() + MESSAGE_OVERHEAD_MIN);

/// Events with the thread of the user that sends them, beyond which others wait here.
const SENDING_MAX: usize = 16;

/// Copies of written events that can be unread: older ones were read.
const UNREAD_MAX: usize = 64;

const _: () = assert!(IN_SOCKET_MAX + SENDING_MAX <= UNREAD_MAX);

/// Events of a program to itself that wait for room, beyond which it sends none and moves none
/// here. Other events are bounded by their identifiers.
pub(super) const OWN_EVENTS_MAX: usize = 32;

/// Both sockets of a channel, with their inodes and files.
const SOCKETS_BYTES: usize = 8 << 10;

/// The allocator's and the maps' own bytes for an event that waits, at most.
const WAITING_OVERHEAD: usize = 192;

/// Memory of a channel at worst, of the kernel and of the heap: full of events that a program sends
/// to itself and does not read.
pub(super) const CHANNEL_BYTES: usize = SOCKETS_BYTES
    + 2 * SOCKET_BYTES
    + size_of::<EventChannel>()
    + UNREAD_MAX * size_of::<Sent>()
    + (OWN_EVENTS_MAX + SENDING_MAX) * (size_of::<Sent>() + WAITING_OVERHEAD);

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteState {
    /// All events are in the socket, or can never be received.
    Written,
    /// Some wait until the program has read others.
    Full,
    /// Some wait for a thread of the program's user.
    UnderWay,
}

/// An event of an identifier.
type Sent = (IdKey, CmChannelEvent);

#[derive(Debug)]
pub(super) struct EventChannel {
    pub(super) session: SessionId,
    socket: ClientSocket,
    /// The kernel's account of one event in the socket.
    event_cost: u32,
    /// Events wait for room in the socket.
    pub(super) wants_room: bool,
    /// In the socket, or with the user's thread that sends them, or taken since the last look at it.
    unread: VecDeque<Sent>,
    /// By their order.
    waiting: BTreeMap<u64, Box<Sent>>,
    /// Places of the waiting events of each identifier, about it or belonging to it.
    places: BTreeMap<IdKey, Vec<u64>>,
    pushed: u64,
    /// Waiting events of the program to itself.
    own_waiting: usize,
}

impl EventChannel {
    /// A channel, and the program's end. Threads of `account` send in it and close ours; `charge`
    /// is of [`CHANNEL_BYTES`], and lasts until the program has received the events that were
    /// written.
    pub(super) fn new(session: SessionId, account: ClientAccount, charge: Charge) -> Result<(Self, OwnedFd), Errno> {
        let (ours, theirs) = event_sockets(SockFlag::SOCK_CLOEXEC)?;
        setsockopt(&ours, sockopt::SndBuf, &SOCKET_BYTES)?;
        let channel = Self {
            session,
            event_cost: cost_of_event(&ours, &theirs)?,
            socket: ClientSocket::before_client(ours, account, Box::new(charge)),
            wants_room: false,
            unread: VecDeque::new(),
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            pushed: 0,
            own_waiting: 0,
        };
        Ok((channel, theirs))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Threads of the user report by this token.
    pub(super) fn report_to(&self, reports: &ThreadReports, token: u64) {
        self.socket.report_to(reports, token);
    }

    /// An event for the program, after the others.
    pub(super) fn push(&mut self, owner: IdKey, event: CmChannelEvent) {
        self.pushed += 1;
        self.own_waiting += usize::from(is_own(&event));
        self.waiting.insert(self.pushed, Box::new((owner, event)));
        for key in keys_of(owner, &event) {
            self.places.entry(key).or_default().push(self.pushed);
        }
    }

    /// Takes a waiting event out.
    fn remove(&mut self, place: u64) -> Option<Sent> {
        let (owner, event) = *self.waiting.remove(&place)?;
        self.own_waiting -= usize::from(is_own(&event));
        for key in keys_of(owner, &event) {
            if let Some(places) = self.places.get_mut(&key) {
                places.retain(|other| *other != place);
                if places.is_empty() {
                    self.places.remove(&key);
                }
            }
        }
        Some((owner, event))
    }

    /// The socket has room: those go on that found none.
    pub(super) fn on_room(&self) {
        self.socket.send_waiting();
    }

    /// Writes as much as there is room for.
    pub(super) fn write(&mut self) -> WriteState {
        self.forget_taken();
        while let Some((&place, sent)) = self.waiting.first_key_value() {
            if self.socket.waiting() >= SENDING_MAX {
                break;
            }
            match self.socket.send(sent.1.as_bytes(), Vec::new()) {
                SentMessage::Full => break,
                SentMessage::Yes | SentMessage::Later => {
                    let sent = self.remove(place);
                    if self.unread.len() == UNREAD_MAX {
                        self.unread.pop_front();
                    }
                    self.unread.extend(sent);
                }
                // The program has closed its end.
                SentMessage::Closed => {
                    self.waiting.clear();
                    self.places.clear();
                    self.own_waiting = 0;
                }
            }
        }
        match self.socket.sending() {
            SendingState::UnderWay(_) => WriteState::UnderWay,
            SendingState::Full => WriteState::Full,
            SendingState::Idle if !self.waiting.is_empty() => WriteState::Full,
            SendingState::Idle | SendingState::Closed => WriteState::Written,
        }
    }

    /// Forgets the written events that the program has taken: it takes them in order, and the
    /// kernel knows how many are left. An unknown number counts as all.
    fn forget_taken(&mut self) {
        // In this order: an event that is sent meanwhile counts twice.
        let waiting = self.socket.waiting();
        let Some(cost) = unread_cost(&self.socket) else { return };
        let left = cost.div_ceil(self.event_cost) as usize + waiting;
        let taken = self.unread.len().saturating_sub(left);
        self.unread.drain(..taken);
    }

    /// Number of events of an identifier that its program has not taken; requests, of a listener.
    pub(super) fn untaken(&mut self, owner: IdKey) -> usize {
        self.forget_taken();
        let written = self.unread.iter().filter(|(of, _)| *of == owner).count();
        written + self.places.get(&owner).map_or(0, Vec::len)
    }

    /// Takes the events of an identifier that its program has not taken: of those that were
    /// written, the ones later than `taken`. And all that wait, because the program cannot have
    /// taken them: they would stay without their identifier.
    pub(super) fn take_events(&mut self, owner: IdKey, taken: u64) -> Vec<CmChannelEvent> {
        let is_moved = |(of, event): &Sent| *of == owner && event.sequence > taken;
        let written = self.unread.iter().filter(|sent| is_moved(sent)).map(|(_, event)| *event);
        let mut moved: Vec<_> = written.collect();
        self.unread.retain(|sent| !is_moved(sent));
        for place in self.places.get(&owner).cloned().unwrap_or_default() {
            if self.waiting.get(&place).is_some_and(|sent| sent.0 == owner) {
                moved.extend(self.remove(place).map(|(_, event)| event));
            }
        }
        moved
    }

    /// Number of events of the program to itself that wait for room.
    pub(super) const fn own_waiting(&self) -> usize {
        self.own_waiting
    }

    /// Those that [`Self::take_events`] would take.
    pub(super) fn own_events(&self, owner: IdKey, taken: u64) -> usize {
        let is_counted = |(of, event): &&Sent| *of == owner && is_own(event);
        let written = self.unread.iter().filter(|(_, event)| event.sequence > taken).filter(is_counted).count();
        let places = self.places.get(&owner).into_iter().flatten();
        let waiting = places.filter_map(|place| self.waiting.get(place).map(AsRef::as_ref));
        written + waiting.filter(is_counted).count()
    }

    /// Takes the requests of a listener that its program has not taken: later than `taken`. Returns
    /// their new identifiers.
    pub(super) fn take_requests(&mut self, listener: IdKey, taken: u64) -> Vec<u32> {
        let requests = self.take_events(listener, taken).into_iter();
        requests.filter(|event| event.kind == cm_event::CONNECT_REQUEST).map(|event| event.id).collect()
    }

    /// Drops the waiting events of a destroyed identifier or membership.
    pub(super) fn forget(&mut self, key: IdKey) {
        for place in self.places.get(&key).cloned().unwrap_or_default() {
            self.remove(place);
        }
    }
}

/// The kernel's account of one event in a socket, by one that is sent and received.
fn cost_of_event(ours: &OwnedFd, theirs: &OwnedFd) -> Result<u32, Errno> {
    let mut event = CmChannelEvent::new_zeroed();
    send(ours.as_raw_fd(), event.as_bytes(), MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)?;
    let cost = unread_cost(ours).filter(|cost| *cost > 0).ok_or(Errno::ENOSYS);
    recv(theirs.as_raw_fd(), event.as_mut_bytes(), MsgFlags::MSG_DONTWAIT)?;
    cost
}

/// The program has sent it to itself.
const fn is_own(event: &CmChannelEvent) -> bool {
    matches!(event.kind, cm_event::USER | cm_event::INTERNAL)
}

/// The identifiers that an event is of: the one that it belongs to, and the one that it is about.
fn keys_of(owner: IdKey, event: &CmChannelEvent) -> impl Iterator<Item = IdKey> {
    let about = IdKey { number: event.id, ..owner };
    std::iter::once(owner).chain((about != owner).then_some(about))
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use nix::{
        sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        time::{ClockId, clock_gettime},
    };
    use roced_abi::control::limit::AccountResource;
    use roced_cm::identifiers::OwnerId;
    use roced_memory::accounts::ClientAccounts;
    use roced_types::AccountId;
    use zerocopy::FromBytes;

    use super::*;
    use crate::{
        accounts::ledger::{Ledger, SharedPool},
        config::AccountLimits,
    };

    fn key(number: u32) -> IdKey {
        IdKey { owner: OwnerId(1), number }
    }

    fn event(number: u32, sequence: u64, kind: u32) -> CmChannelEvent {
        CmChannelEvent { id: number, owner: number, sequence, kind, ..FromZeros::new_zeroed() }
    }

    fn take(theirs: &OwnedFd) -> Option<u64> {
        let mut bytes = [0; 512];
        let length = recv(theirs.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT).ok()?;
        Some(CmChannelEvent::read_from_bytes(&bytes[..length]).expect("one event a message").sequence)
    }

    fn channel() -> (EventChannel, OwnedFd) {
        let ledger = Ledger::new(&AccountLimits::default(), Vec::new(), []);
        let memory = SharedPool::Daemon(AccountResource::DaemonMemory);
        let charge = ledger.take(AccountId(1), memory, CHANNEL_BYTES as u64).expect("below the limit");
        EventChannel::new(SessionId(1), ClientAccounts::default().account(AccountId(1)), charge).expect("a socket pair")
    }

    /// By a thread of the user's or here.
    fn written(channel: &mut EventChannel) -> WriteState {
        loop {
            match channel.write() {
                WriteState::UnderWay => thread::yield_now(),
                state => return state,
            }
        }
    }

    #[test]
    fn an_identifier_takes_the_events_along_that_were_not_taken() {
        let (mut channel, theirs) = channel();
        for sequence in 1..=6 {
            channel.push(key(sequence as u32 % 2), event(sequence as u32 % 2, sequence, 0));
        }
        assert_eq!(written(&mut channel), WriteState::Written);
        assert_eq!([take(&theirs), take(&theirs)], [Some(1), Some(2)]);
        channel.push(key(1), event(1, 7, 0));
        let moved: Vec<u64> = channel.take_events(key(1), 1).iter().map(|event| event.sequence).collect();
        assert_eq!(moved, [3, 5, 7], "in order, those in the socket and those that wait");
    }

    /// A message to a file walks all entries of epoll sets that wait for it.
    #[test]
    fn very_many_waiters_are_woken_by_a_thread_of_their_user() {
        let (mut channel, theirs) = channel();
        let duplicates: Vec<OwnedFd> = (0..400).map(|_| theirs.try_clone().expect("room")).collect();
        let sets = (0..400).map(|_| {
            let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll set");
            for file in &duplicates {
                set.add(file, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("max_user_watches allows it");
            }
            set
        });
        let sets: Vec<_> = sets.collect();
        thread::sleep(Duration::from_millis(150));
        let computed = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("it counts"));
        let before = computed();
        for sequence in 1..=10 {
            channel.push(key(1), event(1, sequence, 0));
            channel.write();
        }
        let took = computed() - before;
        assert!(took < Duration::from_millis(10), "{took:?}");
        assert_eq!(channel.untaken(key(1)), 10, "those with the thread count");
        assert_eq!(written(&mut channel), WriteState::Written);
        assert_eq!(
            [(); 11].map(|()| take(&theirs)),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0].map(|at| (at > 0).then_some(at))
        );
        drop(sets);
    }

    #[test]
    fn a_program_that_lies_about_taken_events_leaves_none() {
        let (mut channel, _theirs) = channel();
        let mut sequence = 0;
        while written(&mut channel) == WriteState::Written {
            sequence += 1;
            channel.push(key(1), event(1, sequence, 0));
        }
        let moved: Vec<u64> = channel.take_events(key(1), u64::MAX).iter().map(|event| event.sequence).collect();
        assert_eq!((moved, channel.waiting.len()), (vec![sequence], 0));
    }

    #[test]
    fn requests_that_were_not_taken_go_with_their_listener() {
        let (mut channel, theirs) = channel();
        for number in 10..14 {
            let request = CmChannelEvent { owner: 1, ..event(number, number.into(), cm_event::CONNECT_REQUEST) };
            channel.push(key(1), request);
            if number < 13 {
                written(&mut channel);
            }
        }
        channel.push(key(2), event(2, 20, 0));
        assert_eq!(take(&theirs), Some(10));
        assert_eq!(channel.take_requests(key(1), 10), [11, 12, 13], "in the socket, and one that waits");
        assert_eq!(channel.waiting.len(), 1, "that of another identifier");
    }

    #[test]
    fn a_program_that_takes_nothing_fills_its_own_channel_alone() {
        let (mut channel, theirs) = channel();
        let mut pushed = 0;
        while written(&mut channel) == WriteState::Written {
            pushed += 1;
            channel.push(key(1), event(1, pushed, 0));
            assert!(pushed < 10_000, "a socket has an end");
        }
        assert_eq!(channel.untaken(key(1)) as u64, pushed);
        assert!((13..=IN_SOCKET_MAX as u64 + 1).contains(&pushed), "{pushed} events of a socket, and one that waits");
        let (mut taken, begin) = (0, Instant::now());
        while taken < pushed {
            // On a busy machine the one that waits is written a moment after it has room.
            if let Some(sequence) = take(&theirs) {
                taken += 1;
                assert_eq!(sequence, taken, "in order");
            }
            written(&mut channel);
            assert!(begin.elapsed() < Duration::from_secs(10), "{taken} of {pushed} events");
        }
        assert_eq!(take(&theirs), None);
        assert_eq!(channel.untaken(key(1)), 0);
    }

    /// The worst that a program does to itself: nothing of it is beyond the charge.
    #[test]
    fn a_full_channel_takes_no_more_memory_than_it_is_charged_for() {
        let (mut channel, theirs) = channel();
        let mut sequence = 0;
        let mut fill = |channel: &mut EventChannel| {
            while written(channel) == WriteState::Written || channel.own_waiting() < OWN_EVENTS_MAX {
                sequence += 1;
                channel.push(key(1), event(1, sequence, cm_event::USER));
            }
        };
        for _ in 0..4 {
            fill(&mut channel);
            for _ in 0..10 {
                take(&theirs).expect("it is full");
            }
        }
        fill(&mut channel);
        let kernel = unread_cost(&channel.socket).expect("a socket") as usize;
        let heap = channel.unread.capacity() * size_of::<Sent>() + channel.waiting.len() * size_of::<Sent>();
        assert_eq!((channel.own_waiting(), channel.own_events(key(1), 0)), (OWN_EVENTS_MAX, channel.untaken(key(1))));
        assert!(kernel + heap + SOCKETS_BYTES <= CHANNEL_BYTES, "{kernel} {heap} {CHANNEL_BYTES}");
        const { assert!(CHANNEL_BYTES <= 100 << 10) };
        let moved = channel.take_events(key(1), sequence - 1);
        assert_eq!((moved.len(), channel.own_waiting(), channel.waiting.len()), (OWN_EVENTS_MAX, 0, 0));
    }

    #[test]
    fn each_event_that_a_program_takes_is_noticed() {
        let (mut channel, theirs) = channel();
        assert_eq!((channel.untaken(key(1)), take(&theirs)), (0, None), "the measurement leaves nothing");
        for sequence in 1..=20 {
            channel.push(key(1), event(1, sequence, 0));
            written(&mut channel);
        }
        channel.push(key(2), event(2, 21, 0));
        written(&mut channel);
        channel.push(key(1), event(1, 22, 0));
        for left in (1..=21).rev() {
            assert_eq!(channel.untaken(key(1)), left, "in the socket, and one that waits");
            assert!(take(&theirs).is_some());
        }
        assert_eq!((channel.untaken(key(1)), channel.untaken(key(2))), (1, 0));
    }

    #[test]
    fn a_destroyed_identifier_has_no_events_that_wait() {
        let (mut channel, theirs) = channel();
        channel.push(key(1), event(1, 1, 0));
        channel.push(key(2), event(2, 2, 0));
        channel.forget(key(1));
        written(&mut channel);
        assert_eq!([take(&theirs), take(&theirs)], [Some(2), None]);
    }

    /// Its event belongs to the identifier that joined, and is about the membership.
    #[test]
    fn the_event_of_a_membership_goes_with_it_and_with_its_identifier() {
        let joined = |owner: u32, membership, sequence| CmChannelEvent {
            owner,
            ..event(membership, sequence, cm_event::MULTICAST_JOIN)
        };
        let (mut channel, theirs) = channel();
        for (sequence, (owner, membership)) in [(1, 10), (1, 11), (2, 20), (3, 30)].into_iter().enumerate() {
            channel.push(key(owner), joined(owner, membership, sequence as u64 + 1));
        }
        channel.forget(key(10));
        assert_eq!((channel.waiting.len(), channel.untaken(key(1))), (3, 1), "a membership that is left");
        channel.forget(key(2));
        assert_eq!((channel.waiting.len(), channel.untaken(key(2))), (2, 0), "the identifier of one");
        let moved = channel.take_events(key(3), 0);
        assert_eq!(moved.iter().map(|event| (event.owner, event.id)).collect::<Vec<_>>(), [(3, 30)]);
        assert_eq!(channel.take_events(key(11), 0), [], "a membership does not move alone");
        assert_eq!(channel.take_requests(key(1), 0), [] as [u32; 0], "it is no request");
        assert!(channel.places.is_empty());
        channel.push(key(1), joined(1, 11, 5));
        written(&mut channel);
        assert_eq!([take(&theirs), take(&theirs)], [Some(5), None]);
    }

    #[test]
    fn another_session_has_identifiers_of_the_same_number() {
        let (mut channel, theirs) = channel();
        channel.push(key(5), event(5, 1, 0));
        channel.forget(IdKey { owner: OwnerId(2), number: 5 });
        written(&mut channel);
        assert_eq!(take(&theirs), Some(1));
    }

    #[test]
    fn events_of_others_are_not_looked_at() {
        let (mut channel, _theirs) = channel();
        for number in 1..=30_000 {
            channel.push(key(number), event(number, number.into(), 0));
        }
        for number in 1..=30_000 {
            assert_eq!(channel.take_events(key(40_000), 0), []);
            channel.forget(key(number));
            assert_eq!(channel.waiting.len(), 30_000 - number as usize);
        }
        assert!(channel.places.is_empty());
    }

    #[test]
    fn events_of_a_destroyed_channel_count_until_the_program_has_taken_them() {
        let ledger = Ledger::new(&AccountLimits::default(), Vec::new(), []);
        let memory = SharedPool::Daemon(AccountResource::DaemonMemory);
        let left = || ledger.left(AccountId(1), memory);
        let (all, account) = (left(), ClientAccounts::default().account(AccountId(1)));
        let made = || {
            let charge = ledger.take(AccountId(1), memory, CHANNEL_BYTES as u64).expect("below the limit");
            EventChannel::new(SessionId(1), account.clone(), charge).expect("a socket pair")
        };
        drop(made());
        assert_eq!(left(), all, "nothing was in it");
        let (mut channel, theirs) = made();
        channel.push(key(1), event(1, 1, 0));
        assert_eq!(written(&mut channel), WriteState::Written);
        drop(channel);
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            let begin = Instant::now();
            while !holds() {
                assert!(begin.elapsed() < Duration::from_secs(20), "never: {what}");
                thread::yield_now();
            }
        };
        until("it has ended", &|| account.chores() == 0);
        assert!(!account.leaves_much_unread());
        assert_eq!(left(), all - CHANNEL_BYTES as u64, "the kernel keeps its event");
        assert_eq!(take(&theirs), Some(1));
        assert!(!account.leaves_much_unread());
        until("it is closed", &|| left() == all);
    }
}
