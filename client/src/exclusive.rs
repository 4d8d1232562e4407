//! Access by one thread at a time: by a lock, or by a promise of the program.
#![expect(unsafe_code, reason = "shares objects that the program promised to use by one thread at a time")]

use std::{
    cell::UnsafeCell,
    fmt,
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A value that one thread at a time may use.
pub(crate) struct Exclusive<T> {
    lock: Mutex<()>,
    /// The program promised that threads do not overlap, so the lock is not taken.
    promised: bool,
    value: UnsafeCell<T>,
}

// SAFETY: threads take turns, by the lock or by the promise of the program, so each `T` is only
// sent from one thread to the next.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    /// Protects `value` with a lock.
    pub(crate) const fn locked(value: T) -> Self {
        Self { lock: Mutex::new(()), promised: false, value: UnsafeCell::new(value) }
    }

    /// Protects `value` by a promise of the caller only.
    ///
    /// # Safety
    /// The guard returned by [`Self::enter`] is dropped before `enter` is called again, by this
    /// thread or another.
    pub(crate) const unsafe fn promised(value: T) -> Self {
        Self { lock: Mutex::new(()), promised: true, value: UnsafeCell::new(value) }
    }

    /// Returns access to the value. Waits for other threads unless the program promised that there
    /// are none.
    pub(crate) fn enter(&self) -> Entered<'_, T> {
        // The lock is still valid after its holder panicked: the value is consistent between
        // statements.
        let lock = (!self.promised).then(|| self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        Entered { exclusive: self, _lock: lock }
    }
}

impl<T> fmt::Debug for Exclusive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exclusive").field("promised", &self.promised).finish_non_exhaustive()
    }
}

/// Guard that gives one thread access to the value.
#[derive(Debug)]
pub(crate) struct Entered<'a, T> {
    exclusive: &'a Exclusive<T>,
    _lock: Option<MutexGuard<'a, ()>>,
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held, or the caller of `promised` guaranteed that no other thread has
        // access.
        unsafe { &*self.exclusive.value.get() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { &mut *self.exclusive.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_take_turns() {
        let count = Exclusive::locked(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *count.enter() += 1));
            }
        });
        assert_eq!(*count.enter(), 40_000);
    }

    #[test]
    fn without_a_lock_one_thread_may_come_back_after_another() {
        // SAFETY: the threads below run one after the other.
        let count = unsafe { Exclusive::promised(0_u64) };
        for _ in 0..3 {
            thread::scope(|scope| drop(scope.spawn(|| *count.enter() += 1)));
        }
        assert_eq!(*count.enter(), 3);
    }
}
