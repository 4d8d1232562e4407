//! Bodies of calls about completion queues, their channels, and shared receive queues.

use super::body::bodies;
use roced_types::QpSizes;

bodies! {
    /// A completion queue to make.
    CreateCqRequest {
        /// Entries of each CQ ring, at least; a power of two is given.
        entries: u32,
        /// Channel for events, or 0.
        channel: u32,
    }
    /// A completion queue.
    CreateCqReply {
        /// Its number, also its handle.
        cqn: u32,
        /// Entries it got.
        entries: u32,
    }
    /// Another size for a completion queue.
    ResizeCqRequest {
        /// Its number.
        cqn: u32,
        /// Entries of each CQ ring, at least; a power of two is given.
        entries: u32,
    }
    /// One event of a completion channel: a message of the channel's socket.
    ChannelEvent {
        /// The completion queue that fired.
        cqn: u32,
    }
    /// A shared receive queue to make.
    CreateSrqRequest {
        /// Protection domain of the regions that its work names.
        pd: u32,
        /// Work requests.
        wrs: u32,
        /// Scatter/gather entries of each.
        sges: u32,
    }
    /// A shared receive queue. Every queue pair that takes from it lives on its worker.
    CreateSrqReply {
        /// Its number, also its handle.
        srqn: u32,
        /// The worker that owns it: an index into `OpenDeviceReply::worker_ids`.
        worker: u32,
        /// Its doorbell in that worker's block.
        doorbell: u32,
        /// Work requests that it got.
        wrs: u32,
        /// Scatter/gather entries that it got.
        sges: u32,
    }
    /// A change to a shared receive queue.
    ModifySrqRequest {
        /// Its number.
        srqn: u32,
        /// With fewer work requests than this there is one
        /// [`event::SRQ_LIMIT`](roced_types::event::SRQ_LIMIT); 0 for none.
        limit: u32,
    }
    /// Attributes of a shared receive queue.
    SrqAttributes {
        /// Work requests that it holds.
        wrs: u32,
        /// Scatter/gather entries of each.
        sges: u32,
        /// The limit; 0 when none is armed.
        limit: u32,
    }
}

impl CreateSrqRequest {
    /// The sizes asked for; nothing is sent.
    pub const fn sizes(&self) -> QpSizes {
        QpSizes { send_wrs: 0, recv_wrs: self.wrs, send_sges: 0, recv_sges: self.sges, inline_bytes: 0 }
    }
}
