//! The thread that writes the log to stderr.
//!
//! A pipe or a socket that is full and not read has a write wait for ever. Only this thread waits:
//! others leave whole lines in a queue with a bound. A line without room is lost and counted, and
//! the log has the count once the reader goes on.

use std::{
    cell::Cell,
    io::{self, Write},
    process,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam::channel::{self, Receiver, Sender};
use nix::sys::signal::{SigSet, SigmaskHow};
use tracing::error;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written, at most.
const LINES_MAX: usize = 1024;

/// How long an end of the daemon waits for its last lines to be written.
pub(crate) const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The queue of this process, once its log goes to stderr by a thread.
static LOG: OnceLock<Arc<LogQueue>> = OnceLock::new();

thread_local! {
    static IS_LOG_THREAD: Cell<bool> = const { Cell::new(false) };
}

enum LogItem {
    Line(Vec<u8>),
    Do(Box<dyn FnOnce() + Send>),
}

/// Lines on their way. The channel has no bound of its own, so that other items than lines
/// always have room: the lines are counted.
struct LogQueue {
    items: Sender<LogItem>,
    to_do: Receiver<LogItem>,
    lines: AtomicUsize,
    lost: AtomicU64,
    /// Only the log thread locks it.
    target: Mutex<Box<dyn Write + Send>>,
    tell_lost: fn(&LogQueue, u64),
}

impl LogQueue {
    fn start(target: impl Write + Send + 'static, tell_lost: fn(&Self, u64)) -> io::Result<Arc<Self>> {
        let (items, to_do) = channel::unbounded();
        let target = Mutex::new(Box::new(target) as Box<dyn Write + Send>);
        let queue = Self { items, to_do, lines: AtomicUsize::new(0), lost: AtomicU64::new(0), target, tell_lost };
        let queue = Arc::new(queue);
        let own = Arc::clone(&queue);
        // Signals are for the control thread, which blocks them later.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let started = thread::Builder::new().name("roced-log".into()).spawn(move || {
            IS_LOG_THREAD.set(true);
            own.to_do.iter().for_each(|item| own.handle(item));
        });
        before.thread_set_mask()?;
        started.map(|_| queue)
    }

    /// Takes a line, or counts it as lost.
    fn push(&self, line: &[u8]) {
        let has_room = |lines| (lines < LINES_MAX || IS_LOG_THREAD.get()).then_some(lines + 1);
        if self.lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, has_room).is_ok() {
            self.send(LogItem::Line(line.to_vec()));
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn send(&self, item: LogItem) {
        self.items.send(item).expect("the queue has its receiver");
    }

    fn handle(&self, item: LogItem) {
        match item {
            LogItem::Do(act) => act(),
            LogItem::Line(line) => {
                // It is locked already by a write of this thread that panicked.
                let written = self.target.try_lock().is_ok_and(|mut target| target.write_all(&line).is_ok());
                self.lines.fetch_sub(1, Ordering::Relaxed);
                if !written {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                } else if self.lost.load(Ordering::Relaxed) > 0 {
                    (self.tell_lost)(self, self.lost.swap(0, Ordering::Relaxed));
                }
            }
        }
    }

    /// Waits until all that is queued now is written.
    fn flush(&self, within: Duration) {
        if IS_LOG_THREAD.get() {
            self.to_do.try_iter().for_each(|item| self.handle(item));
            return;
        }
        let (done, is_done) = channel::bounded(1);
        self.send(LogItem::Do(Box::new(move || {
            // It came too late.
            let _ = done.send(());
        })));
        // Without an answer the reader stands still, and the lines are lost.
        let _ = is_done.recv_timeout(within);
    }
}

/// Writer of the log's lines, for tracing-subscriber: it never waits.
#[derive(Clone)]
pub(crate) struct LogLineWriter(Arc<LogQueue>);

impl Write for LogLineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogLineWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Starts the thread of this process.
///
/// # Errors
/// When there can be no thread.
pub(crate) fn start() -> io::Result<LogLineWriter> {
    let tell_lost = |_: &LogQueue, lost| error!("{lost} log lines were lost: the log's reader stands still");
    let queue = LogQueue::start(io::stderr(), tell_lost)?;
    Ok(LogLineWriter(Arc::clone(LOG.get_or_init(|| queue))))
}

/// Has the thread do this before it writes further lines; nothing where there is no thread.
pub(crate) fn have_it(act: impl FnOnce() + Send + 'static) {
    if let Some(log) = LOG.get() {
        log.send(LogItem::Do(Box::new(act)));
    }
}

/// Writes a text to stderr, after the lines of the log, and waits for them no longer than a second.
pub(crate) fn write_last(text: &str) {
    match LOG.get() {
        Some(log) => {
            log.push(text.as_bytes());
            log.flush(FLUSH_MAX);
        }
        // The exit code says as much as it can without a reader, which a panic would change.
        None => _ = io::stderr().lock().write_all(text.as_bytes()),
    }
}

/// Waits for the lines of the log no longer than a second.
pub(crate) fn flush() {
    if let Some(log) = LOG.get() {
        log.flush(FLUSH_MAX);
    }
}

/// Aborts the process when its last lines are written.
pub(crate) fn flush_and_abort() -> ! {
    flush();
    process::abort()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{BufRead as _, BufReader},
        time::Instant,
    };

    use nix::{
        fcntl::{FcntlArg, fcntl},
        unistd::pipe,
    };

    use super::*;

    fn tell_lost(queue: &LogQueue, lost: u64) {
        queue.push(format!("\n{lost} lost\n").as_bytes());
    }

    #[test]
    fn a_reader_that_stands_still_delays_no_line_and_loses_counted_ones() {
        let (reader, writer) = pipe().expect("a pipe");
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).expect("of a page");
        let queue = LogQueue::start(File::from(writer), tell_lost).expect("a thread");
        let begin = Instant::now();
        // No write ends before the reader reads.
        queue.push(&[b'x'; 8192]);
        for number in 0..LINES_MAX + 7 {
            LogLineWriter(Arc::clone(&queue)).write_all(format!("\n{number}").as_bytes()).expect("it never fails");
        }
        queue.flush(Duration::from_millis(100));
        assert!(begin.elapsed() < Duration::from_secs(20), "an end does not wait for it");
        let mut lines = BufReader::new(File::from(reader)).lines().map(|line| line.expect("text"));
        assert_eq!(lines.next().map(|line| line.len()), Some(8192));
        for number in 0..LINES_MAX - 1 {
            assert_eq!(lines.next(), Some(number.to_string()));
        }
        assert_eq!(lines.next().as_deref(), Some("8 lost"));
        queue.push(b"more\n");
        assert_eq!(lines.next().as_deref(), Some("more"), "the loss is told once");
    }

    #[test]
    fn a_line_that_cannot_be_written_is_lost_and_counted() {
        let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
        let queue = LogQueue::start(full, tell_lost).expect("a thread");
        queue.push(b"one\n");
        queue.push(b"two\n");
        queue.flush(Duration::from_secs(20));
        assert_eq!(queue.lost.load(Ordering::Relaxed), 2);
    }
}
