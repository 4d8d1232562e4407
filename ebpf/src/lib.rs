//! The XDP program that steers RoCE frames to AF_XDP sockets, as the bytes of an ELF object.
//!
//! The program is `roced_xdp.bpf.c`, in C, compiled by clang when this crate is built. The part
//! shared with the daemon (names of maps, keys, verdicts) stands in `steer.h` and in
//! `roced_steering`.

/// The object file, aligned as ELF readers want it.
pub static OBJECT: &[u8] = &ALIGNED.bytes;

/// Puts `bytes` on an 8-byte boundary: `include_bytes!` alone promises none, and ELF structures are
/// read in place.
#[repr(C)]
struct Aligned<Bytes: ?Sized> {
    align: [u64; 0],
    bytes: Bytes,
}

static ALIGNED: &Aligned<[u8]> =
    &Aligned { align: [], bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/roced_xdp.bpf.o")) };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_an_aligned_elf_file_for_bpf() {
        assert_eq!(OBJECT.as_ptr().addr() % 8, 0);
        assert_eq!(&OBJECT[..4], b"\x7fELF");
        // e_machine, at offset 18 of an ELF header: EM_BPF.
        assert_eq!(u16::from_ne_bytes([OBJECT[18], OBJECT[19]]), 247);
    }
}
