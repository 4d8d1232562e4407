//! Data center bridging of an interface with a driver that has none, by the kernel's own answers.

use caps::CapSet;
use roced_xdp::dcb::{DcbError, KernelControl, NicDcb, TrustedField};

use crate::{
    needs_root,
    veth::{INTERFACE, Pair},
};

/// The number of the error of a change.
fn change() -> Option<i32> {
    let mut nic = NicDcb::new(INTERFACE, KernelControl::open().expect("a socket needs no right"));
    match nic.set_trust(&[TrustedField::Dscp]).expect_err("veth has no DCB") {
        DcbError::Refused(error) => error.raw_os_error(),
        DcbError::Reply(reply) => panic!("{reply}"),
    }
}

#[test]
fn veth_has_no_dcb_and_says_so() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    pair.a.run(|| {
        let mut nic = NicDcb::new(INTERFACE, KernelControl::open().expect("a socket needs no right"));
        assert_eq!(nic.settings().expect("no error"), None);
        assert_eq!(nic.global_pause().expect("no error"), None);
        assert_eq!(change(), Some(libc::EOPNOTSUPP));
        caps::clear(None, CapSet::Effective).expect("a thread may give up capabilities");
        assert_eq!(nic.settings().expect("reading needs no right"), None);
        assert_eq!(change(), Some(libc::EPERM));
    });
}
