//! Private memory that another driver has pinned, registered: its pages stay, so that both see the
//! same bytes.
#![expect(unsafe_code, reason = "registers memory that the daemon and the kernel write to behind the compiler's back")]

mod served;

use std::{
    io::Write,
    num::NonZeroUsize,
    os::fd::AsRawFd,
    process::{Command, Stdio},
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

use io_uring::{IoUring, opcode, types::Fd};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use roced_client::{Access, Error, MemoryRegion, PrivateMemory, ProtectionDomain, SendRequest};
use served::{
    Served,
    pair::{Pair, pattern},
};

/// A pin counts for the whole process, which all tests share.
static PINS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    PINS.lock().unwrap_or_else(PoisonError::into_inner)
}

const BYTES: usize = 64 << 10;

fn all() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// Private memory without a file.
struct Private(NonNull<u8>);

impl Private {
    fn new() -> Self {
        let length = NonZeroUsize::new(BYTES).expect("some");
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping touches nothing that exists.
        let base = unsafe { mmap_anonymous(None, length, rights, MapFlags::MAP_PRIVATE) };
        Self(base.expect("it can be mapped").cast())
    }

    fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    fn register(&self, pd: &ProtectionDomain, access: Access) -> Result<MemoryRegion, Error> {
        // SAFETY: each test drops its regions before its mappings.
        unsafe { pd.register_at(self.0.as_ptr(), BYTES, self.address() as u64, access) }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: our own mapping, which nothing writes at this time.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), BYTES) }.to_vec()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is unused from here on.
        unsafe { munmap(self.0.cast(), BYTES) }.expect("it is mapped");
    }
}

/// An io_uring that has pinned one buffer, as a device driver pins memory for its device; `None`
/// where the kernel does not allow io_uring.
struct Pin(IoUring);

impl Pin {
    fn new(memory: &Private) -> Option<Self> {
        let ring = IoUring::new(2).ok()?;
        let buffer = libc::iovec { iov_base: memory.0.as_ptr().cast(), iov_len: BYTES };
        // SAFETY: the memory is mapped until the ring is dropped.
        unsafe { ring.submitter().register_buffers(&[buffer]) }.expect("it can be pinned");
        Some(Self(ring))
    }

    /// Writes `bytes` to the pinned pages of `memory`.
    fn write(&mut self, memory: &Private, bytes: &[u8]) {
        let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
        file.write_all(bytes).expect("room");
        let entry = opcode::ReadFixed::new(Fd(file.as_raw_fd()), memory.0.as_ptr(), bytes.len() as u32, 0).build();
        // SAFETY: the buffer is the registered one, and the file is open until the answer.
        unsafe { self.0.submission().push(&entry) }.expect("room");
        self.0.submit_and_wait(1).expect("submitted");
        assert_eq!(self.0.completion().next().expect("an answer").result(), bytes.len() as i32);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // The kernel would end the pin some time after the ring is closed.
        self.0.submitter().unregister_buffers().expect("they are registered");
    }
}

fn skipped() {
    eprintln!("SKIPPED: this kernel does not allow io_uring");
}

fn proxied_bytes(served: &Served) -> u64 {
    served.on_control_thread(|clients, _| clients.reports().map(|report| report.memory.proxied_bytes).sum())
}

#[test]
fn bytes_written_to_pinned_pages_reach_the_peer() {
    let _alone = alone();
    let served = Served::start();
    let pair = Pair::new(&served);
    let (memory, target) = (Private::new(), pair.memory());
    let Some(mut pin) = Pin::new(&memory) else { return skipped() };
    let region = memory.register(&pair.pd, all()).expect("it stays in place");
    pin.write(&memory, &pattern(3, BYTES));
    pair.send(&SendRequest::write(&[region.sge(..)], target.remote())).ok().expect("it arrived");
    assert!(target.to_vec(0, BYTES) == pattern(3, BYTES), "the peer gets the driver's bytes");
    assert_eq!(proxied_bytes(&served), BYTES as u64);
    drop(region);
    drop(memory.register(&pair.pd, Access::ALL).expect("with atomic operations as well"));

    // A program that knows better has its pages exchanged.
    let other = Private::new();
    pair.device.set_private_memory(PrivateMemory::Migrated);
    drop(other.register(&pair.pd, Access::ALL).expect("these pages are not pinned"));
    assert_eq!(proxied_bytes(&served), 0);

    // Without the pin they are as any other, unless the program says otherwise.
    pair.device.set_private_memory(PrivateMemory::Auto);
    drop(pin);
    drop(memory.register(&pair.pd, Access::ALL).expect("it is exchanged"));
    pair.device.set_private_memory(PrivateMemory::Proxied);
    let region = memory.register(&pair.pd, all()).expect("it stays in place");
    assert_eq!((region.exchange_cost(), proxied_bytes(&served)), (None, BYTES as u64));
}

