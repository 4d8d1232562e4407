//! Client ABI at the border of the transport: ring slots to work requests, completions to CQEs.

use roced_abi::{
    cqe::Cqe,
    layout::{RECV_SLOT_WORDS_MAX, SEND_SLOT_WORDS_MAX},
    wqe::{RecvWqe, SendWqe},
};
use roced_transport::{
    io::WorkCompletion,
    work::{DatagramTo, RecvWork, SendWork, WorkData},
};
use roced_types::{INLINE_BYTES_MAX, QpSizes, Qpn, SGE_MAX, SendOp, Sge, send_flags};
use zerocopy::{FromBytes, IntoBytes};

use super::client_fault::ClientFault;

/// A private copy of one send slot.
pub(super) type SendSlot = [u64; SEND_SLOT_WORDS_MAX];

/// A private copy of one receive slot.
pub(super) type RecvSlot = [u64; RECV_SLOT_WORDS_MAX];

/// The work request in `slot`.
///
/// # Errors
/// [`ClientFault`] when it is one that our own library would never write.
pub(super) fn check_send<'a>(slot: &'a SendSlot, sizes: &QpSizes) -> Result<SendWork<'a>, ClientFault> {
    let bytes = slot.as_bytes();
    let (wqe, rest) = SendWqe::read_from_prefix(bytes).expect("a slot is longer than its header");
    let op = SendOp::from_byte(wqe.opcode).ok_or(ClientFault::UnknownOpcode(wqe.opcode))?;
    if wqe.flags & !send_flags::ALL != 0 {
        return Err(ClientFault::UnknownFlags(wqe.flags));
    }
    let data = if wqe.flags & send_flags::INLINE != 0 {
        // Inline data is sent; the results of these operations have no place in an entry, and local
        // operations have no data.
        let takes_none = !op.carries_data();
        let limit = if takes_none { 0 } else { sizes.inline_bytes.min(INLINE_BYTES_MAX) };
        if wqe.inline_bytes > limit || takes_none {
            return Err(ClientFault::InlineTooLong { asked: wqe.inline_bytes, limit });
        }
        WorkData::Inline(&rest[..wqe.inline_bytes as usize])
    } else {
        WorkData::Sges(check_sges(rest, wqe.num_sge, sizes.send_sges)?)
    };
    if wqe.remote_qpn > Qpn::MULTICAST.get() {
        return Err(ClientFault::RemoteQpn(wqe.remote_qpn));
    }
    Ok(SendWork {
        wr_id: wqe.wr_id,
        op,
        flags: wqe.flags,
        imm: wqe.imm,
        remote_va: wqe.remote_va,
        rkey: wqe.rkey,
        swap_or_add: wqe.swap_or_add,
        compare: wqe.compare,
        to: DatagramTo { ah: wqe.ah, qpn: Qpn::from_wire(wqe.remote_qpn), qkey: wqe.qkey },
        data,
    })
}

/// The work request in `slot`.
///
/// # Errors
/// [`ClientFault`] when it is one that our own library would never write.
pub(super) fn check_recv<'a>(slot: &'a RecvSlot, sizes: &QpSizes) -> Result<RecvWork<'a>, ClientFault> {
    let (wqe, rest) = RecvWqe::read_from_prefix(slot.as_bytes()).expect("a slot is longer than its header");
    Ok(RecvWork { wr_id: wqe.wr_id, sges: check_sges(rest, wqe.num_sge, sizes.recv_sges)? })
}

fn check_sges(bytes: &[u8], asked: u8, limit: u32) -> Result<&[Sge], ClientFault> {
    let limit = limit.min(SGE_MAX);
    if u32::from(asked) > limit {
        return Err(ClientFault::TooManySges { asked: asked.into(), limit });
    }
    let (sges, _) = <[Sge]>::ref_from_prefix_with_elems(bytes, asked.into())
        .expect("a slot has room for SGE_MAX entries, words are aligned");
    Ok(sges)
}

