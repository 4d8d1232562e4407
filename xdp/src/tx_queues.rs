//! TX queues that an interface has in use.
//!
//! Some drivers receive on more queues than they send on while an XDP program is attached
//! (virtio-net), and count them as channels all the same. The kernel takes no frame from an AF_XDP
//! socket of a queue without a TX queue, and reports no error.

use std::fs;

use nix::net::if_::if_nametoindex;

/// Whether RX queue `queue` of the interface has a TX queue. True where the kernel does not show it:
/// `/sys` may be that of another network namespace.
pub fn has_tx_queue(interface: &str, queue: u32) -> bool {
    let folder = format!("/sys/class/net/{interface}");
    let shown = fs::read_to_string(format!("{folder}/ifindex")).ok().and_then(|index| index.trim().parse().ok());
    if shown.is_none() || shown != if_nametoindex(interface).ok() {
        return true;
    }
    fs::metadata(format!("{folder}/queues/tx-{queue}")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_as_many_tx_queues_as_the_kernel_shows() {
        assert!(has_tx_queue("lo", 0));
        assert!(!has_tx_queue("lo", 7));
        assert!(has_tx_queue("none-such-if", 7), "unknown");
    }
}
