//! `e2e-client`: the programs that the tests run on the lab's hosts, each an ordinary client of
//! roced.

mod atomics;
mod backlog;
mod bereft;
mod connect_rate;
mod connected;
mod datagrams;
mod detach_xdp;
mod drain;
mod end;
mod flood;
mod groups;
mod hello;
mod lives;
mod operation;
mod outlive;
mod polled;
mod region;
mod rxe;
mod srq;
mod unreliable;
mod windows;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::Result;
use clap::{Parser, Subcommand};
use roced_client::Gid;

/// Programs of the end-to-end tests.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    program: Program,
}

#[derive(Subcommand)]
enum Program {
    /// Wait for completions until the daemon dies.
    Bereft {
        /// How to wait.
        #[arg(value_enum)]
        waiting: bereft::Waiting,
    },
    /// WRITE messages to a peer that watches their last byte.
    Write {
        /// Messages.
        rounds: usize,
        /// Path MTU, bytes.
        mtu: u32,
    },
    /// Watch the last byte of WRITEs.
    Watch {
        /// Messages.
        rounds: usize,
        /// Path MTU, bytes.
        mtu: u32,
    },
    /// Have a number that peers change by atomic operations, and also change it.
    KeepNumber {
        /// Peers.
        peers: usize,
        /// How often to add 1.
        rounds: u64,
    },
    /// Lend memory by memory windows.
    Lend {
        /// How often.
        rounds: usize,
    },
    /// Write to memory that is lent.
    Borrow {
        /// How often.
        rounds: usize,
    },
    /// Lend memory over an unreliable connection.
    LendUnreliably,
    /// Write to it, in time and too late.
    BorrowUnreliably,
    /// Receive messages of many peers from one shared receive queue.
    Gather {
        /// Peers.
        peers: usize,
        /// Messages of each.
        messages: u32,
        /// Datagrams of one more.
        datagrams: u32,
    },
    /// Send datagrams to a gatherer, each until it is answered.
    ScatterDatagrams {
        /// How many.
        datagrams: u32,
    },
    /// Send messages to a gatherer.
    Scatter {
        /// Which of the peers this is.
        peer: usize,
        /// Messages.
        messages: u32,
    },
    /// Change a peer's number by atomic operations.
    Count {
        /// How often to add 1.
        rounds: u64,
    },
    /// Ask by datagrams.
    Ask {
        /// The host that answers.
        peer: IpAddr,
        /// How often.
        questions: u32,
        /// How long to wait for each answer before asking again, ms.
        patience_ms: u64,
    },
    /// Hear all that is sent to a multicast group.
    Listen {
        /// Which.
        group: IpAddr,
        /// Queue pairs that listen.
        listeners: usize,
    },
    /// Send to a multicast group.
    Speak {
        /// Which.
        group: IpAddr,
    },
    /// Send a datagram to an absent host.
    SendToAbsent {
        /// Where.
        absent: IpAddr,
    },
    /// Answer datagrams.
    Answer {
        /// A host that asks.
        peer: IpAddr,
    },
    /// Send messages over an unreliable connection.
    UcSend {
        /// Messages.
        messages: u32,
        /// Path MTU, bytes.
        mtu: u32,
    },
    /// Receive them.
    UcReceive {
        /// Path MTU, bytes.
        mtu: u32,
    },
    /// Connect by the connection manager, and hold the connections.
    Connect {
        /// The host that accepts.
        peer: IpAddr,
        /// How many.
        connections: usize,
    },
    /// Accept connections, and wait for their end.
    Accept {
        /// How many.
        connections: usize,
    },
    /// Do an operation, once for each length.
    Request {
        /// Of the connection.
        #[arg(value_enum)]
        service: operation::Service,
        /// Operation to execute.
        #[arg(value_enum)]
        operation: operation::Operation,
    },
    /// Let it be executed, and check its result.
    Respond {
        /// Of the connection.
        #[arg(value_enum)]
        service: operation::Service,
        /// Operation that will be executed.
        #[arg(value_enum)]
        operation: operation::Operation,
    },
    /// Let the send queue drain under load, and go on.
    Drain {
        /// How often.
        rounds: u64,
    },
    /// Be written to until the test says that it is enough.
    Expect,
    /// Expose memory, and deregister it when told.
    Expose {
        /// How much.
        bytes: usize,
    },
    /// One large message.
    Transfer {
        /// Which way.
        #[arg(value_enum)]
        direction: region::Direction,
        /// How much.
        bytes: usize,
    },
    /// Connect to the peer twice, with first PSN 0, and move data by each connection in both
    /// directions.
    LiveTwice {
        /// Which host this is.
        #[arg(value_enum)]
        side: lives::Side,
        /// How many.
        connections: usize,
        /// Fate of the queue pairs between.
        #[arg(value_enum)]
        between: lives::Between,
    },
    /// Lose the device's network interface and get it back.
    Outlive,
    /// Detach an XDP program that another process has attached.
    DetachXdp {
        /// Id of the program.
        program: u32,
    },
    /// Say hello to the daemon as a client of another version.
    Hello {
        /// Version of the client ABI.
        version: u32,
    },
    /// Accept all connections at an address, each until its peer ends it.
    AcceptAll {
        /// Address and port.
        at: SocketAddr,
    },
    /// Make connections at a rate, and end each.
    ConnectAtRate {
        /// Listener.
        to: SocketAddr,
        /// Connections a second.
        per_second: u32,
        /// Connections.
        count: u32,
    },
    /// Keep many send queues full of datagrams until killed.
    KeepFull {
        /// Where they go.
        peer: IpAddr,
        /// Queue pairs.
        qps: usize,
    },
    /// Time calls to the daemon.
    TimeCalls {
        /// How long, ms.
        time_ms: u64,
    },
    /// Flood queue pair 1 of a peer with management datagrams.
    Flood {
        /// Interface to send from.
        interface: String,
        /// Its address.
        own: Ipv4Addr,
        /// The peer's interface.
        mac: String,
        /// The peer's address.
        peer: Ipv4Addr,
        /// Port of the requests.
        port: u16,
        /// Content of the datagrams.
        #[arg(value_enum)]
        content: flood::Content,
        /// How long, ms.
        time_ms: u64,
    },
    /// All operations with `rxe-peer`.
    Rxe {
        /// Where it runs.
        address: IpAddr,
        /// Its port.
        port: u16,
        /// Wrong keys as well. Not where frames are lost: the NAK is given once, and a requester
        /// that misses it ends otherwise (rdma_rxe with a retry count of 7 never).
        #[arg(long)]
        wrong_keys: bool,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().program {
        Program::Bereft { waiting } => bereft::wait(waiting),
        Program::Write { rounds, mtu } => polled::write(rounds, mtu),
        Program::Watch { rounds, mtu } => polled::watch(rounds, mtu),
        Program::KeepNumber { peers, rounds } => atomics::keep_number(peers, rounds),
        Program::Lend { rounds } => windows::lend(rounds),
        Program::Borrow { rounds } => windows::borrow(rounds),
        Program::LendUnreliably => windows::lend_unreliably(),
        Program::BorrowUnreliably => windows::borrow_unreliably(),
        Program::Gather { peers, messages, datagrams } => srq::gather(peers, messages, datagrams),
        Program::ScatterDatagrams { datagrams } => srq::scatter_datagrams(datagrams),
        Program::Scatter { peer, messages } => srq::scatter(peer, messages),
        Program::Count { rounds } => atomics::count(rounds),
        Program::Ask { peer, questions, patience_ms } => {
            datagrams::ask(Gid::from(peer), questions, Duration::from_millis(patience_ms))
        }
        Program::Listen { group, listeners } => groups::listen(Gid::from(group), listeners),
        Program::Speak { group } => groups::speak(Gid::from(group)),
        Program::SendToAbsent { absent } => datagrams::send_to_absent_host(Gid::from(absent)),
        Program::Answer { peer } => datagrams::answer(Gid::from(peer)),
        Program::UcSend { messages, mtu } => unreliable::send(messages, mtu),
        Program::UcReceive { mtu } => unreliable::receive(mtu),
        Program::Connect { peer, connections } => connected::connect(peer, connections),
        Program::Accept { connections } => connected::accept(connections),
        Program::Request { service, operation } => operation::request(service, operation),
        Program::Respond { service, operation } => operation::respond(service, operation),
        Program::Drain { rounds } => drain::drain(rounds),
        Program::Expect => drain::expect(),
        Program::Expose { bytes } => region::expose(bytes),
        Program::Transfer { direction, bytes } => region::transfer(direction, bytes),
        Program::LiveTwice { side, connections, between } => lives::live(side, connections, between),
        Program::Outlive => outlive::outlive(),
        Program::DetachXdp { program } => detach_xdp::detach(program),
        Program::Hello { version } => hello::say_hello(version),
        Program::AcceptAll { at } => connect_rate::accept(at),
        Program::ConnectAtRate { to, per_second, count } => connect_rate::connect(to, per_second, count),
        Program::KeepFull { peer, qps } => backlog::keep_full(Gid::from(peer), qps),
        Program::TimeCalls { time_ms } => backlog::time_calls(Duration::from_millis(time_ms)),
        Program::Flood { interface, own, mac, peer, port, content, time_ms } => {
            let to = flood::Target::new(&mac, peer, port)?;
            flood::flood(&interface, own, to, content, Duration::from_millis(time_ms))
        }
        Program::Rxe { address, port, wrong_keys } => rxe::run(address, port, wrong_keys),
    }
}
