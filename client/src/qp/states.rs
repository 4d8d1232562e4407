//! State changes of queue pairs, attributes and multicast groups.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use roced_abi::control::{AttachMulticast, DetachMulticast, ModifyQp, ModifyQpRequest, MulticastRequest};
use roced_types::{QpAttributes, attribute, state};

use super::QueuePair;
use crate::{
    access::Access,
    error::{Error, Result},
    gid::Gid,
    mapping::ProducerRing,
    qp_address::{ConnectOptions, QpAddress},
    service::ServiceType,
};

/// Maximum time that a reset waits for the daemon to empty the rings. The daemon needs a few poll
/// iterations of microseconds each.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl QueuePair {
    /// Connects to `remote`: changes the state from RESET or INIT to RTS. Receives can, and should,
    /// be posted earlier, after [`Self::to_init`].
    ///
    /// # Errors
    /// No route to the peer; a path MTU that the link does not carry; a state other than RESET or
    /// INIT; the daemon is gone. An absent peer is not detected until work is posted.
    pub fn connect(&self, remote: &QpAddress, options: &ConnectOptions) -> Result<()> {
        if self.state.load(Ordering::Acquire) == state::RESET {
            self.to_init(options.access)?;
        }
        self.to_rtr(remote, options)?;
        self.to_rts(options)
    }

    /// Changes the state from RESET to INIT: receives may be posted from now on.
    ///
    /// # Errors
    /// Another state; the daemon is gone.
    pub fn to_init(&self, access: Access) -> Result<()> {
        let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
        let pkey_index = self.pkey_index;
        self.modify(
            mask,
            &QpAttributes { state: state::INIT, access: access.bits(), pkey_index, ..QpAttributes::default() },
        )
    }

    /// Changes the state from INIT to RTR: ready to receive from `remote`.
    ///
    /// # Errors
    /// Those of [`Self::connect`].
    pub fn to_rtr(&self, remote: &QpAddress, options: &ConnectOptions) -> Result<()> {
        let device = self.device();
        let sgid_index = match options.sgid_index {
            Some(index) => index,
            None => device.gid_toward(remote.gid)?.index,
        };
        let path_mtu_bytes = match options.path_mtu_bytes {
            Some(bytes) => bytes,
            None => common_path_mtu(device.port()?.active_mtu_bytes, remote.mtu_bytes)?,
        };
        let acknowledged = match self.service {
            ServiceType::Rc => attribute::MAX_DEST_RD_ATOMIC | attribute::MIN_RNR_TIMER,
            ServiceType::Uc | ServiceType::Ud => 0,
        };
        let mask = attribute::STATE
            | attribute::AV
            | attribute::PATH_MTU
            | attribute::DEST_QPN
            | attribute::RQ_PSN
            | acknowledged;
        self.modify(
            mask,
            &QpAttributes {
                state: state::RTR,
                path_mtu_bytes,
                dest_qpn: remote.qpn,
                rq_psn: remote.psn,
                max_dest_rd_atomic: options.max_dest_rd_atomic,
                min_rnr_timer: options.min_rnr_timer,
                sgid_index,
                dgid: remote.gid.0,
                hop_limit: options.hop_limit.into(),
                traffic_class: options.traffic_class.into(),
                flow_label: options.flow_label,
                service_level: options.service_level.into(),
                ..QpAttributes::default()
            },
        )
    }

    /// Changes the state from RTR to RTS: ready to send.
    ///
    /// # Errors
    /// Another state; the daemon is gone.
    pub fn to_rts(&self, options: &ConnectOptions) -> Result<()> {
        let acknowledged = match self.service {
            ServiceType::Rc => {
                attribute::TIMEOUT | attribute::RETRY_CNT | attribute::RNR_RETRY | attribute::MAX_QP_RD_ATOMIC
            }
            ServiceType::Uc | ServiceType::Ud => 0,
        };
        let mask = attribute::STATE | attribute::SQ_PSN | acknowledged;
        self.modify(
            mask,
            &QpAttributes {
                state: state::RTS,
                sq_psn: self.psn,
                max_rd_atomic: options.max_rd_atomic,
                timeout: options.timeout,
                retry_cnt: options.retry_cnt,
                rnr_retry: options.rnr_retry,
                ..QpAttributes::default()
            },
        )
    }

    /// Changes the state from RTS to SQD: sends in progress run to completion, no further send
    /// starts, and receiving continues.
    ///
    /// With `event`, the device reports completion of the last send
    /// ([`crate::DeviceEvent::SqDrained`]); [`Self::query`] reports it as well (`sq_draining`).
    /// After that, attributes can be changed with [`Self::modify`], and [`Self::resume`] returns to
    /// RTS.
    ///
    /// # Errors
    /// Another state; the daemon is gone.
    pub fn to_sqd(&self, event: bool) -> Result<()> {
        self.modify(
            attribute::STATE | attribute::SQ_DRAINED_EVENT,
            &QpAttributes { state: state::SQD, sq_drained_event: event.into(), ..QpAttributes::default() },
        )
    }

    /// Changes the state from SQD back to RTS: sends continue.
    ///
    /// # Errors
    /// Sends are still in progress; another state; the daemon is gone.
    pub fn resume(&self) -> Result<()> {
        let attributes = QpAttributes { state: state::RTS, current_state: state::SQD, ..QpAttributes::default() };
        self.modify(attribute::STATE | attribute::CURRENT_STATE, &attributes)
    }

    /// Changes the state of a datagram queue pair from RESET to RTS: datagrams with `qkey` are
    /// accepted from now on. A datagram that arrives before a receive is posted is lost.
    ///
    /// # Errors
    /// Another state or service; the daemon is gone.
    pub fn activate(&self, qkey: u32) -> Result<()> {
        let pkey_index = self.pkey_index;
        let attributes = QpAttributes { state: state::INIT, qkey, pkey_index, ..QpAttributes::default() };
        let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY;
        self.modify(mask, &attributes)?;
        self.modify(attribute::STATE, &QpAttributes { state: state::RTR, ..attributes })?;
        let to_rts = attribute::STATE | attribute::SQ_PSN;
        self.modify(to_rts, &QpAttributes { state: state::RTS, sq_psn: self.psn, ..attributes })
    }

    /// Attaches a datagram queue pair to a multicast group: datagrams sent to the group, on this
    /// host or elsewhere, arrive from now on.
    ///
    /// `sgid_index` selects the interface that joins the group, by an index of the GID table;
    /// `None` selects the matching GID ([`crate::Device::gid_toward`]). To send to the group, use
    /// an [`crate::AddressHandle`] of the group and queue pair number [`crate::MULTICAST_QPN`].
    ///
    /// # Errors
    /// No multicast group; another service; the session's limit; the kernel refuses to join the
    /// group; the daemon is gone.
    pub fn attach(&self, group: Gid, sgid_index: Option<u32>) -> Result<()> {
        let sgid_index = match sgid_index {
            Some(index) => index,
            None => self.device().gid_toward(group)?.index,
        };
        self.session().call::<AttachMulticast>(MulticastRequest { qpn: self.qpn, sgid_index, group: group.0 })?;
        Ok(())
    }

    /// Detaches the queue pair from a multicast group.
    ///
    /// # Errors
    /// Not attached; the daemon is gone.
    pub fn detach(&self, group: Gid) -> Result<()> {
        self.session().call::<DetachMulticast>(MulticastRequest { qpn: self.qpn, sgid_index: 0, group: group.0 })?;
        Ok(())
    }

    /// Changes to the error state: all work is flushed to the completion queues.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn to_error(&self) -> Result<()> {
        self.modify(attribute::STATE, &QpAttributes { state: state::ERR, ..QpAttributes::default() })
    }

    /// Changes back to RESET: all work is discarded without completions. A receive that the queue
    /// pair had taken from a shared receive queue and not completed returns there.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn reset(&self) -> Result<()> {
        self.modify(attribute::STATE, &QpAttributes { state: state::RESET, ..QpAttributes::default() })
    }

    /// Limits the Ethernet frames that it sends to `kbit_per_s`, 0 for no limit. After a pause
    /// `burst_bytes` may leave at once, 0 for those of 50 us. A READ counts as its responses. The
    /// daemon's timers are 8.2 us apart: with a burst of fewer bytes than two of these have at the
    /// rate, it may stay below the rate.
    ///
    /// ```no_run
    /// # fn example(qp: &roced_client::QueuePair) -> roced_client::Result<()> {
    /// // 200 Mbit/s, and 64 KiB at once after a pause.
    /// qp.limit_rate(200_000, 65_536)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A state before RTS; the daemon is gone.
    pub fn limit_rate(&self, kbit_per_s: u32, burst_bytes: u32) -> Result<()> {
        let limit = QpAttributes {
            rate_limit_kbit_per_s: kbit_per_s,
            rate_limit_burst_bytes: burst_bytes,
            ..QpAttributes::default()
        };
        self.modify(attribute::RATE_LIMIT, &limit)
    }

    /// Changes state or attributes as selected by `mask` ([`crate::attribute`] bits).
    ///
    /// # Errors
    /// A change that the present state does not allow; the daemon is gone.
    pub fn modify(&self, mask: u32, attributes: &QpAttributes) -> Result<()> {
        let request = ModifyQpRequest { qpn: self.qpn, mask, attributes: *attributes };
        let resets = mask & attribute::STATE != 0 && attributes.state == state::RESET;
        if !resets {
            self.session().call::<ModifyQp>(request)?;
            if mask & attribute::STATE != 0 {
                self.state.store(attributes.state, Ordering::Release);
            }
            return Ok(());
        }
        // No thread posts while the rings are emptied.
        let (mut send, mut recv) = (self.send.enter(), self.recv.enter());
        self.session().call::<ModifyQp>(request)?;
        self.state.store(state::RESET, Ordering::Release);
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while !(is_drained(&mut send.ring, self.sizes.send_wrs)? && is_drained(&mut recv.ring, self.sizes.recv_wrs)?) {
            if self.session().look() {
                return Err(Error::DaemonGone);
            }
            if Instant::now() > deadline {
                return Err(Error::DaemonSilent { call: "reset", seconds: DRAIN_TIMEOUT.as_secs() });
            }
            thread::yield_now();
        }
        self.send_cq.inner.forget(self.qpn, &self.work.send);
        self.recv_cq.inner.forget(self.qpn, &self.work.recv);
        Ok(())
    }
}

fn is_drained(ring: &mut ProducerRing, entries: u32) -> Result<bool> {
    ring.room().map(|room| room == entries).map_err(|_| Error::Protocol { what: "a ring index out of range" })
}

/// The largest path MTU that both links carry.
fn common_path_mtu(ours: u32, theirs: u32) -> Result<u32> {
    match (ours, theirs) {
        (0, _) => Err(Error::NoPathMtu { whose: "this device's" }),
        (_, 0) => Err(Error::NoPathMtu { whose: "the peer's" }),
        _ => Ok(ours.min(theirs)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_without_a_path_mtu_is_named() {
        assert_eq!(common_path_mtu(1024, 4096).expect("both carry it"), 1024);
        let refused = |ours, theirs| common_path_mtu(ours, theirs).expect_err("one carries none").to_string();
        assert!(refused(0, 1024).contains("this device's"), "{}", refused(0, 1024));
        assert!(refused(1024, 0).contains("the peer's"), "{}", refused(1024, 0));
    }
}
