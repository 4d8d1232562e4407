//! BPF programs on ports: attached once, their maps found again later.
//!
//! Nothing of them lives anywhere but on the ports: no process, no pin. A later command asks a port
//! for the program's id and the program for its maps, and when the ports go, program and maps go
//! with them.

use std::{collections::BTreeMap, ffi::OsStr, io, os::fd::AsFd as _};

use anyhow::{Context as _, Result};
use libbpf_rs::{
    ErrorKind, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, Program, ProgramMut, TcAttachPoint,
    TcHookBuilder,
    query::{ProgInfoIter, ProgInfoQueryOptions},
};
use nix::net::if_::if_nametoindex;

/// Handle of the lab's filters on a port: the first of each priority, because nothing else is there.
const HANDLE: u32 = 1;

/// Where on a port a program runs.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// On arrival or on the way out.
    pub(crate) point: TcAttachPoint,
    /// The lower ones run first.
    pub(crate) priority: u32,
}

/// Loads an object of `build.rs` into the kernel.
pub(crate) fn load(bytes: &[u8]) -> Result<Object> {
    // A copy, because libbpf reads ELF structures in place and `include_bytes!` promises no
    // alignment.
    let bytes = bytes.to_vec();
    let object = ObjectBuilder::default().open_memory(&bytes).context("the switch's BPF object")?;
    object.load().context("the kernel refuses the switch's BPF program: is this root?")
}

/// The program `name` of a loaded object.
pub(crate) fn program<'a>(object: &'a mut Object, name: &str) -> Result<ProgramMut<'a>> {
    object.progs_mut().find(|program| program.name() == OsStr::new(name)).context("no such program in the object")
}

/// Puts the program `name` on each of `ports`.
pub(crate) fn attach(object: &mut Object, name: &str, place: Place, ports: &[String]) -> Result<()> {
    // It complains of a qdisc that is there already, which is no error.
    libbpf_rs::set_print(None);
    let program = program(object, name)?;
    for port in ports {
        let mut hook = TcHookBuilder::new(program.as_fd())
            .ifindex(index_of(port)?)
            .handle(HANDLE)
            .priority(place.priority)
            .replace(true)
            .hook(place.point);
        hook.create().with_context(|| format!("clsact on {port}: does this kernel have NET_SCH_INGRESS?"))?;
        hook.attach().with_context(|| format!("{name} on {port}"))?;
    }
    Ok(())
}

/// Id of the program `name` of a loaded object.
pub(crate) fn id_of(object: &mut Object, name: &str) -> Result<u32> {
    Program::id_from_fd(program(object, name)?.as_fd()).context("the id of a program")
}

/// Id of the program at `place` of `port`; none when there is none.
pub(crate) fn id_on(port: &str, place: Place) -> Result<Option<u32>> {
    // The builder wants the fd of a program even for a question, without looking at it.
    let stdin = io::stdin();
    let mut hook = TcHookBuilder::new(stdin.as_fd())
        .ifindex(index_of(port)?)
        .handle(HANDLE)
        .priority(place.priority)
        .hook(place.point);
    match hook.query() {
        Ok(id) => Ok(Some(id)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow::Error::from(error).context(format!("the program attached to {port}"))),
    }
}

/// The maps of a program by their names.
pub(crate) struct Maps(BTreeMap<String, MapHandle>);

impl Maps {
    /// Those of the program with this id.
    pub(crate) fn of_program(id: u32) -> Result<Self> {
        let program = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
            .find(|program| program.id == id)
            .with_context(|| format!("program {id} has gone"))?;
        let mut maps = BTreeMap::new();
        for id in program.map_ids {
            let map = MapHandle::from_map_id(id).with_context(|| format!("map {id}"))?;
            maps.insert(map.name().to_string_lossy().into_owned(), map);
        }
        Ok(Self(maps))
    }

    /// The map `name`.
    pub(crate) fn take(&mut self, name: &str) -> Result<MapHandle> {
        self.0.remove(name).with_context(|| format!("no map '{name}'"))
    }
}

/// Index of a port of this network namespace.
pub(crate) fn index_of(port: &str) -> Result<i32> {
    let index = if_nametoindex(port).with_context(|| format!("no port '{port}' in this network namespace"))?;
    i32::try_from(index).context("an interface index")
}

/// Sets one value of a map.
pub(crate) fn put(map: &MapHandle, key: u32, value: &[u8]) -> Result<()> {
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY).with_context(|| format!("map {:?}", map.name()))
}
