//! Queries of a device and its port.
#![expect(unsafe_code, reason = "fills structs of programs, of the sizes that they know")]

use std::{ffi::c_int, mem, ptr};

use roced_client::{
    DeviceAttributes, Gid, NoCancellation, PKEYS_MAX, PortAttributes, RoceVersion, mtu_code, mtu_of_code,
};

use crate::{
    abi::{
        attributes::{
            self, DeviceAttr, DeviceAttrEx, Gid8, GidEntry, PORT_ATTR_OLD_BYTES, PacketPacingCaps, PortAttr,
            QueryDeviceExInput, ValuesEx,
        },
        context::Context as Face,
    },
    context,
    errno::{self, Errno, Result},
};

/// The only port.
pub(crate) const PORT: u8 = 1;

/// Bits of `enum ibv_qp_type` of queue pairs with rates: RC, UC and UD.
const PACED_SERVICES: u32 = 1 << 2 | 1 << 3 | 1 << 4;

/// Bits of `ibv_device_cap_flags`.
mod capability {
    pub(super) const CURRENT_STATE: u32 = 1 << 7;
    pub(super) const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub(super) const SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    pub(super) const RNR_NAK: u32 = 1 << 12;
    pub(super) const MEMORY_WINDOW: u32 = 1 << 17;
    pub(super) const MEMORY_EXTENSIONS: u32 = 1 << 21;
    pub(super) const MEMORY_WINDOW_2B: u32 = 1 << 24;
    pub(super) const ALL: u32 = CURRENT_STATE
        | PORT_ACTIVE_EVENT
        | SYSTEM_IMAGE_GUID
        | RNR_NAK
        | MEMORY_WINDOW
        | MEMORY_EXTENSIONS
        | MEMORY_WINDOW_2B;
}

/// Copies as much of `from` as the program has room for, and zeros fields that the program knows
/// and the library does not.
///
/// # Safety
/// `to` has room for `bytes`.
unsafe fn give<T>(from: &T, to: *mut T, bytes: usize) {
    let known = bytes.min(size_of::<T>());
    // SAFETY: the caller vouches for `to`; `known` is no more than `from` has.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), known);
        ptr::write_bytes(to.cast::<u8>().add(known), 0, bytes - known);
    }
}

/// `ibv_query_device`.
pub(crate) unsafe extern "C" fn device(context: *mut Face, attr: *mut DeviceAttr) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's context is ours, and it gave room for the attributes.
    unsafe { attr.write(device_attr(&context::of(context).attributes)) };
    0
}

fn device_attr(it: &DeviceAttributes) -> DeviceAttr {
    let mut fw_ver = [0; 64];
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    fw_ver[..version.len()].copy_from_slice(version);
    let int = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    DeviceAttr {
        fw_ver,
        node_guid: it.node_guid,
        sys_image_guid: it.node_guid,
        max_mr_size: it.max_mr_bytes,
        page_size_cap: 0xffff_f000,
        // An unassigned OUI: programs that know adapters by their maker treat it as any.
        vendor_id: 0x00ff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: int(it.max_qps),
        max_qp_wr: int(it.max_qp_wrs),
        device_cap_flags: capability::ALL,
        max_sge: int(it.max_sges),
        max_sge_rd: int(it.max_sges),
        max_cq: int(it.max_cqs),
        max_cqe: int(it.max_cqes),
        max_mr: int(it.max_mrs),
        max_pd: int(it.max_pds),
        max_qp_rd_atom: int(it.max_rd_atomic),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(it.max_rd_atomic.saturating_mul(it.max_qps)),
        max_qp_init_rd_atom: int(it.max_rd_atomic),
        max_ee_init_rd_atom: 0,
        // IBV_ATOMIC_HCA. In memory that the daemon maps they hold against the program's own as
        // well, in proxied memory against those of peers alone.
        atomic_cap: 1,
        max_ee: 0,
        max_rdd: 0,
        // Windows and regions share their limit.
        max_mw: int(it.max_mrs),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(it.max_attachments),
        max_mcast_qp_attach: int(it.max_qps.min(it.max_attachments)),
        max_total_mcast_qp_attach: int(it.max_attachments),
        max_ah: int(it.max_ahs),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(it.max_srqs),
        max_srq_wr: int(it.max_qp_wrs),
        max_srq_sge: int(it.max_sges),
        max_pkeys: PKEYS_MAX as u16,
        // 4.096 us * 2^15, 134 ms: a guess of how long a client on a busy host may keep an ACK
        // waiting.
        local_ca_ack_delay: 15,
        phys_port_cnt: PORT,
    }
}

