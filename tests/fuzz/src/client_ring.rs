//! A ring in memory that a client shares with a worker, as its client writes it.

use std::{fs::File, os::unix::fs::FileExt};

use roced_abi::ring::RingShape;

/// A ring as its client writes it.
pub(crate) struct Ring {
    pub(crate) shape: RingShape,
    pub(crate) offset: u64,
    pub(crate) next: u32,
}

impl Ring {
    /// Fills the next slot and publishes it, whether the worker has emptied it or not.
    pub(crate) fn push(&mut self, file: &File, entry: &[u8]) {
        let stride = self.shape.stride_words() as u64 * 8;
        let slot = u64::from(self.next % self.shape.entries()) * stride;
        write(file, self.offset + RingShape::INDEX_BYTES as u64 + slot, &entry[..entry.len().min(stride as usize)]);
        self.next = self.next.wrapping_add(1);
        write(file, self.offset, &self.next.to_le_bytes());
    }
}

pub(crate) fn write(file: &File, at: u64, bytes: &[u8]) {
    file.write_all_at(bytes, at).expect("inside the file");
}

pub(crate) fn read_u32(file: &File, at: u64) -> u32 {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at).expect("inside the file");
    u32::from_le_bytes(bytes)
}
