//! Where the kernel polls an interface's queues (its NAPI), and how to move that.
//!
//! By default the driver polls in the context of an interrupt, and on veth in that of the sender:
//! one core then does the work of both hosts. With `napi = "threaded"` each NAPI instance has a
//! kernel thread, which is pinned to the core of the worker that owns the queue, where it is known
//! which instance polls the queue, and has the workers' scheduling class. The previous setting
//! returns when this is dropped; after a SIGKILL it does not.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write as _},
};

use nix::{
    errno::Errno,
    net::if_::if_nametoindex,
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use thiserror::Error;
use tracing::{info, warn};

use super::{
    class::RealTime,
    ethtool::{gro, is_veth, set_gro},
    netdev::{Napi, Netdev, RxQueue},
};

/// Why an interface's NAPI cannot be moved.
#[derive(Debug, Error)]
pub enum NapiError {
    /// GRO, without which veth does not use NAPI for all frames, cannot be switched on.
    #[error("cannot switch GRO of {interface} on: {error}; napi = \"driver\" needs nothing")]
    Gro {
        /// Name of the interface.
        interface: String,
        /// The kernel's.
        error: io::Error,
    },
    /// The kernel does not say which NAPI instances there are.
    #[error(
        "the kernel does not list the NAPI instances of {interface}: {error} (Linux 6.8 and later do); napi = \"driver\" needs nothing"
    )]
    Unlisted {
        /// Name of the interface.
        interface: String,
        /// The kernel's.
        error: io::Error,
    },
    /// There are none.
    #[error("{interface} has no NAPI instance: is it up? napi = \"driver\" needs nothing")]
    None {
        /// Name of the interface.
        interface: String,
    },
    /// It cannot be given a thread.
    #[error(
        "cannot give NAPI of {interface} a thread: {error} (Linux 6.17 and later, or a writable /sys/class/net/{interface}/threaded)"
    )]
    Thread {
        /// Name of the interface.
        interface: String,
        /// The kernel's.
        error: io::Error,
    },
    /// The thread cannot be pinned.
    #[error(
        "cannot pin the thread napi/{interface}-{id} to cores {cores:?}: {errno} (it takes CAP_SYS_NICE and the first PID namespace; workers without `core` leave it free)"
    )]
    Pin {
        /// Name of the interface.
        interface: String,
        /// Number of the NAPI instance.
        id: u32,
        /// Where to.
        cores: Vec<u32>,
        /// The kernel's.
        errno: Errno,
    },
    /// The thread cannot be given our scheduling class, and would starve beside workers of a higher
    /// one.
    #[error(
        "cannot give the thread napi/{interface}-{id} the scheduling class of roced: {errno} (it takes CAP_SYS_NICE and the first PID namespace)"
    )]
    Class {
        /// Name of the interface.
        interface: String,
        /// Number of the NAPI instance.
        id: u32,
        /// The kernel's.
        errno: Errno,
    },
}

/// An interface with threaded NAPI.
#[derive(Debug)]
pub struct ThreadedNapi {
    interface: String,
    netdev: Netdev,
    /// GRO was off.
    gro_was_off: bool,
    /// Instances that had no thread.
    were_plain: Vec<u32>,
    /// All of them were switched together, by sysfs.
    by_sysfs: bool,
}

