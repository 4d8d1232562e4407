//! Queues of the switch as a table each second, or as one JSON document.

use std::{
    fmt::Display,
    io::{self, ErrorKind, IsTerminal as _, Write as _},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::queue::{PortQueue, QueueReading, Queues};

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
    let ports = reading.queues.chunk_by(|one, other| one.port == other.port).scan(0, |at, queues| {
        let first = *at;
        *at += queues.len();
        let queues = (first..*at).map(|at| queue_document(&reading, at, earlier)).collect();
        Some(port_document(&reading.queues[first], queues))
    });
    Ok(json!({
        "rate_bits_per_s": reading.settings.bytes_per_s * 8,
        "buffer_bytes": reading.settings.buffer_bytes,
        "seconds_since_reset": reading.seconds_since(None),
        "ports": ports.collect::<Vec<_>>(),
    }))
}

/// Numbers of queue `at`.
fn queue_document(reading: &QueueReading, at: usize, earlier: Option<&QueueReading>) -> Map<String, Value> {
    let queue = &reading.queues[at];
    let numbers = json!({
        "frames": queue.frames,
        "bytes": queue.bytes,
        "marked": queue.marked,
        "dropped": queue.dropped,
        "depth_bytes": queue.depth_bytes,
        "peak_bytes": queue.peak_bytes,
        "pauses": queue.pauses,
        "bits_per_s": reading.bits_per_s(at, earlier),
        "utilization": reading.utilization(at, earlier),
    });
    let Value::Object(mut fields) = numbers else { unreachable!("json! of braces is an object") };
    if let Some(class) = queue.class {
        fields.insert("class".to_owned(), Value::String(class.to_string()));
    }
    fields
}

/// A port: its queue, or the sums of its classes and the longest peak of them.
fn port_document(first: &PortQueue, queues: Vec<Map<String, Value>>) -> Value {
    let mut fields = queues[0].clone();
    fields.insert("port".to_owned(), Value::String(first.port.clone()));
    if fields.remove("class").is_none() {
        return Value::Object(fields);
    }
    for (name, value) in &mut fields {
        let numbers = queues.iter().filter_map(|queue| queue.get(name));
        *value = match (&*value, name.as_str()) {
            (Value::Number(_), "bits_per_s" | "utilization") => json!(numbers.filter_map(Value::as_f64).sum::<f64>()),
            (Value::Number(_), "peak_bytes") => json!(numbers.filter_map(Value::as_u64).max()),
            (Value::Number(_), _) => json!(numbers.filter_map(Value::as_u64).sum::<u64>()),
            (other, _) => (*other).clone(),
        };
    }
    fields.insert("classes".to_owned(), queues.into_iter().map(Value::Object).collect());
    Value::Object(fields)
}

fn table(reading: &QueueReading, earlier: Option<&QueueReading>) -> String {
    let has_classes = reading.settings.has_classes != 0;
    let class = |class: &dyn Display| if has_classes { format!("{class:<6}") } else { String::new() };
    let mut text = format!(
        "{:<6}{}{:>10}{:>10}{:>12}{:>10}{:>10}{:>10}{:>9}{:>7}\n",
        "port",
        class(&"class"),
        "depth KB",
        "peak KB",
        "frames",
        "marked",
        "dropped",
        "pauses",
        "Mbit/s",
        "used"
    );
    for (at, queue) in reading.queues.iter().enumerate() {
        text += &format!(
            "{:<6}{}{:>10.1}{:>10.1}{:>12}{:>10}{:>10}{:>10}{:>9.1}{:>6.1}%\n",
            queue.port,
            queue.class.map_or_else(String::new, |of_queue| class(&of_queue)),
            queue.depth_bytes as f64 / 1e3,
            queue.peak_bytes as f64 / 1e3,
            queue.frames,
            queue.marked,
            queue.dropped,
            queue.pauses,
            reading.bits_per_s(at, earlier) / 1e6,
            reading.utilization(at, earlier) * 100.0,
        );
    }
    text
}