/// Returns the completion queue entry of a completion.
pub(super) fn cqe(completion: &WorkCompletion) -> Cqe {
    Cqe {
        wr_id: completion.wr_id,
        qpn: completion.qpn.get(),
        status: completion.status as u8,
        opcode: completion.op as u8,
        flags: completion.flags,
        byte_len: completion.byte_len,
        imm: completion.imm,
        src_qpn: completion.src_qpn,
        timestamp_ns: completion.time.0,
        ..Cqe::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roced_abi::layout::QpLayout;

    use super::*;

    const SIZES: QpSizes = QpSizes { send_wrs: 1, recv_wrs: 1, send_sges: 2, recv_sges: 2, inline_bytes: 64 };

    fn slot(wqe: SendWqe) -> SendSlot {
        let mut slot = [0; SEND_SLOT_WORDS_MAX];
        slot.as_mut_bytes()[..64].copy_from_slice(wqe.as_bytes());
        slot
    }

    #[test]
    fn impossible_work_requests_are_client_faults() {
        let check = |wqe| check_send(&slot(wqe), &SIZES).map(|_| ()).unwrap_err();
        assert_eq!(check(SendWqe { opcode: 99, ..SendWqe::default() }), ClientFault::UnknownOpcode(99));
        assert_eq!(check(SendWqe { remote_qpn: 1 << 24, ..SendWqe::default() }), ClientFault::RemoteQpn(1 << 24));
        assert_eq!(check(SendWqe { flags: 0x80, ..SendWqe::default() }), ClientFault::UnknownFlags(0x80));
        assert_eq!(
            check(SendWqe { num_sge: 255, ..SendWqe::default() }),
            ClientFault::TooManySges { asked: 255, limit: 2 }
        );
        assert_eq!(
            check(SendWqe { flags: send_flags::INLINE, inline_bytes: u32::MAX, ..SendWqe::default() }),
            ClientFault::InlineTooLong { asked: u32::MAX, limit: 64 }
        );
        for op in [SendOp::Read, SendOp::CompareSwap, SendOp::FetchAdd] {
            assert_eq!(
                check(SendWqe { opcode: op as u8, flags: send_flags::INLINE, ..SendWqe::default() }),
                ClientFault::InlineTooLong { asked: 0, limit: 0 }
            );
        }
    }

    #[test]
    fn the_last_allowed_entry_and_byte_are_taken() {
        let two = slot(SendWqe { num_sge: 2, ..SendWqe::default() });
        assert!(matches!(check_send(&two, &SIZES).expect("two are allowed").data, WorkData::Sges([_, _])));
        let inline = slot(SendWqe { flags: send_flags::INLINE, inline_bytes: 64, ..SendWqe::default() });
        let SendWork { data: WorkData::Inline(bytes), .. } = check_send(&inline, &SIZES).expect("64 are allowed")
        else {
            panic!("inline data");
        };
        assert_eq!(bytes.len(), 64);
    }

    #[test]
    fn a_receive_has_its_own_limit() {
        let check = |num_sge| {
            let mut slot = [0; RECV_SLOT_WORDS_MAX];
            slot.as_mut_bytes()[..16].copy_from_slice(RecvWqe { num_sge, ..RecvWqe::default() }.as_bytes());
            check_recv(&slot, &QpSizes { recv_sges: 1, ..SIZES }).map(|work| work.sges.len())
        };
        assert_eq!((check(0), check(1)), (Ok(0), Ok(1)));
        assert_eq!(check(2), Err(ClientFault::TooManySges { asked: 2, limit: 1 }));
    }

    proptest! {
        /// For any contents of a slot: no panic, and nothing is read from behind the stride of the
        /// client's own ring, where the private copy may still hold bytes of another client.
        #[test]
        fn nothing_behind_the_stride_is_read(
            mut send in any::<[u8; SEND_SLOT_WORDS_MAX * 8]>(),
            recv in any::<[u8; RECV_SLOT_WORDS_MAX * 8]>(),
            opcode in 0u8..12,
            flags in 0u8..17,
            inline_bytes in prop_oneof![0u32..600, any::<u32>()],
            num_sge in prop_oneof![0u8..40, any::<u8>()],
            asked in (0u32..=SGE_MAX, 0u32..=SGE_MAX, 0u32..=INLINE_BYTES_MAX),
        ) {
            let (send_sges, recv_sges, inline) = asked;
            let sizes = QpSizes { send_sges, recv_sges, inline_bytes: inline, ..SIZES }.granted().expect("within limits");
            let layout = QpLayout::new(sizes);
            let wqe = SendWqe { opcode, flags, inline_bytes, num_sge, ..SendWqe::default() };
            send[..64].copy_from_slice(wqe.as_bytes());
            let slot = SendSlot::read_from_bytes(&send).expect("as long as a slot");
            if let Ok(work) = check_send(&slot, &sizes) {
                let data = match work.data {
                    WorkData::Sges(sges) => sges.as_bytes(),
                    WorkData::Inline(bytes) => bytes,
                };
                prop_assert!(64 + data.len() <= layout.send.stride_words() * 8);
                prop_assert_eq!(data, &send[64..64 + data.len()]);
            }
            let slot = RecvSlot::read_from_bytes(&recv).expect("as long as a slot");
            if let Ok(work) = check_recv(&slot, &sizes) {
                prop_assert!(16 + work.sges.len() * 16 <= layout.recv.stride_words() * 8);
            }
        }
    }
}
