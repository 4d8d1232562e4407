//! TCP one way.

use std::{
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use super::{TcpConnection, read_exact, write_all};
use crate::{cpu, sample::Sample};

/// The message stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// Bytes of a write.
    pub(crate) message_bytes: usize,
    /// Places that messages are sent from, and received into, in turn.
    pub(crate) places: usize,
}

/// Sends for `time`; the time counts until the last byte is there.
pub(crate) fn stream(connection: TcpConnection, what: Stream, time: Duration) -> anyhow::Result<Sample> {
    let TcpConnection(mut client, mut server) = connection;
    let Stream { message_bytes, places } = what;
    let (mut from, mut into) = (vec![1_u8; message_bytes * places], vec![2_u8; message_bytes * places]);
    thread::scope(|scope| {
        let receiver = scope.spawn(move || -> anyhow::Result<_> {
            let (cpu, mut messages) = (cpu::of_this_thread(), 0_u64);
            loop {
                let place = messages as usize % places * message_bytes;
                if !read_exact(&mut server, &mut into[place..place + message_bytes])? {
                    return Ok((messages, cpu::of_this_thread() - cpu));
                }
                messages += 1;
            }
        });
        let sender = scope.spawn(move || -> anyhow::Result<_> {
            let (cpu, begin, mut messages) = (cpu::of_this_thread(), Instant::now(), 0_usize);
            while begin.elapsed() < time {
                let place = messages % places * message_bytes;
                // So that no message is the one before: nothing else touches it.
                from[place] = from[place].wrapping_add(1);
                write_all(&mut client, &from[place..place + message_bytes])?;
                messages += 1;
            }
            client.shutdown(Shutdown::Write)?;
            Ok((begin, cpu::of_this_thread() - cpu))
        });
        let (messages, receiver_cpu) = receiver.join().expect("no panic")?;
        let end = Instant::now();
        let (begin, sender_cpu) = sender.join().expect("no panic")?;
        Ok(Sample::stream(messages, message_bytes as u64, end - begin, receiver_cpu + sender_cpu))
    })
}
