//! Recorded RoCE frames, by the host and the queue pair that they were sent to.

use std::{collections::BTreeMap, fs::File, path::Path};

use anyhow::{Context as _, Result};
use pcap_file::pcap::PcapReader;
use roced_transport::wire::frame::dest_qpn;
use roced_types::Qpn;

/// The frames of a recording that were sent to one host, in the order in which they passed.
#[derive(Debug, Default)]
pub struct Recording {
    frames: Vec<Vec<u8>>,
    all: Walk,
    by_qpn: BTreeMap<u32, Walk>,
}

impl Recording {
    /// Reads a pcap: the recording of each of `hosts`, which are MAC addresses, and how many RoCE
    /// frames were for none of them.
    ///
    /// # Errors
    /// No such file; not a pcap; frames that were not recorded whole.
    pub fn read<const HOSTS: usize>(file: &Path, hosts: [[u8; 6]; HOSTS]) -> Result<([Self; HOSTS], usize)> {
        let mut recordings = [const { Self::empty() }; HOSTS];
        let mut foreign = 0;
        let mut reader = PcapReader::new(File::open(file)?).context("not a pcap")?;
        while let Some(packet) = reader.next_packet() {
            let packet = packet?;
            anyhow::ensure!(packet.data.len() == packet.orig_len as usize, "a frame was not recorded whole");
            let bytes = packet.data.into_owned();
            let (Some(to), Some(qpn)) = (bytes.first_chunk::<6>(), dest_qpn(&[&bytes])) else { continue };
            match hosts.iter().position(|mac| mac == to) {
                Some(host) => recordings[host].add(qpn, bytes),
                None => foreign += 1,
            }
        }
        recordings.iter_mut().for_each(Self::spread);
        Ok((recordings, foreign))
    }

    const fn empty() -> Self {
        Self { frames: Vec::new(), all: Walk::new(), by_qpn: BTreeMap::new() }
    }

    fn add(&mut self, qpn: Qpn, frame: Vec<u8>) {
        let at = self.frames.len();
        self.frames.push(frame);
        self.all.stops.push(at);
        self.by_qpn.entry(qpn.get()).or_default().stops.push(at);
    }

    fn spread(&mut self) {
        self.all.spread();
        self.by_qpn.values_mut().for_each(Walk::spread);
    }

    /// Frames in all.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The next `many` frames for a queue pair, which followed one another when they were recorded,
    /// and whether they are for that queue pair: when none was recorded for it they are for any.
    /// Each call begins far from where the one before began, so that the distances to the frames
    /// that pass meanwhile are spread over all that there are.
    pub fn next(&mut self, qpn: Qpn, many: usize) -> (bool, impl Iterator<Item = &[u8]>) {
        let (same, walk) = match self.by_qpn.get_mut(&qpn.get()) {
            Some(walk) => (true, walk),
            None => (false, &mut self.all),
        };
        let begin = walk.step();
        let stops = walk.stops.get(begin..).unwrap_or_default().iter().take(many);
        (same, stops.map(|at| &*self.frames[*at]))
    }
}

/// A way through frames that comes by each of them once, in leaps.
#[derive(Debug, Default)]
struct Walk {
    stops: Vec<usize>,
    leap: usize,
    next: usize,
}

impl Walk {
    const fn new() -> Self {
        Self { stops: Vec::new(), leap: 0, next: 0 }
    }

    /// All stops are known. A leap of the golden section spreads the first few as evenly as the
    /// first many; with no factor in common it misses none.
    fn spread(&mut self) {
        let count = self.stops.len();
        let golden = count * 618 / 1000;
        self.leap = (golden..count).find(|leap| greatest_common_divisor(*leap, count) == 1).unwrap_or(1);
    }

    /// Where the next frames begin.
    fn step(&mut self) -> usize {
        let begin = self.next;
        self.next = (self.next + self.leap).checked_rem(self.stops.len()).unwrap_or(0);
        begin
    }
}

const fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const A: [u8; 6] = [0x52, 0x54, 0x00, 0x77, 0x00, 0x01];
    const B: [u8; 6] = [0x52, 0x54, 0x00, 0x77, 0x00, 0x02];

    fn read() -> [Recording; 2] {
        let file = roced_captures::directory().join("rc_mix.pcap");
        let (recordings, foreign) = Recording::read(&file, [A, B]).expect("a recording");
        assert_eq!(foreign, 0);
        recordings
    }

    #[test]
    fn frames_are_sorted_by_the_host_that_they_are_for() {
        let all = roced_captures::frames_of("rc_mix.pcap");
        let recordings = read();
        assert_eq!(recordings[0].len() + recordings[1].len(), all.len());
        for (recording, mac) in recordings.iter().zip([A, B]) {
            assert!(!recording.is_empty());
            assert!(recording.frames.iter().all(|frame| frame[..6] == mac));
        }
        let file = roced_captures::directory().join("rc_mix.pcap");
        let (recordings, foreign) = Recording::read(&file, [A, [2; 6]]).expect("a recording");
        assert_eq!((recordings[1].len(), foreign), (0, all.len() - recordings[0].len()));
    }

    #[test]
    fn following_lines_are_for_the_named_queue_pair() {
        let [mut recording, _] = read();
        let qpn = dest_qpn(&[&recording.frames[0]]).expect("RoCE");
        let is_for_it = |frame: &[u8]| dest_qpn(&[frame]) == Some(qpn);
        for _ in 0..20 {
            let (same, mut frames) = recording.next(qpn, 3);
            assert!(same && frames.all(is_for_it));
        }
        let (same, frames) = recording.next(Qpn::from_wire(0xabcdef), 1);
        assert!(!same && frames.count() == 1);
        let mut none = Recording::empty();
        let (same, mut frames) = none.next(qpn, 1);
        assert!(!same && frames.next().is_none());
    }

    #[test]
    fn a_walk_comes_by_every_frame_and_begins_far_apart() {
        for count in 1..300 {
            let mut walk = Walk { stops: (0..count).collect(), ..Walk::new() };
            walk.spread();
            let begins: Vec<_> = (0..count).map(|_| walk.step()).collect();
            assert_eq!(begins.iter().copied().collect::<BTreeSet<_>>().len(), count, "each once of {count}");
            if count >= 50 {
                let first: BTreeSet<_> = begins[..8].iter().map(|begin| begin * 4 / count).collect();
                assert_eq!(first.len(), 4, "the first eight are in every quarter of {count}: {:?}", &begins[..8]);
            }
        }
    }
}
