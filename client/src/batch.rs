//! Batches of send work requests published with one doorbell.

use roced_abi::layout::SEND_SLOT_WORDS_MAX;

use crate::{error::Result, exclusive::Entered, post_side::PostSide, qp::QueuePair, work::SendRequest};

/// Send work requests that [`Self::commit`] publishes to the daemon together, with one doorbell.
/// Dropping the batch without a commit discards its requests; they are never posted.
///
/// ```no_run
/// use roced_client::{QueuePair, RemoteMemory, SendRequest};
///
/// /// Writes a record and its flag: one doorbell, and one completion for both.
/// fn publish(qp: &QueuePair, record: RemoteMemory, flag: RemoteMemory) -> roced_client::Result<()> {
///     let mut batch = qp.send_batch();
///     batch.push(&SendRequest::write_inline(b"the record", record))?;
///     batch.push(&SendRequest::write_inline(&[1], flag).id(1).signaled())?;
///     batch.commit();
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "nothing is posted before it is committed"]
pub struct SendBatch<'a> {
    qp: &'a QueuePair,
    side: Entered<'a, PostSide<SEND_SLOT_WORDS_MAX>>,
    pushed: u32,
}

impl QueuePair {
    /// Starts a batch of send work requests, published together. Other threads cannot post sends to
    /// this queue pair until the batch is committed or dropped.
    pub fn send_batch(&self) -> SendBatch<'_> {
        SendBatch::new(self, self.send.enter())
    }
}

impl<'a> SendBatch<'a> {
    const fn new(qp: &'a QueuePair, side: Entered<'a, PostSide<SEND_SLOT_WORDS_MAX>>) -> Self {
        Self { qp, side, pushed: 0 }
    }

    /// Adds a send work request to the batch.
    ///
    /// # Errors
    /// Those of [`QueuePair::post_send`]. Requests added earlier stay in the batch.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<()> {
        self.qp.push_send(&mut self.side, request)?;
        self.pushed += 1;
        Ok(())
    }

    /// Posts the requests of the batch.
    pub fn commit(mut self) {
        if self.pushed > 0 {
            self.qp.publish_sends(&self.side);
            self.pushed = 0;
        }
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        if self.pushed > 0 {
            self.qp.take_back_sends(&mut self.side, self.pushed);
        }
    }
}
