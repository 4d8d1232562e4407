//! Peers of other makes: one host is an endpoint, the other the plain model with the behavior of a
//! make. Applications at both ends post work, and everything that they see is compared with their
//! requests; the transport is compared step by step with the model ([`crate::lockstep`]).

mod applications;
mod host;
mod world;

pub(crate) use self::world::World;
