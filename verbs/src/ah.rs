//! Address handles.
#![expect(unsafe_code, reason = "objects of C, and headers in the program's memory")]

use std::{ffi::c_int, net::Ipv4Addr};

use roced_client::{AddressHandle, AddressOptions, Gid, NoCancellation};

use crate::{
    abi::{
        attributes::Grh,
        attributes::{AhAttr, Gid8, GlobalRoute},
        completion::Wc,
        context::Context as ContextFace,
        object::{Ah as Face, Pd as PdFace},
    },
    context,
    cq::wc_flag,
    errno::{self, Errno, Result},
    object::Object,
    pd::Pd,
    query::PORT,
    rate,
};

/// An address handle.
pub(crate) type Ah = Object<Face, AddressHandle>;

/// `ibv_create_ah`.
pub(crate) unsafe extern "C" fn create(pd: *mut PdFace, attr: *mut AhAttr) -> *mut Face {
    let _whole = NoCancellation::new();
    // SAFETY: the program's domain is ours, and it gave attributes.
    errno::pointer(unsafe { make(pd, &*attr) })
}

unsafe fn make(pd: *mut PdFace, attr: &AhAttr) -> Result<*mut Face> {
    // SAFETY: the caller vouches for it.
    let domain = unsafe { Pd::of(pd) };
    let options = options(attr)?;
    let handle = domain.own.pd.address_handle(&options)?;
    domain.own.users.add();
    // SAFETY: as above.
    let context = unsafe { (*pd).context };
    Ok(Ah::leak(Face { context, pd, handle: handle.number() }, handle).cast())
}

/// The attributes in the form of the daemon.
fn options(attr: &AhAttr) -> Result<AddressOptions> {
    // RoCE knows destinations by GID only.
    if attr.is_global == 0 || attr.port_num != PORT {
        return Err(Errno::INVALID);
    }
    Ok(AddressOptions {
        gid: Gid(attr.grh.dgid.0),
        sgid_index: Some(attr.grh.sgid_index.into()),
        hop_limit: hop_limit(attr.grh.hop_limit),
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label & 0x000f_ffff,
        service_level: attr.sl & 7,
        static_rate_kbit_per_s: rate::to_kbit_per_s(attr.static_rate)?,
    })
}

/// Programs that know InfiniBand say 0 or 1 and expect the stack to find out, as those in kernels
/// do: then the usual limit.
pub(crate) fn hop_limit(asked: u8) -> u8 {
    if asked <= 1 { 64 } else { asked }
}

/// `ibv_destroy_ah`.
pub(crate) unsafe extern "C" fn destroy(ah: *mut Face) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's handle is ours, so is its domain, and it no longer uses it.
    unsafe {
        let pd = (*ah).pd;
        drop(Ah::free(ah));
        Pd::of(pd).own.users.remove();
    }
    0
}

/// `ibv_init_ah_from_wc`.
pub(crate) unsafe extern "C" fn init_from_wc(
    context: *mut ContextFace,
    port: u8,
    wc: *mut Wc,
    grh: *mut Grh,
    attr: *mut AhAttr,
) -> c_int {
    // SAFETY: the program's context is ours; it gave a completion, its header, and room for
    // attributes.
    errno::minus_one(unsafe { back(context, port, &*wc, &*grh).map(|answer| attr.write(answer)) })
}

/// `ibv_create_ah_from_wc`.
pub(crate) unsafe extern "C" fn create_from_wc(pd: *mut PdFace, wc: *mut Wc, grh: *mut Grh, port: u8) -> *mut Face {
    let _whole = NoCancellation::new();
    // SAFETY: the program's domain is ours; it gave a completion and its header.
    errno::pointer(unsafe { back((*pd).context, port, &*wc, &*grh).and_then(|attr| make(pd, &attr)) })
}

/// Where an answer goes.
unsafe fn back(context: *mut ContextFace, port: u8, wc: &Wc, grh: &Grh) -> Result<AhAttr> {
    if port != PORT || wc.wc_flags & wc_flag::GRH == 0 {
        return Err(Errno::INVALID);
    }
    let header = GrhHeader::of(grh);
    // SAFETY: the caller vouches for it.
    let gids = unsafe { context::of(context) }.device.gids()?;
    let ours = gids.iter().find(|entry| entry.gid == header.to).ok_or(Errno::INVALID)?;
    Ok(AhAttr {
        grh: GlobalRoute {
            dgid: Gid8(header.from.0),
            flow_label: header.flow_label,
            sgid_index: u8::try_from(ours.index).map_err(|_| Errno::INVALID)?,
            hop_limit: u8::MAX,
            traffic_class: header.traffic_class,
        },
        dlid: 0,
        // The field of the completion is no service level here.
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: port,
    })
}

/// Contents of the header in front of a datagram: that of IPv6, or that of IPv4 in the last 20
/// bytes.
struct GrhHeader {
    from: Gid,
    to: Gid,
    flow_label: u32,
    traffic_class: u8,
}

impl GrhHeader {
    fn of(grh: &Grh) -> Self {
        if grh.version_tclass_flow[0] >> 4 == 6 {
            let word = u32::from_be_bytes(grh.version_tclass_flow);
            let (from, to) = (Gid(grh.sgid.0), Gid(grh.dgid.0));
            return Self { from, to, flow_label: word & 0x000f_ffff, traffic_class: (word >> 20) as u8 };
        }
        // The last 20 bytes: four of the first GID, and the second one.
        let address = |at: usize| {
            let octets = [grh.dgid.0[at], grh.dgid.0[at + 1], grh.dgid.0[at + 2], grh.dgid.0[at + 3]];
            Gid(Ipv4Addr::from(octets).to_ipv6_mapped().octets())
        };
        Self { from: address(8), to: address(12), flow_label: 0, traffic_class: grh.sgid.0[13] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_to_the_source_of_either_header() {
        let mut grh = Grh {
            version_tclass_flow: [0x61, 0x21, 0x23, 0x45],
            paylen: [0; 2],
            next_hdr: 17,
            hop_limit: 64,
            sgid: Gid8([1; 16]),
            dgid: Gid8([2; 16]),
        };
        let header = GrhHeader::of(&grh);
        assert_eq!((header.from, header.to), (Gid([1; 16]), Gid([2; 16])));
        assert_eq!((header.traffic_class, header.flow_label), (0x12, 0x1_2345));
        let ipv4 = [0x45, 0x60, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 10, 0, 1, 10, 10, 0, 2];
        grh.version_tclass_flow = [0; 4];
        grh.sgid.0[12..].copy_from_slice(&ipv4[..4]);
        grh.dgid.0.copy_from_slice(&ipv4[4..]);
        let header = GrhHeader::of(&grh);
        assert_eq!((header.from, header.to), ("10.10.0.1".parse().unwrap(), "10.10.0.2".parse().unwrap()));
        assert_eq!(header.traffic_class, 0x60);
    }
}
