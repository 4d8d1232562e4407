//! The same operations, asked by roced and answered by rxe and the other way round: how the frames
//! of the two differ, field by field. Every difference has its reason here, and in
//! `docs/interop.md`, or is an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    scenario::Side,
    trace::{Kind, Seen},
};

/// Why the ECN fields differ.
const ECN_REASON: &str = "we let congested switches mark packets (ECT(0)), as adapters do; rxe sends 0";

/// Differences in requests or answers, and why they are right. A field is named by how it begins.
const REASONS: [(&str, &str); 7] = [
    ("BTH MigReq", "we send 1 (\"migrated\", the state without automatic path migration) as adapters do; rxe sends 0"),
    ("IPv4 ECN", ECN_REASON),
    ("IPv6 ECN", ECN_REASON),
    (
        "IPv4 identification",
        "we send 0: it has no meaning in a packet that is whole and not to be cut (RFC 6864); Linux counts",
    ),
    (
        "BTH AckReq within a message",
        "we ask for an ACK each 16 packets, to measure and to find losses early; rxe each 64",
    ),
    ("AETH credits", "we offer the receives that are posted (IBTA v1 9.7.7.2); rxe has no end-to-end flow control"),
    ("one ACK", "we answer all that lies before us at once, and one ACK covers it all; rxe acknowledges each message"),
];

/// A field in which the two differ.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    role: &'static str,
    field: String,
    /// The values of roced, and of rxe.
    values: [BTreeSet<String>; 2],
}

impl Difference {
    /// Why it is right, if that is known.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        REASONS.iter().find(|(field, _)| self.field.starts_with(field)).map(|(_, reason)| *reason)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |values: &BTreeSet<String>| {
            let values: Vec<_> = values.iter().map(String::as_str).collect();
            if values.is_empty() { "-".to_owned() } else { values.join(", ") }
        };
        let [ours, theirs] = &self.values;
        write!(f, "| {} | {} | {} | {} |", self.role, self.field, said(ours), said(theirs))
    }
}

type Fields = BTreeMap<String, BTreeSet<String>>;

/// Compares two runs of one conversation, each as the two ports of the switch saw it: `asks[0]` is
/// the one in which roced asks.
pub(crate) fn compare(runs: [&[Vec<Seen>; 2]; 2]) -> Vec<Difference> {
    let mut differences = Vec::new();
    for role in ["asks", "answers"] {
        let fields = Side::BOTH.map(|side| {
            // The run in which a side asks has the number of that side.
            let run = if role == "asks" { side } else { side.other() };
            let frames = &runs[run as usize][side as usize];
            fields(frames, side, role == "asks")
        });
        let [ours, theirs] = fields;
        let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).cloned().collect();
        for field in names {
            let values = [&ours, &theirs].map(|fields| fields.get(&field).cloned().unwrap_or_default());
            if values[0] != values[1] {
                differences.push(Difference { role, field, values });
            }
        }
    }
    differences
}

