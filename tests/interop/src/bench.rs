//! The two ends and the switch between them: host a of a lab, with roced, and the guest on a third
//! port.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, id as process_id},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    guest::{self, Guest},
    process::{self, Ended, Running},
    scenario::{Harm, MARKED_SHARE, Network, Side},
};

/// Time limit of commands that move no data.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Host a, as its programs are told of it.
const HOST_IPV4: &str = "10.10.0.1";
const HOST_IPV6: &str = "fd00:10::1";
/// Of the interfaces; the largest path MTU needs as much.
const MTU: u32 = 4200;
/// The guest's port of the switch, and host a's.
const TAP: &str = "guest0";
const HOST_PORT: &str = "a0";

/// Words in the guest kernel's log that mean trouble.
const TROUBLE: &str = "warn|bug|oops|error|fail|stuck|leak|call trace";

/// Options of roced's device.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// `credits`: "on" or "off".
    pub(crate) credits: String,
    /// Its packets may be marked, it reacts to notifications, and the switch marks.
    pub(crate) ecn: bool,
}

/// Frames that passed the switch since its faults were set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) frames: u64,
    /// Dropped, duplicated, corrupted.
    pub(crate) harmed: [u64; 3],
    pub(crate) marked: u64,
}

/// Both ends, ready.
pub(crate) struct Bench {
    name: String,
    image: PathBuf,
    programs: PathBuf,
    folder: PathBuf,
    options: Options,
    guest: Option<Guest>,
    /// GIDs of each side, as `ibv_devinfo` lists them.
    gids: [Vec<String>; 2],
}

impl Bench {
    /// Sets it up. `image` has the guest's kernel and initrd, `programs` the debug builds of cargo;
    /// output files lie in `folder`.
    pub(crate) fn up(image: &Path, programs: &Path, folder: &Path, options: &Options) -> Result<Self> {
        // The process that starts us may want to take down the lab that we leave behind when we are
        // killed.
        let name = env::var("LAB_NAME").unwrap_or_else(|_| format!("interop-{}", process_id()));
        let mut bench = Self {
            name,
            image: image.to_owned(),
            programs: programs.to_owned(),
            folder: folder.to_owned(),
            options: options.clone(),
            guest: None,
            gids: [Vec::new(), Vec::new()],
        };
        let credits = options.credits.as_str();
        let [ecn, congestion] = if options.ecn { ["on", "window"] } else { ["off"; 2] };
        bench.lab(&["up", "--switch", "--credits", credits, "--ecn", ecn, "--congestion", congestion])?;
        bench.in_middle(&["ip", "tuntap", "add", TAP, "mode", "tap"])?;
        // The guest is slow to take frames sent to it; unreliable services have nothing else that
        // waits for it.
        bench.in_middle(&[
            "ip",
            "link",
            "set",
            TAP,
            "mtu",
            &MTU.to_string(),
            "txqueuelen",
            "20000",
            "master",
            "bridge0",
            "up",
        ])?;
        let tool = bench.tool("roced-lab");
        bench.in_middle(&[&tool, "attach", HOST_PORT, "b0", TAP])?;
        bench.boot()?;
        for side in Side::BOTH {
            let listed = bench.run(side, &bench.of_verbs(side, "ibv_devinfo -v"), SOON)?.success("ibv_devinfo")?;
            bench.gids[side as usize] = listed_gids(&listed);
        }
        // It was booted before its neighbor's addresses were known.
        bench.meet()?;
        Ok(bench)
    }

    /// The guest knows host a's MAC address by each of its addresses: a queue pair that is
    /// connected waits a second for it, and no longer.
    fn meet(&self) -> Result<()> {
        for gid in &self.gids[Side::Roced as usize] {
            let address = gid.strip_prefix("::ffff:").unwrap_or(gid);
            let command = format!("until ping -c 1 -W 1 -I eth0 {address}; do sleep 0.1; done");
            self.run(Side::Rxe, &command, SOON)?.success("the guest does not reach host a")?;
        }
        Ok(())
    }

    fn middle(&self) -> String {
        format!("{}-middle", self.name)
    }

    fn tool(&self, name: &str) -> String {
        self.programs.join("../release").join(name).display().to_string()
    }

