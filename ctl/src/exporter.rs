//! `rocectl metrics --listen`: the metrics over HTTP, for Prometheus.
//!
//! Local users can reach the socket. So that scrapes cannot occupy the daemon, a response is
//! used again for [`LIFETIME`], and at most [`SCRAPES_MAX`] answers are under way.

use std::{
    fs, io,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use tiny_http::{Header, Method, Request, Response, Server};

use crate::cli::ListenAddress;

/// Age at which an answer is no longer used.
const LIFETIME: Duration = Duration::from_secs(1);

/// Answers under way at a time.
const SCRAPES_MAX: usize = 16;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers scrapes with `metrics` until the process is ended.
pub(crate) fn serve(address: &ListenAddress, metrics: impl Fn() -> String) -> anyhow::Result<()> {
    let server = listen(address)?;
    let mut recent: Option<(Instant, Arc<str>)> = None;
    let under_way = Arc::new(());
    loop {
        let request = server.recv().context("accepting a scrape")?;
        if Arc::strong_count(&under_way) > SCRAPES_MAX {
            // Dropped: the library closes the connection with status 500.
            continue;
        }
        let text = match &recent {
            Some((at, text)) if at.elapsed() < LIFETIME => Arc::clone(text),
            _ => {
                let text: Arc<str> = metrics().into();
                recent = Some((Instant::now(), Arc::clone(&text)));
                text
            }
        };
        let token = Arc::clone(&under_way);
        let answer = move || {
            answer(request, &text);
            drop(token);
        };
        // A client that reads slowly delays no other.
        if thread::Builder::new().spawn(answer).is_err() {
            thread::sleep(LIFETIME);
        }
    }
}

fn listen(address: &ListenAddress) -> anyhow::Result<Server> {
    let server = match address {
        ListenAddress::Loopback(address) => Server::http(address),
        ListenAddress::Unix(path) => {
            remove_stale(path).with_context(|| format!("removing the old socket {}", path.display()))?;
            Server::http_unix(path)
        }
    };
    let shown = match address {
        ListenAddress::Loopback(address) => address.to_string(),
        ListenAddress::Unix(path) => path.display().to_string(),
    };
    server.map_err(|error| anyhow!("cannot listen on {shown}: {error}"))
}

/// Removes a socket of an ended process; nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() && UnixStream::connect(path).is_err() => fs::remove_file(path),
        _ => Ok(()),
    }
}

fn answer(request: Request, text: &str) {
    let is_metrics = matches!(request.method(), Method::Get | Method::Head)
        && request.url().split('?').next().is_some_and(|path| path == "/metrics");
    // A client that went away needs no answer.
    let _ = if is_metrics {
        let kind = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("a constant header");
        request.respond(Response::from_string(text).with_header(kind))
    } else {
        request.respond(Response::from_string("the metrics are at /metrics\n").with_status_code(404))
    };
}
