//! Outputs that take nothing: neither is a violation.

use std::{
    fs::File,
    process::{Command, Output, Stdio},
};

fn traced(output: impl Into<Stdio>) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_roced-sim"));
    program.args(["--seed", "1", "--trace"]).stdout(output).output().expect("it runs")
}

#[test]
fn a_reader_that_ends_early_is_no_violation() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = traced(writer);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_full_disk_ends_the_program() {
    let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
    let output = traced(full);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
}
