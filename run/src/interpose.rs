//! `libroce_files.so`: redirects calls that name device files. `roce-run --files` preloads it where
//! it cannot mount.
//!
//! Paths below `/dev/infiniband`, `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! `/sys/class/misc/rdma_cm` are replaced by paths below the folder in `ROCE_RUN_FILES`.
//!
//! Only functions of the C library are replaced. Not redirected: system calls that a program makes
//! itself, paths relative to an open folder or with `..` in them, and the entries of `/dev` and
//! `/sys/class` themselves. An invalid path pointer ends the program where the kernel would have
//! returned `EFAULT`.
#![expect(unsafe_code, reason = "functions of the C library, by their names")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{DIR, FILE, dirent, dirent64, mode_t, size_t, ssize_t, stat as Stat, stat64 as Stat64, statx as Statx};

/// Redirected folders, as path components; with everything below them.
const FOLDERS: [&[&[u8]]; 4] = [
    &[b"dev", b"infiniband"],
    &[b"sys", b"class", b"infiniband"],
    &[b"sys", b"class", b"infiniband_verbs"],
    &[b"sys", b"class", b"misc", b"rdma_cm"],
];

/// Environment variable with the folder of the files. It is read on each call, because `roce-run`
/// itself may run under this library and unsets it. Privileged programs (setuid, file capabilities)
/// load this library only from a trusted folder, and there it reads no variable.
const VARIABLE: &CStr = c"ROCE_RUN_FILES";

const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// Whether this path is redirected.
fn is_replaced(path: &[u8]) -> bool {
    let names = || path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let lies_in = |folder: &[&[u8]]| {
        let mut names = names();
        folder.iter().all(|name| names.next() == Some(*name))
    };
    path.first() == Some(&b'/') && FOLDERS.into_iter().any(lies_in) && !names().any(|name| name == b"..")
}

/// Calls `call` with the replacement of `path`, or with `path` where there is none. A function of
/// its own, so that other calls do not pay for its stack frame.
#[cold]
#[inline(never)]
fn elsewhere<R>(path: &CStr, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: it takes a number and returns one; the name is a null-terminated string.
    let root = unsafe {
        if libc::getauxval(libc::AT_SECURE) == 0 { libc::getenv(VARIABLE.as_ptr()) } else { ptr::null_mut() }
    };
    if root.is_null() {
        return call(path.as_ptr());
    }
    // SAFETY: `getenv` returned a string; it is used before any other call that could change it.
    let root = unsafe { CStr::from_ptr(root) };
    let mut whole = [0; PATH_BYTES_MAX];
    // A replacement that does not fit is not used: the error then names the caller's own path.
    let fits = join(root.to_bytes(), path.to_bytes(), &mut whole);
    call(if fits { whole.as_ptr().cast() } else { path.as_ptr() })
}

/// Joins both paths and a terminating zero into `whole`; false where they do not fit.
fn join(root: &[u8], path: &[u8], whole: &mut [u8; PATH_BYTES_MAX]) -> bool {
    let bytes = root.len() + path.len();
    if bytes >= whole.len() {
        return false;
    }
    whole[..root.len()].copy_from_slice(root);
    whole[root.len()..bytes].copy_from_slice(path);
    true
}

/// The result of a failed call.
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

/// The next function of this name in the loader's order: null before the lookup, and if there is
/// none.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn of(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, found: AtomicPtr::new(ptr::null_mut()) },
            Err(_) => panic!("a name, and a zero"),
        }
    }

    fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a null-terminated string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines replacements of functions that take a path, possibly after other arguments.
macro_rules! replace {
    ($($name:ident($([$($before:ident: $of:ty),+])? path $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $(
            mod $name {
                pub(super) static NEXT: super::Next = super::Next::of(concat!(stringify!($name), "\0"));
            }

            /// As the function of the C library.
            ///
            /// # Safety
            /// As there.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($($before: $of,)+)? path: *const c_char $(, $argument: $type)*) -> $result {
                let next = $name::NEXT.find();
                if next.is_null() {
                    // SAFETY: each thread has its own `errno`.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return <$result>::FAILED;
                }
                // SAFETY: the function of that name has these arguments.
                let next = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($($of,)+)? *const c_char $(, $type)*) -> $result>(next)
                };
                // SAFETY: the caller's promise; both paths live until the call returns.
                let call = |path| unsafe { next($($($before,)+)? path $(, $argument)*) };
                if path.is_null() {
                    return call(path);
                }
                // SAFETY: the caller's promise: a null-terminated string.
                let named = unsafe { CStr::from_ptr(path) };
                if is_replaced(named.to_bytes()) { elsewhere(named, call) } else { call(path) }
            }
        )*

        /// Looks up all functions before the program runs. A later lookup could deadlock with a
        /// thread that holds the loader's lock and waits for this one.
        extern "C" fn find_all() {
            $( $name::NEXT.find(); )*
        }
    };
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = find_all;

