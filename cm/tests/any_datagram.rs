//! A hostile peer: any sequence of messages with the numbers of real connections, and any bytes. The
//! connection manager neither panics nor keeps more connections than its limits allow, and answers
//! each datagram with two at most.

use std::time::Duration;

use proptest::prelude::*;
use roced_cm::{
    CmConfig, CmEvent, Connect, ConnectionManager, PeerAddress,
    wire::{CommId, ConnectionPath, MAD_BYTES, PortSpace, ServiceId, TransportService},
};
use roced_types::{AccountId, DeviceId, Qpn};

const SERVICE: ServiceId = ServiceId::of(PortSpace::Tcp, 1);
const PEER: PeerAddress = PeerAddress { device: DeviceId(0), vlan: None, local: [1; 16], remote: [2; 16] };
const CONNECTIONS_MAX: usize = 8;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_sequence_of_messages_is_survived(
        steps in proptest::collection::vec(
            (0x0eu8..=0x1b, any::<[u8; 32]>(), 0usize..12, 0usize..12, 0u64..100_000),
            1..120,
        ),
    ) {
        let mut manager = ConnectionManager::new(&CmConfig::new([1; 32], CONNECTIONS_MAX));
        manager.listen(SERVICE, 4).expect("free");
        let wanted = Connect {
            peer: PEER,
            account: AccountId(0),
            service_id: SERVICE,
            service: TransportService::Rc,
            qpn: Qpn::from_wire(7),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            pkey: 0xffff,
            path_mtu: 3,
            path: ConnectionPath::default(),
            packet_life_time: 16,
            ack_delay: 15,
            private_data: [0; 92],
        };
        let mut ids = vec![manager.connect(&wanted, Duration::ZERO).expect("there is room")];
        let mut now = Duration::ZERO;
        for (attribute, body, local, remote, pause_us) in steps {
            let mut bytes = [0; MAD_BYTES];
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[17] = attribute;
            bytes[24..56].copy_from_slice(&body);
            // Numbers of connections, where there are as many; else the random ones stay.
            if let Some(id) = ids.get(remote) {
                bytes[28..32].copy_from_slice(&id.0.to_be_bytes());
            }
            bytes[24..28].copy_from_slice(&(local as u32).to_be_bytes());
            if attribute == 0x10 {
                bytes[32..40].copy_from_slice(&SERVICE.0.to_be_bytes());
            }
            manager.on_datagram(PEER, &bytes, now);
            let answers = std::iter::from_fn(|| manager.poll_transmit()).count();
            prop_assert!(answers <= 2, "{} answers to attribute {:#x}", answers, attribute);
            while let Some(event) = manager.poll_event() {
                let id = event.id();
                match event {
                    CmEvent::Requested { .. } | CmEvent::ServiceRequested { .. } => ids.push(id),
                    CmEvent::Accepted { .. } => manager.confirm(id, [0; 224], now).expect("it waits for that"),
                    _ => {}
                }
            }
            prop_assert!(manager.len() <= CONNECTIONS_MAX);
            now += Duration::from_micros(pause_us);
            manager.on_timeout(now);
        }
        for id in ids {
            prop_assert!(id != CommId(0));
            let _ = manager.destroy(id, now);
        }
        now += Duration::from_secs(400);
        while let Some(at) = manager.poll_timeout().filter(|at| *at <= now) {
            manager.on_timeout(at);
        }
        prop_assert!(manager.is_empty(), "{} connections are left", manager.len());
    }
}
