//! Queues of the switch: their rate and marks set once, their counters read and reset later.
//!
//! `queue.bpf.c` runs at the egress of each port, behind the program that makes copies, and its
//! answer is as a switch of the given rate would have it. The delay itself is that of the qdisc,
//! which `scripts/lab` adds. With traffic classes ([`crate::classes`]) a port has a queue for each.

use anyhow::{Context as _, Result, ensure};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, TC_EGRESS, TC_INGRESS};
use nix::{
    net::if_::if_indextoname,
    time::{ClockId, clock_gettime},
};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

use crate::{
    classes::{self, PortClass, PortClasses},
    layout,
    program::{self, Maps, Place, index_of, put},
};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/queue.bpf.o"));

/// Name of the program in the object.
const PROGRAM: &str = "roced_queue";

/// Where it runs: a copy is charged as well.
const PLACE: Place = Place { point: TC_EGRESS, priority: 2 };

/// The program of the interfaces between a port with classes and its host.
const WIRE_PROGRAM: &str = "roced_wire";

/// Where that runs.
const WIRE_PLACE: Place = Place { point: TC_INGRESS, priority: 1 };

const NS_PER_S: u64 = 1_000_000_000;

/// `struct settings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueSettings {
    /// Rate of each port.
    pub bytes_per_s: u64,
    /// A frame that does not fit is dropped.
    pub buffer_bytes: u64,
    /// No marks up to this depth.
    pub min_bytes: u64,
    /// All marked above this depth.
    pub max_bytes: u64,
    /// Chance of a mark just below `max_bytes`, in 2^-32.
    pub max_chance: u64,
    /// Priorities without losses, a bit for each.
    pub paused_priorities: u64,
    /// Depth above which senders of such frames are paused.
    pub pause_bytes: u64,
    /// `CLOCK_MONOTONIC` of the last reset.
    pub reset_ns: u64,
    /// One if a port has traffic classes.
    pub has_classes: u64,
    /// With classes: that of each priority.
    pub class_of_priority: [u8; 8],
}

/// `struct place`, the key of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct QueueKey {
    port: u32,
    class: u32,
}

/// `struct queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct QueueBytes {
    lock: u32,
    accepted: u32,
    empty_ns: u64,
    reset_ns: u64,
    frames: u64,
    bytes: u64,
    marked: u64,
    dropped: u64,
    peak_bytes: u64,
    paused_ns: u64,
    pauses: u64,
    left: u32,
    reserved: u32,
}

/// Pauses (PFC) of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pfc {
    /// The priority without losses.
    pub priority: u8,
    /// Depth above which senders of its frames are paused.
    pub pause_bytes: u64,
}

impl std::str::FromStr for Pfc {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (priority, bytes) = text.split_once(':').context("PRIORITY:XOFF, such as 3:100000")?;
        let pfc = Self { priority: priority.parse()?, pause_bytes: bytes.parse()? };
        ensure!(pfc.priority < 8, "a priority is 0 to 7, not {priority}");
        Ok(pfc)
    }
}

/// WRED of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wred {
    /// No marks up to this depth.
    pub min_bytes: u64,
    /// All marked above this depth.
    pub max_bytes: u64,
    /// Probability of a mark just below `max_bytes`.
    pub max_probability: f64,
}

impl std::str::FromStr for Wred {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let [min, max, probability] = text.split(':').collect::<Vec<_>>()[..] else {
            anyhow::bail!("'{text}' is not KMIN:KMAX:PMAX, such as 20000:80000:0.2");
        };
        let wred = Self { min_bytes: min.parse()?, max_bytes: max.parse()?, max_probability: probability.parse()? };
        ensure!(wred.min_bytes < wred.max_bytes, "KMIN is below KMAX, not {min} and {max}");
        ensure!((0.0..=1.0).contains(&wred.max_probability), "PMAX is 0 to 1, not {probability}");
        Ok(wred)
    }
}

