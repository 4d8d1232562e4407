//! Choice of the way in which private memory of a program is registered.

use std::ffi::OsString;

use crate::{
    environment::trusted_variable,
    error::{Error, Result},
};

/// Environment variable that sets the choice for each device that the program opens.
const VARIABLE: &str = "ROCED_PRIVATE_MEMORY";

/// Way in which private memory of the program (heap, stack, large allocations) is registered.
///
/// The variable `ROCED_PRIVATE_MEMORY` (`auto`, `migrated` or `proxied`) sets it when a device is
/// opened, except in a setuid program or one with file capabilities;
/// [`crate::Device::set_private_memory`] sets it afterward. `docs/memory.md` describes both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PrivateMemory {
    /// Page exchange, except for memory that another driver may have pinned, which is proxied: a
    /// range that CUDA has registered or allocated; all private memory of a program that has VFIO
    /// or iommufd open, or pages that the kernel counts as pinned (`VmPin` in `/proc/self/status`:
    /// registered buffers of io_uring, memory regions of an RDMA adapter).
    #[default]
    Auto,
    /// Page exchange, always: the program vouches that no driver holds the pages. A pin of a page
    /// would keep the old page, and the device's writes there would be lost.
    Migrated,
    /// Never page exchange: pages stay in place, and the kernel copies each packet.
    Proxied,
}

impl PrivateMemory {
    /// Reads the environment variable.
    ///
    /// # Errors
    /// It has another value than the three.
    pub(crate) fn from_environment() -> Result<Self> {
        trusted_variable(VARIABLE).map_or(Ok(Self::Auto), Self::parse)
    }

    fn parse(value: OsString) -> Result<Self> {
        match value.to_str() {
            Some("auto" | "") => Ok(Self::Auto),
            Some("migrated") => Ok(Self::Migrated),
            Some("proxied") => Ok(Self::Proxied),
            _ => Err(Error::PrivateMemoryVariable { value: value.to_string_lossy().into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_value_is_refused_with_the_allowed_ones() {
        for (value, choice) in [
            ("", PrivateMemory::Auto),
            ("auto", PrivateMemory::Auto),
            ("migrated", PrivateMemory::Migrated),
            ("proxied", PrivateMemory::Proxied),
        ] {
            assert_eq!(PrivateMemory::parse(value.into()).expect("allowed"), choice);
        }
        let error = PrivateMemory::parse("exchange".into()).expect_err("unknown").to_string();
        assert!(
            error.contains("ROCED_PRIVATE_MEMORY") && error.contains("exchange") && error.contains("proxied"),
            "{error}"
        );
    }
}
