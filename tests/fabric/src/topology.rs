//! Hosts, switches and the links between them, and the ports by which a switch reaches a host.

use std::collections::VecDeque;

use roced_transport::clock::Nanos;

/// A port of a host or of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortId {
    /// Its node: hosts are numbered first, then switches.
    pub(crate) node: usize,
    /// Its number there; a host has one.
    pub(crate) port: usize,
}

/// A link, of either direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSpec {
    pub(crate) mbit_per_s: u64,
    pub(crate) one_way: Nanos,
}

impl LinkSpec {
    /// Time to send that many bytes, on the wire.
    pub(crate) const fn duration(self, wire_bytes: u64) -> Nanos {
        Nanos(wire_bytes * 8000 / self.mbit_per_s)
    }
}

/// Nodes and links.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    hosts: usize,
    /// For each node and port: the port at the other end, and the link to it.
    ports: Vec<Vec<(PortId, LinkSpec)>>,
}

impl Topology {
    /// Nodes without links.
    pub(crate) fn new(hosts: usize, switches: usize) -> Self {
        Self { hosts, ports: vec![Vec::new(); hosts + switches] }
    }

    /// Hosts behind one switch.
    pub(crate) fn star(hosts: usize, link: LinkSpec) -> Self {
        let mut topology = Self::new(hosts, 1);
        (0..hosts).for_each(|host| topology.link_host(host, 0, link));
        topology
    }

    /// Adds a link of a host to a switch.
    pub(crate) fn link_host(&mut self, host: usize, switch: usize, link: LinkSpec) {
        self.add(host, self.hosts + switch, link);
    }

    /// Adds a link between two switches.
    pub(crate) fn link_switches(&mut self, a: usize, b: usize, link: LinkSpec) {
        self.add(self.hosts + a, self.hosts + b, link);
    }

    fn add(&mut self, a: usize, b: usize, link: LinkSpec) {
        let (at_a, at_b) = (self.ports[a].len(), self.ports[b].len());
        self.ports[a].push((PortId { node: b, port: at_b }, link));
        self.ports[b].push((PortId { node: a, port: at_a }, link));
    }

    pub(crate) const fn hosts(&self) -> usize {
        self.hosts
    }

    pub(crate) fn switches(&self) -> usize {
        self.ports.len() - self.hosts
    }

    /// Ports of a node.
    pub(crate) fn ports(&self, node: usize) -> usize {
        self.ports[node].len()
    }

    /// The port at the other end, and the link to it.
    pub(crate) fn neighbor(&self, port: PortId) -> (PortId, LinkSpec) {
        self.ports[port.node][port.port]
    }

    /// The port of a switch by which a host is linked to it.
    pub(crate) fn port_to_host(&self, host: usize) -> PortId {
        self.ports[host][0].0
    }

    /// The port of a switch by which it is linked to another one.
    ///
    /// # Panics
    /// If they are not linked.
    pub(crate) fn port_between(&self, a: usize, b: usize) -> PortId {
        let node = self.hosts + a;
        let port = self.ports[node].iter().position(|(far, _)| far.node == self.hosts + b);
        PortId { node, port: port.expect("they are linked") }
    }

    /// For each switch and host: the ports on shortest paths.
    pub(crate) fn routes(&self) -> Vec<Vec<Vec<u16>>> {
        let mut routes = vec![vec![Vec::new(); self.hosts]; self.switches()];
        for host in 0..self.hosts {
            let distances = self.distances(host);
            for (switch, to_hosts) in routes.iter_mut().enumerate() {
                let node = self.hosts + switch;
                let is_nearer = |(_, (far, _)): &(usize, &(PortId, LinkSpec))| {
                    distances[far.node].is_some_and(|far| Some(far + 1) == distances[node])
                };
                let ports = self.ports[node].iter().enumerate().filter(is_nearer);
                to_hosts[host] = ports.map(|(port, _)| port as u16).collect();
            }
        }
        routes
    }

    /// Links between each node and a host. Hosts pass nothing on.
    fn distances(&self, host: usize) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.ports.len()];
        distances[host] = Some(0);
        let mut due = VecDeque::from([(host, 0)]);
        while let Some((node, distance)) = due.pop_front() {
            for (far, _) in &self.ports[node] {
                if distances[far.node].is_none() {
                    distances[far.node] = Some(distance + 1);
                    if far.node >= self.hosts {
                        due.push_back((far.node, distance + 1));
                    }
                }
            }
        }
        distances
    }
}
