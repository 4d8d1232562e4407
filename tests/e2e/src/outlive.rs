//! A program with a device that loses its network interface and gets it back.

use std::{
    fs,
    net::IpAddr,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, DeviceEvent, Gid, ProtectionDomain, QueuePair,
    RecvRequest, SendRequest, ServiceType, Status,
};

use crate::end::say;

/// How long each event may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A multicast group, and the same as `/proc/net/igmp` has it.
const GROUP: ([u8; 4], &str) = ([239, 77, 1, 4], "04014DEF");

/// Two connected queue pairs that expect a message; they fail with the interface, and are used
/// again when it is back. A third one stays attached to its group.
pub(crate) fn outlive() -> Result<()> {
    let device = Device::open("roce0")?;
    let own: Gid = std::env::var("LAB_IPV4").context("run by scripts/lab exec")?.parse()?;
    let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
    let qps = [pd.queue_pair(&cq, &cq).create()?, pd.queue_pair(&cq, &cq).create()?];
    let before = index_of(&device, own)?;
    connect(&qps, before)?;
    exchange(&pd, &cq, &qps)?;
    let listener = pd.queue_pair(&cq, &cq).service(ServiceType::Ud).create()?;
    listener.attach(IpAddr::from(GROUP.0).into(), Some(before))?;
    ensure!(is_member()?, "the kernel has not joined the group");
    let memory = pd.allocate(64, Access::LOCAL_WRITE)?;
    for qp in &qps {
        qp.post_recv(&RecvRequest::new(&[memory.sge(..)]))?;
    }
    say("connected")?;

    // The kernel may say that the link is down before it says that the interface is gone.
    let mut failed = await_event(&device, |event| matches!(event, DeviceEvent::DeviceFatal))?;
    if !failed.contains(&DeviceEvent::PortDown) {
        failed.extend(await_event(&device, |event| matches!(event, DeviceEvent::PortDown))?);
    }
    let mut flushed = [Completion::EMPTY; 2];
    for one in &mut flushed {
        ensure!(cq.wait(std::slice::from_mut(one), TIMEOUT)? == 1, "a receive is not flushed");
        ensure!(one.status == Status::WorkRequestFlushed, "{one:?}");
    }
    ensure!(device.gids()?.is_empty(), "GIDs without an interface: {:?}", device.gids()?);
    ensure!(qps[1].address(before).is_err(), "an address without a GID");
    say("failed")?;

    failed.extend(await_event(&device, |event| matches!(event, DeviceEvent::PortActive))?);
    for qp in &qps {
        let fatal = DeviceEvent::QpFatal { qpn: qp.qpn() };
        ensure!(failed.contains(&fatal), "{fatal:?} is missing in {failed:?}");
    }
    let deadline = Instant::now() + TIMEOUT;
    while index_of(&device, own).is_err() {
        ensure!(Instant::now() < deadline, "the address does not come back: {:?}", device.gids()?);
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(index_of(&device, own)? == before, "the GID has another index: {:?}", device.gids()?);
    while !is_member()? {
        ensure!(Instant::now() < deadline, "the kernel has not joined the group again");
        std::thread::sleep(Duration::from_millis(10));
    }
    for qp in &qps {
        qp.reset()?;
    }
    connect(&qps, before)?;
    exchange(&pd, &cq, &qps)?;
    say("works again")
}

fn is_member() -> Result<bool> {
    Ok(fs::read_to_string("/proc/net/igmp")?.contains(GROUP.1))
}

fn index_of(device: &Device, gid: Gid) -> Result<u32> {
    let found = device.gids()?.into_iter().find(|entry| entry.gid == gid);
    Ok(found.with_context(|| format!("no GID {gid}"))?.index)
}

fn connect([a, b]: &[QueuePair; 2], gid: u32) -> Result<()> {
    a.connect(&b.address(gid)?, &ConnectOptions::default())?;
    Ok(b.connect(&a.address(gid)?, &ConnectOptions::default())?)
}

fn exchange(pd: &ProtectionDomain, cq: &CompletionQueue, [a, _]: &[QueuePair; 2]) -> Result<()> {
    let memory = pd.allocate(64, Access::ALL)?;
    a.post_send(&SendRequest::write_inline(b"hello", memory.remote()).signaled())?;
    let mut done = [Completion::EMPTY];
    ensure!(cq.wait(&mut done, TIMEOUT)? == 1, "no completion");
    done[0].ok()?;
    ensure!(memory.to_vec(0, 5) == b"hello", "no data");
    Ok(())
}

/// Waits for an event; returns those before it.
fn await_event(device: &Device, is_it: impl Fn(&DeviceEvent) -> bool) -> Result<Vec<DeviceEvent>> {
    let mut others = Vec::new();
    loop {
        match device.next_event()? {
            Some(event) if is_it(&event) => return Ok(others),
            Some(event) => others.push(event),
            None => {
                let mut fds = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
                if poll(&mut fds, PollTimeout::from(TIMEOUT.as_millis() as u16))? == 0 {
                    bail!("no event; before: {others:?}");
                }
            }
        }
    }
}
