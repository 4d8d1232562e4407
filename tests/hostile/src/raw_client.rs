//! The control protocol, spoken without the client library: any bytes, any descriptors.
#![expect(unsafe_code, reason = "takes ownership of file descriptors that came by SCM_RIGHTS")]

use std::{
    fmt,
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    cmsg_space,
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv,
            recvmsg, sendmsg, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};
use roced_abi::{
    VERSION,
    control::{
        Call, CreateQp, CreateQpReply, CreateQpRequest, DeviceName, EVENT, GidEntry, Hello, HelloReply, HelloRequest,
        Index, ListDevice, Message, ModifyQp, ModifyQpRequest, OpenDevice, OpenDeviceReply, QueryGid,
    },
    layout::QpLayout,
};
use roced_types::{QpAttributes, attribute, state};
use zerocopy::IntoBytes as _;

use crate::shared::Shared;

/// Longest wait for a reply. A daemon that is silent for longer counts as one that hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Most descriptors beside a reply.
const FDS_MAX: usize = 66;

/// A connection to the daemon.
#[derive(Debug)]
pub(crate) struct RawClient {
    socket: OwnedFd,
    sequence: u32,
}

/// A session with an open device.
#[derive(Debug)]
pub(crate) struct RawSession {
    /// Its connection.
    pub(crate) client: RawClient,
    /// Its workers.
    pub(crate) opened: OpenDeviceReply,
    /// Session memfd, state memfd, wake eventfds.
    pub(crate) fds: Vec<OwnedFd>,
}

/// A queue pair and its rings.
#[derive(Debug)]
pub(crate) struct RawQp {
    /// The daemon's reply.
    pub(crate) reply: CreateQpReply,
    /// Memfd of the rings.
    pub(crate) file: OwnedFd,
    /// Their places.
    pub(crate) layout: QpLayout,
}

/// Reply to a call with its descriptors, or a refusal.
pub(crate) type RawReply<R> = Result<(R, Vec<OwnedFd>), RawRefusal>;

/// A refusal: its status and detail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRefusal {
    pub(crate) status: u32,
    pub(crate) detail: [u64; 2],
}

impl fmt::Display for RawRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused with status {} and detail {:?}", self.status, self.detail)
    }
}

impl std::error::Error for RawRefusal {}

impl RawClient {
    /// Connects, and says nothing.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let patience = TimeVal::milliseconds(TIMEOUT.as_millis() as i64);
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
        setsockopt(&socket, sockopt::SendTimeout, &patience)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
            .with_context(|| format!("connecting to {}", path.display()))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Another descriptor of the socket.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd> {
        Ok(self.socket.try_clone()?)
    }

    /// Sends any bytes with any descriptors.
    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[RawFd], flags: MsgFlags) -> Result<(), Errno> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).map(drop)
    }

    /// Receives a message and its descriptors; `None` at the end of the session.
    pub(crate) fn receive(&self, flags: MsgFlags) -> Result<Option<(Message, Vec<OwnedFd>)>, Errno> {
        let mut message = Message::new(0, 0, &0_u32);
        let mut room = cmsg_space!([RawFd; FDS_MAX]);
        let bytes = message.as_mut_bytes();
        let mut pieces = [IoSliceMut::new(bytes)];
        let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<()>(self.socket.as_raw_fd(), &mut pieces, Some(&mut room), flags)?;
        let mut fds = Vec::new();
        for control in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just created each for this process, and no other code
                // knows of it.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let length = received.bytes;
        Ok((length > 0).then_some((message, fds)))
    }

    /// The daemon has ended the session, and nothing of it is left to be received.
    pub(crate) fn has_ended(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        matches!(recv(self.socket.as_raw_fd(), &mut [0], flags), Ok(0) | Err(Errno::ECONNRESET))
    }

    /// Waits until there is something to receive, for `time` at most.
    pub(crate) fn wait_for_reply(&self, time: Duration) {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        // A time that is up shows at the next receive.
        let _ = poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// Sends the request of a call; returns its sequence number.
    pub(crate) fn begin<C: Call>(&mut self, request: &C::Request, fds: &[RawFd]) -> Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let message = Message::new(C::OP, self.sequence, request);
        self.send_bytes(message.as_bytes(), fds, MsgFlags::empty()).context("sending a request")?;
        Ok(self.sequence)
    }

    /// The reply to a call, with events skipped.
    pub(crate) fn finish<C: Call>(&mut self) -> Result<RawReply<C::Reply>> {
        loop {
            let received = self.receive(MsgFlags::empty()).context("waiting for a reply")?;
            let (message, fds) = received.context("the daemon has ended the session")?;
            match message.header.op {
                EVENT => {}
                _ if message.header.status != 0 => {
                    return Ok(Err(RawRefusal { status: message.header.status, detail: message.body() }));
                }
                op => {
                    ensure!(op == C::OP, "a reply to call {op} in place of {}", C::OP);
                    return Ok(Ok((message.body(), fds)));
                }
            }
        }
    }

    /// Makes a call with descriptors beside it.
    pub(crate) fn attempt<C: Call>(&mut self, request: C::Request, fds: &[RawFd]) -> Result<RawReply<C::Reply>> {
        self.begin::<C>(&request, fds)?;
        self.finish::<C>()
    }

    /// Makes a call that is expected to succeed.
    pub(crate) fn call<C: Call>(&mut self, request: C::Request) -> Result<(C::Reply, Vec<OwnedFd>)> {
        match self.attempt::<C>(request, &[])? {
            Ok(reply) => Ok(reply),
            Err(refusal) => Err(anyhow::Error::new(refusal).context(format!("call {}", C::OP))),
        }
    }

    /// Performs the handshake.
    pub(crate) fn hello(&mut self) -> Result<HelloReply> {
        let mut program = [0; 16];
        program[..7].copy_from_slice(b"hostile");
        Ok(self.call::<Hello>(HelloRequest { version: VERSION, program })?.0)
    }
}

