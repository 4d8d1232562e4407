//! TCP there and back, one message at a time.

use std::{
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::{TcpConnection, read_exact, write_all};
use crate::sample::{Sample, Times};

/// Round trips before the ones that count.
const WARM_UP: u32 = 500;

/// Round trips of messages of `bytes` for `time`.
pub(crate) fn pingpong(connection: TcpConnection, bytes: usize, time: Duration) -> anyhow::Result<Sample> {
    let TcpConnection(mut client, mut server) = connection;
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> anyhow::Result<()> {
            let mut message = vec![0; bytes];
            while read_exact(&mut server, &mut message)? {
                write_all(&mut server, &message)?;
            }
            Ok(())
        });
        let ping = scope.spawn(move || -> anyhow::Result<Sample> {
            let (mut message, mut times, mut begin) = (vec![0; bytes], Times::new(), Instant::now());
            for sequence in 0.. {
                let sent = Instant::now();
                if sequence == WARM_UP {
                    begin = sent;
                }
                write_all(&mut client, &message)?;
                ensure!(read_exact(&mut client, &mut message)?, "the connection ended");
                let now = Instant::now();
                if sequence >= WARM_UP {
                    times.record(now - sent);
                    if now - begin >= time {
                        client.shutdown(Shutdown::Write)?;
                        return Ok(times.sample(now - begin));
                    }
                }
            }
            unreachable!("time passes")
        });
        let sample = ping.join().expect("no panic");
        // An error of the client's is the first one.
        sample.and_then(|sample| echo.join().expect("no panic").map(|()| sample))
    })
}
