//! Faults on the ports of the switch: putting the programs there once, setting them later.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, TC_EGRESS, TC_INGRESS};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::{
    layout::{COUNTERS, Config, RULES_MAX},
    program::{self, Maps, Place, put},
};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/faults.bpf.o"));

/// Name of the program in the object that finds and harms.
const PROGRAM: &str = "roced_faults";

/// The one that makes copies.
const COPIES: &str = "roced_copies";

/// Where the first runs.
const ARRIVAL: Place = Place { point: TC_INGRESS, priority: 1 };

/// Where the second runs.
const DEPARTURE: Place = Place { point: TC_EGRESS, priority: 1 };

/// Puts the programs on each of `ports`, with no fault set.
///
/// # Errors
/// When a port does not exist, or the kernel refuses the program.
pub fn attach(ports: &[String]) -> Result<()> {
    let mut object = program::load(OBJECT)?;
    program::attach(&mut object, PROGRAM, ARRIVAL, ports)?;
    program::attach(&mut object, COPIES, DEPARTURE, ports)
}

/// The maps of a program that is attached.
pub struct Faults {
    config: MapHandle,
    seen: MapHandle,
    counters: MapHandle,
}

impl Faults {
    /// Those of the program on `port`.
    ///
    /// # Errors
    /// When no fault program is there.
    pub fn of_port(port: &str) -> Result<Self> {
        let id = program::id_on(port, ARRIVAL)?.with_context(|| format!("no faults are attached to {port}"))?;
        Self::of_program(id).with_context(|| format!("the faults on {port}"))
    }

    /// Those of the program with this id.
    fn of_program(id: u32) -> Result<Self> {
        let mut maps = Maps::of_program(id)?;
        Ok(Self { config: maps.take("config")?, seen: maps.take("seen")?, counters: maps.take("counters")? })
    }