/// Fields of `side` in the frames of its port.
fn fields(frames: &[Seen], side: Side, asks: bool) -> Fields {
    let mut fields = Fields::new();
    let mut add = |field: String, value: String| {
        fields.entry(field).or_default().insert(value);
    };
    let mut known = BTreeSet::new();
    // A READ request takes as many PSNs as its responses.
    let mtu = frames.iter().map(|seen| seen.payload_bytes).max().unwrap_or(0).max(1);
    let mut end = None;
    let mut sequence = Vec::new();
    let mut reads_asked = Vec::new();
    let mut reads = Vec::<Read>::new();
    let sent = frames.iter().filter(|seen| seen.from == side && seen.kind.is_response() != asks);
    for seen in sent {
        let opcode = format!("0x{:02x}", seen.opcode);
        add("BTH MigReq".into(), u8::from(seen.mig_req).to_string());
        add("BTH P_Key".into(), format!("0x{:04x}", seen.pkey));
        add("BTH FECN, BECN, reserved".into(), seen.byte4.to_string());
        add("BTH TVer".into(), seen.version.to_string());
        add("UDP checksum".into(), if seen.udp_checksum == 0 { "0" } else { "set" }.into());
        add("UDP source port".into(), port_of(seen.source_port).into());
        add("bytes behind the packet".into(), seen.trailer_bytes.to_string());
        let ip = seen.ip;
        let family = if ip.is_v4 { "IPv4" } else { "IPv6" };
        add(format!("{family} DSCP"), (ip.traffic_class >> 2).to_string());
        add(format!("{family} ECN"), (ip.traffic_class & 3).to_string());
        add(format!("{family} hop limit"), ip.hop_limit.to_string());
        if ip.is_v4 {
            add("IPv4 identification".into(), if ip.id == 0 { "0" } else { "counts" }.into());
            add("IPv4 DF".into(), u8::from(ip.dont_fragment).to_string());
        } else {
            add("IPv6 flow label".into(), if ip.flow_label == 0 { "0" } else { "set" }.into());
        }
        if let Some(syndrome) = seen.syndrome {
            // Of an ACK its low five bits are credits.
            let is_ack = syndrome >> 5 == 0;
            let kind = if is_ack { "ACK".to_owned() } else { format!("0x{syndrome:02x}") };
            add(format!("AETH syndrome of {opcode}"), kind);
            if is_ack {
                let credits = if syndrome == 0x1f { "31 (none)" } else { "the receives that are posted" };
                add("AETH credits".into(), credits.into());
            }
        }
        if !known.insert((seen.psn, seen.kind)) || is_rest_of_one(&reads_asked, seen) || is_question(end, seen) {
            // Sent again.
            continue;
        }
        let bytes = if seen.kind == Kind::ReadRequest { seen.dma_bytes.unwrap_or(0) } else { 0 };
        end = Some(seen.psn.wrapping_add(bytes.div_ceil(mtu).max(1)));
        if seen.kind == Kind::ReadRequest {
            reads_asked.push((seen.psn, seen.dma_bytes.unwrap_or(0)));
            let read = Read::of(seen, sequence.len());
            if !reads.last_mut().is_some_and(|last| last.goes_on_with(&read)) {
                reads.push(read);
            }
        }
        add(format!("BTH SE of {opcode}"), u8::from(seen.solicited).to_string());
        add(format!("BTH pad of {opcode}"), seen.pad.to_string());
        if seen.ends {
            add(format!("BTH AckReq of {opcode}"), u8::from(seen.ack_request).to_string());
        } else if asks {
            add("BTH AckReq within a message".into(), u8::from(seen.ack_request).to_string());
        }
        if seen.kind != Kind::ReadRequest {
            sequence.push(format!("{opcode}:{}:{}", seen.payload_bytes, seen.dma_bytes.unwrap_or(0)));
        }
    }
    if asks {
        let asked: Vec<_> = reads.iter().map(|read| read.bytes.to_string()).collect();
        add("READs".into(), format!("{} of {}", asked.len(), sum(asked.join(" "))));
        add(
            "other packets, their lengths and order".into(),
            format!("{} of {}", sequence.len(), sum(sequence.join(" "))),
        );
    } else {
        add("one ACK".into(), coalescing(frames, side).into());
    }
    fields
}

/// Whether this is a duplicate of no bytes, by which a requester asks for an ACK of requests up to,
/// and not including, the PSN `end`.
fn is_question(end: Option<u32>, seen: &Seen) -> bool {
    // 24 bits: a difference with the uppermost set is negative.
    let is_before = |end: u32| (end.wrapping_sub(seen.psn) & 0xff_ffff).wrapping_sub(1) < 0x7f_ffff;
    matches!(seen.kind, Kind::Send | Kind::Write) && seen.payload_bytes == 0 && end.is_some_and(is_before)
}

/// The range of one READ, by one request or several: roced asks for a long one in parts.
#[derive(Debug)]
struct Read {
    va: u64,
    bytes: u64,
    /// Other packets that were sent before it.
    after: usize,
}

