//! Sizes and offsets against the distribution's header, by its C compiler.

use std::{fmt::Write as _, fs, process::Command};

use super::{Layout, attributes::*, completion::*, context::*, kernel::*, object::*, rdma_cm::*, work::*};

const ALL: &[Layout] = &[
    DeviceAttr::LAYOUT,
    OdpCaps::LAYOUT,
    TsoCaps::LAYOUT,
    RssCaps::LAYOUT,
    PacketPacingCaps::LAYOUT,
    TmCaps::LAYOUT,
    CqModerationCaps::LAYOUT,
    PciAtomicCaps::LAYOUT,
    DeviceAttrEx::LAYOUT,
    QueryDeviceExInput::LAYOUT,
    PortAttr::LAYOUT,
    GidEntry::LAYOUT,
    QpCap::LAYOUT,
    QpInitAttr::LAYOUT,
    RxHashConf::LAYOUT,
    QpInitAttrEx::LAYOUT,
    GlobalRoute::LAYOUT,
    AhAttr::LAYOUT,
    QpAttr::LAYOUT,
    QpRateLimitAttr::LAYOUT,
    SrqAttr::LAYOUT,
    SrqInitAttr::LAYOUT,
    TmCap::LAYOUT,
    SrqInitAttrEx::LAYOUT,
    CqInitAttrEx::LAYOUT,
    ParentDomainInitAttr::LAYOUT,
    TdInitAttr::LAYOUT,
    ValuesEx::LAYOUT,
    MwBindInfo::LAYOUT,
    MwBind::LAYOUT,
    Ece::LAYOUT,
    Pd::LAYOUT,
    Td::LAYOUT,
    Mr::LAYOUT,
    Mw::LAYOUT,
    Ah::LAYOUT,
    CompChannel::LAYOUT,
    Cq::LAYOUT,
    Srq::LAYOUT,
    Qp::LAYOUT,
    Sge::LAYOUT,
    RecvWr::LAYOUT,
    SendWr::LAYOUT,
    DataBuf::LAYOUT,
    QpEx::LAYOUT,
    Wc::LAYOUT,
    Grh::LAYOUT,
    AsyncEvent::LAYOUT,
    PollCqAttr::LAYOUT,
    CqEx::LAYOUT,
    Device::LAYOUT,
    ContextOps::LAYOUT,
    Context::LAYOUT,
    VerbsContext::LAYOUT,
    KernelRoute::LAYOUT,
    KernelAhAttr::LAYOUT,
    KernelQpAttr::LAYOUT,
    KernelPathRec::LAYOUT,
    PathRec::LAYOUT,
    UcmHeader::LAYOUT,
    UcmCreateId::LAYOUT,
    UcmNumber::LAYOUT,
    UcmEventsReported::LAYOUT,
    UcmEce::LAYOUT,
    UcmNumber::LAYOUT,
    UcmDestroyId::LAYOUT,
    UcmBindIp::LAYOUT,
    UcmBind::LAYOUT,
    UcmResolveIp::LAYOUT,
    UcmResolveAddress::LAYOUT,
    UcmResolveRoute::LAYOUT,
    UcmQuery::LAYOUT,
    UcmQueryRouteAnswer::LAYOUT,
    UcmQueryAddressAnswer::LAYOUT,
    UcmQueryPathAnswer::LAYOUT,
    UcmConnParam::LAYOUT,
    UcmUdParam::LAYOUT,
    UcmConnect::LAYOUT,
    UcmListen::LAYOUT,
    UcmAccept::LAYOUT,
    UcmReject::LAYOUT,
    UcmDisconnect::LAYOUT,
    UcmInitQpAttr::LAYOUT,
    UcmNotify::LAYOUT,
    UcmJoinIpGroup::LAYOUT,
    UcmJoinGroup::LAYOUT,
    UcmGetEvent::LAYOUT,
    UcmEventAnswer::LAYOUT,
    UcmSetOption::LAYOUT,
    UcmMigrate::LAYOUT,
    UcmEventsReported::LAYOUT,
];

/// Parts that the macro cannot see: members of unions inside structs.
const INSIDE: &[(&str, &str, usize)] = &[
    ("struct ibv_send_wr", "wr.rdma.rkey", 48),
    ("struct ibv_send_wr", "wr.atomic.compare_add", 48),
    ("struct ibv_send_wr", "wr.atomic.swap", 56),
    ("struct ibv_send_wr", "wr.atomic.rkey", 64),
    ("struct ibv_send_wr", "wr.ud.remote_qpn", 48),
    ("struct ibv_send_wr", "wr.ud.remote_qkey", 52),
    ("struct ibv_send_wr", "bind_mw.rkey", 88),
    ("struct ibv_send_wr", "bind_mw.bind_info", 96),
];

#[test]
fn every_struct_lies_as_the_header_has_it() {
    let mut source = String::from("#include <stddef.h>\n#include <time.h>\n#include <infiniband/verbs.h>\n");
    source.push_str("#include <infiniband/sa.h>\n#include <rdma/ib_user_sa.h>\n#include <rdma/ib_user_verbs.h>\n");
    source.push_str("#include <rdma/rdma_user_cm.h>\n");
    for Layout { name, bytes, fields } in ALL {
        writeln!(source, "_Static_assert(sizeof({name}) == {bytes}, \"{name}\");").expect("a string");
        for (field, offset) in *fields {
            assert_offset(&mut source, name, field.trim_start_matches("r#"), *offset);
        }
    }
    for (name, field, offset) in INSIDE {
        assert_offset(&mut source, name, field, *offset);
    }
    assert_eq!(std::mem::offset_of!(SendWr, wr) + std::mem::offset_of!(AtomicTarget, swap), 56);
    assert_eq!(std::mem::offset_of!(SendWr, bind_mw) + std::mem::offset_of!(BindMw, bind_info), 96);
    let file = std::env::temp_dir().join(format!("roced-verbs-layout-{}.c", std::process::id()));
    fs::write(&file, source).expect("the temporary folder can be written");
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&file).output().expect("a C compiler: scripts/setup");
    fs::remove_file(&file).expect("it was there");
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "is libibverbs-dev there (scripts/setup)?\n{errors}");
}

fn assert_offset(source: &mut String, name: &str, field: &str, offset: usize) {
    writeln!(source, "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name} {field}\");").expect("a string");
}
