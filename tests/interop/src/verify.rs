//! Independent checks of a scenario's captures: tshark, an ICRC in Python, and the rules of the
//! transport in `check`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    check::{self, Lives, Violation, congestion::Marks},
    guest, process,
    scenario::Side,
    trace::{self, Kind, Seen},
};

const LIMIT: Duration = Duration::from_secs(120);
/// A file with the time at which the guest's power failed, since the epoch in ns: the numbers of
/// its queue pairs begin anew.
pub(crate) const POWER_FAILED: &str = "power-failed";

/// The findings.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Frames that each side sent, by [`Side`].
    pub(crate) sent: [usize; 2],
    /// Frames with a wrong ICRC.
    pub(crate) damaged: usize,
    /// Errors of ours, which must not be.
    pub(crate) ours: Vec<String>,
    /// Errors of rxe: rule, how often, the first of them.
    pub(crate) theirs: BTreeMap<&'static str, (usize, String)>,
    /// Frames of connections that could not be told apart.
    pub(crate) unrelated: usize,
    /// Of each side, by [`Side`].
    pub(crate) marks: [Marks; 2],
    /// Both ports, roced's first; without notifications of congestion.
    pub(crate) ports: [Vec<Seen>; 2],
}

impl Verdict {
    /// Frames that either side sent.
    pub(crate) fn frames(&self) -> usize {
        self.sent.iter().sum()
    }
}

/// Looks at both captures in `folder`. Without `mtu` each connection's is that of its longest
/// packet. `ecn`: roced's packets may be marked.
pub(crate) fn verify(mtu: Option<u32>, folder: &Path, ecn: bool) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut ports = [Vec::new(), Vec::new()];
    for side in Side::BOTH {
        let file = folder.join(format!("{side}.pcap"));
        let damaged = damaged(&file)?;
        let mut frames = trace::read(&file, guest::MAC, &damaged)?;
        verdict.damaged += damaged.len();
        let complaints = dissect(&file, side)?;
        if side == Side::Roced {
            verdict.ours.extend(complaints.iter().map(|complaint| format!("tshark: frame {complaint}")));
        } else if let Some(first) = complaints.first() {
            verdict.theirs.insert("tshark", (complaints.len(), first.clone()));
        }
        let (violations, marks) = check::check_congestion(&frames, side, ecn);
        verdict.marks[side as usize] = marks;
        if marks.notifications > 0 {
            dissect_notifications(&file, side, marks.notifications)?;
        }
        frames.retain(|seen| seen.kind != Kind::Notification);
        for violation in violations.into_iter().chain(check::check_datagrams(&frames, side)) {
            note(violation, side, &mut verdict);
        }
        ports[side as usize] = frames;
    }
    ports.iter_mut().for_each(|frames| check::mads::forget_labels(frames));
    match power_failed_ns(folder)? {
        Some(at_ns) => {
            for guest in check::by_guest(&ports, at_ns) {
                judge(&guest, mtu, &mut verdict);
            }
        }
        None => judge(&ports, mtu, &mut verdict),
    }
    verdict.ports = ports;
    Ok(verdict)
}

fn power_failed_ns(folder: &Path) -> Result<Option<u64>> {
    let file = folder.join(POWER_FAILED);
    match fs::read_to_string(&file) {
        Ok(text) => text.parse().map(Some).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// Each side by its own port.
fn judge(ports: &[Vec<Seen>; 2], mtu: Option<u32>, verdict: &mut Verdict) {
    let lives = Lives::of(ports, mtu);
    for side in Side::BOTH {
        let findings = check::check(&ports[side as usize], side, &lives);
        verdict.sent[side as usize] += findings.sent;
        verdict.unrelated += findings.unrelated;
        for violation in findings.violations {
            note(violation, side, verdict);
        }
    }
}

/// An error of ours, or a deviation of rxe.
fn note(violation: Violation, side: Side, verdict: &mut Verdict) {
    if side == Side::Roced {
        verdict.ours.push(violation.to_string());
    } else {
        verdict.theirs.entry(violation.rule).or_insert_with(|| (0, violation.to_string())).0 += 1;
    }
}

/// Numbers of the frames with a wrong ICRC, by the Python check.
fn damaged(file: &Path) -> Result<BTreeSet<usize>> {
    let mut python = Command::new("python3");
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/icrc_check.py")).arg(file);
    let ended = process::run(python, &file.with_extension("icrc"), LIMIT)?;
    ended
        .output
        .lines()
        .last()
        .filter(|line| line.ends_with("ICRCs hold"))
        .with_context(|| format!("icrc_check.py: {}", ended.output))?;
    let number = |line: &str| line.split_once("the ICRC of frame ")?.1.split(' ').next()?.parse().ok();
    Ok(ended.output.lines().filter_map(number).collect())
}

/// Errors that tshark finds in frames that `side` sent.
fn dissect(file: &Path, side: Side) -> Result<Vec<String>> {
    let filter = "(!infiniband || _ws.malformed || _ws.expert.severity >= 0x00800000)";
    let told = tshark(file, side, filter, &["frame.number", "_ws.expert.message"], "tshark")?;
    // A UDP checksum of zero over IPv6 is demanded by annex A17; tshark knows only that IPv6 alone
    // would not have it.
    Ok(told.into_iter().filter(|line| !line.ends_with("\tIllegal checksum value (0)")).collect())
}

/// tshark finds as many notifications of congestion that `side` sent, by the fields of their BTH:
/// opcode, P_Key, no PSN, no AckReq. tshark 4.0 has no name for the opcode.
fn dissect_notifications(file: &Path, side: Side, count: usize) -> Result<()> {
    const FIELDS: [&str; 3] = ["infiniband.bth.p_key", "infiniband.bth.psn", "infiniband.bth.a"];
    let told = tshark(file, side, "infiniband.bth.opcode == 0x81", &FIELDS, "cnp.tshark")?;
    let right = told.iter().filter(|line| *line == "65535\t0\t0").count();
    ensure!((right, told.len()) == (count, count), "tshark finds {right} of {count} CNPs in {told:?}");
    Ok(())
}

/// The fields of frames that `side` sent, a line each.
fn tshark(file: &Path, side: Side, filter: &str, fields: &[&str], log: &str) -> Result<Vec<String>> {
    let mac = guest::MAC.map(|byte| format!("{byte:02x}")).join(":");
    let is = if side == Side::Rxe { "==" } else { "!=" };
    let filter = format!("eth.src {is} {mac} && {filter}");
    let mut tshark = Command::new("tshark");
    // Protocols that it would take payloads for, and then find malformed: all that it guesses.
    // udaddy sends memory as it finds it.
    const GUESSES: [&str; 9] =
        ["rpcordma", "smb_direct", "nvme-rdma", "lnet", "iser", "smc", "fcoib", "infiniband.eoib", "infiniband_sdp"];
    tshark.args(["--disable-heuristic", "eth_over_ib"]);
    for guess in GUESSES {
        tshark.args(["--disable-protocol", guess]);
    }
    tshark.arg("-r").arg(file).args(["-Y", &filter, "-T", "fields"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let told = process::run(tshark, &file.with_extension(log), LIMIT)?.success("tshark")?;
    let lines = told.lines().filter(|line| !line.starts_with("Running as user") && !line.trim().is_empty());
    Ok(lines.map(str::to_owned).collect())
}
