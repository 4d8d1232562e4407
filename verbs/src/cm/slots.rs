//! Relocation slots of librdmacm, and their redirection.
//!
//! A module calls functions of others through slots in its own data, which the loader fills. Only
//! the slots of librdmacm are changed: no call of any other module takes another way. It holds for
//! a librdmacm that the program was linked with, or opened by `dlopen`, in any order with this
//! library. A slot's former value is kept and called for all other files, so that other libraries
//! that redirect these functions stay in the chain.
//!
//! The slots of a module are changed only if all that are needed are there. A module that was
//! closed and opened again has fresh slots: each list of devices looks again.
#![expect(unsafe_code, reason = "reads the tables of the loader, and writes the slots of a module")]

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr, slice,
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicPtr, Ordering},
    },
};

use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info};

use super::hooks::{Hook, Need, hooks};
use crate::errno;

/// How the names of librdmacm's file and of its SONAME begin.
const NAME: &[u8] = b"librdmacm.so.1";

/// Types of relocations that name a function of another module.
#[cfg(target_arch = "x86_64")]
const SLOT_TYPES: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const SLOT_TYPES: [u32; 2] = [1025, 1026];

/// Tags of the dynamic section.
mod tag {
    pub(super) const NULL: i64 = 0;
    pub(super) const PLTRELSZ: i64 = 2;
    pub(super) const STRTAB: i64 = 5;
    pub(super) const SYMTAB: i64 = 6;
    pub(super) const RELA: i64 = 7;
    pub(super) const RELASZ: i64 = 8;
    pub(super) const SONAME: i64 = 14;
    pub(super) const JMPREL: i64 = 23;
}

/// An entry of the dynamic section (`Elf64_Dyn`).
#[repr(C)]
struct DynamicEntry {
    tag: i64,
    value: u64,
}

/// A relocation (`Elf64_Rela`).
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    _addend: i64,
}

/// Redirects librdmacm's calls, in each module of that name that is loaded.
pub(crate) fn redirect() {
    // Looked up before the walk, in which `dlsym` could wait for a thread that opens a module and
    // waits for the walk.
    LazyLock::force(&FALLBACKS);
    let mut walk = Walk { incomplete: false };
    // SAFETY: the function below, with the data that it takes.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast()) };
    static TOLD: AtomicBool = AtomicBool::new(false);
    if walk.incomplete && !TOLD.swap(true, Ordering::Relaxed) {
        errno::warn("librdmacm calls its device file in an unknown way: there is no connection manager for it");
    }
}

/// Functions of the C library, for slots that the loader fills only when they are used.
static FALLBACKS: LazyLock<Vec<Fallback>> = LazyLock::new(|| {
    let look = |hook: &Hook| {
        // SAFETY: a text that ends.
        Fallback(AtomicPtr::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, hook.name.as_ptr()) }))
    };
    hooks().iter().map(look).collect()
});

struct Fallback(AtomicPtr<c_void>);

/// State of a walk through the loaded modules.
struct Walk {
    /// A module of the name lacks a slot.
    incomplete: bool,
}

/// Looks at one module. The loader's lock is held: nothing here may ask the loader for anything.
unsafe extern "C" fn visit(info: *mut dl_phdr_info, _size: usize, walk: *mut c_void) -> c_int {
    // SAFETY: the loader passes a module that stays loaded during the call, and the walk is that of
    // `redirect`.
    let (info, walk) = unsafe { (&*info, &mut *walk.cast::<Walk>()) };
    // SAFETY: as above.
    if let Some(module) = unsafe { Module::of(info) }.filter(Module::is_librdmacm) {
        let complete = module.needs() == Need::ALL;
        walk.incomplete |= !complete;
        if complete {
            module.redirect();
        }
    }
    0
}

/// A loaded module with the tables of its dynamic section.
struct Module<'a> {
    base: usize,
    file_name: &'a [u8],
    /// First byte of the module, and the byte behind its last.
    extent: (usize, usize),
    /// Pages that the loader has made read-only.
    relro: (usize, usize),
    symbols: *const Elf64_Sym,
    names: *const c_char,
    so_name: Option<u64>,
    relocations: [&'a [Relocation]; 2],
}

