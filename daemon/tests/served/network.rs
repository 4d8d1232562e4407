//! A network with the addresses that a test gives it.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use roced::{
    environment::{DevicePort, Network},
    net::{Asker, FollowId, GidTableEntry, NextHop, NoRoute},
};
use roced_types::DeviceId;

use super::Told;

pub(super) struct FakeNetwork {
    pub(super) told: Arc<Mutex<Told>>,
    pub(super) last: u64,
}

impl Network for FakeNetwork {
    fn port(&self, _: DeviceId) -> DevicePort {
        self.told.lock().expect("no test panics here").port
    }

    fn gid(&self, _: DeviceId, index: u32) -> Option<GidTableEntry> {
        self.told.lock().expect("no test panics here").gids.get(index as usize).copied().flatten()
    }

    fn has_address(&self, address: IpAddr) -> bool {
        (0..3).any(|index| self.gid(DeviceId(0), index).is_some_and(|gid| gid.address == address))
    }

    fn source_for(&mut self, destination: IpAddr, _: u32) -> Option<IpAddr> {
        let mut gids = (0..3).filter_map(|index| self.gid(DeviceId(0), index));
        gids.find(|gid| gid.address.is_ipv4() == destination.is_ipv4()).map(|gid| gid.address)
    }

    fn follow(
        &mut self,
        device: DeviceId,
        source: GidTableEntry,
        to: IpAddr,
        _: Asker,
    ) -> Result<(FollowId, NextHop), NoRoute> {
        let mut told = self.told.lock().expect("no test panics here");
        let local = !told.hide_local && told.gids.iter().flatten().any(|gid| gid.address == to);
        let next = if local { Some(NextHop::Local(device)) } else { told.elsewhere };
        let next = next.ok_or(NoRoute { from: source.address, destination: to })?;
        let known = told.followed.iter().find(|(_, (address, _))| *address == to).map(|(id, _)| *id);
        let id = known.unwrap_or_else(|| {
            self.last += 1;
            FollowId::new(self.last)
        });
        told.followed.entry(id).or_insert((to, 0)).1 += 1;
        Ok((id, next))
    }

    fn must_ask(&mut self, _: DeviceId, _: GidTableEntry, _: IpAddr) -> bool {
        self.told.lock().expect("no test panics here").elsewhere == Some(NextHop::Resolving)
    }

    fn unfollow(&mut self, id: FollowId, _: Asker) {
        let mut told = self.told.lock().expect("no test panics here");
        let followers = &mut told.followed.get_mut(&id).expect("it is followed").1;
        *followers -= 1;
        if *followers == 0 {
            told.followed.remove(&id);
        }
    }

    fn join(&mut self, _: DeviceId, _: GidTableEntry, group: IpAddr) -> io::Result<()> {
        let mut told = self.told.lock().expect("no test panics here");
        if told.joins_nothing {
            return Err(nix::errno::Errno::ENOBUFS.into());
        }
        told.joined.push(group);
        Ok(())
    }

    fn leave(&mut self, _: DeviceId, _: Option<u16>, group: IpAddr) {
        let mut told = self.told.lock().expect("no test panics here");
        let at = told.joined.iter().position(|joined| *joined == group).expect("it was joined");
        told.joined.swap_remove(at);
    }
}