impl QueueSettings {
    /// Of ports of `bits_per_s`; without WRED no frame is marked.
    ///
    /// # Errors
    /// When no port could have them.
    pub fn new(bits_per_s: u64, buffer_bytes: u64, wred: Option<Wred>) -> Result<Self> {
        ensure!((1_000_000..=100_000_000_000).contains(&bits_per_s), "a rate of 1 Mbit/s to 100 Gbit/s");
        // The program multiplies the depth by 2^32 and by the nanoseconds of a second.
        ensure!((1..=1 << 30).contains(&buffer_bytes), "a buffer of 1 byte to 1 GiB");
        let wred = wred.unwrap_or(Wred { min_bytes: u64::MAX - 1, max_bytes: u64::MAX, max_probability: 0.0 });
        Ok(Self {
            bytes_per_s: bits_per_s / 8,
            buffer_bytes,
            min_bytes: wred.min_bytes,
            max_bytes: wred.max_bytes,
            max_chance: layout::chance(wred.max_probability),
            paused_priorities: 0,
            pause_bytes: 0,
            reset_ns: 0,
            has_classes: 0,
            class_of_priority: [0; 8],
        })
    }

    /// With traffic classes.
    #[must_use]
    pub fn with_classes(self, classes: Option<PortClasses>) -> Self {
        match classes {
            Some(classes) => Self { has_classes: 1, class_of_priority: classes.of_priorities(), ..self },
            None => self,
        }
    }

    /// With pauses of the hosts that send.
    #[must_use]
    pub fn with_pfc(self, pfc: Option<Pfc>) -> Self {
        match pfc {
            Some(Pfc { priority, pause_bytes }) => Self { paused_priorities: 1 << priority, pause_bytes, ..self },
            None => self,
        }
    }
}

/// A queue at one instant; the counters are those since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortQueue {
    /// Name of the port: `b0` leads to host b's device roce0.
    pub port: String,
    /// The class that the queue is for, if ports have classes.
    pub class: Option<PortClass>,
    /// Frames accepted.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames marked.
    pub marked: u64,
    /// Frames dropped, because they had no room.
    pub dropped: u64,
    /// Deepest since the reset.
    pub peak_bytes: u64,
    /// Pauses of the host behind the port.
    pub pauses: u64,
    /// Now.
    pub depth_bytes: u64,
}

/// All queues at one instant.
#[derive(Clone, Debug)]
pub struct QueueReading {
    /// Settings of all.
    pub settings: QueueSettings,
    /// `CLOCK_MONOTONIC` of the reading.
    pub at_ns: u64,
    /// By name of the port and class.
    pub queues: Vec<PortQueue>,
}

/// The maps of a queue program that is attached.
pub struct Queues {
    settings: MapHandle,
    queues: MapHandle,
}

/// Puts the program on each of `ports`, with empty queues: one for each port, or for each class of
/// a port.
///
/// # Errors
/// When a port does not exist, or the kernel refuses the program.
pub fn attach(ports: &[String], settings: &QueueSettings, classes: Option<PortClasses>) -> Result<()> {
    let mut object = program::load(OBJECT)?;
    let id = program::id_of(&mut object, PROGRAM)?;
    let queues = Queues::of_program(id)?;
    let with_queues = classes.map_or_else(|| vec![0], |classes| classes.with_queues().collect());
    for port in ports {
        let port = index_of(port)?.cast_unsigned();
        for class in &with_queues {
            queues.add(QueueKey { port, class: u32::from(*class) })?;
        }
    }
    queues.set(&settings.with_classes(classes))?;
    if classes.is_some() {
        let wires = Maps::of_program(program::id_of(&mut object, WIRE_PROGRAM)?)?.take("wires")?;
        let mut interfaces = Vec::new();
        for port in ports {
            for (index, wire) in classes::wires(port)? {
                put(&wires, index, wire.as_bytes())?;
            }
            interfaces.extend(classes::interfaces(port));
        }
        program::attach(&mut object, WIRE_PROGRAM, WIRE_PLACE, &interfaces)?;
    }
    program::attach(&mut object, PROGRAM, PLACE, ports)
}

impl Queues {
    /// Those of the switch with `port`.
    ///
    /// # Errors
    /// When no queue program is there.
    pub fn of_port(port: &str) -> Result<Self> {
        let id = program::id_on(port, PLACE)?.with_context(|| format!("{port} has no rate, and so no queue"))?;
        Self::of_program(id).with_context(|| format!("the queue of {port}"))
    }

    fn of_program(id: u32) -> Result<Self> {
        let mut maps = Maps::of_program(id)?;
        Ok(Self { settings: maps.take("settings")?, queues: maps.take("queues")? })
    }

