//! Device files as kernels with RDMA have them: `/dev/infiniband/uverbs0`,
//! `/dev/infiniband/rdma_cm`, `/sys/class/infiniband/NAME/...`.
//!
//! They are written when the program starts and do not change: later addresses are visible through
//! the library only. `namespace` or `interposed` puts them in place.

use std::{
    ffi::CStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{Device, GidEntry, PortAttributes, RoceVersion};

/// All devices that the daemon serves.
pub(crate) fn devices() -> Result<Vec<Device>> {
    Ok(Device::list()?.iter().map(|name| Device::open(name)).collect::<Result<_, _>>()?)
}

/// Folder of the connection manager's device.
const CONNECTION_MANAGER: &str = "sys/class/misc/rdma_cm";

/// Creates the files of `devices` below `root`. Programs only check that a character device exists
/// and can be opened, so `node` creates, at its first argument, a copy of another one.
///
/// That of the connection manager is `/dev/full`: a write that does not come by `libibverbs.so.1`
/// fails there, while `/dev/null` would pretend success.
pub(crate) fn make(devices: &[Device], root: &Path, node: impl Fn(&Path, &Path) -> Result<()>) -> Result<()> {
    let (nodes, verbs) = (root.join("dev/infiniband"), root.join("sys/class/infiniband_verbs"));
    fs::create_dir_all(&nodes)?;
    node(&nodes.join("rdma_cm"), Path::new("/dev/full"))?;
    connection_manager_folder(&root.join(CONNECTION_MANAGER))?;
    write(verbs.join("abi_version"), "6")?;
    for (index, device) in devices.iter().enumerate() {
        let own = folder_name(device.name())?;
        let name = format!("uverbs{index}");
        node(&nodes.join(&name), Path::new("/dev/null"))?;
        write(verbs.join(&name).join("ibdev"), device.name())?;
        write(verbs.join(&name).join("abi_version"), "1")?;
        device_folder(device, &root.join("sys/class/infiniband").join(own))?;
    }
    Ok(())
}

/// Of a kernel with RDMA the files are its own.
fn connection_manager_folder(folder: &Path) -> Result<()> {
    for (file, text) in [("abi_version", Some("4")), ("dev", None)] {
        let of_kernel = fs::read_to_string(Path::new("/").join(CONNECTION_MANAGER).join(file)).ok();
        if let Some(text) = of_kernel.as_deref().or(text).filter(|_| !folder.join(file).exists()) {
            write(folder.join(file), text.trim_end())?;
        }
    }
    Ok(())
}

fn device_folder(device: &Device, folder: &Path) -> Result<()> {
    let (attributes, port, gids) = (device.attributes()?, device.port()?, device.gids()?);
    let guid = attributes.node_guid.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect::<Vec<_>>();
    write(folder.join("node_type"), "1: CA")?;
    write(folder.join("node_guid"), &guid.join(":"))?;
    write(folder.join("sys_image_guid"), &guid.join(":"))?;
    write(folder.join("fw_ver"), env!("CARGO_PKG_VERSION"))?;
    port_folder(&folder.join("ports/1"), &port, &gids)?;
    // The folder of the adapter: programs read its interface and NUMA node there.
    let net = folder.join("device/net");
    write(folder.join("device/numa_node"), "-1")?;
    fs::create_dir_all(&net)?;
    if let Some(interface) = gids.first().and_then(|gid| interface_name(gid.ifindex)) {
        symlink(Path::new("/sys/class/net").join(&interface), net.join(&interface)).context("its interface")?;
    }
    Ok(())
}

fn port_folder(folder: &Path, port: &PortAttributes, gids: &[GidEntry]) -> Result<()> {
    write(folder.join("state"), if port.active { "4: ACTIVE" } else { "1: DOWN" })?;
    write(folder.join("phys_state"), if port.active { "5: LinkUp" } else { "3: Disabled" })?;
    write(folder.join("link_layer"), "Ethernet")?;
    write(folder.join("rate"), &format!("{} Gb/sec (1X)", port.speed_mbit_per_s.unwrap_or(2_500).div_ceil(1_000)))?;
    for file in ["lid", "sm_lid"] {
        write(folder.join(file), "0x0")?;
    }
    for (index, key) in port.pkeys.iter().enumerate() {
        write(folder.join(format!("pkeys/{index}")), &format!("0x{key:04x}"))?;
    }
    for gid in gids {
        let groups = gid.gid.0.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect::<Vec<_>>();
        write(folder.join(format!("gids/{}", gid.index)), &groups.join(":"))?;
        write(folder.join(format!("gid_attrs/types/{}", gid.index)), roce_type(gid.roce))?;
        if let Some(name) = interface_name(gid.ifindex) {
            write(folder.join(format!("gid_attrs/ndevs/{}", gid.index)), &name)?;
        }
    }
    Ok(())
}

/// The device's name as a folder name. The process behind the socket chooses it, so it must be a
/// single path component.
fn folder_name(name: &str) -> Result<&Path> {
    let own = Path::new(name);
    ensure!(own.file_name() == Some(own.as_os_str()), "a device with a name that is no file's: {name:?}");
    Ok(own)
}

/// The RoCE version as sysfs writes it.
const fn roce_type(version: RoceVersion) -> &'static str {
    match version {
        RoceVersion::V1 => "IB/RoCE v1",
        RoceVersion::V2 => "RoCE v2",
    }
}

/// The name of the interface with this index.
#[expect(unsafe_code, reason = "a call of the C library that fills a buffer")]
fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the length that the call asks for.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    // SAFETY: where the call succeeded, the buffer holds a null-terminated string.
    (!found.is_null()).then(|| unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// Writes a file and creates its parent folders.
fn write(path: PathBuf, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, format!("{text}\n")).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_no_way_to_elsewhere() {
        assert!(folder_name("roce0").is_ok() && folder_name("..b").is_ok());
        for name in ["", ".", "..", "/", "/etc", "a/b", "a/", "../../../root", "a/.."] {
            assert!(folder_name(name).is_err(), "{name:?}");
        }
    }
}
