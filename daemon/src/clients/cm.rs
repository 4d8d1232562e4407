//! The connection manager's part of the clients: its time, its datagrams, and its event channels in
//! the clients' epoll set.

use std::time::Instant;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use roced_cm::identifiers::IdReport;

use super::{CM_CHANNEL, Clients};
use crate::{
    environment::Environment,
    worker::received_mads::{MadRoom, ReceivedMad},
};

impl Clients {
    /// When [`Self::on_cm_deadline`] wants to be called.
    pub fn cm_deadline(&self) -> Option<Instant> {
        self.registry.cm.deadline()
    }

    /// Time of the connection manager has passed.
    pub fn on_cm_deadline(&mut self, now: Instant, environment: &mut Environment<'_>) {
        if self.cm_deadline().is_some_and(|due| due <= now) {
            self.registry.cm.on_deadline(environment);
        }
    }

    /// Identifiers of the connection manager, for operators.
    pub fn cm_reports(&self) -> Vec<IdReport> {
        self.registry.cm.reports()
    }

    /// Counters of the connection manager, for operators.
    pub fn cm_counters(&self) -> Vec<(&'static str, u64)> {
        self.registry.cm.counters()
    }

    /// Room for datagrams that workers keep.
    pub fn room_for_mads(&mut self) -> MadRoom {
        self.registry.cm.room_for_mads()
    }

    /// Datagrams that waited for a rate are to be taken, here and from workers.
    pub fn are_mads_due(&self, now: Instant) -> bool {
        self.registry.cm.are_mads_due(now)
    }

    /// A management datagram came to queue pair 1. It waits for [`Self::take_datagrams`].
    pub fn on_mad(&mut self, mad: &ReceivedMad, environment: &Environment<'_>) {
        self.registry.cm.on_mad(mad, environment);
    }

    /// Handles up to `budget` management datagrams; true if some are left.
    pub fn take_datagrams(&mut self, budget: usize, environment: &mut Environment<'_>) -> bool {
        let are_left = self.registry.cm.take_datagrams(budget, environment);
        self.watch_cm_channels();
        are_left
    }

    pub(super) fn end_some_ids(&mut self, environment: &mut Environment<'_>) {
        if self.registry.cm.is_ending() {
            self.registry.cm.end_some(environment);
        }
    }

    /// The epoll set has the event channels, with interest in room where events wait for it.
    pub(super) fn watch_cm_channels(&mut self) {
        for (number, interest) in self.registry.cm.take_changed_channels() {
            let Some(fd) = self.registry.cm.channel_fd(number) else { continue };
            // Our end is shut down for reading, so its other end is gone when it hangs up
            // altogether.
            let mut flags = EpollFlags::empty();
            flags.set(EpollFlags::EPOLLOUT, interest.wants_room);
            let mut event = EpollEvent::new(flags, CM_CHANNEL | u64::from(number));
            // Without it the end of the channel is noticed with that of its session.
            let _ = if interest.is_new { self.epoll.add(fd, event) } else { self.epoll.modify(fd, &mut event) };
            if interest.is_new {
                self.registry.cm.report_to(number, &self.reports, CM_CHANNEL | u64::from(number));
            }
        }
    }

    pub(super) fn on_cm_channel(&mut self, number: u32, events: EpollFlags, environment: &mut Environment<'_>) {
        if events.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            if let Some(fd) = self.registry.cm.channel_fd(number) {
                let _ = self.epoll.delete(fd);
            }
            self.registry.cm.on_channel_closed(number, environment);
        } else {
            self.registry.cm.on_room(number);
        }
        self.watch_cm_channels();
    }
}
