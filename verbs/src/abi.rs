//! The structs that programs and the library both touch, laid out as `infiniband/verbs.h` lays them
//! out on a 64-bit machine. Field names are the header's; a test compares every size and offset
//! with the header of the distribution.

pub(crate) mod attributes;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod kernel;
pub(crate) mod object;
pub(crate) mod rdma_cm;
pub(crate) mod work;

/// A struct of the header. In tests it knows its name there and where each field lies.
macro_rules! c_struct {
    ($($(#[$doc:meta])* $name:ident = $c:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }

            #[cfg(test)]
            impl $name {
                pub(crate) const LAYOUT: $crate::abi::Layout = $crate::abi::Layout {
                    name: $c,
                    bytes: size_of::<Self>(),
                    fields: &[$((stringify!($field), core::mem::offset_of!(Self, $field)),)*],
                };
            }
        )*
    };
}
pub(crate) use c_struct;

/// Queries to a C compiler about a struct.
#[cfg(test)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    pub(crate) fields: &'static [(&'static str, usize)],
}

#[cfg(test)]
mod layout;
