//! Memory windows, as two hosts have them.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    Settings,
    lab::{Host, Lab, SOON},
    memory::introduce,
};

/// No run takes longer, with frames lost on the way.
const LIMIT: Duration = Duration::from_secs(120);

/// Windows are bound, used, taken back by the borrower's SEND and by the lender, while frames get
/// lost. The lender's queue pairs are of different workers: a window that one binds opens on the
/// other, and stays closed there once it is taken back.
pub(crate) fn a_bound_window_is_open_and_an_invalidated_one_is_closed(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--queues", "2", "--workers", "2"])?;
    lab.fault(&["--drop", "1%", "--duplicate", "1%", "--nth", "0x17:3:drop", "--nth", "0x17:9:duplicate"])?;
    let rounds = if settings.full { "5000" } else { "300" };
    let mut lender = lab.start(Host::B, settings.client, &["lend", rounds])?;
    let mut borrower = lab.start(Host::A, settings.client, &["borrow", rounds])?;
    for _connection in 0..2 {
        introduce(&mut lender, &mut borrower)?;
    }
    lender.expect("taken back", LIMIT)?;
    ensure!(lab.faults()?["dropped"] > 0, "no frame was lost");
    lab.fault(&["off"])?;
    lender.say("go on")?;
    borrower.expect("borrowed", LIMIT)?;
    lender.expect("lent", LIMIT)?;
    let refused = lab.counter(Host::B, "device/roce0", "resp_remote_access_errors")?;
    ensure!(refused == 1, "one request was to be refused, and {refused} were");
    Ok(())
}

/// An unreliable connection lends and takes back as well; a request that comes too late is not
/// answered.
pub(crate) fn an_unreliable_connection_binds_and_invalidates_windows(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let mut lender = lab.start(Host::B, settings.client, &["lend-unreliably"])?;
    let mut borrower = lab.start(Host::A, settings.client, &["borrow-unreliably"])?;
    introduce(&mut lender, &mut borrower)?;
    borrower.say(&lender.line(SOON)?)?;
    lender.expect("taken back", SOON)?;
    borrower.say("go on")?;
    borrower.expect("borrowed", SOON)?;
    lender.expect("nothing came", SOON)?;
    let refused = lab.counter(Host::B, "device/roce0", "drop_remote_access")?;
    ensure!(refused > 0, "no packet was refused");
    Ok(())
}