/// `ibv_query_device_ex`.
pub(crate) unsafe extern "C" fn device_ex(
    context: *mut Face,
    input: *const QueryDeviceExInput,
    attr: *mut DeviceAttrEx,
    bytes: usize,
) -> c_int {
    // SAFETY: the program's context is ours; an input is there or null; there is room for `bytes`.
    unsafe {
        if bytes < size_of::<DeviceAttr>() || (!input.is_null() && (*input).comp_mask != 0) {
            return errno::number(Err(Errno::INVALID));
        }
        let own = context::of(context);
        // Zeros say of a capability that it is not there.
        let mut all: DeviceAttrEx = mem::zeroed();
        all.orig_attr = device_attr(&own.attributes);
        // Time stamps are nanoseconds, all 64 bits; the clock is told in kHz.
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = 1_000_000;
        all.device_cap_flags_ex = capability::ALL.into();
        all.packet_pacing_caps =
            PacketPacingCaps { qp_rate_limit_min: 1, qp_rate_limit_max: u32::MAX, supported_qpts: PACED_SERVICES };
        all.phys_port_cnt_ex = PORT.into();
        give(&all, attr, bytes);
    }
    0
}

/// `ibv_query_rt_values_ex`.
pub(crate) unsafe extern "C" fn clock(_context: *mut Face, values: *mut ValuesEx) -> c_int {
    // SAFETY: the program gave room for the values.
    unsafe {
        let wanted = (*values).comp_mask & 1;
        if wanted != 0 && libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut (*values).raw_clock) != 0 {
            return errno::number(Err(Errno::INVALID));
        }
        (*values).comp_mask = wanted;
    }
    0
}

/// `ibv_query_port` of today, through the context.
pub(crate) unsafe extern "C" fn port(context: *mut Face, port: u8, attr: *mut PortAttr, bytes: usize) -> c_int {
    // SAFETY: the program's context is ours, and there is room for `bytes`.
    errno::number(unsafe { port_attr(context, port) }.map(|all| unsafe { give(&all, attr, bytes) }))
}

/// The older `ibv_query_port`: the symbol, with a struct that ends earlier.
pub(crate) unsafe extern "C" fn port_of_before(context: *mut Face, number: u8, attr: *mut PortAttr) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: as above.
    unsafe { port(context, number, attr, PORT_ATTR_OLD_BYTES) }
}

