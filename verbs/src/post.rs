//! Work requests by list: `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`.
#![expect(unsafe_code, reason = "reads work requests of programs")]

use std::{ffi::c_int, ptr, slice};

use roced_client::{RecvRequest, RemoteMemory, SendRequest, ServiceType, Sge as ClientSge};

use crate::{
    abi::{
        object::{Qp as QpFace, Srq as SrqFace},
        work::{RecvWr, SendWr, Sge},
    },
    ah::Ah,
    errno::{Errno, Result},
    mw,
    qp::Qp,
    srq::Srq,
};

/// Numbers of `enum ibv_wr_opcode`.
pub(crate) mod opcode {
    pub(crate) const WRITE: u32 = 0;
    pub(crate) const WRITE_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_IMM: u32 = 3;
    pub(crate) const READ: u32 = 4;
    pub(crate) const COMPARE_SWAP: u32 = 5;
    pub(crate) const FETCH_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_INV: u32 = 9;
    pub(crate) const ATOMIC_WRITE: u32 = 15;
}

/// Bits of `enum ibv_send_flags`.
pub(crate) mod flag {
    pub(crate) const FENCE: u32 = 1 << 0;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
}

/// The most bytes of inline data that any queue pair has (`INLINE_BYTES_MAX` of the client ABI).
const INLINE_MAX: usize = 512;

/// Receives posted at a time.
const RECEIVES: usize = 16;

// A program's scatter/gather entries are the client's.
const _: () = assert!(size_of::<Sge>() == size_of::<ClientSge>() && align_of::<Sge>() >= align_of::<ClientSge>());
const _: () = assert!(std::mem::offset_of!(Sge, length) == std::mem::offset_of!(ClientSge, length));
const _: () = assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(ClientSge, lkey));

/// `ibv_post_send`.
pub(crate) unsafe extern "C" fn send(qp: *mut QpFace, mut wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    // SAFETY: the program's queue pair is ours.
    let own = &unsafe { Qp::of(qp) }.own;
    let datagrams = own.qp.service() == ServiceType::Ud;
    let mut batch = own.qp.send_batch();
    let mut inline = [0; INLINE_MAX];
    let mut result = 0;
    while !wr.is_null() {
        // SAFETY: the program gave a list of work requests, with all that they point to.
        let pushed = unsafe { request(&*wr, datagrams, &mut inline) }
            .and_then(|request| batch.push(&request).map_err(Errno::from));
        if let Err(Errno(number)) = pushed {
            // SAFETY: the program gave room for the first that was not posted.
            unsafe { bad.write(wr) };
            result = number;
            break;
        }
        // SAFETY: as above.
        wr = unsafe { (*wr).next };
    }
    batch.commit();
    result
}

/// The pieces of a list of scatter/gather entries.
unsafe fn sges<'a>(list: *const Sge, count: c_int) -> Result<&'a [ClientSge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller vouches for so many entries; theirs and ours lie alike (asserted
        // above).
        Ok(count) => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
        Err(_) => Err(Errno::INVALID),
    }
}

/// Inline data as one piece: where it lies, when it is one, else copied together into `room`.
unsafe fn inline_data<'a>(sges: &[ClientSge], room: &'a mut [u8; INLINE_MAX]) -> Result<&'a [u8]> {
    let bytes = |sge: &ClientSge| {
        // SAFETY: the caller vouches for the contents of the entries.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(sge.va as usize), sge.length as usize) }
    };
    if let [sge] = sges
        && sge.length > 0
    {
        return Ok(bytes(sge));
    }
    let mut used = 0;
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let end = used + sge.length as usize;
        room.get_mut(used..end).ok_or(Errno::INVALID)?.copy_from_slice(bytes(sge));
        used = end;
    }
    Ok(&room[..used])
}