    fn lab_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/lab"));
        command.args(arguments).env("LAB_NAME", &self.name).env("LAB_BUILD", "0");
        command
    }

    fn lab(&self, arguments: &[&str]) -> Result<String> {
        let what = format!("scripts/lab {}", arguments.join(" "));
        process::run(self.lab_command(arguments), &self.folder.join("lab.log"), SOON)?.success(&what)
    }

    fn in_middle(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.middle()]).args(arguments);
        process::run(command, &self.folder.join("lab.log"), SOON)?.success(&arguments.join(" "))
    }

    /// A guest in place of the one that is there, if one is.
    pub(crate) fn boot(&mut self) -> Result<()> {
        self.guest = None;
        self.guest = Some(Guest::boot(&self.image, &self.middle(), TAP, MTU, &self.folder)?);
        self.meet()
    }

    /// The guest goes away, as in a power failure. Returns when, since the epoch in ns.
    pub(crate) fn cut_power(&mut self) -> u64 {
        self.guest = None;
        process::now_ns()
    }

    /// Of the guest's kernel: messages of its boot are of no interest.
    pub(crate) fn forget_kernel_log(&self) -> Result<()> {
        self.run(Side::Rxe, "dmesg -c >/dev/null", SOON)?.success("dmesg").map(drop)
    }

    /// Whether it had nothing to complain about since its log was emptied.
    pub(crate) fn kernel_is_silent(&self) -> Result<()> {
        let complaints = self.run(Side::Rxe, &format!("dmesg -c | grep -iE '{TROUBLE}'"), SOON)?;
        ensure!(complaints.code != 0, "the guest's kernel complains: {}", complaints.output);
        Ok(())
    }

    /// A new guest in place of one that no longer answers. Says whether that was so.
    pub(crate) fn mend(&mut self) -> Result<bool> {
        let lost = !self.guest.as_mut().is_some_and(Guest::is_well);
        if lost {
            self.boot()?;
        }
        Ok(lost)
    }

    /// A program of libibverbs as that side runs it.
    pub(crate) fn of_verbs(&self, side: Side, command: &str) -> String {
        match side {
            Side::Roced => format!("exec roce-run {command}"),
            Side::Rxe => format!("exec {command}"),
        }
    }

    /// Runs a line of shell on a side. Several threads may.
    pub(crate) fn run(&self, side: Side, command: &str, limit: Duration) -> Result<Ended> {
        match side {
            Side::Roced => self.start_on_host(command)?.end(limit),
            Side::Rxe => self.guest.as_ref().context("there is no guest")?.run(command, limit),
        }
    }

    /// Starts a line of shell on host a.
    pub(crate) fn start_on_host(&self, command: &str) -> Result<Running> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let log = self.folder.join(format!("host.{}.log", NUMBER.fetch_add(1, Ordering::Relaxed)));
        Running::start(self.lab_command(&["exec", "a", "--", "sh", "-c", command]), &log)
    }

    /// Where the other side's programs find this one.
    pub(crate) fn address(side: Side) -> &'static str {
        match side {
            Side::Roced => HOST_IPV4,
            Side::Rxe => guest::IPV4,
        }
    }

    /// The same, over a network other than the link's own.
    pub(crate) fn address_of(side: Side, network: Network) -> &'static str {
        match (side, network) {
            (_, Network::Ipv4) => Self::address(side),
            (Side::Roced, _) => HOST_IPV6,
            (Side::Rxe, _) => guest::IPV6,
        }
    }

    /// Where the test program of a side leaves its process id.
    pub(crate) fn process_file(&self, side: Side) -> String {
        match side {
            Side::Roced => self.folder.join("program.pid").display().to_string(),
            Side::Rxe => "/run/program.pid".to_owned(),
        }
    }

    /// The index of a side's GID for a network.
    pub(crate) fn gid_index(&self, side: Side, network: Network) -> Result<usize> {
        let gids = &self.gids[side as usize];
        gids.iter().position(|gid| network.is_of(gid)).with_context(|| format!("{side} has no {network} GID: {gids:?}"))
    }

    /// Path of a program of the debug build.
    pub(crate) fn built(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    /// Whether roced's packets may be marked.
    pub(crate) fn ecn(&self) -> bool {
        self.options.ecn
    }

    pub(crate) fn set_faults(&self, harm: Option<(Harm, &str)>) -> Result<()> {
        match harm {
            Some((Harm::Mark, rate)) => self.lab(&["fault", Harm::Mark.option(), rate]).map(drop),
            Some((harm, rate)) => self.fault(&[harm.option(), rate]),
            None => self.fault(&["--drop", "0"]),
        }
    }

    /// Sets faults, beside the marks of congestion.
    fn fault(&self, faults: &[&str]) -> Result<()> {
        let marks: &[&str] = if self.options.ecn { &[Harm::Mark.option(), MARKED_SHARE] } else { &[] };
        self.lab(&[&["fault"], faults, marks].concat()).map(drop)
    }

    /// Drops a share of the datagrams of unreliable services, and harms or marks no other frame.
    pub(crate) fn drop_datagrams(&self, rate: &str) -> Result<()> {
        self.lab(&["fault", "--drop", rate, "--only", "0x64"]).map(drop)
    }

    /// Drops one datagram of an unreliable service, counted from now on.
    pub(crate) fn drop_datagram(&self, nth: u8) -> Result<()> {
        self.fault(&["--nth", &format!("0x64:{nth}:drop")])
    }

    pub(crate) fn passed(&self) -> Result<Passed> {
        let shown = self.lab(&["fault", "show"])?;
        let count = |name: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).with_context(|| format!("no {name} in {shown}"))
        };
        let harmed = [count("dropped")?, count("duplicated")?, count("corrupted")?];
        Ok(Passed { frames: count("frames")?, harmed, marked: count("marked")? })
    }

    /// A counter of roced's device.
    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        let shown = self.lab(&["exec", "a", "--", "rocectl", "counters", "--all"])?;
        let value = |line: &str| line.trim().strip_prefix(name)?.trim().parse().ok();
        shown.lines().find_map(value).with_context(|| format!("no counter {name}"))
    }

    /// Kills the daemon and starts another.
    pub(crate) fn replace_daemon(&self) -> Result<()> {
        self.lab(&["stop", "a", "KILL"])?;
        self.lab(&["start", "a"]).map(drop)
    }

    /// Whether the connection manager of the daemon has no identifier and no connection left.
    pub(crate) fn has_no_connections(&self) -> Result<()> {
        let shown = self.lab(&["exec", "a", "--", "rocectl", "--json", "cm"])?;
        ensure!(shown.replace([' ', '\n'], "").contains("\"ids\":[]"), "identifiers are left: {shown}");
        let counters = self.lab(&["exec", "a", "--", "rocectl", "counters"])?;
        let left = counters.lines().find(|line| line.contains("cm_connections"));
        ensure!(left.is_none(), "connections are left: {left:?}");
        Ok(())
    }

    /// Whether the daemon serves, and has no session left.
    pub(crate) fn daemon_is_idle(&self) -> Result<()> {
        let status = self.lab(&["exec", "a", "--", "rocectl", "--json", "status"])?;
        ensure!(
            status.contains("\"sessions\":[]") || status.contains("\"sessions\": []"),
            "the daemon has sessions left: {status}"
        );
        Ok(())
    }

    /// Whether `condition` holds within `limit`.
    pub(crate) fn within(&self, limit: Duration, condition: impl Fn(&Self) -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            match condition(self) {
                Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
                ended => return ended,
            }
        }
    }

    /// Captures the frames that pass a side's port of the switch.
    pub(crate) fn capture(&self, side: Side, file: &Path) -> Result<Capture> {
        let port = match side {
            Side::Roced => HOST_PORT,
            Side::Rxe => TAP,
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.middle(), "tcpdump", "-i", port, "-s", &(MTU + 22).to_string()]);
        command.args("-B 65536 --immediate-mode -U -Z root -w".split(' ')).arg(file).arg("udp port 4791");
        let mut tcpdump = Running::start(command, &file.with_extension("log"))?;
        tcpdump.await_text("listening on", SOON)?;
        Ok(Capture { tcpdump })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.guest = None;
        if let Err(error) = self.lab(&["down"]) {
            eprintln!("interop: {error:#}");
        }
        // The logs of programs that ran on the host are in its errors.
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("host.") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A capture that runs.
pub(crate) struct Capture {
    tcpdump: Running,
}

