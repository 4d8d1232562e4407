//! Check and apply against a NIC behind the seam of netlink: it gets the bytes of requests, and
//! answers by bytes as drivers do.

use std::{collections::BTreeSet, io};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload, NetlinkSerializable as _};
use nix::errno::Errno;
use roced_xdp::{GlobalPause, dcb::DcbMessage, netlink::messages};

use super::*;

/// A driver with one priority for each DSCP removes the former entry by itself (mlx5); without, the
/// kernel's table keeps both.
#[derive(Clone, Copy, PartialEq)]
enum AppTable {
    Kernel,
    OnePriority,
}

/// A NIC and its driver.
struct ModelNic {
    /// None: no dcbnl.
    has_dcb: bool,
    dcbx: u8,
    willing: u8,
    pfc_enabled: u8,
    /// DSCP and priority.
    apps: BTreeSet<(u8, u8)>,
    app_table: AppTable,
    trust: Option<Vec<u8>>,
    pause: Option<GlobalPause>,
    /// Changes are refused by this error.
    refuses: Option<Errno>,
    /// PFC that is set stays without effect.
    ignores_pfc: bool,
    /// Commands and attributes of requests.
    requests: Vec<(u8, u16)>,
}

impl ModelNic {
    /// DCBX of the host and IEEE, everything off.
    fn new() -> Self {
        Self {
            has_dcb: true,
            dcbx: 0x09,
            willing: 0,
            pfc_enabled: 0,
            apps: BTreeSet::new(),
            app_table: AppTable::Kernel,
            trust: Some(vec![255]),
            pause: Some(GlobalPause::default()),
            refuses: None,
            ignores_pfc: false,
            requests: Vec::new(),
        }
    }

    fn settings(&self) -> Vec<u8> {
        let mut ets = [0; 59];
        ets[0] = self.willing;
        ets[27..35].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let mut pfc = [0; 136];
        // `delay` at 4 stays as it is when PFC is set.
        pfc[..6].copy_from_slice(&[8, self.pfc_enabled, 0, 0xcc, 7, 0]);
        let entry = |(dscp, priority): &(u8, u8)| {
            attribute(1, &[&[5, *priority][..], &u16::from(*dscp).to_ne_bytes()].concat())
        };
        let apps: Vec<u8> = self.apps.iter().flat_map(entry).collect();
        let mut ieee = [attribute(1, &ets), attribute(2, &pfc), attribute(3, &apps)].concat();
        if let Some(trust) = &self.trust {
            let entries =
                trust.iter().flat_map(|selector| attribute(if *selector == 255 { 2 } else { 1 }, &[*selector]));
            ieee.extend(attribute(11, &entries.collect::<Vec<_>>()));
        }
        [attribute(13, &ieee), attribute(14, &[self.dcbx])].concat()
    }

    fn change(&mut self, command: u8, kind: u16, value: &[u8]) -> Result<(), Errno> {
        if let Some(errno) = self.refuses {
            return Err(errno);
        }
        match (command, kind) {
            (20, 2) => {
                assert_eq!((value.len(), &value[4..6]), (136, &[7, 0][..]), "the rest is as it was read");
                if !self.ignores_pfc {
                    self.pfc_enabled = value[1];
                }
            }
            (20 | 27, 3) => {
                for (_, entry) in attributes(value) {
                    let [5, priority, dscp, 0] = entry[..] else { panic!("an entry of a DSCP: {entry:?}") };
                    if command == 27 {
                        assert!(self.apps.remove(&(dscp, priority)), "only entries that are there are removed");
                        continue;
                    }
                    if self.app_table == AppTable::OnePriority {
                        self.apps.retain(|(other, _)| *other != dscp);
                    }
                    assert!(self.apps.insert((dscp, priority)), "only missing entries are added (EEXIST)");
                }
            }
            (20, 11) => self.trust = Some(attributes(value).into_iter().map(|(_, selector)| selector[0]).collect()),
            other => panic!("no such change: {other:?}"),
        }
        Ok(())
    }
}

