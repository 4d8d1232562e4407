//! Programs come back and send.

use roced_transport::work::{DatagramTo, SendWork, WorkData};
use roced_types::{Qpn, SendOp, Sge, send_flags};

use super::World;
use crate::{
    check::What,
    frame, host,
    layout::{SOURCE_KEY, SOURCE_VA},
    returning::{Plan, Returned},
    say::say,
};

impl World {
    /// A program comes back, not twice with the same number.
    pub(super) fn come_back(&mut self, plan: Plan) {
        let Plan { host, qpn, to, slot, settings, before, .. } = plan;
        if self.model.returned.has(host, qpn) {
            return;
        }
        let random = &mut self.leaving.random;
        let lengths = [(); 3].map(|()| random.within(1, 3 * u64::from(settings.mtu)) as u32);
        let lengths = &lengths[..random.within(1, 3) as usize];
        let packets = lengths.iter().map(|length| length.div_ceil(settings.mtu)).sum();
        let (first, overlaps) = plan.first(random, packets, self.earlier.changes_port(host));
        self.leaving.on_number_in_use(host, qpn);
        self.earlier.lives += 1;
        let life = self.earlier.lives;
        let (own, peer, endpoint) = (Qpn::from_wire(qpn), Qpn::from_wire(to), &mut self.endpoints[host]);
        let port = self.earlier.port(host, slot, life);
        host::insert(endpoint, own, &settings, None);
        host::connect(endpoint, (host, slot), own, peer, &settings, [first; 2], port);
        host::make_ready(endpoint, host, own, to, &settings, [first; 2]);
        for (wr_id, length) in lengths.iter().enumerate() {
            let sges = [Sge { va: SOURCE_VA, length: *length, lkey: SOURCE_KEY }];
            let work = SendWork {
                wr_id: wr_id as u64,
                op: SendOp::Send,
                flags: send_flags::SIGNALED,
                imm: [0; 4],
                remote_va: 0,
                rkey: 0,
                swap_or_add: 0,
                compare: 0,
                to: DatagramTo::NOWHERE,
                data: WorkData::Sges(&sges),
            };
            endpoint.post_send(own, &work).expect("just made");
        }
        let returned = Returned { host, qpn, to, life, before, first, sent: 0, overlaps, heard: false };
        if self.model.trace {
            say(format_args!("{:>12} host {host}   comes back after {plan:x?}: {returned:x?}", self.now));
        }
        self.model.returned.push(returned);
        self.model.activity = true;
    }

    /// A frame leaves that is a request of a program that came back. Returns its life.
    pub(super) fn life_of_returned(&mut self, from: usize, bytes: &[u8]) -> Option<u32> {
        let seen = frame::parse(bytes).filter(|seen| seen.service.is_reliable() && seen.is_request())?;
        let (life, is_first) = self.model.returned.on_request(from, &seen)?;
        let tally = &mut self.model.hosts[from].tally;
        tally.requests += 1;
        tally.payload_bytes += seen.payload.len() as u64;
        tally.on_sent(if is_first { What::First } else { What::AgainOrQuestion });
        Some(life)
    }
}
