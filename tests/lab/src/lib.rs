//! The box between the hosts of the lab: faults and queues on its ports. `scripts/lab` starts it.
//!
//! A frame that arrives on a port is an skb there, for AF_XDP's transmit ends in one: so tc sees
//! it, while on the hosts it passes tc by. `faults.bpf.c` runs on each port's ingress; [`switch`]
//! sets its faults. `queue.bpf.c` runs on the egress of each port with a rate; [`queue`] sets it,
//! and [`classes`] is about ports with traffic classes.
//! [`pause`] pauses a host for nothing.

pub mod classes;
pub mod layout;
pub mod pause;
pub mod port;
mod program;
pub mod queue;
pub mod recording;
pub mod replay;
pub mod rule;
pub mod switch;
pub mod watch;
