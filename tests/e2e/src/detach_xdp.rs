//! Takes an XDP program off its interface behind the back of the process that attached it.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper for links of others")]

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Result, bail};
use nix::libc;

// `enum bpf_cmd` of linux/bpf.h.
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_int = 31;
const BPF_LINK_DETACH: libc::c_int = 34;

/// The beginning of `union bpf_attr`, as many words as these commands need.
type Attributes = [u32; 4];

fn bpf(command: libc::c_int, attributes: &mut Attributes) -> io::Result<i32> {
    // SAFETY: the attributes are read and written within their size; the buffer that
    // BPF_OBJ_GET_INFO_BY_FD writes to is passed by `info` alone.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of::<Attributes>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn open(id: u32) -> io::Result<OwnedFd> {
    let fd = bpf(BPF_LINK_GET_FD_BY_ID, &mut [id, 0, 0, 0])?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The program of a link: the third word of `struct bpf_link_info`.
fn program_of(link: &OwnedFd) -> io::Result<u32> {
    let mut info = [0_u32; 32];
    let address = info.as_mut_ptr() as u64;
    let mut attributes = [link.as_raw_fd() as u32, size_of_val(&info) as u32, address as u32, (address >> 32) as u32];
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info[2])
}

/// Detaches the link that has attached `program`.
pub(crate) fn detach(program: u32) -> Result<()> {
    let mut attributes = [0; 4];
    while bpf(BPF_LINK_GET_NEXT_ID, &mut attributes).is_ok() {
        // The next id is the second word; it is where the search continues.
        attributes[0] = attributes[1];
        let Ok(link) = open(attributes[0]) else { continue };
        if program_of(&link)? == program {
            bpf(BPF_LINK_DETACH, &mut [link.as_raw_fd() as u32, 0, 0, 0])?;
            return Ok(());
        }
    }
    bail!("no link of program {program}")
}
