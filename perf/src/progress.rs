//! Progress on a terminal, on stderr; nothing where stderr is no terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::size;

/// Goal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressGoal {
    /// So many messages.
    Messages(u64),
    /// So much time.
    Time(Duration),
}

/// How far a run is.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    goal: ProgressGoal,
    message_bytes: u64,
    begun: Instant,
}

impl Progress {
    /// A run of messages of `message_bytes` begins.
    pub(crate) fn new(goal: ProgressGoal, message_bytes: u64) -> Self {
        let length = match goal {
            ProgressGoal::Messages(messages) => messages,
            ProgressGoal::Time(time) => time.as_millis() as u64,
        };
        // Draws on stderr, and only when that is a terminal.
        let bar = ProgressBar::new(length);
        let style = ProgressStyle::with_template("  {bar:40} {percent:>3} %  {msg}").expect("the template is valid");
        bar.set_style(style);
        Self { bar, goal, message_bytes, begun: Instant::now() }
    }

    /// So many messages are done. Cheap enough to call a few times a second.
    pub(crate) fn show(&self, messages: u64) {
        if self.bar.is_hidden() {
            return;
        }
        let elapsed = self.begun.elapsed();
        let gbit_per_s = (messages * self.message_bytes) as f64 * 8e-9 / elapsed.as_secs_f64().max(1e-9);
        self.bar.set_message(format!(
            "{gbit_per_s:.2} Gbit/s, {} messages of {}",
            messages,
            size::show(self.message_bytes)
        ));
        self.bar.set_position(match self.goal {
            ProgressGoal::Messages(_) => messages,
            ProgressGoal::Time(_) => elapsed.as_millis() as u64,
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
