//! Queue pairs: their states and attributes. Bits of the mask and numbers of states are the
//! daemon's, which took them from verbs.
#![expect(unsafe_code, reason = "attributes in the program's memory")]

use std::{ffi::c_int, mem, ptr};

use roced_client::{NoCancellation, QpAttributes, attribute, mtu_code};

use crate::{
    abi::{
        attributes::{AhAttr, Ece, Gid8, GlobalRoute, QpAttr, QpInitAttr, QpRateLimitAttr},
        object::Qp as QpFace,
    },
    absent,
    ah::hop_limit,
    errno::{self, Errno, Result},
    qp::{self, Qp},
    query::{PORT, mtu_bytes},
    rate,
};

/// Bits of `ibv_qp_attr_mask` that the daemon knows nothing of.
const ALT_PATH: u32 = 1 << 14;
const PATH_MIG_STATE: u32 = 1 << 18;
const CAP: u32 = 1 << 19;
/// `IBV_MIG_MIGRATED`: there is no other path.
const MIGRATED: u32 = 0;
/// `IBV_ACCESS_FLUSH_PERSISTENT`: a queue pair may have the right, which changes nothing, because
/// no memory region can.
const FLUSH_PERSISTENT: u32 = 1 << 9;

/// `ibv_modify_qp`.
pub(crate) unsafe extern "C" fn modify(qp: *mut QpFace, attr: *mut QpAttr, mask: c_int) -> c_int {
    let _whole = NoCancellation::new();
    let modified = || -> Result<()> {
        // SAFETY: the program's queue pair is ours, and it gave attributes.
        let (object, attr) = unsafe { (Qp::of(qp), &*attr) };
        let mut mask = mask.cast_unsigned();
        if mask & PATH_MIG_STATE != 0 && attr.path_mig_state == MIGRATED {
            mask &= !PATH_MIG_STATE;
        }
        if mask & (ALT_PATH | PATH_MIG_STATE | CAP) != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        object.own.qp.modify(mask, &attributes(attr, mask)?)?;
        if mask & attribute::STATE != 0 {
            // SAFETY: as above.
            unsafe { (*qp).state = attr.qp_state };
        }
        Ok(())
    };
    errno::number(modified())
}

/// `ibv_modify_qp_rate_limit`. The typical size of packets is of no use here.
pub(crate) unsafe extern "C" fn rate_limit(qp: *mut QpFace, attr: *mut QpRateLimitAttr) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's queue pair is ours, and it gave attributes.
    let (object, attr) = unsafe { (Qp::of(qp), &*attr) };
    if attr.comp_mask != 0 {
        return errno::number(Err(Errno::INVALID));
    }
    let limit = QpAttributes {
        rate_limit_kbit_per_s: attr.rate_limit,
        rate_limit_burst_bytes: attr.max_burst_sz,
        ..QpAttributes::default()
    };
    errno::number(object.own.qp.modify(attribute::RATE_LIMIT, &limit).map_err(Errno::from))
}

/// As the daemon is told. Fields that the mask does not name are not looked at.
fn attributes(attr: &QpAttr, mask: u32) -> Result<QpAttributes> {
    let has = |bit| mask & bit != 0;
    if has(attribute::PORT) && attr.port_num != PORT {
        return Err(Errno::INVALID);
    }
    let mut to = QpAttributes {
        state: attr.qp_state,
        current_state: attr.cur_qp_state,
        access: attr.qp_access_flags & !FLUSH_PERSISTENT,
        dest_qpn: attr.dest_qp_num,
        rq_psn: attr.rq_psn & 0x00ff_ffff,
        sq_psn: attr.sq_psn & 0x00ff_ffff,
        max_rd_atomic: attr.max_rd_atomic.into(),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.into(),
        min_rnr_timer: attr.min_rnr_timer.into(),
        timeout: attr.timeout.into(),
        retry_cnt: attr.retry_cnt.into(),
        rnr_retry: attr.rnr_retry.into(),
        pkey_index: attr.pkey_index.into(),
        qkey: attr.qkey,
        sq_drained_event: u32::from(attr.en_sqd_async_notify != 0),
        rate_limit_kbit_per_s: attr.rate_limit,
        ..QpAttributes::default()
    };
    if has(attribute::PATH_MTU) {
        to.path_mtu_bytes = mtu_bytes(attr.path_mtu)?;
    }
    if has(attribute::AV) {
        let ah = &attr.ah_attr;
        // RoCE knows destinations by GID only.
        if ah.is_global == 0 || ah.port_num != PORT {
            return Err(Errno::INVALID);
        }
        to.dgid = ah.grh.dgid.0;
        to.sgid_index = ah.grh.sgid_index.into();
        to.flow_label = ah.grh.flow_label & 0x000f_ffff;
        to.hop_limit = hop_limit(ah.grh.hop_limit).into();
        to.traffic_class = ah.grh.traffic_class.into();
        to.service_level = (ah.sl & 7).into();
        to.static_rate_kbit_per_s = rate::to_kbit_per_s(ah.static_rate)?;
    }
    Ok(to)
}

