//! How a body is declared, and those that many calls share.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An empty body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Nothing {}

/// Structs as bytes, all zero by default.
macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(
                Clone,
                Copy,
                Debug,
                PartialEq,
                Eq,
                zerocopy::FromBytes,
                zerocopy::IntoBytes,
                zerocopy::Immutable,
                zerocopy::KnownLayout,
            )]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*
    };
}

pub(super) use bodies;

bodies! {
    /// A number that names an object of the session.
    Handle {
        /// As the call that made it replied.
        handle: u32,
    }
    /// A message that answers nothing.
    Event {
        /// An [`event`](roced_types::event).
        kind: u32,
        /// The object it is about.
        handle: u32,
    }
}