type GlobError = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type Select = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;
type Select64 = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
type Compare64 = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

// The first four take a mode with some flags only. Without it the register's content is passed on,
// which the next function ignores: on x86-64 and aarch64 a variadic argument is passed as any
// other.
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
    freopen(path, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    freopen64(path, mode: *const c_char, file: *mut FILE) -> *mut FILE;
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
    __fxstatat([version: c_int, folder: c_int] path, into: *mut Stat, flags: c_int) -> c_int;
    __fxstatat64([version: c_int, folder: c_int] path, into: *mut Stat64, flags: c_int) -> c_int;
    statx([folder: c_int] path, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int;
    opendir(path) -> *mut DIR;
    chdir(path) -> c_int;
    scandir(path, into: *mut *mut *mut dirent, select: Select, compare: Compare) -> c_int;
    scandir64(path, into: *mut *mut *mut dirent64, select: Select64, compare: Compare64) -> c_int;
    readlink(path, into: *mut c_char, length: size_t) -> ssize_t;
    readlinkat([folder: c_int] path, into: *mut c_char, length: size_t) -> ssize_t;
    __readlink_chk(path, into: *mut c_char, length: size_t, room: size_t) -> ssize_t;
    getxattr(path, name: *const c_char, into: *mut c_void, length: size_t) -> ssize_t;
    lgetxattr(path, name: *const c_char, into: *mut c_void, length: size_t) -> ssize_t;
    listxattr(path, into: *mut c_char, length: size_t) -> ssize_t;
    llistxattr(path, into: *mut c_char, length: size_t) -> ssize_t;
    statfs(path, into: *mut c_void) -> c_int;
    statfs64(path, into: *mut c_void) -> c_int;
    statvfs(path, into: *mut c_void) -> c_int;
    statvfs64(path, into: *mut c_void) -> c_int;
    glob(path, flags: c_int, on_error: Option<GlobError>, into: *mut c_void) -> c_int;
    glob64(path, flags: c_int, on_error: Option<GlobError>, into: *mut c_void) -> c_int;
    realpath(path, into: *mut c_char) -> *mut c_char;
    __realpath_chk(path, into: *mut c_char, room: size_t) -> *mut c_char;
    canonicalize_file_name(path) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_path_and_everything_below_is_replaced() {
        for path in [
            "/dev/infiniband",
            "/dev/infiniband/uverbs0",
            "//dev/./infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband_verbs/abi_version",
            "/sys/class/misc/rdma_cm/abi_version",
        ] {
            assert!(is_replaced(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/",
            "/dev",
            "/dev/infiniband0",
            "/dev/infinibandx/uverbs0",
            "/sys/class/infiniband_cm",
            "/sys/class/infiniband/../net",
            "/sys/class/net",
            "/sys/class/misc/fuse",
            "dev/infiniband",
        ] {
            assert!(!is_replaced(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_path_elsewhere_is_whole_or_not_at_all() {
        let joined = |root: &[u8], path: &[u8]| {
            let mut whole = [0; PATH_BYTES_MAX];
            join(root, path, &mut whole)
                .then(|| CStr::from_bytes_until_nul(&whole).expect("it ends").to_bytes().to_vec())
        };
        assert_eq!(joined(b"/tmp/x", b"/dev/infiniband").as_deref(), Some(&b"/tmp/x/dev/infiniband"[..]));
        let room = PATH_BYTES_MAX - 1;
        let longest = vec![b'a'; room - 4];
        assert_eq!(joined(&longest, b"/dev").map(|path| path.len()), Some(room));
        assert_eq!(joined(&[longest.as_slice(), b"a"].concat(), b"/dev"), None);
    }

    #[test]
    fn calls_of_this_program_come_here_and_go_on() {
        // SAFETY: null-terminated strings.
        let (there, not_there) =
            unsafe { (access(c"/dev/null".as_ptr(), 0), access(c"/dev/infiniband/none".as_ptr(), 0)) };
        assert_eq!((there, not_there), (0, -1));
        // SAFETY: as above; this function alone uses the open folder.
        unsafe {
            let folder = opendir(c"/proc/self".as_ptr());
            assert!(!folder.is_null());
            libc::closedir(folder);
        }
    }
}
