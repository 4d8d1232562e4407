//! A connection by the connection manager: no TCP connection of the programs' own.
//!
//! The program with an address connects and sends a message; the other listens (at 0.0.0.0, or at
//! its first argument if the second is `listen`), answers in capitals, and ends with the connection.
//!
//! ```text
//! cargo build -p roced-client --examples && scripts/lab up
//! scripts/lab exec b -- target/debug/examples/connection &
//! scripts/lab exec a -- target/debug/examples/connection 10.10.0.2
//! ```

use std::{
    env,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{
    Access, Completion, CompletionQueue, ConnectionOptions, Device, Listener, MemoryRegion, QueuePair, RecvRequest,
    Route, SendRequest,
};

/// Port of the listener, in the port space of rdma_cm.
const PORT: u16 = 18602;
/// Longest message.
const BYTES: usize = 256;
/// Time limit for each step.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A queue pair with a buffer to send from and one to receive into.
struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    sent: MemoryRegion,
    received: MemoryRegion,
}

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "0.0.0.0".to_owned());
    let address: IpAddr = address.parse().with_context(|| format!("'{address}' is no IP address"))?;
    if address.is_unspecified() || arguments.next().is_some_and(|word| word == "listen") {
        answer(address)
    } else {
        ask(address)
    }
}

fn ask(address: IpAddr) -> Result<()> {
    // The route says which device leads to the peer; the queue pair is made there.
    let route = Route::to(SocketAddr::new(address, PORT), TIMEOUT)?;
    let end = End::new(&route.device()?)?;
    let options = ConnectionOptions { private_data: b"a question", ..ConnectionOptions::default() };
    let connection = route.connect(&end.qp, &options)?;
    println!("connected to {}", connection.peer()?);
    end.send(b"hello, connection manager")?;
    println!("the answer: {}", end.receive()?);
    connection.disconnect()?;
    Ok(())
}

fn answer(address: IpAddr) -> Result<()> {
    let listener = Listener::bind(SocketAddr::new(address, PORT))?;
    println!("listening at {}", listener.address()?);
    let request = listener.next(TIMEOUT)?.context("no peer has come")?;
    let asked = String::from_utf8_lossy(request.private_data()).trim_end_matches('\0').to_owned();
    println!("{} asks with '{asked}'", request.peer()?);
    let end = End::new(&request.device()?)?;
    let connection = request.accept(&end.qp, &ConnectionOptions::default())?;
    let message = end.receive()?;
    end.send(message.to_uppercase().as_bytes())?;
    ensure!(connection.wait_for_end(TIMEOUT)?, "the peer does not disconnect");
    println!("answered '{message}'");
    Ok(())
}

impl End {
    /// With a receive posted: the peer may send as soon as it is connected.
    fn new(device: &str) -> Result<Self> {
        let device = Device::open(device)?;
        let pd = device.protection_domain()?;
        let cq = device.completion_queue(16)?;
        let qp = pd.queue_pair(&cq, &cq).create()?;
        let [sent, received] = [pd.allocate(BYTES, Access::LOCAL_WRITE)?, pd.allocate(BYTES, Access::LOCAL_WRITE)?];
        qp.to_init(Access::NONE)?;
        qp.post_recv(&RecvRequest::new(&[received.sge(..)]))?;
        Ok(Self { cq, qp, sent, received })
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        self.sent.write_at(0, message);
        self.qp.post_send(&SendRequest::send(&[self.sent.sge(..message.len())]).signaled())?;
        self.completion().map(drop)
    }

    fn receive(&self) -> Result<String> {
        let length = self.completion()?.byte_len as usize;
        Ok(String::from_utf8(self.received.to_vec(0, length))?)
    }

    fn completion(&self) -> Result<Completion> {
        let mut done = [Completion::EMPTY];
        ensure!(self.cq.wait(&mut done, TIMEOUT)? == 1, "nothing completes within {TIMEOUT:?}");
        Ok(done[0].ok()?)
    }
}
