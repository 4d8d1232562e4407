//! Differences between the config in force and a later one: which can be applied while the daemon
//! runs, and which need a restart.

use super::{
    AccountLimits, AdminConfig, ClientLimits, CmLimits, Config, ControlConfig, DeviceConfig, DeviceLimits,
    LimitsConfig, LogConfig, NetConfig,
};

/// How a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// At once.
    Apply,
    /// By attaching the device to its interface again.
    Attach,
    /// By a restart of the daemon.
    Restart,
}

/// Differences of two configs, keys in the order of the config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys that can be applied.
    pub applied: Vec<String>,
    /// Keys that need a restart.
    pub restart: Vec<String>,
    /// Places of the devices to be attached again.
    pub attach: Vec<usize>,
}

/// A part of the config.
trait Section {
    /// Adds the differences of `new` to this one; `index` follows the section's name.
    fn compare(&self, new: &Self, index: &str, changes: &mut Changes);

    /// Takes over the values of `new` that can be applied while the daemon runs.
    fn apply_section(&mut self, new: &Self);
}

/// The effect of every field of a section, for comparing and for applying alike. Does not compile if
/// one is missing.
macro_rules! section {
    ($name:literal, $section:ident { $($field:ident => $effect:ident,)* }) => {
        impl Section for $section {
            fn compare(&self, new: &Self, index: &str, changes: &mut Changes) {
                let Self { $($field),* } = self;
                let section = format!("{}{index}", $name);
                $(if *$field != new.$field { changes.add(&section, stringify!($field), Effect::$effect); })*
            }

            fn apply_section(&mut self, new: &Self) {
                let Self { $($field),* } = self;
                $(if Effect::$effect != Effect::Restart { $field.clone_from(&new.$field); })*
            }
        }
    };
}

section!("log", LogConfig { level => Apply, target => Restart, });
section!("control", ControlConfig { socket => Restart, group => Restart, mode => Restart, });
section!("admin", AdminConfig { socket => Restart, group => Restart, });
section!("net", NetConfig { resolve_timeout_ms => Apply, denied_peers => Apply, });
section!("limits.account", AccountLimits {
    share_percent => Apply,
    clients => Apply,
    qps => Apply,
    cqs => Apply,
    channels => Apply,
    mrs => Apply,
    ahs => Apply,
    srqs => Apply,
    attachments => Apply,
    memory_mib => Apply,
    daemon_memory_mib => Apply,
    control_calls_per_second => Apply,
    max_rate_mbit => Apply,
});
section!("limits.client", ClientLimits {
    qps => Apply,
    // The workers' tables have the size of the limit.
    cqs => Restart,
    channels => Apply,
    mrs => Apply,
    pds => Apply,
    ahs => Apply,
    srqs => Apply,
    attachments => Apply,
    memory_mib => Apply,
    proxied_memory => Apply,
    // Memory that sessions have allocated before is not looked at again.
    unsealed_memory => Restart,
});
// Tables have the size of the limit.
section!("limits.device", DeviceLimits { qps => Restart, mrs => Restart, ahs => Restart, srqs => Restart, attachments => Restart, });
section!("limits.cm", CmLimits {
    connections => Apply,
    ids_of_account => Apply,
    channels_of_account => Apply,
    groups_of_account => Apply,
});
section!("device", DeviceConfig {
    name => Restart,
    interface => Restart,
    xdp_mode => Attach,
    copy_mode => Attach,
    napi => Attach,
    queues => Restart,
    umem_frames => Attach,
    chunk_bytes => Attach,
    rx_ring_entries => Attach,
    tx_ring_entries => Attach,
    fill_ring_entries => Attach,
    completion_ring_entries => Attach,
    queue_busy_ms => Attach,
    window_packets => Restart,
    total_window_packets => Restart,
    max_rate_mbit => Restart,
    roce => Restart,
    pkeys => Restart,
    credits => Restart,
    ecn => Restart,
    congestion_control => Restart,
    delay_guard_us => Restart,
    dcqcn => Restart,
    classes => Restart,
    pfc => Restart,
    cnp => Restart,
    min_time_between_cnps_us => Restart,
    cnp_dscp => Restart,
    cnp_802p_prio => Restart,
    cnp_except => Restart,
    dcb => Attach,
    lossless_priorities => Attach,
    dscp_prio => Attach,
    recovery => Restart,
    reorder_delay_us => Restart,
    probe_floor_us => Restart,
    out_of_order_packets => Restart,
});

