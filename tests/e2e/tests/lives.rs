//! Frames of an earlier life of a connection: recorded on the switch, and sent once more while the
//! next life is running.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    Settings,
    lab::{Host, Lab},
    memory::introduce,
    program::Program,
    wire::tshark,
};

/// No life takes longer.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn frames_of_an_earlier_life_harm_no_other_queue_pair(settings: &Settings) -> Result<()> {
    live_twice(settings, "another")
}

pub(crate) fn frames_of_an_earlier_life_harm_no_queue_pair_that_was_reset(settings: &Settings) -> Result<()> {
    live_twice(settings, "reset")
}

/// How recorded frames come back: one by one on few live frames; some in a row on more, at once and
/// when much has passed meanwhile.
const PACES: [&[&str]; 3] =
    [&["--every", "5"], &["--every", "40", "--burst", "8"], &["--every", "40", "--burst", "8", "--delay", "2000"]];

fn live_twice(settings: &Settings, between: &str) -> Result<()> {
    let connections = if settings.full { "1000" } else { "32" };
    let lab = Lab::up(&["--switch"])?;
    for pace in PACES {
        both_lives(&lab, settings, connections, between, pace).with_context(|| format!("{between}, {pace:?}"))?;
    }
    Ok(())
}

/// Each queue pair has one UDP source port in a life, and the one behind it in the next. And
/// without a replay two lives of the same queue pairs do each other no harm.
pub(crate) fn a_queue_pair_has_one_source_port_in_each_life(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let folder = tempfile::tempdir()?;
    let mut a = lab.start(Host::A, settings.client, &["live-twice", "a", "32", "reset"])?;
    let mut b = lab.start(Host::B, settings.client, &["live-twice", "b", "32", "reset"])?;
    let mut lives = Vec::new();
    for name in ["first.pcap", "second.pcap"] {
        let file = folder.path().join(name);
        let recording = lab.record(&file)?;
        lived(&mut a, &mut b)?;
        recording.stop()?;
        lives.push(source_ports(&file)?);
        go_on(&mut a, &mut b)?;
    }
    for side in [&mut a, &mut b] {
        side.expect("unharmed", LIMIT)?;
    }
    ensure!(lives[0].len() == 64, "{} queue pairs sent something, not 64", lives[0].len());
    for (flow, port) in &lives[0] {
        let next = lives[1].get(flow).with_context(|| format!("{flow:?} sent nothing in its second life"))?;
        ensure!(
            *next == port.wrapping_add(1) | 0xc000,
            "{flow:?}: port {port} in the first life, {next} in the second"
        );
    }
    Ok(())
}

/// The UDP source port of each sender's frames to each queue pair, which is one.
fn source_ports(file: &Path) -> Result<BTreeMap<(String, String), u16>> {
    let mut ports = BTreeMap::new();
    for line in tshark(file, "udp.dstport == 4791", &["ip.src", "infiniband.bth.destqp", "udp.srcport"])? {
        let [source, qpn, port] = line.split('\t').collect::<Vec<_>>()[..] else {
            bail!("'{line}' is not three fields")
        };
        let port: u16 = port.parse()?;
        let first = *ports.entry((source.to_owned(), qpn.to_owned())).or_insert(port);
        ensure!(first == port && port >= 0xc000, "{source} to {qpn}: port {first}, then {port}");
    }
    Ok(ports)
}

fn both_lives(lab: &Lab, settings: &Settings, connections: &str, between: &str, pace: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("first-life.pcap");
    let mut a = lab.start(Host::A, settings.client, &["live-twice", "a", connections, between])?;
    let mut b = lab.start(Host::B, settings.client, &["live-twice", "b", connections, between])?;

    let recording = lab.record(&file)?;
    lived(&mut a, &mut b)?;
    recording.stop()?;

    let replay = lab.replay(&file, pace)?;
    go_on(&mut a, &mut b)?;
    lived(&mut a, &mut b)?;
    let done = replay.stop()?;
    print!("\n    {between}, {}: {done}", pace.join(" "));
    go_on(&mut a, &mut b)?;
    for side in [&mut a, &mut b] {
        side.expect("unharmed", LIMIT)?;
    }
    let replayed: u64 = number_before(&done, " frames beside")?;
    let same: u64 = number_before(&done, " to the same")?;
    let live: u64 = number_before(&done, " live ones")?;
    ensure!(replayed * 10 > live, "only {replayed} frames came back: {done}");
    ensure!(between != "reset" || same == replayed, "not all were for queue pairs that live: {done}");
    Ok(())
}

/// The number that stands before `what`.
fn number_before(text: &str, what: &str) -> Result<u64> {
    let (before, _) = text.split_once(what).with_context(|| format!("'{text}' does not say '{what}'"))?;
    Ok(before.rsplit(' ').next().expect("there is always a last one").parse()?)
}

fn lived(a: &mut Program, b: &mut Program) -> Result<()> {
    introduce(a, b)?;
    a.expect("lived", LIMIT)?;
    b.expect("lived", LIMIT)
}

fn go_on(a: &mut Program, b: &mut Program) -> Result<()> {
    a.say("go on")?;
    b.say("go on")
}
