//! `libroce_files.so`, preloaded by `roce-run --files` where it cannot mount anything: calls that name a file below `/dev/infiniband`,
//! `/sys/class/infiniband` or `/sys/class/infiniband_verbs` name the file below the folder that `ROCE_RUN_FILES` names instead.
//!
//! It is the C library's functions that are replaced. What does not come by them is not redirected: system calls that a program makes itself,
//! paths relative to an open folder, and the entries of `/dev` and `/sys/class` themselves.
#![expect(unsafe_code, reason = "functions of the C library, by their names")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{DIR, FILE, dirent, dirent64, mode_t, size_t, ssize_t, stat as Stat, stat64 as Stat64, statx as Statx};

/// What is replaced, with all that lies below.
const FOLDERS: [&[u8]; 3] = [b"/dev/infiniband", b"/sys/class/infiniband", b"/sys/class/infiniband_verbs"];

/// Names the folder that has them.
const VARIABLE: &CStr = c"ROCE_RUN_FILES";

/// A path of another file, as the system takes them.
struct Elsewhere([u8; libc::PATH_MAX as usize]);

impl Elsewhere {
    /// The file that stands for `path`; `None` when it stands for itself.
    ///
    /// # Safety
    /// `path` is null or a text that ends.
    unsafe fn of(path: *const c_char) -> Option<Self> {
        if path.is_null() {
            return None;
        }
        // SAFETY: it is a text (this function's contract).
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        if !is_replaced(path) {
            return None;
        }
        // SAFETY: the name is a text, and what is found is used before anything else is called.
        let root = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        if root.is_null() {
            return None;
        }
        // SAFETY: what the environment has is a text.
        Self::below(unsafe { CStr::from_ptr(root) }.to_bytes(), path)
    }

    /// `None` when that is too long, so that the caller hears it of the path that it gave.
    fn below(root: &[u8], path: &[u8]) -> Option<Self> {
        let mut whole = [0; libc::PATH_MAX as usize];
        let bytes = root.len() + path.len();
        if bytes >= whole.len() {
            return None;
        }
        whole[..root.len()].copy_from_slice(root);
        whole[root.len()..bytes].copy_from_slice(path);
        Some(Self(whole))
    }

