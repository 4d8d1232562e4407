//! Events of endpoints and memory, told to the control thread, and datagrams for it.

use roced_memory::access_log;
use roced_types::event;

use super::{
    poll_loop::{Worker, WorkerEndpoint},
    received_mads::{MadDrop, ReceivedMad},
};
use crate::worker::{events::WorkerEvent, nic::Nic, qp_table::entry_of};

/// Events of queue pairs told to the control thread per poll iteration.
const EVENTS: usize = 64;

impl<N: Nic> Worker<N> {
    pub(super) fn tell_events(&mut self) -> usize {
        let mut told = 0;
        if let Some(fault) = self.fault
            && self.events.push(fault)
        {
            self.fault = None;
            told += 1;
        }
        told += self.tell_stalls();
        let has_reports = self.worker_endpoints.iter().any(|worker_endpoint| worker_endpoint.endpoint.has_reports());
        if has_reports || self.key_change.is_some() {
            told += self.tell_reports();
        }
        self.events.announce();
        told
    }

    /// Tells the events of the endpoints.
    fn tell_reports(&mut self) -> usize {
        let mut told = self.tell_key_changes();
        for (worker_endpoint, first_entry) in self.worker_endpoints.iter_mut().zip(&self.first_entries) {
            while told < EVENTS && !self.events.is_full() {
                let Some(event) = worker_endpoint.endpoint.poll_event() else { break };
                let entry = entry_of(*first_entry, &worker_endpoint.endpoint, event.qpn);
                let Some(session) = entry.and_then(|entry| self.qp_table.session_of(entry)) else { continue };
                // Another worker may take the last place meanwhile; an event of a queue pair then
                // is lost, its completions are not.
                let object_event = WorkerEvent::Object { session, handle: event.subject.number(), kind: event.kind };
                told += usize::from(self.events.push(object_event));
            }
        }
        for (worker_endpoint, first_entry) in self.worker_endpoints.iter_mut().zip(&self.first_entries) {
            while told < EVENTS && !self.events.is_full() {
                let Some(failure) = worker_endpoint.endpoint.poll_failure() else { break };
                let entry = entry_of(*first_entry, &worker_endpoint.endpoint, failure.qpn);
                let Some(session) = entry.and_then(|entry| self.qp_table.session_of(entry)) else { continue };
                told += usize::from(self.events.push(WorkerEvent::Failed { session, failure }));
            }
        }
        for (worker_endpoint, first_srq) in self.worker_endpoints.iter_mut().zip(&self.first_srqs) {
            while told < EVENTS && !self.events.is_full() {
                let Some(srqn) = worker_endpoint.endpoint.poll_srq_limit() else { break };
                let Some(session) = self.qp_table.session_of_srq(first_srq + srqn.index()) else { continue };
                let object_event = WorkerEvent::Object { session, handle: srqn.get(), kind: event::SRQ_LIMIT };
                told += usize::from(self.events.push(object_event));
            }
        }
        for WorkerEndpoint { place, endpoint, .. } in &mut self.worker_endpoints {
            while told < EVENTS && !self.events.is_full() {
                let Some(storm) = endpoint.poll_pause_storm() else { break };
                told += usize::from(self.events.push(WorkerEvent::PauseStorm { device: place.device, storm }));
            }
        }
        told
    }

    pub(super) fn tell_stalls(&mut self) -> usize {
        // Without room they are found again if they go on.
        let pushed = |(sessions, time)| self.events.push(WorkerEvent::Stalled { sessions, time });
        std::iter::from_fn(access_log::take_stall).map(pushed).count()
    }

    /// A queue pair waits for each of them: none is lost.
    pub(super) fn tell_key_changes(&mut self) -> usize {
        for told in 0..EVENTS {
            let Some(waiting) = self.key_change.take().or_else(|| self.next_key_change()) else { return told };
            if !self.events.push(waiting) {
                self.key_change = Some(waiting);
                return told;
            }
        }
        EVENTS
    }

    pub(super) fn next_key_change(&mut self) -> Option<WorkerEvent> {
        for (worker_endpoint, first_entry) in self.worker_endpoints.iter_mut().zip(&self.first_entries) {
            while let Some(change) = worker_endpoint.endpoint.poll_key_change() {
                let entry = entry_of(*first_entry, &worker_endpoint.endpoint, change.qpn);
                if let Some(session) = entry.and_then(|entry| self.qp_table.session_of(entry)) {
                    return Some(WorkerEvent::Key { session, change });
                }
            }
        }
        None
    }

    /// Passes received management datagrams to the control thread: at most as many as each endpoint
    /// keeps.
    pub(super) fn pass_mads(&mut self) -> usize {
        let mut passed = 0;
        for WorkerEndpoint { place, endpoint, .. } in &mut self.worker_endpoints {
            while let Some(datagram) = endpoint.poll_management() {
                match self.mads.push(ReceivedMad::new(place.device, &datagram)) {
                    Ok(()) => self.counters.mads_received += 1,
                    Err(MadDrop::QueueFull) => self.counters.mads_queue_full += 1,
                    Err(MadDrop::ShareFull) => self.counters.mads_share_full += 1,
                    Err(MadDrop::AboutUnknown) => self.counters.mads_unknown_dropped += 1,
                }
                passed += 1;
            }
        }
        self.mads.announce();
        passed
    }
}
