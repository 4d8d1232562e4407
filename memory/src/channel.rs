//! Completion channels: sockets by which a program hears of completions.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, send, setsockopt, shutdown, socketpair, sockopt,
    },
};
use roced_abi::{
    arm::{self, CompletionRequest},
    control::ChannelEvent,
};
use roced_types::Cqn;
use zerocopy::IntoBytes;

use super::{
    accounts::ClientAccount,
    arm_word::ArmWord,
    shared_fd::SharedFd,
    waking::{OwesEvents, WakeTrust},
};

/// Our end of a completion channel. A socket and not an eventfd: the flags of an eventfd belong to
/// both sides, so that a client could make our write block; MSG_DONTWAIT on our own end always
/// holds. And when we die the client's end turns readable by itself. It is shut down in the other
/// direction: nothing can be left in our end.
///
/// The thread that completes sends the event, or the user's thread if that may take long
/// (`waking.rs`).
#[derive(Debug)]
pub struct CqChannel {
    socket: SharedFd,
    account: Option<ClientAccount>,
    trust: WakeTrust,
    /// Some queue owes events.
    owes: AtomicBool,
    queues: Mutex<Vec<Weak<CqEvents>>>,
}

/// Events of a completion queue.
#[derive(Debug)]
pub(crate) struct CqEvents {
    pub(crate) cqn: Cqn,
    pub(crate) arm: ArmWord,
    /// Events that the user's thread is to send: of requests for solicited completions in the lower
    /// half, of other requests in the upper half.
    owed: AtomicU32,
}

/// One event in the upper half.
const ONE_OF_ANY: u32 = 1 << 16;

/// Events of one kind that a queue owes, about: more are one.
const OWED_MAX: u32 = 1 << 12;

impl CqEvents {
    pub(crate) fn new(cqn: Cqn, arm: ArmWord) -> Self {
        Self { cqn, arm, owed: AtomicU32::new(0) }
    }
}

impl CqChannel {
    /// Room in the socket for one event that the client has not taken yet, bytes. An event occupies
    /// 768 there (a socket buffer, on Linux 6.18), and the kernel doubles the requested size.
    const EVENT_BYTES: usize = 1024;

    /// Makes a channel: ours, and the client's end. Threads of `account` send in it if that may
    /// take long, and close ours.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(account: Option<ClientAccount>) -> Result<(Arc<Self>, OwnedFd), Errno> {
        let (ours, theirs) = event_sockets(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
        let channel = Arc::new(Self {
            socket: SharedFd::new(ours, account.clone()),
            account,
            trust: WakeTrust::of_new(),
            owes: AtomicBool::new(false),
            queues: Mutex::default(),
        });
        channel.make_room(1)?;
        if let Some(account) = &channel.account {
            let watched = Arc::downgrade(&channel);
            account.waking().watch(watched);
        }
        Ok((channel, theirs))
    }

    /// Makes room for one event of each of `queues` completion queues; a client that takes none
    /// then occupies no more than that.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make_room(&self, queues: u32) -> Result<(), Errno> {
        let bytes = queues as usize * Self::EVENT_BYTES;
        // Without the capability to pass the system's limit we get that limit: some 200 events.
        setsockopt(&self.socket, sockopt::SndBufForce, &bytes)
            .or_else(|_| setsockopt(&self.socket, sockopt::SndBuf, &bytes))
    }

    /// A queue reports to this channel.
    pub(crate) fn add_queue(&self, queue: &Arc<CqEvents>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(queue));
    }

    /// Sends the event of a request, here or in the user's thread. No lock and no allocation, and
    /// one system call if the user's thread sends it.
    pub(crate) fn notify(&self, queue: &CqEvents, wanted: CompletionRequest) {
        let Some(account) = &self.account else { return self.send_or_ask_again(queue, wanted) };
        let sent = account.waking().here(&self.trust, || {
            self.send_or_ask_again(queue, wanted);
            ((), true)
        });
        if sent.is_some() {
            return;
        }
        let (one, seen) = match wanted {
            CompletionRequest::Any => (ONE_OF_ANY, queue.owed.load(Ordering::Relaxed) >> 16),
            CompletionRequest::Solicited => (1, queue.owed.load(Ordering::Relaxed) & (ONE_OF_ANY - 1)),
        };
        if seen < OWED_MAX {
            queue.owed.fetch_add(one, Ordering::Release);
        }
        self.owes.store(true, Ordering::Release);
        account.waking().owe();
    }

    /// An event that finds no room has its request made again: the client did not take earlier
    /// events, so its descriptor is readable as it is. The next completion tries again.
    fn send_or_ask_again(&self, queue: &CqEvents, wanted: CompletionRequest) {
        if !self.send(queue.cqn) {
            arm::arm(queue.arm.word(), wanted);
        }
    }

    /// True if the event is on its way, or can never be received.
    pub(crate) fn send(&self, cqn: Cqn) -> bool {
        let event = ChannelEvent { cqn: cqn.0 };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        !matches!(
            send(self.socket.as_fd().as_raw_fd(), event.as_bytes(), flags),
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM)
        )
    }
}

