//! Accounts: all programs of a user together, and their limits.
//!
//! An account is a user. Subordinate uids, which rootless containers and user namespaces have by
//! the thousand, count for their owner ([`subordinate`]): otherwise each would be a user with
//! limits of its own. Objects, memory and places for clients are counted in the [`ledger`], which
//! also leaves a part of everything to accounts that come later; calls have a rate. Rules of the
//! operator decide about devices and limits ([`access`]).

pub mod access;
pub(crate) mod call_rate;
pub mod ledger;
pub mod subordinate;
