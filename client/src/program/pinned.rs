//! Memory that another driver may have pinned.
//!
//! A pin holds the physical page. After a page exchange the program and the daemon have another
//! page, and the writes of the pinning device are lost. The kernel does not report which pages of a
//! program are pinned, so this module looks for the known causes: CUDA answers for an address; VFIO
//! and iommufd are seen as open files; everything else as the number of pinned pages of the
//! process.
#![expect(unsafe_code, reason = "calls a function of a library that the program has loaded")]

use std::{
    ffi::{CStr, c_int, c_void},
    fs,
    ops::Range,
    path::Path,
    sync::OnceLock,
};

use super::{PAGE_BYTES, areas::Area};

/// Files that pin memory for devices in user space.
const DEVICE_FILES: [&str; 2] = ["/dev/vfio", "/dev/iommu"];

/// Returns the cause for which pages of `parts` may be pinned.
pub(super) fn cause(parts: &[Area]) -> Option<&'static str> {
    if is_open(&DEVICE_FILES) {
        return Some("this program has VFIO or iommufd open, which pin memory");
    }
    if fs::read_to_string("/proc/self/status").is_ok_and(|status| has_pinned_pages(&status)) {
        return Some("this program has pinned pages (VmPin in /proc/self/status)");
    }
    let cuda = Cuda::loaded()?;
    parts.iter().any(|area| cuda.has(&area.range)).then_some("CUDA has registered it")
}

/// True if a descriptor of this process is open on one of `files`, or on a file in one of them.
fn is_open(files: &[&str]) -> bool {
    if !files.iter().any(|file| Path::new(file).exists()) {
        return false;
    }
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return false };
    let mut names = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    names.any(|name| files.iter().any(|file| name.starts_with(file)))
}

fn has_pinned_pages(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).is_some_and(|kib: u64| kib > 0)
}

/// `cuPointerGetAttribute` of CUDA's driver API.
type PointerGetAttribute = unsafe extern "C" fn(data: *mut c_void, attribute: c_int, pointer: u64) -> c_int;

/// CUDA's driver library, if the program has loaded it.
#[derive(Clone, Copy)]
struct Cuda(PointerGetAttribute);

impl Cuda {
    /// The library's name, by which every program loads it.
    const LIBRARY: &CStr = c"libcuda.so.1";
    const SUCCESS: c_int = 0;
    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
    const MEMORY_TYPE: c_int = 2;

    fn loaded() -> Option<Self> {
        static FOUND: OnceLock<Cuda> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Some(*found);
        }
        // SAFETY: names a library and executes none of its code, because it is only looked for
        // among those already loaded.
        let library = unsafe { libc::dlopen(Self::LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the handle was just opened. It is never closed, so the library stays loaded.
        let function = unsafe { libc::dlsym(library, c"cuPointerGetAttribute".as_ptr()) };
        if function.is_null() {
            return None;
        }
        // SAFETY: CUDA's driver API defines the function of this name with this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, PointerGetAttribute>(function) };
        Some(*FOUND.get_or_init(|| Self(function)))
    }

    /// True if CUDA knows a page of `range`: any part may be registered.
    fn has(self, range: &Range<usize>) -> bool {
        range.clone().step_by(PAGE_BYTES).any(|address| {
            let mut kind: u32 = 0;
            // SAFETY: this attribute is a 32-bit number. Addresses that CUDA does not know are an
            // error that it returns.
            let result = unsafe { (self.0)((&raw mut kind).cast(), Self::MEMORY_TYPE, address as u64) };
            result == Self::SUCCESS && kind != 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_pages_are_read_from_the_status() {
        assert!(has_pinned_pages("VmLck:\t       0 kB\nVmPin:\t      16 kB\nVmHWM:\t 1 kB\n"));
        assert!(!has_pinned_pages("VmLck:\t      16 kB\nVmPin:\t       0 kB\n"));
        assert!(!has_pinned_pages("Name:\tkernel without it\n"));
    }

    #[test]
    fn open_files_are_found_by_name_and_by_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("noiommu-0"), folder.path().join("none"));
        let name = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let file = fs::File::create(&path).expect("a file");
        assert!(is_open(&[&name(&path)]) && is_open(&[&name(&other), &name(folder.path())]));
        assert!(!is_open(&[&name(&other)]));
        drop(file);
        assert!(!is_open(&[&name(&path)]));
    }
}
