//! Environment variables of programs that are not privileged.
//!
//! The caller of a setuid program, or of one with file capabilities, chooses its environment. A
//! variable that named another socket would lead such a program to a daemon of the caller's, which
//! would map the program's memory. As `secure_getenv` of the C library, this module therefore has
//! no variables there.
#![expect(unsafe_code, reason = "asks the C library for the auxiliary vector")]

use std::{
    env,
    ffi::{OsStr, OsString},
};

/// The value of a variable that changes the library's behavior; none in a privileged program.
#[doc(hidden)]
pub fn trusted_variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    if has_privileges_of_its_file() { None } else { env::var_os(name) }
}

/// The kernel says so when it starts the program (`AT_SECURE`: other user or group, or more
/// capabilities, than those of the caller). It stays so when the program gives them up.
fn has_privileges_of_its_file() -> bool {
    // SAFETY: it takes a number and returns one.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
