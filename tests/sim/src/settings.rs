//! Settings of a connection between the two hosts.

use crate::{random::Random, service::Service};

/// Settings of a connection, the same at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) service: Service,
    /// Of datagrams.
    pub(crate) qkey: u32,
    pub(crate) mtu: u32,
    pub(crate) ipv6: bool,
    pub(crate) timeout: u32,
    pub(crate) retry_cnt: u32,
    pub(crate) rnr_retry: u32,
    pub(crate) min_rnr_timer: u32,
    pub(crate) rd_atomic: u32,
    pub(crate) window: u32,
    pub(crate) signal_all: bool,
    pub(crate) inline_bytes: u32,
    pub(crate) sges: u32,
    /// Work requests that each end has under way.
    pub(crate) depth: u64,
    /// Receives that each end keeps posted, and how late it puts new ones there, in nanoseconds.
    pub(crate) receives: u64,
    pub(crate) receive_late: u64,
    /// Both ends have end-to-end flow control.
    pub(crate) credits: bool,
}

impl Settings {
    pub(crate) fn draw(random: &mut Random, service: Service) -> Self {
        Self {
            service,
            qkey: random.next() as u32 >> 1,
            mtu: random.pick(&[256, 512, 1024, 1024, 2048, 4096]),
            ipv6: random.one_in(3),
            timeout: random.within(8, 10) as u32,
            retry_cnt: if random.one_in(8) { random.below(4) as u32 } else { 7 },
            rnr_retry: if random.one_in(8) { random.below(7) as u32 } else { 7 },
            min_rnr_timer: random.within(1, 14) as u32,
            rd_atomic: random.pick(&[1, 2, 4, 16]),
            window: random.pick(&[1, 4, 16, 64, 256]),
            signal_all: random.one_in(4),
            inline_bytes: random.pick(&[0, 64, 256]),
            sges: random.pick(&[1, 2, 4, 32]),
            depth: random.pick(&[1, 3, 8, 24]),
            receives: random.pick(&[1, 4, 16]),
            receive_late: random.pick(&[0, 0, 0, 50_000, 1_000_000]),
            credits: !random.one_in(4),
        }
    }

    /// Of another life: the creation attributes of the queue pairs are those of the life before.
    pub(crate) fn with_queue_pairs_of(self, before: &Self) -> Self {
        let Self { service, ipv6, signal_all, inline_bytes, sges, window, credits, .. } = *before;
        Self { service, ipv6, signal_all, inline_bytes, sges, window, credits, ..self }
    }

    /// The ACK timeout in nanoseconds: 4.096 us * 2^code (IBTA v1 9.7.6.1.3), and not less than
    /// that of code 12.
    pub(crate) fn ack_timeout(&self) -> u64 {
        4096 << self.timeout.max(12)
    }
}
