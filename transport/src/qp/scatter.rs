//! Copying between packet payload and the scatter/gather list of a work request. Key, range and
//! right of each piece are checked at every access, including retransmissions.

use roced_types::{Pdn, Sge};

use crate::{
    io::{App, FrameMut, Payload, PlaceFault},
    mr::{MrKey, MrTable, Right},
};

/// Access to a piece of the list is denied, or its memory is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalFault;

/// Position in a scatter/gather list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SgeCursor<'a> {
    sges: &'a [Sge],
    /// Bytes of the first of `sges` before the position.
    offset: u32,
}

impl<'a> SgeCursor<'a> {
    /// Position `skip` bytes into the list; its end if the list is shorter.
    pub(crate) fn new(mut sges: &'a [Sge], skip: u64) -> Self {
        let mut skip = skip;
        while let Some((first, rest)) = sges.split_first() {
            if skip < u64::from(first.length) {
                break;
            }
            skip -= u64::from(first.length);
            sges = rest;
        }
        // Smaller than the first entry's length, or the list is at its end.
        Self { sges, offset: skip as u32 }
    }

    /// Bytes from the position to the end.
    pub(crate) fn remaining(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>().saturating_sub(self.offset.into())
    }

    /// Copies client memory at the position to `into`, and advances.
    pub(crate) fn read(
        &mut self,
        mrs: &MrTable,
        pd: Pdn,
        app: &mut impl App,
        mut into: &mut [u8],
    ) -> Result<(), LocalFault> {
        while !into.is_empty() {
            let (va, key, length) = self.step(into.len())?;
            let span = mrs.check(pd, key, Right::LocalRead, va, length).map_err(|_| LocalFault)?;
            let (now, later) = into.split_at_mut(length);
            app.read(span, now).map_err(|_| LocalFault)?;
            into = later;
        }
        Ok(())
    }

    /// Adds the next `bytes` of client memory to a frame as borrowed payload, and advances.
    pub(crate) fn borrow(
        &mut self,
        mrs: &MrTable,
        pd: Pdn,
        frame: &mut FrameMut<'_>,
        mut bytes: usize,
    ) -> Result<(), LocalFault> {
        while bytes > 0 {
            let (va, key, length) = self.step(bytes)?;
            frame.borrow(mrs.check(pd, key, Right::LocalRead, va, length).map_err(|_| LocalFault)?);
            bytes -= length;
        }
        Ok(())
    }

    /// Places a piece of a packet's payload in client memory at the position, and advances.
    pub(crate) fn place(
        &mut self,
        mrs: &MrTable,
        pd: Pdn,
        app: &mut impl App,
        mut piece: Payload<'_>,
    ) -> Result<(), PlaceFault> {
        while !piece.is_empty() {
            let (va, key, length) = self.step(piece.len()).map_err(|LocalFault| PlaceFault::Target)?;
            let span = mrs.check(pd, key, Right::LocalWrite, va, length).map_err(|_| PlaceFault::Target)?;
            let (now, later) = piece.split_at(length);
            app.place(span, now)?;
            piece = later;
        }
        Ok(())
    }

    /// Returns the next contiguous piece: at least one byte, at most `wanted` bytes.
    fn step(&mut self, wanted: usize) -> Result<(u64, MrKey, usize), LocalFault> {
        let (first, rest) = self.sges.split_first().ok_or(LocalFault)?;
        let left = first.length - self.offset;
        if left == 0 {
            // The entry is empty, or used up.
            (self.sges, self.offset) = (rest, 0);
            return self.step(wanted);
        }
        let length = wanted.min(left as usize);
        let va = first.va.checked_add(self.offset.into()).ok_or(LocalFault)?;
        let key = MrKey(first.lkey);
        self.offset += length as u32;
        Ok((va, key, length))
    }
}
