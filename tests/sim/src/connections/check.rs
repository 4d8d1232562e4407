//! Checkers: they compare calls, frames and events, and look into no connection manager.

pub(crate) mod conversation;
pub(crate) mod events;
pub(crate) mod leftovers;
