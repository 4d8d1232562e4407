//! Rules about time: a call is answered in bounded time, and no end takes a connection for
//! established that its peer has left.

use std::time::Duration;

use super::{
    agenda::{Act, Step},
    ends::{End, Stage},
    tally::Count,
    world::World,
};
use crate::violation::{Checked, Violation, demand};

/// How often.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// A request is answered, refused or given up within that: repetitions of 74 s, and once a pause of
/// 66 s. With an ACK timeout of the program they are 98 s and 70 s at the most.
const ANSWERED: Duration = Duration::from_secs(145);
const ANSWERED_SLOWLY: Duration = Duration::from_secs(175);

/// A peer's end is told within that: repetitions of 66 s.
const TOLD: Duration = Duration::from_secs(75);

impl World {
    pub(crate) fn audit(&mut self) -> Checked {
        // Requests beyond 64 at a time wait for others.
        let slack = Duration::from_millis(300) * (self.ends.here.len() as u32 / 64);
        let here: Vec<_> = self.ends.here.iter().copied().collect();
        for end in here {
            self.check_answered(end, slack)?;
            if self.ends.all[end].stage == Stage::Open {
                self.check_half_open(end, slack)?;
            }
        }
        Ok(())
    }

    fn check_answered(&self, end: usize, slack: Duration) -> Checked {
        let of = &self.ends.all[end];
        let since = match of.stage {
            Stage::Asking | Stage::Accepted if of.has_ack_timeout => of.acted.map(|at| at + ANSWERED_SLOWLY),
            Stage::Asking | Stage::Accepted => of.acted.map(|at| at + ANSWERED),
            Stage::Open => of.disconnected.map(|at| at + TOLD),
            _ => None,
        };
        let is_late = since.is_some_and(|until| self.now > until + slack);
        demand!(!is_late, "answer", "end {end} waits: {of:?}, {:?}", of.partner.map(|it| &self.ends.all[it]));
        Ok(())
    }

    /// The other end of an established one is not there any more: this one is told, unless the
    /// network or the other host prevents it. Then its queue pair fails, and the program
    /// disconnects.
    fn check_half_open(&mut self, end: usize, slack: Duration) -> Checked {
        let of = &self.ends.all[end];
        if of.disconnected.is_some() || of.fails {
            return Ok(());
        }
        let (Some(partner), Some(opened)) = (of.partner, of.opened) else { return Ok(()) };
        let other = &self.ends.all[partner];
        let Some(since) = ended(other, end) else { return Ok(()) };
        let until = since.max(opened) + TOLD + slack;
        // It may have disconnected before, without success.
        let since = other.disconnected.unwrap_or(since).min(since);
        let hosts = [of.host, other.host];
        let is_disturbed = self.links.were_cut(hosts[0], hosts[1], since, until)
            || hosts.iter().any(|host| self.ends.was_disturbed(*host, since, until))
            || self.manners.has_few_places();
        if is_disturbed {
            self.ends.all[end].fails = true;
            self.ends.tally.count(Count::Failed);
            self.agenda.put(self.now, Act::Step(end, Step::Fail));
            return Ok(());
        }
        demand!(self.now <= until, "half-open", "end {end} was not told of the end: {of:?}, {other:?}");
        Ok(())
    }
}

/// When an end was not there any more for another one.
fn ended(of: &End, other: usize) -> Option<Duration> {
    // It is established with another one, or never was with this one.
    let is_others = of.partner.is_some_and(|partner| partner != other);
    of.finished().or_else(|| of.acted.filter(|_| is_others))
}

/// The rule of a crowd: as many as there are are established at once.
pub(crate) fn check_all_open(world: &World, connections: u32) -> Checked {
    let open = world.ends.all.iter().filter(|of| of.stage == Stage::Open && of.gone.is_none()).count() as u32;
    if open == 2 * connections {
        return Ok(());
    }
    Err(Violation { checker: "crowd", text: format!("{open} ends of {connections} connections are established") })
}
