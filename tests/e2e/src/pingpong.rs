//! The other side of `ibv_rc_pingpong`, a program of rdma-core that everybody has: SENDs of 4096 bytes, there and back.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{Access, CompletionOp, ConnectOptions, Endpoint, Gid, RecvRequest, SendRequest, ServiceType};

use crate::end::{End, say};

/// What `ibv_rc_pingpong` was started with on the other side: -s 4096 -n 1000, and its default path MTU.
const BYTES: usize = 4096;
const ROUNDS: usize = 1000;
const PATH_MTU_BYTES: u32 = 1024;

/// Its message: LID, QPN, PSN and GID in hexadecimal, with colons between and a zero at the end.
const MESSAGE_BYTES: usize = "0000:000000:000000:00000000000000000000000000000000".len() + 1;

/// Longest time until it listens: it is started anew after each connection, under an emulator.
const LISTEN_PATIENCE: Duration = Duration::from_secs(60);

/// Plays `ibv_rc_pingpong ADDRESS`.
pub(crate) fn run(address: IpAddr, port: u16) -> Result<()> {
    let peer = SocketAddr::new(address, port);
    let mut stream = connect(peer).with_context(|| format!("no ibv_rc_pingpong at {peer}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let end = End::toward(Gid::from(address), ServiceType::Rc)?;
    let (ping, pong) = (end.pd.allocate(BYTES, Access::NONE)?, end.pd.allocate(BYTES, Access::LOCAL_WRITE)?);
    ping.fill(0, BYTES, b'{');
    let (data, room) = ([ping.sge(..)], [pong.sge(..)]);
    for _ in 0..32 {
        end.qp.post_recv(&RecvRequest::new(&room))?;
    }

    let us = end.endpoint()?;
    // In one piece: it reads once, and takes less than all for an error.
    let message = format!("0000:{:06x}:{:06x}:{:032x}\0", us.qpn, us.psn, u128::from_be_bytes(us.gid.0));
    stream.write_all(message.as_bytes())?;
    let mut answer = [0; MESSAGE_BYTES];
    stream.read_exact(&mut answer).context("ibv_rc_pingpong says nothing")?;
    let text = String::from_utf8_lossy(&answer);
    let fields: Vec<_> = text.trim_end_matches('\0').split(':').collect();
    ensure!(fields.len() == 4, "ibv_rc_pingpong says '{text}'");
    let number = |field: &str| u32::from_str_radix(field, 16).with_context(|| text.clone().into_owned());
    let gid = Ipv6Addr::from(u128::from_str_radix(fields[3], 16)?);
    let (qpn, psn) = (number(fields[1])?, number(fields[2])?);
    let them = Endpoint { gid: Gid::from(IpAddr::from(gid)), qpn, psn, mtu_bytes: PATH_MTU_BYTES };
    end.qp.connect(&them, &ConnectOptions { timeout: 17, ..ConnectOptions::default() })?;
    stream.write_all(b"done\0")?;

    for round in 0..ROUNDS {
        end.qp.post_send(&SendRequest::send(&data).signaled())?;
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            let completion = end.completion()?.ok().with_context(|| format!("round {round}"))?;
            sent |= completion.op == CompletionOp::Send;
            if completion.op == CompletionOp::Recv {
                ensure!(completion.byte_len as usize == BYTES, "{} bytes came back", completion.byte_len);
                received = true;
                end.qp.post_recv(&RecvRequest::new(&room))?;
            }
        }
    }
    say(&format!("  ibv_rc_pingpong: {ROUNDS} rounds"))
}

/// Connects to the one that listens, or will soon.
fn connect(peer: SocketAddr) -> io::Result<TcpStream> {
    let deadline = Instant::now() + LISTEN_PATIENCE;
    loop {
        match TcpStream::connect_timeout(&peer, Duration::from_secs(10)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(100));
            }
            connected => return connected,
        }
    }
}
