//! Arguments and results of calls: attributes of devices, ports, queue pairs and others.

use std::ffi::{c_int, c_void};

use super::{
    c_struct,
    object::{CompChannel, Cq, Mr, Pd, Srq, Td},
};

/// A GID, in wire order.
pub(crate) type IbvGid = [u8; 16];

c_struct! {
    DeviceAttr = "struct ibv_device_attr" {
        fw_ver: [u8; 64],
        node_guid: [u8; 8],
        sys_image_guid: [u8; 8],
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: u32,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: u32,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    OdpCaps = "struct ibv_odp_caps" {
        general_caps: u64,
        per_transport_caps: [u32; 3],
    }
    TsoCaps = "struct ibv_tso_caps" {
        max_tso: u32,
        supported_qpts: u32,
    }
    RssCaps = "struct ibv_rss_caps" {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }
    PacketPacingCaps = "struct ibv_packet_pacing_caps" {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }
    TmCaps = "struct ibv_tm_caps" {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }
    CqModerationCaps = "struct ibv_cq_moderation_caps" {
        max_cq_count: u16,
        max_cq_period: u16,
    }
    PciAtomicCaps = "struct ibv_pci_atomic_caps" {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }
    DeviceAttrEx = "struct ibv_device_attr_ex" {
        orig_attr: DeviceAttr,
        comp_mask: u32,
        odp_caps: OdpCaps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: TsoCaps,
        rss_caps: RssCaps,
        max_wq_type_rq: u32,
        packet_pacing_caps: PacketPacingCaps,
        raw_packet_caps: u32,
        tm_caps: TmCaps,
        cq_mod_caps: CqModerationCaps,
        max_dm_size: u64,
        pci_atomic_caps: PciAtomicCaps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }
    QueryDeviceExInput = "struct ibv_query_device_ex_input" {
        comp_mask: u32,
    }
    PortAttr = "struct ibv_port_attr" {
        state: u32,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }
    GidEntry = "struct ibv_gid_entry" {
        gid: Gid8,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
    QpCap = "struct ibv_qp_cap" {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    QpInitAttr = "struct ibv_qp_init_attr" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: u32,
        sq_sig_all: c_int,
    }
    RxHashConf = "struct ibv_rx_hash_conf" {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
    QpInitAttrEx = "struct ibv_qp_init_attr_ex" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: u32,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut Pd,
        xrcd: *mut c_void,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: RxHashConf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
    GlobalRoute = "struct ibv_global_route" {
        dgid: Gid8,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    AhAttr = "struct ibv_ah_attr" {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    QpAttr = "struct ibv_qp_attr" {
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
    QpRateLimitAttr = "struct ibv_qp_rate_limit_attr" {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
    SrqAttr = "struct ibv_srq_attr" {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
    SrqInitAttr = "struct ibv_srq_init_attr" {
        srq_context: *mut c_void,
        attr: SrqAttr,
    }
    TmCap = "struct ibv_tm_cap" {
        max_num_tags: u32,
        max_ops: u32,
    }
    SrqInitAttrEx = "struct ibv_srq_init_attr_ex" {
        srq_context: *mut c_void,
        attr: SrqAttr,
        comp_mask: u32,
        srq_type: u32,
        pd: *mut Pd,
        xrcd: *mut c_void,
        cq: *mut Cq,
        tm_cap: TmCap,
    }
    CqInitAttrEx = "struct ibv_cq_init_attr_ex" {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut Pd,
    }
    ParentDomainInitAttr = "struct ibv_parent_domain_init_attr" {
        pd: *mut Pd,
        td: *mut Td,
        comp_mask: u32,
        alloc: *mut c_void,
        free: *mut c_void,
        pd_context: *mut c_void,
    }
    TdInitAttr = "struct ibv_td_init_attr" {
        comp_mask: u32,
    }
    ValuesEx = "struct ibv_values_ex" {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }
    MwBindInfo = "struct ibv_mw_bind_info" {
        mr: *mut Mr,
        addr: u64,
        length: u64,
        mw_access_flags: u32,
    }
    MwBind = "struct ibv_mw_bind" {
        wr_id: u64,
        send_flags: u32,
        bind_info: MwBindInfo,
    }
    Ece = "struct ibv_ece" {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }
    Grh = "struct ibv_grh" {
        version_tclass_flow: [u8; 4],
        paylen: [u8; 2],
        next_hdr: u8,
        hop_limit: u8,
        sgid: Gid8,
        dgid: Gid8,
    }
}

/// A GID inside a struct: the header's union has the alignment of its 64-bit halves.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(crate) struct Gid8(pub(crate) IbvGid);

/// Bytes of a port's attributes as programs of before `IBVERBS_1.1`'s last change know them: all
/// but the last two fields.
pub(crate) const PORT_ATTR_OLD_BYTES: usize = 48;
