//! The start under a service manager while an interface of the config is not there: a driver may
//! bring it long after the boot. The daemon waits, and its log says once for which one; a daemon
//! that failed would be started again every two seconds, with seven lines of the journal each time.

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signalfd::SignalFd,
};
use tracing::{error, info, warn};

use super::{
    Order, order,
    start::{self, Checked},
};
use crate::{
    config::{Config, ConfigSource},
    net::NetError,
    systemd::ServiceManager,
};

/// The pause between two looks. A guess: drivers and hypervisors take about as long.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Checks `config`, again and again while an interface is not there. `None` when a signal has ended
/// the wait. A reload meanwhile replaces the config.
///
/// # Errors
/// The first problem of another kind; every problem without a service manager.
pub(super) fn check(
    config: &mut Config,
    source: &ConfigSource,
    signals: &SignalFd,
    service: &mut ServiceManager,
) -> anyhow::Result<Option<Checked>> {
    let mut told = String::new();
    loop {
        let problem = match start::check(config) {
            Ok(checked) => return Ok(Some(checked)),
            Err(problem) if service.listens() && is_absence(&problem) => format!("{problem:#}"),
            Err(problem) => return Err(problem),
        };
        if told != problem {
            warn!("{problem}; roced starts when it is there, or with another config (`systemctl reload roced`)");
            // Not an end of the start: that could have to wait for the interface for ever.
            service.ready(Instant::now(), &format!("waiting: {problem}"));
            told = problem;
        }
        match next_order(signals)? {
            Order::Stop => {
                service.stopping();
                return Ok(None);
            }
            Order::Reload => reload(config, source, service, &told),
            Order::Nothing => {}
        }
        service.on_deadline(Instant::now());
    }
}

fn is_absence(problem: &anyhow::Error) -> bool {
    matches!(problem.downcast_ref(), Some(NetError::NoSuchInterface(_)))
}

/// The order of a signal, or after a while none.
fn next_order(signals: &SignalFd) -> anyhow::Result<Order> {
    let timeout = PollTimeout::try_from(LOOK_AGAIN).expect("seconds");
    match poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno).context("the control thread cannot wait"),
    }
    let signal = signals.read_signal().context("cannot read signals")?;
    Ok(signal.map_or(Order::Nothing, |signal| order(&signal)))
}

fn reload(config: &mut Config, source: &ConfigSource, service: &ServiceManager, status: &str) {
    service.reloading();
    let file = source.file.display().to_string();
    match Config::load(&source.file) {
        Ok(new) => {
            (source.set_log_level)(new.log.level);
            info!(file, "config read again");
            *config = new;
        }
        Err(problem) => error!(file, %problem, "the config is wrong: nothing was changed"),
    }
    service.reloaded(&format!("waiting: {status}"));
}