    /// Lets all queues count from zero; frames that wait in them stay.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn reset(&self) -> Result<()> {
        self.set(&self.settings()?)
    }

    /// Reads all queues.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn read(&self) -> Result<QueueReading> {
        let (settings, at_ns) = (self.settings()?, now_ns()?);
        let mut queues = Vec::new();
        for key in self.queues.keys() {
            let QueueKey { port, class } = read(&key)?;
            let port = if_indextoname(port).with_context(|| format!("port {port}"))?;
            let class = (settings.has_classes != 0).then(|| u8::try_from(class).map(PortClass)).transpose()?;
            let value = self.queues.lookup(&key, MapFlags::LOCK)?.context("a queue")?;
            let queue: QueueBytes = read(&value)?;
            let place = PortQueue { port: port.to_string_lossy().into_owned(), class, ..PortQueue::default() };
            queues.push(queue.at(at_ns, &settings, place));
        }
        queues.sort_by(|one, other| (&one.port, one.class).cmp(&(&other.port, other.class)));
        Ok(QueueReading { settings, at_ns, queues })
    }

    fn settings(&self) -> Result<QueueSettings> {
        read(&self.settings.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)?.context("settings")?)
    }

    /// From now on these settings, and counting from zero.
    fn set(&self, settings: &QueueSettings) -> Result<()> {
        put(&self.settings, 0, QueueSettings { reset_ns: now_ns()?, ..*settings }.as_bytes())
    }

    /// An empty queue.
    fn add(&self, key: QueueKey) -> Result<()> {
        let empty = QueueBytes::new_zeroed();
        self.queues.update(key.as_bytes(), empty.as_bytes(), MapFlags::ANY).context("a queue")
    }
}

impl QueueBytes {
    /// The queue of `place` at `at_ns`. Its counters may be those before a reset: no frame has come
    /// since.
    fn at(&self, at_ns: u64, settings: &QueueSettings, place: PortQueue) -> PortQueue {
        let waiting_ns = u128::from(self.empty_ns.saturating_sub(at_ns));
        let depth_bytes = match place.class {
            Some(_) => u64::from(self.accepted.wrapping_sub(self.left)),
            None => (waiting_ns * u128::from(settings.bytes_per_s) / u128::from(NS_PER_S)) as u64,
        };
        if self.reset_ns != settings.reset_ns {
            return PortQueue { depth_bytes, ..place };
        }
        let Self { frames, bytes, marked, dropped, peak_bytes, pauses, .. } = *self;
        PortQueue { frames, bytes, marked, dropped, peak_bytes, pauses, depth_bytes, ..place }
    }
}

impl QueueReading {
    /// Seconds since `earlier`, or since the last reset.
    pub fn seconds_since(&self, earlier: Option<&Self>) -> f64 {
        let since_ns = earlier.map_or(self.settings.reset_ns, |earlier| earlier.at_ns);
        self.at_ns.saturating_sub(since_ns) as f64 / NS_PER_S as f64
    }

    /// Bits each second that left queue `at` since `earlier`, or since the last reset.
    pub fn bits_per_s(&self, at: usize, earlier: Option<&Self>) -> f64 {
        let seconds = self.seconds_since(earlier);
        let queue = &self.queues[at];
        let same = |before: &&PortQueue| before.port == queue.port && before.class == queue.class;
        let before = earlier.and_then(|earlier| earlier.queues.iter().find(same));
        let left = |queue: &PortQueue| queue.bytes as f64 - queue.depth_bytes as f64;
        let bytes = left(queue) - before.map_or(0.0, left);
        // A reset in between, or frames that waited before it.
        if seconds > 0.0 { (bytes * 8.0 / seconds).max(0.0) } else { 0.0 }
    }

    /// Share of the rate of its port that queue `at` used.
    pub fn utilization(&self, at: usize, earlier: Option<&Self>) -> f64 {
        self.bits_per_s(at, earlier) / (self.settings.bytes_per_s as f64 * 8.0)
    }
}

fn now_ns() -> Result<u64> {
    let now = std::time::Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    Ok(u64::try_from(now.as_nanos())?)
}

fn read<T: FromBytes>(value: &[u8]) -> Result<T> {
    T::read_from_bytes(value).ok().context("a value of the switch's BPF program has another size")
}

#[cfg(test)]
mod tests {
    use libbpf_rs::{Object, ProgramInput};
    use nix::unistd::Uid;

