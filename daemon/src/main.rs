//! The daemon's binary: the command line is in `roced::cli`, everything else in `roced::control_thread`.

use std::process::ExitCode;

fn main() -> ExitCode {
    roced::cli::main(roced::control_thread::run)
}
