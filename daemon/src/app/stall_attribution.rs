//! Finds the sessions whose memory had a worker wait.
//!
//! While it waits nothing can be done: what its session has lies with that worker. So they are
//! remembered, and named when all workers turn.

use roced_types::{SessionId, WorkerId};

/// Who is to be blamed.
#[derive(Debug, Default)]
pub(super) struct StallAttribution {
    suspects: Option<[SessionId; 2]>,
}

impl StallAttribution {
    /// Takes a look, as the watchdog does: `stuck` is a worker that has not turned since the last
    /// one, and `the_blocked_user` says for whose memory it waits. Gives the sessions of which one had a
    /// worker wait, or one twice, when that is over.
    pub(super) fn look(
        &mut self,
        stuck: Option<WorkerId>,
        the_blocked_user: impl FnOnce(WorkerId) -> Option<[SessionId; 2]>,
    ) -> Option<[SessionId; 2]> {
        match stuck {
            Some(worker) => {
                self.suspects = the_blocked_user(worker).or(self.suspects);
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
        assert_eq!(stall_attribution.look(None, |_| panic!("nobody waits")), None);
        assert_eq!(
            stall_attribution.look(Some(worker), |stuck| (stuck == worker).then_some(both)),
            None,
            "it still waits"
        );
        assert_eq!(stall_attribution.look(Some(worker), |_| None), None, "now it has no core");
        assert_eq!(stall_attribution.look(None, |_| panic!("nobody waits")), Some(both));
        assert_eq!(stall_attribution.look(None, |_| panic!("nobody waits")), None, "once");
        assert_eq!(stall_attribution.look(Some(worker), |_| None), None);
        assert_eq!(
            stall_attribution.look(None, |_| panic!("nobody waits")),
            None,
            "who only has no core blames nobody"
        );
    }
}
