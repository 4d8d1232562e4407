//! Rules of the transport, held against what passed one side's port of the switch: what that side sent, given what it had been sent until
//! then. So each side is judged by its own port, behind the faults for what arrives and before them for what leaves. Only
//! what left has passed for certain; what came in was perhaps not looked at yet, so no rule counts on it.
//!
//! ```text
//!   frames ─► by connection (the UDP source port, the same both ways) ─► life (until PSNs begin anew)
//!                 ├─ requests of this side, what was answered   requester
//!                 └─ answers of this side, what was asked       responder
//! ```

mod requester;
mod responder;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use self::{requester::Requester, responder::Responder};
use crate::{
    scenario::Side,
    trace::{Kind, Seen, Service},
};

/// A PSN that is farther away than this from what is expected begins another life of the queue pair: no window is as large.
const LIFE: i64 = 1 << 20;

/// How long a side may take to look at what lies before it, by [`Side`]. A machine that has other work to do lets us run half a second late;
/// what a guest does after this long it does because its timer ran out, and that is worth a line.
const SLACK_NS: [u64; 2] = [2_000_000_000, 400_000_000];

/// What should not have been.
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

/// What a check found, and over how much.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// Frames that the side sent.
    pub(crate) sent: usize,
    /// Of these, on connections that cannot be told apart, so that only each frame by itself was looked at.
    pub(crate) unrelated: usize,
}

impl Findings {
    fn add(&mut self, rule: &'static str, frame: &Seen, what: impl Into<String>) {
        self.violations.push(Violation { rule, frame: frame.number, what: what.into() });
    }
}

/// The first PSN of each life of each queue pair that requests go to, in the order in which they came about: taken from the port of
/// whoever sent them, where none is lost yet.
pub(crate) type FirstPsns = BTreeMap<(Side, u32), Vec<u32>>;

/// See [`FirstPsns`].
pub(crate) fn first_psns(frames: &[Seen], of: Side) -> FirstPsns {
    let mut firsts = FirstPsns::new();
    let mut last = BTreeMap::new();
    for seen in frames.iter().filter(|seen| seen.from == of && !seen.kind.is_response()) {
        let key = (of, seen.dest_qpn);
        let before = last.insert(key, seen.psn);
        if before.is_none_or(|before| distance(seen.psn, before).abs() > LIFE) {
            firsts.entry(key).or_default().push(seen.psn);
        }
    }
    firsts
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

    fn is_near(&self, psn: u32) -> bool {
        (self.of(psn) - self.near).abs() <= LIFE
    }
}

/// One direction of a connection: requests of `side` or to it.
fn lives<'f>(frames: &[&'f Seen], asks: Side, firsts: &FirstPsns) -> Vec<(u32, Vec<&'f Seen>)> {
    let Some(qpn) = frames.iter().find(|seen| seen.from == asks && !seen.kind.is_response()).map(|seen| seen.dest_qpn)
    else {
        return Vec::new();
    };
    let Some(firsts) = firsts.get(&(asks, qpn)) else { return Vec::new() };
    let mut lives: Vec<(u32, Vec<&Seen>)> = Vec::new();
    let mut count = None::<Count>;
    for seen in frames {
        let is_request = !seen.kind.is_response();
        if (seen.from == asks) != is_request {
            continue;
        }
        let new = is_request && seen.intact && count.as_ref().is_none_or(|count| !count.is_near(seen.psn));
        if new {
            let Some(first) = firsts.get(lives.len()) else { break };
            count = Some(Count::new(*first));
            lives.push((*first, Vec::new()));
        }
        if let (Some(count), true) = (&mut count, seen.intact && is_request) {
            count.near = count.of(seen.psn);
        }
        if let Some((_, life)) = lives.last_mut() {
            life.push(seen);
        }
    }
    lives
}

/// Checks what `side` sent, by what passed its port. Where connections of several path MTUs are, `mtu` is none.
pub(crate) fn check(frames: &[Seen], side: Side, mtu: Option<u32>, firsts: &FirstPsns) -> Findings {
    let mut findings = Findings::default();
    let mut connections: BTreeMap<u16, Vec<&Seen>> = BTreeMap::new();
    for seen in frames {
        connections.entry(seen.source_port).or_default().push(seen);
    }
    for frames in connections.values() {
        let is_full = |seen: &&&Seen| seen.intact && !seen.ends;
        let mtu =
            mtu.unwrap_or_else(|| frames.iter().filter(is_full).map(|seen| seen.payload_bytes).max().unwrap_or(4096));
        for seen in frames.iter().filter(|seen| seen.from == side) {
            findings.sent += 1;
            check_alone(seen, mtu, &mut findings);
        }
        if frames[0].service == Service::Ud {
            continue;
        }
        let qpns = |from: Side| {
            frames.iter().filter(|it| it.from == from && it.intact).map(|it| it.dest_qpn).collect::<BTreeSet<_>>()
        };
        if Side::BOTH.iter().any(|side| qpns(*side).len() > 1) {
            findings.unrelated += frames.iter().filter(|it| it.from == side).count();
            continue;
        }
        for (first, life) in lives(frames, side, firsts) {
            Requester::new(first, mtu).check(&life, side, &mut findings);
        }
        for (first, life) in lives(frames, side.other(), firsts) {
            Responder::new(first, mtu).check(&life, side, &mut findings);
        }
    }
    findings
}

/// What each frame says by itself.
fn check_alone(seen: &Seen, mtu: u32, findings: &mut Findings) {
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
        (true, true) => seen.payload_bytes == mtu,
        (true, false) => seen.payload_bytes <= mtu && (seen.begins || seen.payload_bytes > 0),
    };
    if !right {
        findings.add(
            "length",
            seen,
            format!("opcode 0x{:02x} with {} bytes, the path MTU is {mtu}", seen.opcode, seen.payload_bytes),
        );
    }
    if seen.is_only_write() && seen.dma_bytes != Some(seen.payload_bytes) {
        findings.add("length", seen, format!("a WRITE of {:?} bytes brings {}", seen.dma_bytes, seen.payload_bytes));
    }
}

impl Seen {
    fn is_only_write(&self) -> bool {
        self.kind == Kind::Write && self.begins && self.ends
    }
}
