//! Calls about completion channels and completion queues.

use std::{os::fd::OwnedFd, sync::Arc};

use nix::errno::Errno;
use roced_abi::{
    control::{
        CreateChannel, CreateCq, CreateCqReply, CreateCqRequest, DestroyChannel, DestroyCq, Handle, Nothing, ResizeCq,
        ResizeCqRequest, limit::AccountResource,
    },
    layout::CqLayout,
};
use roced_memory::{
    accounts::ClientAccount,
    channel::CqChannel,
    queues::{new_cq, new_ring_places},
};
use roced_types::Cqn;

use super::{
    CallHandler, CallReply, handle_of,
    mr::{check_unused, nothing},
    refused::Refused,
    session::{ChannelObject, CqObject, check_limit, find},
    unsealed::QueueFile,
};
use crate::{accounts::ledger::Charge, worker::command::Command};

impl CallHandler<'_, '_> {
    pub(super) fn create_channel(&mut self, _: Nothing) -> CallReply<CreateChannel> {
        check_limit(&self.objects.channels, self.registry.limits.client.channels)?;
        let charge = self.charge(AccountResource::Channels)?;
        let account = self.registry.quota.account(self.objects.process.account);
        if account.as_ref().is_some_and(ClientAccount::leaves_much_unread) {
            return Err(Errno::ENOBUFS.into());
        }
        let (channel, theirs) = CqChannel::create(account)?;
        let number = self.registry.channels.take();
        let object = ChannelObject { channel, room: 0, users: 0, _charge: charge };
        self.objects.channels.insert(number, object);
        Ok((Handle { handle: number }, vec![theirs]))
    }

    pub(super) fn destroy_channel(&mut self, request: Handle) -> CallReply<DestroyChannel> {
        self.end_channel(request.handle).map(nothing)
    }

    pub(super) fn end_channel(&mut self, number: u32) -> Result<(), Refused> {
        check_unused(find(&mut self.objects.channels, number)?.users)?;
        self.objects.channels.remove(&number);
        self.registry.channels.give_back(number);
        Ok(())
    }

    pub(super) fn create_cq(&mut self, request: CreateCqRequest) -> CallReply<CreateCq> {
        let limits = &self.registry.limits.client;
        check_limit(&self.objects.cqs, limits.cqs)?;
        let channel = match request.channel {
            0 => None,
            number => {
                let ChannelObject { channel, room, users, .. } = find(&mut self.objects.channels, number)?;
                channel.make_room(*room.max(&mut (*users + 1)))?;
                *room = (*room).max(*users + 1);
                Some(Arc::clone(channel))
            }
        };
        let cq_rings = self.objects.doorbells.len() as u32;
        let layout = CqLayout::new(request.entries, cq_rings).ok_or(Refused::argument(0, request.entries))?;
        let mapped = self.objects.charge(layout.bytes as u64, limits)?;
        let made = self.make_cq(&request, layout, channel.as_ref(), mapped);
        if made.is_err() {
            self.objects.give_back(layout.bytes as u64);
        }
        made
    }

    fn make_cq(
        &mut self,
        request: &CreateCqRequest,
        layout: CqLayout,
        channel: Option<&Arc<CqChannel>>,
        mapped: Option<Charge>,
    ) -> CallReply<CreateCq> {
        let charge = self.charge(AccountResource::Cqs)?;
        let number = self.registry.cqs.take();
        let cqn = Cqn(number);
        let fd =
            self.give_cq_rings(cqn, layout, channel, mapped).inspect_err(|_| self.registry.cqs.give_back(number))?;
        let shared = (request.channel != 0).then_some(request.channel);
        if let Some(channel) = shared {
            find(&mut self.objects.channels, channel)?.users += 1;
        }
        let bytes = layout.bytes as u64;
        let object = CqObject { cqn, channel: shared, bytes, resized_bytes: 0, users: 0, _charge: charge };
        self.objects.cqs.insert(handle_of(cqn), object);
        Ok((CreateCqReply { cqn: number, entries: layout.cq_ring.entries() }, vec![fd]))
    }

    /// Makes the CQ rings and gives each worker its own; the memfd is for the client.
    fn give_cq_rings(
        &mut self,
        cqn: Cqn,
        layout: CqLayout,
        channel: Option<&Arc<CqChannel>>,
        mapped: Option<Charge>,
    ) -> Result<OwnedFd, Refused> {
        let (cq_rings, fd) = new_cq(cqn, self.session, layout, channel, self.room(mapped)?)?;
        let kept = self.keep_file(&fd)?;
        let mut cq_rings = cq_rings.into_iter();
        let limit = self.registry.limits.client.cqs.into();
        let add = |_at| Command::AddCqRing(cqn, cq_rings.next().expect("a CQ ring for each worker"));
        self.give_to_all(limit, add, || Command::DropCqRing(cqn))?;
        self.objects.unsealed.add(QueueFile::Cq(handle_of(cqn)), kept);
        Ok(fd)
    }

    pub(super) fn resize_cq(&mut self, request: ResizeCqRequest) -> CallReply<ResizeCq> {
        find(&mut self.objects.cqs, request.cqn)?;
        let cq_rings = self.objects.doorbells.len() as u32;
        let layout = CqLayout::new(request.entries, cq_rings).ok_or(Refused::argument(1, request.entries))?;
        let bytes = layout.bytes as u64;
        // For a moment there are both, and they count as both.
        let mapped = self.objects.charge(bytes, &self.registry.limits.client)?;
        let fd = self.change_rings(Cqn(request.cqn), layout, mapped).inspect_err(|_| self.objects.give_back(bytes))?;
        let before = std::mem::replace(&mut find(&mut self.objects.cqs, request.cqn)?.resized_bytes, bytes);
        self.objects.give_back(before);
        Ok((CreateCqReply { cqn: request.cqn, entries: layout.cq_ring.entries() }, vec![fd]))
    }

    /// Creates new rings and gives each worker its own, in place of the old one. A worker that does
    /// not answer leaves the queue partly changed: as with every such worker, the watchdog decides
    /// about the daemon.
    fn change_rings(&mut self, cqn: Cqn, layout: CqLayout, mapped: Option<Charge>) -> Result<OwnedFd, Refused> {
        let (rings, fd) = new_ring_places(layout, self.room(mapped)?)?;
        let kept = self.keep_file(&fd)?;
        for (place, ring) in self.places().into_iter().zip(rings) {
            self.tell(place.worker, Command::ChangeRing(cqn, ring), 0)?;
        }
        self.objects.unsealed.add(QueueFile::Cq(handle_of(cqn)), kept);
        Ok(fd)
    }

    pub(super) fn destroy_cq(&mut self, request: Handle) -> CallReply<DestroyCq> {
        self.end_cq(request.handle).map(nothing)
    }

    pub(super) fn end_cq(&mut self, number: u32) -> Result<(), Refused> {
        let &mut CqObject { cqn, channel, bytes, resized_bytes, users, .. } = find(&mut self.objects.cqs, number)?;
        check_unused(users)?;
        self.take_back_from_all(|| Command::DropCqRing(cqn))?;
        self.objects.cqs.remove(&number);
        self.objects.unsealed.forget(QueueFile::Cq(number));
        self.objects.give_back(bytes);
        self.objects.give_back(resized_bytes);
        self.registry.cqs.give_back(number);
        if let Some(channel) = channel {
            find(&mut self.objects.channels, channel)?.users -= 1;
        }
        Ok(())
    }
}
