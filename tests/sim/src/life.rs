//! Connections and hosts come and go.

use roced_transport::recovery::Recovery;

use crate::{
    check::Tally,
    connection::{Connection, End, Phase, Settings},
    fault::Fault,
    frame, host,
    service::Service,
    shared::Shared,
    stream::Stream,
    world::World,
};

/// Of connections, in seeds that have others than reliable ones.
const SERVICES: [Service; 4] = [Service::Reliable, Service::Reliable, Service::Unreliable, Service::Datagram];

impl World {
    /// A host goes away with all that its endpoint knew, and comes back empty.
    pub(crate) fn restart(&mut self) {
        self.restart_at = u64::MAX;
        let at = self.random.below(2) as usize;
        if self.model.trace {
            println!("{:>12} host {at}   restarts", self.now);
        }
        self.check_counters(at, true);
        self.changing.retain(|(_, host, _)| *host != at);
        let slots = self.model.connections.len();
        if let Some(shared) = &mut self.model.hosts[at].shared {
            shared.begin_anew();
        }
        self.endpoints[at] = host::endpoint(at, slots, &self.model.hosts[at], self.recovery[at]);
        self.model.hosts[at].tally = Tally::default();
        self.model.hosts[at].by_index.fill(None);
        for slot in 0..slots {
            let connection = &mut self.model.connections[slot];
            if matches!(connection.phase, Phase::Closed { .. }) {
                continue;
            }
            connection.ends[at].gone = true;
            let under_way = connection.ends.iter().flat_map(|end| end.stream.outstanding().map(|message| message.rows));
            // Where nothing is answered, what is under way are frames.
            let flying = self.network.flying().filter_map(frame::parse).filter_map(|seen| {
                let mut ends = connection.ends.iter().zip([1, 0]);
                let from = match (seen.service, seen.deth) {
                    (Service::Reliable, _) => return None,
                    (_, Some(deth)) => connection.ends.iter().position(|end| end.qpn == deth.source_qpn)?,
                    (_, None) => ends.find(|(end, _)| end.qpn == seen.dest_qpn)?.1,
                };
                let stream = &connection.ends[from].stream;
                Some(stream.rows_at(stream.unwrap_psn(seen.psn)))
            });
            for rows in under_way.chain(flying).collect::<Vec<_>>() {
                self.model.count_hits(rows, 1 << Fault::PeerRestart as usize);
            }
        }
    }

    /// Makes the connection of a slot, after the one that was there.
    pub(crate) fn connect(&mut self, slot: usize, before: Option<&Settings>) -> Connection {
        let service = if self.mixed { self.random.pick(&SERVICES) } else { Service::Reliable };
        let mut settings = Settings::draw(&mut self.random, service);
        if let Some(before) = before
            && !self.random.chance(self.weather.mtu_change)
        {
            settings.mtu = before.mtu;
        }
        let index = self.next_index;
        self.next_index += 1;
        // Half of the connections come to the wrap.
        let psns = [(); 2].map(|()| {
            let below = if self.random.one_in(2) { 300 } else { 1 << 24 };
            0x00ff_ffff - self.random.below(below) as u32
        });
        let qpns = [0, 1].map(|at| host::qpn(at, index));
        let mut is_shared = [false; 2];
        for at in 0..2 {
            let fits = |shared: &&Shared| !shared.for_datagrams || service == Service::Datagram;
            let shared = self.model.hosts[at].shared.as_ref().filter(fits).filter(|_| !self.random.one_in(3));
            let srq = shared.map(|shared| shared.config(at));
            is_shared[at] = srq.is_some();
            host::connect(&mut self.endpoints[at], (at, slot), qpns[at], qpns[1 - at], &settings, psns, srq.as_ref());
            self.model.hosts[at].by_index[index as usize] = Some(slot);
            self.renew_key(at, slot, qpns[at]);
        }
        if self.model.trace {
            println!(
                "{:>12} slot {slot}   connection {index}, PSNs {psns:?}, {settings:?}, {:?}",
                self.now, self.recovery
            );
        }
        let keeps = self.recovery.map(|recovery| recovery.kind == Recovery::Selective);
        let stream = |at: usize| Stream::new(&settings, keeps[at], self.network.round_trip(), psns[at], self.now);
        let mut ends = [0, 1].map(|at| End::new(qpns[at].get(), is_shared[at], stream(at)));
        if self.random.one_in(4) {
            ends.iter_mut().for_each(|end| end.drain_after = self.random.below(100));
        }
        Connection {
            slot,
            settings,
            ends,
            phase: Phase::Open,
            mtu_changed: before.is_some_and(|before| before.mtu != settings.mtu),
            quiet_from: self.now,
            frames_left: self.random.within(200, 2_000),
        }
    }
}
