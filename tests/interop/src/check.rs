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
//!   both ports ─► missing answers that a side waited for                     last_ack
//!   one port   ─► marks of congestion, and notifications of them             congestion
//! ```

pub(crate) mod congestion;
mod course;
pub(crate) mod last_ack;
mod lives;
pub(crate) mod mads;
mod psn;
mod requester;
mod responder;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::{
    congestion::Marks,
    lives::{LifeId, Place},
    requester::Requester,
    responder::Responder,
    rules::Findings,
};
pub(crate) use self::{
    lives::{Lives, by_guest},
    rules::Violation,
};
use crate::{
    scenario::{MTU_MAX, Side},
    trace::{Kind, Seen},
};

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

/// Checks of the ECN bits and notifications of congestion that `side` sent, and their numbers.
pub(crate) fn check_congestion(frames: &[Seen], side: Side, ecn: bool) -> (Vec<Violation>, Marks) {
    let mut findings = Findings::default();
    let marks = congestion::check(frames, side, ecn, &mut findings);
    (findings.violations, marks)
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
