//! Where the kernel has no bpf_link for XDP, aya attaches by netlink and says nothing. Such an
//! attachment outlives a killed daemon, so it is undone and refused. No kernel of today answers
//! that way, so the test has one that does: a seccomp filter.
#![expect(unsafe_code, reason = "prctl(2) with a filter")]

use std::io;

use roced_xdp::{XdpError, XdpProgram};

use crate::{
    needs_root,
    veth::{INTERFACE, MODES, Pair},
};

/// `BPF_LINK_CREATE` of `linux/bpf.h`.
const BPF_LINK_CREATE: u32 = 28;

/// From here on this thread gets EINVAL for [`BPF_LINK_CREATE`].
fn refuse_links() -> io::Result<()> {
    // Offsets in `struct seccomp_data`: the system call's number, and the half of its first
    // argument that holds small numbers.
    let number = 0;
    let first_argument = if cfg!(target_endian = "little") { 16 } else { 20 };
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset);
    let skip_unless = |value, skipped| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skipped, value);
    let answer = |value| instruction(libc::BPF_RET | libc::BPF_K, 0, value);
    let mut filter = [
        load(number),
        skip_unless(libc::SYS_bpf as u32, 3),
        load(first_argument),
        skip_unless(BPF_LINK_CREATE, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to as many instructions as it says, and both live until the call
    // returns; the kernel copies them.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn instruction(code: u32, skipped_if_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: skipped_if_false, k }
}

#[test]
fn an_attachment_that_would_outlive_us_is_undone_and_refused() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    for (asked, _) in MODES {
        let attached = pair.a.run(|| {
            refuse_links().expect("root may filter");
            XdpProgram::attach(INTERFACE, asked)
        });
        let error = attached.expect_err("no link, no attachment");
        assert!(matches!(error, XdpError::NotALink { .. }), "{error:?}");
        assert!(!pair.a.has_program(), "{asked:?}");
    }
}
