//! Flush of work requests in the error states.

use roced_types::Status;

use crate::{
    io::App,
    qp::{
        Qp,
        base::Received,
        context::{EndpointContext, Transmission},
        state::State,
    },
};

/// Completions flushed in one step, of which a visit has as many as frames: about as much work as a
/// frame, so that a poll iteration of flushes takes no longer than one of frames.
const FLUSH_BURST: u32 = 8;

impl Qp {
    /// Its next frame may be of another class: it is a queue pair for datagrams, or has failed.
    pub(crate) fn may_change_class(&self) -> bool {
        !self.has_peer() || self.base.state == State::Error
    }

    /// It flushes its work, or has none: it waits for no frame to a NIC. Not while a failed queue
    /// pair gives answers with memory, which are to leave before the NAK.
    pub(crate) fn is_flushing(&self) -> bool {
        let has_work = !self.send_queue.is_empty() || !self.recv_queue.is_empty();
        match self.base.state {
            State::SendQueueError => true,
            State::Error => has_work || !self.roles.owes_memory(),
            _ => false,
        }
    }

    pub(super) fn flush<A: App>(&mut self, endpoint: &mut EndpointContext<'_, A>) -> Transmission {
        let (_, mut cx) = self.split(endpoint);
        for flushed in 0..FLUSH_BURST {
            if let Some(entry) = cx.send_queue.pop() {
                cx.complete_send(&entry, Status::WorkRequestFlushed);
            } else if let Some(wr_id) = cx.recv_queue.pop() {
                cx.complete_recv(&Received::failed(wr_id, Status::WorkRequestFlushed));
            } else if flushed > 0 {
                // The last answers may belong to another class.
                break;
            } else {
                cx.base.tell_last_wqe();
                return Transmission::Idle;
            }
        }
        Transmission::Progress
    }

    pub(super) fn flush_sends<A: App>(&mut self, endpoint: &mut EndpointContext<'_, A>) -> Transmission {
        let (_, mut cx) = self.split(endpoint);
        for _ in 0..FLUSH_BURST {
            // A completion without room has failed the queue pair: the receives are flushed as
            // well.
            if cx.base.state != State::SendQueueError {
                return Transmission::Progress;
            }
            let Some(entry) = cx.send_queue.pop() else { return Transmission::Idle };
            cx.complete_send(&entry, Status::WorkRequestFlushed);
        }
        Transmission::Progress
    }
}
