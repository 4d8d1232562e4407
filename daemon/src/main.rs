//! The daemon's binary: see `roced::cli`.

fn main() {}
