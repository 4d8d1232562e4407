//! Exit codes of `roce-run`.

use std::{
    ffi::OsStr,
    fs::File,
    process::{Command, Output},
};

/// Runs a program through `roce-run`, with this file in place of the library, which the dynamic
/// linker ignores.
fn run(arguments: &[&OsStr]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce-run"));
    command.args(arguments).env("ROCED_VERBS", file!()).output().expect("it can be executed")
}

#[test]
fn the_exit_code_is_that_of_a_shell() {
    let text = tempfile::NamedTempFile::new().expect("a scratch file");
    for (program, code, says) in [
        (OsStr::new("no-such-program-of-roce-run"), 127, "cannot run no-such-program-of-roce-run: No such file"),
        (text.path().as_os_str(), 126, "Permission denied"),
        (OsStr::new("false"), 1, ""),
        (OsStr::new("true"), 0, ""),
    ] {
        let output = run(&[program]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{}: {stderr}", program.display());
        assert!(stderr.contains(says), "{stderr}");
    }
}

#[test]
fn a_full_standard_error_leaves_the_exit_code_as_it_is() {
    let full = File::options().write(true).open("/dev/full").expect("Linux has this device");
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce-run"));
    let status = command.arg("no-such-program-of-roce-run").env("ROCED_VERBS", file!()).stderr(full).status();
    assert_eq!(status.expect("it can be executed").code(), Some(127));
}