impl ThreadedNapi {
    /// Gives each NAPI instance of `interface` a thread. The instance that polls RX queue `k` is
    /// pinned to `cores[k]`, if that is a core; an instance that polls several queues, to the cores
    /// of all. If the instance of a queue is unknown, it is left free, with a warning.
    ///
    /// # Errors
    /// [`NapiError`]; then everything is as it was.
    pub fn start(interface: &str, cores: &[Option<u32>]) -> Result<Self, NapiError> {
        let name = || interface.to_owned();
        let unlisted = |error: io::Error| NapiError::Unlisted { interface: name(), error };
        let ifindex = if_nametoindex(interface).map_err(|errno| unlisted(errno.into()))?;
        let netdev = Netdev::open().map_err(unlisted)?;
        let mut this = Self { interface: name(), netdev, gro_was_off: false, were_plain: Vec::new(), by_sysfs: false };
        let refused = |error| NapiError::Gro { interface: name(), error };
        if !gro(interface).map_err(refused)? {
            set_gro(interface, true).map_err(refused)?;
            this.gro_was_off = true;
        }
        for napi in this.napis(ifindex)? {
            this.switch_on(&napi)?;
        }
        // Their threads are there now.
        let napis = this.napis(ifindex)?;
        let mut queues = this.netdev.rx_queues(ifindex).map_err(unlisted)?;
        // A driver that cannot be asked is not veth.
        if is_veth(interface).unwrap_or(false) {
            fill_in_as_on_veth(&mut queues, &napis);
        }
        let (pins, unknown) = pins(&queues, cores);
        for (napi, cores) in napis.iter().filter_map(|napi| Some((napi, pins.get(&napi.id)?))) {
            this.pin(napi, cores)?;
        }
        if let Some(class) = RealTime::ours() {
            for napi in &napis {
                this.put_into(class, napi)?;
            }
        }
        if !unknown.is_empty() {
            warn!(interface, queues = ?unknown, "the driver does not say which NAPI instance polls these queues: its thread is not pinned");
        }
        let threads: Vec<_> = napis.iter().map(|napi| format!("napi/{interface}-{}", napi.id)).collect();
        info!(interface, threads = threads.join(","), "NAPI runs in threads");
        Ok(this)
    }

    fn napis(&mut self, ifindex: u32) -> Result<Vec<Napi>, NapiError> {
        let interface = &self.interface;
        let napis = self.netdev.napis(ifindex);
        let napis = napis.map_err(|error| NapiError::Unlisted { interface: interface.clone(), error })?;
        if napis.is_empty() { Err(NapiError::None { interface: interface.clone() }) } else { Ok(napis) }
    }

    fn switch_on(&mut self, napi: &Napi) -> Result<(), NapiError> {
        let refused = |interface: &str, error| NapiError::Thread { interface: interface.to_owned(), error };
        match napi.threaded {
            Some(true) => Ok(()),
            Some(false) => {
                self.netdev.set_threaded(napi.id, true).map_err(|error| refused(&self.interface, error))?;
                self.were_plain.push(napi.id);
                Ok(())
            }
            // An older kernel: all at once.
            None if self.by_sysfs || napi.pid.is_some() => Ok(()),
            None => {
                self.write_switch("1").map_err(|error| refused(&self.interface, error))?;
                self.by_sysfs = true;
                Ok(())
            }
        }
    }

    /// Writes the switch of all threads of the interface, which is there or not, and never made.
    fn write_switch(&self, value: &str) -> io::Result<()> {
        let switch = format!("/sys/class/net/{}/threaded", self.interface);
        OpenOptions::new().write(true).open(switch)?.write_all(value.as_bytes())
    }

    fn pin(&self, napi: &Napi, cores: &[u32]) -> Result<(), NapiError> {
        let refused =
            |errno| NapiError::Pin { interface: self.interface.clone(), id: napi.id, cores: cores.to_vec(), errno };
        let mut only = CpuSet::new();
        cores.iter().try_for_each(|core| only.set(*core as usize)).map_err(refused)?;
        self.thread_of(napi).and_then(|thread| sched_setaffinity(thread, &only)).map_err(refused)
    }

    fn put_into(&self, class: RealTime, napi: &Napi) -> Result<(), NapiError> {
        let refused = |errno| NapiError::Class { interface: self.interface.clone(), id: napi.id, errno };
        self.thread_of(napi).and_then(|thread| class.give_to(thread)).map_err(refused)
    }

    fn thread_of(&self, napi: &Napi) -> Result<Pid, Errno> {
        let pid = napi.pid.ok_or(Errno::ESRCH)?;
        // In another PID namespace this number is of another process.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|_| Errno::ESRCH)?;
        if is_thread_of(&name, &self.interface) { Ok(Pid::from_raw(pid as i32)) } else { Err(Errno::ESRCH) }
    }
}

/// veth does not tell its queues' NAPI instances. It has one for each RX queue and makes them in
/// the order of the queues.
fn fill_in_as_on_veth(queues: &mut [RxQueue], napis: &[Napi]) {
    if queues.len() == napis.len() && queues.iter().all(|queue| queue.napi.is_none()) {
        for (queue, napi) in queues.iter_mut().zip(napis) {
            queue.napi = Some(napi.id);
        }
    }
}

