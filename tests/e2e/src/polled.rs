//! WRITEs to a receiver that watches the last byte: once it sees that, every byte before it must be
//! there.

use std::thread;

use anyhow::{Result, ensure};
use roced_client::{Access, ConnectOptions, MemoryRegion, RecvRequest, SendRequest};

use crate::end::{End, say};

/// The largest WRITE.
const BYTES_MAX: usize = 1 << 20;

/// Byte `at` of round `round`: never zero, the value to which the receiver clears its memory.
fn byte(round: usize, at: usize) -> u8 {
    ((round * 31 + at * 7 + (at >> 8) * 3) % 255 + 1) as u8
}

fn message(round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| byte(round, at)).collect()
}

/// Sizes from 1 B to 1 MiB: around every power of two, so that last packets of every shape come.
fn sizes(rounds: usize) -> impl Iterator<Item = usize> {
    let around = (0..=20).flat_map(|power| {
        let size = 1_usize << power;
        [size.saturating_sub(1), size, size + 1]
    });
    let all: Vec<_> = around.filter(|size| (1..=BYTES_MAX).contains(size)).collect();
    (0..rounds).map(move |round| all[round % all.len()])
}

/// Writes a message a round and waits until the receiver has seen it.
pub(crate) fn write(rounds: usize, path_mtu_bytes: u32) -> Result<()> {
    let end = End::open()?;
    let data = end.pd.allocate(BYTES_MAX, Access::NONE)?;
    let note = end.pd.allocate(8, Access::LOCAL_WRITE)?;
    let note_sges = [note.sge(..)];
    end.qp.post_recv(&RecvRequest::new(&note_sges))?;
    let theirs = end.meet(None, &options(path_mtu_bytes))?;
    for (round, size) in sizes(rounds).enumerate() {
        data.write_at(0, &message(round, size));
        let sges = [data.sge(..size)];
        end.qp.post_send(&SendRequest::write(&sges, theirs).signaled())?;
        // Its completion and the receiver's note, in whichever order.
        for _ in 0..2 {
            end.completion()?.ok()?;
        }
        end.qp.post_recv(&RecvRequest::new(&note_sges))?;
    }
    say("done")
}

/// Watches the last byte of each message, looks at all of it, and says so to the writer.
pub(crate) fn watch(rounds: usize, path_mtu_bytes: u32) -> Result<()> {
    let end = End::open()?;
    let data = end.pd.allocate(BYTES_MAX, Access::REMOTE_WRITE)?;
    end.meet(Some(&data), &options(path_mtu_bytes))?;
    let mut seen = vec![0; BYTES_MAX];
    for (round, size) in sizes(rounds).enumerate() {
        await_byte(&end, &data, size - 1, byte(round, size - 1))?;
        data.read_at(0, &mut seen[..size]);
        let wrong = (0..size).find(|&at| seen[at] != byte(round, at));
        ensure!(wrong.is_none(), "round {round}: the last of {size} bytes was there before byte {wrong:?}");
        data.fill(0, size, 0);
        end.qp.post_send(&SendRequest::send_inline(&[1]).signaled())?;
        end.completion()?.ok()?;
    }
    say("done")
}

/// Spins, yielding the core; now and then looks whether the connection still stands, lest it spin
/// for ever.
fn await_byte(end: &End, data: &MemoryRegion, at: usize, wanted: u8) -> Result<()> {
    let mut looks = 0_u32;
    while data.byte(at) != wanted {
        looks += 1;
        if looks.is_multiple_of(64) {
            thread::yield_now();
        }
        if looks.is_multiple_of(65_536) {
            let mut none = [];
            end.cq.poll(&mut none)?;
            ensure!(end.qp.query()?.state == roced_client::state::RTS, "the queue pair failed");
        }
    }
    Ok(())
}

fn options(path_mtu_bytes: u32) -> ConnectOptions {
    ConnectOptions { path_mtu_bytes: Some(path_mtu_bytes), ..ConnectOptions::default() }
}