fn device_names(config: &Config) -> Vec<&str> {
    config.devices.iter().map(|device| device.name.as_str()).collect()
}

impl Config {
    /// Differences of a later config to this one.
    pub fn changes(&self, new: &Self) -> Changes {
        let mut changes = Changes::default();
        let Self { log, control, admin, net, limits, access, workers, devices } = self;
        log.compare(&new.log, "", &mut changes);
        control.compare(&new.control, "", &mut changes);
        admin.compare(&new.admin, "", &mut changes);
        net.compare(&new.net, "", &mut changes);
        let LimitsConfig { clients, account, client, device, cm } = limits;
        // Tables have the size of the limit.
        if *clients != new.limits.clients {
            changes.add("limits", "clients", Effect::Restart);
        }
        account.compare(&new.limits.account, "", &mut changes);
        client.compare(&new.limits.client, "", &mut changes);
        device.compare(&new.limits.device, "", &mut changes);
        cm.compare(&new.limits.cm, "", &mut changes);
        // Names are looked up before the daemon serves.
        if *access != new.access {
            changes.add("", "access", Effect::Restart);
        }
        if *workers != new.workers {
            changes.add("", "worker", Effect::Restart);
        }
        if device_names(self) != device_names(new) {
            changes.add("", "device", Effect::Restart);
            return changes;
        }
        for (at, (old, new)) in devices.iter().zip(&new.devices).enumerate() {
            changes.compare_devices(at, old, new);
        }
        changes
    }

    /// Takes over the values of a later config that can be applied while the daemon runs.
    pub fn apply(&mut self, new: &Self) {
        let are_same_devices = device_names(self) == device_names(new);
        let Self { log, control, admin, net, limits, access: _, workers: _, devices } = self;
        log.apply_section(&new.log);
        control.apply_section(&new.control);
        admin.apply_section(&new.admin);
        net.apply_section(&new.net);
        let LimitsConfig { clients: _, account, client, device, cm } = limits;
        account.apply_section(&new.limits.account);
        client.apply_section(&new.limits.client);
        device.apply_section(&new.limits.device);
        cm.apply_section(&new.limits.cm);
        // As in `changes`: none of them is applied, so that a later reload finds the differences.
        if are_same_devices {
            devices.iter_mut().zip(&new.devices).for_each(|(device, new)| device.apply(new));
        }
    }
}

impl DeviceConfig {
    /// Takes over the options of a later config that can be applied while the daemon runs.
    pub fn apply(&mut self, new: &Self) {
        self.apply_section(new);
    }
}

