//! Fuzz targets for every reader of untrusted bytes: from the wire, and from clients.
//!
//! ```text
//!   seeds (captures) ─┐                         scripts/fuzz: libFuzzer, guided by coverage, for as long as one likes
//!   regressions ──────┴─► bytes ─► Target::run ◄┤
//!                                               cargo test: all seeds and regressions, then some seconds of mutations by a seed
//! ```
//!
//! A target is a function of bytes that asserts invariants for any bytes. Packets always get a
//! right ICRC, made here: nothing in the code under test knows that it is tested.

mod client;
mod client_ring;
mod client_rings;
mod completer;
mod connections;
mod control;
mod datagram;
mod esp;
#[path = "../../../cm/tests/identifiers/fake_host.rs"]
mod fake_host;
mod frame;
mod input;
mod machine;
mod memory;
mod packet;
mod responder;
mod seeds;
mod shared;
mod tap;
mod world;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use seeds::Seed;

/// Something that reads untrusted bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// How scripts, corpus and regressions name it.
    pub name: &'static str,
    /// One run. Panics when something that must hold does not.
    pub run: fn(&[u8]),
    /// Runs to begin with.
    pub seeds: fn() -> Vec<Seed>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", run: frame::run, seeds: seeds::frame },
    Target { name: "responder", run: responder::run, seeds: seeds::responder },
    Target { name: "completer", run: completer::run, seeds: seeds::completer },
    Target { name: "datagram", run: datagram::run, seeds: seeds::datagram },
    Target { name: "esp", run: esp::run, seeds: esp::seeds },
    Target { name: "control", run: control::run, seeds: control::seeds },
    Target { name: "client_rings", run: client_rings::run, seeds: seeds::client_rings },
    Target { name: "connections", run: connections::run, seeds: connections::seeds },
    Target { name: "memory", run: memory::run, seeds: memory::seeds },
];

impl Target {
    /// The target of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Inputs that once found an error, one file each, named for the error.
    ///
    /// # Panics
    /// When a file cannot be read: they belong to the source tree.
    pub fn regressions(&self) -> Vec<Seed> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(self.name);
        let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the folder").path()).collect();
        found.sort();
        let seed = |path: PathBuf| Seed {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bytes: fs::read(&path).expect("a regression file"),
        };
        found.into_iter().map(seed).collect()
    }
}
