//! Channels by descriptor.
#![expect(unsafe_code, reason = "looks at descriptors of the program, and registers functions with the C library")]

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{CStr, c_int},
    fs, mem,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use libc::dev_t;
use roced_client::{
    Error,
    cm::{CmChannel, CmSession},
};

use super::own_ids::OwnIds;
use crate::errno::{Errno, Result};

/// The device file of the connection manager.
pub(super) const DEVICE: &CStr = c"/dev/infiniband/rdma_cm";

/// A channel of this process, which the device file stands for.
pub(super) struct DeviceChannel {
    pub(super) channel: CmChannel,
    /// Tells it from other channels of this process, of the same descriptor as well.
    pub(super) serial: u64,
    own_ids: Mutex<OwnIds>,
}

impl DeviceChannel {
    pub(super) fn new(channel: CmChannel) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        Self { channel, serial: SERIAL.fetch_add(1, Ordering::Relaxed), own_ids: Mutex::default() }
    }

    /// Identifiers that the daemon does not know.
    pub(super) fn own_ids(&self) -> MutexGuard<'_, OwnIds> {
        self.own_ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of a search.
pub(super) enum Found {
    Channel(Arc<DeviceChannel>),
    /// A channel of the process that forked this one: not to be used.
    OfParent,
    /// Another file, or none.
    Other,
}

/// An entry of the table. The inode tells a channel from a later file of the same number.
struct ChannelDescriptor {
    inode: u64,
    /// `None` in a child of the process that opened it.
    channel: Option<Arc<DeviceChannel>>,
}

#[derive(Default)]
struct DescriptorTable {
    session: Option<Arc<CmSession>>,
    descriptors: HashMap<c_int, ChannelDescriptor>,
}

static TABLE: Mutex<Option<DescriptorTable>> = Mutex::new(None);

fn table() -> MutexGuard<'static, Option<DescriptorTable>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Error of the connection manager: without the daemon there is no device.
pub(super) fn errno_of(error: Error) -> Errno {
    let is_fatal = error.is_fatal();
    let errno = Errno::from(error);
    if is_fatal { Errno(libc::ENODEV) } else { errno }
}

/// Opens a channel. Its socket is the descriptor.
pub(super) fn open() -> Result<c_int> {
    watch_forks();
    let mut locked = table();
    let table = locked.get_or_insert_default();
    let session = match table.session.take().filter(|session| session.is_alive()) {
        Some(session) => session,
        None => CmSession::open().map_err(errno_of)?,
    };
    table.session = Some(Arc::clone(&session));
    let channel = session.channel().map_err(errno_of)?;
    let fd = channel.as_fd().as_raw_fd();
    let inode = inode(fd).ok_or(Errno(libc::EIO))?;
    let channel = Arc::new(DeviceChannel::new(channel));
    if let Some(former) = table.descriptors.insert(fd, ChannelDescriptor { inode, channel: Some(channel) }) {
        // The program has closed that channel by itself.
        forget(former);
    }
    Ok(fd)
}

/// Drops an entry; its number may name another file by now.
fn forget(descriptor: ChannelDescriptor) {
    let Some(channel) = descriptor.channel else { return };
    match Arc::try_unwrap(channel) {
        Ok(own) => drop(own.channel.abandon()),
        // A thread is using it; it must not close the descriptor when it ends.
        Err(shared) => mem::forget(shared),
    }
}

/// Finds a channel.
pub(super) fn find(fd: c_int) -> Found {
    let locked = table();
    let Some(descriptor) = locked.as_ref().and_then(|table| table.descriptors.get(&fd)) else { return Found::Other };
    if inode(fd) != Some(descriptor.inode) {
        return Found::Other;
    }
    descriptor.channel.as_ref().map_or(Found::OfParent, |channel| Found::Channel(Arc::clone(channel)))
}

/// Closes a channel, and returns true; false if the descriptor is to be closed as any other.
pub(super) fn close(fd: c_int) -> bool {
    let mut locked = table();
    let Some(table) = locked.as_mut() else { return false };
    let Some(descriptor) = table.descriptors.remove(&fd) else { return false };
    if inode(fd) != Some(descriptor.inode) {
        forget(descriptor);
        return false;
    }
    drop(locked);
    let Some(channel) = descriptor.channel else { return false };
    // Its end tells the daemon, which destroys the identifiers, and closes the descriptor.
    drop(channel);
    true
}

fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: zeros are a valid struct, which the call fills.
    let mut status: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: room for the struct; a number that names no file is an error.
    (unsafe { libc::fstat(fd, &raw mut status) } == 0).then_some(status.st_ino)
}

/// Number of the device file: that of the kernel's own, of which librdmacm may have heard.
pub(super) fn device_number() -> dev_t {
    let of_class = fs::read_to_string("/sys/class/misc/rdma_cm/dev").ok();
    let number = of_class.as_deref().and_then(|text| {
        let (major, minor) = text.trim().split_once(':')?;
        Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    number.or_else(number_of_node).unwrap_or_else(|| libc::makedev(10, 0))
}

fn number_of_node() -> Option<dev_t> {
    // SAFETY: zeros are a valid struct, which the call fills.
    let mut status: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: a text that ends, and room for the struct.
    let found = unsafe { libc::stat(DEVICE.as_ptr(), &raw mut status) } == 0;
    let is_device = found && status.st_mode & libc::S_IFMT == libc::S_IFCHR;
    // `roce-run` shows a copy of `/dev/full`.
    (is_device && status.st_rdev != libc::makedev(1, 7)).then_some(status.st_rdev)
}

thread_local! {
    /// The table during a fork, so that the child finds it unlocked.
    static FORKING: RefCell<Option<MutexGuard<'static, Option<DescriptorTable>>>> = const { RefCell::new(None) };
}

/// From now on children of this process do not use its channels.
fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions exist for the lifetime of this library, which is never unloaded
        // while devices are listed. The call fails only without memory.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    });
}

extern "C" fn before_fork() {
    FORKING.set(Some(table()));
}

extern "C" fn after_fork() {
    FORKING.set(None);
}

extern "C" fn in_child() {
    let Some(mut locked) = FORKING.take() else { return };
    let Some(table) = locked.as_mut() else { return };
    // Not dropped: sockets and locks are those of the parent.
    mem::forget(table.session.take());
    table.descriptors.values_mut().for_each(|descriptor| mem::forget(descriptor.channel.take()));
}