    /// From now on these faults, and counting from zero.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(&self, config: &Config) -> Result<()> {
        let none = Config { rules: 0, ..*config };
        // Rules off while their counts go back to zero, lest a frame be counted for the next set.
        put(&self.config, 0, none.as_bytes())?;
        for rule in 0..RULES_MAX as u32 {
            put(&self.seen, rule, &0_u64.to_ne_bytes())?;
        }
        let zeros = vec![0_u64.to_ne_bytes().to_vec(); libbpf_rs::num_possible_cpus()?];
        for counter in 0..COUNTERS.len() as u32 {
            self.counters.update_percpu(&counter.to_ne_bytes(), &zeros, MapFlags::ANY).context("counters")?;
        }
        put(&self.config, 0, config.as_bytes())
    }

    /// Stops all faults; the counters stay.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn clear(&self) -> Result<()> {
        put(&self.config, 0, Config::new_zeroed().as_bytes())
    }

    /// Counters since the faults were set, by name.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>> {
        let mut counts = BTreeMap::new();
        for (index, name) in (0_u32..).zip(COUNTERS) {
            let per_cpu = self.counters.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)?.context("counters")?;
            let mut sum = 0;
            for count in per_cpu {
                sum += u64::from_ne_bytes(
                    count.get(..8).and_then(|bytes| bytes.try_into().ok()).context("8 bytes a count")?,
                );
            }
            counts.insert(name, sum);
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use libbpf_rs::{Object, ProgramInput};
    use nix::unistd::Uid;

    use super::*;
    use crate::{
        layout::{RuleBytes, chance},
        program::{id_of, load, program},
    };

    /// "Go on" and "drop" of tc.
    const OK: u32 = 0;
    const SHOT: u32 = 2;

    /// A program of this test's own, on no port.
    struct Bench {
        object: Object,
        faults: Faults,
    }

    impl Bench {
        /// None without root, with a printed reason.
        fn new() -> Option<Self> {
            if !Uid::effective().is_root() {
                eprintln!("skipped: loading a BPF program needs root");
                return None;
            }
            let mut object = load(OBJECT).expect("the program loads");
            let id = id_of(&mut object, PROGRAM).expect("its id");
            Some(Self { object, faults: Faults::of_program(id).expect("its maps") })
        }

        /// Return value of the program for `frame`, and the frame after it.
        fn run(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
            let mut after = vec![0; frame.len()];
            let program = program(&mut self.object, PROGRAM).expect("its program");
            let input = ProgramInput { data_in: Some(frame), data_out: Some(&mut after), ..ProgramInput::default() };
            let verdict = program.test_run(input).expect("BPF_PROG_TEST_RUN").return_value;
            (verdict, after)
        }

        fn count(&self, name: &str) -> u64 {
            self.faults.counters().expect("counters")[name]
        }
    }

    /// A frame of a capture by its BTH opcode: Ethernet, IPv4 and UDP are 42 bytes.
    fn captured(opcode: u8) -> Vec<u8> {
        let frames = roced_captures::frames_of("rc_mix.pcap");
        frames.into_iter().map(|frame| frame.bytes).find(|bytes| bytes[42] == opcode).expect("rc_mix.pcap has it")
    }

    #[test]
    fn without_faults_nothing_changes() {
        let Some(mut bench) = Bench::new() else { return };
        // BPF_PROG_TEST_RUN takes a frame that fits a page with an skb's own needs.
        let frames: Vec<_> = roced_captures::frames().into_iter().filter(|frame| frame.bytes.len() < 3000).collect();
        assert!(frames.len() > 900, "{} frames", frames.len());
        for frame in &frames {
            assert_eq!(bench.run(&frame.bytes), (OK, frame.bytes.clone()), "{} {}", frame.file, frame.index);
        }
        assert_eq!(bench.count("frames"), frames.len() as u64, "every captured frame is seen as RoCE");
    }

    #[test]
    fn a_rule_hits_the_nth_frame_of_its_opcode_and_no_other() {
        let Some(mut bench) = Bench::new() else { return };
        let mut config = Config { rules: 1, ..Config::new_zeroed() };
        config.rule[0] = RuleBytes { opcode: 0x06, action: 1, nth: 2 };
        bench.faults.set(&config).expect("set");
        let (first, ack) = (captured(0x06), captured(0x11));
        let verdicts: Vec<_> = [&first, &ack, &ack, &first, &first, &ack].map(|frame| bench.run(frame).0).to_vec();
        assert_eq!(verdicts, [OK, OK, OK, SHOT, OK, OK]);
        assert_eq!((bench.count("frames"), bench.count("dropped")), (6, 1));

        // Set again, it counts from one again.
        bench.faults.set(&config).expect("set");
        assert_eq!([bench.run(&first).0, bench.run(&first).0], [OK, SHOT]);
        bench.faults.clear().expect("clear");
        assert_eq!(bench.count("dropped"), 1, "counters stay when faults end");
    }

    #[test]
    fn a_rate_for_an_opcode_hits_no_other() {
        let Some(mut bench) = Bench::new() else { return };
        let config = Config { drop_chance: chance(1.0), only_plus_one: 0x06 + 1, ..Config::new_zeroed() };
        bench.faults.set(&config).expect("set");
        assert_eq!([0x06, 0x11, 0x06].map(|opcode| bench.run(&captured(opcode)).0), [SHOT, OK, SHOT]);
    }

    #[test]
    fn a_rate_of_one_drops_all_roce_and_nothing_else() {
        let Some(mut bench) = Bench::new() else { return };
        bench.faults.set(&Config { drop_chance: chance(1.0), ..Config::new_zeroed() }).expect("set");
        let frame = captured(0x11);
        assert_eq!(bench.run(&frame).0, SHOT);
        let (mut other_port, mut other_protocol, mut fragment) = (frame.clone(), frame.clone(), frame.clone());
        other_port[37] ^= 1;
        other_protocol[23] = 6;
        fragment[20] |= 0x20;
        for other in [other_port, other_protocol, fragment, frame[..60].to_vec()] {
            assert_eq!(bench.run(&other).0, OK);
        }
        let mut tagged = frame;
        tagged.splice(12..12, [0x81, 0, 0, 100]);
        assert_eq!(bench.run(&tagged).0, SHOT, "a tag in the bytes hides nothing");
        assert_eq!(bench.count("dropped"), 2);
    }

    /// Made of a frame of RoCEv2 over IPv6: a GRH differs from its header in the next header and in
    /// the bytes that it counts.
    #[test]
    fn rocev1_is_roce() {
        let Some(mut bench) = Bench::new() else { return };
        bench.faults.set(&Config { drop_chance: chance(1.0), ..Config::new_zeroed() }).expect("set");
        let mut frame = roced_captures::frames_of("rc_send_ipv6.pcap").remove(0).bytes;
        frame.drain(54..62);
        frame[12..14].copy_from_slice(&[0x89, 0x15]);
        let bytes = u16::try_from(frame.len() - 54).expect("a frame");
        frame[18..20].copy_from_slice(&bytes.to_be_bytes());
        frame[20] = 0x1b;
        assert_eq!(bench.run(&frame).0, SHOT);
        let (mut other, mut long) = (frame.clone(), frame.clone());
        other[20] = 17;
        long[18..20].copy_from_slice(&(bytes + 1).to_be_bytes());
        assert_eq!([bench.run(&other).0, bench.run(&long).0], [OK; 2]);

        bench.faults.set(&Config { corrupt_chance: chance(1.0), ..Config::new_zeroed() }).expect("set");
        for _ in 0..200 {
            let (_, after) = bench.run(&frame);
            let changed: Vec<_> = (0..frame.len()).filter(|&at| frame[at] != after[at]).collect();
            assert!(changed[0] >= 54 && changed[0] != 58 && changed[0] < frame.len() - 4, "byte {}", changed[0]);
        }
    }

    /// An IPv4 checksum that holds, of the header behind Ethernet.
    fn checksum_holds(frame: &[u8]) -> bool {
        let sum: u32 = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn a_mark_is_set_where_the_frame_may_be_marked() {
        let Some(mut bench) = Bench::new() else { return };
        bench.faults.set(&Config { mark_chance: chance(1.0), ..Config::new_zeroed() }).expect("set");
        let mut ipv4 = captured(0x06);
        assert_eq!(bench.run(&ipv4), (OK, ipv4.clone()), "rxe's frames are not ECN-capable");
        let sum = u16::from_be_bytes([ipv4[24], ipv4[25]]);
        ipv4[15] |= 2;
        ipv4[24..26].copy_from_slice(&(sum - 2).to_be_bytes());
        assert!(checksum_holds(&ipv4));
        let (verdict, marked) = bench.run(&ipv4);
        assert_eq!((verdict, marked[15] & 3, checksum_holds(&marked)), (OK, 3, true));
        let mut ipv6 = roced_captures::frames_of("rc_send_ipv6.pcap").remove(0).bytes;
        ipv6[15] |= 0x20;
        let (verdict, marked) = bench.run(&ipv6);
        assert_eq!((verdict, marked[15] & 0x30), (OK, 0x30));
        assert_eq!((bench.count("frames"), bench.count("marked")), (3, 2));
    }

    #[test]
    fn a_quarter_is_about_a_quarter() {
        let Some(mut bench) = Bench::new() else { return };
        bench.faults.set(&Config { drop_chance: chance(0.25), ..Config::new_zeroed() }).expect("set");
        let frame = captured(0x11);
        let dropped = (0..4000).filter(|_| bench.run(&frame).0 == SHOT).count();
        // 1000 expected, standard deviation 27: eight of them never happen.
        assert!((780..1220).contains(&dropped), "{dropped} of 4000");
    }

    #[test]
    fn corruption_changes_one_byte_under_the_icrc() {
        let Some(mut bench) = Bench::new() else { return };
        bench.faults.set(&Config { corrupt_chance: chance(1.0), ..Config::new_zeroed() }).expect("set");
        let frame = captured(0x06);
        for _ in 0..500 {
            let (verdict, after) = bench.run(&frame);
            let changed: Vec<_> = (0..frame.len()).filter(|&at| frame[at] != after[at]).collect();
            assert_eq!((verdict, changed.len()), (OK, 1));
            assert!(changed[0] >= 42 && changed[0] != 46 && changed[0] < frame.len() - 4, "byte {}", changed[0]);
        }
        assert_eq!(bench.count("corrupted"), 500);
    }
}
