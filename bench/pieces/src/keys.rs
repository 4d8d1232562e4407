//! Is that range of memory this queue pair's to touch?

use std::hint::black_box;

use roced_transport::mr::{Mr, MrKey, MrTable, Right, Scope};
use roced_types::{MemoryObjectId, Pdn, Qpn, access};

use crate::TIMES;

/// Regions in the table: enough for probes of several slots.
const REGIONS: u32 = 1000;

/// Every piece once.
pub(crate) fn run() {
    let mut table = MrTable::new(1024);
    for number in 0..REGIONS {
        table.insert(region(number)).expect("room for all");
    }
    piece_mr_check(&table);
}

/// Keys lie anywhere, as random ones do; these are the same in every run.
fn key(number: u32) -> MrKey {
    MrKey(number.wrapping_mul(0x9e37_79b1) << 8 | 0x5a)
}

fn region(number: u32) -> Mr {
    Mr {
        key: key(number),
        pd: Pdn(1),
        access: access::ALL,
        va: u64::from(number) << 20,
        length: 1 << 20,
        object: MemoryObjectId(number),
        offset: 0,
        scope: Scope::Region,
    }
}

#[inline(never)]
fn piece_mr_check(table: &MrTable) {
    for number in 0..TIMES {
        let va = (u64::from(number) << 20) + 4096;
        let span = table.check_peer(Pdn(1), Qpn::from_wire(7), black_box(key(number)), Right::RemoteWrite, va, 4096);
        assert_eq!(span.expect("it is its own").len(), 4096);
    }
}