impl Read {
    fn of(request: &Seen, after: usize) -> Self {
        Self { va: request.dma_va.unwrap_or(0), bytes: request.dma_bytes.unwrap_or(0).into(), after }
    }

    /// Whether the next request asks for the bytes that follow, and nothing else was sent between
    /// them. It is counted in.
    fn goes_on_with(&mut self, next: &Self) -> bool {
        let goes_on = next.va == self.va + self.bytes && next.after == self.after && self.bytes > 0;
        self.bytes += if goes_on { next.bytes } else { 0 };
        goes_on
    }
}

/// Whether a READ request asks for the rest of an earlier one (PSN, bytes), of which some has come:
/// by whole packets of some path MTU later, and shorter by as much.
fn is_rest_of_one(asked: &[(u32, u32)], seen: &Seen) -> bool {
    const PSN_MASK: u32 = 0xff_ffff;
    let bytes = seen.dma_bytes.unwrap_or(0);
    let is_of = |(psn, whole): &(u32, u32)| {
        let packets = seen.psn.wrapping_sub(*psn) & PSN_MASK;
        let came = [256, 512, 1024, 2048, 4096].map(|mtu| packets.checked_mul(mtu));
        packets > 0 && came.into_iter().flatten().any(|came| whole.checked_sub(came) == Some(bytes) && bytes > 0)
    };
    seen.kind == Kind::ReadRequest && asked.iter().any(is_of)
}

/// Whether each message has an ACK of its own.
fn coalescing(frames: &[Seen], side: Side) -> &'static str {
    let acks: BTreeSet<_> =
        frames.iter().filter(|seen| seen.from == side && seen.kind == Kind::Ack).map(|seen| seen.psn).collect();
    let is_end = |seen: &&Seen| seen.from != side && seen.ends && matches!(seen.kind, Kind::Send | Kind::Write);
    if frames.iter().filter(is_end).all(|seen| acks.contains(&seen.psn)) {
        "for each message"
    } else {
        "for several messages"
    }
}

/// Rxe makes it of both QPNs, and roced one more in each life of a queue pair: both of this range.
fn port_of(port: u16) -> &'static str {
    if port >= 0xc000 { "0xc000 to 0xffff" } else { "another" }
}

