//! Calls of the connection manager.

use std::{net::SocketAddr, os::fd::OwnedFd, time::Duration};

use roced_abi::control::{
    AcceptCm, AcceptCmRequest, BindCm, BindCmRequest, Call, CmParameters, CmRoute, ConfirmCm, ConnectCm,
    ConnectCmRequest, CreateCmChannel, CreateCmId, CreateCmIdRequest, DestroyCmChannel, DestroyCmId,
    DestroyCmIdRequest, DisconnectCm, EstablishCm, Handle, JoinCmGroup, JoinCmGroupRequest, ListenCm, ListenCmRequest,
    Message, MigrateCm, MigrateCmReply, MigrateCmRequest, Nothing, Refusal, RejectCm, RejectCmRequest,
    ResolveCmAddress, ResolveCmAddressRequest, ResolveCmRoute, ResolveCmRouteRequest, SetCmOption, SetCmOptionRequest,
    WriteCmEvent, WriteCmEventRequest, cm_event,
};
use roced_cm::identifiers::{CmErrno, IdKey, Identifiers, Parameters};
use roced_types::SessionId;

use super::{
    ConnectionService, abi,
    channel::{EventChannel, OWN_EVENTS_MAX},
    host::CmHost,
    owner_of,
};
use crate::{accounts::ledger::LimitReached, environment::Environment};

/// Reasons why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallRefused {
    /// With an errno.
    Errno(i32),
    /// A limit of the daemon.
    Limit(u32),
    /// A limit of the account.
    Account(LimitReached),
}

impl From<CmErrno> for CallRefused {
    fn from(errno: CmErrno) -> Self {
        Self::Errno(errno.number())
    }
}

/// The session that calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) session: SessionId,
}

type Reply<C> = Result<<C as Call>::Reply, CallRefused>;

/// Where the calls of one session are served.
struct CmCalls<'a, 'e> {
    service: &'a mut ConnectionService,
    session: SessionId,
    environment: &'a mut Environment<'e>,
}

impl ConnectionService {
    /// Carries out a call of a session that has opened the connection manager: the reply, and the
    /// file descriptors beside it. Events follow with [`Self::flush`].
    pub(crate) fn answer(
        &mut self,
        caller: Caller,
        message: &Message,
        environment: &mut Environment<'_>,
    ) -> (Message, Vec<OwnedFd>) {
        let session = caller.session;
        if message.header.op == CreateCmChannel::OP {
            return match self.new_channel(session) {
                Ok((handle, theirs)) => (reply::<CreateCmChannel>(message, Ok(Handle { handle })), vec![theirs]),
                Err(refused) => (reply::<CreateCmChannel>(message, Err(refused)), Vec::new()),
            };
        }
        (CmCalls { service: self, session, environment }.answer(message), Vec::new())
    }
}

fn reply<C: Call>(message: &Message, result: Reply<C>) -> Message {
    let header = message.header;
    let refusal = |why, detail| Message::refusal(header.op, header.sequence, why, detail);
    match result {
        Ok(body) => Message::new(C::OP, header.sequence, &body),
        Err(CallRefused::Errno(errno)) => refusal(Refusal::Cm, [errno as u64, 0]),
        Err(CallRefused::Limit(limit)) => refusal(Refusal::Limit, [limit.into(), 0]),
        Err(CallRefused::Account(reached)) => refusal(Refusal::Limit, reached.detail()),
    }
}

impl CmCalls<'_, '_> {
    fn answer(&mut self, message: &Message) -> Message {
        macro_rules! serve {
            ($($call:ident => $method:ident,)*) => {
                match message.header.op {
                    $($call::OP => reply::<$call>(message, self.$method(&message.body())),)*
                    op => Message::refusal(op, message.header.sequence, Refusal::UnknownCall, [op.into(), 0]),
                }
            };
        }
        serve! {
            DestroyCmChannel => destroy_channel,
            CreateCmId => create,
            DestroyCmId => destroy,
            BindCm => bind,
            ResolveCmAddress => resolve_address,
            ResolveCmRoute => resolve_route,
            ListenCm => listen,
            ConnectCm => connect,
            AcceptCm => accept,
            ConfirmCm => confirm,
            RejectCm => reject,
            DisconnectCm => disconnect,
            EstablishCm => establish,
            JoinCmGroup => join,
            MigrateCm => migrate,
            SetCmOption => set_option,
            WriteCmEvent => write_event,
        }
    }

    fn key(&self, number: u32) -> IdKey {
        IdKey { owner: owner_of(self.session), number }
    }

