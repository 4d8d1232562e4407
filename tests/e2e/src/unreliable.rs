//! Messages over an unreliable connection: messages that arrive are whole and right, their number
//! depends on the network.
//!
//! The sender sends SENDs and WRITEs by turns, each with its number as immediate data, a few at a
//! time: the receiver gives credit by a message of its own, and where that is lost the sender goes
//! on after a while.

use std::{
    io::{self, BufRead as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{
    Access, Completion, CompletionOp, ConnectOptions, MemoryRegion, RecvRequest, SendRequest, ServiceType,
};

use crate::end::{End, say};

/// Messages on their way.
const WINDOW: u32 = 8;
/// Longer than five packets at the largest path MTU.
const BYTES_MAX: usize = 24_000;
/// Places for messages: none is used again before its last message was looked at.
const SLOTS: usize = 4 * WINDOW as usize;
/// How long the sender waits for credit: longer than a busy machine takes, because messages that
/// come later find the receiver behind.
const CREDIT_TIMEOUT: Duration = Duration::from_millis(200);
/// How long for a send to complete, which nothing in the network holds up.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Every length around the edges of packets comes up.
fn length(message: u32) -> usize {
    1 + (message as usize * 977) % BYTES_MAX
}

fn contents(message: u32) -> Vec<u8> {
    (0..length(message)).map(|at| (at * 7 + at / 253) as u8 ^ (message * 31) as u8).collect()
}

const fn slot(message: u32) -> usize {
    message as usize % SLOTS * BYTES_MAX
}

fn options(mtu: u32) -> ConnectOptions {
    ConnectOptions { path_mtu_bytes: Some(mtu), ..ConnectOptions::default() }
}

/// Sends `messages` messages and says so.
pub(crate) fn send(messages: u32, mtu: u32) -> Result<()> {
    let end = End::of(ServiceType::Uc)?;
    let memory = end.pd.allocate(SLOTS * BYTES_MAX, Access::LOCAL_WRITE)?;
    let credit = [memory.sge(..1)];
    for _ in 0..32 {
        end.qp.post_recv(&RecvRequest::new(&credit))?;
    }
    let remote = end.meet(None, &options(mtu))?;
    for message in 0..messages {
        let bytes = length(message);
        memory.write_at(slot(message), &contents(message));
        let data = [memory.sge(slot(message)..slot(message) + bytes)];
        let request = if message % 2 == 0 {
            SendRequest::send(&data)
        } else {
            SendRequest::write(&data, remote.at(slot(message) as u64))
        };
        end.qp.post_send(&request.imm(message.to_be_bytes()).signaled())?;
        await_credit(&end, &credit, message % WINDOW == WINDOW - 1)?;
    }
    say(&format!("sent {messages}"))
}

/// Waits until the last message has left, and for the receiver's word after each window.
fn await_credit(end: &End, credit: &[roced_client::Sge], window_ends: bool) -> Result<()> {
    let (mut left, mut credited) = (false, !window_ends);
    while !(left && credited) {
        let mut one = [Completion::EMPTY];
        let patience = if left { CREDIT_TIMEOUT } else { SEND_TIMEOUT };
        if end.cq.wait(&mut one, patience)? == 0 {
            // Its word was lost, or the end of the window was.
            ensure!(left, "a send does not complete");
            return Ok(());
        }
        let done = one[0].ok()?;
        left |= done.op != CompletionOp::Recv;
        if done.op == CompletionOp::Recv {
            credited = true;
            end.qp.post_recv(&RecvRequest::new(credit))?;
        }
    }
    Ok(())
}

/// Takes messages until it is told that all were sent, and says how many came.
pub(crate) fn receive(mtu: u32) -> Result<()> {
    let end = End::of(ServiceType::Uc)?;
    let exposed = end.pd.allocate(SLOTS * BYTES_MAX, Access::ALL)?;
    let sent = end.pd.allocate(SLOTS * BYTES_MAX, Access::LOCAL_WRITE)?;
    let room = |slot: usize| [sent.sge(slot * BYTES_MAX..(slot + 1) * BYTES_MAX)];
    for slot in 0..SLOTS {
        end.qp.post_recv(&RecvRequest::new(&room(slot)).id(slot as u64))?;
    }
    end.meet(Some(&exposed), &options(mtu))?;
    let all_sent = listen();
    let (mut received, mut newest) = (0, None);
    loop {
        let mut one = [Completion::EMPTY];
        if end.cq.wait(&mut one, Duration::from_millis(200))? == 0 {
            if all_sent.load(Ordering::Relaxed) {
                break;
            }
            continue;
        }
        let done = one[0].ok()?;
        if done.op == CompletionOp::Send {
            continue;
        }
        let message = u32::from_be_bytes(done.imm.context("no immediate data")?);
        ensure!(newest.is_none_or(|newest| newest < message), "message {message} came late or twice");
        newest = Some(message);
        received += 1;
        check(message, &done, &sent, &exposed)?;
        end.qp.post_recv(&RecvRequest::new(&room(done.wr_id as usize)).id(done.wr_id))?;
        if message % WINDOW == WINDOW - 1 {
            end.qp.post_send(&SendRequest::send_inline(b"c").signaled())?;
        }
    }
    say(&format!("received {received}"))
}

fn check(message: u32, done: &Completion, sent: &MemoryRegion, exposed: &MemoryRegion) -> Result<()> {
    let bytes = length(message);
    ensure!(done.byte_len as usize == bytes, "message {message} has {} bytes, not {bytes}", done.byte_len);
    let place = match done.op {
        CompletionOp::Recv => sent.to_vec(done.wr_id as usize * BYTES_MAX, bytes),
        _ => exposed.to_vec(slot(message), bytes),
    };
    ensure!(place == contents(message), "message {message} differs from the one sent");
    Ok(())
}

/// True from the next line on.
pub(crate) fn listen() -> Arc<AtomicBool> {
    let heard = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&heard);
    thread::spawn(move || {
        // The end of the test is a word as well.
        let _ = io::stdin().lock().read_line(&mut String::new());
        tell.store(true, Ordering::Relaxed);
    });
    heard
}