/// Tells texts apart.
fn sum(text: String) -> String {
    let sum = text.bytes().fold(0xcbf2_9ce4_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{sum:08x}")
}

/// Of a connection with flow label 0, as Linux and the drivers of adapters choose it.
pub(crate) fn source_port(a: u32, b: u32) -> u16 {
    let mut value = u64::from(a) * u64::from(b);
    value ^= value >> 20;
    value ^= value >> 40;
    let label = (value & 0xf_ffff) as u32;
    port_of_label(label)
}

/// UDP source port of a flow label, as annex A17 has it in Linux.
pub(crate) fn port_of_label(label: u32) -> u16 {
    (((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) | 0xc000) as u16
}

#[cfg(test)]
mod tests {
    use roced_captures::directory;

    use super::*;
    use crate::trace;

    /// Host A of the recordings, which are of two rxe, stands for rxe. With B's part changed where
    /// it stands for roced.
    fn differences(change: impl Fn(&mut Seen)) -> Vec<Difference> {
        let file = directory().join("rc_mix.pcap");
        let read = |mac: [u8; 6]| trace::read(&file, mac, &BTreeSet::new()).expect("it is read");
        let (a, b) = ([0x52, 0x54, 0x00, 0x77, 0x00, 0x01], [0x52, 0x54, 0x00, 0x77, 0x00, 0x02]);
        // A asks. So where B stands for rxe, roced asks.
        let mut ours = read(b);
        let mut theirs = read(a);
        for seen in ours.iter_mut().chain(&mut theirs).filter(|seen| seen.from == Side::Roced) {
            change(seen);
        }
        compare([&[ours.clone(), ours], &[theirs.clone(), theirs]])
    }

    #[test]
    fn two_of_a_kind_do_not_differ() {
        assert_eq!(differences(|_| ()), []);
    }

    /// As a requester asks that has waited long enough.
    #[test]
    fn the_rest_of_a_read_is_not_another_read() {
        let file = directory().join("rc_mix.pcap");
        let trace = trace::read(&file, [0x52, 0x54, 0x00, 0x77, 0x00, 0x02], &BTreeSet::new()).expect("it is read");
        let read = trace.iter().find(|seen| seen.kind == Kind::ReadRequest).expect("there is one");
        let at = |psn: u32, bytes| Seen { psn: psn & 0xff_ffff, dma_bytes: Some(bytes), ..read.clone() };
        let asked = [(0xff_fffe, 3072), (5, 100)];
        for (psn, bytes, is_rest) in [
            (0xff_ffff, 2048, true),
            (0x100_0000, 1024, true),
            (0xff_fffe, 3072, false),
            (0xff_ffff, 1024, true),
            (0xff_ffff, 3072, false),
            (0x100_0001, 3072, false),
            (0x100_0000, 2047, false),
            (0x100_0001, 0, false),
            (6, 100, false),
        ] {
            assert_eq!(is_rest_of_one(&asked, &at(psn, bytes)), is_rest, "{psn:x} {bytes}");
        }
        assert!(!is_rest_of_one(&asked, &Seen { kind: Kind::Write, ..at(0xff_ffff, 2048) }));
    }

    #[test]
    fn a_question_about_earlier_requests_is_no_other_packet() {
        let file = directory().join("rc_mix.pcap");
        let trace = trace::read(&file, [0x52, 0x54, 0x00, 0x77, 0x00, 0x02], &BTreeSet::new()).expect("it is read");
        let send = trace.iter().find(|seen| seen.kind == Kind::Send).expect("there is one");
        let at = |psn: u32, payload_bytes| Seen { psn: psn & 0xff_ffff, payload_bytes, ..send.clone() };
        for (end, psn, bytes, is) in [
            (Some(5), 4, 0, true),
            (Some(5), 0x100_0000 - 1, 0, true),
            (Some(5), 4, 1, false),
            (Some(5), 5, 0, false),
            (Some(5), 6, 0, false),
            (Some(0xff_ffff), 0, 0, false),
            (None, 4, 0, false),
        ] {
            assert_eq!(is_question(end, &at(psn, bytes)), is, "{end:?} {psn:x} {bytes}");
        }
        assert!(!is_question(Some(5), &Seen { kind: Kind::ReadRequest, ..at(4, 0) }));
    }

    #[test]
    fn a_read_in_parts_is_one_read() {
        let read = |va, bytes, after| Read { va, bytes, after };
        let mut whole = read(4096, 8192, 3);
        assert!(whole.goes_on_with(&read(12288, 100, 3)));
        assert_eq!(whole.bytes, 8292);
        for other in [read(12288, 100, 3), read(12388, 100, 4), read(4096, 8292, 3)] {
            assert!(!whole.goes_on_with(&other), "{other:?}");
        }
        assert_eq!(whole.bytes, 8292);
    }

    #[test]
    fn a_difference_is_found_and_its_reason_if_it_has_one() {
        let found = differences(|seen| seen.mig_req = true);
        assert_eq!(
            found.iter().map(|it| (it.role, it.field.as_str())).collect::<Vec<_>>(),
            [("asks", "BTH MigReq"), ("answers", "BTH MigReq")]
        );
        assert!(found.iter().all(|it| it.reason().is_some()));
        let found = differences(|seen| seen.ip.hop_limit = 1);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|it| it.reason().is_none()));
        let found = differences(|seen| seen.ack_request = seen.kind == Kind::Write && !seen.ends);
        assert!(
            found.iter().any(|it| it.field == "BTH AckReq of 0x03") && found.iter().any(|it| it.reason().is_some())
        );
    }
}