    fn now(&self) -> Duration {
        self.service.now()
    }

    /// Does something with the identifiers and the network.
    fn with<T>(
        &mut self,
        act: impl FnOnce(&mut Identifiers, &mut CmHost<'_, '_>) -> Result<T, CmErrno>,
    ) -> Result<T, CallRefused> {
        let ConnectionService { ids, devices, known, routes, channels, owners, .. } = &mut *self.service;
        let owner = owners.get(&self.session).cloned();
        let mut host = CmHost::new(devices, known, routes, channels, self.environment, owner);
        Ok(act(ids, &mut host)?)
    }

    fn route(&self, key: IdKey) -> Result<CmRoute, CallRefused> {
        Ok(abi::cm_route(&self.service.ids.route(key)?, &self.service.devices))
    }

    fn destroy_channel(&mut self, request: &Handle) -> Reply<DestroyCmChannel> {
        let number = request.handle;
        let is_own = self.service.channels.get(&number).is_some_and(|channel| channel.session == self.session);
        if !is_own {
            return Err(CmErrno::NoEntry.into());
        }
        self.service.on_channel_closed(number, self.environment);
        Ok(Nothing {})
    }

    fn create(&mut self, request: &CreateCmIdRequest) -> Reply<CreateCmId> {
        let (space, kind) = abi::service(request.port_space, request.service)?;
        let is_own = self.service.channels.get(&request.channel).is_some_and(|it| it.session == self.session);
        if !is_own {
            return Err(CmErrno::Invalid.into());
        }
        let created = self.service.ids.create(owner_of(self.session), request.channel, request.uid, space, kind);
        if created == Err(CmErrno::NoMemory) {
            let account = self.service.account_of(self.session);
            self.service.refusals.note_limit(account, "limits.cm.ids_of_account");
        }
        Ok(Handle { handle: created?.number })
    }

    fn destroy(&mut self, request: &DestroyCmIdRequest) -> Reply<DestroyCmId> {
        let (key, now) = (self.key(request.id), self.now());
        let channel = self.service.ids.channel_of_any(key);
        self.with(|ids, host| ids.leave(key, host).or_else(|_| ids.destroy(key, host, now)))?;
        let listens_at = channel.ok().and_then(|channel| self.service.channels.get_mut(&channel));
        let requests = listens_at.map_or_else(Vec::new, |channel| channel.take_requests(key, request.taken));
        for number in requests {
            let key = IdKey { number, ..key };
            // It may be gone with its connection.
            let _ = self.with(|ids, host| ids.destroy(key, host, now));
        }
        if let Some(channel) = channel.ok().and_then(|channel| self.service.channels.get_mut(&channel)) {
            channel.forget(key);
        }
        Ok(Nothing {})
    }

    fn bind(&mut self, request: &BindCmRequest) -> Reply<BindCm> {
        let key = self.key(request.id);
        let address = abi::address(&request.address)?.ok_or(CmErrno::Family)?;
        self.with(|ids, host| ids.bind(key, address, host))?;
        self.route(key)
    }

    fn resolve_address(&mut self, request: &ResolveCmAddressRequest) -> Reply<ResolveCmAddress> {
        let (key, now) = (self.key(request.id), self.now());
        let source = abi::address(&request.source)?;
        let destination: SocketAddr = abi::address(&request.destination)?.ok_or(CmErrno::Family)?;
        let timeout = Duration::from_millis(request.timeout_ms.into());
        self.with(|ids, host| ids.resolve_address(key, source, destination, timeout, host, now))?;
        self.route(key)
    }

    fn resolve_route(&mut self, request: &ResolveCmRouteRequest) -> Reply<ResolveCmRoute> {
        if request.timeout_ms == 0 {
            return Err(CmErrno::Invalid.into());
        }
        let key = self.key(request.id);
        self.service.ids.resolve_route(key)?;
        self.route(key)
    }

    fn listen(&mut self, request: &ListenCmRequest) -> Reply<ListenCm> {
        let key = self.key(request.id);
        self.with(|ids, host| ids.listen(key, request.backlog, host))?;
        self.route(key)
    }

    /// Queue pairs of other users are none of the caller's: their peers would take the connection
    /// for stale.
    fn own_parameters(&self, of: &CmParameters) -> Result<Parameters, CallRefused> {
        let parameters = abi::parameters(of)?;
        let uid = self.service.owners.get(&self.session).map(|owner| owner.uid);
        let user = self.service.qps.get(&parameters.qpn).copied();
        if user.is_none() || user != uid {
            return Err(CmErrno::Invalid.into());
        }
        Ok(parameters)
    }

