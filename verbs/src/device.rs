//! The list of devices. A device once listed stays for the life of the process, so that no program
//! can hold a pointer for too long.
#![expect(unsafe_code, reason = "lists and names of C")]

use std::{
    ffi::{OsString, c_char, c_int},
    ptr,
    sync::{Mutex, OnceLock, PoisonError},
};

use roced_client::{Device as ClientDevice, NoCancellation, trusted_variable};

use crate::{
    abi::context::Device as Face,
    cm,
    errno::{self, Errno, Result},
    object::{Object, Pointer},
};

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`, which RoCE counts as.
const TRANSPORT_IB: c_int = 0;

/// A device of the daemon.
pub(crate) type Device = Object<Face, DeviceState>;

/// The library's part of a device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    /// The socket of the daemon that has it, where the environment named one.
    socket: Option<OsString>,
    pub(crate) name: String,
    guid: OnceLock<[u8; 8]>,
}

/// All that were ever listed.
static KNOWN: Mutex<Vec<Pointer<Device>>> = Mutex::new(Vec::new());

/// `ibv_get_device_list`.
pub(crate) unsafe extern "C" fn list(count: *mut c_int) -> *mut *mut Face {
    let _whole = NoCancellation::new();
    // librdmacm lists the devices before it opens its device file.
    cm::redirect();
    let devices = match ClientDevice::list() {
        Ok(names) => names.iter().map(|name| known(name)).collect(),
        Err(error) => {
            // A host without the daemon is a host without devices, as one without adapters is.
            errno::set(error.into());
            Vec::new()
        }
    };
    // SAFETY: a count may be null, else the program gave room for one; the list has room for all
    // and the null behind them.
    unsafe {
        if !count.is_null() {
            *count = devices.len() as c_int;
        }
        let list: *mut *mut Face = libc::calloc(devices.len() + 1, size_of::<*mut Face>()).cast();
        if !list.is_null() {
            for (place, device) in devices.iter().enumerate() {
                list.add(place).write(*device);
            }
        }
        list
    }
}

/// `ibv_free_device_list`.
pub(crate) unsafe extern "C" fn free_list(list: *mut *mut Face) {
    let _whole = NoCancellation::new();
    // SAFETY: `list` made it.
    unsafe { libc::free(list.cast()) };
}

fn known(name: &str) -> *mut Face {
    let socket = trusted_variable("ROCED_SOCKET");
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for Pointer(device) in all.iter() {
        // SAFETY: devices are never freed.
        let device = unsafe { &**device };
        if device.own.name == name && device.own.socket == socket {
            return device.face();
        }
    }
    let index = all.len();
    let own = DeviceState { socket, name: name.into(), guid: OnceLock::new() };
    let face = Face {
        _ops: [None; 2],
        node_type: NODE_CA,
        transport_type: TRANSPORT_IB,
        name: text(name),
        dev_name: text(&format!("uverbs{index}")),
        dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{index}")),
        ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
    };
    let device = Device::leak(face, own);
    all.push(Pointer(device));
    // SAFETY: it was made two lines up.
    unsafe { (*device).face() }
}

/// Text in a field of C, truncated to the field.
fn text<const BYTES: usize>(text: &str) -> [c_char; BYTES] {
    let mut field = [0; BYTES];
    for (to, from) in field[..BYTES - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}

/// `ibv_get_device_name`.
pub(crate) unsafe extern "C" fn name(device: *mut Face) -> *const c_char {
    // SAFETY: the program's device is one of ours.
    unsafe { ptr::addr_of!((*device).name).cast() }
}

/// `ibv_get_device_index`: none. Programs ask the kernel about the device of an index, and it has
/// no such device.
pub(crate) const unsafe extern "C" fn index(_: *mut Face) -> c_int {
    -1
}

/// `ibv_get_device_guid`, in wire order.
pub(crate) unsafe extern "C" fn guid(device: *mut Face) -> u64 {
    // SAFETY: as above.
    let own = &unsafe { Device::of(device) }.own;
    if let Some(guid) = own.guid.get() {
        return u64::from_ne_bytes(*guid);
    }
    // None where the daemon is gone; a later query may succeed.
    let Some(guid) = own.open().ok().and_then(|device| device.attributes().ok()).map(|it| it.node_guid) else {
        return 0;
    };
    u64::from_ne_bytes(*own.guid.get_or_init(|| guid))
}

impl DeviceState {
    /// A session of its own with the daemon.
    pub(crate) fn open(&self) -> Result<ClientDevice> {
        let opened = match &self.socket {
            Some(socket) if !socket.is_empty() => ClientDevice::open_at(socket.as_ref(), &self.name),
            _ => ClientDevice::open(&self.name),
        };
        opened.map_err(Errno::from)
    }
}
