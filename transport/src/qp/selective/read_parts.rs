//! Repetition of a READ in part, and of everything behind it.

use crate::{
    psn::Psn,
    qp::{QpBase, completer::Completer, requester::Requester, send_queue::SendQueue},
};

impl Completer {
    /// End of the part of the oldest READ to request: responses that are present are not requested
    /// again. If more of the same request is missing, the second time requests all of it, because
    /// otherwise each gap would take a round trip.
    pub(super) fn end_of_part(&mut self, base: &QpBase, queue: &SendQueue, requester: &Requester) -> Option<Psn> {
        let end = self.selective.gap_end.take().filter(|_| self.selective.may_ask_for_parts())?;
        let entry = queue.entry(queue.head());
        if !entry.is_read() {
            return None;
        }
        let chunk = requester.read_chunk(base.attributes.max_rd_atomic);
        let begins = self.place(queue).1 / chunk * chunk;
        let request = entry.first_psn.plus(begins);
        let behind = entry.first_psn.plus((begins + chunk).min(entry.packets));
        let is_first = self.selective.part_of.replace(request) != Some(request);
        (is_first && end.distance_from(behind) < 0).then_some(end)
    }

    /// Moves the cursor back to the end of the oldest READ or atomic operation, if it is farther.
    pub(super) fn go_back_behind_oldest(&mut self, base: &QpBase, queue: &SendQueue, requester: &mut Requester) {
        let position = queue.head();
        let entry = queue.entry(position);
        if requester.cursor().distance_from(entry.end_psn()) > 0 {
            let chunk = if entry.is_read() { requester.read_chunk(base.attributes.max_rd_atomic) } else { 1 };
            let requests = entry.packets.div_ceil(chunk) - self.place(queue).1 / chunk;
            requester.rewind(position.wrapping_add(1), 0, entry.end_psn());
            requester.on_begun(requests);
        }
        self.on_gone_back();
    }
}