    use super::*;

    /// "Next program" and "drop" of tc.
    const NEXT: u32 = u32::MAX;
    const SHOT: u32 = 2;

    fn loopback() -> u32 {
        index_of("lo").expect("lo").cast_unsigned()
    }

    /// A program of this test's own, with a queue for the loopback device, where
    /// `BPF_PROG_TEST_RUN` takes place.
    struct Bench {
        object: Object,
        queues: Queues,
    }

    impl Bench {
        /// None without root, with a printed reason.
        fn new(bits_per_s: u64, buffer_bytes: u64, wred: Option<&str>) -> Option<Self> {
            Self::with_classes(bits_per_s, buffer_bytes, wred, None)
        }

        fn with_classes(
            bits_per_s: u64,
            buffer_bytes: u64,
            wred: Option<&str>,
            classes: Option<PortClasses>,
        ) -> Option<Self> {
            if !Uid::effective().is_root() {
                eprintln!("skipped: loading a BPF program needs root");
                return None;
            }
            let mut object = program::load(OBJECT).expect("the program loads");
            let id = program::id_of(&mut object, PROGRAM).expect("its id");
            let queues = Queues::of_program(id).expect("its maps");
            for class in classes.map_or_else(|| vec![0], |classes| classes.with_queues().collect()) {
                queues.add(QueueKey { port: loopback(), class: u32::from(class) }).expect("a queue");
            }
            let wires = Maps::of_program(program::id_of(&mut object, WIRE_PROGRAM).expect("its id"));
            let wire = classes::WireBytes { port: loopback(), next: loopback(), flags: 0 };
            put(&wires.expect("maps").take("wires").expect("wires"), loopback(), wire.as_bytes()).expect("a wire");
            let wred = wred.map(|text| text.parse().expect("WRED"));
            let settings = QueueSettings::new(bits_per_s, buffer_bytes, wred).expect("settings");
            queues.set(&settings.with_classes(classes)).expect("set");
            Some(Self { object, queues })
        }

        /// The verdict, and the frame after it.
        fn run(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
            let mut after = vec![0; frame.len()];
            let program = program::program(&mut self.object, PROGRAM).expect("its program");
            let input = ProgramInput { data_in: Some(frame), data_out: Some(&mut after), ..ProgramInput::default() };
            (program.test_run(input).expect("BPF_PROG_TEST_RUN").return_value, after)
        }

        /// Runs `program` for a frame with a priority and a mark; the verdict, and both after it.
        fn run_with(&mut self, program: &str, frame: &[u8], mark: u32, priority: u32) -> (u32, u32, u32) {
            // `struct __sk_buff` begins with len, pkt_type, mark; the priority is its ninth word.
            let mut before = [0_u32; 48];
            (before[2], before[8]) = (mark, priority);
            let mut after = [0_u32; 48];
            let input = ProgramInput {
                context_in: Some(before.as_mut_bytes()),
                context_out: Some(after.as_mut_bytes()),
                data_in: Some(frame),
                ..ProgramInput::default()
            };
            let program = program::program(&mut self.object, program).expect("its program");
            let verdict = program.test_run(input).expect("BPF_PROG_TEST_RUN").return_value;
            (verdict, after[2], after[8])
        }

        /// Frames and depths by class.
        fn classes(&self) -> Vec<(String, u64, u64)> {
            let all = self.queues.read().expect("a reading").queues.into_iter();
            all.map(|queue| (queue.class.expect("a class").to_string(), queue.frames, queue.depth_bytes)).collect()
        }

        fn queue(&self) -> PortQueue {
            self.queues.read().expect("a reading").queues.remove(0)
        }
    }

    /// A frame of IPv4 with these ECN bits and a payload of zeros, of 1,000 bytes.
    fn frame(ecn: u8) -> Vec<u8> {
        let mut bytes = vec![0; 1000];
        bytes[12] = 8;
        bytes[14..24].copy_from_slice(&[0x45, ecn, 3, 0xda, 0, 0, 0, 0, 64, 17]);
        bytes
    }

