//! Keys with a value that is one of a few words.

use std::fmt;

use roced_xdp::{CopyMode, XdpMode};

use super::reader::Choice;

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$choice_doc:meta])* $choice:ident = $word:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $name {
                $($(#[$choice_doc])* $choice,)*
            }

            impl Choice for $name {
                const CHOICES: &'static [(&'static str, Self)] = &[$(($word, Self::$choice),)*];
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(self.word())
                }
            }
        )*
    };
}

impl Choice for XdpMode {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("native", Self::Native), ("generic", Self::Generic)];
}

impl Choice for CopyMode {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("zerocopy", Self::Zerocopy), ("copy", Self::Copy)];
}

choices! {
    /// `log.level`.
    LogLevel {
        /// A person must act.
        Error = "error",
        /// Degraded, still serving.
        Warn = "warn",
        /// Start, stop, the life of clients and queue pairs.
        Info = "info",
        /// Each control call.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
    /// `log.target`.
    LogTarget {
        /// Standard error.
        Stderr = "stderr",
        /// The systemd journal, with fields.
        Journald = "journald",
    }
    /// `worker.idle`.
    IdleChoice {
        /// Never leaves its core.
        Spin = "spin",
        /// Offers its core to others between poll iterations.
        Yield = "yield",
        /// Yields for `spin_us`, then blocks until there is work.
        Sleep = "sleep",
    }
    /// `limits.client.proxied_memory`.
    ProxiedChoice {
        /// Unless a loaded driver crashes by it.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
    /// `limits.client.unsealed_memory`.
    UnsealedChoice {
        /// It is.
        Mapped = "mapped",
        /// It is not: the library leaves it in place.
        Refused = "refused",
    }
    /// `device.napi`.
    NapiChoice {
        /// Where the driver does it.
        Driver = "driver",
        /// In a kernel thread on the core of the queue's worker.
        Threaded = "threaded",
    }
    /// `device.roce`.
    RoceVersions {
        /// RoCEv2 alone.
        V2 = "v2",
        /// RoCEv1 and RoCEv2.
        Both = "v1+v2",
    }
    /// `device.credits`.
    Credits {
        /// Offered and obeyed.
        On = "on",
        /// Neither.
        Off = "off",
    }
    /// `device.ecn`.
    EcnChoice {
        /// They may: ECT(0).
        On = "on",
        /// They are dropped instead.
        Off = "off",
    }
    /// `device.cnp`.
    CnpChoice {
        /// By congestion notification packets.
        On = "on",
        /// Marks are only counted.
        Off = "off",
    }
    /// `device.congestion_control`.
    CongestionChoice {
        /// A window that CNPs, marks and losses make smaller.
        Window = "window",
        /// A rate that CNPs make smaller.
        Dcqcn = "dcqcn",
        /// None: `device.window_packets` is the only limit.
        Off = "off",
    }
    /// `device.classes.trust`.
    TrustChoice {
        /// The DSCP.
        Dscp = "dscp",
        /// The priority code point of the VLAN tag.
        Pcp = "pcp",
    }
    /// `device.pfc.global_pause`.
    GlobalPauseChoice {
        /// They pause all classes.
        Honor = "honor",
        /// The kernel gets them.
        Ignore = "ignore",
    }
    /// `device.pfc.watchdog`.
    WatchdogChoice {
        /// The class ignores pauses until there are none.
        Ignore = "ignore",
        /// It stays paused; the log tells it.
        Report = "report",
        /// Nothing looks for them.
        Off = "off",
    }
    /// `device.dcqcn.preset`.
    DcqcnPreset {
        /// Parameters of the paper.
        Paper = "paper",
        /// Defaults of adapters.
        Mlx = "mlx",
    }
    /// `device.dcb`.
    DcbChoice {
        /// The NIC is not asked.
        Ignore = "ignore",
        /// Differences are told.
        Check = "check",
        /// Differences are mended.
        Apply = "apply",
    }
    /// `device.recovery`.
    RecoveryChoice {
        /// Out-of-order packets are kept, only missing packets are retransmitted, probes find lost
        /// last packets.
        Selective = "selective",
        /// Out-of-order packets are dropped, everything behind a loss is retransmitted.
        GoBackN = "go-back-n",
    }
}