/// `ibv_query_qp`. It returns all attributes, for any mask.
pub(crate) unsafe extern "C" fn query(
    face: *mut QpFace,
    attr: *mut QpAttr,
    _mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's queue pair is ours.
    let object = unsafe { Qp::of(face) };
    let asked = object.own.qp.query().map_err(Errno::from);
    errno::number(asked.map(|it| {
        // SAFETY: the program gave room for both.
        unsafe {
            attr.write(qp_attr(&it, object));
            init.write(QpInitAttr {
                qp_context: (*face).qp_context,
                send_cq: (*face).send_cq,
                recv_cq: (*face).recv_cq,
                srq: (*face).srq,
                cap: qp::granted(&object.own.qp),
                qp_type: (*face).qp_type,
                sq_sig_all: object.own.signal_all.into(),
            });
            (*face).state = it.state;
        }
    }))
}

fn qp_attr(it: &QpAttributes, object: &Qp) -> QpAttr {
    QpAttr {
        qp_state: it.state,
        cur_qp_state: it.state,
        path_mtu: mtu_code(it.path_mtu_bytes).into(),
        path_mig_state: MIGRATED,
        qkey: it.qkey,
        rq_psn: it.rq_psn,
        sq_psn: it.sq_psn,
        dest_qp_num: it.dest_qpn,
        qp_access_flags: it.access,
        cap: qp::granted(&object.own.qp),
        ah_attr: AhAttr {
            grh: GlobalRoute {
                dgid: Gid8(it.dgid),
                flow_label: it.flow_label,
                sgid_index: it.sgid_index as u8,
                hop_limit: it.hop_limit as u8,
                traffic_class: it.traffic_class as u8,
            },
            dlid: 0,
            sl: it.service_level as u8,
            src_path_bits: 0,
            static_rate: rate::from_kbit_per_s(it.static_rate_kbit_per_s),
            is_global: 1,
            port_num: PORT,
        },
        // SAFETY: zeros are numbers.
        alt_ah_attr: unsafe { mem::zeroed() },
        pkey_index: it.pkey_index as u16,
        alt_pkey_index: 0,
        en_sqd_async_notify: it.sq_drained_event as u8,
        sq_draining: it.sq_draining as u8,
        max_rd_atomic: it.max_rd_atomic as u8,
        max_dest_rd_atomic: it.max_dest_rd_atomic as u8,
        min_rnr_timer: it.min_rnr_timer as u8,
        port_num: PORT,
        timeout: it.timeout as u8,
        retry_cnt: it.retry_cnt as u8,
        rnr_retry: it.rnr_retry as u8,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: it.rate_limit_kbit_per_s,
    }
}

/// `ibv_query_ece`: no vendor, no options, and no such function: librdmacm refuses an empty answer.
pub(crate) unsafe extern "C" fn query_ece(_qp: *mut QpFace, ece: *mut Ece) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program gave room for it.
    unsafe { ptr::write(ece, Ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    absent::unsupported()
}

/// `ibv_query_qp_data_in_order`: data of a message arrives in ascending order, its last byte last.
pub(crate) extern "C" fn data_in_order(_qp: *mut QpFace, _operation: u32, flags: u32) -> c_int {
    /// Bits of `enum ibv_query_qp_data_in_order_flags`; without the first the answer is yes or no.
    const RETURN_CAPS: u32 = 1 << 0;
    const DEVICE_ONLY: u32 = 1 << 1;
    /// Bits of `enum ibv_query_qp_data_in_order_caps`: the first implies the second.
    const WHOLE_MESSAGE: c_int = 1 << 0;
    const ALIGNED_128_BYTES: c_int = 1 << 1;
    match flags {
        flags if flags & !(RETURN_CAPS | DEVICE_ONLY) != 0 => 0,
        flags if flags & RETURN_CAPS != 0 => WHOLE_MESSAGE | ALIGNED_128_BYTES,
        _ => 1,
    }
}