impl Capture {
    /// Ends it; every frame is then in its file.
    pub(crate) fn stop(self) -> Result<()> {
        // Frames on their way from the port to tcpdump.
        thread::sleep(Duration::from_millis(100));
        self.tcpdump.signal(Signal::SIGINT)?;
        let told = self.tcpdump.end(SOON)?.success("tcpdump")?;
        ensure!(told.contains("\n0 packets dropped by kernel"), "not every frame was captured: {told}");
        Ok(())
    }
}

/// The GIDs in the output of `ibv_devinfo -v`, in the order of their indices.
fn listed_gids(listed: &str) -> Vec<String> {
    let gid =
        |line: &str| Some(line.trim().strip_prefix("GID[")?.split_once(':')?.1.trim().split(',').next()?.to_owned());
    listed.lines().filter_map(gid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_read_from_printed_output() {
        let listed = "\t\t\tGID[  0]:\t\tfe80::5054:ff:fe10:3, RoCE v2\n\t\t\tGID[  1]:\t\t::ffff:10.10.0.3, RoCE v2\n";
        assert_eq!(listed_gids(listed), ["fe80::5054:ff:fe10:3", "::ffff:10.10.0.3"]);
        assert!(Network::Ipv4.is_of(&listed_gids(listed)[1]) && !Network::Ipv6.is_of(&listed_gids(listed)[1]));
    }
}
