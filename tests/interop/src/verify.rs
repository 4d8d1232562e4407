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

use anyhow::{Context as _, Result};

use crate::{
    check::{self, Lives, Violation},
    guest, process,
    scenario::Side,
    trace::{self, Seen},
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
    /// Both ports, roced's first.
    pub(crate) ports: [Vec<Seen>; 2],
}

impl Verdict {
    /// Frames that either side sent.
    pub(crate) fn frames(&self) -> usize {
        self.sent.iter().sum()
    }
}

/// Looks at both captures in `folder`. Without `mtu` each connection's is that of its longest
/// packet.
pub(crate) fn verify(mtu: Option<u32>, folder: &Path) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut ports = [Vec::new(), Vec::new()];
    for side in Side::BOTH {
        let file = folder.join(format!("{side}.pcap"));
        let damaged = damaged(&file)?;
        let frames = trace::read(&file, guest::MAC, &damaged)?;
        verdict.damaged += damaged.len();
        let complaints = dissect(&file, side)?;
        if side == Side::Roced {
            verdict.ours.extend(complaints.iter().map(|complaint| format!("tshark: frame {complaint}")));
        } else if let Some(first) = complaints.first() {
            verdict.theirs.insert("tshark", (complaints.len(), first.clone()));
        }
        for violation in check::check_datagrams(&frames, side) {
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
    let mac = guest::MAC.map(|byte| format!("{byte:02x}")).join(":");
    let is = if side == Side::Rxe { "==" } else { "!=" };
    let filter = format!("eth.src {is} {mac} && (!infiniband || _ws.malformed || _ws.expert.severity >= 0x00800000)");
    let mut tshark = Command::new("tshark");
    // Protocols that it would take payloads for, and then find malformed.
    tshark.args(["--disable-heuristic", "eth_over_ib"]);
    for guess in ["rpcordma", "smb_direct", "nvme-rdma", "lnet", "iser", "smc"] {
        tshark.args(["--disable-protocol", guess]);
    }
    tshark.arg("-r").arg(file).args(["-Y", &filter, "-T", "fields", "-e", "frame.number", "-e", "_ws.expert.message"]);
    let told = process::run(tshark, &file.with_extension("tshark"), LIMIT)?.success("tshark")?;
    // A UDP checksum of zero over IPv6 is demanded by annex A17; tshark knows only that IPv6 alone
    // would not have it.
    let complaints = told
        .lines()
        .filter(|line| !line.starts_with("Running as user") && !line.ends_with("\tIllegal checksum value (0)"));
    Ok(complaints.filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
}
