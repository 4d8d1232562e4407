//! Packet sequence numbers, which wrap at 24 bits.

/// How far a PSN is ahead of another.
pub(super) fn distance(psn: u32, base: u32) -> i64 {
    i64::from(((psn.wrapping_sub(base) << 8) as i32) >> 8)
}

/// PSNs of a connection's life, counted from its first one on, without a wrap.
#[derive(Debug)]
pub(super) struct Count {
    first: u32,
    pub(super) near: i64,
}

impl Count {
    pub(super) fn new(first: u32) -> Self {
        Self { first, near: 0 }
    }

    pub(super) fn of(&self, psn: u32) -> i64 {
        let near = self.first.wrapping_add(self.near as u32) & 0xff_ffff;
        self.near + distance(psn, near)
    }
}
