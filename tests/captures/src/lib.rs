//! Recorded frames between two Linux rxe hosts: the reference of the wire format. `data/README.md`
//! says how each was made. Linux has no RoCEv1: its frames, in `rocev1/`, are written by scapy
//! (`rocev1.py` makes them again).

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use pcap_file::{DataLink, pcap::PcapReader};

/// A frame as it was seen, without the Ethernet FCS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Name of the capture, such as `rc_send_zero.pcap`.
    pub file: String,
    /// Its place in the capture, from 0.
    pub index: usize,
    /// From the Ethernet header to the ICRC.
    pub bytes: Vec<u8>,
}

/// Where the captures lie.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// Names of all captures, sorted.
///
/// # Panics
/// When the directory cannot be read: the data belongs to the source tree.
pub fn files() -> Vec<String> {
    let mut files: Vec<_> = fs::read_dir(directory())
        .expect("tests/captures/data is there")
        .map(|entry| entry.expect("an entry of tests/captures/data").file_name())
        .map(|name| name.into_string().expect("captures have plain names"))
        .filter(|name| name.ends_with(".pcap"))
        .collect();
    files.sort();
    files
}

/// The frames of the capture `file`, in order.
///
/// # Panics
/// When it is not there or not a whole Ethernet capture.
pub fn frames_of(file: &str) -> Vec<CapturedFrame> {
    read(&directory().join(file))
}

/// The frames of RoCEv1 in the capture `file` of `rocev1/`, such as `rc_ipv6.pcap`: frames of two
/// hosts that are connected as those of the transport's pair tests are.
///
/// # Panics
/// When it is not there or not a whole Ethernet capture.
pub fn rocev1_frames_of(file: &str) -> Vec<CapturedFrame> {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("rocev1").join(file))
}

fn read(path: &Path) -> Vec<CapturedFrame> {
    let file = path.file_name().expect("a capture").to_string_lossy().into_owned();
    let source = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = PcapReader::new(source).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(reader.header().datalink, DataLink::ETHERNET, "{file}");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let index = frames.len();
        assert_eq!(packet.data.len(), packet.orig_len as usize, "frame {index} of {file} is whole");
        frames.push(CapturedFrame { file: file.clone(), index, bytes: packet.data.into_owned() });
    }
    frames
}

/// Every frame of every capture, in the order of [`files`].
pub fn frames() -> Vec<CapturedFrame> {
    files().iter().flat_map(|file| frames_of(file)).collect()
}

/// The notes beside the capture `file`: commands, QPNs, PSNs, keys and results of both sides.
///
/// # Panics
/// When there is none.
pub fn log_of(file: &str) -> String {
    let name = file.trim_end_matches(".pcap").trim_end_matches(".tapB");
    let path = directory().join(format!("{name}.log"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_are_there() {
        assert_eq!((files().len(), frames().len()), (92, 976));
        assert!(files().iter().all(|file| !log_of(file).is_empty()));
    }
}