impl<'a> Module<'a> {
    /// # Safety
    /// A module that stays loaded for `'a`, as the loader describes it.
    unsafe fn of(info: &'a dl_phdr_info) -> Option<Self> {
        let base = info.dlpi_addr as usize;
        // SAFETY: the loader's list of program headers.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        // SAFETY: the segment that the header describes is mapped, and ends with a null entry.
        let entries = unsafe { dynamic_entries((base + dynamic.p_vaddr as usize) as *const DynamicEntry) };
        let value = |tag| entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.value);
        // Most loaders replace the offsets in the section by addresses.
        let table = |tag| value(tag).map(|at| at as usize).map(|at| if at < base { base + at } else { at });
        let relocations = |start, bytes| match (table(start), value(bytes)) {
            (Some(start), Some(bytes)) => {
                // SAFETY: the table that the dynamic section describes.
                unsafe { slice::from_raw_parts(start as *const Relocation, bytes as usize / size_of::<Relocation>()) }
            }
            _ => &[],
        };
        Some(Self {
            base,
            file_name: file_name(info.dlpi_name),
            extent: extent(base, headers),
            relro: read_only_pages(base, headers),
            symbols: table(tag::SYMTAB)? as *const Elf64_Sym,
            names: table(tag::STRTAB)? as *const c_char,
            so_name: value(tag::SONAME),
            relocations: [relocations(tag::JMPREL, tag::PLTRELSZ), relocations(tag::RELA, tag::RELASZ)],
        })
    }

    fn is_librdmacm(&self) -> bool {
        let file_name = self.file_name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let so_name = self.so_name.map(|at| self.name(at as usize).to_bytes());
        file_name.starts_with(NAME) || so_name.is_some_and(|name| name.starts_with(NAME))
    }

    /// A text of the module's table.
    fn name(&self, at: usize) -> &'a CStr {
        // SAFETY: the module's own tables give offsets of texts in its table of texts.
        unsafe { CStr::from_ptr(self.names.add(at)) }
    }

    /// The slots that a hook is for, with its number in the list of hooks.
    fn slots(&self) -> impl Iterator<Item = (usize, *mut *mut c_void)> {
        let relocations = self.relocations.into_iter().flatten();
        relocations.filter(|it| SLOT_TYPES.contains(&(it.info as u32))).filter_map(|it| {
            // SAFETY: the relocation's symbol is in the module's table of symbols.
            let symbol = unsafe { &*self.symbols.add((it.info >> 32) as usize) };
            let name = self.name(symbol.st_name as usize);
            let hook = hooks().iter().position(|hook| hook.name == name)?;
            Some((hook, (self.base + it.offset as usize) as *mut *mut c_void))
        })
    }

    /// The calls for which the module has slots.
    fn needs(&self) -> Need {
        self.slots().fold(Need::NONE, |needs, (hook, _)| needs.with(hooks()[hook].need))
    }

    fn redirect(&self) {
        for (hook, slot) in self.slots() {
            // SAFETY: an aligned slot of the module, which other threads only read.
            let slot_atomic = unsafe { AtomicPtr::from_ptr(slot) };
            let before = slot_atomic.load(Ordering::Acquire);
            let hook = (hook, &hooks()[hook]);
            if before == hook.1.function {
                continue;
            }
            let is_lazy = (self.extent.0..self.extent.1).contains(&before.addr());
            // The stub of a slot that was not used yet would make the loader overwrite the slot.
            let next = if is_lazy { FALLBACKS[hook.0].0.load(Ordering::Relaxed) } else { before };
            if next.is_null() || !self.protect(slot, libc::PROT_READ | libc::PROT_WRITE) {
                continue;
            }
            hook.1.next.store(next, Ordering::Release);
            slot_atomic.store(hook.1.function, Ordering::Release);
            // Fails only if the module goes away meanwhile, which the loader's lock forbids.
            self.protect(slot, libc::PROT_READ);
        }
    }

    /// Changes the protection of a slot's page, if it is one that the loader has made read-only.
    fn protect(&self, slot: *mut *mut c_void, protection: c_int) -> bool {
        let page = slot.addr() & !(page_bytes() - 1);
        let is_read_only = (self.relro.0..self.relro.1).contains(&page);
        // SAFETY: a mapped page of the module; the data on it stays.
        !is_read_only
            || unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(page), page_bytes(), protection) } == 0
    }
}

/// The entries of a dynamic section.
///
/// # Safety
/// The section ends with a null entry.
unsafe fn dynamic_entries<'a>(start: *const DynamicEntry) -> &'a [DynamicEntry] {
    let mut length = 0;
    // SAFETY: entries up to the null entry are mapped, as the caller vouches.
    while unsafe { (*start.add(length)).tag } != tag::NULL {
        length += 1;
    }
    // SAFETY: as above.
    unsafe { slice::from_raw_parts(start, length) }
}

/// Name of a module's file; empty for the program itself.
fn file_name<'a>(name: *const c_char) -> &'a [u8] {
    // SAFETY: null, or a text of the loader's that lives as long as the module.
    if name.is_null() { b"" } else { unsafe { CStr::from_ptr(name) }.to_bytes() }
}

fn extent(base: usize, headers: &[Elf64_Phdr]) -> (usize, usize) {
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let first = loaded().map(|header| header.p_vaddr).min().unwrap_or(0) as usize;
    let last = loaded().map(|header| header.p_vaddr + header.p_memsz).max().unwrap_or(0) as usize;
    (base + first, base + last)
}

/// Whole pages of the read-only part after relocation; both ends are rounded down, as by the
/// loader.
fn read_only_pages(base: usize, headers: &[Elf64_Phdr]) -> (usize, usize) {
    let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO) else { return (0, 0) };
    let start = base + header.p_vaddr as usize;
    let down = |address: usize| address & !(page_bytes() - 1);
    (down(start), down(start + header.p_memsz as usize))
}

fn page_bytes() -> usize {
    // SAFETY: the call only returns a number, a power of two.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Number of slots that name a hook.
#[cfg(test)]
pub(super) fn redirected() -> usize {
    unsafe extern "C" fn count(info: *mut dl_phdr_info, _size: usize, number: *mut c_void) -> c_int {
        // SAFETY: as in `visit`; the number is that below.
        let (info, number) = unsafe { (&*info, &mut *number.cast::<usize>()) };
        // SAFETY: as in `visit`.
        let module = unsafe { Module::of(info) }.filter(Module::is_librdmacm);
        // SAFETY: slots of a loaded module.
        let is_hooked = |(hook, slot): &(usize, *mut *mut c_void)| unsafe { **slot } == hooks()[*hook].function;
        *number += module.map_or(0, |module| module.slots().filter(is_hooked).count());
        0
    }
    let mut number = 0;
    // SAFETY: the function above, with the number that it takes.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut number).cast()) };
    number
}