    /// At 1 Mbit/s a frame takes 8 ms, so that nothing drains between a few of them.
    #[test]
    fn a_frame_without_room_is_dropped_and_not_charged() {
        let Some(mut bench) = Bench::new(1_000_000, 10_000, None) else { return };
        let verdicts: Vec<_> = (0..20).map(|_| bench.run(&frame(2)).0).collect();
        let queue = bench.queue();
        let dropped = verdicts.iter().filter(|&&verdict| verdict == SHOT).count() as u64;
        assert_eq!(verdicts[..10], [NEXT; 10]);
        assert!(dropped > 0 && queue.dropped == dropped && queue.frames == 20 - dropped, "{queue:?}");
        assert_eq!((queue.bytes, queue.marked), (1000 * queue.frames, 0));
        assert!(queue.peak_bytes <= 10_000 && queue.peak_bytes > 9000, "{queue:?}");
        assert!(queue.depth_bytes <= queue.peak_bytes, "{queue:?}");
    }

    #[test]
    fn marks_begin_above_the_least_depth_and_are_on_all_above_the_other() {
        let Some(mut bench) = Bench::new(1_000_000, 1_000_000, Some("4500:50500:0.5")) else { return };
        let marks: Vec<_> = (0..100).map(|_| bench.run(&frame(2)).1[15] & 3 == 3).collect();
        assert!(marks[..4].iter().all(|&marked| !marked), "{marks:?}");
        assert!(marks[60..].iter().all(|&marked| marked), "{marks:?}");
        // Rising from none to half of them: 11 expected, standard deviation below 4.
        let between = marks[5..50].iter().filter(|&&marked| marked).count();
        assert!((1..=30).contains(&between), "{between} of 45");
        let count = marks.iter().filter(|&&marked| marked).count() as u64;
        assert_eq!((bench.queue().marked, bench.queue().dropped), (count, 0));

        assert_eq!(bench.run(&frame(0)), (NEXT, frame(0)), "it may not be marked, and is not dropped");
        assert_eq!(bench.queue().marked, count);
    }

    #[test]
    fn a_queue_drains_at_its_rate() {
        let Some(mut bench) = Bench::new(8_000_000, 1_000_000, None) else { return };
        for _ in 0..100 {
            bench.run(&frame(0));
        }
        let first = bench.queues.read().expect("a reading");
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = bench.queues.read().expect("a reading");
        let (drained, elapsed_us) =
            (first.queues[0].depth_bytes - second.queues[0].depth_bytes, (second.at_ns - first.at_ns) / 1000);
        // A byte in a microsecond; on a busy machine the queue may have become empty.
        assert!(drained.abs_diff(elapsed_us) <= 2 || second.queues[0].depth_bytes == 0, "{drained} in {elapsed_us} us");
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!((bench.queue().depth_bytes, bench.queue().bytes), (0, 100_000));
    }

    #[test]
    fn after_a_reset_a_queue_counts_from_zero_and_is_as_deep() {
        let Some(mut bench) = Bench::new(1_000_000, 1_000_000, None) else { return };
        for _ in 0..50 {
            bench.run(&frame(0));
        }
        bench.queues.reset().expect("reset");
        let queue = bench.queue();
        assert!(queue.depth_bytes > 30_000, "{queue:?}");
        let nothing = PortQueue { port: "lo".to_owned(), depth_bytes: queue.depth_bytes, ..PortQueue::default() };
        assert_eq!(queue, nothing, "before the first frame");
        bench.run(&frame(0));
        let queue = bench.queue();
        assert_eq!((queue.frames, queue.bytes, queue.dropped), (1, 1000, 0));
        assert!(queue.peak_bytes > 30_000, "{queue:?}");
    }

    const REDIRECT: u32 = 7;

    /// A frame of IPv6 with this traffic class and next header.
    fn ipv6_frame(traffic_class: u8, next_header: u8) -> Vec<u8> {
        let mut bytes = vec![0; 1000];
        bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
        bytes[14..16].copy_from_slice(&[0x60 | traffic_class >> 4, traffic_class << 4]);
        bytes[20] = next_header;
        bytes
    }

