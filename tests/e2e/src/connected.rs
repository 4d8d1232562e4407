//! Many connections by the connection manager, of one program to another, that are held until the
//! other side ends them.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{CompletionQueue, ConnectionOptions, Device, Listener, ProtectionDomain, QueuePair, Route};

const PORT: u16 = 18605;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Where queue pairs are made.
struct Place {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Place {
    fn new(device: &str) -> Result<Self> {
        let device = Device::open(device)?;
        Ok(Self { pd: device.protection_domain()?, cq: device.completion_queue(16)? })
    }

    fn queue_pair(&self) -> Result<QueuePair> {
        Ok(self.pd.queue_pair(&self.cq, &self.cq).send_wrs(1).recv_wrs(1).create()?)
    }
}

/// Accepts connections, and waits until all have ended: the first end to the last in milliseconds.
pub(crate) fn accept(connections: usize) -> Result<()> {
    let listener = Listener::bind(SocketAddr::new(IpAddr::from([0; 4]), PORT))?;
    println!("listening");
    let mut place = None;
    let mut held = Vec::new();
    for number in 0..connections {
        let request = listener.next(TIMEOUT)?.with_context(|| format!("no request after {number}"))?;
        let place = match &place {
            Some(place) => place,
            None => place.insert(Place::new(&request.device()?)?),
        };
        let qp = place.queue_pair()?;
        held.push((request.accept(&qp, &ConnectionOptions::default())?, qp));
    }
    println!("{connections} connections");
    ensure!(held[0].0.wait_for_end(TIMEOUT)?, "the first connection has not ended");
    let begin = Instant::now();
    for (number, (connection, _)) in held.iter().enumerate().skip(1) {
        ensure!(connection.wait_for_end(Duration::from_secs(5))?, "connection {number} has not ended");
    }
    println!("all ended within {} ms", begin.elapsed().as_millis());
    Ok(())
}

/// Connects, and holds the connections until the daemon or the test ends them.
pub(crate) fn connect(peer: IpAddr, connections: usize) -> Result<()> {
    let peer = SocketAddr::new(peer, PORT);
    let place = Place::new(&Route::to(peer, TIMEOUT)?.device()?)?;
    let mut held = Vec::new();
    for number in 0..connections {
        let qp = place.queue_pair()?;
        let connection = Route::to(peer, TIMEOUT)?.connect(&qp, &ConnectionOptions::default());
        held.push((connection.with_context(|| format!("connection {number}"))?, qp));
    }
    println!("{connections} connections");
    // An end, or a daemon that is gone.
    let _ = held[0].0.wait_for_end(Duration::MAX);
    Ok(())
}