impl Drop for CqChannel {
    /// Events that the client has not taken are memory of the kernel, and count for the user.
    fn drop(&mut self) {
        self.socket.end_unread();
    }
}

impl OwesEvents for CqChannel {
    fn send_owed(&self) {
        let Some(account) = &self.account else { return };
        if !self.owes.swap(false, Ordering::AcqRel) {
            return;
        }
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for queue in queues.iter().filter_map(Weak::upgrade) {
            let owed = queue.owed.swap(0, Ordering::AcqRel);
            let kinds = [(CompletionRequest::Any, owed >> 16), (CompletionRequest::Solicited, owed & (ONE_OF_ANY - 1))];
            for (wanted, count) in kinds {
                for _ in 0..count {
                    account.waking().measured(&self.trust, || {
                        self.send_or_ask_again(&queue, wanted);
                        ((), true)
                    });
                }
            }
        }
    }
}

/// A pair of sockets for messages from the first to the second, the client's. The first is shut
/// down for reading before the client has the second: descriptors that are sent into it would be
/// closed by the thread that closes it.
///
/// # Errors
/// The kernel's.
pub fn event_sockets(flags: SockFlag) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    shutdown(ours.as_raw_fd(), Shutdown::Read)?;
    Ok((ours, theirs))
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use nix::{
        sys::{
            epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
            socket::recv,
        },
        time::{ClockId, clock_gettime},
    };
    use roced_abi::layout::{CqLayout, armed};
    use roced_types::{AccountId, SessionId};

    use super::*;
    use crate::{
        accounts::ClientAccounts,
        queues::new_cq,
        quota::Room,
        thread_start::refused::{self, NoThreads},
    };

    const CQN: Cqn = Cqn(9);

    /// Of a user of its own.
    fn channel(accounts: &ClientAccounts, number: u32) -> (Arc<CqChannel>, Arc<CqEvents>, OwnedFd) {
        let (ours, theirs) = CqChannel::create(Some(accounts.account(AccountId(number)))).expect("a socket pair");
        let layout = CqLayout::new(4, 1).expect("small");
        let (rings, _memfd) = new_cq(CQN, SessionId(1), layout, Some(&ours), Room::default()).expect("a memfd");
        (ours, rings[0].events(), theirs)
    }

    /// Entries of epoll sets that wait for a file: a message to it walks all of them.
    fn long_queue(file: &OwnedFd) -> (Vec<OwnedFd>, Vec<Epoll>) {
        let duplicates: Vec<OwnedFd> = (0..400).map(|_| file.try_clone().expect("room")).collect();
        let sets = (0..400).map(|_| {
            let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll set");
            for file in &duplicates {
                set.add(file, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("max_user_watches allows it");
            }
            set
        });
        let sets = sets.collect();
        (duplicates, sets)
    }

    fn computed() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("it counts").into()
    }

    fn has_event(theirs: &OwnedFd) -> bool {
        recv(theirs.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT) == Ok(4)
    }

    fn receive_all(theirs: &OwnedFd, events: u32) {
        let begin = Instant::now();
        for number in 0..events {
            while !has_event(theirs) {
                assert!(begin.elapsed() < Duration::from_secs(60), "event {number} of {events}");
                thread::yield_now();
            }
        }
        assert!(!has_event(theirs), "one event for each request");
    }

    #[test]
    fn an_event_to_a_few_waiters_is_sent_at_once() {
        let accounts = ClientAccounts::default();
        let (ours, queue, theirs) = channel(&accounts, 1);
        // A machine without a free core may take longer than a new channel is trusted for.
        let sent_at_once = (0..100).filter(|_| {
            ours.notify(&queue, CompletionRequest::Any);
            let at_once = has_event(&theirs);
            if !at_once {
                receive_all(&theirs, 1);
            }
            at_once
        });
        assert!(sent_at_once.count() > 50);
    }

    #[test]
    fn very_many_waiters_are_woken_by_a_thread_of_their_user() {
        let accounts = ClientAccounts::default();
        let (ours, queue, theirs) = channel(&accounts, 1);
        let waiters = long_queue(&theirs);
        thread::sleep(Duration::from_millis(150));
        let before = computed();
        for _ in 0..10 {
            ours.notify(&queue, CompletionRequest::Any);
            ours.notify(&queue, CompletionRequest::Solicited);
        }
        let took = computed() - before;
        assert!(took < Duration::from_millis(10), "{took:?}");
        receive_all(&theirs, 20);
        assert_eq!(accounts.slow_wakes().into_keys().collect::<Vec<_>>(), [AccountId(1)]);
        drop(waiters);

        let (ours, queue, theirs) = channel(&accounts, 1);
        ours.notify(&queue, CompletionRequest::Any);
        assert!(accounts.account(AccountId(1)).waking().is_distrusted(), "the user is, for a minute");
        receive_all(&theirs, 1);
        let (ours, queue, theirs) = channel(&accounts, 2);
        ours.notify(&queue, CompletionRequest::Any);
        receive_all(&theirs, 1);
        assert!(!accounts.account(AccountId(2)).waking().is_distrusted());
    }

    /// In a process of its own, because the limit is that of the process.
    #[test]
    fn a_thread_that_cannot_begin_is_tried_again_and_its_work_waits() {
        if !refused::is_alone("channel::tests::a_thread_that_cannot_begin_is_tried_again_and_its_work_waits") {
            return;
        }
        let accounts = ClientAccounts::default();
        let no_threads = NoThreads::begin();
        let (ours, queue, theirs) = channel(&accounts, 1);
        assert!(accounts.are_threads_missing(), "the channel has no thread");
        thread::sleep(Duration::from_millis(150));
        ours.notify(&queue, CompletionRequest::Any);
        let (done, is_done) = std::sync::mpsc::channel();
        accounts
            .account(AccountId(1))
            .waking()
            .add(move || done.send(thread::current().id()).expect("it is waited for"));
        accounts.begin_missing_threads();
        assert!(accounts.are_threads_missing(), "nor this time");
        assert!(is_done.try_recv().is_err(), "the thread that asks does not do it");
        assert!(!has_event(&theirs), "an event is not sent by a worker, because it was long ago that one was");
        drop(no_threads);
        accounts.begin_missing_threads();
        assert!(!accounts.are_threads_missing());
        assert_ne!(is_done.recv_timeout(Duration::from_secs(20)), Ok(thread::current().id()));
        receive_all(&theirs, 1);
    }

    #[test]
    fn owed_events_without_room_are_asked_for_again() {
        let accounts = ClientAccounts::default();
        let (ours, queue, theirs) = channel(&accounts, 1);
        while ours.send(CQN) {}
        let waiters = long_queue(&theirs);
        thread::sleep(Duration::from_millis(150));
        ours.notify(&queue, CompletionRequest::Solicited);
        let begin = Instant::now();
        while queue.arm.word().load(Ordering::Relaxed) != armed::SOLICITED {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::yield_now();
        }
        drop(waiters);
    }

    #[test]
    fn an_event_for_each_completion_queue_fits_a_channel_and_not_many_more() {
        let most = if nix::unistd::getuid().is_root() { 4096 } else { 100 };
        for queues in [1, 3, 100, most] {
            let (ours, theirs) = CqChannel::create(None).expect("a socket pair");
            ours.make_room(queues).expect("a size");
            let fitting = (0..100_000).take_while(|_| ours.send(CQN)).count();
            assert!(fitting >= queues as usize, "{fitting} events of {queues} queues fit");
            assert!(fitting <= 16 + 4 * queues as usize, "{fitting} events of {queues} queues fit");
            drop(theirs);
            // A process that another test begins has the reader's end until it executes its program.
            let begin = Instant::now();
            while !ours.send(CQN) {
                assert!(begin.elapsed() < Duration::from_secs(20), "there is no reader to want it");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn events_in_many_destroyed_channels_are_known_until_they_are_taken() {
        let accounts = ClientAccounts::default();
        let account = accounts.account(AccountId(1));
        let fill = |channels: u32| -> Vec<_> {
            let made = (0..channels).map(|_| CqChannel::create(Some(account.clone())).expect("a socket pair"));
            made.map(|(ours, theirs)| {
                assert!(ours.send(CQN));
                theirs
            })
            .collect()
        };
        let eventually = |what: &str, holds: &dyn Fn() -> bool| {
            let begin = Instant::now();
            while !holds() {
                assert!(begin.elapsed() < Duration::from_secs(20), "never: {what}");
                thread::sleep(Duration::from_millis(1));
            }
        };
        let some = fill(255);
        eventually("all were ended", &|| account.chores() == 0);
        assert!(!account.leaves_much_unread());
        let last = fill(1);
        eventually("one more", &|| account.leaves_much_unread());
        assert!(!accounts.account(AccountId(2)).leaves_much_unread());
        receive_all(&last[0], 1);
        drop(some);
        eventually("they are closed", &|| !account.leaves_much_unread());
    }
}
