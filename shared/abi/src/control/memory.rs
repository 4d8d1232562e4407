//! Bodies of calls about memory: memory objects, regions, windows.

use super::body::bodies;

bodies! {
    /// How much memory.
    MemoryRequest {
        /// Bytes; rounded up to whole pages.
        bytes: u64,
    }
    /// A part of a file to map.
    MapMemoryRequest {
        /// Where it begins in the file, or its address: a multiple of 4096.
        offset: u64,
        /// Bytes: a multiple of 4096, all inside the file.
        bytes: u64,
        /// 1: for reading and writing. 0: for reading; no region with rights to write lies in it.
        writable: u32,
        /// [`origin`](super::origin): kind of the memory.
        origin: u32,
    }
    /// A memory region to register.
    RegMrRequest {
        /// Of [`AllocPd`](super::AllocPd).
        pd: u32,
        /// Of [`AllocMemory`](super::AllocMemory).
        memory: u32,
        /// Where in that memory the region begins, bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The address by which work requests and peers name the first byte.
        va: u64,
        /// [`access`](roced_types::access) bits.
        access: u32,
        /// Zero.
        reserved: u32,
    }
    /// A registered region.
    RegMrReply {
        /// For [`DeregMr`](super::DeregMr).
        handle: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    }
    /// Memory to map, and a region in it to register.
    MapAndRegMrRequest {
        /// The memory.
        memory: MapMemoryRequest,
        /// The region; its field `memory` is ignored.
        region: RegMrRequest,
    }
    /// Mapped memory and the region in it.
    MapAndRegMrReply {
        /// Handle of the memory, for [`FreeMemory`](super::FreeMemory).
        memory: u32,
        /// The region.
        region: RegMrReply,
    }
    /// A change of a registration.
    ReregMrRequest {
        /// Of [`RegMr`](super::RegMr).
        handle: u32,
        /// Changed parts: [`rereg`](super::rereg) bits. Fields of unchanged parts are 0.
        changes: u32,
        /// See [`RegMrRequest`].
        pd: u32,
        /// See [`RegMrRequest`].
        memory: u32,
        /// See [`RegMrRequest`].
        offset: u64,
        /// See [`RegMrRequest`].
        length: u64,
        /// See [`RegMrRequest`].
        va: u64,
        /// See [`RegMrRequest`].
        access: u32,
        /// Zero.
        reserved: u32,
    }
    /// A memory window to make.
    AllocMwRequest {
        /// Of [`AllocPd`](super::AllocPd).
        pd: u32,
        /// 1: opens to the queue pairs of its protection domain. 2: to the one queue pair that
        /// bound it.
        kind: u32,
    }
    /// A memory window.
    AllocMwReply {
        /// For [`DeallocMw`](super::DeallocMw).
        handle: u32,
        /// A key of it that opens nothing: BIND_MW names the window by its upper 24 bits, and gives
        /// it other lower 8 bits.
        rkey: u32,
    }
}
