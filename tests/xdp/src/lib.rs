//! The XDP program, run by the kernel over frames that we hand it (`BPF_PROG_TEST_RUN`): no NIC, no
//! traffic.
//!
//! [`Program::run`] holds every single run to the rules of all of them: one verdict is counted, the
//! action goes with the verdict, and the frame comes back as it went in. [`model`] is the program's
//! rules a second time, written plainly.

pub mod frame;
pub mod model;
mod socket;

use std::{
    io::{self, Write as _},
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
    process::Command,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramInput};
use nix::{
    net::if_::if_nametoindex,
    sched::{CloneFlags, unshare},
    unistd::Uid,
};
use roced_steering::{self, PAUSE_WORDS, PauseWord, Verdict};

/// `enum xdp_action` of the kernel.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// Bytes of `struct xdp_md`, the context of a run.
const CONTEXT_BYTES: usize = 24;

/// More than any frame here, so that the returned frame is whole.
const FRAME_BYTES_MAX: usize = 16 * 1024;

/// The program in the kernel, attached to nothing.
pub struct Program {
    object: Object,
    sockets: Vec<OwnedFd>,
}

/// The queue and buffers that a frame is said to have come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Interface of the queue.
    pub ifindex: u32,
    /// RX queue.
    pub queue: u32,
    /// How much of the frame the program can read; the rest lies in further buffers.
    pub linear_bytes: u32,
}

/// Instructions of the program, as the compiler made them.
///
/// # Panics
/// When libbpf does not read the object.
pub fn instructions() -> Vec<libbpf_rs::libbpf_sys::bpf_insn> {
    let object = ObjectBuilder::default().open_memory(roced_ebpf::OBJECT).expect("libbpf reads the object");
    let program = object.progs().next().expect("one program");
    program.insns().to_vec()
}

impl Program {
    /// Loads the program.
    ///
    /// # Panics
    /// When the kernel refuses it.
    pub fn load() -> Self {
        let object = ObjectBuilder::default()
            .open_memory(roced_ebpf::OBJECT)
            .expect("libbpf reads the object")
            .load()
            .expect("the kernel takes the program");
        Self { object, sockets: Vec::new() }
    }

    /// The map `name` of the program.
    ///
    /// # Panics
    /// When there is none.
    pub fn map(&self, name: &str) -> MapHandle {
        let map = self.object.maps().find(|map| map.name() == name).unwrap_or_else(|| panic!("a map called {name}"));
        MapHandle::try_from(&map).expect("a second handle")
    }

    /// Makes `address` one of ours, by RoCEv2.
    ///
    /// # Panics
    /// When the map does not take it.
    pub fn add_address(&mut self, address: IpAddr) {
        self.add_address_by(address, roced_steering::ROCE_V2);
    }

    /// Makes `address` one of ours, by these RoCEs.
    ///
    /// # Panics
    /// When the map does not take it.
    pub fn add_address_by(&mut self, address: IpAddr, roce: u8) {
        let key = roced_types::gid_of(address);
        self.map(roced_steering::MAP_ADDRESSES).update(&key, &[roce], MapFlags::ANY).expect("room for an address");
    }

    /// Makes `address` none of ours.
    ///
    /// # Panics
    /// When it was none.
    pub fn remove_address(&mut self, address: IpAddr) {
        self.map(roced_steering::MAP_ADDRESSES).delete(&roced_types::gid_of(address)).expect("it is ours");
    }

