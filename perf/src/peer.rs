//! Conversion of a typed peer name to addresses.

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow};

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    host: String,
    port: u16,
}

impl Peer {
    /// Reads `HOST`, `HOST:PORT`, `IPv4`, `IPv4:PORT`, `IPv6`, `[IPv6]` or `[IPv6]:PORT`.
    ///
    /// # Errors
    /// When the port is no number, or there is no host.
    pub(crate) fn parse(text: &str, default_port: u16) -> anyhow::Result<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').with_context(|| format!("{text}: the ] is missing"))?;
                // Text behind the bracket without a colon is no port, and the number below will not
                // parse.
                (host, port.strip_prefix(':').unwrap_or(port))
            }
            // More than one colon without brackets is an IPv6 address.
            None if text.matches(':').count() > 1 => (text, ""),
            None => text.split_once(':').unwrap_or((text, "")),
        };
        if host.is_empty() {
            return Err(anyhow!("{text:?} names no host"));
        }
        let port = match port {
            "" => default_port,
            port => port.parse().map_err(|_| anyhow!("{text}: {port:?} is no port"))?,
        };
        Ok(Self { host: host.to_owned(), port })
    }

    /// The addresses of the host, in the resolver's order. The resolver may take `patience`.
    ///
    /// # Errors
    /// When it finds none or takes longer.
    pub(crate) fn resolve(&self, patience: Duration) -> anyhow::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        // The resolver has no deadline of its own, so it runs aside; a thread that never comes back
        // ends with the process.
        let (sender, receiver) = mpsc::channel();
        let Self { host, port } = self.clone();
        thread::spawn(move || {
            let answer = (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            // After a timeout the result has no receiver.
            let _ = sender.send(answer);
        });
        let addresses = receiver
            .recv_timeout(patience)
            .map_err(|_| {
                anyhow!("no answer from the name service about {} within {} s", self.host, patience.as_secs())
            })?
            .with_context(|| format!("looking up {}", self.host))?;
        if addresses.is_empty() {
            return Err(anyhow!("{} has no address", self.host));
        }
        Ok(addresses)
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_peer_is_read() {
        for (text, shown) in [
            ("host", "host:7"),
            ("host:9", "host:9"),
            ("10.0.0.1", "10.0.0.1:7"),
            ("10.0.0.1:9", "10.0.0.1:9"),
            ("fd00:10::2", "[fd00:10::2]:7"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("[::1]:9", "[::1]:9"),
            ("fe80::1%eth0", "[fe80::1%eth0]:7"),
        ] {
            assert_eq!(Peer::parse(text, 7).expect(text).to_string(), shown);
        }
    }

    #[test]
    fn an_invalid_peer_argument_is_refused() {
        for text in ["", ":9", "host:nine", "host:65536", "[::1", "[]:9", "[::1]x"] {
            assert!(Peer::parse(text, 7).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_address_is_its_own_answer() {
        let peer = Peer::parse("[fd00::1]:80", 7).expect("a peer");
        let addresses = peer.resolve(Duration::from_secs(1)).expect("needs no resolver");
        assert_eq!(addresses, ["[fd00::1]:80".parse().expect("an address")]);
    }
}
