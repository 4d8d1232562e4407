//! Connections and hosts come and go.

use roced_transport::{
    counters::QpCount,
    recovery::{Recovery, RecoveryConfig},
};
use roced_types::Qpn;

use super::{World, rated::RatedTraffic};
use crate::{
    check::Tally,
    connection::{Connection, End, Phase, Rebirth},
    fault::Fault,
    frame, host,
    say::say,
    service::Service,
    settings::Settings,
    shared::Shared,
    stream::Stream,
};

/// The longest that a host takes to answer, in nanoseconds.
const REACTION: u64 = 150_000;

/// Of connections, in seeds that have others than reliable ones.
const SERVICES: [Service; 4] = [Service::Reliable, Service::Reliable, Service::Unreliable, Service::Datagram];

impl World {
    /// A host goes away with all that its endpoint knew, and comes back empty.
    pub(super) fn restart(&mut self) {
        self.restart_at = u64::MAX;
        let at = self.random.below(2) as usize;
        if self.model.trace {
            say(format_args!("{:>12} host {at}   restarts", self.now));
        }
        self.check_counters(at, true);
        self.changing.retain(|(_, host, ..)| *host != at);
        let slots = self.model.connections.len();
        if let Some(shared) = &mut self.model.hosts[at].shared {
            shared.begin_anew();
        }
        let (recovery, congestion) = (self.recovery[at], self.congestion[at]);
        self.endpoints[at] =
            host::endpoint(at, slots, &self.model.hosts[at], recovery, congestion, self.has_classes[at]);
        self.model.hosts[at].tally = Tally::default();
        self.rated[at] = RatedTraffic::default();
        self.forget_given(at);
        self.forget_notifications(at);
        self.model.hosts[at].by_index.fill(None);
        self.leaving.forget(at);
        self.model.returned.forget(at);
        for slot in 0..slots {
            let connection = &mut self.model.connections[slot];
            let end = &mut connection.ends[at];
            (end.gone, end.ending, end.left) = (true, None, None);
            if matches!(connection.phase, Phase::Closed { .. }) {
                continue;
            }
            let under_way = connection.ends.iter().flat_map(|end| end.stream.outstanding().map(|message| message.rows));
            // Where nothing is answered, only frames can be under way.
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

    /// Makes the connection of a slot, after the one that was there if `again`.
    pub(super) fn connect(&mut self, slot: usize, again: bool) -> Connection {
        let before = again.then(|| &self.model.connections[slot]);
        let rebirth = before.map_or(Rebirth::NewNumbers, |before| before.rebirth);
        let (last_psns, mtu_before) = (before.map(|before| before.psns), before.map(|before| before.settings.mtu));
        let index = match before {
            Some(before) if rebirth != Rebirth::NewNumbers => Qpn::from_wire(before.ends[0].qpn).index(),
            _ => {
                self.next_index += 1;
                self.next_index - 1
            }
        };
        let plans = before.map(|before| self.leaving.on_replaced(before)).unwrap_or_default();
        plans.into_iter().flatten().for_each(|plan| self.come_back(plan));
        let settings = self.draw_settings(slot, rebirth, again);
        let psns = self.earlier.psns(&mut self.random, slot, last_psns);
        self.earlier.lives += 1;
        let life = self.earlier.lives;
        let qpns = [0, 1].map(|at| host::qpn(at, index));
        let keeps = self.recovery.map(|recovery| recovery.kind == Recovery::Selective);
        let late = settings.service.is_reliable() && self.earlier.is_on() && self.random.one_in(2);
        let were_reset = [0, 1].map(|at| rebirth == Rebirth::Reset && !self.model.connections[slot].ends[at].gone);
        let mut ends = [0, 1].map(|at| {
            let was_reset = were_reset[at];
            if !was_reset {
                self.earlier.forget(slot, at);
            }
            let is_shared = if was_reset {
                self.model.connections[slot].ends[at].is_shared
            } else {
                self.make_queue_pair(at, qpns[at], &settings)
            };
            let port = self.earlier.port(at, slot, life);
            host::connect(&mut self.endpoints[at], (at, slot), qpns[at], qpns[1 - at], &settings, psns, port);
            self.model.hosts[at].by_index[index as usize] = Some(slot);
            self.renew_key(at, slot, qpns[at]);
            let mut stream = Stream::new(&settings, keeps[at], self.network.round_trip(), psns[at], self.now);
            stream.owed.patience = self.recovery[at].probe_floor.0;
            // In a later life of a queue pair nothing is held for longer than most lives are here.
            stream.borne_from = (self.bears_paths() && were_reset == [false; 2]).then_some(stream.start);
            stream.is_disturbed = !self.weather.is_calm() || self.small_nic || self.pauses.is_on;
            stream.is_unheard = self.pauses.is_on;
            stream.may_pause = self.pauses.next[at] != u64::MAX;
            stream.timeouts = self.endpoints[at].qp(qpns[at]).map_or(0, |qp| qp.counters().get(QpCount::AckTimeout));
            End {
                ready: false,
                rts_at: self.now + if late { self.random.below(300_000) } else { 0 },
                reset_at: was_reset.then_some(self.now),
                ..End::new(qpns[at].get(), is_shared, stream)
            }
        });
        if self.model.trace {
            say(format_args!(
                "{:>12} slot {slot}   connection {index}, life {life}, {rebirth:?}, PSNs {psns:?}, {settings:?}, {:?}",
                self.now, self.recovery
            ));
        }
        if self.random.one_in(4) {
            ends.iter_mut().for_each(|end| end.drain_after = self.random.below(100));
        }
        Connection {
            slot,
            life,
            psns,
            rebirth,
            settings,
            ends,
            phase: Phase::Open,
            leaver: self.leaving.leaver(settings.service),
            mtu_changed: mtu_before.is_some_and(|mtu| mtu != settings.mtu),
            quiet_from: self.now,
            frames_left: if self.earlier.is_on() {
                self.random.within(60, 800)
            } else {
                self.random.within(200, 2_000)
            },
        }
    }

    /// Settings of the next life of a slot's connection.
    fn draw_settings(&mut self, slot: usize, rebirth: Rebirth, again: bool) -> Settings {
        let before = again.then(|| self.model.connections[slot].settings);
        let service = if self.mixed { self.random.pick(&SERVICES) } else { Service::Reliable };
        let service = match (rebirth, before) {
            (Rebirth::Reset, Some(before)) => before.service,
            (Rebirth::SameNumbers, Some(before)) if !self.random.one_in(4) => before.service,
            _ => service,
        };
        let mut settings = Settings::draw(&mut self.random, service);
        if let Some(before) = before {
            if rebirth == Rebirth::Reset {
                settings = settings.with_queue_pairs_of(&before);
                if self.earlier.will_doubt(slot) {
                    settings.retry_cnt = settings.retry_cnt.max(4);
                }
            } else if rebirth == Rebirth::SameNumbers {
                settings.ipv6 = before.ipv6;
            }
            if !self.random.chance(self.weather.mtu_change) {
                settings.mtu = before.mtu;
            }
        }
        settings
    }

    /// The network does nothing but spread frames over paths with a difference that both hosts
    /// bear.
    fn bears_paths(&self) -> bool {
        let bears = |recovery: &RecoveryConfig| {
            let longest = 2 * self.network.longest_way() + REACTION;
            recovery.kind == Recovery::Selective
                && self.network.disorder().is_some_and(|most| most < recovery.reorder_delay.0)
                && recovery.probe_floor.0 > longest
                && recovery.out_of_order_packets == 1_024
        };
        self.recovery.iter().all(bears) && !self.small_nic && !self.pauses.is_on && self.weather.peer_restart == 0
    }

    /// Makes a queue pair; says whether it takes its receives from its host's shared queue.
    fn make_queue_pair(&mut self, at: usize, qpn: Qpn, settings: &Settings) -> bool {
        let fits = |shared: &&Shared| !shared.for_datagrams || settings.service == Service::Datagram;
        let shared = self.model.hosts[at].shared.as_ref().filter(fits).filter(|_| !self.random.one_in(3));
        let srq = shared.map(|shared| shared.config(at));
        host::insert(&mut self.endpoints[at], qpn, settings, srq.as_ref());
        srq.is_some()
    }
}
