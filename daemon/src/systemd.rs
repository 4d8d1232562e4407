//! The service manager: told when the daemon serves, that it is alive, and when it stops. Without
//! one, nothing happens.

use std::{
    env,
    time::{Duration, Instant},
};

use sd_notify::NotifyState;
use tracing::warn;

/// Notifications that systemd expects of this process.
#[derive(Debug)]
pub struct ServiceManager {
    listens: bool,
    watchdog_interval: Option<Duration>,
    watchdog_due: Option<Instant>,
}

impl ServiceManager {
    /// As the environment says (`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`).
    pub fn from_environment() -> Self {
        Self { listens: env::var_os("NOTIFY_SOCKET").is_some(), ..Self::new(sd_notify::watchdog_enabled()) }
    }

    /// Returns true if a service manager listens.
    pub const fn listens(&self) -> bool {
        self.listens
    }

    /// One that must hear from us at least every `watchdog_timeout`, if there is one. It does twice
    /// as often, as sd_watchdog_enabled(3) advises.
    pub fn new(watchdog_timeout: Option<Duration>) -> Self {
        Self { listens: false, watchdog_interval: watchdog_timeout.map(|timeout| timeout / 2), watchdog_due: None }
    }

    /// Says that every device serves, or that the daemon waits for an interface. From here on the
    /// watchdog runs.
    pub fn ready(&mut self, now: Instant, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
        self.watchdog_due = self.watchdog_interval.map(|interval| now + interval);
    }

    /// Says in a line how things are, for `systemctl status`.
    pub fn status(&self, status: &str) {
        notify(&[NotifyState::Status(status)]);
    }

    /// Says that the config is read again, until [`Self::reloaded`].
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => warn!(%error, "no time for the service manager"),
        }
    }

    /// Says that the daemon serves with the config that it has now.
    pub fn reloaded(&self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Says that the daemon has begun to stop.
    pub fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }

    /// When [`Self::on_deadline`] wants to be called.
    pub const fn deadline(&self) -> Option<Instant> {
        self.watchdog_due
    }

    /// Tells the watchdog that the control thread is alive, if it is time to. Workers that are stuck
    /// are the daemon's own matter.
    pub fn on_deadline(&mut self, now: Instant) {
        if self.watchdog_due.is_none_or(|due| now < due) {
            return;
        }
        notify(&[NotifyState::Watchdog]);
        self.watchdog_due = self.watchdog_interval.map(|interval| now + interval);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "the service manager does not listen");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_hears_from_us_at_half_its_time_once_ready() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut manager = ServiceManager::new(Some(Duration::from_secs(10)));
        assert_eq!(manager.deadline(), None, "systemd's own start time-out counts until ready");
        manager.ready(start, "serving");
        assert_eq!(manager.deadline(), Some(after(5000)));
        manager.on_deadline(after(4999));
        assert_eq!(manager.deadline(), Some(after(5000)));
        manager.on_deadline(after(5100));
        assert_eq!(manager.deadline(), Some(after(10_100)));
    }

    #[test]
    fn without_a_watchdog_there_is_no_deadline() {
        let mut manager = ServiceManager::new(None);
        manager.ready(Instant::now(), "serving");
        manager.on_deadline(Instant::now());
        assert_eq!(manager.deadline(), None);
    }
}
