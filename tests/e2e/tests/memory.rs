//! Memory that peers reach: when their bytes may be seen, and the effects when it goes away.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
    program::Program,
};

/// No run takes longer, with frames lost on the way.
const LIMIT: Duration = Duration::from_secs(120);

/// WRITEs of 1 B to 1 MiB to a receiver that polls the last byte, while frames get lost.
pub(crate) fn the_last_byte_never_comes_before_an_older_one(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    lab.fault(&["--drop", "1%"])?;
    for mtu in ["256", "1024", "4096"] {
        let rounds = if settings.full { "4000" } else { "200" };
        let mut watch = lab.start(Host::B, settings.client, &["watch", rounds, mtu])?;
        let mut write = lab.start(Host::A, settings.client, &["write", rounds, mtu])?;
        introduce(&mut write, &mut watch)?;
        write.expect("done", LIMIT)?;
        watch.expect("done", LIMIT)?;
    }
    ensure!(lab.faults()?["dropped"] > 0, "no frame was lost");
    Ok(())
}

/// Carries the word of where each is to the other, and lets both go on when both are connected.
pub(crate) fn introduce(one: &mut Program, other: &mut Program) -> Result<()> {
    let (first, second) = (one.line(SOON)?, other.line(SOON)?);
    one.say(&second)?;
    other.say(&first)?;
    one.expect("connected", SOON)?;
    other.expect("connected", SOON)?;
    one.say("both connected")?;
    other.say("both connected")
}

/// A memory region that goes away under a transfer ends it with a protection error; the daemons
/// live and serve.
pub(crate) fn deregistering_under_way_is_a_protection_error(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let daemons = (lab.daemon(Host::A)?, lab.daemon(Host::B)?);
    for direction in ["write", "read"] {
        for side in [Side::Exposed, Side::Local, Side::LocalDuringRetransmission] {
            under_way(&lab, settings, direction, side).with_context(|| format!("{direction}, {side:?}"))?;
        }
    }
    ensure!(daemons == (lab.daemon(Host::A)?, lab.daemon(Host::B)?), "a daemon died");
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])
}

/// The side with the region that goes, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Exposed,
    Local,
    LocalDuringRetransmission,
}

fn under_way(lab: &Lab, settings: &Settings, direction: &str, side: Side) -> Result<()> {
    let bytes = settings.region_bytes();
    let mut expose = lab.start(Host::B, settings.client, &["expose", bytes])?;
    let mut transfer = lab.start(Host::A, settings.client, &["transfer", direction, bytes])?;
    introduce(&mut transfer, &mut expose)?;
    transfer.expect("posted", SOON)?;
    thread::sleep(Duration::from_millis(20));
    if side == Side::LocalDuringRetransmission {
        lab.fault(&["--drop", "100%"])?;
        thread::sleep(Duration::from_millis(200));
    }
    let dropper = if side == Side::Exposed { &mut expose } else { &mut transfer };
    dropper.say("deregister")?;
    dropper.expect("deregistered", SOON)?;
    lab.fault(&["off"])?;
    if side == Side::Exposed {
        transfer.say("wait")?;
    }
    let wanted = if side == Side::Exposed { "ended RemoteAccess" } else { "ended LocalProtection" };
    transfer.expect(wanted, LIMIT)
}
