//! Whether it was the ACK of its last message that a side missed, lost on the
//! way from a peer that had ended well and could not repeat it (`parting.rs`). Nothing is taken for
//! granted: by both ports together,
//!
//! ```text
//!   left behind            ports            the other
//!        │── request ────────┼┼───────────────►│   it arrived whole, all that is open of it,
//!        │           lost ─ ─┼┼◄────── ACK ────│   was acknowledged; the sender's port saw no ACK
//!        │                   ││            ended
//!        │── again ──────────┼┼──────►             as often as asked for, the last time
//!        │                   ││                    after the other's end;
//!        │                   ││                    requests that came earlier were answered
//! ```
//!
//! Where a program has several connections (`ibv_srq_pingpong`), others may have more under way,
//! which the one that has all that it wants does not wait for.

use std::{collections::BTreeMap, ops::Range};

use super::{
    lives::{LifeId, Lives, Place},
    psn::Count,
    requester::Requester,
};
use crate::{
    parting::Parting,
    scenario::Side,
    trace::{Kind, Seen},
};

/// How often all stock programs send a request again before it fails without an answer.
const RETRIES: usize = 7;

/// How long before a program is seen to have ended its queue pairs may be gone: it gives back
/// memory, exits, and a busy machine, or a guest without KVM, says so. Some tens of milliseconds
/// where it was looked at; more is a guess.
const LEAVING_NS: u64 = 200_000_000;

/// The requests of one life that the side left behind made, as they passed both ports.
struct Waiting<'f> {
    parting: &'f Parting,
    count: Count,
    /// PSNs that nothing acknowledged which arrived.
    open: Range<i64>,
    /// At the port of the side left behind, and at the other's.
    here: &'f [&'f Seen],
    there: &'f [&'f Seen],
}

/// The evidence, of each connection that is concerned.
///
/// # Errors
/// The evidence against it.
pub(crate) fn lost_with_its_sender(
    ports: &[Vec<Seen>; 2],
    mtu: Option<u32>,
    parting: &Parting,
) -> Result<Vec<String>, String> {
    let lives = Lives::of(ports, mtu);
    let side = parting.left_behind;
    let [here, there] = [side, side.other()].map(|port| asked_by(side, &ports[port as usize], &lives));
    // The last that the other side said of anything at all.
    let silent_ns = ports[side.other() as usize].iter().rfind(|seen| seen.from != side).map_or(0, |seen| seen.at_ns);
    let mut found = Vec::new();
    let mut why_not = format!("all that {side} asked was answered");
    for (id, here) in &here {
        let life = lives.get(*id);
        let open = Requester::new(life).open(here, side);
        if open.is_empty() {
            continue;
        }
        let mut count = Count::new(life.first);
        count.near = open.start;
        let there = there.get(id).map_or(&[][..], Vec::as_slice);
        let waiting = Waiting { parting, count, open, here, there };
        waiting.check_silence()?;
        match waiting.check_ack()? {
            // Of several connections, the first that gives up ends the program.
            Some(ack) => match waiting.check_requests() {
                Ok(again) => found.push(told(side, ack, again)),
                Err(why) => why_not = why,
            },
            // The program does not wait for these requests, and the peer was gone.
            None if waiting.comes_after(silent_ns) => (),
            None => return Err(format!("PSN {}, its last, was never acknowledged", waiting.last_psn())),
        }
    }
    if found.is_empty() { Err(why_not) } else { Ok(found) }
}

/// The frames of a port that are of the side's requests.
fn asked_by<'f>(side: Side, frames: &'f [Seen], lives: &Lives) -> BTreeMap<LifeId, Vec<&'f Seen>> {
    let mut by_life = BTreeMap::<_, Vec<_>>::new();
    for seen in frames {
        if let Place::In(id) = lives.place(seen)
            && id.asks == side
        {
            by_life.entry(id).or_default().push(seen);
        }
    }
    by_life
}

fn told(side: Side, ack: &Seen, again: &Seen) -> String {
    let other = side.other();
    format!(
        "the last message of {side} was acknowledged (frame {} of {other}.pcap), the ACK was lost, and {other}'s program had ended when the \
         message came again for the last time (frame {} of {side}.pcap)",
        ack.number, again.number
    )
}

impl<'f> Waiting<'f> {
    fn is_open(&self, seen: &Seen) -> bool {
        seen.from == self.parting.left_behind && self.open.contains(&self.count.of(seen.psn))
    }

    fn last_psn(&self) -> u32 {
        self.here.iter().rfind(|seen| self.is_open(seen)).map_or(0, |seen| seen.psn)
    }

    /// The other side said that it had all of it, and had. Gives the ACK, if there is one.
    fn check_ack(&self) -> Result<Option<&'f Seen>, String> {
        let is_ack = |seen: &&Seen| {
            let is_positive = seen.kind == Kind::Ack && seen.syndrome.is_some_and(|syndrome| syndrome >> 5 == 0);
            seen.from != self.parting.left_behind && is_positive && self.count.of(seen.psn) + 1 == self.open.end
        };
        let Some(at) = self.there.iter().position(is_ack) else { return Ok(None) };
        let has_arrived = |psn: i64| self.there[..at].iter().any(|it| self.is_open(it) && self.count.of(it.psn) == psn);
        match self.open.clone().find(|psn| !has_arrived(*psn)) {
            Some(psn) => {
                Err(format!("frame {} acknowledges packet {psn}, which had not arrived", self.there[at].number))
            }
            None => Ok(Some(self.there[at])),
        }
    }

    /// It asked for nothing but an ACK, as often as it should, and still when the peer was gone.
    /// Returns the last of these requests.
    fn check_requests(&self) -> Result<&'f Seen, String> {
        let open: Vec<&Seen> = self.here.iter().copied().filter(|seen| self.is_open(seen)).collect();
        let last = *open.last().ok_or("the open request was never sent")?;
        if let Some(seen) = open.iter().find(|seen| !matches!(seen.kind, Kind::Send | Kind::Write)) {
            return Err(format!("frame {} asks for more than an ACK", seen.number));
        }
        let times = open.iter().filter(|seen| self.count.of(seen.psn) == self.open.start).count();
        if times <= RETRIES {
            return Err(format!("frame {} was sent {times} times, not {}", open[0].number, RETRIES + 1));
        }
        let ended_ns = self.parting.other_ended_ns;
        if last.at_ns <= ended_ns {
            let before_ms = (ended_ns - last.at_ns) / 1_000_000;
            return Err(format!("frame {} was sent {before_ms} ms before the other side had ended", last.number));
        }
        Ok(last)
    }

    /// Nothing of it arrived before that, if anything did.
    fn comes_after(&self, silent_ns: u64) -> bool {
        self.there.iter().find(|seen| self.is_open(seen)).is_none_or(|seen| seen.at_ns > silent_ns)
    }

    /// It answered every request for as long as it was there.
    fn check_silence(&self) -> Result<(), String> {
        let answers = self.there.iter().rposition(|seen| seen.from != self.parting.left_behind);
        let unanswered = &self.there[answers.map_or(0, |at| at + 1)..];
        match unanswered.first() {
            Some(first) if first.at_ns + LEAVING_NS < self.parting.other_ended_ns => Err(format!(
                "frame {} arrived {} ms before its receiver had ended, and was not answered",
                first.number,
                (self.parting.other_ended_ns - first.at_ns) / 1_000_000
            )),
            _ => Ok(()),
        }
    }
}
