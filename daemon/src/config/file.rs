//! The config file as text: a regular file of a limited size, in UTF-8.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use nix::fcntl::OFlag;

use super::{
    ConfigError,
    reader::{ConfigProblem, position},
};

/// Longest config file.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;

/// The text of the file at `path`.
///
/// # Errors
/// When it cannot be read, or with the place of the first byte that is no text.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let bytes = read_bytes(path).map_err(|error| ConfigError::Read { path: path.into(), error })?;
    String::from_utf8(bytes).map_err(|error| {
        let (good, byte) = (error.utf8_error().valid_up_to(), error.as_bytes()[error.utf8_error().valid_up_to()]);
        let (line, column) = position(error.as_bytes(), good);
        let message = format!("the byte {byte:#04x} is not UTF-8, the encoding of config files");
        let problems = vec![ConfigProblem { line, column, key: String::new(), message }];
        ConfigError::Invalid { path: path.into(), problems }
    })
}

/// The bytes of a regular file of at most [`FILE_BYTES_MAX`]. A reload is the control thread's: it
/// does not wait for a writer to open a FIFO, and reads no device without an end.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a folder" } else { "a FIFO or a device" };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a regular file")));
    }
    let mut bytes = Vec::new();
    // One byte more, as the file may grow meanwhile.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has more than 1 MiB"));
    }
    Ok(bytes)
}
