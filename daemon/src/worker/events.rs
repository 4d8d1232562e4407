//! Events of workers for the control thread: reports for a session, or reasons to end it.
//!
//! All workers share one bounded queue and one eventfd. A worker that finds the queue full keeps
//! its event and tries again in the next poll iteration; nothing is lost.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use crossbeam::queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use roced_transport::{
    qp::{KeyChange, QpFailure},
    turns::class_pause::PauseStorm,
};
use roced_types::{DeviceId, SessionId};

use crate::worker::client_fault::ClientFault;

/// Events that wait at a time. The control thread empties the queue within microseconds unless it
/// is stuck; a guess.
const DEPTH: usize = 4096;

/// Something that happened on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEvent {
    /// A session violated the ABI. The worker has stopped taking its work.
    Fault {
        /// The session.
        session: SessionId,
        /// The fault.
        fault: ClientFault,
    },
    /// A queue pair waits for a change of keys.
    Key {
        /// The session.
        session: SessionId,
        /// The event.
        change: KeyChange,
    },
    /// A queue pair failed.
    Failed {
        /// The session.
        session: SessionId,
        /// Queue pair, peer and cause.
        failure: QpFailure,
    },
    /// An event of an object, for its client.
    Object {
        /// The session.
        session: SessionId,
        /// The number by which its client knows it.
        handle: u32,
        /// An `abi::control::event`.
        kind: u32,
    },
    /// A storm of pauses of a class began or ended.
    PauseStorm {
        /// The device.
        device: DeviceId,
        /// The storm.
        storm: PauseStorm,
    },
    /// The worker waited for pages of mapped memory.
    Stalled {
        /// Of that which was read and of that which was written, or one twice.
        sessions: [SessionId; 2],
        /// For so long, in all of a poll iteration.
        time: Duration,
    },
}

#[derive(Debug)]
struct SharedEvents {
    queue: ArrayQueue<WorkerEvent>,
    doorbell: EventFd,
}

/// A worker's side.
#[derive(Debug)]
pub struct EventSender {
    shared: Arc<SharedEvents>,
    unannounced: bool,
}

/// The control thread's side.
#[derive(Debug)]
pub struct EventReceiver {
    shared: Arc<SharedEvents>,
}

/// One receiver, and a sender for each of `workers`.
///
/// # Errors
/// The kernel's, when it gives no eventfd.
pub fn events(workers: usize) -> io::Result<(EventReceiver, Vec<EventSender>)> {
    let doorbell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let shared = Arc::new(SharedEvents { queue: ArrayQueue::new(DEPTH), doorbell });
    let senders = (0..workers).map(|_| EventSender { shared: Arc::clone(&shared), unannounced: false }).collect();
    Ok((EventReceiver { shared }, senders))
}

impl EventSender {
    /// False when the queue is full: keep the event and try again.
    pub fn push(&mut self, event: WorkerEvent) -> bool {
        let pushed = self.shared.queue.push(event).is_ok();
        self.unannounced |= pushed;
        pushed
    }

    /// No room at the moment.
    pub fn is_full(&self) -> bool {
        self.shared.queue.is_full()
    }

    /// Wakes the control thread when something was pushed since the last call. Once per poll
    /// iteration.
    pub fn announce(&mut self) {
        if self.unannounced {
            self.unannounced = false;
            // A counter that is full (EAGAIN) is as readable as can be.
            let _ = self.shared.doorbell.write(1);
        }
    }
}

impl EventReceiver {
    /// The next event. Call until `None` after [`Self::clear`].
    pub fn pop(&self) -> Option<WorkerEvent> {
        self.shared.queue.pop()
    }

    /// Takes up to `budget` events. If some are left the fd stays readable: a client can cause an
    /// endless stream of key changes, and must not keep the control thread from other clients.
    pub fn drain(&self, budget: usize, mut on_event: impl FnMut(WorkerEvent)) {
        self.clear();
        for _ in 0..budget {
            let Some(event) = self.pop() else { return };
            on_event(event);
        }
        // A counter that is full (EAGAIN) is as readable as can be.
        let _ = self.shared.doorbell.write(1);
    }

    /// Makes the fd unreadable until the next event; before popping, so that none is overlooked.
    pub fn clear(&self) {
        // EAGAIN when nothing was announced.
        let _ = self.shared.doorbell.read();
    }
}

impl AsFd for EventReceiver {
    /// Readable when there may be an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u32) -> WorkerEvent {
        WorkerEvent::Object { session: SessionId(1), handle: number, kind: 1 }
    }

    #[test]
    fn endless_events_of_one_session_leave_time_for_others() {
        let (receiver, mut senders) = events(1).expect("an eventfd");
        let sender = &mut senders[0];
        assert!(sender.push(event(0)));
        sender.announce();
        // Each that is taken brings another, as a queue pair with a ring full of BIND_MWs does.
        for _ in 0..3 {
            let mut taken = 0;
            receiver.drain(8, |_| {
                taken += 1;
                assert!(sender.push(event(taken)));
            });
            assert_eq!(taken, 8, "no more than its turn");
            assert_eq!(receiver.shared.doorbell.read(), Ok(1), "and it has another");
        }
        receiver.drain(8, |_| {});
        assert_eq!(receiver.shared.doorbell.read(), Err(nix::errno::Errno::EAGAIN), "nothing is left");
    }

    #[test]
    fn a_full_queue_says_so_and_an_event_is_announced_once() {
        let (receiver, mut senders) = events(2).expect("an eventfd");
        for number in 0..DEPTH as u32 {
            assert!(senders[number as usize % 2].push(event(number)));
        }
        assert!(senders[0].is_full() && !senders[0].push(event(0)));
        senders[0].announce();
        receiver.clear();
        for number in 0..DEPTH as u32 {
            assert_eq!(receiver.pop(), Some(event(number)));
        }
        assert_eq!(receiver.pop(), None);
        senders[0].announce();
        assert_eq!(receiver.shared.doorbell.read(), Err(nix::errno::Errno::EAGAIN));
        senders[1].announce();
        assert_eq!(receiver.shared.doorbell.read(), Ok(1));
    }
}