impl Changes {
    /// No difference.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.restart.is_empty()
    }

    fn compare_devices(&mut self, at: usize, old: &DeviceConfig, new: &DeviceConfig) {
        let before = self.attach.len();
        old.compare(new, &format!("[{at}]"), self);
        self.attach.truncate(before + 1);
        self.attach[before..].fill(at);
    }

    fn add(&mut self, section: &str, key: &str, effect: Effect) {
        let dot = if section.is_empty() { "" } else { "." };
        let key = format!("{section}{dot}{key}");
        match effect {
            Effect::Apply => self.applied.push(key),
            Effect::Attach => {
                self.applied.push(key);
                // The place is set when the device is done.
                self.attach.push(0);
            }
            Effect::Restart => self.restart.push(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Config {
        Config::parse(text, &[]).expect("a good config")
    }

    const BEFORE: &str = "[[worker]]\n[[device]]\nname = \"roce0\"\ninterface = \"eth0\"\n\
                          [[device]]\nname = \"roce1\"\ninterface = \"eth1\"\n";

    #[test]
    fn equal_configs_have_no_changes() {
        assert!(parsed(BEFORE).changes(&parsed(BEFORE)).is_empty());
    }

    #[test]
    fn each_change_is_applied_or_named() {
        let after = "[log]\nlevel = \"debug\"\n[control]\nmode = 0o600\n[limits]\nclients = 7\n\
                     [limits.client]\nqps = 3\n[limits.device]\nmrs = 100\n[limits.cm]\nids_of_account = 9\n[[worker]]\nidle = \"spin\"\n\
                     [[device]]\nname = \"roce0\"\ninterface = \"eth0\"\npkeys = [0x8001]\n\
                     [[device]]\nname = \"roce1\"\ninterface = \"eth1\"\nxdp_mode = \"generic\"\nnapi = \"threaded\"\n";
        let (mut before, after) = (parsed(BEFORE), parsed(after));
        let changes = before.changes(&after);
        let applied =
            ["log.level", "limits.client.qps", "limits.cm.ids_of_account", "device[1].xdp_mode", "device[1].napi"];
        assert_eq!(changes.applied, applied);
        let restart = ["control.mode", "limits.clients", "limits.device.mrs", "worker", "device[0].pkeys"];
        assert_eq!(changes.restart, restart);
        assert_eq!(changes.attach, [1], "once, and no other device");
        before.apply(&after);
        let left = before.changes(&after);
        assert_eq!((left.applied, left.restart), (vec![], restart.map(String::from).to_vec()), "all of them, no other");
    }

    #[test]
    fn each_option_of_a_device_that_attaches_it_again_is_applied() {
        let mut before = parsed(BEFORE);
        let mut after = before.clone();
        let device = &mut after.devices[1];
        device.umem_frames *= 2;
        device.chunk_bytes *= 2;
        for entries in [
            &mut device.rx_ring_entries,
            &mut device.tx_ring_entries,
            &mut device.fill_ring_entries,
            &mut device.completion_ring_entries,
            &mut device.queue_busy_ms,
            &mut device.window_packets,
        ] {
            *entries += 1;
        }
        let changes = before.changes(&after);
        assert_eq!((changes.applied.len(), changes.restart.len()), (7, 1));
        before.apply(&after);
        let left = before.changes(&after);
        assert_eq!((left.applied, left.restart), (vec![], vec!["device[1].window_packets".to_owned()]));
    }

    #[test]
    fn priorities_of_classes_need_a_restart() {
        let of_nic = "[[worker]]\n[[device]]\nname = \"roce0\"\ninterface = \"eth0\"\ndscp_prio = { 26 = 3 }\n";
        let with_classes = |text: &str| parsed(&format!("{text}classes.tc_bw = {{ 0 = 100 }}\n"));
        let (before, after) = (of_nic.replace('3', "4"), of_nic);
        let changes = parsed(&before).changes(&parsed(after));
        assert_eq!((changes.applied, changes.restart), (vec!["device[0].dscp_prio".to_owned()], vec![]));
        let mut in_force = with_classes(&before);
        let wanted = with_classes(after);
        assert_eq!(in_force.changes(&wanted).restart, ["device[0].classes"]);
        in_force.apply(&wanted);
        assert_eq!(in_force.changes(&wanted).restart, ["device[0].classes"], "until the restart");
    }

    #[test]
    fn another_list_of_devices_needs_a_restart() {
        let one = "[[worker]]\n[[device]]\nname = \"roce1\"\ninterface = \"eth1\"\nxdp_mode = \"generic\"\n";
        let changes = parsed(BEFORE).changes(&parsed(one));
        assert_eq!((changes.applied.len(), changes.restart), (0, vec!["device".to_owned()]));
    }

    #[test]
    fn options_that_were_not_applied_are_named_by_the_next_reload() {
        let generic = "[[worker]]\n[[device]]\nname = \"roce0\"\ninterface = \"eth0\"\nxdp_mode = \"generic\"\n";
        let with_second = |name| parsed(&format!("{generic}[[device]]\nname = \"{name}\"\ninterface = \"eth1\"\n"));
        let mut now = parsed(BEFORE);
        let first = now.changes(&with_second("other"));
        assert_eq!((first.applied.len(), first.attach.len()), (0, 0));
        now.apply(&with_second("other"));
        let second = now.changes(&with_second("roce1"));
        assert_eq!((second.applied, second.attach), (vec!["device[0].xdp_mode".to_owned()], vec![0]));
    }

    #[test]
    fn a_limit_that_sizes_a_table_keeps_its_value_until_a_restart() {
        let limits = |cqs| parsed(&format!("{BEFORE}[limits.client]\ncqs = {cqs}\n"));
        let mut now = limits(16);
        assert_eq!(now.changes(&limits(1024)).restart, ["limits.client.cqs"]);
        now.apply(&limits(1024));
        assert_eq!(now.limits.client.cqs, 16);
    }
}