/// The pages that a driver pinned while they were registered are not replaced when the registration
/// ends.
#[test]
fn pages_pinned_while_registered_stay_after_the_registration() {
    let _alone = alone();
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = Private::new();
    let region = memory.register(&pair.pd, Access::ALL).expect("it is exchanged");
    let Some(mut pin) = Pin::new(&memory) else { return skipped() };
    drop(region);
    pin.write(&memory, &pattern(4, BYTES));
    assert!(memory.bytes() == pattern(4, BYTES), "the program sees the driver's bytes");
    // Registered again, it is the same pages.
    let region = memory.register(&pair.pd, Access::ALL).expect("it is shared already");
    pin.write(&memory, &pattern(5, BYTES));
    assert!(region.to_vec(0, BYTES) == pattern(5, BYTES));
    let target = pair.memory();
    pair.send(&SendRequest::write(&[region.sge(..)], target.remote())).ok().expect("it arrived");
    assert!(target.to_vec(0, BYTES) == pattern(5, BYTES));
}

/// Memory that CUDA knows stays in place, and other memory of the same program is exchanged. The
/// library is a stand-in with CUDA's name and its one function.
#[test]
fn memory_registered_with_cuda_stays_in_place() {
    const SOURCE: &str = "
        static unsigned long begin, end;
        void stand_in_registers(unsigned long from, unsigned long to) { begin = from; end = to; }
        int cuPointerGetAttribute(void *data, int attribute, unsigned long pointer) {
            if (attribute != 2 || pointer < begin || pointer >= end) return 1; /* CUDA_ERROR_INVALID_VALUE */
            *(unsigned *)data = 1;                                             /* CU_MEMORYTYPE_HOST */
            return 0;
        }";
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libcuda.so.1");
    let mut compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o"])
        .arg(&library)
        .stdin(Stdio::piped())
        .spawn()
        .expect("cc, which scripts/setup installs");
    compiler.stdin.take().expect("piped").write_all(SOURCE.as_bytes()).expect("it reads");
    assert!(compiler.wait().expect("it ends").success());
    let name = std::ffi::CString::new(library.to_str().expect("UTF-8")).expect("no zero");
    // SAFETY: the library compiled from `SOURCE`, where `stand_in_registers` has this signature; it
    // stays loaded.
    let registers = unsafe {
        let loaded = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        assert!(!loaded.is_null());
        let function = libc::dlsym(loaded, c"stand_in_registers".as_ptr());
        std::mem::transmute::<*mut libc::c_void, extern "C" fn(usize, usize)>(function)
    };

    let served = Served::start();
    let pair = Pair::new(&served);
    let (memory, other) = (Private::new(), Private::new());
    // One page in the middle.
    registers(memory.address() + 8 * 4096, memory.address() + 9 * 4096);
    let region = memory.register(&pair.pd, all()).expect("it stays in place");
    assert_eq!((region.exchange_cost(), proxied_bytes(&served)), (None, BYTES as u64));
    let exchanged = other.register(&pair.pd, Access::ALL).expect("CUDA does not know it");
    assert!(exchanged.exchange_cost().is_some());
    drop(region);
    registers(0, 0);
    assert!(memory.register(&pair.pd, Access::ALL).expect("not any more").exchange_cost().is_some());
}
