//! Rules of the transport, held against the frames that passed one side's port of the switch: the
//! frames that it sent, given those that it had been sent until then. So each side is judged by its
//! own port, behind the faults for arriving frames and before them for leaving ones. Only frames
//! that left have passed for certain; frames that came in were perhaps not looked at yet, so no
//! rule counts on them.
//!
//! ```text
//!   frames ─► by connection, and its life (until PSNs begin anew)   lives, course
//!                 ├─ requests of this side, given the answers       requester
//!                 └─ answers of this side, given the requests       responder
//!   both ports ─► answers that a side waited for in vain            last_ack
//! ```

mod course;
pub(crate) mod last_ack;
mod lives;
pub(crate) mod mads;
mod requester;
mod responder;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt};

pub(crate) use self::lives::{Lives, by_guest};
use self::{
    lives::{LifeId, Place},
    requester::Requester,
    responder::Responder,
};
use crate::{
    scenario::Side,
    trace::{Kind, Seen},
};

/// The largest path MTU there is.
const MTU_MAX: u32 = 4096;

/// How long a side may take to look at frames that have arrived, by [`Side`]. A machine that has
/// other work to do lets us run half a second late; an action of a guest after this long is due to
/// its timer, and that is worth a line.
const SLACK_NS: [u64; 2] = [2_000_000_000, 400_000_000];

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The rule, as `docs/interop.md` names it.
    pub(crate) rule: &'static str,
    /// The frame's number in the capture.
    pub(crate) frame: usize,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (frame {}): {}", self.rule, self.frame, self.what)
    }
}

/// Results of a check, and the amount checked.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// Frames that the side sent.
    pub(crate) sent: usize,
    /// Of these, on connections that cannot be told apart, so that only each frame by itself was
    /// looked at.
    pub(crate) unrelated: usize,
}

impl Findings {
    fn add(&mut self, rule: &'static str, frame: &Seen, what: impl Into<String>) {
        self.violations.push(Violation { rule, frame: frame.number, what: what.into() });
    }
}

/// How far a PSN is ahead of another.
fn distance(psn: u32, base: u32) -> i64 {
    i64::from(((psn.wrapping_sub(base) << 8) as i32) >> 8)
}

/// PSNs of a connection's life, counted from its first one on, without a wrap.
#[derive(Debug)]
struct Count {
    first: u32,
    near: i64,
}

impl Count {
    fn new(first: u32) -> Self {
        Self { first, near: 0 }
    }

    fn of(&self, psn: u32) -> i64 {
        let near = self.first.wrapping_add(self.near as u32) & 0xff_ffff;
        self.near + distance(psn, near)
    }
}

/// Checks the frames that `side` sent, by those that passed its port.
pub(crate) fn check(frames: &[Seen], side: Side, lives: &Lives) -> Findings {
    let mut findings = Findings::default();
    let mut by_life: BTreeMap<LifeId, Vec<&Seen>> = BTreeMap::new();
    for seen in frames {
        let place = lives.place(seen);
        if seen.from == side {
            findings.sent += 1;
            let mtu = if let Place::In(life) = place { Some(lives.get(life).mtu) } else { None };
            check_alone(seen, mtu, &mut findings);
            match place {
                Place::Unknown => findings.unrelated += 1,
                Place::Unasked => findings.add("answer", seen, "nothing was asked of this queue pair"),
                Place::In(_) | Place::Nowhere => (),
            }
        }
        if let Place::In(life) = place {
            by_life.entry(life).or_default().push(seen);
        }
    }
    for (id, frames) in by_life {
        let life = lives.get(id);
        if id.asks == side {
            Requester::new(life).check(&frames, side, &mut findings);
        } else {
            Responder::new(life).check(&frames, side, &mut findings);
        }
    }
    findings
}

/// Checks of the datagrams that `side` sent, and of the packets of their connections.
pub(crate) fn check_datagrams(frames: &[Seen], side: Side) -> Vec<Violation> {
    let mut findings = Findings::default();
    mads::check(frames, side, &mut findings);
    findings.violations
}

/// Checks of each frame by itself.
fn check_alone(seen: &Seen, mtu: Option<u32>, findings: &mut Findings) {
    if !seen.intact {
        findings.add("icrc", seen, "the ICRC does not hold");
        return;
    }
    if seen.pad != (seen.payload_bytes.wrapping_neg() & 3) as u8 {
        findings.add("pad", seen, format!("{} bytes of pad behind {} of payload", seen.pad, seen.payload_bytes));
    }
    if (seen.version, seen.pkey & 0x7fff, seen.byte4) != (0, 0x7fff, 0) {
        findings.add(
            "header",
            seen,
            format!("TVer {}, P_Key 0x{:04x}, byte 4 of the BTH {}", seen.version, seen.pkey, seen.byte4),
        );
    }
    let carries = matches!(seen.kind, Kind::Send | Kind::Write | Kind::ReadResponse);
    let full = carries && !seen.ends;
    let right = match (carries, full) {
        (false, _) => seen.payload_bytes == 0,
        (true, true) => mtu.is_none_or(|mtu| seen.payload_bytes == mtu),
        (true, false) => seen.payload_bytes <= mtu.unwrap_or(MTU_MAX) && (seen.begins || seen.payload_bytes > 0),
    };
    if !right {
        findings.add(
            "length",
            seen,
            format!("opcode 0x{:02x} with {} bytes, the path MTU is {mtu:?}", seen.opcode, seen.payload_bytes),
        );
    }
    if seen.is_only_write() && seen.dma_bytes != Some(seen.payload_bytes) {
        findings.add("length", seen, format!("a WRITE of {:?} bytes brings {}", seen.dma_bytes, seen.payload_bytes));
    }
}

impl Seen {
    /// How many PSNs it stands for: a READ request for those of its responses.
    fn packets(&self, mtu: u32) -> u32 {
        match self.kind {
            Kind::ReadRequest => self.dma_bytes.unwrap_or(0).div_ceil(mtu).max(1),
            _ => 1,
        }
    }

    fn is_only_write(&self) -> bool {
        self.kind == Kind::Write && self.begins && self.ends
    }
}
