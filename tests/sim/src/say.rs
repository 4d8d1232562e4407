//! Lines on the standard output, of reports and traces.

use std::{fmt::Arguments, process};

/// Writes a line. A reader that ends early (`roced-sim --seed 1 --trace | head`) is no failure of a
/// seed; an output that takes no more, such as a full disk, ends the program.
pub fn say(line: Arguments<'_>) {
    if let Err(error) = roced_output::print(format_args!("{line}\n")) {
        roced_output::print_error(format_args!("roced-sim: {error}"));
        process::exit(1);
    }
}
