//! Which limit is reached: the second number of [`Refusal::Limit`](super::Refusal::Limit).

/// One of a client or of a device, under `[limits]` in the daemon's config.
pub const CONFIG: u64 = 0;
/// Mappings that the daemon has for all clients of the account: each memory, queue and queue pair
/// is one.
pub const MAPPINGS_OF_ACCOUNT: u64 = 1;
/// Mappings that the daemon has for clients of all accounts.
pub const MAPPINGS: u64 = 2;
/// Time for which memory of one user may have workers wait: the number is that of milliseconds after
/// which memory and queues are mapped for it again.
pub const STALLS: u64 = 3;

/// One of an account: this, and the [`AccountResource`] as a number.
const OF_ACCOUNT: u64 = 0x100;

/// The share of an account in the rest that others leave: this, and the [`AccountResource`] as a
/// number.
const SHARE: u64 = 0x200;

macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $key:literal, $noun:literal;)*) => {
        /// What is counted for each account.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum AccountResource {
            $($(#[$doc])* $name = $number,)*
        }

        impl AccountResource {
            /// All of them, by their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its key under `[limits.account]` in the daemon's config.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// Its noun, in the plural.
            pub const fn noun(self) -> &'static str {
                match self { $(Self::$name => $noun,)* }
            }
        }
    };
}

resources! {
    /// Connected clients.
    Clients = 0, "clients", "clients";
    /// Queue pairs.
    Qps = 1, "qps", "queue pairs";
    /// Completion queues.
    Cqs = 2, "cqs", "completion queues";
    /// Completion channels.
    Channels = 3, "channels", "completion channels";
    /// Memory regions and memory windows.
    Mrs = 4, "mrs", "memory regions";
    /// Address handles.
    Ahs = 5, "ahs", "address handles";
    /// Shared receive queues.
    Srqs = 6, "srqs", "shared receive queues";
    /// Attachments to multicast groups.
    Attachments = 7, "attachments", "attachments to groups";
    /// Memory that the daemon maps and locks, bytes.
    MappedMemory = 8, "memory_mib", "bytes of mapped memory";
    /// Memory of the daemon itself, bytes.
    DaemonMemory = 9, "daemon_memory_mib", "bytes of the daemon's memory";
}

impl AccountResource {
    /// The number in a refusal when the account has as much as its limit allows.
    pub const fn of_account(self) -> u64 {
        OF_ACCOUNT + self as u64
    }

    /// The number in a refusal when the account has its share of the rest that others leave.
    pub const fn share(self) -> u64 {
        SHARE + self as u64
    }

    /// The resource of [`Self::of_account`] or [`Self::share`], and whether it is the share.
    pub fn from_refusal(which: u64) -> Option<(Self, bool)> {
        let all = Self::ALL.iter();
        all.flat_map(|resource| [(*resource, false), (*resource, true)])
            .find(|(resource, is_share)| which == if *is_share { resource.share() } else { resource.of_account() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusals_number_names_its_limit() {
        for (number, resource) in AccountResource::ALL.iter().enumerate() {
            assert_eq!(*resource as usize, number);
            assert_eq!(AccountResource::from_refusal(resource.of_account()), Some((*resource, false)));
            assert_eq!(AccountResource::from_refusal(resource.share()), Some((*resource, true)));
        }
        for other in [CONFIG, MAPPINGS_OF_ACCOUNT, MAPPINGS, STALLS, OF_ACCOUNT - 1, OF_ACCOUNT + 10, SHARE + 10] {
            assert_eq!(AccountResource::from_refusal(other), None);
        }
    }
}
