//! A host's memory as a queue pair of the plain model reaches it: bytes that are sent and bytes
//! that are received.

use crate::{
    layout::{SINK_KEY, SINK_VA, SOURCE_KEY, SOURCE_VA},
    pattern::{SOURCE_BYTES, sea},
};

/// A host's memory.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    host: usize,
    pub(crate) sink: Vec<u8>,
}

/// A range that a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// Source memory: it may be read only.
    Source(usize),
    Sink(usize),
}

impl Memory {
    pub(crate) fn new(host: usize, sink_bytes: usize) -> Self {
        Self { host, sink: vec![0; sink_bytes] }
    }

    /// Bytes that the host sends.
    pub(crate) fn source(&self) -> &'static [u8] {
        &sea()[self.host * SOURCE_BYTES..][..SOURCE_BYTES]
    }

    /// Where that range lies, if the key opens all of it.
    pub(crate) fn open(&self, key: u32, va: u64, length: u32) -> Option<Open> {
        let (base, bytes) = match key {
            SOURCE_KEY => (SOURCE_VA, SOURCE_BYTES),
            SINK_KEY => (SINK_VA, self.sink.len()),
            _ => return None,
        };
        let at = usize::try_from(va.checked_sub(base)?).ok()?;
        let fits = at.checked_add(length as usize)? <= bytes;
        fits.then_some(if key == SOURCE_KEY { Open::Source(at) } else { Open::Sink(at) })
    }

    /// The bytes there.
    pub(crate) fn read(&self, open: Open, length: usize) -> &[u8] {
        match open {
            Open::Source(at) => &self.source()[at..][..length],
            Open::Sink(at) => &self.sink[at..][..length],
        }
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.sink[at..][..8].try_into().expect("eight bytes"))
    }
}
