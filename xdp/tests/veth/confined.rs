//! Everything that needs a privilege, with the capabilities of the shipped unit and no others.

use caps::{CapSet, Capability, CapsHashSet};
use roced_xdp::{AttachedMode, NicQueue, XdpMode, XdpProgram};

use crate::{
    needs_root,
    veth::{INTERFACE, MODES, Pair, config, no_start},
};

const UNIT: &str = include_str!("../../../config/roced.service");

/// Capabilities that the unit grants.
fn of_the_unit() -> CapsHashSet {
    let line = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("the unit is confined");
    line.split(' ').map(|name| name.parse::<Capability>().expect("a capability")).collect()
}

/// Leaves this thread with the capabilities of the unit.
fn confine() {
    let of_the_unit = of_the_unit();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &of_the_unit).expect("root may give up capabilities");
    }
    assert_eq!(caps::read(None, CapSet::Effective).expect("they can be read"), of_the_unit);
}

#[test]
fn the_program_is_loaded_and_sockets_are_bound_with_the_capabilities_of_the_unit() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    for (asked, got) in MODES {
        let mode = pair.a.run(|| {
            confine();
            let program = XdpProgram::attach(INTERFACE, asked).expect("the unit's capabilities suffice");
            let _no_start = no_start();
            NicQueue::open(&config()).expect("the unit's capabilities suffice");
            program.mode()
        });
        assert_eq!(mode, got, "{asked:?}");
    }
    let without = pair.a.run(|| {
        caps::clear(None, CapSet::Effective).expect("a thread may give up capabilities");
        XdpProgram::attach(INTERFACE, XdpMode::Native).expect_err("nothing is permitted")
    });
    assert!(without.to_string().contains("CAP_NET_ADMIN is missing"), "{without}");
    assert_eq!(pair.a.attach(XdpMode::Native).mode(), AttachedMode::Native);
}
