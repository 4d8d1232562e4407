//! One operation of one service, at every length around the edges of packets: the requester's part
//! and the responder's.
//!
//! All data that arrives is checked when the requester has said that all is done, but for the
//! completions that tell of it.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use roced_client::{
    Access, CompletionOp, ConnectOptions, GRH_BYTES, MemoryRegion, RecvRequest, RemoteMemory, SendRequest, ServiceType,
};

use crate::end::{Address, End, hear, say};

/// Bytes of a packet's payload.
const PATH_MTU: u32 = 1024;
const DATAGRAM_BYTES_MAX: usize = 4096;
const LENGTHS: [usize; 9] = [0, 1, 8, 1023, 1024, 1025, 2048, 5000, 40_000];
/// Each message has its place.
const ROOM: usize = 40_000;
const BYTES: usize = ROOM * LENGTHS.len();
/// For data that arrives without a completion, and takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The services.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
}

impl Service {
    /// The lengths of messages, each with its number. Datagrams are as long as the lab's path MTU
    /// at most.
    fn lengths(self) -> impl Iterator<Item = (usize, usize)> {
        let max = if self == Self::Ud { DATAGRAM_BYTES_MAX } else { ROOM };
        LENGTHS.into_iter().enumerate().filter(move |(_, length)| *length <= max)
    }
}

impl From<Service> for ServiceType {
    fn from(service: Service) -> Self {
        match service {
            Service::Rc => Self::Rc,
            Service::Uc => Self::Uc,
            Service::Ud => Self::Ud,
        }
    }
}

/// The operation.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Operation {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    /// A WRITE without a completion, and the FLUSH that tells of it.
    Flush,
}

impl Operation {
    const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd | Self::AtomicWrite)
    }

    /// Operations in the requester's completions and, if there are any, the responder's.
    const fn completions(self) -> (CompletionOp, Option<CompletionOp>) {
        match self {
            Self::Send | Self::SendImm => (CompletionOp::Send, Some(CompletionOp::Recv)),
            Self::Write => (CompletionOp::Write, None),
            Self::WriteImm => (CompletionOp::Write, Some(CompletionOp::RecvWriteImm)),
            Self::Read => (CompletionOp::Read, None),
            Self::CompareSwap => (CompletionOp::CompareSwap, None),
            Self::FetchAdd => (CompletionOp::FetchAdd, None),
            Self::AtomicWrite => (CompletionOp::AtomicWrite, None),
            Self::Flush => (CompletionOp::Flush, None),
        }
    }
}

/// Contents of place `number` of the side with that `seed`.
fn contents(seed: u8, number: usize) -> Vec<u8> {
    (0..ROOM).map(|at| (at * 11 + at / 251 + number * 17) as u8 ^ seed).collect()
}

const fn imm(number: usize) -> [u8; 4] {
    (0x0a0b_0c00 + number as u32).to_be_bytes()
}

/// Values before and after atomic operation `number`.
const fn number_before(number: usize) -> u64 {
    0xfedc_ba98_0000_0000 + number as u64
}

const fn number_after(number: usize) -> u64 {
    number_before(number).wrapping_add(u64::MAX / 3)
}

const REQUESTER: u8 = 0x5a;
const RESPONDER: u8 = 0x33;

fn memory(end: &End, seed: u8) -> Result<MemoryRegion> {
    let region = end.pd.allocate(BYTES, Access::ALL)?;
    for number in 0..LENGTHS.len() {
        region.write_at(number * ROOM, &contents(seed, number));
    }
    Ok(region)
}

fn options() -> ConnectOptions {
    ConnectOptions { path_mtu_bytes: Some(PATH_MTU), ..ConnectOptions::default() }
}

/// Where it is done.
enum There {
    /// The peer of a connection exposes this.
    Memory(RemoteMemory),
    Address(Address),
}

/// Does it once for each length, one after the other, and says so.
pub(crate) fn request(service: Service, operation: Operation) -> Result<()> {
    let end = End::of(service.into())?;
    let here = memory(&end, REQUESTER)?;
    let there = if service == Service::Ud {
        There::Address(end.meet_for_datagrams()?)
    } else {
        There::Memory(end.meet(None, &options())?)
    };
    for (number, length) in service.lengths() {
        one(&end, &here, &there, operation, number, length)
            .with_context(|| format!("number {number}, {length} bytes"))?;
    }
    say("done")
}

