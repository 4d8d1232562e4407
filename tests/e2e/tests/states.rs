//! States of queue pairs, as two hosts have them.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    Settings,
    lab::{Host, Lab},
    memory::introduce,
};

/// A send queue drains in the middle of its work, with frames lost on the way, tells when it has,
/// stands still, and goes on.
pub(crate) fn a_send_queue_drains_and_goes_on(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    lab.fault(&["--drop", "1%"])?;
    let rounds = if settings.full { "400" } else { "20" };
    let mut expect = lab.start(Host::B, settings.client, &["expect"])?;
    let mut drain = lab.start(Host::A, settings.client, &["drain", rounds])?;
    introduce(&mut drain, &mut expect)?;
    drain.expect("drained", Duration::from_secs(120))?;
    expect.say("enough")?;
    ensure!(lab.faults()?["dropped"] > 0, "no frame was lost");
    Ok(())
}