    fn connect(&mut self, request: &ConnectCmRequest) -> Reply<ConnectCm> {
        let (key, now) = (self.key(request.id), self.now());
        let parameters = if request.parameters.qpn == 0 {
            // A datagram service: the peer connects the queue pair.
            abi::parameters(&request.parameters)?
        } else {
            self.own_parameters(&request.parameters)?
        };
        let bytes = usize::from(request.parameters.private_data_bytes);
        let data = request.private_data.get(..bytes).ok_or(CmErrno::Invalid)?;
        self.service.ids.connect(key, &parameters, data, now)?;
        Ok(Nothing {})
    }

    fn accept(&mut self, request: &AcceptCmRequest) -> Reply<AcceptCm> {
        let (key, now) = (self.key(request.id), self.now());
        let bytes = usize::from(request.parameters.private_data_bytes);
        let data = request.private_data.get(..bytes).ok_or(CallRefused::from(CmErrno::Invalid));
        let checked = self.own_parameters(&request.parameters).and_then(|parameters| Ok((parameters, data?)));
        let (parameters, data) = checked.inspect_err(|_| self.service.ids.refuse_attempt(key, now))?;
        self.service.ids.accept(key, request.uid, &parameters, data, now)?;
        Ok(Nothing {})
    }

    fn confirm(&mut self, request: &Handle) -> Reply<ConfirmCm> {
        let (key, now) = (self.key(request.handle), self.now());
        self.service.ids.confirm(key, now)?;
        Ok(Nothing {})
    }

    fn reject(&mut self, request: &RejectCmRequest) -> Reply<RejectCm> {
        let (key, now) = (self.key(request.id), self.now());
        let bytes = request.private_data_bytes as usize;
        let data = request.private_data.get(..bytes).ok_or(CmErrno::Invalid)?;
        let reason = u16::try_from(request.reason).map_err(|_| CmErrno::Invalid)?;
        self.service.ids.reject(key, reason, data, now)?;
        Ok(Nothing {})
    }

    fn disconnect(&mut self, request: &Handle) -> Reply<DisconnectCm> {
        let (key, now) = (self.key(request.handle), self.now());
        self.service.ids.disconnect(key, now)?;
        Ok(Nothing {})
    }

    fn establish(&mut self, request: &Handle) -> Reply<EstablishCm> {
        let (key, now) = (self.key(request.handle), self.now());
        self.with(|ids, host| ids.establish(key, host, now))?;
        Ok(Nothing {})
    }

    fn join(&mut self, request: &JoinCmGroupRequest) -> Reply<JoinCmGroup> {
        let key = self.key(request.id);
        let group = abi::address(&request.group)?.ok_or(CmErrno::Family)?.ip();
        self.service.check_groups(self.session)?;
        let membership = self.with(|ids, host| ids.join(key, request.uid, group, request.send_only != 0, host))?;
        Ok(Handle { handle: membership.number })
    }

    fn migrate(&mut self, request: &MigrateCmRequest) -> Reply<MigrateCm> {
        let key = self.key(request.id);
        let stale = self.service.migrate(key, request.channel, request.taken)?;
        Ok(MigrateCmReply { stale })
    }

    fn set_option(&mut self, request: &SetCmOptionRequest) -> Reply<SetCmOption> {
        let key = self.key(request.id);
        self.service.ids.set_option(key, abi::option(request.option, request.value)?)?;
        Ok(Nothing {})
    }

    fn write_event(&mut self, request: &WriteCmEventRequest) -> Reply<WriteCmEvent> {
        if !matches!(request.kind, cm_event::USER | cm_event::INTERNAL) {
            return Err(CmErrno::Invalid.into());
        }
        let key = self.key(request.id);
        let channel = self.service.ids.channel(key)?;
        let waits = self.service.channels.get(&channel).map_or(0, EventChannel::own_waiting);
        if waits >= OWN_EVENTS_MAX {
            return Err(CmErrno::NoMemory.into());
        }
        self.service.ids.write_event(key, request.kind, request.status as i32, request.argument)?;
        Ok(Nothing {})
    }
}

impl ConnectionService {
    /// Room for one multicast group more of the session's user.
    fn check_groups(&mut self, session: SessionId) -> Result<(), CallRefused> {
        let account = self.account_of(session);
        let most = self.limits.groups_of_account;
        if self.ids.memberships_of(account) >= most {
            self.refusals.note_limit(account, "limits.cm.groups_of_account");
            return Err(CallRefused::Limit(most));
        }
        Ok(())
    }
}
