//! The daemon's binary: the command line is in `roced::cli`, everything else in `roced::app`.

use std::process::ExitCode;

fn main() -> ExitCode {
    roced::cli::main(roced::app::run)
}
