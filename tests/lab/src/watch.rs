//! Queues of the switch as a table each second, or as one JSON document.

use std::{
    io::{self, ErrorKind, IsTerminal as _, Write as _},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use crate::queue::{QueueReading, Queues};

const REFRESH: Duration = Duration::from_secs(1);

/// Moves the cursor of a terminal to its top and clears the rest.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Prints a table each second: on a terminal in place of the last one, otherwise below it, after an
/// empty line. The first has rates since the last reset, the others since the table before. Ends
/// after `limit`, or when the reader has gone.
///
/// # Errors
/// When the kernel refuses, or the output takes nothing.
pub fn watch(queues: &Queues, limit: Option<Duration>) -> Result<()> {
    let (begin, is_terminal) = (Instant::now(), io::stdout().is_terminal());
    let mut earlier: Option<QueueReading> = None;
    loop {
        let reading = queues.read()?;
        let before = match (is_terminal, &earlier) {
            (true, _) => CLEAR,
            (false, Some(_)) => "\n",
            (false, None) => "",
        };
        let mut output = io::stdout().lock();
        match write!(output, "{before}{}", table(&reading, earlier.as_ref())).and_then(|()| output.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        let left = limit.map_or(REFRESH, |limit| limit.saturating_sub(begin.elapsed()));
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(REFRESH));
        earlier = Some(reading);
    }
}

/// All queues, with rates of the next `seconds`, or since the last reset.
///
/// # Errors
/// When the kernel refuses.
pub fn document(queues: &Queues, seconds: Option<Duration>) -> Result<Value> {
    let earlier = match seconds {
        Some(seconds) => {
            let reading = queues.read()?;
            thread::sleep(seconds);
            Some(reading)
        }
        None => None,
    };
    let (reading, earlier) = (queues.read()?, earlier.as_ref());
    let ports = (0..reading.ports.len()).map(|at| {
        let port = &reading.ports[at];
        json!({
            "port": port.port,
            "frames": port.frames,
            "bytes": port.bytes,
            "marked": port.marked,
            "dropped": port.dropped,
            "depth_bytes": port.depth_bytes,
            "peak_bytes": port.peak_bytes,
            "pauses": port.pauses,
            "bits_per_s": reading.bits_per_s(at, earlier),
            "utilization": reading.utilization(at, earlier),
        })
    });
    Ok(json!({
        "rate_bits_per_s": reading.settings.bytes_per_s * 8,
        "buffer_bytes": reading.settings.buffer_bytes,
        "seconds_since_reset": reading.seconds_since(None),
        "ports": ports.collect::<Vec<_>>(),
    }))
}

fn table(reading: &QueueReading, earlier: Option<&QueueReading>) -> String {
    let mut text = format!(
        "{:<6}{:>10}{:>10}{:>12}{:>10}{:>10}{:>10}{:>9}{:>7}\n",
        "port", "depth KB", "peak KB", "frames", "marked", "dropped", "pauses", "Mbit/s", "used"
    );
    for (at, port) in reading.ports.iter().enumerate() {
        text += &format!(
            "{:<6}{:>10.1}{:>10.1}{:>12}{:>10}{:>10}{:>10}{:>9.1}{:>6.1}%\n",
            port.port,
            port.depth_bytes as f64 / 1e3,
            port.peak_bytes as f64 / 1e3,
            port.frames,
            port.marked,
            port.dropped,
            port.pauses,
            reading.bits_per_s(at, earlier) / 1e6,
            reading.utilization(at, earlier) * 100.0,
        );
    }
    text
}
