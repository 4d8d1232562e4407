//! System calls of all participants, counted by the kernel's own tracepoint through `perf stat`.
//!
//! Counting costs each call something, so it is done in a run of its own after the rounds, and the
//! speed of that run does not count.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    contest::Results,
    contestants::{Arena, Contestant},
};

/// Until `perf` counts.
const ATTACH: Duration = Duration::from_millis(300);

/// For each contestant that sends its payload in packets: system calls for each of them. Nothing
/// where there is no `perf`.
pub(crate) fn per_packet(
    arena: &Arena<'_>,
    contestants: &[Contestant],
    folder: &Path,
    time: Duration,
) -> anyhow::Result<Vec<(String, f64)>> {
    let mut found = Vec::new();
    for contestant in contestants {
        let (sample, calls) = counted(&arena.pids(), folder, || arena.measure(contestant.what, time));
        let packets = sample?.payload_packets;
        if let (Some(packets), Some(calls)) = (packets.filter(|packets| *packets > 0.0), calls) {
            found.push((contestant.name.clone(), calls as f64 / packets));
        }
    }
    Ok(found)
}

/// Names of contestants that it is worth counting for.
pub(crate) fn is_counted(name: &str, results: &Results) -> bool {
    results.of(name).is_some_and(|samples| samples.iter().any(|sample| sample.payload_packets.is_some()))
}

/// Runs `what` and counts the system calls of these processes meanwhile, and of the children that
/// they start.
fn counted<T>(pids: &[u32], folder: &Path, what: impl FnOnce() -> T) -> (T, Option<u64>) {
    let file = folder.join("syscalls");
    let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", &pids.join(","), "-o"]).arg(&file);
    let perf = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    thread::sleep(ATTACH);
    let result = what();
    let Ok(mut perf) = perf else { return (result, None) };
    // It writes its file when it is interrupted; where it could not count it has ended before.
    let _ = kill(Pid::from_raw(perf.id().cast_signed()), Signal::SIGINT);
    let _ = perf.wait();
    let text = fs::read_to_string(&file).unwrap_or_default();
    (result, count_in(&text))
}

fn count_in(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_the_output_of_perf() {
        let text = "# started on Sat Nov 21 22:00:00 2026\n\n12345,,raw_syscalls:sys_enter,2000000,100.00,,\n";
        assert_eq!(count_in(text), Some(12345));
        assert_eq!(count_in("<not counted>,,raw_syscalls:sys_enter,0,0.00,,\n"), None);
        assert_eq!(count_in(""), None);
    }
}
