//! The structs that librdmacm writes to `/dev/infiniband/rdma_cm`, and the answers to them:
//! `rdma/rdma_user_cm.h`. Socket addresses are bytes here.

use super::{
    c_struct,
    kernel::{KernelAhAttr, KernelPathRec},
};

/// Room for private data.
pub(crate) const DATA_BYTES: usize = 256;

/// Parameters of an event: a union of those of connections and of datagrams.
pub(crate) const EVENT_PARAM_BYTES: usize = size_of::<UcmUdParam>();

/// A `sockaddr_in6`, which has room for a `sockaddr_in` as well.
pub(crate) type Address6 = [u8; 28];

/// A `sockaddr_storage`.
pub(crate) type AddressStorage = [u8; 128];

c_struct! {
    UcmHeader = "struct rdma_ucm_cmd_hdr" {
        cmd: u32,
        r#in: u16,
        out: u16,
    }
    UcmCreateId = "struct rdma_ucm_create_id" {
        uid: u64,
        response: u64,
        ps: u16,
        qp_type: u8,
        reserved: [u8; 5],
    }
    UcmNumber = "struct rdma_ucm_create_id_resp" {
        id: u32,
    }
    /// Also of the command that leaves a multicast group.
    UcmDestroyId = "struct rdma_ucm_destroy_id" {
        response: u64,
        id: u32,
        reserved: u32,
    }
    UcmEventsReported = "struct rdma_ucm_destroy_id_resp" {
        events_reported: u32,
    }
    UcmBindIp = "struct rdma_ucm_bind_ip" {
        response: u64,
        addr: Address6,
        id: u32,
    }
    UcmBind = "struct rdma_ucm_bind" {
        id: u32,
        addr_size: u16,
        reserved: u16,
        addr: AddressStorage,
    }
    UcmResolveIp = "struct rdma_ucm_resolve_ip" {
        src_addr: Address6,
        dst_addr: Address6,
        id: u32,
        timeout_ms: u32,
    }
    UcmResolveAddress = "struct rdma_ucm_resolve_addr" {
        id: u32,
        timeout_ms: u32,
        src_size: u16,
        dst_size: u16,
        reserved: u32,
        src_addr: AddressStorage,
        dst_addr: AddressStorage,
    }
    UcmResolveRoute = "struct rdma_ucm_resolve_route" {
        id: u32,
        timeout_ms: u32,
    }
    UcmQuery = "struct rdma_ucm_query" {
        response: u64,
        id: u32,
        option: u32,
    }
    UcmQueryRouteAnswer = "struct rdma_ucm_query_route_resp" {
        node_guid: u64,
        ib_route: [KernelPathRec; 2],
        src_addr: Address6,
        dst_addr: Address6,
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
        ibdev_index: u32,
        reserved1: u32,
    }
    UcmQueryAddressAnswer = "struct rdma_ucm_query_addr_resp" {
        node_guid: u64,
        port_num: u8,
        reserved: u8,
        pkey: u16,
        src_size: u16,
        dst_size: u16,
        src_addr: AddressStorage,
        dst_addr: AddressStorage,
        ibdev_index: u32,
        reserved1: u32,
    }
    /// The paths follow.
    UcmQueryPathAnswer = "struct rdma_ucm_query_path_resp" {
        num_paths: u32,
        reserved: u32,
    }
    UcmConnParam = "struct rdma_ucm_conn_param" {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; DATA_BYTES],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }
    UcmUdParam = "struct rdma_ucm_ud_param" {
        qp_num: u32,
        qkey: u32,
        ah_attr: KernelAhAttr,
        private_data: [u8; DATA_BYTES],
        private_data_len: u8,
        reserved: [u8; 7],
    }
    UcmEce = "struct rdma_ucm_ece" {
        vendor_id: u32,
        attr_mod: u32,
    }
    UcmConnect = "struct rdma_ucm_connect" {
        conn_param: UcmConnParam,
        id: u32,
        reserved: u32,
        ece: UcmEce,
    }
    UcmListen = "struct rdma_ucm_listen" {
        id: u32,
        backlog: u32,
    }
    UcmAccept = "struct rdma_ucm_accept" {
        uid: u64,
        conn_param: UcmConnParam,
        id: u32,
        reserved: u32,
        ece: UcmEce,
    }
    UcmReject = "struct rdma_ucm_reject" {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; DATA_BYTES],
    }
    UcmDisconnect = "struct rdma_ucm_disconnect" {
        id: u32,
    }
    UcmInitQpAttr = "struct rdma_ucm_init_qp_attr" {
        response: u64,
        id: u32,
        qp_state: u32,
    }
    UcmNotify = "struct rdma_ucm_notify" {
        id: u32,
        event: u32,
    }
    UcmJoinIpGroup = "struct rdma_ucm_join_ip_mcast" {
        response: u64,
        uid: u64,
        addr: Address6,
        id: u32,
    }
    UcmJoinGroup = "struct rdma_ucm_join_mcast" {
        response: u64,
        uid: u64,
        id: u32,
        addr_size: u16,
        join_flags: u16,
        addr: AddressStorage,
    }
    UcmGetEvent = "struct rdma_ucm_get_event" {
        response: u64,
    }
    UcmEventAnswer = "struct rdma_ucm_event_resp" {
        uid: u64,
        id: u32,
        event: u32,
        status: u32,
        param: [u8; EVENT_PARAM_BYTES],
        reserved: u32,
        ece: UcmEce,
    }
    UcmSetOption = "struct rdma_ucm_set_option" {
        optval: u64,
        id: u32,
        level: u32,
        optname: u32,
        optlen: u32,
    }
    UcmMigrate = "struct rdma_ucm_migrate_id" {
        response: u64,
        id: u32,
        fd: u32,
    }
}

/// Of librdmacm 58 and later; the headers of older distributions lack it.
#[repr(C)]
pub(crate) struct UcmWriteEvent {
    pub(crate) id: u32,
    pub(crate) reserved: u32,
    pub(crate) event: u32,
    pub(crate) status: u32,
    pub(crate) argument: u64,
    /// The rest of a union that has room for the parameters of datagrams.
    rest: [u8; size_of::<UcmUdParam>() - 8],
}

const _: () = assert!(size_of::<UcmWriteEvent>() == 320 && EVENT_PARAM_BYTES == 304);
