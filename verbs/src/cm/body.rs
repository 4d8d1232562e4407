//! Commands as structs, and answers into the memory of the program.
#![expect(unsafe_code, reason = "reads structs from bytes, and writes to pointers of the program")]

use std::ptr;

use crate::{
    abi::rdma_cm::{
        UcmAccept, UcmBind, UcmBindIp, UcmConnParam, UcmConnect, UcmCreateId, UcmDestroyId, UcmDisconnect, UcmGetEvent,
        UcmHeader, UcmInitQpAttr, UcmJoinGroup, UcmJoinIpGroup, UcmListen, UcmMigrate, UcmNotify, UcmQuery, UcmReject,
        UcmResolveAddress, UcmResolveIp, UcmResolveRoute, UcmSetOption, UcmUdParam, UcmWriteEvent,
    },
    errno::{Errno, Result},
};

/// A command without its header.
pub(super) struct Body<'a> {
    pub(super) bytes: &'a [u8],
    /// Room for the answer.
    pub(super) out: u16,
}

/// Bytes of the longest command, with its header.
const COMMAND_BYTES: usize = 512;

/// A struct of which every bit pattern is valid.
///
/// # Safety
/// As said.
pub(super) unsafe trait CommandStruct {}

macro_rules! plain {
    ($($name:ident)*) => {
        $(
            // SAFETY: integers and arrays of integers.
            unsafe impl CommandStruct for $name {}
            const _: () = assert!(size_of::<$name>() <= COMMAND_BYTES);
        )*
    };
}

plain! {
    UcmHeader UcmCreateId UcmDestroyId UcmBindIp UcmBind UcmResolveIp UcmResolveAddress UcmResolveRoute UcmQuery UcmConnect UcmListen
    UcmAccept UcmReject UcmDisconnect UcmInitQpAttr UcmNotify UcmJoinIpGroup UcmJoinGroup UcmGetEvent UcmSetOption UcmMigrate
    UcmWriteEvent
}

/// A struct without padding.
///
/// # Safety
/// As said.
pub(super) unsafe trait AnswerStruct {}

// SAFETY: the fields of each follow one another, up to its size, as the test of layouts checks.
unsafe impl AnswerStruct for UcmConnParam {}
// SAFETY: as above.
unsafe impl AnswerStruct for UcmUdParam {}

/// Reads a struct of which the first `least` bytes must be there; the others may, and are zeros
/// otherwise.
pub(super) fn read<T: CommandStruct>(bytes: &[u8], least: usize) -> Result<T> {
    if bytes.len() < least {
        return Err(Errno::INVALID);
    }
    let mut copy = [0u8; COMMAND_BYTES];
    let length = bytes.len().min(size_of::<T>());
    copy[..length].copy_from_slice(&bytes[..length]);
    // SAFETY: the copy is longer than the struct, as is checked at compile time for each of them.
    Ok(unsafe { ptr::read_unaligned(copy.as_ptr().cast()) })
}

/// The bytes of a struct without padding, and zeros.
pub(super) fn bytes_of<T: AnswerStruct, const N: usize>(value: &T) -> [u8; N] {
    const { assert!(size_of::<T>() <= N, "the struct fits") };
    let mut bytes = [0; N];
    // SAFETY: the array has room for the struct, all bytes of which are set.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), bytes.as_mut_ptr(), size_of::<T>()) };
    bytes
}

/// Room for an answer in the memory of the program.
#[derive(Clone, Copy)]
pub(super) struct AnswerRoom {
    to: *mut u8,
    bytes: usize,
}

impl AnswerRoom {
    /// The room at an address that the command names; `least` bytes are needed.
    pub(super) fn new(response: u64, bytes: u16, least: usize) -> Result<Self> {
        let bytes = usize::from(bytes);
        if bytes < least {
            return Err(Errno(libc::ENOSPC));
        }
        if response == 0 {
            return Err(Errno(libc::EFAULT));
        }
        Ok(Self { to: ptr::with_exposed_provenance_mut(response as usize), bytes })
    }

    /// Bytes of the room.
    pub(super) fn bytes(self) -> usize {
        self.bytes
    }

    /// Writes as much of the answer as fits.
    pub(super) fn write<T>(self, answer: &T) {
        self.write_bytes(ptr::from_ref(answer).cast(), size_of::<T>());
    }

    /// Writes as many bytes as fit.
    pub(super) fn write_all(self, bytes: &[u8]) {
        self.write_bytes(bytes.as_ptr(), bytes.len());
    }

    fn write_bytes(self, from: *const u8, length: usize) {
        // SAFETY: the program gave room for `bytes`; the answer has `length`.
        unsafe { ptr::copy_nonoverlapping(from, self.to, length.min(self.bytes)) };
    }
}

/// Reads an option's value of `N` bytes in the memory of the program.
pub(super) fn option_value<const N: usize>(address: u64) -> Result<[u8; N]> {
    let from: *const [u8; N] = ptr::with_exposed_provenance(address as usize);
    if from.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the program gave the address of a value of this length, which may be unaligned.
    Ok(unsafe { ptr::read_unaligned(from) })
}