impl NicControl for &mut ModelNic {
    fn exchange(&mut self, request: DcbMessage) -> io::Result<Vec<DcbMessage>> {
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        if !self.has_dcb {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (command, sent) = (bytes[1], attributes(&bytes[4..]));
        assert_eq!(sent[0], (1, b"eth0\0".to_vec()));
        if request.message_type() == 78 {
            self.requests.push((command, 0));
            return Ok(replies(command, &self.settings()));
        }
        let changes = attributes(&sent[1].1);
        assert_eq!(changes.len(), 1, "one change in a request, so that an error is of one");
        let (kind, value) = &changes[0];
        self.requests.push((command, *kind));
        self.change(command, *kind, value)?;
        Ok(replies(command, &attribute(13, &[0])))
    }

    fn global_pause(&mut self, _interface: &str) -> io::Result<Option<GlobalPause>> {
        Ok(self.pause)
    }

    fn set_global_pause(&mut self, _interface: &str, pause: GlobalPause) -> io::Result<()> {
        self.requests.push((0, 0));
        if let Some(errno) = self.refuses {
            return Err(errno.into());
        }
        self.pause = Some(pause);
        Ok(())
    }
}

/// An attribute with its padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [&(value.len() as u16 + 4).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Kinds and values of well-made attributes.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    while let [a, b, c, d, ..] = bytes {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        all.push((u16::from_ne_bytes([*c, *d]) & 0x3fff, bytes[4..length].to_vec()));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// The messages of a datagram, as the socket gives it.
fn replies(command: u8, attributes: &[u8]) -> Vec<DcbMessage> {
    let payload = [&[0, command, 0, 0], attributes].concat();
    let length = 16 + payload.len();
    // Type RTM_GETDCB, flags, sequence number and port.
    let header = [&(length as u32).to_ne_bytes()[..], &78u16.to_ne_bytes(), &[0; 10]].concat();
    assert_eq!(header.len(), 16);
    let datagram = [header, payload].concat();
    let inner = |message: io::Result<NetlinkMessage<DcbMessage>>| match message.expect("well made").payload {
        NetlinkPayload::InnerMessage(inner) => inner,
        other => panic!("another message: {other:?}"),
    };
    messages(&datagram).map(inner).collect()
}

fn device(choice: DcbChoice) -> DeviceConfig {
    DeviceConfig {
        dcb: choice,
        lossless_priorities: PrioritySet::from_bits(0x08),
        dscp_prio: [(26, 3), (48, 6)].into(),
        ..DeviceConfig::new("roce0", "eth0")
    }
}

/// The state, and the requests that changed something.
fn settled(nic: &mut ModelNic, device: &DeviceConfig) -> (DcbReport, Vec<(u8, u16)>) {
    nic.requests.clear();
    let state = settle_by(&mut NicDcb::new("eth0", &mut *nic), device, 1500);
    state.log(device);
    let changes = nic.requests.iter().copied().filter(|(command, _)| *command != 21).collect();
    (state.report("eth0"), changes)
}

/// Everything is wrong that can be.
fn wrong() -> ModelNic {
    let mut nic = ModelNic::new();
    nic.pfc_enabled = 0x10;
    nic.apps = [(26, 0), (10, 1)].into();
    nic.pause = Some(GlobalPause { autoneg: true, rx: true, tx: true });
    nic
}

const PAUSE: (u8, u16) = (0, 0);
const PFC: (u8, u16) = (20, 2);
const APPS: (u8, u16) = (20, 3);
const APPS_REMOVED: (u8, u16) = (27, 3);
const TRUST: (u8, u16) = (20, 11);

#[test]
fn a_check_finds_and_writes_nothing() {
    let mut nic = wrong();
    let (report, changes) = settled(&mut nic, &device(DcbChoice::Check));
    assert_eq!((report.state.as_str(), report.mode.as_str(), report.findings.len()), ("differs", "check", 4));
    assert_eq!((changes, nic.requests.len()), (vec![], 1));
    assert_eq!(report.lossless_priorities, [4]);
    assert_eq!(report.dscp_prio, BTreeMap::from([(10, vec![1]), (26, vec![0])]));
    let commands: Vec<_> = report.findings.iter().map(|finding| finding.command.as_str()).collect();
    let expected = [
        "ethtool -A eth0 autoneg off rx off tx off",
        "dcb pfc set dev eth0 prio-pfc 3:on",
        "dcb app replace dev eth0 dscp-prio 26:3 48:6",
        "dcb apptrust set dev eth0 order dscp pcp",
    ];
    assert_eq!(commands, expected);
}

#[test]
fn a_default_config_asks_once_and_reports_nothing() {
    let mut nic = wrong();
    let (report, changes) = settled(&mut nic, &DeviceConfig::new("roce0", "eth0"));
    assert_eq!((report.state.as_str(), report.findings.len()), ("nothing wanted", 0));
    assert_eq!((changes, nic.requests.len()), (vec![], 1));
    let (report, _) = settled(&mut nic, &DeviceConfig { dcb: DcbChoice::Apply, ..DeviceConfig::new("roce0", "eth0") });
    assert_eq!((report.state.as_str(), nic.requests.len()), ("nothing wanted", 1));
}

#[test]
fn differences_are_written_once_and_read_back() {
    for app_table in [AppTable::Kernel, AppTable::OnePriority] {
        let mut nic = ModelNic { app_table, ..wrong() };
        let (report, changes) = settled(&mut nic, &device(DcbChoice::Apply));
        assert_eq!((report.state.as_str(), report.problem.as_str()), ("as configured", ""), "{report:?}");
        let expected = match app_table {
            AppTable::Kernel => vec![PAUSE, PFC, APPS, APPS_REMOVED, TRUST],
            AppTable::OnePriority => vec![PAUSE, PFC, APPS, TRUST],
        };
        assert_eq!(changes, expected);
        assert_eq!(nic.pfc_enabled, 0x18, "priority 4 keeps its flow control");
        assert_eq!(nic.apps, [(10, 1), (26, 3), (48, 6)].into(), "DSCP 10 keeps its priority");
        assert_eq!((nic.trust.clone(), nic.pause), (Some(vec![5, 255]), Some(GlobalPause::default())));
        let (report, changes) = settled(&mut nic, &device(DcbChoice::Apply));
        assert_eq!((report.state.as_str(), changes), ("as configured", vec![]), "nothing differs any more");
    }
}

#[test]
fn settings_that_are_good_are_not_written() {
    let mut nic = ModelNic { trust: None, pause: None, pfc_enabled: 0x08, ..ModelNic::new() };
    nic.apps = [(26, 3)].into();
    let (report, changes) = settled(&mut nic, &device(DcbChoice::Apply));
    assert_eq!((report.state.as_str(), changes), ("as configured", vec![APPS]));
    assert_eq!(nic.apps, [(26, 3), (48, 6)].into());
    nic.apps.insert((26, 5));
    let (_, changes) = settled(&mut nic, &device(DcbChoice::Apply));
    assert_eq!((changes, nic.apps.len()), (vec![APPS_REMOVED], 2));
}

/// Flags as drivers with an agent in firmware give them, and `willing` of an agent of the host.
#[test]
fn apply_is_refused_where_an_agent_owns_the_settings() {
    for (dcbx, willing, reason) in [
        (0x0e, 0, "firmware's DCBX agent"),
        (0x0a, 1, "firmware's DCBX agent"),
        (0x0c, 0, "firmware's DCBX agent"),
        (0x09, 1, "lldpad, lldpd"),
    ] {
        let mut nic = ModelNic { dcbx, willing, ..wrong() };
        let (report, changes) = settled(&mut nic, &device(DcbChoice::Apply));
        assert_eq!((changes, nic.pfc_enabled), (vec![], 0x10), "{dcbx:#x}");
        assert!(report.problem.starts_with("nothing was written: ") && report.problem.contains(reason), "{report:?}");
        assert_eq!(
            (report.state.as_str(), report.findings.len()),
            ("differs", 4),
            "differences are reported all the same"
        );
        let mut good = ModelNic { dcbx, willing, trust: None, pfc_enabled: 0x08, ..ModelNic::new() };
        good.apps = [(26, 3), (48, 6)].into();
        let (report, _) = settled(&mut good, &device(DcbChoice::Apply));
        assert_eq!((report.state.as_str(), report.problem.as_str()), ("as configured", ""), "set by the agent");
    }
}

#[test]
fn changes_that_fail_or_have_no_effect_are_reported() {
    let mut nic = ModelNic { refuses: Some(Errno::EPERM), ..wrong() };
    let (report, changes) = settled(&mut nic, &device(DcbChoice::Apply));
    assert_eq!(changes, [PAUSE, PFC, APPS, TRUST], "each is tried");
    assert_eq!((report.state.as_str(), report.findings.len()), ("differs", 4));
    assert!(report.problem.contains("PFC was not written: ") && report.problem.contains("CAP_NET_ADMIN"), "{report:?}");
    let mut nic = ModelNic { ignores_pfc: true, ..wrong() };
    let (report, _) = settled(&mut nic, &device(DcbChoice::Apply));
    assert_eq!((report.state.as_str(), report.findings.len(), report.problem.as_str()), ("differs", 1, ""));
    assert_eq!(report.findings[0].problem, "PFC is off for priority 3");
}

#[test]
fn a_driver_without_dcb_is_no_fault() {
    for choice in [DcbChoice::Check, DcbChoice::Apply] {
        let mut nic = ModelNic { has_dcb: false, ..wrong() };
        let (report, changes) = settled(&mut nic, &device(choice));
        assert_eq!((report.state.as_str(), report.problem.as_str(), changes), ("unsupported", "", vec![]));
        assert!(report.findings.is_empty());
    }
}

/// The kernel itself answers, for an interface without a driver.
#[test]
fn the_loopback_has_no_dcb_and_an_ignored_device_is_not_asked() {
    let state = |choice, interface: &str| {
        let device = DeviceConfig { interface: interface.to_owned(), ..device(choice) };
        settle(&device, 1500).report(interface).state
    };
    assert_eq!(state(DcbChoice::Check, "lo"), "unsupported");
    assert_eq!(state(DcbChoice::Apply, "lo"), "unsupported");
    assert_eq!(state(DcbChoice::Check, "none-such-if"), "unreadable");
    assert_eq!(state(DcbChoice::Ignore, "none-such-if"), "ignored");
    let config = Config {
        devices: vec![DeviceConfig { interface: "lo".to_owned(), ..device(DcbChoice::Apply) }],
        ..Config::default()
    };
    let lines = remarks(&config);
    assert!(lines.len() == 1 && lines[0].starts_with("device roce0: the driver of lo has no DCB"), "{lines:?}");
    assert!(remarks(&Config { devices: vec![DeviceConfig::new("roce0", "lo")], ..Config::default() }).is_empty());
}