impl RawSession {
    /// Opens the first device.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut client = RawClient::connect(path)?;
        client.hello()?;
        let (name, _) = client.call::<ListDevice>(Index { index: 0 })?;
        let name: DeviceName = name;
        let (opened, fds) = client.call::<OpenDevice>(name)?;
        ensure!(fds.len() >= 3, "{} descriptors beside the device", fds.len());
        Ok(Self { client, opened, fds })
    }

    /// Maps the doorbell blocks.
    pub(crate) fn doorbells(&self) -> Result<Arc<Shared>> {
        Shared::whole(&self.fds[0])
    }

    /// Wakes the first worker.
    pub(crate) fn wake(&self) {
        // A full eventfd has woken it already.
        let _ = nix::unistd::write(&self.fds[2], &1_u64.to_ne_bytes());
    }

    /// Creates a queue pair.
    pub(crate) fn queue_pair(&mut self, request: CreateQpRequest) -> Result<Result<RawQp, RawRefusal>> {
        Ok(self.client.attempt::<CreateQp>(request, &[])?.and_then(|(reply, mut fds)| {
            let file = fds.pop().ok_or(RawRefusal { status: 0, detail: [0; 2] })?;
            Ok(RawQp { reply, file, layout: QpLayout::new(reply.sizes()) })
        }))
    }

    /// The first GID of RoCEv2 over IPv4, and its index.
    pub(crate) fn gid(&mut self) -> Result<(u32, [u8; 16])> {
        for index in 0..16 {
            let (entry, _) = self.client.call::<QueryGid>(Index { index })?;
            let entry: GidEntry = entry;
            if entry.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
                return Ok((index, entry.gid));
            }
        }
        bail!("the device has no IPv4 address")
    }

    /// Connects an RC queue pair of this session to `dest_qpn` at `dgid`.
    pub(crate) fn connect(&mut self, qpn: u32, dgid: [u8; 16], dest_qpn: u32) -> Result<()> {
        let (sgid_index, _) = self.gid()?;
        let changes = [
            (
                attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
                QpAttributes { state: state::INIT, access: roced_types::access::REMOTE, ..QpAttributes::default() },
            ),
            (
                attribute::STATE
                    | attribute::AV
                    | attribute::PATH_MTU
                    | attribute::DEST_QPN
                    | attribute::RQ_PSN
                    | attribute::MAX_DEST_RD_ATOMIC
                    | attribute::MIN_RNR_TIMER,
                QpAttributes {
                    state: state::RTR,
                    path_mtu_bytes: 1024,
                    dest_qpn,
                    rq_psn: 1,
                    max_dest_rd_atomic: 1,
                    min_rnr_timer: 12,
                    sgid_index,
                    dgid,
                    ..QpAttributes::default()
                },
            ),
            (
                attribute::STATE
                    | attribute::SQ_PSN
                    | attribute::TIMEOUT
                    | attribute::RETRY_CNT
                    | attribute::RNR_RETRY
                    | attribute::MAX_QP_RD_ATOMIC,
                QpAttributes {
                    state: state::RTS,
                    sq_psn: 1,
                    max_rd_atomic: 1,
                    timeout: 14,
                    retry_cnt: 7,
                    rnr_retry: 7,
                    ..QpAttributes::default()
                },
            ),
        ];
        for (mask, attributes) in changes {
            self.client.call::<ModifyQp>(ModifyQpRequest { qpn, mask, attributes })?;
        }
        Ok(())
    }
}