    #[test]
    fn the_dscp_of_a_frame_chooses_its_class() {
        let classes = Some("0,3,6".parse().expect("classes"));
        let Some(mut bench) = Bench::with_classes(1_000_000, 10_000, None, classes) else { return };
        let arp = { [&[0; 12][..], &[8, 6], &[0; 46]].concat() };
        let rocev1 = { [&[0; 12][..], &[0x89, 0x15, 0x6c], &[0; 85]].concat() };
        for (frame, class) in [
            (frame(0), 0),
            (frame(96 | 2), 3),
            (frame(192), 6),
            (frame(128), 0),
            (ipv6_frame(96, 17), 3),
            (ipv6_frame(192 | 3, 17), 6),
            (ipv6_frame(0, 58), 8),
            (arp, 8),
            (rocev1, 0),
        ] {
            let (verdict, position, priority) = bench.run_with(PROGRAM, &frame, 0, 0);
            assert_eq!((verdict, priority), (NEXT, 0x10001 + class), "{frame:x?}");
            assert!(position > 0);
            let again = bench.run_with(PROGRAM, &frame, position, priority);
            assert_eq!(again, (NEXT, position, priority), "it is not charged twice");
        }
        let frames: Vec<_> = bench.classes().into_iter().map(|(class, frames, _)| (class, frames)).collect();
        assert_eq!(
            frames,
            [("0", 3), ("3", 2), ("6", 2), ("other", 2)].map(|(class, frames)| (class.to_owned(), frames))
        );
    }

    /// Time empties no queue of a class; a frame at the end of the wire does, up to its position.
    #[test]
    fn a_class_is_as_deep_as_frames_have_not_left() {
        let classes = Some("0,3".parse().expect("classes"));
        let Some(mut bench) = Bench::with_classes(100_000_000, 4500, Some("2500:3500:0"), classes) else { return };
        let of_0: Vec<_> = (0..5).map(|_| bench.run_with(PROGRAM, &frame(2), 0, 0)).collect();
        let verdicts: Vec<_> = of_0.iter().map(|(verdict, ..)| *verdict).collect();
        assert_eq!(verdicts, [NEXT, NEXT, NEXT, NEXT, SHOT]);
        assert_eq!(bench.run_with(PROGRAM, &frame(96), 0, 0).0, NEXT, "another class has room");
        std::thread::sleep(std::time::Duration::from_millis(2));
        let depths = |bench: &Bench| bench.classes().into_iter().map(|(_, _, depth)| depth).collect::<Vec<_>>();
        assert_eq!(depths(&bench), [4000, 1000, 0]);
        assert_eq!(bench.queue().marked, 1);

        assert_eq!(bench.run_with(WIRE_PROGRAM, &frame(3), of_0[0].1, 0).0, REDIRECT);
        assert_eq!(depths(&bench), [3000, 1000, 0]);
        bench.run_with(WIRE_PROGRAM, &frame(2), of_0[2].1, 0);
        assert_eq!(depths(&bench), [1000, 1000, 0], "one that was lost on the way has left as well");
        for position in [0, of_0[1].1] {
            bench.run_with(WIRE_PROGRAM, &frame(2), position, 0);
            assert_eq!(depths(&bench), [1000, 1000, 0], "no position, or one that has left before");
        }
        assert_eq!(bench.run_with(PROGRAM, &frame(2), 0, 0).0, NEXT, "there is room again");
    }

    #[test]
    fn rates_are_of_the_time_between_readings() {
        let settings = QueueSettings { reset_ns: 5 * NS_PER_S, ..QueueSettings::new(8_000_000, 1000, None).expect("") };
        let reading = |at_ns, bytes, depth_bytes| QueueReading {
            settings,
            at_ns,
            queues: vec![PortQueue { port: "a0".to_owned(), bytes, depth_bytes, ..PortQueue::default() }],
        };
        let (first, second) = (reading(6 * NS_PER_S, 500_500, 500), reading(8 * NS_PER_S, 2_500_700, 700));
        assert!((first.utilization(0, None) - 0.5).abs() < 1e-9);
        assert!((second.utilization(0, Some(&first)) - 1.0).abs() < 1e-9);
        assert!((second.bits_per_s(0, Some(&first)) - 8e6).abs() < 1e-3);
        assert!(first.bits_per_s(0, Some(&first)).abs() < 1e-9, "no time between");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "1:2", "2:1:0.5", "1:1:0.5", "1:2:1.5", "1:2:x", "1:2:NaN", "1:2:0.5:4"] {
            assert!(text.parse::<Wred>().is_err(), "{text}");
        }
        for (rate, buffer) in [(0, 1000), (999_999, 1000), (200_000_000, 0), (200_000_000, 1 << 31)] {
            assert!(QueueSettings::new(rate, buffer, None).is_err(), "{rate} {buffer}");
        }
    }
}
