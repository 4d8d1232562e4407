//! Where the requests of a connection begin anew, because its queue pairs were reset and connected
//! to each other again. A retransmission is no new beginning, nor is a hole in the PSNs: those are
//! for the rules to judge. So a request begins another life only when it begins a message, and in
//! this one it would be neither the next packet nor one that was sent before, and
//!
//! - it is farther away than any window, or
//! - the answer to it cannot be an answer in this life, and is right in the new one, where message
//!   numbers begin anew as well.
//!
//! Of unreliable connections, which have no answers, only the first is known.

use super::psn::Count;
use crate::{
    scenario::Side,
    trace::{Kind, Seen},
};

/// No window is as large.
const FAR: i64 = 1 << 20;

/// When the lives of the requests of `asks` began, and their first PSNs. `frames` are all of the
/// connection, by the port of that side.
pub(super) fn begun(frames: &[&Seen], asks: Side, mtu: u32) -> Vec<(u64, u32)> {
    let mut begun = Vec::new();
    let mut course = None::<Course>;
    // Requests that may have begun another life since the last answer in this one.
    let mut suspects = Vec::new();
    for (at, seen) in frames.iter().enumerate().filter(|(_, seen)| (seen.from == asks) != seen.kind.is_response()) {
        let Some(now) = &mut course else {
            if !seen.kind.is_response() {
                begun.push((seen.at_ns, seen.psn));
                course = Some(Course::new(&frames[at..=at], mtu));
            }
            continue;
        };
        if !seen.kind.is_response() {
            if seen.begins && now.is_far(seen) {
                begun.push((seen.at_ns, seen.psn));
                *now = Course::new(&frames[at..=at], mtu);
                suspects.clear();
                continue;
            }
            if seen.begins && !now.is_of_it(seen) {
                suspects.push(at);
            }
            now.on_request(seen);
        } else if now.fits(seen) {
            now.on_answer(seen);
            suspects.clear();
        } else {
            let other = suspects.iter().find_map(|&from| {
                let requests: Vec<_> = frames[from..at].iter().copied().filter(|seen| seen.from == asks).collect();
                let other = Course::new(&requests, mtu);
                other.fits(seen).then_some((frames[from], other))
            });
            if let Some((first, mut other)) = other {
                begun.push((first.at_ns, first.psn));
                other.on_answer(seen);
                *now = other;
                suspects.clear();
            }
        }
    }
    begun
}

/// Fields that tell a packet from others.
type Content = (u8, u32, u64);

/// How far a life has come, by its requester's port.
#[derive(Debug)]
struct Course {
    count: Count,
    mtu: u32,
    /// By PSN, the first packet sent there.
    sent: Vec<Content>,
    /// By message, the PSN with which it is complete: of a READ the first.
    messages: Vec<i64>,
    /// The highest PSN that an ACK names.
    acknowledged: i64,
    /// It ended with this one.
    refused: Option<i64>,
}

impl Course {
    /// With these requests, from the first on.
    fn new(requests: &[&Seen], mtu: u32) -> Self {
        let mut course = Self {
            count: Count::new(requests[0].psn),
            mtu,
            sent: Vec::new(),
            messages: Vec::new(),
            acknowledged: -1,
            refused: None,
        };
        requests.iter().filter(|seen| !seen.kind.is_response()).for_each(|seen| course.on_request(seen));
        course
    }

    fn next(&self) -> i64 {
        self.sent.len() as i64
    }

    fn is_far(&self, seen: &Seen) -> bool {
        let psn = self.count.of(seen.psn);
        psn < -FAR || psn > self.next() + FAR
    }

    /// It is the next packet, or one of before.
    fn is_of_it(&self, seen: &Seen) -> bool {
        let psn = self.count.of(seen.psn);
        psn == self.next() || (psn >= 0 && self.sent.get(psn as usize) == Some(&content(seen)))
    }

    fn on_request(&mut self, seen: &Seen) {
        if self.count.of(seen.psn) != self.next() {
            return;
        }
        if seen.ends {
            self.messages.push(self.next());
        }
        self.sent.resize(self.sent.len() + seen.packets(self.mtu) as usize, content(seen));
        self.count.near = self.next();
    }

    /// Whether this can be answered in this life.
    fn fits(&self, seen: &Seen) -> bool {
        let psn = self.count.of(seen.psn);
        let is_positive = seen.syndrome.is_none_or(|syndrome| syndrome >> 5 == 0);
        // Everything before it has been executed.
        let executed = psn + i64::from(is_positive);
        if !(0..=self.next()).contains(&executed)
            || is_positive && self.refused.is_some_and(|refused| psn >= refused)
            || is_positive && seen.kind == Kind::Ack && psn < self.acknowledged
        {
            return false;
        }
        let least = self.messages.partition_point(|message| *message < executed);
        let more = self.messages.len() - least;
        seen.syndrome.is_none() || seen.msn.wrapping_sub(least as u32) & 0xff_ffff <= more as u32
    }

    fn on_answer(&mut self, seen: &Seen) {
        let psn = self.count.of(seen.psn);
        match (seen.kind, seen.syndrome) {
            (Kind::Ack, Some(0..0x20)) => self.acknowledged = psn,
            (Kind::Ack, Some(0x61..)) => self.refused = Some(psn),
            _ => (),
        }
    }
}

fn content(seen: &Seen) -> Content {
    (seen.opcode, seen.payload_bytes, seen.payload_sum)
}
