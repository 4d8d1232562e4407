//! Objects that programs hold by pointer.
//!
//! ```text
//!   program's pointer ─► +---------------------+
//!                        | struct of verbs.h   |   the program reads it, and writes some of it, at any time
//!                        +---------------------+
//!                        | ours                |   the program knows nothing of it
//!                        +---------------------+
//! ```
#![expect(unsafe_code, reason = "turns the program's pointers into objects and back")]

use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::errno::{Errno, Result};

/// A struct of the header, and behind it the library's part.
#[repr(C)]
pub(crate) struct Object<F, O> {
    face: UnsafeCell<F>,
    pub(crate) own: O,
}

impl<F, O> Object<F, O> {
    /// A new object. It lives until [`Self::free`].
    pub(crate) fn leak(face: F, own: O) -> *mut Self {
        Box::into_raw(Box::new(Self { face: UnsafeCell::new(face), own }))
    }

    /// The object that a program's pointer names. `P` is the struct of the header, or one that it
    /// begins with.
    ///
    /// # Safety
    /// The pointer came from [`Self::face`] and the object was not freed.
    pub(crate) unsafe fn of<'a, P>(face: *mut P) -> &'a Self {
        // SAFETY: the caller vouches that it is one of ours, which begin with their face; it is
        // shared from its creation on, because the part that the program may write is in a cell,
        // and the library writes to cells, locks and atomics.
        unsafe { &*face.cast::<Self>() }
    }

    /// The part that the program sees.
    pub(crate) fn face(&self) -> *mut F {
        self.face.get()
    }

    /// Destroys it, and returns the library's part.
    ///
    /// # Safety
    /// As [`Self::of`]; it is unused from now on.
    pub(crate) unsafe fn free<P>(face: *mut P) -> O {
        // SAFETY: it came from `leak`, and the caller vouches that this is its end.
        unsafe { Box::from_raw(face.cast::<Self>()) }.own
    }
}

/// How many others need an object.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    /// One more.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// That there are none.
    pub(crate) fn none(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }
}

/// A pointer in a table of ours.
#[derive(Debug)]
pub(crate) struct Pointer<T>(pub(crate) *const T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: objects of verbs may be used by any thread; a thread that takes one from a table holds
// the table's lock, or knows that it lives.
unsafe impl<T> Send for Pointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Pointer<T> {}