/// The cores for each NAPI instance, and the queues that have a core and no known instance. Queue
/// `k` has `cores[k]`.
fn pins(queues: &[RxQueue], cores: &[Option<u32>]) -> (BTreeMap<u32, Vec<u32>>, Vec<u32>) {
    let (mut pins, mut unknown) = (BTreeMap::<u32, Vec<u32>>::new(), Vec::new());
    for (queue, core) in (0..).zip(cores).filter_map(|(queue, core)| Some((queue, (*core)?))) {
        match queues.iter().find(|told| told.queue == queue).and_then(|told| told.napi) {
            Some(napi) => pins.entry(napi).or_default().push(core),
            None => unknown.push(queue),
        }
    }
    (pins, unknown)
}

/// The kernel names such a thread `napi/INTERFACE-ID`, cut to 15 characters.
fn is_thread_of(name: &str, interface: &str) -> bool {
    let whole = format!("napi/{interface}-");
    let name = name.trim_end();
    !name.is_empty() && (name.starts_with(&whole) || name.len() >= 15 && whole.starts_with(name))
}

impl Drop for ThreadedNapi {
    fn drop(&mut self) {
        let threads = self.were_plain.iter().try_for_each(|id| match self.netdev.set_threaded(*id, false) {
            // It went with its queue.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        });
        let sysfs = if self.by_sysfs { self.write_switch("0") } else { Ok(()) };
        let gro = if self.gro_was_off { set_gro(&self.interface, false) } else { Ok(()) };
        if let Err(error) = threads.and(sysfs).and(gro) {
            warn!(interface = self.interface, %error, "NAPI of the interface does not return to its state before");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_by_its_name() {
        assert!(is_thread_of("napi/eth0-8193\n", "eth0"));
        assert!(is_thread_of("napi/a-long-nam\n", "a-long-name0"), "it is cut short");
        for other in ["", "napi/eth01-81\n", "napi/eth1-8193\n", "bash\n", "napi/e\n"] {
            assert!(!is_thread_of(other, "eth0"), "{other}");
        }
    }

    fn told(napis: &[Option<u32>]) -> Vec<RxQueue> {
        (0..).zip(napis).map(|(queue, napi)| RxQueue { queue, napi: *napi }).collect()
    }

    fn napis(ids: &[u32]) -> Vec<Napi> {
        ids.iter().map(|id| Napi { id: *id, ..Napi::default() }).collect()
    }

    #[test]
    fn a_thread_goes_where_its_queues_are_served() {
        let cores = [Some(2), None, Some(3), Some(5)];
        // In another order than the queues, one for two of them, and some that poll no RX queue.
        let (goes, unknown) = pins(&told(&[Some(20), Some(30), Some(10), Some(20)]), &cores);
        assert_eq!((goes, unknown), (BTreeMap::from([(20, vec![2, 5]), (10, vec![3])]), vec![]));
        let (goes, unknown) = pins(&told(&[Some(20), None, None]), &cores);
        assert_eq!((goes, unknown), (BTreeMap::from([(20, vec![2])]), vec![2, 3]), "one not told of, one not there");
    }

    #[test]
    fn the_order_counts_only_where_each_queue_has_one_and_none_is_told() {
        let fill_in = |before: &[Option<u32>], ids: &[u32]| {
            let mut queues = told(before);
            fill_in_as_on_veth(&mut queues, &napis(ids));
            queues
        };
        assert_eq!(fill_in(&[None, None], &[7, 8]), told(&[Some(7), Some(8)]));
        for (before, ids) in [(&[None, None][..], &[7][..]), (&[None], &[7, 8]), (&[Some(8), None], &[7, 8])] {
            assert_eq!(fill_in(before, ids), told(before));
        }
    }

    #[test]
    fn an_interface_without_napi_says_so() {
        let refused = ThreadedNapi::start("none-such-if", &[]).expect_err("not there").to_string();
        assert!(refused.contains("none-such-if"), "{refused}");
        // The family is older than its questions; the loopback's GRO is on already.
        if let Err(error) = Netdev::open().and_then(|mut netdev| netdev.napis(1)) {
            println!("skipped in part: this kernel lists no NAPI instances ({error})");
            return;
        }
        let refused = ThreadedNapi::start("lo", &[]).expect_err("it has none").to_string();
        assert!(refused.contains("lo has no NAPI instance"), "{refused}");
    }
}
