//! Load on workers and on the control thread.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use anyhow::Result;
use roced_abi::{
    control::{
        AllocPd, CreateQp, CreateSrq, CreateSrqRequest, DestroyQp, DestroySrq, Handle, ModifySrq, ModifySrqRequest,
        Nothing,
    },
    doorbell::DOORBELL_BLOCK_BYTES,
};
use roced_types::SGE_MAX;

use super::{
    objects::{LARGEST, with_queues},
    say,
};
use crate::{actor::ActArguments, raw_client::RawSession, shared::Shared};

/// Calls that wait in a session.
const CALLS: u32 = 16;

/// Posts whole rings of shared receives, and has a command take each.
pub(super) fn shared_ring(arguments: &ActArguments) -> Result<()> {
    let mut session = RawSession::open(&arguments.socket)?;
    let (pd, _) = session.client.call::<AllocPd>(Nothing {})?;
    let request = CreateSrqRequest { pd: pd.handle, wrs: LARGEST, sges: SGE_MAX };
    let mut rounds = 0_u64;
    loop {
        let (srq, fds) = session.client.call::<CreateSrq>(request)?;
        let ring = Shared::whole(&fds[0])?;
        // Zeros are receives without memory.
        ring.half(0).store(srq.wrs, Ordering::Release);
        let handle = Handle { handle: srq.srqn };
        session.client.call::<ModifySrq>(ModifySrqRequest { srqn: srq.srqn, limit: srq.wrs })?;
        session.client.call::<DestroySrq>(handle)?;
        rounds += 1;
        if rounds == 1 {
            say("ready")?;
        }
    }
}

/// Rings every doorbell of `count` sessions in every turn.
pub(super) fn doorbells(arguments: &ActArguments) -> Result<()> {
    let (mut sessions, mut blocks): (Vec<RawSession>, Vec<Arc<Shared>>) = Default::default();
    for _ in 0..arguments.count {
        let Ok(session) = RawSession::open(&arguments.socket) else { break };
        blocks.push(session.doorbells()?);
        sessions.push(session);
    }
    say(&format!("ready {}", sessions.len()))?;
    loop {
        for block in &blocks {
            // Words first, their summary last.
            for word in (0..64).map(|word| 8 + word).chain([0]) {
                block.word(word).store(u64::MAX, Ordering::Release);
            }
        }
        const { assert!(DOORBELL_BLOCK_BYTES >= 64 + 64 * 8) };
        sessions[0].wake();
        // A millisecond of this program costs its own share only.
        thread::sleep(Duration::from_micros(200));
    }
}

/// Has calls that cost the daemon time wait in `count` sessions.
pub(super) fn calls(arguments: &ActArguments) -> Result<()> {
    let mut threads = Vec::new();
    for _ in 0..arguments.count {
        let mut session = RawSession::open(&arguments.socket)?;
        let request = with_queues(&mut session, LARGEST)?;
        threads.push(thread::spawn(move || loop_calls(&mut session, request)));
    }
    say("ready")?;
    for thread in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(_) => anyhow::bail!("a thread panicked"),
        }
    }
    Ok(())
}

fn loop_calls(session: &mut RawSession, request: roced_abi::control::CreateQpRequest) -> Result<()> {
    loop {
        let mut made = Vec::new();
        for _ in 0..CALLS {
            session.client.begin::<CreateQp>(&request, &[])?;
        }
        for _ in 0..CALLS {
            if let Ok((reply, _)) = session.client.finish::<CreateQp>()? {
                made.push(reply.qpn);
            }
        }
        for qpn in &made {
            session.client.begin::<DestroyQp>(&Handle { handle: *qpn }, &[])?;
        }
        for _ in &made {
            // A refusal is an answer as well.
            let _refused = session.client.finish::<DestroyQp>()?;
        }
    }
}
