//! Bodies of calls about the session and its device.

use roced_types::PKEYS_MAX;

use super::body::bodies;

bodies! {
    /// The client's half of the hand-shake.
    HelloRequest {
        /// [`VERSION`](crate::VERSION) of the client.
        version: u32,
        /// Name of the client's program for reports, zero-padded ASCII, as in `/proc/PID/comm`.
        program: [u8; 16],
    }
    /// The daemon's half.
    HelloReply {
        /// [`VERSION`](crate::VERSION) of the daemon.
        version: u32,
        /// This session, as logs and `rocectl` name it.
        session: u32,
        /// Devices that it has.
        devices: u32,
    }
    /// A place in a list.
    Index {
        /// From 0.
        index: u32,
    }
    /// A device's name, zero-padded UTF-8.
    DeviceName {
        /// The name's bytes.
        name: [u8; 64],
    }
    /// Description of an opened device.
    OpenDeviceReply {
        /// Workers that serve it: CQ rings of a CQ, doorbell block of the session, wake eventfds
        /// beside this reply.
        workers: u32,
        /// Workers of the whole daemon: size of the state memfd.
        workers_in_daemon: u32,
        /// For each worker of the device, its number in the daemon: its place in the state memfd.
        worker_ids: [u8; 64],
    }
    /// Limits of a device and of this session.
    DeviceAttributes {
        /// Node GUID, EUI-64 made from the MAC address, in wire order.
        node_guid: [u8; 8],
        /// Queue pairs of a session.
        max_qps: u32,
        /// Send or receive work requests of a queue pair.
        max_qp_wrs: u32,
        /// Scatter/gather entries of a work request.
        max_sges: u32,
        /// Inline bytes of a work request.
        max_inline_bytes: u32,
        /// Completion queues of a session.
        max_cqs: u32,
        /// Entries of a completion queue.
        max_cqes: u32,
        /// Memory regions of a session.
        max_mrs: u32,
        /// Protection domains of a session.
        max_pds: u32,
        /// Largest memory region, bytes.
        max_mr_bytes: u64,
        /// READs and atomic operations that a queue pair answers, or has outstanding, at a time.
        max_rd_atomic: u32,
        /// Largest message, bytes.
        max_message_bytes: u32,
        /// Address handles of a session.
        max_ahs: u32,
        /// Shared receive queues of a session.
        max_srqs: u32,
        /// Attachments of a session's queue pairs to multicast groups.
        max_attachments: u32,
        /// Zero.
        reserved: u32,
    }
    /// How a port is.
    PortAttributes {
        /// 1 when the link is up, else 0.
        active: u32,
        /// Largest path MTU that the link carries, bytes: 256 to 4096.
        active_mtu_bytes: u32,
        /// Entries of the GID table; some may be empty.
        gid_entries: u32,
        /// MTU of the link itself, bytes.
        link_mtu_bytes: u32,
        /// Speed of the link, Mbit/s, 0 when not known.
        speed_mbit_per_s: u32,
        /// Entries of the table of partition keys, at least 1.
        pkey_entries: u32,
        /// That table, then zeros.
        pkeys: [u16; PKEYS_MAX],
    }
    /// A GID.
    GidEntry {
        /// The address: IPv6, or IPv4 as `::ffff:a.b.c.d`; all zero when the entry is empty.
        gid: [u8; 16],
        /// Interface of the address.
        ifindex: u32,
        /// VLAN of that interface, or 0xffff.
        vlan: u32,
        /// By which RoCE it speaks: [`gid_type`](super::gid_type).
        gid_type: u32,
    }
}

impl DeviceName {
    /// The name, truncated to the field.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 64];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        Self { name: bytes }
    }

    /// The name; `None` when it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..length]).ok()
    }
}