    /// Puts an AF_XDP socket at `queue`.
    ///
    /// # Panics
    /// When the kernel gives no socket or the map does not take it.
    pub fn add_socket(&mut self, queue: u32) {
        let socket = socket::open().expect("an AF_XDP socket (CAP_NET_RAW)");
        self.map(roced_steering::MAP_SOCKETS)
            .update(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .expect("room for a socket");
        self.sockets.push(socket);
    }

    /// The counters, all CPUs together.
    ///
    /// # Panics
    /// When the map cannot be read.
    pub fn verdicts(&self) -> [u64; Verdict::ALL.len()] {
        let map = self.map(roced_steering::MAP_VERDICTS);
        assert_eq!(map.map_type(), MapType::PercpuArray);
        Verdict::ALL.map(|verdict| {
            map.lookup_percpu(&(verdict as u32).to_ne_bytes(), MapFlags::ANY)
                .expect("the counters are readable")
                .expect("a counter for each verdict")
                .iter()
                .map(|count| u64::from_ne_bytes(count[..8].try_into().expect("eight bytes")))
                .sum()
        })
    }

    /// Has pauses honored, by bits of [`roced_steering::PauseWord::Honored`], of a link with this
    /// quantum.
    ///
    /// # Panics
    /// When the map does not take it.
    pub fn honor_pauses(&mut self, honored: u64, quantum_ps: u64) {
        let mut words = [0; PAUSE_WORDS];
        words[PauseWord::Honored as usize] = honored;
        words[PauseWord::QuantumPicoseconds as usize] = quantum_ps;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.map(roced_steering::MAP_PAUSES).update(&[0; 4], &bytes, MapFlags::ANY).expect("the only value");
    }

    /// The words of the map of pauses.
    ///
    /// # Panics
    /// When the map cannot be read.
    pub fn pauses(&self) -> [u64; PAUSE_WORDS] {
        let value = self.map(roced_steering::MAP_PAUSES).lookup(&[0; 4], MapFlags::ANY);
        let bytes = value.expect("it is readable").expect("the only value");
        std::array::from_fn(|word| u64::from_ne_bytes(bytes[8 * word..8 * word + 8].try_into().expect("eight bytes")))
    }

    /// The verdict on `frame`, come by queue 0 of the loopback device.
    ///
    /// # Panics
    /// When the run broke a rule that holds for all (see the module).
    pub fn run(&mut self, frame: &[u8]) -> Verdict {
        self.try_run(frame, None).unwrap_or_else(|error| panic!("{} bytes: {error}", frame.len()))
    }

    /// The verdict on `frame`, come as `arrival` says.
    ///
    /// # Errors
    /// When the kernel does not run the program: a frame shorter than an Ethernet header, a queue
    /// that is not there.
    ///
    /// # Panics
    /// When the run broke a rule that holds for all (see the module).
    pub fn try_run(&mut self, frame: &[u8], arrival: Option<Arrival>) -> Result<Verdict, libbpf_rs::Error> {
        let before = self.verdicts();
        let mut context = arrival.map(context);
        let mut out = vec![0; FRAME_BYTES_MAX];
        let program =
            self.object.progs_mut().find(|program| program.name() == roced_steering::PROGRAM).expect("the program");
        let output = program.test_run(ProgramInput {
            context_in: context.as_mut().map(|context| &mut context[..]),
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        })?;
        assert_eq!(output.data.as_deref(), Some(frame), "a frame comes out as it went in");
        let action = output.return_value;

        let after = self.verdicts();
        let risen: Vec<_> = Verdict::ALL.into_iter().filter(|&v| after[v as usize] != before[v as usize]).collect();
        let [verdict] = risen[..] else { panic!("one verdict a frame, not {risen:?}") };
        assert_eq!(after[verdict as usize], before[verdict as usize] + 1, "{verdict:?} is counted once");
        let expected = match verdict {
            Verdict::Redirected => XDP_REDIRECT,
            Verdict::DropPause => XDP_DROP,
            _ => XDP_PASS,
        };
        assert_eq!(action, expected, "the action that goes with {verdict:?}");
        Ok(verdict)
    }
}

/// `struct xdp_md` with the frame at offset 0.
fn context(arrival: Arrival) -> [u8; CONTEXT_BYTES] {
    let words = [0, arrival.linear_bytes, 0, arrival.ifindex, arrival.queue, 0];
    let mut context = [0; CONTEXT_BYTES];
    for (into, word) in context.chunks_exact_mut(4).zip(words) {
        into.copy_from_slice(&u32::to_ne_bytes(word));
    }
    context
}

/// Whether this process may load programs. If not, says on the terminal (past the test harness)
/// which test is skipped.
pub fn is_root(skipped: &str) -> bool {
    let root = Uid::effective().is_root();
    if !root {
        let _ = writeln!(io::stderr(), "SKIPPED, needs root: {skipped}");
    }
    root
}

/// An interface with several RX queues, in a network namespace that only this thread is in: that is
/// where the kernel looks the interface of an [`Arrival`] up. Both go away with the thread.
pub struct TestInterface {
    /// Its index.
    pub ifindex: u32,
}

impl TestInterface {
    /// Takes this thread to a new namespace and makes the interface there.
    ///
    /// # Panics
    /// When the kernel refuses, or ip(8) is not there.
    pub fn new(rx_queues: u32) -> Self {
        let name = "steer0";
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace of our own (CAP_SYS_ADMIN)");
        let status = Command::new("ip")
            .args(["link", "add", name, "numrxqueues", &rx_queues.to_string(), "type", "veth"])
            .status()
            .expect("ip(8) is there");
        assert!(status.success(), "a veth pair with {rx_queues} RX queues");
        Self { ifindex: if_nametoindex(name).expect("the interface just made") }
    }
}