    const fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

fn is_replaced(path: &[u8]) -> bool {
    FOLDERS.iter().any(|folder| path.strip_prefix(*folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/'))
}

/// What a function gives that fails.
trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for ssize_t {
    const FAILED: Self = -1;
}

impl<T> Failed for *mut T {
    const FAILED: Self = ptr::null_mut();
}

/// A function of the same name behind this library: null until it was looked for, and after that when there is none.
struct Next(AtomicPtr<c_void>);

impl Next {
    fn find(&self, name: &CStr) -> *mut c_void {
        let known = self.0.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a text.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

/// Replaces functions that are given a path, some of them behind an open folder.
macro_rules! replace {
    ($($name:ident($([$before:ident: $of:ty])? path $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $(
            /// As the C library's.
            ///
            /// # Safety
            /// As there.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($before: $of,)? path: *const c_char $(, $argument: $type)*) -> $result {
                static NEXT: Next = Next(AtomicPtr::new(ptr::null_mut()));
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeros"),
                };
                let next = NEXT.find(NAME);
                if next.is_null() {
                    // SAFETY: each thread has its own.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return <$result>::FAILED;
                }
                // SAFETY: it is the function of that name, which has these arguments.
                let next = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($of,)? *const c_char $(, $type)*) -> $result>(next)
                };
                // SAFETY: the caller's promise.
                let elsewhere = unsafe { Elsewhere::of(path) };
                let path = elsewhere.as_ref().map_or(path, Elsewhere::as_ptr);
                // SAFETY: the caller's promise; the path is his or ours, which lives until the call is over.
                unsafe { next($($before,)? path $(, $argument)*) }
            }
        )*
    };
}

type Select = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;
type Select64 = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
type Compare64 = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

// The mode of the first four is there for some flags only. Where it was not given it is whatever lies in its register, which the function behind does not
// look at either: on x86-64 and aarch64 such an argument is passed as any other.
replace! {
    open(path, flags: c_int, mode: mode_t) -> c_int;
    open64(path, flags: c_int, mode: mode_t) -> c_int;
    openat([folder: c_int] path, flags: c_int, mode: mode_t) -> c_int;
    openat64([folder: c_int] path, flags: c_int, mode: mode_t) -> c_int;
    __open_2(path, flags: c_int) -> c_int;
    __open64_2(path, flags: c_int) -> c_int;
    __openat_2([folder: c_int] path, flags: c_int) -> c_int;
    __openat64_2([folder: c_int] path, flags: c_int) -> c_int;
    fopen(path, mode: *const c_char) -> *mut FILE;
    fopen64(path, mode: *const c_char) -> *mut FILE;
    access(path, mode: c_int) -> c_int;
    euidaccess(path, mode: c_int) -> c_int;
    eaccess(path, mode: c_int) -> c_int;
    faccessat([folder: c_int] path, mode: c_int, flags: c_int) -> c_int;
    stat(path, into: *mut Stat) -> c_int;
    stat64(path, into: *mut Stat64) -> c_int;
    lstat(path, into: *mut Stat) -> c_int;
    lstat64(path, into: *mut Stat64) -> c_int;
    fstatat([folder: c_int] path, into: *mut Stat, flags: c_int) -> c_int;
    fstatat64([folder: c_int] path, into: *mut Stat64, flags: c_int) -> c_int;
    __xstat([version: c_int] path, into: *mut Stat) -> c_int;
    __xstat64([version: c_int] path, into: *mut Stat64) -> c_int;
    __lxstat([version: c_int] path, into: *mut Stat) -> c_int;
    __lxstat64([version: c_int] path, into: *mut Stat64) -> c_int;
    statx([folder: c_int] path, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int;
    opendir(path) -> *mut DIR;
    chdir(path) -> c_int;
    scandir(path, into: *mut *mut *mut dirent, select: Select, compare: Compare) -> c_int;
    scandir64(path, into: *mut *mut *mut dirent64, select: Select64, compare: Compare64) -> c_int;
    readlink(path, into: *mut c_char, length: size_t) -> ssize_t;
    readlinkat([folder: c_int] path, into: *mut c_char, length: size_t) -> ssize_t;
    __readlink_chk(path, into: *mut c_char, length: size_t, room: size_t) -> ssize_t;
    realpath(path, into: *mut c_char) -> *mut c_char;
    __realpath_chk(path, into: *mut c_char, room: size_t) -> *mut c_char;
    canonicalize_file_name(path) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_is_what_is_named_and_below() {
        for path in [
            "/dev/infiniband",
            "/dev/infiniband/uverbs0",
            "/sys/class/infiniband/",
            "/sys/class/infiniband_verbs/abi_version",
        ] {
            assert!(is_replaced(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/",
            "/dev/infiniband0",
            "/dev/infinibandx/uverbs0",
            "/sys/class/infiniband_cm",
            "/sys/class/net",
            "dev/infiniband",
        ] {
            assert!(!is_replaced(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_path_elsewhere_is_whole_or_not_at_all() {
        let text = |path: &Elsewhere| CStr::from_bytes_until_nul(&path.0).expect("it ends").to_bytes().to_vec();
        let short = Elsewhere::below(b"/tmp/x", b"/dev/infiniband/uverbs0").expect("short");
        assert_eq!(text(&short), b"/tmp/x/dev/infiniband/uverbs0");
        let room = libc::PATH_MAX as usize - 1;
        let longest = vec![b'a'; room - 15];
        assert_eq!(Elsewhere::below(&longest, FOLDERS[0]).map(|path| text(&path).len()), Some(room));
        assert!(Elsewhere::below(&[longest.as_slice(), b"a"].concat(), FOLDERS[0]).is_none());
    }

    #[test]
    fn calls_of_this_program_come_here_and_go_on() {
        // SAFETY: texts that end.
        let (there, not_there) =
            unsafe { (access(c"/dev/null".as_ptr(), 0), access(c"/dev/infiniband/none".as_ptr(), 0)) };
        assert_eq!((there, not_there), (0, -1));
        // SAFETY: as above; nobody else has this folder open.
        unsafe {
            let folder = opendir(c"/proc/self".as_ptr());
            assert!(!folder.is_null());
            libc::closedir(folder);
        }
    }
}
