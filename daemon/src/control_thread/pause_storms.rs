//! Storms of pauses (PFC) in the log.

use std::{collections::BTreeMap, time::Instant};

use roced_transport::turns::class_pause::PauseStorm;
use roced_types::DeviceId;
use tracing::{info, warn};

use crate::{
    config::{DeviceConfig, WatchdogChoice},
    log_limiter::LogLimiter,
};

/// Tells storms, a few lines a second of each device: a neighbor can cause one in each 20 ms.
#[derive(Debug, Default)]
pub(super) struct PauseStormLog(BTreeMap<DeviceId, LogLimiter>);

impl PauseStormLog {
    pub(super) fn tell(&mut self, id: DeviceId, device: &DeviceConfig, storm: PauseStorm) {
        let Some(held_back) = self.0.entry(id).or_default().admit(Instant::now()) else { return };
        let (name, interface, class) = (&device.name, &device.interface, storm.class);
        if !storm.begins {
            return info!(
                device = name,
                interface, class, held_back, "the storm of pauses is over: they are honored again"
            );
        }
        let effect = if device.pfc.watchdog == WatchdogChoice::Report { "wait" } else { "leave in spite of it" };
        warn!(
            device = name,
            interface,
            class,
            held_back,
            "the other end of the link pauses without an end; frames of the class {effect}: look for a receiver that \
             stands still, or a loop of pauses (docs/fabric.md)"
        );
    }
}
