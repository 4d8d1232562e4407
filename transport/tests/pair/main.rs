//! Two endpoints and a network between them that loses, repeats and reorders frames by a seed;
//! applications that know the expected memory and completions. Each test here is one rule of the
//! transport, seen from outside.

mod adapters;
mod atomics;
mod credits;
mod datagram;
mod duplicates;
mod fairness;
mod faults;
mod final_answers;
mod goodput;
mod host;
mod keys;
mod limits;
mod lives;
mod management;
mod multicast;
mod operations;
mod ordering;
mod owed;
mod partitions;
mod paths;
mod placement;
mod probes;
mod quiet;
mod read_gaps;
mod recorded;
mod recovery;
mod refusals;
mod reuse;
mod rocev1;
mod selective;
mod srq;
mod states;
mod together;
mod two_losses;
mod unreliable;