unsafe fn port_attr(context: *mut Face, port: u8) -> Result<PortAttr> {
    if port != PORT {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller vouches for it.
    let own = unsafe { context::of(context) };
    let it = own.device.port()?;
    let (active_width, active_speed) = width_and_speed(&it);
    Ok(PortAttr {
        // IBV_PORT_ACTIVE or IBV_PORT_DOWN.
        state: if it.active { 4 } else { 1 },
        max_mtu: 5,
        active_mtu: mtu_code(it.active_mtu_bytes).into(),
        gid_tbl_len: c_int::try_from(gid_places(&it)).unwrap_or(c_int::MAX),
        // IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS.
        port_cap_flags: 1 << 16 | 1 << 26,
        max_msg_sz: own.attributes.max_message_bytes,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: it.pkeys.len() as u16,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width,
        active_speed,
        // LinkUp or Disabled.
        phys_state: if it.active { 5 } else { 3 },
        // IBV_LINK_LAYER_ETHERNET.
        link_layer: 2,
        // IBV_QPF_GRH_REQUIRED: addresses are GIDs here.
        flags: 1,
        port_cap_flags2: 0,
    })
}

/// Codes of lanes and of the speed of a lane that come next to the link's speed from below. Where
/// that is not known: one lane of 2.5 Gbit/s.
fn width_and_speed(port: &PortAttributes) -> (u8, u8) {
    const ONE: u8 = 1;
    const FOUR: u8 = 2;
    match port.speed_mbit_per_s.unwrap_or(0) {
        400_000.. => (FOUR, 128),
        200_000.. => (FOUR, 64),
        100_000.. => (FOUR, 32),
        50_000.. => (ONE, 64),
        40_000.. => (FOUR, 4),
        25_000.. => (ONE, 32),
        10_000.. => (FOUR, 1),
        5_000.. => (ONE, 2),
        _ => (ONE, 1),
    }
}

/// `ibv_query_port_speed`: in units of 100 Mbit/s; 0 if the speed is unknown.
pub(crate) unsafe extern "C" fn port_speed(context: *mut Face, port: u32, speed: *mut u64) -> c_int {
    let mbit_per_s = || -> Result<u64> {
        if port != u32::from(PORT) {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program's context is ours.
        let port = unsafe { context::of(context) }.device.port()?;
        Ok(port.speed_mbit_per_s.unwrap_or(0).into())
    };
    // SAFETY: the program gave room for the number.
    errno::number(mbit_per_s().map(|mbit_per_s| unsafe { speed.write(mbit_per_s / 100) }))
}

/// Bytes of an `enum ibv_mtu`.
pub(crate) fn mtu_bytes(code: u32) -> Result<u32> {
    u8::try_from(code).ok().and_then(mtu_of_code).ok_or(Errno::INVALID)
}

/// `ibv_query_gid`. An entry that is empty is zeros.
pub(crate) unsafe extern "C" fn gid(context: *mut Face, port: u8, index: c_int, gid: *mut attributes::IbvGid) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's context is ours, and it gave room for a GID.
    errno::minus_one(unsafe { entry(context, port.into(), index) }.map(|entry| unsafe { gid.write(entry.gid.0) }))
}

/// Places of the GID table: there is always an empty one, as addresses come and go.
fn gid_places(port: &PortAttributes) -> u32 {
    (port.gid_entries + 1).next_multiple_of(16)
}

/// An entry of the table, zeros when it is empty.
unsafe fn entry(context: *mut Face, port: u32, index: c_int) -> Result<GidEntry> {
    // SAFETY: the caller vouches for it.
    let device = &unsafe { context::of(context) }.device;
    let index = u32::try_from(index).map_err(|_| Errno::INVALID)?;
    if port != u32::from(PORT) || index >= gid_places(&device.port()?) {
        return Err(Errno::INVALID);
    }
    let found = device.gid(index)?;
    let (gid, ifindex) = found.map_or((Gid::default(), 0), |entry| (entry.gid, entry.ifindex));
    let gid_type = found.map_or(RoceVersion::V2, |entry| entry.roce) as u32;
    Ok(GidEntry { gid: Gid8(gid.0), gid_index: index, port_num: port, gid_type, ndev_ifindex: ifindex })
}

/// `_ibv_query_gid_ex`.
pub(crate) unsafe extern "C" fn gid_ex(
    context: *mut Face,
    port: u32,
    index: u32,
    to: *mut GidEntry,
    flags: u32,
    bytes: usize,
) -> c_int {
    let _whole = NoCancellation::new();
    let asked = || {
        if flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the program's context is ours.
        let entry = unsafe { entry(context, port, c_int::try_from(index).map_err(|_| Errno::INVALID)?) }?;
        if entry.gid.0 == [0; 16] {
            return Err(Errno(libc::ENODATA));
        }
        // SAFETY: there is room for `bytes`.
        unsafe { give(&entry, to, bytes) };
        Ok(())
    };
    errno::number(asked())
}

/// `_ibv_query_gid_table`: how many entries, or a negative number of errno.
pub(crate) unsafe extern "C" fn gid_table(
    context: *mut Face,
    to: *mut GidEntry,
    room: usize,
    flags: u32,
    bytes: usize,
) -> isize {
    let _whole = NoCancellation::new();
    // SAFETY: the program's context is ours.
    let device = &unsafe { context::of(context) }.device;
    let gids = match device.gids() {
        Ok(gids) if flags == 0 => gids,
        Ok(_) => return -(libc::EOPNOTSUPP as isize),
        Err(error) => return -(Errno::from(error).0 as isize),
    };
    if gids.len() > room {
        return -(libc::EINVAL as isize);
    }
    for (place, it) in gids.iter().enumerate() {
        let entry = GidEntry {
            gid: Gid8(it.gid.0),
            gid_index: it.index,
            port_num: PORT.into(),
            gid_type: it.roce as u32,
            ndev_ifindex: it.ifindex,
        };
        // SAFETY: `place < room`, and there is room for so many entries of `bytes`.
        unsafe { give(&entry, to.byte_add(place * bytes), bytes) };
    }
    gids.len() as isize
}

/// `ibv_query_gid_type`: in the numbers of sysfs, which this one uses, 0 is RoCEv1 and 1 RoCEv2.
pub(crate) unsafe extern "C" fn gid_type(context: *mut Face, port: u8, index: u32, to: *mut u32) -> c_int {
    let index = c_int::try_from(index).unwrap_or(-1);
    // SAFETY: the program's context is ours, and it gave room for the number.
    errno::minus_one(unsafe { entry(context, port.into(), index) }.map(|entry| unsafe { to.write(entry.gid_type - 1) }))
}

/// `ibv_query_pkey`, in wire order.
pub(crate) unsafe extern "C" fn pkey(context: *mut Face, port: u8, index: c_int, to: *mut u16) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's context is ours.
    let keys = unsafe { pkeys(context, port) };
    let entry = keys.and_then(|keys| {
        let entry = usize::try_from(index).ok().and_then(|index| keys.get(index).copied());
        entry.ok_or(Errno::INVALID)
    });
    // SAFETY: the program gave room for a key.
    errno::minus_one(entry.map(|key| unsafe { to.write(key.to_be()) }))
}

/// `ibv_get_pkey_index` of a key in wire order: the index, or -1.
pub(crate) unsafe extern "C" fn pkey_index(context: *mut Face, port: u8, key: u16) -> c_int {
    // SAFETY: the program's context is ours.
    let keys = unsafe { pkeys(context, port) };
    let found = keys.and_then(|keys| keys.iter().position(|known| known.to_be() == key).ok_or(Errno::INVALID));
    found.map_or_else(|error| errno::minus_one(Err(error)), |index| index as c_int)
}

unsafe fn pkeys(context: *mut Face, port: u8) -> Result<Vec<u16>> {
    if port != PORT {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { context::of(context) }.device.port()?.pkeys)
}
