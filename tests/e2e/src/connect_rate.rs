//! Connections by the connection manager, one after the other at a rate.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{ConnectionOptions, ConnectionRequest, Device, Listener, ProtectionDomain, Route};

use crate::end::say;

/// Threads that connect: each waits for its connections.
const THREADS: u32 = 8;
/// How long a connection may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Accepts all.
pub(crate) fn accept(at: SocketAddr) -> Result<()> {
    let listener = Listener::bind(at)?;
    say("listening")?;
    let opened = Arc::default();
    loop {
        let Some(request) = listener.next(Duration::from_secs(1))? else { continue };
        let opened = Arc::clone(&opened);
        // One that is not confirmed, because its sender does not exist, keeps none from the others.
        thread::spawn(move || serve(&opened, request));
    }
}

/// The only device.
type Opened = OnceLock<ProtectionDomain>;

fn open<'a>(opened: &'a Opened, request: &ConnectionRequest) -> Result<&'a ProtectionDomain> {
    if let Some(pd) = opened.get() {
        return Ok(pd);
    }
    let pd = Device::open(&request.device()?)?.protection_domain()?;
    Ok(opened.get_or_init(|| pd))
}

/// One connection, until its peer ends it.
fn serve(opened: &Opened, request: ConnectionRequest) {
    let served = || -> Result<bool> {
        let pd = open(opened, &request)?;
        let cq = pd.device().completion_queue(1)?;
        let qp = pd.queue_pair(&cq, &cq).create()?;
        Ok(request.accept(&qp, &ConnectionOptions::default())?.wait_for_end(TIMEOUT)?)
    };
    // Peers that do not exist do not confirm.
    if let Err(error) = served()
        && !matches!(error.downcast_ref(), Some(roced_client::Error::NotConnected { .. }))
    {
        eprintln!("{error:#}");
    }
}

/// Makes `count` connections, `per_second`, and says how long they took. All must succeed.
pub(crate) fn connect(to: SocketAddr, per_second: u32, count: u32) -> Result<()> {
    let device = Device::open(&Route::to(to, TIMEOUT)?.device()?)?;
    let pd = device.protection_domain()?;
    let begin = Instant::now();
    let times = Mutex::new(Vec::new());
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (pd, times) = (&pd, &times);
                scope.spawn(move || -> Result<()> {
                    for number in (thread..count).step_by(THREADS as usize) {
                        let due = begin + Duration::from_secs(1) * number / per_second;
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        let took = once(pd, to).with_context(|| format!("connection {number} of {count}"))?;
                        times.lock().expect("no thread panics").push(took);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let mut times = times.into_inner().expect("no thread panics");
    ensure!(times.len() == count as usize, "{} of {count} connections", times.len());
    times.sort();
    let of = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
    say(&format!("connected {count} times, {} us at the median, {} at 99 %, {} at most", of(50), of(99), of(100)))
}

/// A connection; how long it took to make it.
fn once(pd: &ProtectionDomain, to: SocketAddr) -> Result<Duration> {
    let cq = pd.device().completion_queue(1)?;
    let qp = pd.queue_pair(&cq, &cq).create()?;
    let begin = Instant::now();
    let options = ConnectionOptions { timeout: TIMEOUT, ..ConnectionOptions::default() };
    let connection = Route::to(to, TIMEOUT)?.connect(&qp, &options)?;
    let took = begin.elapsed();
    connection.disconnect()?;
    Ok(took)
}
