//! Many messages of all kinds in both directions over a network that drops, repeats, corrupts and
//! delays by a seed, and marks. For any faults, any recovery and reaction of each end, every byte arrives, every
//! request completes once and in order, and nothing hangs.

use roced_transport::{
    clock::Nanos, congestion::control::CongestionControl, recovery::RecoveryConfig, wire::opcode::Opcode,
};
use roced_types::{SendOp, Status};

use crate::host::{Fate, Pair, Settings, sge, work};

/// A small generator (xorshift64*): the same seed, the same run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

const MESSAGES: u64 = 40;
/// Each message has its own piece of memory at either end, so that received data can be told apart.
const PIECE: u64 = 12_000;

/// Go-back-N or selective, one as likely as the other; then mostly with room for a whole window,
/// and any reorder delay.
fn recovery(random: &mut Random) -> RecoveryConfig {
    if random.below(2) == 0 {
        return RecoveryConfig::GO_BACK_N;
    }
    RecoveryConfig {
        reorder_delay: Nanos::from_micros([0, 0, 30, 200][random.below(4) as usize]),
        out_of_order_packets: [1024, 1024, 3, 0][random.below(4) as usize],
        ..RecoveryConfig::default()
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let settings = Settings {
        mtu: [256, 512, 1024, 2048, 4096][random.below(5) as usize],
        psn: 0x00ff_ffff - random.below(200) as u32,
        timeout: 8,
        window: [1, 4, 16, 64, 256][random.below(5) as usize],
        rd_atomic: [1, 2, 16][random.below(3) as usize],
        min_rnr_timer: 1,
        ipv6: random.below(2) == 1,
        recovery: [recovery(&mut random), recovery(&mut random)],
        congestion: [0, 1].map(|host| match seed >> host & 1 {
            0 => CongestionControl::Off,
            _ => CongestionControl::Window,
        }),
        ..Settings::default()
    };
    let mut pair = Pair::new(settings);
    let mut expected = [pair.hosts[0].app.memory.clone(), pair.hosts[1].app.memory.clone()];
    let mut receives = [0u64; 2];
    for wr_id in 0..MESSAGES {
        let from = random.below(2) as usize;
        let length = match random.below(4) {
            0 => random.below(8),
            1 => u64::from(settings.mtu) * (1 + random.below(2)),
            _ => random.below(PIECE + 1),
        } as usize;
        // The upper half of memory is written to, the lower half read from: no message changes
        // another's source.
        let (low, high) = (wr_id * PIECE, 500_000 + wr_id * PIECE);
        let op = [SendOp::Write, SendOp::Read, SendOp::Send, SendOp::WriteImm][random.below(4) as usize];
        let at = |offset: u64| offset as usize..offset as usize + length;
        let (local, remote) = match op {
            SendOp::Read => (high, low),
            _ => (low, high),
        };
        pair.hosts[from].post(&work(
            wr_id,
            op,
            &[sge(local, length / 2), sge(local + length as u64 / 2, length - length / 2)],
            remote,
        ));
        if matches!(op, SendOp::Send | SendOp::WriteImm) {
            pair.hosts[1 - from].post_recv(1000 + wr_id, &[sge(high, length)]);
            receives[1 - from] += 1;
        }
        let to = if op == SendOp::Read { from } else { 1 - from };
        let data = expected[1 - to][at(low)].to_vec();
        expected[to][at(high)].copy_from_slice(&data);
    }
    let rate = [0, 2, 10, 30][random.below(4) as usize];
    let fate = |_: usize, _: Opcode, _: usize| match random.below(1000) {
        roll if roll < rate => Fate::Drop,
        roll if roll < 2 * rate => Fate::Duplicate,
        roll if roll < 3 * rate => Fate::Corrupt,
        roll if roll < 4 * rate => Fate::Late(1 + random.below(20) as usize),
        // Of every other four seeds most frames are marked.
        roll if seed & 4 != 0 && roll < 700 => Fate::Mark,
        _ => Fate::Deliver,
    };
    assert!(pair.run(Nanos::from_millis(120_000), fate), "seed {seed}: it comes to rest");
    for at in 0..2 {
        assert!(pair.hosts[at].app.memory == expected[at], "seed {seed}: memory of host {at}");
        let completions = pair.hosts[at].take();
        assert!(completions.iter().all(|(_, status)| *status == Status::Success), "seed {seed}: {completions:?}");
        for (is_recv, count) in [(true, receives[at]), (false, MESSAGES)] {
            let ids: Vec<u64> = completions.iter().map(|(id, _)| *id).filter(|id| (*id >= 1000) == is_recv).collect();
            assert!(ids.is_sorted_by(|a, b| a < b), "seed {seed}: once each and in order: {ids:?}");
            assert!(!is_recv || ids.len() as u64 == count, "seed {seed}: {} of {count} receives", ids.len());
        }
        assert_eq!(pair.hosts[at].state(), "RTS", "seed {seed}");
    }
}

#[test]
fn every_byte_arrives_under_any_network_faults() {
    let seeds = std::env::var("ROCED_PAIR_SEEDS").map_or(300, |seeds| seeds.parse().expect("a number of seeds"));
    (0..seeds).for_each(run);
}
