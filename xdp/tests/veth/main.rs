//! `roced_xdp` on real interfaces: veth pairs between network namespaces that each test makes and
//! removes. Needs root.

mod allocation;
mod attach;
mod confined;
mod dcb;
mod exchange;
mod fallback;
mod frame;
mod kill;
mod pauses;
mod rate;
mod refusals;
mod veth;

/// Gives up on a test that cannot run here, and says so on the terminal, past the test harness.
macro_rules! needs_root {
    () => {
        if !nix::unistd::Uid::effective().is_root() {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "SKIPPED, needs root: a test in {}:{}", file!(), line!());
            return;
        }
    };
}
pub(crate) use needs_root;
