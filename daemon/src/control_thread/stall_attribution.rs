//! Finds the sessions of memory that stalled a worker.
//!
//! During a stall nothing can be done: the objects of the session are held by that worker. The
//! sessions are therefore remembered, and reported when all workers poll again.

use roced_types::{SessionId, WorkerId};

/// Candidates for attribution.
#[derive(Debug, Default)]
pub(super) struct StallAttribution {
    suspects: Option<[SessionId; 2]>,
}

impl StallAttribution {
    /// Examines the workers, as the watchdog does: `stuck` is a worker that has not polled since
    /// the last call, and `blocking_sessions` returns the sessions of the memory that it waits for.
    /// Returns, when the stall is over, the sessions of which one stalled a worker, or one session
    /// twice.
    pub(super) fn look(
        &mut self,
        stuck: Option<WorkerId>,
        blocking_sessions: impl FnOnce(WorkerId) -> Option<[SessionId; 2]>,
    ) -> Option<[SessionId; 2]> {
        match stuck {
            Some(worker) => {
                self.suspects = blocking_sessions(worker).or(self.suspects);
                None
            }
            None => self.suspects.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_stall_is_named_when_the_worker_continues() {
        let mut stall_attribution = StallAttribution::default();
        let (worker, both) = (WorkerId(1), [SessionId(7), SessionId(7)]);
        assert_eq!(stall_attribution.look(None, |_| panic!("nothing waits")), None);
        assert_eq!(
            stall_attribution.look(Some(worker), |stuck| (stuck == worker).then_some(both)),
            None,
            "it still waits"
        );
        assert_eq!(stall_attribution.look(Some(worker), |_| None), None, "now it has no core");
        assert_eq!(stall_attribution.look(None, |_| panic!("nothing waits")), Some(both));
        assert_eq!(stall_attribution.look(None, |_| panic!("nothing waits")), None, "once");
        assert_eq!(stall_attribution.look(Some(worker), |_| None), None);
        assert_eq!(
            stall_attribution.look(None, |_| panic!("nothing waits")),
            None,
            "a worker that only lacks a core blames no client"
        );
    }
}
