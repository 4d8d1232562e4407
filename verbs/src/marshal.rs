//! Conversion of kernel structs of queue pairs and paths to those of programs: librdmacm uses it.
#![expect(unsafe_code, reason = "structs of C")]

use crate::abi::{
    attributes::{AhAttr, Gid8, QpAttr},
    kernel::{KernelAhAttr, KernelPathRec, KernelQpAttr, PathRec},
};

/// Copies fields of the same name.
macro_rules! copy_fields {
    ($from:expr => $to:expr, $($field:ident)*) => { $($to.$field = $from.$field;)* };
}

fn copy_ah_attr(to: &mut AhAttr, from: &KernelAhAttr) {
    to.grh.dgid = Gid8(from.grh.dgid);
    copy_fields!(from.grh => to.grh, flow_label sgid_index hop_limit traffic_class);
    copy_fields!(from => to, dlid sl src_path_bits static_rate is_global port_num);
}

/// `ibv_copy_ah_attr_from_kern`.
pub(crate) unsafe extern "C" fn ah_attr_from_kernel(to: *mut AhAttr, from: *const KernelAhAttr) {
    // SAFETY: the caller gave both, and they are apart.
    let (to, from) = unsafe { (&mut *to, &*from) };
    copy_ah_attr(to, from);
}

/// `ibv_copy_qp_attr_from_kern`.
pub(crate) unsafe extern "C" fn qp_attr_from_kernel(to: *mut QpAttr, from: *const KernelQpAttr) {
    // SAFETY: as above.
    let (to, from) = unsafe { (&mut *to, &*from) };
    // Not the state that is to come: programs say that themselves.
    copy_fields!(from => to, cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags);
    copy_fields!(from => to.cap, max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data);
    copy_ah_attr(&mut to.ah_attr, &from.ah_attr);
    copy_ah_attr(&mut to.alt_ah_attr, &from.alt_ah_attr);
    copy_fields!(from => to, pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic);
    copy_fields!(from => to, min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout);
}

/// `ibv_copy_path_rec_from_kern`.
pub(crate) unsafe extern "C" fn path_rec_from_kernel(to: *mut PathRec, from: *const KernelPathRec) {
    // SAFETY: as above.
    let (to, from) = unsafe { (&mut *to, &*from) };
    (to.dgid, to.sgid, to.mtu) = (Gid8(from.dgid), Gid8(from.sgid), from.mtu as u8);
    copy_fields!(from => to, dlid slid raw_traffic flow_label reversible pkey hop_limit traffic_class numb_path sl);
    copy_fields!(from => to, mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference);
}

/// `ibv_copy_path_rec_to_kern`.
pub(crate) unsafe extern "C" fn path_rec_to_kernel(to: *mut KernelPathRec, from: *const PathRec) {
    // SAFETY: as above.
    let (to, from) = unsafe { (&mut *to, &*from) };
    (to.dgid, to.sgid, to.mtu) = (from.dgid.0, from.sgid.0, from.mtu.into());
    copy_fields!(from => to, dlid slid raw_traffic flow_label reversible pkey hop_limit traffic_class numb_path sl);
    copy_fields!(from => to, mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference);
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_void};

    use super::*;

    type Copy = unsafe extern "C" fn(*mut c_void, *const c_void);

    /// The function of the distribution's own library, beside ours in this process.
    fn theirs(name: &CStr) -> Copy {
        // SAFETY: a library that only gets loaded; its name ends.
        let library = unsafe { libc::dlopen(c"/usr/lib/x86_64-linux-gnu/libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "is libibverbs1 there (scripts/setup)?");
        // SAFETY: an open library, and a name that ends.
        let function = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        // SAFETY: all of them take two pointers.
        unsafe { std::mem::transmute::<*mut c_void, Copy>(function) }
    }

    /// Any input is copied as the distribution's library copies it, and fields that it leaves alone
    /// are left alone.
    fn same<To, From>(name: &CStr, ours: unsafe extern "C" fn(*mut To, *const From)) {
        let theirs = theirs(name);
        for seed in 0..50usize {
            let from: Vec<u8> = (0..size_of::<From>()).map(|at| (at * 37 + seed * 11 + 1) as u8).collect();
            let (mut a, mut b) = ([0u64; 40], [0u64; 40]);
            assert!(size_of::<To>() <= size_of_val(&a) && size_of::<From>() <= size_of_val(&a));
            let mut source = [0u64; 40];
            // SAFETY: the array is longer than the struct, as was looked at.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), source.as_mut_ptr().cast(), from.len()) };
            // SAFETY: aligned memory, long enough for each struct, of which every bit pattern is
            // one.
            unsafe {
                ours(a.as_mut_ptr().cast(), source.as_ptr().cast());
                theirs(b.as_mut_ptr().cast(), source.as_ptr().cast());
            }
            assert_eq!(a, b, "{name:?} {seed}");
            assert_ne!(a, [0; 40]);
        }
    }

    #[test]
    fn kernel_structs_are_converted_as_by_the_distributions_library() {
        same(c"ibv_copy_ah_attr_from_kern", ah_attr_from_kernel);
        same(c"ibv_copy_qp_attr_from_kern", qp_attr_from_kernel);
        same(c"ibv_copy_path_rec_from_kern", path_rec_from_kernel);
        same(c"ibv_copy_path_rec_to_kern", path_rec_to_kernel);
    }
}