/// A work request as the client knows it.
unsafe fn request<'a>(wr: &'a SendWr, datagrams: bool, inline: &'a mut [u8; INLINE_MAX]) -> Result<SendRequest<'a>> {
    // SAFETY: the caller vouches for the entries.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge) }?;
    // SAFETY: the opcode says which member of the union is meant; the others are numbers as well.
    let (rdma, atomic, ud) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
    let remote = RemoteMemory { va: rdma.remote_addr, length: 0, rkey: rdma.rkey };
    let atomic_at = RemoteMemory { va: atomic.remote_addr, length: 8, rkey: atomic.rkey };
    // SAFETY: the caller vouches for the entries.
    let inline = (wr.send_flags & flag::INLINE != 0).then(|| unsafe { inline_data(sges, inline) }).transpose()?;
    let request = match (wr.opcode, inline) {
        (opcode::SEND | opcode::SEND_IMM | opcode::SEND_INV, Some(bytes)) => SendRequest::send_inline(bytes),
        (opcode::WRITE | opcode::WRITE_IMM, Some(bytes)) => SendRequest::write_inline(bytes, remote),
        (opcode::READ, Some(_)) => return Err(Errno::INVALID),
        (opcode::SEND | opcode::SEND_IMM | opcode::SEND_INV, None) => SendRequest::send(sges),
        (opcode::WRITE | opcode::WRITE_IMM, None) => SendRequest::write(sges, remote),
        (opcode::READ, None) => SendRequest::read(sges, remote),
        (opcode::COMPARE_SWAP, _) => SendRequest::compare_swap(sges, atomic_at, atomic.compare_add, atomic.swap),
        (opcode::FETCH_ADD, _) => SendRequest::fetch_add(sges, atomic_at, atomic.compare_add),
        // SAFETY: the caller vouches for the entries.
        (opcode::ATOMIC_WRITE, _) => SendRequest::atomic_write(unsafe { eight_bytes(sges) }?, remote),
        (opcode::LOCAL_INV, _) => SendRequest::local_invalidate(u32::from_ne_bytes(wr.imm_data)),
        // SAFETY: the caller vouches for window and region.
        (opcode::BIND_MW, _) => unsafe { mw::request(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info) }?,
        _ => return Err(Errno::UNSUPPORTED),
    };
    let request = match wr.opcode {
        opcode::SEND_IMM | opcode::WRITE_IMM => request.imm(wr.imm_data),
        opcode::SEND_INV => request.invalidate(u32::from_ne_bytes(wr.imm_data)),
        _ => request,
    };
    let request = flagged(request, wr.send_flags).id(wr.wr_id);
    Ok(if datagrams && !ud.ah.is_null() {
        // SAFETY: the program's handle is ours.
        request.to(&unsafe { Ah::of(ud.ah) }.own, ud.remote_qpn, ud.remote_qkey)
    } else {
        request
    })
}

/// The operand of an atomic WRITE.
unsafe fn eight_bytes(sges: &[ClientSge]) -> Result<[u8; 8]> {
    match sges {
        // SAFETY: the caller vouches for the eight bytes.
        [sge] if sge.length == 8 => Ok(unsafe { ptr::with_exposed_provenance::<[u8; 8]>(sge.va as usize).read() }),
        _ => Err(Errno::INVALID),
    }
}

/// With the flags of verbs.
pub(crate) fn flagged(mut request: SendRequest<'_>, flags: u32) -> SendRequest<'_> {
    if flags & flag::FENCE != 0 {
        request = request.fence();
    }
    if flags & flag::SIGNALED != 0 {
        request = request.signaled();
    }
    if flags & flag::SOLICITED != 0 {
        request = request.solicited();
    }
    request
}

/// `ibv_post_recv`.
pub(crate) unsafe extern "C" fn recv(qp: *mut QpFace, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: the program's queue pair is ours; it gave a list of work requests, with all that they
    // point to.
    unsafe { receives(wr, bad, |requests| Qp::of(qp).own.qp.post_recvs(requests)) }
}

/// `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn srq_recv(srq: *mut SrqFace, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: as above.
    unsafe { receives(wr, bad, |requests| Srq::of(srq).own.srq.post_recvs(requests)) }
}

/// Posts a list, a few at a time.
unsafe fn receives(
    mut wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
    post: impl Fn(&[RecvRequest<'_>]) -> roced_client::Result<usize>,
) -> c_int {
    while !wr.is_null() {
        let mut requests = [RecvRequest::new(&[]); RECEIVES];
        let (mut count, mut last, mut wrong) = (0, wr, None);
        while !last.is_null() && count < RECEIVES && wrong.is_none() {
            // SAFETY: the caller vouches for the list.
            let it = unsafe { &*last };
            // SAFETY: as above.
            match unsafe { sges(it.sg_list, it.num_sge) } {
                Ok(sges) => {
                    requests[count] = RecvRequest::new(sges).id(it.wr_id);
                    count += 1;
                    last = it.next;
                }
                Err(error) => wrong = Some(error),
            }
        }
        let (posted, error) = match post(&requests[..count]) {
            Ok(posted) if posted == count => (posted, wrong),
            // The one that could not be posted, posted alone, says why; unless there is room now.
            Ok(posted) => match post(&requests[posted..=posted]) {
                Ok(more) => (posted + more, None),
                Err(error) => (posted, Some(error.into())),
            },
            Err(error) => (0, Some(error.into())),
        };
        for _ in 0..posted {
            // SAFETY: so many were seen in the list.
            wr = unsafe { (*wr).next };
        }
        if let Some(Errno(number)) = error {
            // SAFETY: the program gave room for the first that was not posted.
            unsafe { bad.write(wr) };
            return number;
        }
    }
    0
}
