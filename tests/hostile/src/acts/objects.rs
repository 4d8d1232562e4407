//! Objects without end, and questions about those of others.

use std::{
    env,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::socket::MsgFlags;
use roced_abi::control::{
    AllocPd, CreateAh, CreateAhRequest, CreateCq, CreateCqRequest, CreateQpRequest, DestroyAh, Handle, Nothing,
};
use roced_client::Device;
use roced_types::service;

use super::{say, wait};
use crate::{actor::ActArguments, raw_client::RawSession};

/// Work requests of the largest queue pair.
pub(super) const LARGEST: u32 = 32_768;

/// A request for a queue pair with queues of `wrs`, with a protection domain and a completion queue
/// of its own.
pub(crate) fn with_queues(session: &mut RawSession, wrs: u32) -> Result<CreateQpRequest> {
    let (pd, _) = session.client.call::<AllocPd>(Nothing {})?;
    let (cq, _) = session.client.call::<CreateCq>(CreateCqRequest { entries: 16, channel: 0 })?;
    Ok(CreateQpRequest {
        pd: pd.handle,
        send_cq: cq.cqn,
        recv_cq: cq.cqn,
        service: service::RC,
        send_wrs: wrs,
        recv_wrs: wrs,
        send_sges: 1,
        recv_sges: 1,
        ..CreateQpRequest::default()
    })
}

/// Creates queue pairs until one is refused; returns their number.
fn create_many(session: &mut RawSession, wrs: u32, most: u32) -> Result<u32> {
    let request = with_queues(session, wrs)?;
    let mut count = 0;
    while count < most && session.queue_pair(request)?.is_ok() {
        count += 1;
    }
    Ok(count)
}

pub(super) fn large_queue_pairs(arguments: &ActArguments) -> Result<()> {
    let mut session = RawSession::open(&arguments.socket)?;
    let count = create_many(&mut session, LARGEST, arguments.count)?;
    say(&format!("ready {count}"))?;
    wait()
}

/// Takes queue pairs by as many sessions as it can have, `count` at most.
pub(super) fn take_queue_pairs(arguments: &ActArguments) -> Result<()> {
    let (mut sessions, mut total) = (Vec::new(), 0);
    while sessions.len() < arguments.count as usize {
        let Ok(mut session) = RawSession::open(&arguments.socket) else { break };
        let count = create_many(&mut session, 1, u32::MAX)?;
        sessions.push(session);
        total += count;
        if count == 0 {
            break;
        }
    }
    say(&format!("ready {total}"))?;
    wait()
}

/// Takes `count` places for sessions at most.
pub(super) fn take_sessions(arguments: &ActArguments) -> Result<()> {
    let mut sessions = Vec::new();
    while sessions.len() < arguments.count as usize {
        let Ok(session) = RawSession::open(&arguments.socket) else { break };
        sessions.push(session);
    }
    say(&format!("ready {}", sessions.len()))?;
    wait()
}

/// Connects queue pairs to the neighbor 10.77.0.2.
pub(super) fn idle_queue_pairs(arguments: &ActArguments) -> Result<()> {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 2];
    let (mut sessions, mut count) = (Vec::new(), 0);
    while count < arguments.count {
        let Ok(mut session) = RawSession::open(&arguments.socket) else { break };
        let request = with_queues(&mut session, 1)?;
        while count < arguments.count {
            let Ok(qp) = session.queue_pair(request)? else { break };
            session.connect(qp.reply.qpn, gid, 77)?;
            count += 1;
        }
        sessions.push(session);
        if sessions.len() > 64 {
            break;
        }
    }
    say(&format!("ready {count}"))?;
    wait()
}

/// Makes address handles to `count` hosts of 10.78.0.0/16, of which it keeps every second one.
pub(super) fn absent_hosts(arguments: &ActArguments) -> Result<()> {
    let mut sessions = Vec::new();
    for host in 0..arguments.count {
        if host % 1000 == 0 {
            let mut session = RawSession::open(&arguments.socket)?;
            let (pd, _) = session.client.call::<AllocPd>(Nothing {})?;
            let (sgid_index, _) = session.gid()?;
            sessions.push((session, pd.handle, sgid_index));
        }
        let (session, pd, sgid_index) = sessions.last_mut().context("the first host has made one")?;
        let [.., high, low] = (host + 1).to_be_bytes();
        let dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 78, high, low];
        let request = CreateAhRequest { pd: *pd, sgid_index: *sgid_index, dgid, ..CreateAhRequest::default() };
        let (made, _) = session.client.call::<CreateAh>(request)?;
        if host % 2 == 0 {
            session.client.call::<DestroyAh>(Handle { handle: made.handle })?;
        }
    }
    say(&format!("ready {}", arguments.count))?;
    wait()
}

/// Opens a device as any program does, with the socket that the environment names.
pub(super) fn hello() -> Result<()> {
    let list = Device::list();
    say(&format!("{} {}", env::var("ROCED_SOCKET").unwrap_or_default(), u32::from(list.is_ok())))
}

/// Ends sessions by faults, as fast as they begin.
pub(super) fn faults(arguments: &ActArguments) -> Result<()> {
    say("ready")?;
    let mut count = 0;
    while count < arguments.count {
        let Ok(session) = RawSession::open(&arguments.socket) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        session.client.send_bytes(&[0; 256], &[], MsgFlags::empty())?;
        // Until the daemon has seen it.
        while session.client.receive(MsgFlags::empty())?.is_some() {}
        count += 1;
    }
    say("done")?;
    wait()
}

/// Asks for all queue pairs; prints the bytes of the answer.
pub(super) fn ask_admin(arguments: &ActArguments) -> Result<()> {
    say(&format!("bytes {}", answer(&arguments.socket).unwrap_or(0)))
}

fn answer(path: &Path) -> Result<usize> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"\"qps\"\n")?;
    let mut bytes = [0; 4096];
    let length = stream.read(&mut bytes).context("an answer")?;
    Ok(if bytes[..length].starts_with(b"{\"problem") { 0 } else { length })
}