fn one(
    end: &End,
    here: &MemoryRegion,
    there: &There,
    operation: Operation,
    number: usize,
    length: usize,
) -> Result<()> {
    let length = if operation.is_atomic() { 8 } else { length };
    let start = number * ROOM;
    let sges = [here.sge(start..start + length)];
    let memory = match there {
        There::Memory(memory) => memory.at(start as u64),
        There::Address(_) => RemoteMemory::default(),
    };
    let request = match operation {
        Operation::Send => SendRequest::send(&sges),
        Operation::SendImm => SendRequest::send(&sges).imm(imm(number)),
        Operation::Write => SendRequest::write(&sges, memory),
        Operation::WriteImm => SendRequest::write(&sges, memory).imm(imm(number)),
        Operation::Read => SendRequest::read(&sges, memory),
        Operation::CompareSwap => SendRequest::compare_swap(&sges, memory, number_before(number), number_after(number)),
        Operation::FetchAdd => SendRequest::fetch_add(&sges, memory, u64::MAX / 3),
        Operation::AtomicWrite => SendRequest::atomic_write(number_after(number).to_ne_bytes(), memory),
        Operation::Flush => {
            end.qp.post_send(&SendRequest::write(&sges, memory))?;
            // By the range, and by the region's key, in turn.
            let range = RemoteMemory { length: length as u64, ..memory };
            if number.is_multiple_of(2) { SendRequest::flush(range) } else { SendRequest::flush_region(memory.rkey) }
        }
    };
    let request = match there {
        There::Memory(_) => request,
        There::Address(address) => address.of(request),
    };
    end.qp.post_send(&request.id(number as u64).signaled())?;
    let done = end.completion()?.ok()?;
    let wanted = (number as u64, operation.completions().0);
    ensure!((done.wr_id, done.op) == wanted, "{done:?} is no completion of {wanted:?}");
    match operation {
        Operation::Read => {
            let all = [&contents(RESPONDER, number)[..length], &contents(REQUESTER, number)[length..]].concat();
            ensure!(here.to_vec(start, ROOM) == all, "the bytes read are not those of the peer");
        }
        Operation::CompareSwap | Operation::FetchAdd => {
            let found = here.atomic(start).load(Ordering::Relaxed);
            ensure!(found == number_before(number), "found {found:#x}, not {:#x}", number_before(number));
        }
        _ => {}
    }
    Ok(())
}

/// Lets it be executed, and checks its result when told.
pub(crate) fn respond(service: Service, operation: Operation) -> Result<()> {
    let end = End::of(service.into())?;
    let (exposed, inbox) = (memory(&end, RESPONDER)?, memory(&end, RESPONDER)?);
    if operation.is_atomic() {
        (0..LENGTHS.len()).for_each(|at| exposed.atomic(at * ROOM).store(number_before(at), Ordering::Relaxed));
    }
    let header = end.pd.allocate(GRH_BYTES, Access::LOCAL_WRITE)?;
    for number in 0..LENGTHS.len() {
        let room = [header.sge(..), inbox.sge(number * ROOM..(number + 1) * ROOM)];
        let room = if service == Service::Ud { &room } else { &room[1..] };
        end.qp.post_recv(&RecvRequest::new(room).id(number as u64))?;
    }
    if service == Service::Ud {
        end.meet_for_datagrams()?;
    } else {
        end.meet(Some(&exposed), &options())?;
    }
    if operation.completions().1.is_some() {
        for (number, length) in service.lengths() {
            received(&end, service, operation, number, length)
                .with_context(|| format!("number {number}, {length} bytes"))?;
        }
    }
    hear()?;
    let into = if matches!(operation, Operation::Send | Operation::SendImm) { &inbox } else { &exposed };
    for (number, length) in service.lengths() {
        arrived(into, operation, number, length).with_context(|| format!("number {number}, {length} bytes"))?;
    }
    say("right")
}

/// The next completion tells of this message.
fn received(end: &End, service: Service, operation: Operation, number: usize, length: usize) -> Result<()> {
    let done = end.completion()?.ok()?;
    let with_imm = matches!(operation, Operation::SendImm | Operation::WriteImm).then_some(imm(number));
    ensure!(Some(done.op) == operation.completions().1 && done.imm == with_imm, "{done:?}");
    let header_bytes = if service == Service::Ud { GRH_BYTES } else { 0 };
    ensure!((done.wr_id, done.byte_len as usize) == (number as u64, header_bytes + length), "{done:?}");
    ensure!(done.has_grh == (service == Service::Ud), "{done:?}");
    Ok(())
}

/// Place `number` holds the right bytes, and nothing behind it was touched. Of an unreliable
/// connection it may still be on its way.
fn arrived(memory: &MemoryRegion, operation: Operation, number: usize, length: usize) -> Result<()> {
    if operation.is_atomic() {
        let left = memory.atomic(number * ROOM).load(Ordering::Relaxed);
        ensure!(left == number_after(number), "left {left:#x}, not {:#x}", number_after(number));
        return Ok(());
    }
    let length = if operation == Operation::Read { 0 } else { length };
    let wanted = [&contents(REQUESTER, number)[..length], &contents(RESPONDER, number)[length..]].concat();
    let end = Instant::now() + TIMEOUT;
    while memory.to_vec(number * ROOM, ROOM) != wanted {
        ensure!(Instant::now() < end, "the bytes here are not those that were sent");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
